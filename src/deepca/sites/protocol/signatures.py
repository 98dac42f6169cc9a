"""Records and endorsements that only their own site can have written, whoever hands them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from deepca.errors import NetworkError, Refused
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.handshake import Credentials

__all__ = ["CertificateSeals", "NoSeals", "Seals"]

RECORD_LABEL = b"deepca.v2 record"  # signed before a record, so that the signature counts for nothing else
_ENDORSEMENT = b"deepca.v2 endorsement"
_PASSING = ("expired", "early", "revoked", "list expired")  # a certificate that is refused now may have held before


class Seals(Protocol):
    @property
    def binding(self) -> bool:
        """Whether what a site has sealed cannot be made up by others."""
        ...

    def seal(self, content: bytes, /) -> wire.Sealed:
        """A record of this site, serialised, with its signature."""
        ...

    def fault(self, site: int, sealed: wire.Sealed, /) -> str:
        """What is wrong with a record that is said to be of ``site``; empty if nothing is."""
        ...

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        """The signature of this site, whose place in the list is ``site``, under a claim."""
        ...

    def endorsement_fault(self, endorsement: Endorsement, /) -> str:
        """What is wrong with an endorsement; empty if nothing is."""
        ...

    def forged(self, endorsement: Endorsement, /) -> bool:
        """Whether an endorsement was never good; one that was may be refused by now."""
        ...


class NoSeals:
    """Of agents that trust whatever reaches them: within one process, or over loopback without certificates."""

    binding = False

    def seal(self, content: bytes, /) -> wire.Sealed:
        return wire.Sealed(record=content)

    def fault(self, site: int, sealed: wire.Sealed, /) -> str:
        return ""

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        return Endorsement(site, claim)

    def endorsement_fault(self, endorsement: Endorsement, /) -> str:
        return ""

    def forged(self, endorsement: Endorsement, /) -> bool:
        return False


class CertificateSeals:
    """Signatures with the keys of the sites' certificates, which travel along.

    current : the credentials in use now.  names : of all sites, in their order.  run : what records must be about.
    agreement : what endorsements must be about, settings and name of the run included.
    """

    binding = True

    def __init__(self, current: Callable[[], Credentials], names: Sequence[str], run: bytes, agreement: bytes) -> None:
        self._current, self._names, self._run, self._agreement = current, tuple(names), run, agreement

    def seal(self, content: bytes, /) -> wire.Sealed:
        own = self._current()
        return wire.Sealed(
            record=content, certificate=own.certificate_der, signature=own.sign(RECORD_LABEL + self._run + content)
        )

    def fault(self, site: int, sealed: wire.Sealed, /) -> str:
        return self._fault(site, sealed.certificate, sealed.signature, RECORD_LABEL + self._run + sealed.record)

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        own = self._current()
        bare = Endorsement(site, claim, own.certificate_der)
        return replace(bare, signature=own.sign(_ENDORSEMENT + self._agreement + bare.statement))

    def endorsement_fault(self, endorsement: Endorsement, /) -> str:
        said = _ENDORSEMENT + self._agreement + endorsement.statement
        return self._fault(endorsement.site, endorsement.certificate, endorsement.signature, said)

    def forged(self, endorsement: Endorsement, /) -> bool:
        own, certificate = self._current(), endorsement.certificate
        try:
            own.check_peer(certificate, self._names[endorsement.site])
        except Refused as error:
            if error.reason not in _PASSING:
                return True
        said = _ENDORSEMENT + self._agreement + endorsement.statement
        return not own.verify_signature(certificate, endorsement.signature, said)

    def _fault(self, site: int, certificate: bytes, signature: bytes, said: bytes) -> str:
        own = self._current()
        try:
            own.check_peer(certificate, self._names[site])
        except NetworkError as error:
            return str(error)
        return "" if own.verify_signature(certificate, signature, said) else "its signature is wrong"
