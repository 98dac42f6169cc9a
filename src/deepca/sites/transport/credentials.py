"""The credentials in use: replaced when their files change, or when a newer list of revoked certificates arrives."""

from __future__ import annotations

import logging
import math
import time

from deepca._util.logs import EventLogger
from deepca.errors import DeepcaError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.handshake import Credentials
from deepca.sites.transport.neighbors import NeighborTable, OpenStream
from deepca.sites.transport.refusals import RefusalReporter

__all__ = ["CurrentCredentials"]

_logger = logging.getLogger(__name__)

_DAY = 86400.0  # seconds from one reminder to the next


class CurrentCredentials:
    """Holds a site's credentials, and closes the streams that they no longer accept.

    Changed in the event loop's thread; ``value`` may be read in any.
    """

    def __init__(
        self, site: str, credentials: Credentials | None, neighbors: NeighborTable, refusals: RefusalReporter
    ) -> None:
        self._site, self._neighbors, self._refusals = site, neighbors, refusals
        self._log = EventLogger(_logger, site)
        self._value = credentials
        self._reminded = -math.inf

    @property
    def value(self) -> Credentials | None:
        """The credentials in use now; None where nothing is encrypted."""
        return self._value

    def require(self) -> Credentials:
        """Return the credentials, where something is encrypted."""
        assert self._value is not None
        return self._value

    def refresh(self) -> bool:
        """Take over files that have changed; return whether this site now shows itself otherwise than before.

        Once a day, also say what will have to be done soon.
        """
        before = self.require()
        try:
            if before.changed():
                self._value = before.reload()
        except Exception as error:  # whatever it is, looking must go on
            self._refusals.report(None, "own certificate", f"the files have changed and cannot be used: {error}")
        now = self.require()
        self._remind(now)
        if now.list_number > before.list_number:
            self._neighbors.wake_all()  # so that every stream passes the list on
        return (before.certificate, before.key, before.authority) != (now.certificate, now.key, now.authority)

    def check_streams(self) -> None:
        """Close streams whose certificate is no longer accepted."""
        for neighbor in self._neighbors:
            if neighbor.stream is None:
                continue
            try:
                self.require().check_peer(neighbor.stream.certificate, neighbor.peer.name)
            except Exception as error:  # what cannot be checked is not accepted
                self._refusals.report(neighbor, neighbor.peer.address or neighbor.peer.name, str(error))
                neighbor.close(neighbor.stream, str(error))

    def adopt(self, der: bytes, source: str, stream: OpenStream | None = None) -> None:
        """Take over a newer list of revoked certificates, act on it, and pass it on.

        ``der`` : empty for no list. ``source`` : name of the site that sent it.
        ``stream`` : by which it came during a stream, and need not go back.
        """
        if not der or self._value is None:
            return
        before = self._value
        now = self._value = before.adopt(der)
        if stream is not None:
            stream.their_list = max(stream.their_list, now.list_number)
        if now is before:
            return
        self._log.warning(
            f"list {now.list_number} of revoked certificates came from {source}, in place of {before.list_number}",
            event="revocations",
        )
        try:
            now.check_peer(before.certificate_der, self._site)
        except DeepcaError as error:
            self._log.warning(f"this site can no longer take part: {error}", event="revocations")
        self.check_streams()
        self._neighbors.wake_all()  # so that every stream passes the list on

    def newer_list(self, stream: OpenStream) -> wire.Frame | None:
        """Return the list of revoked certificates as a frame, if the other side of a stream has not got it yet."""
        if self._value is None or self._value.list_number <= stream.their_list:
            return None
        stream.their_list = self._value.list_number
        der = self._value.list_der
        return wire.Frame(revocations=wire.Revocations(list=der)) if der else None

    def _remind(self, now: Credentials) -> None:
        if time.monotonic() - self._reminded >= _DAY and (text := now.warning()):
            self._reminded = time.monotonic()
            self._log.warning(text, event="revocations")
