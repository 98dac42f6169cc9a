"""Process the records that neighbours pass on, about other sites and about other incarnations of this agent."""

from __future__ import annotations

from dataclasses import replace

from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.node.context import NodeContext
from deepca.sites.runtime.node.faults import Faults
from deepca.sites.runtime.node.neighbors import Neighbors
from deepca.sites.runtime.node.settlement import Settlement
from deepca.sites.runtime.node.verification import Verification

__all__ = ["RecordReceiver"]

_MAX_INCARNATIONS = 5  # taken in turn before an agent concludes that another agent runs as the same site
_ALIVE_PER_INCARNATION = 4.0  # seconds of running for which one more is allowed, as restarts elsewhere may explain it
_ALIVE_COUNTED = 60.0  # most seconds of running that count towards more incarnations


class RecordReceiver:
    """Verify records, then pass them to the assembly and to the settlement of the result."""

    def __init__(
        self,
        context: NodeContext,
        neighbors: Neighbors,
        settlement: Settlement,
        verification: Verification,
        faults: Faults,
    ) -> None:
        self._context, self._neighbors, self._settlement = context, neighbors, settlement
        self._verification, self._faults = verification, faults
        self._identity = context.assembly.record.identity
        self._renamed = 0

    def receive(self, peer: int, records: wire.Records) -> None:
        """Process records that a neighbour passes on."""
        news = False
        for sealed in records.sealed:
            record = self._verification.record(peer, sealed)
            if record is None:
                continue
            if record.site == self._context.me:
                self._learn_of_itself(record.identity)
                continue
            news = self._learn(peer, record, sealed) or news
        if news:
            self._neighbors.update_presence()
            self._neighbors.wake_with_news()
            self._context.changed.notify_all()

    def greeted(self, peer: int, hello: wire.Hello) -> None:
        """Process a hello, whose sender may know a later incarnation of this agent.

        With certificates, only a record signed by this site proves that.
        """
        if not self._context.seals.unforgeable:
            self._learn_of_itself(Incarnation(hello.known, hello.known_boot))
        elif hello.HasField("yours"):
            record = self._verification.record(peer, hello.yours)
            if record is not None and record.site == self._context.me:
                self._learn_of_itself(record.identity)

    def _learn(self, peer: int, record: Record, sealed: wire.Sealed) -> bool:
        """Process the record of another site and return whether it was new."""
        self._neighbors.note_known(peer, record)
        if record.fingerprint != self._context.membership.fingerprint:
            # its signatures are for another run; the difference is reported by check_differences
            record = replace(record, endorsement=None, proposed=None)
        self.process_endorsement(peer, record)
        if not self._context.assembly.learn(record):
            return False
        self._neighbors.keep_sealed(record, sealed)
        link = self._context.links.get(record.site)
        if link is not None and link.learn_incarnation(record.identity, sealed):
            self._neighbors.wake(record.site)
        return True

    def process_endorsement(self, peer: int, record: Record) -> None:
        """Process the endorsement in a record, and the proposal that it must rely on."""
        signed, proposed = record.endorsement, record.proposed
        if signed is None or not self._verification.endorsement(peer, signed):
            return
        if proposed is None or self._verification.endorsement(record.site, proposed):
            self._settlement.signed(signed, proposed)
        elif self._context.seals.forged(proposed):
            self._settlement.signed(signed, None)
        else:  # the proposer's certificate has expired since then; a site that relied on it earlier is not at fault
            self._settlement.claims.add(signed)

    def _learn_of_itself(self, seen: Incarnation) -> None:
        """Move to an incarnation after the one that other sites know of this agent, if theirs is later than this."""
        if seen.incarnation == 0 or seen == self._identity or seen < self._identity:
            return
        context = self._context
        self._identity = self._identity.after(seen)
        self._renamed += 1
        alive = min(context.clock.now() - context.began, _ALIVE_COUNTED)
        # the agent that has run for longer may take more of them, so that it stays and the other one gives up
        if self._renamed > _MAX_INCARNATIONS + alive / _ALIVE_PER_INCARNATION:
            self._faults.misconfigured(
                f"another agent is running as site {context.name(context.me)}, perhaps on another machine; stop it, or "
                "stop this one: only one may run",
                parameter="site",
            )
            return
        self._neighbors.take_incarnation(self._identity)
        if context.assembly.plan is not None:
            context.assembly.disturbance = "other sites know a later incarnation of this agent"
        self._neighbors.publish(identity=self._identity)
