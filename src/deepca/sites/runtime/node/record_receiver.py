"""Process the records that neighbours pass on, about other sites and about other incarnations of this agent."""

from __future__ import annotations

from dataclasses import replace

from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.node.abort_reasons import AbortReasons
from deepca.sites.runtime.node.context import NodeContext
from deepca.sites.runtime.node.neighbors import Neighbors
from deepca.sites.runtime.node.settlement import Settlement
from deepca.sites.runtime.node.verification import Verification

__all__ = ["RecordReceiver"]

# number of incarnations that an agent may take before it concludes that another agent runs as the same site:
_MAX_INCARNATIONS = 5  # initial limit
_SECONDS_PER_INCARNATION = 4.0  # the limit grows by one whenever the agent has run for this long,
_MAX_SECONDS_COUNTED = 60.0  # but no longer after this time


class RecordReceiver:
    """Verify records, then pass them to the assembly and to the settlement of the result."""

    def __init__(
        self,
        context: NodeContext,
        neighbors: Neighbors,
        settlement: Settlement,
        verification: Verification,
        abort_reasons: AbortReasons,
    ) -> None:
        self._context, self._neighbors, self._settlement = context, neighbors, settlement
        self._verification, self._abort_reasons = verification, abort_reasons
        self._incarnation = context.assembly.record.incarnation
        self._incarnations_taken = 0

    def receive(self, peer: int, records: wire.Records) -> None:
        """Process records that a neighbour passes on."""
        news = False
        for signed_record in records.sealed:
            record = self._verification.record(peer, signed_record)
            if record is None:
                continue
            if record.site == self._context.me:
                self._learn_of_itself(record.incarnation)
                continue
            news = self._learn(peer, record, signed_record) or news
        if news:
            self._neighbors.update_presence()
            self._neighbors.wake_with_news()
            self._context.changed.notify_all()

    def greeted(self, peer: int, hello: wire.Hello) -> None:
        """Process a hello, whose sender may know a later incarnation of this agent.

        With certificates, only a record signed by this site proves that.
        """
        if not self._context.signatures.unforgeable:
            self._learn_of_itself(Incarnation(hello.known, hello.known_boot))
        elif hello.HasField("yours"):
            record = self._verification.record(peer, hello.yours)
            if record is not None and record.site == self._context.me:
                self._learn_of_itself(record.incarnation)

    def _learn(self, peer: int, record: Record, signed_record: wire.Sealed) -> bool:
        """Process the record of another site and return whether it was new."""
        self._neighbors.note_known(peer, record)
        if record.fingerprint != self._context.config.fingerprint:
            # its signatures are for another run; Assembly.check_differences reports the difference
            record = replace(record, endorsement=None, proposed=None)
        self.process_endorsement(peer, record)
        if not self._context.assembly.learn(record):
            return False
        self._neighbors.keep_signed_record(record, signed_record)
        link = self._context.links.get(record.site)
        if link is not None and link.learn_incarnation(record.incarnation, signed_record):
            self._neighbors.wake(record.site)
        return True

    def process_endorsement(self, peer: int, record: Record) -> None:
        """Process the endorsement in a record, and the proposal that it must rely on."""
        signed, proposed = record.endorsement, record.proposed
        if signed is None or not self._verification.endorsement(peer, signed):
            return
        if proposed is None or self._verification.endorsement(record.site, proposed):
            self._settlement.add_signature(signed, proposed)
        elif self._context.signatures.forged(proposed):
            self._settlement.add_signature(signed, None)
        else:  # the proposer's certificate has expired since then; a site that relied on it earlier is not at fault
            self._settlement.claims.add(signed)

    def _learn_of_itself(self, seen: Incarnation) -> None:
        """Take an incarnation after ``seen``, which other sites know of this agent, unless the current one is later."""
        if seen.number == 0 or seen == self._incarnation or seen < self._incarnation:
            return
        context = self._context
        self._incarnation = self._incarnation.after(seen)
        self._incarnations_taken += 1
        alive = min(context.clock.now() - context.began, _MAX_SECONDS_COUNTED)
        # of two agents of one site, the one that has run for longer may take more, so that only the other one gives up
        if self._incarnations_taken > _MAX_INCARNATIONS + alive / _SECONDS_PER_INCARNATION:
            self._abort_reasons.report_misconfiguration(
                f"another agent is running as site {context.name(context.me)}, perhaps on another machine; stop it, or "
                "stop this one: only one may run",
                parameter="site",
            )
            return
        self._neighbors.take_incarnation(self._incarnation)
        if context.assembly.plan is not None:
            context.assembly.disturbance = "other sites know a later incarnation of this agent"
        self._neighbors.publish(incarnation=self._incarnation)
