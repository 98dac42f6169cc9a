"""Learn from the records that neighbours hand on: about other sites, and about earlier starts of this agent."""

from __future__ import annotations

from dataclasses import replace

from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.node.context import NodeContext
from deepca.sites.runtime.node.faults import Faults
from deepca.sites.runtime.node.neighbors import Neighbors
from deepca.sites.runtime.node.verification import Verification
from deepca.sites.runtime.settlement import Settling

__all__ = ["RecordReceiver"]

_MOST_NAMES = 5  # incarnations that an agent takes before it finds that another one runs as the same site


class RecordReceiver:
    """Take verified records into the assembly and into the settlement of the result."""

    def __init__(
        self,
        context: NodeContext,
        neighbors: Neighbors,
        settling: Settling,
        verification: Verification,
        faults: Faults,
    ) -> None:
        self._context, self._neighbors, self._settling = context, neighbors, settling
        self._verification, self._faults = verification, faults
        self._identity = context.assembly.record.identity
        self._renamed = 0

    def receive(self, peer: int, records: wire.Records) -> None:
        """Take records that a neighbour hands on."""
        news = False
        for sealed in records.sealed:
            record = self._verification.record(peer, sealed)
            if record is None:
                continue
            if record.site == self._context.me:
                self._learn_of_myself(record.identity)
                continue
            news = self._learn(peer, record, sealed) or news
        if news:
            self._neighbors.look()
            self._neighbors.wake_with_news()
            self._context.changed.notify_all()

    def greeted(self, peer: int, hello: wire.Hello) -> None:
        """Learn from a hello, whose sender may know of a later start of this agent.

        With certificates, only this site's own record shows that.
        """
        if not self._context.seals.binding:
            self._learn_of_myself(Incarnation(hello.known, hello.known_boot))
        elif hello.HasField("yours"):
            record = self._verification.record(peer, hello.yours)
            if record is not None and record.site == self._context.me:
                self._learn_of_myself(record.identity)

    def _learn(self, peer: int, record: Record, sealed: wire.Sealed) -> bool:
        """Take the record of another site; return whether it is news."""
        self._neighbors.told_by(peer, record)
        if record.fingerprint != self._context.membership.fingerprint:
            # of another run; its site is told apart by what differs
            record = replace(record, endorsement=None, proposed=None)
        self.take_endorsement(peer, record)
        if not self._context.assembly.learn(record):
            return False
        self._neighbors.keep_sealed(record, sealed)
        link = self._context.links.get(record.site)
        if link is not None and link.heard_of(record.identity, sealed):
            self._neighbors.wake(record.site)
        return True

    def take_endorsement(self, peer: int, record: Record) -> None:
        """Take the signature in a record, and the proposal that it has to rest on."""
        signed, proposed = record.endorsement, record.proposed
        if signed is None or not self._verification.endorsement(peer, signed):
            return
        if proposed is None or self._verification.endorsement(record.site, proposed):
            self._settling.signed(signed, proposed)
        elif self._context.seals.forged(proposed):
            self._settling.signed(signed, None)
        else:  # the proposer's certificate has ended since; who relied on it before is not to blame
            self._settling.claims.add(signed)

    def _learn_of_myself(self, seen: Incarnation) -> None:
        """Become later than another start of this agent that others know of, if that counts as later."""
        if seen.incarnation == 0 or seen == self._identity or seen < self._identity:
            return
        context = self._context
        self._identity = self._identity.after(seen)
        self._renamed += 1
        alive = min(context.clock.now() - context.began, 60.0)
        if self._renamed > _MOST_NAMES + alive / 4.0:  # whoever was here first shall stay
            self._faults.misconfigured(f"another agent runs as {context.name(context.me)}; there can be one only")
            return
        self._neighbors.renamed(self._identity)
        if context.assembly.plan is not None:
            context.assembly.disturbance = "this agent was known under a later start"
        self._neighbors.publish(identity=self._identity)
