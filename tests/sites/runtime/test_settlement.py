"""Test when a claimed result may be written, and which signatures an honest site never makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from deepca.errors import BadArray, DisputedResult
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.failures import Failure
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Record, RunPlan
from deepca.sites.runtime.assembly import Assembly
from deepca.sites.runtime.clocks import RealClock
from deepca.sites.runtime.node import Node
from deepca.sites.runtime.node.settlement import Settlement
from deepca.sites.runtime.node_config import NodeConfig, Policy
from tests.support.errors import raises

SITES = 5
NAMES = tuple(f"site-{j}" for j in range(SITES))
EDGES = tuple((i, j) for j in range(SITES) for i in range(j))
IDENTITIES = tuple(Incarnation(1, j + 1) for j in range(SITES))
PLAN = RunPlan(1, tuple(range(SITES)), IDENTITIES, EDGES)
CLAIM = ResultClaim(1, PLAN.digest, PLAN.members, b"r" * 32)
PATIENCE = 10.0


class Scene:
    """What site ``me`` knows of the others; at time 0 all are present and run the plan."""

    def __init__(self, me: int = 4, on_loss: Literal["wait", "shrink"] = "wait", sites: int = SITES) -> None:
        self.everyone, edges = frozenset(range(sites)), [edge for edge in EDGES if max(edge) < sites]
        config = NodeConfig(NAMES[:sites], me, tuple(edges), b"n" * 32, {"run": b"1"}, 1 << 20)
        policy = Policy(on_loss, PATIENCE, 100.0, 10.0)
        self.assembly = Assembly(config, policy, IDENTITIES[me], 0.0)
        self.me, self.settlement = me, Settlement(config, policy, self.assembly)
        others = self.everyone - {me}
        for site in others:
            self.publish(site)
        self.assembly.publish(phase="running", epoch=1, plan=PLAN.digest)
        self.assembly.update_presence(0.0, others, dict.fromkeys(others, 0.0))

    def publish(self, site: int, **changes: Any) -> None:
        known = self.assembly.table.get(site)
        if known is None:
            links = self.everyone - {site}
            known = Record(site, IDENTITIES[site], 0, "running", links, {"run": b"1"}, 1, PLAN.digest)
        self.assembly.learn(replace(known, version=known.version + 1, **changes))

    def sign(self, *sites: int, claim: ResultClaim = CLAIM) -> None:
        self.settlement.claims.extend(Endorsement(site, claim) for site in sites)

    def sign_unproposed(self, site: int, claim: ResultClaim) -> None:
        """Add an endorsement without the proposal on which it should rely."""
        self.settlement.add_signature(Endorsement(site, claim), None)

    def lose(self, *sites: int, at: float) -> None:
        reached = self.everyone - {self.me, *sites}
        for other in reached:
            self.publish(other, links=self.everyone - {other, *sites})
        self.assembly.update_presence(at, reached, {})

    def final(self, now: float = 0.0, computed: bytes = PLAN.digest) -> bool:
        return self.settlement.may_be_written(CLAIM, computed, now)


def test_the_signatures_of_all_members_are_needed_while_all_are_present() -> None:
    scene = Scene()
    scene.sign(0, 1, 2, 4)
    assert not scene.final()
    scene.sign(3)
    assert scene.final()


def test_a_majority_of_signatures_suffices_once_the_other_sites_exceed_the_patience() -> None:
    scene = Scene()
    scene.sign(0, 1, 4)
    scene.lose(2, 3, at=5.0)
    assert not scene.final(5.0 + 0.9 * PATIENCE)
    assert scene.final(5.0 + 1.1 * PATIENCE)


def test_a_minority_of_signatures_never_suffices() -> None:
    scene = Scene()
    scene.sign(0, 4)
    scene.lose(1, 2, 3, at=0.0)
    assert not scene.final(100.0 * PATIENCE)


def test_a_site_that_computed_the_result_compares_before_it_writes() -> None:
    scene = Scene()
    scene.sign(0, 1, 2, 3)
    assert not scene.final()
    assert scene.settlement.to_compare(PLAN) == CLAIM


def test_a_late_site_accepts_a_result_that_most_sites_have_signed() -> None:
    scene = Scene()
    scene.sign(0, 1)
    assert not scene.final(computed=b"")
    scene.sign(2)
    assert scene.final(computed=b"")


def test_a_member_that_lost_what_it_computed_is_not_awaited() -> None:
    scene = Scene()
    scene.sign(0, 1, 4)
    scene.publish(2, incarnation=Incarnation(2, 9), phase="gathering", plan=b"")
    scene.publish(3, phase="gathering", plan=b"", computed=PLAN.digest)
    assert not scene.final()  # site 3 may still find a difference
    scene.sign(3)
    assert scene.final()


@pytest.mark.parametrize("plan", [PLAN, None])
def test_nothing_is_written_after_a_member_has_refused(plan: RunPlan | None) -> None:
    """Late sites do not write the result either, unless the member that refused it has also signed it."""
    scene = Scene()
    scene.sign(0, 1, 2, 4)
    scene.settlement.check(plan)
    scene.publish(3, phase="failed", failure=Failure("contradiction", "why", 0, "proposes another mean"))
    with raises(DisputedResult, site="site-0", by="site-3"):
        scene.settlement.check(plan)
    scene.sign(3)
    scene.settlement.check(plan)
    assert scene.final()


def test_only_a_proposal_of_the_first_member_is_compared() -> None:
    scene = Scene()
    scene.sign(1)
    assert scene.settlement.to_compare(PLAN) is None
    scene.sign(0)
    assert scene.settlement.to_compare(PLAN) == CLAIM


def test_a_result_that_absent_sites_may_have_decided_is_pending() -> None:
    scene = Scene(on_loss="shrink")
    scene.sign(0, 1)
    assert scene.settlement.blocking() == []
    scene.lose(2, at=0.0)  # with the signature of site 2, three of five would have signed
    assert scene.settlement.blocking() == [CLAIM]


def test_the_record_of_one_site_does_not_rule_out_signatures_of_others() -> None:
    scene = Scene(on_loss="shrink")
    scene.sign(0, 1)
    scene.lose(2, at=0.0)
    scene.publish(3, epoch=7)  # as if site 3 had ruled that out
    assert scene.settlement.blocking() == [CLAIM]


def test_with_an_even_number_of_sites_one_may_deny_its_signature_while_another_is_away() -> None:
    claim = replace(CLAIM, members=(0, 1, 2, 3))
    scene = Scene(3, "shrink", 4)
    scene.sign(3, claim=claim)
    for site in (1, 2):
        scene.publish(site, phase="gathering", plan=b"")
    assert scene.settlement.blocking() == []
    scene.lose(0, at=0.0)  # site 0 may have written with the signatures of 0, 3, and of 1 or 2
    assert scene.settlement.blocking() == [claim]
    scene.publish(0, epoch=2)  # then site 0 cannot have written it
    assert scene.settlement.blocking() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": 2},
        {"phase": "gathering", "plan": b"", "incarnation": Incarnation(2, 9)},
        {"phase": "failed", "failure": Failure("site", "no space left")},
    ],
)
def test_a_lost_site_that_can_no_longer_sign_is_not_awaited(changes: dict[str, Any]) -> None:
    scene = Scene(on_loss="shrink")
    scene.sign(0, 1)
    scene.publish(2, **changes)
    scene.lose(2, at=0.0)
    assert scene.settlement.blocking() == []


def test_a_lost_site_that_kept_what_it_computed_may_have_signed() -> None:
    scene = Scene(on_loss="shrink")
    scene.sign(0, 1)
    scene.publish(2, phase="gathering", plan=b"", computed=PLAN.digest)
    scene.lose(2, at=0.0)
    assert scene.settlement.blocking() == [CLAIM]


def test_a_claim_that_cannot_reach_a_majority_is_not_pending() -> None:
    scene = Scene(on_loss="shrink")
    scene.sign(0)
    for site in (1, 2):
        scene.publish(site, computed=PLAN.digest)
    assert scene.settlement.blocking() == [CLAIM]
    scene.publish(1, computed=b"")
    assert scene.settlement.blocking() == []


def test_a_signature_without_a_proposal_is_not_pending_and_its_site_is_accused() -> None:
    scene = Scene(on_loss="shrink")
    for site in (1, 2, 3, 4):
        scene.publish(site, computed=PLAN.digest)
    scene.sign_unproposed(3, CLAIM)
    scene.lose(0, at=0.0)  # the proposer
    assert scene.settlement.blocking() == []
    with raises(DisputedResult, site="site-3", by=None) as caught:
        scene.settlement.check(PLAN)
    assert "site-0" in caught.value.what  # the proposer that made no such proposal


def test_signing_one_of_two_proposals_is_not_the_fault_of_the_signer() -> None:
    """Two sites publish different signatures of the proposer, on which theirs rely, so the proposer is accused."""
    other = replace(CLAIM, outcome=b"x" * 32)
    scene = Scene()
    scene.sign(0, 4)
    scene.sign(3, claim=other)  # passed on by a site that withholds the proposer's signature
    scene.settlement.check(PLAN)
    scene.settlement.add_signature(Endorsement(3, other), Endorsement(0, other))
    with raises(DisputedResult, site="site-0", by=None):
        scene.settlement.check(PLAN)


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "other bytes": ({"outcome": b"x" * 32}, "site-2"),
    "later epoch": ({"epoch": 6, "plan": b"x" * 32}, "site-2"),
    "same epoch, other plan": ({"plan": b"x" * 32}, "site-2"),
    "same plan, other epoch": ({"epoch": 2}, "site-2"),
    "fewer members": ({"members": (0, 2, 4)}, "site-2"),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
def test_a_site_that_signs_what_no_honest_site_signs_is_accused(lie: str, on_loss: Literal["wait", "shrink"]) -> None:
    scene = Scene(on_loss=on_loss)
    scene.sign(0, 1, 4)
    scene.settlement.check(PLAN)
    changes, culprit = LIES[lie]
    scene.sign_unproposed(2, replace(CLAIM, **changes))
    with raises(DisputedResult, site=culprit, by=None):
        scene.settlement.check(PLAN)


def test_a_site_that_proposes_twice_is_accused() -> None:
    scene = Scene()
    scene.sign(0)
    scene.sign(0, claim=replace(CLAIM, outcome=b"x" * 32))
    with raises(DisputedResult, site="site-0", by=None):
        scene.settlement.check(PLAN)


def test_a_result_of_fewer_members_is_disputed_under_wait() -> None:
    scene = Scene(on_loss="wait")
    scene.sign(0, 1, 2, claim=replace(CLAIM, members=(0, 1, 2)))
    with raises(DisputedResult, site="site-0", by=None):
        scene.settlement.check(None)


def test_a_result_of_the_other_sites_is_accepted_under_shrink() -> None:
    """A majority continued while this site was away."""
    scene = Scene(on_loss="shrink")
    scene.sign(0, 1, 2, claim=ResultClaim(2, b"x" * 32, (0, 1, 2), b"y" * 32))
    scene.settlement.check(PLAN)


# -------------------------------------------------------------------------------------------------------- accusations


def _hear_failure(accuser: int, failure: Failure) -> None:
    """Let site 0 of a path learn that another site has given up."""
    edges = tuple((j, j + 1) for j in range(SITES - 1))
    node = Node(NodeConfig(NAMES, 0, edges, b"n" * 32, {}, 1 << 20), Policy(), RealClock(), IDENTITIES[0])
    plan = replace(PLAN, edges=edges)
    record = Record(accuser, IDENTITIES[accuser], 1, "failed", plan=plan.digest, failure=failure)
    node.assembly.learn(record)
    node.abort_reasons.check_members(plan)


def test_the_receiver_of_an_array_can_accuse_its_sender() -> None:
    what = "NaN in its row counts"
    with raises(BadArray, site="site-2", by="site-1", what=what, phase="mean", iteration=0):
        _hear_failure(1, Failure("array", "", 2, what, "mean", 0))


@pytest.mark.parametrize(("accuser", "accused"), [(1, 3), (1, 1), (4, 2)])
def test_a_site_cannot_accuse_one_that_is_not_its_neighbour(accuser: int, accused: int) -> None:
    _hear_failure(accuser, Failure("array", "", accused, "NaN in its row counts", "mean", 0))


def test_a_failure_that_follows_from_another_accuses_no_site() -> None:
    _hear_failure(1, Failure("follows", "", 2))
    _hear_failure(1, Failure("site", "its rows cannot be used"))
