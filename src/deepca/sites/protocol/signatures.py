"""Sign records and endorsements, so that their origin is proven whoever forwards them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from deepca.errors import NetworkError, Refused
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.handshake import Credentials

__all__ = ["CertificateSignatures", "NoSignatures", "Signatures"]

RECORD_LABEL = b"deepca.v2 record"
"""Prefix of the signed bytes of a record, so that the signature is valid for nothing else."""
_ENDORSEMENT_LABEL = b"deepca.v2 endorsement"  # prefix of the signed bytes of an endorsement
_REASONS_SINCE_SIGNING = ("expired", "early", "revoked", "list expired")  # may not have applied at the time of signing


class Signatures(Protocol):
    """Interface of objects that sign a site's records and endorsements, and verify those of others."""

    @property
    def unforgeable(self) -> bool:
        """True if signatures prove who made them, which requires certificates."""
        ...

    def sign_record(self, content: bytes, /) -> wire.Sealed:
        """Sign a serialized record of this site."""
        ...

    def record_problem(self, site: int, signed_record: wire.Sealed, /) -> str:
        """Return what is wrong with the signature on a record of ``site``, or an empty string if it is valid."""
        ...

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        """Sign a claim as this site, whose index is ``site``."""
        ...

    def endorsement_problem(self, endorsement: Endorsement, /) -> str:
        """Return what is wrong with the signature on an endorsement, or an empty string if it is valid."""
        ...

    def forged(self, endorsement: Endorsement, /) -> bool:
        """Return whether an endorsement was never valid, as opposed to no longer valid."""
        ...


class NoSignatures:
    """Sign nothing and accept everything: within one process, or on loopback addresses without certificates."""

    unforgeable = False

    def sign_record(self, content: bytes, /) -> wire.Sealed:
        """Return the record without a signature."""
        return wire.Sealed(record=content)

    def record_problem(self, site: int, signed_record: wire.Sealed, /) -> str:
        """Accept every record."""
        return ""

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        """Return an endorsement without a signature."""
        return Endorsement(site, claim)

    def endorsement_problem(self, endorsement: Endorsement, /) -> str:
        """Accept every endorsement."""
        return ""

    def forged(self, endorsement: Endorsement, /) -> bool:
        """Consider no endorsement forged."""
        return False


class CertificateSignatures:
    """Signatures made with the keys of the sites' certificates, each sent together with its certificate.

    Parameters
    ----------
    current : callable
        Returns the credentials in use.
    names : sequence of str
        Names of all sites, in order.
    run : bytes
        Digest of network and protocol; signatures on records are valid only for it.
    agreement : bytes
        Digest that includes the settings and the name of the run; endorsements are valid only for it.
    """

    unforgeable = True

    def __init__(self, current: Callable[[], Credentials], names: Sequence[str], run: bytes, agreement: bytes) -> None:
        self._current, self._names, self._run, self._agreement = current, tuple(names), run, agreement

    def sign_record(self, content: bytes, /) -> wire.Sealed:
        """Sign a record with the current key."""
        own = self._current()
        return wire.Sealed(
            record=content, certificate=own.certificate_der, signature=own.sign(RECORD_LABEL + self._run + content)
        )

    def record_problem(self, site: int, signed_record: wire.Sealed, /) -> str:
        """Return what is wrong with the certificate or the signature of a record, or an empty string."""
        return self._problem(
            site, signed_record.certificate, signed_record.signature, RECORD_LABEL + self._run + signed_record.record
        )

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        """Sign a claim with the current key."""
        own = self._current()
        bare = Endorsement(site, claim, own.certificate_der)
        return replace(bare, signature=own.sign(_ENDORSEMENT_LABEL + self._agreement + bare.statement))

    def endorsement_problem(self, endorsement: Endorsement, /) -> str:
        """Return what is wrong with the certificate or the signature of an endorsement, or an empty string."""
        statement = _ENDORSEMENT_LABEL + self._agreement + endorsement.statement
        return self._problem(endorsement.site, endorsement.certificate, endorsement.signature, statement)

    def forged(self, endorsement: Endorsement, /) -> bool:
        """Return whether the signature is wrong, or the certificate was unacceptable even at the time of signing."""
        own, certificate = self._current(), endorsement.certificate
        try:
            own.check_peer(certificate, self._names[endorsement.site])
        except Refused as error:
            if error.reason not in _REASONS_SINCE_SIGNING:
                return True
        statement = _ENDORSEMENT_LABEL + self._agreement + endorsement.statement
        return not own.verify_signature(certificate, endorsement.signature, statement)

    def _problem(self, site: int, certificate: bytes, signature: bytes, statement: bytes) -> str:
        own = self._current()
        try:
            own.check_peer(certificate, self._names[site])
        except NetworkError as error:
            return str(error)
        return "" if own.verify_signature(certificate, signature, statement) else "its signature is wrong"
