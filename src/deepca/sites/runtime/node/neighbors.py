"""Track which neighbours of a node are reachable, and send them the records that they lack."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from deepca._util.logs import EventLogger
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.node.context import NodeContext

__all__ = ["Neighbors"]

_logger = logging.getLogger(__name__)


class Neighbors:
    """The neighbours of a node, and which records each of them already has.

    Attributes
    ----------
    wake : callable
        Called with a neighbour whenever there may be a frame for it, with or without the lock held; it must not block.
    presence_checked_at : float
        When the presence of sites was last checked.
    """

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._log = EventLogger(_logger, context.name(context.me))
        self.wake: Callable[[int], None] = lambda peer: None
        self.presence_checked_at = float("-inf")
        self._known_to: dict[int, dict[int, tuple[Incarnation, int]]] = {peer: {} for peer in context.links}
        self._news_sent = dict.fromkeys(context.links, 0)
        self._signed: dict[int, tuple[tuple[Incarnation, int], wire.Sealed]] = {}

    # ----------------------------------------------------------------------------------------------------- who is there

    def update_presence(self) -> None:
        """Update which sites are present, and whether that disturbs the plan."""
        here, links = self._context.assembly, self._context.links
        now = self.presence_checked_at = self._context.clock.now()
        reached = frozenset(peer for peer, link in links.items() if not link.silent(now))
        news, undisturbed = here.news, not here.disturbance
        here.update_presence(now, reached, {peer: link.last_heard for peer, link in links.items()})
        if here.news != news:
            self.wake_with_news()
        if undisturbed and here.disturbance:
            self._context.changed.notify_all()

    def log_connected(self, peer: int) -> None:
        """Log that a neighbour can be reached."""
        name = self._context.name(peer)
        self._log.info(f"connected to {name}", event="link_up", facts={"site": name})

    def log_disconnected(self, peer: int, why: str) -> None:
        """Log that the stream to a neighbour has ended."""
        name, level = self._context.name(peer), self._context.assembly.gone_level
        self._log.log(level, f"disconnected from {name}: {why}", event="link_down", facts={"site": name, "why": why})

    def log_refused(self, peer: int | None, where: str, why: str) -> None:
        """Log a connection that was refused; ``peer`` is None if the other side is unknown."""
        name = None if peer is None else self._context.name(peer)
        who = where if name is None else f"{name} ({where})"
        self._log.warning(f"{who}: {why}", event="refused", facts={"peer": name, "where": where, "why": why})

    def wake_with_news(self) -> None:
        """Wake the neighbours for which there is something to send."""
        self.wake_each(self.with_news())

    def wake_all(self) -> None:
        """Wake every neighbour."""
        self.wake_each(self._context.links)

    def wake_each(self, peers: Iterable[int]) -> None:
        """Wake some neighbours."""
        for peer in peers:
            self.wake(peer)

    # ---------------------------------------------------------------------------------------------------------- records

    def publish(self, **changes: Any) -> None:
        """Change fields of this site's record."""
        self._context.assembly.publish(**changes)
        self._context.changed.notify_all()
        self.wake_with_news()

    def news_for(self, peer: int) -> list[Record]:
        """Return the records that a neighbour has not been sent yet."""
        here, known = self._context.assembly, self._known_to[peer]
        if self._news_sent[peer] == here.news:
            return []
        return [record for record in here.table if record.site != peer and known.get(record.site) != record.recency]

    def with_news(self) -> list[int]:
        """Return the neighbours for which there is something to send."""
        links = self._context.links
        return [peer for peer, link in links.items() if link.ready or (link.up and self.news_for(peer))]

    def send_news(self, peer: int) -> None:
        """Send a neighbour the records that it has not been sent yet."""
        for record in self.news_for(peer):  # one at a time: together they might not fit into a frame
            records = wire.Records(sealed=[self._signed_record(record)])
            self._context.links[peer].send(Parcel(wire.Parcel(records=records).SerializeToString()))
            self._known_to[peer][record.site] = record.recency
        self._news_sent[peer] = self._context.assembly.news

    def note_known(self, peer: int, record: Record) -> None:
        """Remember that a neighbour knows a record, because the neighbour sent it."""
        known = self._known_to[peer].get(record.site)
        if known is None or known < record.recency:
            self._known_to[peer][record.site] = record.recency

    def keep_signed_record(self, record: Record, signed_record: wire.Sealed) -> None:
        """Keep a record as signed by its site, to pass it on."""
        self._signed[record.site] = record.recency, signed_record

    def _signed_record(self, record: Record) -> wire.Sealed:
        """Return a record as signed by its site; the record of this site is signed again whenever it has changed."""
        known = self._signed.get(record.site)
        if known is None or known[0] != record.recency:
            content = record.to_wire().SerializeToString(deterministic=True)
            known = self._signed[record.site] = record.recency, self._context.signatures.sign_record(content)
        return known[1]

    # --------------------------------------------------------------------------------------------------------- restarts

    def restarted(self, peer: int) -> None:
        """Handle a neighbour's restart, after which it knows no records."""
        self._known_to[peer], self._news_sent[peer] = {}, 0

    def take_incarnation(self, incarnation: Incarnation) -> None:
        """Start new sessions with all neighbours as another incarnation of this agent."""
        for link in self._context.links.values():
            link.take_incarnation(incarnation)
        for peer in self._known_to:
            self.restarted(peer)
