"""How two neighbours make sure of each other at the beginning of a stream: Challenge both ways, then Proof both ways.

Nothing here waits or knows a stream; :mod:`deepca.sites.transport.streams` carries the frames.
"""

from __future__ import annotations

import os
from typing import Protocol

from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire

__all__ = ["NONCE", "PROTOCOL", "Credentials", "Handshake"]

PROTOCOL = 2
"""Version of what is spoken. Both sides must have the same."""
NONCE = 32
"""Bytes."""
_CONTEXT = b"deepca.v1 proof"


class Credentials(Protocol):
    """What a site shows of itself, and what it knows to judge others by."""

    @property
    def authority(self) -> bytes:
        """PEM."""

    @property
    def certificate(self) -> bytes:
        """PEM; the own certificate first."""

    @property
    def key(self) -> bytes:
        """PEM."""

    @property
    def certificate_der(self) -> bytes:
        """The own certificate alone."""

    def sign(self, data: bytes) -> bytes:
        """With the key of the certificate."""

    def check_peer(self, certificate_der: bytes, expected_site: str) -> None:
        """Raises a :class:`~deepca.errors.NetworkError` that says why this certificate is not accepted."""

    def verify_signature(self, certificate_der: bytes, signature: bytes, data: bytes) -> bool: ...

    @property
    def list_number(self) -> int:
        """Of the list of revoked certificates that this site goes by; 0 if none."""

    @property
    def list_der(self) -> bytes:
        """That list, to be passed on."""

    def adopt(self, der: bytes) -> Credentials:
        """Return credentials with this list of revoked certificates if it is newer, else these.

        Raises a :class:`~deepca.errors.NetworkError` for a list that the authority has not signed.
        """

    def warning(self) -> str:
        """Say what will have to be done soon; empty if nothing has to be."""

    def changed(self) -> bool:
        """Whether the files that this was read from are others by now."""

    def reload(self) -> Credentials:
        """What is in the files now."""


class Handshake:
    """One side of it. Every method raises :class:`FrameError` for what cannot be accepted."""

    def __init__(self, me: str, credentials: Credentials | None) -> None:
        self._me, self._credentials = me, credentials
        self._nonce = os.urandom(NONCE)
        self._their_nonce = b""
        self.peer = ""
        """The name that the other side goes by; proven only after :meth:`check`."""
        self.their_list = 0
        """Number of the list of revoked certificates that the other side says it goes by."""
        self.own_list = 0 if credentials is None else credentials.list_number
        """And of the one here, which the other side is sent if it is newer."""

    def challenge(self) -> wire.Frame:
        said = wire.Challenge(protocol=PROTOCOL, site=self._me, nonce=self._nonce, revocations=self.own_list)
        return wire.Frame(challenge=said)

    def proof(self, frame: wire.Frame) -> wire.Frame:
        """The answer to the other side's Challenge."""
        _expect(frame, "challenge")
        theirs = frame.challenge
        if theirs.protocol != PROTOCOL:
            raise FrameError(
                f"{theirs.site[:80]!r} speaks version {theirs.protocol} of the protocol and {self._me}"
                f" version {PROTOCOL}; install the same version of deepca at both"
            )
        if len(theirs.nonce) != NONCE or theirs.nonce == self._nonce:
            raise FrameError(f"a challenge must hold {NONCE} random bytes of its own")
        if theirs.site == self._me:
            raise FrameError(f"the other side calls itself {self._me} as well; two sites cannot share a name")
        self.peer, self._their_nonce, self.their_list = theirs.site, theirs.nonce, theirs.revocations
        if self._credentials is None:
            return wire.Frame(proof=wire.Proof())
        said = _statement(self._me, self.peer, self._their_nonce, self._nonce)
        proof = wire.Proof(certificate=self._credentials.certificate_der, signature=self._credentials.sign(said))
        if self.own_list > self.their_list:
            proof.revocations = self._credentials.list_der
        return wire.Frame(proof=proof)

    def check(self, frame: wire.Frame, transport: bytes | None, credentials: Credentials | None = None) -> bytes:
        """The certificate (DER) of the other side once its Proof holds; empty without credentials.

        ``transport`` : the certificate that TLS was given by the other side, where that is known.
        ``credentials`` : with the list of revoked certificates that came with the Proof, where that is newer.
        """
        _expect(frame, "proof")
        if credentials is not None:
            self._credentials = credentials
        certificate, signature = frame.proof.certificate, frame.proof.signature
        if self._credentials is None:
            if certificate:
                raise FrameError(f"{self.peer} uses certificates and {self._me} does not (plaintext = true)")
            return b""
        if not certificate:
            raise FrameError(f"{self.peer} shows no certificate")
        if transport is not None and certificate != transport:
            raise FrameError(f"{self.peer} shows another certificate than the one that the connection was made with")
        self._credentials.check_peer(certificate, self.peer)
        said = _statement(self.peer, self._me, self._nonce, self._their_nonce)
        if not self._credentials.verify_signature(certificate, signature, said):
            raise FrameError(f"{self.peer} has not shown that it holds the key of its certificate")
        return certificate


def _expect(frame: wire.Frame, kind: str) -> None:
    if (found := frame.WhichOneof("kind")) != kind:
        raise FrameError(f"a frame of kind {found} where a {kind} has to come")


def _statement(speaker: str, listener: str, listeners_nonce: bytes, speakers_nonce: bytes) -> bytes:
    """What is signed: it holds for this pair, in this direction, on this stream."""
    return b"".join(
        [_CONTEXT, speaker.encode(), b"\0", listener.encode(), b"\0", listeners_nonce, speakers_nonce],
    )
