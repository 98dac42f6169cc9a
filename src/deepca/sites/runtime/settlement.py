"""When a claimed result may be signed, written, or has to be refused: what follows from records, signatures and time.

The rules, for n sites of which a plan has ``members``, a strict majority of them:

* the first member proposes a model file; a member signs it when every field is what it computed itself;
* a site writes it with the signatures of all members; or with those of more than n/2 sites, when every other member has
  been silent beyond patience, or has lost what it computed (restarted, gave up);
* a site that has nothing to compare with, since it comes late, takes what more than n/2 sites have signed;
* a member that has compared and refused is not silent: the run ends at all sites, and nothing is written;
* who enters an epoch signs nothing of earlier ones, and no epoch begins while a result may have been decided: any two
  majorities share a site, so no two results are written;
* a signature rests on the proposer's, which is shown together with it: whoever signs what was not proposed is named,
  and so is who proposes twice, by whoever sees both.
"""

from __future__ import annotations

from deepca.errors import DisputedResult
from deepca.sites.protocol.claims import Claims, Endorsement, ResultClaim
from deepca.sites.protocol.records import RunPlan
from deepca.sites.runtime.assembly import Assembly, Membership, Policy

__all__ = ["Settling"]


class Settling:
    """The claims that are known here, judged by what is known of the sites."""

    def __init__(self, membership: Membership, policy: Policy, assembly: Assembly) -> None:
        self._me, self._policy, self._assembly = membership.me, policy, assembly
        self._sites = len(membership.sites)
        self.claims = Claims()
        self._unfounded: dict[int, ResultClaim] = {}  # signed by a site that shows no proposal

    def signed(self, endorsement: Endorsement, proposed: Endorsement | None) -> None:
        """Take what a site's own record says that it has signed, and the proposal that this rests on; both verified."""
        self.claims.add(endorsement)
        if proposed is not None:
            self.claims.add(proposed)
        elif endorsement.site != endorsement.claim.proposer:
            self._unfounded[endorsement.site] = endorsement.claim

    def most(self, sites: frozenset[int]) -> bool:
        return 2 * len(sites) > self._sites

    def to_compare(self, plan: RunPlan) -> ResultClaim | None:
        """What has been proposed for a plan that was computed here, and was not signed here yet."""
        if self._assembly.record.epoch > plan.epoch:
            return None
        for claim in self.claims:
            signers = self.claims.signers(claim)
            if claim.plan == plan.digest and plan.proposer in signers:
                return None if self._me in signers else claim
        return None

    def final(self, claim: ResultClaim, computed: bytes, now: float) -> bool:
        """Whether a claim may be written. computed : digest of the plan that was computed here."""
        signers = self.claims.signers(claim)
        if not self.most(signers):
            return False
        if self._me not in signers:  # comes late; or is still to compare
            return claim.plan != computed or self._assembly.record.epoch > claim.epoch
        return all(self._speechless(site, claim, now) for site in frozenset(claim.members) - signers)

    def _speechless(self, site: int, claim: ResultClaim, now: float) -> bool:
        """Whether a member that has not signed need not be waited for."""
        record = self._assembly.table.get(site)
        if record is None or site not in self._assembly.present:
            return self._assembly.away(site, now) >= self._policy.patience
        if record.phase == "running":
            return record.epoch > claim.epoch
        return record.phase != "gathering" or record.computed != claim.plan

    def pending(self) -> list[ResultClaim]:
        """Claims that are decided, are about to be, or may have been out of sight; meanwhile no epoch begins."""
        here = self._assembly
        found = []
        for claim in self.claims:
            signers = self.claims.signers(claim)
            away = frozenset(claim.members) - here.present
            unseen = {site for site in away if not self._barred(site, claim)}
            able = {site for site in here.present if here.table[site].computed == claim.plan}
            # nobody signs before the proposer, nor without the bytes, which those have who have signed
            soon = claim.proposer in signers and bool(signers & here.present) and not able <= signers
            # any two majorities of an even number share two sites, one of which may deny what somebody away has written
            half = 2 * len(signers | unseen) == self._sites and any(self._entered(site) <= claim.epoch for site in away)
            if half or self.most(signers | unseen) or (soon and self.most(signers | unseen | able)):
                found.append(claim)
        return found

    def _entered(self, site: int) -> int:
        record = self._assembly.table.get(site)
        return 0 if record is None else record.epoch

    def _barred(self, site: int, claim: ResultClaim) -> bool:
        """Whether a site, by its own word, has not signed a claim and cannot do so any more."""
        record = self._assembly.table.get(site)
        if record is None or record.epoch < claim.epoch:
            return False
        left = record.phase in ("gathering", "failed") and record.computed != claim.plan
        return record.epoch > claim.epoch or left

    def check(self, plan: RunPlan | None) -> None:
        """Raise DisputedResult where a site has signed what no honest site signs. plan : the one entered last here."""
        for site, claim in sorted(self._unfounded.items()):
            name = self._assembly.name(claim.proposer)
            raise self._contradicts({site}, f"signs a result of epoch {claim.epoch} that {name} has not proposed")
        for claim in self.claims:
            signers = self.claims.signers(claim)
            whole = len(claim.members) == self._sites
            if not (whole if self._policy.on_loss == "wait" else self.most(frozenset(claim.members))):
                raise self._contradicts(signers, f"signs a result of {len(claim.members)} of {self._sites} sites")
            self._check_undisputed(claim, frozenset(claim.members) - signers)
            if plan is not None:
                self._check_against(plan, claim, signers)

    def _check_undisputed(self, claim: ResultClaim, others: frozenset[int]) -> None:
        """Who has compared and refused is not silent: nothing is written against it. others : who has not signed."""
        for site in sorted(others):
            record = self._assembly.table.get(site)
            if record is None or record.failure is None or (record.phase, record.plan) != ("failed", claim.plan):
                continue
            if record.failure.kind == "contradiction":
                accused, name = self._assembly.name(record.failure.accused), self._assembly.name(site)
                raise DisputedResult(accused, record.failure.what, by=name)

    def _check_against(self, plan: RunPlan, claim: ResultClaim, signers: frozenset[int]) -> None:
        if claim.plan != plan.digest:
            # their epochs were earlier when this plan was made
            if claim.epoch >= plan.epoch and self._me in claim.members and signers & frozenset(plan.members):
                text = f"signs a result of epoch {claim.epoch}, which this site never entered"
                raise self._contradicts(signers & frozenset(plan.members), text)
            return
        if (claim.epoch, claim.members) != (plan.epoch, plan.members):
            raise self._contradicts(signers, f"signs a result of epoch {plan.epoch} with another epoch or members")
        for other in self.claims:
            twice = plan.proposer in signers & self.claims.signers(other)
            if twice and other.plan == claim.plan and other.outcome != claim.outcome:
                raise self._contradicts({plan.proposer}, f"proposes two results of epoch {plan.epoch}")

    def _contradicts(self, sites: frozenset[int] | set[int], text: str) -> DisputedResult:
        return DisputedResult(self._assembly.name(min(sites - {self._me} or sites)), text)
