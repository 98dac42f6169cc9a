"""Sign records and endorsements, which proves their origin no matter who forwards them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from deepca.errors import NetworkError, Refused
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.handshake import Credentials

__all__ = ["CertificateSeals", "NoSeals", "Seals"]

RECORD_LABEL = b"deepca.v2 record"
"""Signed before a record, so that the signature is valid for nothing else."""
_ENDORSEMENT_LABEL = b"deepca.v2 endorsement"  # likewise
_REASONS_OF_TIME = ("expired", "early", "revoked", "list expired")  # the certificate may have been valid before


class Seals(Protocol):
    """Signatures of records and endorsements."""

    @property
    def binding(self) -> bool:
        """Whether other sites cannot forge them."""
        ...

    def seal(self, content: bytes, /) -> wire.Sealed:
        """Sign a serialized record of this site."""
        ...

    def fault(self, site: int, sealed: wire.Sealed, /) -> str:
        """Return what is wrong with the signature of a record of ``site``; empty if nothing is."""
        ...

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        """Sign a claim as this site, whose index is ``site``."""
        ...

    def endorsement_fault(self, endorsement: Endorsement, /) -> str:
        """Return what is wrong with an endorsement; empty if nothing is."""
        ...

    def forged(self, endorsement: Endorsement, /) -> bool:
        """Tell whether an endorsement never was valid, rather than just no longer."""
        ...


class NoSeals:
    """No signatures, for agents within one process, or over loopback without certificates."""

    binding = False

    def seal(self, content: bytes, /) -> wire.Sealed:
        """Return the record without a signature."""
        return wire.Sealed(record=content)

    def fault(self, site: int, sealed: wire.Sealed, /) -> str:
        """Accept every record."""
        return ""

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        """Return an endorsement without a signature."""
        return Endorsement(site, claim)

    def endorsement_fault(self, endorsement: Endorsement, /) -> str:
        """Accept every endorsement."""
        return ""

    def forged(self, endorsement: Endorsement, /) -> bool:
        """Consider no endorsement forged."""
        return False


class CertificateSeals:
    """Signatures with the keys of the sites' certificates, which are sent along.

    Parameters
    ----------
    current : callable
        Returns the credentials in use.
    names : sequence of str
        Names of all sites, in order.
    run : bytes
        Digest of network and protocol; signatures of records are valid only for it.
    agreement : bytes
        Digest that includes the settings and the name of the run; endorsements are valid only for it.
    """

    binding = True

    def __init__(self, current: Callable[[], Credentials], names: Sequence[str], run: bytes, agreement: bytes) -> None:
        self._current, self._names, self._run, self._agreement = current, tuple(names), run, agreement

    def seal(self, content: bytes, /) -> wire.Sealed:
        """Sign a record with the current key."""
        own = self._current()
        return wire.Sealed(
            record=content, certificate=own.certificate_der, signature=own.sign(RECORD_LABEL + self._run + content)
        )

    def fault(self, site: int, sealed: wire.Sealed, /) -> str:
        """Check the certificate and the signature of a record."""
        return self._fault(site, sealed.certificate, sealed.signature, RECORD_LABEL + self._run + sealed.record)

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        """Sign a claim with the current key."""
        own = self._current()
        bare = Endorsement(site, claim, own.certificate_der)
        return replace(bare, signature=own.sign(_ENDORSEMENT_LABEL + self._agreement + bare.statement))

    def endorsement_fault(self, endorsement: Endorsement, /) -> str:
        """Check the certificate and the signature of an endorsement."""
        statement = _ENDORSEMENT_LABEL + self._agreement + endorsement.statement
        return self._fault(endorsement.site, endorsement.certificate, endorsement.signature, statement)

    def forged(self, endorsement: Endorsement, /) -> bool:
        """Tell whether the signature is wrong, or the certificate for reasons other than time and revocation."""
        own, certificate = self._current(), endorsement.certificate
        try:
            own.check_peer(certificate, self._names[endorsement.site])
        except Refused as error:
            if error.reason not in _REASONS_OF_TIME:
                return True
        statement = _ENDORSEMENT_LABEL + self._agreement + endorsement.statement
        return not own.verify_signature(certificate, endorsement.signature, statement)

    def _fault(self, site: int, certificate: bytes, signature: bytes, statement: bytes) -> str:
        own = self._current()
        try:
            own.check_peer(certificate, self._names[site])
        except NetworkError as error:
            return str(error)
        return "" if own.verify_signature(certificate, signature, statement) else "its signature is wrong"
