"""The credentials in use, replaced when their files change or a newer revocation list arrives."""

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

_REMINDER_INTERVAL = 86400.0  # seconds, one day: expiry is a matter of weeks


class CurrentCredentials:
    """The credentials that a site uses; it closes streams whose certificate they no longer accept.

    Only the event loop's thread may change them; any thread may read ``value``.
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
        """The credentials in use; None without encryption."""
        return self._value

    def require(self) -> Credentials:
        """Return the credentials in use at a site that has some, as all sites with encryption do."""
        assert self._value is not None
        return self._value

    def refresh(self) -> bool:
        """Load the files if they have changed, and return whether the certificate, key or authority of this site has.

        Also logs, once a day, what has to be renewed soon.
        """
        before = self.require()
        try:
            if before.changed():
                self._value = before.reload()
        except Exception as error:  # the old credentials stay in use, and the files are checked again
            self._refusals.report(
                None,
                "this site",
                f"the certificate files of {self._site} have changed but cannot be used, so the previous ones stay in "
                f"use: {error}",
            )
        now = self.require()
        self._remind(now)
        if now.revocation_list_number > before.revocation_list_number:
            self._neighbors.wake_all()  # every stream passes the list on
        return (before.certificate, before.key, before.authority) != (now.certificate, now.key, now.authority)

    def check_streams(self) -> None:
        """Close streams whose certificate is no longer accepted."""
        for neighbor in self._neighbors:
            if neighbor.stream is None:
                continue
            try:
                self.require().check_peer(neighbor.stream.certificate, neighbor.peer.name)
            except Exception as error:  # a certificate that cannot be checked is not accepted
                self._refusals.report(neighbor, neighbor.peer.address or neighbor.peer.name, str(error))
                neighbor.close(neighbor.stream, str(error))

    def adopt(self, der: bytes, source: str, stream: OpenStream | None = None) -> None:
        """Adopt a newer revocation list, act on it, and pass it on.

        Parameters
        ----------
        der : bytes
            The list; empty for none.
        source : str
            Name of the site that sent it.
        stream : OpenStream, optional
            Stream that it came from, over which it need not be sent back.

        Raises
        ------
        NetworkError
            If the list is not accepted (see :meth:`.handshake.Credentials.adopt`).
        """
        if not der or self._value is None:
            return
        before = self._value
        now = self._value = before.adopt(der)
        if stream is not None:
            stream.their_revocation_list_number = max(stream.their_revocation_list_number, now.revocation_list_number)
        if now is before:
            return
        replaced = before.revocation_list_number
        what = f"it replaces list {replaced}" if replaced else "this site had none before"
        text = f"received revocation list {now.revocation_list_number} from {source}; {what}"
        self._log.warning(text, event="revocations")
        try:
            now.check_peer(before.certificate_der, self._site)
        except DeepcaError as error:
            text = f"{self._site} can no longer take part: {error}; ask the operator of the authority why"
            self._log.warning(text, event="revocations")
        self.check_streams()
        self._neighbors.wake_all()  # every stream passes the list on

    def newer_revocation_list(self, stream: OpenStream) -> wire.Frame | None:
        """Return the revocation list as a frame, or None if the other side of a stream already has it."""
        if self._value is None or self._value.revocation_list_number <= stream.their_revocation_list_number:
            return None
        stream.their_revocation_list_number = self._value.revocation_list_number
        der = self._value.revocation_list_der
        return wire.Frame(revocations=wire.Revocations(list=der)) if der else None

    def _remind(self, now: Credentials) -> None:
        """Log what has to be renewed soon, at most once a day."""
        if time.monotonic() - self._reminded >= _REMINDER_INTERVAL and (text := now.warning()):
            self._reminded = time.monotonic()
            self._log.warning(text, event="revocations")
