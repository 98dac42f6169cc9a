"""Rules for signing, writing and refusing a claimed result, derived from records, signatures and time.

For n sites, of which the members of a plan are a strict majority:

* the first member proposes a model file; a member signs it if every field equals what it computed itself;
* a site writes it once it has the signatures of all members, or those of more than n/2 sites if every other member has
  been silent beyond the patience or has lost what it computed (restarted, gave up);
* a site that comes late has nothing to compare with, and accepts what more than n/2 sites have signed;
* if a member has compared and refused, the run ends at all sites and nothing is written;
* a site that enters an epoch signs no result of earlier ones, and no epoch starts while a result may have been decided:
  any two majorities share a site, so two different results are never written;
* a signature is published together with the proposer's signature that it relies on. Every site that sees a signature
  without one accuses the signer, and every site that sees two proposals for one plan accuses the proposer.
"""

from __future__ import annotations

from deepca.errors import DisputedResult
from deepca.sites.protocol.claims import Claims, Endorsement, ResultClaim
from deepca.sites.protocol.records import RunPlan
from deepca.sites.runtime.assembly import Assembly
from deepca.sites.runtime.node_config import NodeConfig, Policy

__all__ = ["Settlement"]


class Settlement:
    """The claims known at this site, and what it may do about each, given what it knows of the other sites."""

    def __init__(self, config: NodeConfig, policy: Policy, assembly: Assembly) -> None:
        self._me, self._policy, self._assembly = config.me, policy, assembly
        self._sites = len(config.sites)
        self.claims = Claims()
        self._unproposed: dict[int, ResultClaim] = {}  # claims signed without a proposal to rely on, by signer

    def add_signature(self, endorsement: Endorsement, proposed: Endorsement | None) -> None:
        """Add a verified endorsement from a site's own record, and the verified proposal that it relies on."""
        self.claims.add(endorsement)
        if proposed is not None:
            self.claims.add(proposed)
        elif endorsement.site != endorsement.claim.proposer:
            self._unproposed[endorsement.site] = endorsement.claim

    def is_majority(self, sites: frozenset[int]) -> bool:
        """Return whether ``sites`` are more than half of all sites."""
        return 2 * len(sites) > self._sites

    def to_compare(self, plan: RunPlan) -> ResultClaim | None:
        """Return the claim proposed for a plan that this site has followed to its end, if it has yet to sign one."""
        if self._assembly.record.epoch > plan.epoch:
            return None
        for claim in self.claims:
            signers = self.claims.signers(claim)
            if claim.plan == plan.digest and plan.proposer in signers:
                return None if self._me in signers else claim
        return None

    def may_be_written(self, claim: ResultClaim, followed: bytes, now: float) -> bool:
        """Return whether the result of a claim may be written.

        ``followed`` is the digest of the plan that this site has followed to its end; empty without one.
        """
        signers = self.claims.signers(claim)
        if not self.is_majority(signers):
            return False
        if self._me not in signers:  # this site either comes late or has yet to compare
            return claim.plan != followed or self._assembly.record.epoch > claim.epoch
        return all(self._dispensable(site, claim, now) for site in frozenset(claim.members) - signers)

    def _dispensable(self, site: int, claim: ResultClaim, now: float) -> bool:
        """Return whether the signature of a member is not awaited: the site is lost, or can no longer sign."""
        record = self._assembly.table.get(site)
        if record is None or site not in self._assembly.present:
            return self._assembly.away(site, now) >= self._policy.patience
        if record.phase == "running":
            return record.epoch > claim.epoch
        return record.phase != "gathering" or record.computed != claim.plan

    def blocking(self) -> list[ResultClaim]:
        """Return claims that block new epochs: decided, about to be decided, or perhaps decided by absent sites."""
        here = self._assembly
        found = []
        for claim in self.claims:
            signers = self.claims.signers(claim)
            away = frozenset(claim.members) - here.present
            unseen = {site for site in away if not self._barred(site, claim)}
            able = {site for site in here.present if here.table[site].computed == claim.plan}
            # a member signs only after the proposer, and only with the file, which it can get only from signers
            soon = claim.proposer in signers and bool(signers & here.present) and not able <= signers
            # half of an even number suffices to block: one more member, which is present, may deny the signature with
            # which an absent site has written the result
            half = 2 * len(signers | unseen) == self._sites and any(self._entered(site) <= claim.epoch for site in away)
            if half or self.is_majority(signers | unseen) or (soon and self.is_majority(signers | unseen | able)):
                found.append(claim)
        return found

    def _entered(self, site: int) -> int:
        record = self._assembly.table.get(site)
        return 0 if record is None else record.epoch

    def _barred(self, site: int, claim: ResultClaim) -> bool:
        """Return whether a site's own record shows that it has not signed a claim and no longer can."""
        record = self._assembly.table.get(site)
        if record is None or record.epoch < claim.epoch:
            return False
        left = record.phase in ("gathering", "failed") and record.computed != claim.plan
        return record.epoch > claim.epoch or left

    def check(self, plan: RunPlan | None) -> None:
        """Raise DisputedResult if a site has signed what no honest site signs; ``plan`` is the last plan entered."""
        for site, claim in sorted(self._unproposed.items()):
            name = self._assembly.name(claim.proposer)
            raise self._disputed({site}, f"signed a result of epoch {claim.epoch} that {name} has not proposed")
        for claim in self.claims:
            signers = self.claims.signers(claim)
            whole = len(claim.members) == self._sites
            if not (whole if self._policy.on_loss == "wait" else self.is_majority(frozenset(claim.members))):
                raise self._disputed(
                    signers, f"signed a result that covers only {len(claim.members)} of {self._sites} sites"
                )
            self._check_undisputed(claim, frozenset(claim.members) - signers)
            if plan is not None:
                self._check_against(plan, claim, signers)

    def _check_undisputed(self, claim: ResultClaim, others: frozenset[int]) -> None:
        """Raise DisputedResult if one of the other members has compared the result and refused it."""
        for site in sorted(others):
            record = self._assembly.table.get(site)
            if record is None or record.failure is None or (record.phase, record.plan) != ("failed", claim.plan):
                continue
            if record.failure.kind == "contradiction":
                accused, name = self._assembly.name(record.failure.accused), self._assembly.name(site)
                raise DisputedResult(accused, record.failure.what, by=name)

    def _check_against(self, plan: RunPlan, claim: ResultClaim, signers: frozenset[int]) -> None:
        if claim.plan != plan.digest:
            # every member's epoch was earlier when this plan was made
            if claim.epoch >= plan.epoch and self._me in claim.members and signers & frozenset(plan.members):
                me = self._assembly.name(self._me)
                text = f"signed a result of epoch {claim.epoch} with {me} as a member, although {me} never entered it"
                raise self._disputed(signers & frozenset(plan.members), text)
            return
        if (claim.epoch, claim.members) != (plan.epoch, plan.members):
            raise self._disputed(signers, f"signed a result of epoch {plan.epoch} with a wrong epoch or wrong members")
        for other in self.claims:
            twice = plan.proposer in signers & self.claims.signers(other)
            if twice and other.plan == claim.plan and other.outcome != claim.outcome:
                raise self._disputed({plan.proposer}, f"proposed two different results of epoch {plan.epoch}")

    def _disputed(self, sites: frozenset[int] | set[int], text: str) -> DisputedResult:
        """Return an error that names the first of ``sites``, or the first other than this site if there is one."""
        return DisputedResult(self._assembly.name(min(sites - {self._me} or sites)), text)
