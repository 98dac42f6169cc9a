"""Records that only their own site can have written, whoever hands them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from deepca.errors import NetworkError
from deepca.sites import wire_pb2 as wire
from deepca.sites.handshake import Credentials

__all__ = ["CertificateSeals", "NoSeals", "Seals"]

_WHAT = b"deepca.v1 record"


class Seals(Protocol):
    def seal(self, content: bytes, /) -> wire.Sealed:
        """A record of this site, serialised, with its signature."""
        ...

    def fault(self, site: int, sealed: wire.Sealed, /) -> str:
        """What is wrong with a record that is said to be of ``site``; empty if nothing is."""
        ...


class NoSeals:
    """Of agents that trust whatever reaches them: within one process, or over loopback without certificates."""

    def seal(self, content: bytes, /) -> wire.Sealed:
        return wire.Sealed(record=content)

    def fault(self, site: int, sealed: wire.Sealed, /) -> str:
        return ""


class CertificateSeals:
    """Signatures with the keys of the sites' certificates, which travel along.

    current : the credentials in use now.  names : of all sites, in their order.  run : what records must be about.
    """

    def __init__(self, current: Callable[[], Credentials], names: Sequence[str], run: bytes) -> None:
        self._current, self._names, self._run = current, tuple(names), run

    def seal(self, content: bytes, /) -> wire.Sealed:
        own = self._current()
        return wire.Sealed(
            record=content, certificate=own.certificate_der, signature=own.sign(_WHAT + self._run + content)
        )

    def fault(self, site: int, sealed: wire.Sealed, /) -> str:
        own = self._current()
        try:
            own.check_peer(sealed.certificate, self._names[site])
        except NetworkError as error:
            return str(error)
        good = own.verify_signature(sealed.certificate, sealed.signature, _WHAT + self._run + sealed.record)
        return "" if good else "its signature is wrong"
