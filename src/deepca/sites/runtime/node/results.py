"""Propose, compare and sign the result of a run at one site, and conclude once it may be written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from deepca.errors import DisputedResult
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.records import RunPlan
from deepca.sites.runtime.node.context import NodeContext
from deepca.sites.runtime.node.model_files import ModelFiles
from deepca.sites.runtime.node.neighbors import Neighbors
from deepca.sites.runtime.node.settlement import Settlement
from deepca.sites.runtime.promise_store import Promises, PromiseStore

__all__ = ["DecidedResult", "Results"]


@dataclass(frozen=True)
class DecidedResult:
    """A model file that may be written, and the claim about it."""

    content: bytes
    claim: ResultClaim
    compared: bool  # whether this site has compared the file with what it computed


@dataclass(frozen=True)
class _Computed:
    """A plan that this incarnation of the agent has followed to its end."""

    plan: RunPlan
    differs: Callable[[bytes], str]  # describes how a model file differs from what was computed; empty if it does not


class Results:
    """Check claims about the result; sign and store those that agree with what this site computed.

    Attributes
    ----------
    accept : callable
        Called with a model file that most sites have signed, and its claim; raises an error if the file cannot be the
        result of this run.
    """

    def __init__(
        self,
        context: NodeContext,
        neighbors: Neighbors,
        settlement: Settlement,
        files: ModelFiles,
        promise_store: PromiseStore,
    ) -> None:
        self._context, self._neighbors = context, neighbors
        self._settlement, self._files, self._promise_store = settlement, files, promise_store
        self._computed: _Computed | None = None
        self.accept: Callable[[bytes, ResultClaim], None] = accept_any

    def restore(self, remembered: Promises) -> None:
        """Restore what an earlier incarnation signed, before other sites learn of this incarnation."""
        if remembered.content is None or remembered.claim is None:
            return
        self._files.contents[remembered.claim.outcome] = remembered.content
        self._settlement.claims.extend(remembered.endorsements)
        own = next((one for one in remembered.endorsements if one.site == self._context.me), None)
        proposed = self._proposal(remembered.claim)
        if own is not None and (proposed is not None or own.claim.proposer == self._context.me):
            self._context.assembly.publish(endorsement=own, proposed=proposed)

    def announce_computed(self, plan: RunPlan, differs: Callable[[bytes], str]) -> None:
        """Announce that this site has followed a plan to its end."""
        self._computed = _Computed(plan, differs)
        self._neighbors.publish(computed=plan.digest)

    def propose(self, plan: RunPlan, content: bytes) -> None:
        """Propose a model file as the result of a plan."""
        digest = hashlib.sha256(content).digest()
        self._files.contents[digest] = content
        self._endorse(ResultClaim(plan.epoch, plan.digest, plan.members, digest))

    def concluded(self, entered: RunPlan | None) -> DecidedResult | None:
        """Return the result once it may be written; until then, compare and sign what is proposed, and return None.

        ``entered`` is the last plan that this site has entered. Raises DisputedResult if the sites do not agree.
        """
        settlement, computed, now = self._settlement, self._computed, self._context.clock.now()
        settlement.check(entered)
        if computed is not None:
            claim = settlement.to_compare(computed.plan)
            if claim is not None and self._files.obtain(claim):
                self._compare(computed, claim)
        followed = b"" if computed is None else computed.plan.digest
        for claim in settlement.claims:
            if settlement.may_be_written(claim, followed, now) and self._files.obtain(claim):
                content = self._files.contents[claim.outcome]
                compared = self._context.me in settlement.claims.signers(claim)
                if not compared:
                    self.accept(content, claim)
                self._promise_store.store_result(content, claim, settlement.claims.endorsements(claim), decided=True)
                return DecidedResult(content, claim, compared)
        return None

    def _compare(self, computed: _Computed, claim: ResultClaim) -> None:
        """Sign a file that agrees with what was computed here; raise DisputedResult if it does not."""
        name = self._context.name
        difference = computed.differs(self._files.contents[claim.outcome])
        if difference:
            text = f"proposed a result that differs from what {name(self._context.me)} computed: {difference}"
            raise DisputedResult(name(computed.plan.proposer), text)
        self._endorse(claim)

    def _endorse(self, claim: ResultClaim) -> None:
        """Sign a claim and store the signature before other sites can rely on it."""
        own = self._context.signatures.endorse(self._context.me, claim)
        claims = self._settlement.claims
        claims.add(own)
        self._promise_store.store_result(self._files.contents[claim.outcome], claim, claims.endorsements(claim))
        self._neighbors.publish(endorsement=own, proposed=self._proposal(claim))

    def _proposal(self, claim: ResultClaim) -> Endorsement | None:
        """Return the proposer's endorsement, which this site's relies on; None if this site is the proposer."""
        return None if claim.proposer == self._context.me else self._settlement.claims.proposal(claim)


def accept_any(content: bytes, claim: ResultClaim) -> None:
    """Accept every result."""
