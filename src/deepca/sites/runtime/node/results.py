"""The result of the run at one site: propose it, compare it, sign it, and conclude once it may be written."""

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
from deepca.sites.runtime.settlement import Settling
from deepca.sites.runtime.vault import Remembered, Vault

__all__ = ["Concluded", "Results"]


@dataclass(frozen=True)
class Concluded:
    """A model file, and what is claimed of it. compared : whether this site has compared it with its own numbers."""

    content: bytes
    claim: ResultClaim
    compared: bool


@dataclass(frozen=True)
class _Computed:
    """Numbers that this start has computed: ``differs(content)`` says how a model file differs from them, if so."""

    plan: RunPlan
    differs: Callable[[bytes], str]


class Results:
    """Judge claims about the result, sign those that agree with the numbers computed here, and keep what was signed.

    accept : raises for a model file that cannot be the result of this run, though most sites have signed it.
    """

    def __init__(
        self, context: NodeContext, neighbors: Neighbors, settling: Settling, files: ModelFiles, vault: Vault
    ) -> None:
        self._context, self._neighbors = context, neighbors
        self._settling, self._files, self._vault = settling, files, vault
        self._computed: _Computed | None = None
        self.accept: Callable[[bytes, ResultClaim], None] = accept_any

    def restore(self, remembered: Remembered) -> None:
        """Take what an earlier start has signed, before anybody is told of this one."""
        if remembered.outcome is None or remembered.claim is None:
            return
        self._files.contents[remembered.claim.outcome] = remembered.outcome
        self._settling.claims.extend(remembered.endorsements)
        own = next((one for one in remembered.endorsements if one.site == self._context.me), None)
        proposed = self._proposal(remembered.claim)
        if own is not None and (proposed is not None or own.claim.proposer == self._context.me):
            self._context.assembly.publish(endorsement=own, proposed=proposed)

    def computed(self, plan: RunPlan, differs: Callable[[bytes], str]) -> None:
        """Announce that this site has followed a plan to its end."""
        self._computed = _Computed(plan, differs)
        self._neighbors.publish(computed=plan.digest)

    def propose(self, plan: RunPlan, content: bytes) -> None:
        """Propose a model file as the result of a plan."""
        outcome = hashlib.sha256(content).digest()
        self._files.contents[outcome] = content
        self._endorse(ResultClaim(plan.epoch, plan.digest, plan.members, outcome))

    def concluded(self, entered: RunPlan | None) -> Concluded | None:
        """Return the result once it may be written; meanwhile compare what is proposed, and sign it.

        entered : the plan that this site has entered last.
        """
        settling, computed, now = self._settling, self._computed, self._context.clock.now()
        settling.check(entered)
        if computed is not None:
            claim = settling.to_compare(computed.plan)
            if claim is not None and self._files.obtain(claim):
                self._compare(computed, claim)
        own = b"" if computed is None else computed.plan.digest
        for claim in settling.claims:
            if settling.final(claim, own, now) and self._files.obtain(claim):
                content = self._files.contents[claim.outcome]
                compared = self._context.me in settling.claims.signers(claim)
                if not compared:
                    self.accept(content, claim)
                self._vault.hold(content, claim, settling.claims.endorsements(claim), decided=True)
                return Concluded(content, claim, compared)
        return None

    def _compare(self, computed: _Computed, claim: ResultClaim) -> None:
        """Sign a file that agrees with what was computed here; raise DisputedResult for one that does not."""
        name = self._context.name
        difference = computed.differs(self._files.contents[claim.outcome])
        if difference:
            text = f"proposes a result that {name(self._context.me)} did not compute: {difference}"
            raise DisputedResult(name(computed.plan.proposer), text)
        self._endorse(claim)

    def _endorse(self, claim: ResultClaim) -> None:
        """Sign a claim; on disk first, since others rely on it."""
        own = self._context.seals.endorse(self._context.me, claim)
        claims = self._settling.claims
        claims.add(own)
        self._vault.hold(self._files.contents[claim.outcome], claim, claims.endorsements(claim))
        self._neighbors.publish(endorsement=own, proposed=self._proposal(claim))

    def _proposal(self, claim: ResultClaim) -> Endorsement | None:
        """Return the endorsement that this site's own rests on; None where it proposes itself."""
        return None if claim.proposer == self._context.me else self._settling.claims.proposal(claim)


def accept_any(content: bytes, claim: ResultClaim) -> None:
    """Accept every result."""
