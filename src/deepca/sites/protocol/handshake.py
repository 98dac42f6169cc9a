"""Authenticate two neighbours at the start of a stream: each sends a Challenge, then a Proof.

This module only makes and checks frames; :mod:`deepca.sites.transport.sessions` sends and receives them. The messages
of its errors are complete clauses, which name the sites.
"""

from __future__ import annotations

import os
from typing import Protocol

from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire

__all__ = ["NONCE_BYTES", "PROTOCOL", "Credentials", "Handshake"]

PROTOCOL = 4
"""Version of the protocol, which must be the same at both sites."""
NONCE_BYTES = 32
"""Number of random bytes in a Challenge."""
_MAX_NAME = 80  # characters shown of a name that has not been authenticated
_PROOF_LABEL = b"deepca.v1 proof"  # prefix of the signed bytes, so that the signature is valid for nothing else


class Credentials(Protocol):
    """The certificate and key of a site, and what it needs to check other certificates."""

    @property
    def authority(self) -> bytes:
        """Certificate of the authority, in PEM."""

    @property
    def certificate(self) -> bytes:
        """Content of the certificate file (PEM), which begins with this site's certificate."""

    @property
    def key(self) -> bytes:
        """Private key, in PEM."""

    @property
    def certificate_der(self) -> bytes:
        """Certificate of this site, in DER."""

    def sign(self, data: bytes) -> bytes:
        """Sign with the key of the certificate."""

    def check_peer(self, certificate_der: bytes, expected_site: str) -> None:
        """Raise :class:`~deepca.errors.NetworkError` unless this certificate is accepted for the expected site."""

    def verify_signature(self, certificate_der: bytes, signature: bytes, data: bytes) -> bool:
        """Return whether ``data`` was signed with the key of this certificate."""

    @property
    def revocation_list_number(self) -> int:
        """Number of the revocation list in force; 0 without one."""

    @property
    def revocation_list_der(self) -> bytes:
        """The revocation list in force, in DER."""

    def adopt(self, der: bytes) -> Credentials:
        """Return credentials with this revocation list if it is newer, else these credentials unchanged.

        Raises
        ------
        NetworkError
            If the authority did not sign the list, or the list is too large.
        """

    def warning(self) -> str:
        """Return a warning if something expires soon, else an empty string."""

    def changed(self) -> bool:
        """Return whether the files have changed since they were read."""

    def reload(self) -> Credentials:
        """Return credentials from the files as they are now; raise InvalidInput if a file cannot be used."""


class Handshake:
    """One side of a handshake.

    Parameters
    ----------
    me : str
        Name of this site.
    credentials : Credentials or None
        Credentials of this site; None without encryption.
    """

    def __init__(self, me: str, credentials: Credentials | None) -> None:
        self._me, self._credentials = me, credentials
        self._nonce = os.urandom(NONCE_BYTES)
        self._their_nonce = b""
        self.peer = ""
        """Name that the other side claims; proven only after :meth:`check`."""
        self.their_revocation_list_number = 0
        """Number of the revocation list that the other side claims to have."""
        self.own_revocation_list_number = 0 if credentials is None else credentials.revocation_list_number
        """Number of the revocation list at this site, which is sent to the other side if it is newer."""

    def challenge(self) -> wire.Frame:
        """Return the Challenge to send."""
        challenge = wire.Challenge(
            protocol=PROTOCOL, site=self._me, nonce=self._nonce, revocations=self.own_revocation_list_number
        )
        return wire.Frame(challenge=challenge)

    def proof(self, frame: wire.Frame) -> wire.Frame:
        """Return the Proof that answers the other side's Challenge; raise FrameError if that is not acceptable."""
        _expect(frame, "challenge", "the other side")
        theirs = frame.challenge
        if theirs.protocol != PROTOCOL:
            raise FrameError(
                f"{theirs.site[:_MAX_NAME]!r} uses version {theirs.protocol} of the protocol, but {self._me} uses "
                f"version {PROTOCOL}; install the same version of deepca at both"
            )
        if len(theirs.nonce) != NONCE_BYTES or theirs.nonce == self._nonce:
            raise FrameError(f"{theirs.site[:_MAX_NAME]!r} sent a challenge without {NONCE_BYTES} fresh random bytes")
        if theirs.site == self._me:
            raise FrameError(f"both sides are called {self._me}; check `site` in site.toml at both")
        self.peer, self._their_nonce, self.their_revocation_list_number = theirs.site, theirs.nonce, theirs.revocations
        if self._credentials is None:
            return wire.Frame(proof=wire.Proof())
        statement = _statement(self._me, self.peer, self._their_nonce, self._nonce)
        proof = wire.Proof(certificate=self._credentials.certificate_der, signature=self._credentials.sign(statement))
        if self.own_revocation_list_number > self.their_revocation_list_number:
            proof.revocations = self._credentials.revocation_list_der
        return wire.Frame(proof=proof)

    def check(self, frame: wire.Frame, transport: bytes | None, credentials: Credentials | None = None) -> bytes:
        """Verify the other side's Proof and return its certificate (DER); empty without credentials.

        Parameters
        ----------
        frame : wire.Frame
            The Proof.
        transport : bytes or None
            Certificate that the other side used for TLS, if known.
        credentials : Credentials, optional
            Credentials to use from now on, which take the revocation list sent with the Proof into account.

        Raises
        ------
        FrameError
            If the frame is not a Proof, or does not prove that its sender has the key of its certificate.
        NetworkError
            If the certificate is not accepted (see :meth:`Credentials.check_peer`).
        """
        _expect(frame, "proof", self.peer)
        if credentials is not None:
            self._credentials = credentials
        certificate, signature = frame.proof.certificate, frame.proof.signature
        if self._credentials is None:
            if certificate:
                raise FrameError(
                    f"{self.peer} uses certificates, but {self._me} does not; set plaintext = true at both or neither"
                )
            return b""
        if not certificate:
            raise FrameError(f"{self.peer} did not present a certificate")
        if transport is not None and certificate != transport:
            raise FrameError(f"{self.peer} presented a certificate other than the one it used for TLS")
        self._credentials.check_peer(certificate, self.peer)
        statement = _statement(self.peer, self._me, self._nonce, self._their_nonce)
        if not self._credentials.verify_signature(certificate, signature, statement):
            raise FrameError(f"{self.peer} did not prove possession of the private key of its certificate")
        return certificate


def _expect(frame: wire.Frame, kind: str, who: str) -> None:
    """Raise FrameError unless ``who`` sent a frame of the expected kind."""
    if (found := frame.WhichOneof("kind")) != kind:
        raise FrameError(f"{who} sent a frame of kind {found or 'unknown'} instead of a {kind}")


def _statement(speaker: str, listener: str, listeners_nonce: bytes, speakers_nonce: bytes) -> bytes:
    """Return the bytes that one side signs, which bind the signature to this pair, direction and stream."""
    return b"".join(
        [_PROOF_LABEL, speaker.encode(), b"\0", listener.encode(), b"\0", listeners_nonce, speakers_nonce],
    )
