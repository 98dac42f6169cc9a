"""When a claimed result may be written, and which signatures no honest site makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from deepca.errors import BadArray, DisputedResult
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Failure, Record, RunPlan
from deepca.sites.runtime.assembly import Assembly
from deepca.sites.runtime.clocks import RealClock
from deepca.sites.runtime.membership import Membership, Policy
from deepca.sites.runtime.node import Node
from deepca.sites.runtime.node.settlement import Settling

SITES = 5
NAMES = tuple(f"site-{j}" for j in range(SITES))
EDGES = tuple((i, j) for j in range(SITES) for i in range(j))
IDENTITIES = tuple(Incarnation(1, j + 1) for j in range(SITES))
PLAN = RunPlan(1, tuple(range(SITES)), IDENTITIES, EDGES)
CLAIM = ResultClaim(1, PLAN.digest, PLAN.members, b"r" * 32)
PATIENCE = 10.0


class Scene:
    """Site ``me`` as it sees the others: all are there, run the plan, and are heard of at time 0."""

    def __init__(self, me: int = 4, on_loss: Literal["wait", "shrink"] = "wait", sites: int = SITES) -> None:
        self.everyone, edges = frozenset(range(sites)), [edge for edge in EDGES if max(edge) < sites]
        membership = Membership(NAMES[:sites], me, tuple(edges), b"n" * 32, {"run": b"1"}, 1 << 20)
        policy = Policy(on_loss, PATIENCE, 100.0, 10.0)
        self.assembly = Assembly(membership, policy, IDENTITIES[me], 0.0)
        self.me, self.settling = me, Settling(membership, policy, self.assembly)
        others = self.everyone - {me}
        for site in others:
            self.publish(site)
        self.assembly.publish(phase="running", epoch=1, plan=PLAN.digest)
        self.assembly.look(0.0, others, dict.fromkeys(others, 0.0))

    def publish(self, site: int, **changes: Any) -> None:
        known = self.assembly.table.get(site)
        if known is None:
            links = self.everyone - {site}
            known = Record(site, IDENTITIES[site], 0, "running", links, {"run": b"1"}, 1, PLAN.digest)
        self.assembly.learn(replace(known, version=known.version + 1, **changes))

    def sign(self, *sites: int, claim: ResultClaim = CLAIM) -> None:
        self.settling.claims.extend(Endorsement(site, claim) for site in sites)

    def sign_unproposed(self, site: int, claim: ResultClaim) -> None:
        """A record with a signature, and without the proposal that it would have to rest on."""
        self.settling.signed(Endorsement(site, claim), None)

    def lose(self, *sites: int, at: float) -> None:
        reached = self.everyone - {self.me, *sites}
        for other in reached:
            self.publish(other, links=self.everyone - {other, *sites})
        self.assembly.look(at, reached, {})

    def final(self, now: float = 0.0, computed: bytes = PLAN.digest) -> bool:
        return self.settling.final(CLAIM, computed, now)


def test_the_signatures_of_all_members_suffice_and_not_one_less() -> None:
    scene = Scene()
    scene.sign(0, 1, 2, 4)
    assert not scene.final()
    scene.sign(3)
    assert scene.final()


def test_a_majority_suffices_once_the_rest_have_been_silent_beyond_patience() -> None:
    scene = Scene()
    scene.sign(0, 1, 4)
    scene.lose(2, 3, at=5.0)
    assert not scene.final(5.0 + 0.9 * PATIENCE)
    assert scene.final(5.0 + 1.1 * PATIENCE)


def test_a_minority_never_does() -> None:
    scene = Scene()
    scene.sign(0, 4)
    scene.lose(1, 2, 3, at=0.0)
    assert not scene.final(100.0 * PATIENCE)


def test_who_computed_it_compares_before_it_writes() -> None:
    scene = Scene()
    scene.sign(0, 1, 2, 3)
    assert not scene.final()
    assert scene.settling.to_compare(PLAN) == CLAIM


def test_who_comes_late_takes_what_most_have_signed() -> None:
    scene = Scene()
    scene.sign(0, 1)
    assert not scene.final(computed=b"")
    scene.sign(2)
    assert scene.final(computed=b"")


def test_who_has_lost_what_it_computed_is_not_waited_for() -> None:
    scene = Scene()
    scene.sign(0, 1, 4)
    scene.publish(2, identity=Incarnation(2, 9), phase="gathering", plan=b"")
    scene.publish(3, phase="gathering", plan=b"", computed=PLAN.digest)
    assert not scene.final()  # the last one may still find a difference
    scene.sign(3)
    assert scene.final()


@pytest.mark.parametrize("plan", [PLAN, None])
def test_nothing_is_written_against_a_member_that_has_refused(plan: RunPlan | None) -> None:
    """However many have signed, also by a site that comes late; but not where the refusing one has signed itself."""
    scene = Scene()
    scene.sign(0, 1, 2, 4)
    scene.settling.check(plan)
    scene.publish(3, phase="failed", failure=Failure("contradiction", "why", 0, "proposes another mean"))
    with pytest.raises(DisputedResult) as raised:
        scene.settling.check(plan)
    assert (raised.value.site, raised.value.by) == ("site-0", "site-3")
    scene.sign(3)
    scene.settling.check(plan)
    assert scene.final()


def test_only_what_the_first_member_proposes_is_compared() -> None:
    scene = Scene()
    scene.sign(1)
    assert scene.settling.to_compare(PLAN) is None
    scene.sign(0)
    assert scene.settling.to_compare(PLAN) == CLAIM


def test_no_epoch_begins_while_a_result_may_have_been_decided_out_of_sight() -> None:
    scene = Scene(on_loss="shrink")
    scene.sign(0, 1)
    assert scene.settling.pending() == []
    scene.lose(2, at=0.0)  # with its signature there would be three of five
    assert scene.settling.pending() == [CLAIM]


def test_what_one_site_says_of_itself_does_not_settle_what_others_may_have_signed() -> None:
    scene = Scene(on_loss="shrink")
    scene.sign(0, 1)
    scene.lose(2, at=0.0)
    scene.publish(3, epoch=7)  # as if it had made sure of it
    assert scene.settling.pending() == [CLAIM]


def test_of_an_even_number_one_may_deny_its_signature_while_another_is_away() -> None:
    claim = replace(CLAIM, members=(0, 1, 2, 3))
    scene = Scene(3, "shrink", 4)
    scene.sign(3, claim=claim)
    for site in (1, 2):
        scene.publish(site, phase="gathering", plan=b"")
    assert scene.settling.pending() == []
    scene.lose(0, at=0.0)  # with the signatures of 0, 3, and of 1 or 2, it may have written
    assert scene.settling.pending() == [claim]
    scene.publish(0, epoch=2)  # not if it went on
    assert scene.settling.pending() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": 2},
        {"phase": "gathering", "plan": b"", "identity": Incarnation(2, 9)},
        {"phase": "failed", "failure": Failure("site", "no space left")},
    ],
)
def test_nobody_waits_for_a_lost_site_that_has_not_signed_and_cannot_any_more(changes: dict[str, Any]) -> None:
    scene = Scene(on_loss="shrink")
    scene.sign(0, 1)
    scene.publish(2, **changes)
    scene.lose(2, at=0.0)
    assert scene.settling.pending() == []


def test_a_site_that_left_with_what_it_computed_may_have_signed() -> None:
    scene = Scene(on_loss="shrink")
    scene.sign(0, 1)
    scene.publish(2, phase="gathering", plan=b"", computed=PLAN.digest)
    scene.lose(2, at=0.0)
    assert scene.settling.pending() == [CLAIM]


def test_nobody_waits_for_signatures_that_cannot_come() -> None:
    scene = Scene(on_loss="shrink")
    scene.sign(0)
    for site in (1, 2):
        scene.publish(site, computed=PLAN.digest)
    assert scene.settling.pending() == [CLAIM]
    scene.publish(1, computed=b"")
    assert scene.settling.pending() == []


def test_a_signature_that_rests_on_no_proposal_holds_nothing_up_and_its_site_is_named() -> None:
    scene = Scene(on_loss="shrink")
    for site in (1, 2, 3, 4):
        scene.publish(site, computed=PLAN.digest)
    scene.sign_unproposed(3, CLAIM)
    scene.lose(0, at=0.0)  # which would have proposed
    assert scene.settling.pending() == []
    with pytest.raises(DisputedResult) as caught:
        scene.settling.check(PLAN)
    assert caught.value.site == "site-3"
    assert "site-0 has not proposed" in caught.value.what


def test_who_signs_one_of_two_proposals_is_not_blamed_for_it() -> None:
    """Two sites that were shown different ones each show the signature that theirs rests on."""
    other = replace(CLAIM, outcome=b"x" * 32)
    scene = Scene()
    scene.sign(0, 4)
    scene.sign(3, claim=other)  # handed on by whoever keeps the proposer's signature back
    scene.settling.check(PLAN)
    scene.settling.signed(Endorsement(3, other), Endorsement(0, other))
    with pytest.raises(DisputedResult) as caught:
        scene.settling.check(PLAN)
    assert (caught.value.site, caught.value.by) == ("site-0", None)


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "other bytes": ({"outcome": b"x" * 32}, "site-2"),
    "later epoch": ({"epoch": 6, "plan": b"x" * 32}, "site-2"),
    "same epoch, other plan": ({"plan": b"x" * 32}, "site-2"),
    "same plan, other epoch": ({"epoch": 2}, "site-2"),
    "fewer members": ({"members": (0, 2, 4)}, "site-2"),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
def test_who_signs_what_no_honest_site_signs_is_named(lie: str, on_loss: Literal["wait", "shrink"]) -> None:
    scene = Scene(on_loss=on_loss)
    scene.sign(0, 1, 4)
    scene.settling.check(PLAN)
    changes, culprit = LIES[lie]
    scene.sign_unproposed(2, replace(CLAIM, **changes))
    with pytest.raises(DisputedResult) as caught:
        scene.settling.check(PLAN)
    assert (caught.value.site, caught.value.by) == (culprit, None)


def test_who_proposes_twice_is_named() -> None:
    scene = Scene()
    scene.sign(0)
    scene.sign(0, claim=replace(CLAIM, outcome=b"x" * 32))
    with pytest.raises(DisputedResult) as caught:
        scene.settling.check(PLAN)
    assert caught.value.site == "site-0"


def test_other_members_are_refused_under_wait_whoever_hears_of_them() -> None:
    scene = Scene(on_loss="wait")
    scene.sign(0, 1, 2, claim=replace(CLAIM, members=(0, 1, 2)))
    with pytest.raises(DisputedResult):
        scene.settling.check(None)


def test_a_result_of_the_others_is_no_lie_under_shrink() -> None:
    """While this site was away, a majority went on without it."""
    scene = Scene(on_loss="shrink")
    scene.sign(0, 1, 2, claim=ResultClaim(2, b"x" * 32, (0, 1, 2), b"y" * 32))
    scene.settling.check(PLAN)


# ------------------------------------------------------------------------------------------ who accuses whom of what


def _after(accuser: int, failure: Failure) -> None:
    """What site 0 of a path does when it hears that another one has given up."""
    edges = tuple((j, j + 1) for j in range(SITES - 1))
    node = Node(Membership(NAMES, 0, edges, b"n" * 32, {}, 1 << 20), Policy(), RealClock(), IDENTITIES[0])
    plan = replace(PLAN, edges=edges)
    record = Record(accuser, IDENTITIES[accuser], 1, "failed", plan=plan.digest, failure=failure)
    node.assembly.learn(record)
    node.faults.check_members(plan)


def test_who_was_sent_an_array_can_accuse_its_sender() -> None:
    with pytest.raises(BadArray) as caught:
        _after(1, Failure("array", "", 2, "NaN in its row counts", "mean", 0))
    assert (caught.value.site, caught.value.by) == ("site-2", "site-1")
    assert (caught.value.what, caught.value.phase, caught.value.iteration) == ("NaN in its row counts", "mean", 0)


@pytest.mark.parametrize(("accuser", "accused"), [(1, 3), (1, 1), (4, 2)])
def test_a_site_cannot_accuse_one_that_it_does_not_talk_to(accuser: int, accused: int) -> None:
    _after(accuser, Failure("array", "", accused, "NaN in its row counts", "mean", 0))


def test_who_only_heard_of_a_failure_accuses_nobody() -> None:
    _after(1, Failure("follows", "", 2))
    _after(1, Failure("site", "its rows cannot be used"))
