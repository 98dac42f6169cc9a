"""When sites enter a plan, and when they leave one that others have entered already."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal

import pytest

from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.assembly import Assembly
from deepca.sites.runtime.membership import Membership, Policy

SITES, PATIENCE = 3, 10.0
NAMES = tuple(f"site-{j}" for j in range(SITES))
EDGES = ((0, 1), (0, 2), (1, 2))
EVERYONE = frozenset(range(SITES))


class Hall:
    """Site 0, which proposes a plan of all three; nobody has entered it, and site 2 has not proposed it yet."""

    def __init__(self, on_loss: Literal["wait", "shrink"]) -> None:
        membership = Membership(NAMES, 0, EDGES, b"n" * 32, {"run": b"1"}, 1 << 20)
        policy = Policy(on_loss, PATIENCE, 100.0, 10.0)
        self.assembly = Assembly(membership, policy, Incarnation(1, 1), 0.0)
        for site in (1, 2):
            self.assembly.learn(
                Record(site, Incarnation(1, site + 1), 0, "gathering", EVERYONE - {site}, {"run": b"1"})
            )
        self.look(0.0)
        assert not self.assembly.agreed(0.0)
        assert self.assembly.proposal is not None
        self.digest = self.assembly.proposal.digest
        self.say(1, plan=self.digest)

    def say(self, site: int, **changes: Any) -> None:
        known = self.assembly.table[site]
        self.assembly.learn(replace(known, version=known.version + 1, **changes))

    def look(self, now: float, reached: frozenset[int] = frozenset({1, 2})) -> None:
        self.assembly.look(now, reached, dict.fromkeys(reached, now))

    @property
    def proposed(self) -> bytes:
        return b"" if self.assembly.proposal is None else self.assembly.proposal.digest


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
def test_a_plan_that_somebody_runs_is_not_left_for_a_link_that_comes_up_late(
    on_loss: Literal["wait", "shrink"],
) -> None:
    hall = Hall(on_loss)
    hall.say(1, phase="running", epoch=1, links=frozenset({0}))  # its link to site 2 is not up yet
    hall.look(1.0)
    assert not hall.assembly.agreed(1.0)
    assert hall.proposed == hall.assembly.record.plan == hall.digest
    hall.say(2, plan=hall.digest)
    hall.look(2.0)
    assert hall.assembly.agreed(2.0)
    assert hall.assembly.enter(2.0).epoch == 1


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
def test_a_site_that_is_away_for_a_moment_changes_nothing_once_the_plan_is_run(
    on_loss: Literal["wait", "shrink"],
) -> None:
    hall = Hall(on_loss)
    hall.say(1, phase="running", epoch=1)
    hall.say(2, links=frozenset())
    hall.look(1.0, frozenset())
    assert not hall.assembly.agreed(1.0)
    assert hall.proposed == hall.digest
    hall.say(2, links=frozenset({0, 1}), plan=hall.digest)
    hall.look(2.0)
    assert hall.assembly.agreed(2.0)


def test_a_plan_is_left_when_whoever_runs_it_leaves_it() -> None:
    hall = Hall("shrink")
    hall.say(1, phase="running", epoch=1)
    hall.look(1.0)
    assert not hall.assembly.agreed(1.0)
    hall.say(1, phase="gathering", plan=b"")
    hall.look(2.0)
    assert not hall.assembly.agreed(2.0)
    assert hall.assembly.proposal is not None
    assert hall.assembly.proposal.epoch == 2


def test_a_plan_is_left_when_whoever_runs_it_is_gone_for_longer_than_patience() -> None:
    hall = Hall("shrink")
    hall.say(1, phase="running", epoch=1)
    hall.look(1.0)
    hall.say(2, links=frozenset({0}))
    hall.look(2.0, frozenset({2}))
    for now, members in ((3.0, (0, 1, 2)), (2.0 + PATIENCE + 1.0, (0, 2))):
        hall.look(now, frozenset({2}))
        assert not hall.assembly.agreed(now)
        assert hall.assembly.proposal is not None
        assert hall.assembly.proposal.members == members
        assert hall.assembly.proposal.epoch == (1 if len(members) == SITES else 2)


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
def test_a_plan_that_nobody_runs_is_left_when_a_site_is_away(on_loss: Literal["wait", "shrink"]) -> None:
    hall = Hall(on_loss)
    hall.say(2, links=frozenset({1}))
    hall.say(1, links=frozenset({2}))
    hall.look(1.0, frozenset())
    assert not hall.assembly.agreed(1.0)
    assert hall.proposed == hall.assembly.record.plan == b""


def test_that_others_leave_is_a_warning_until_this_site_has_finished(caplog: pytest.LogCaptureFixture) -> None:
    hall = Hall("wait")
    with caplog.at_level(logging.INFO, "deepca"):
        hall.look(1.0, frozenset())
        hall.look(2.0)
        hall.assembly.publish(phase="finished")
        hall.look(3.0, frozenset())
    levels = [(vars(record)["event"], record.levelname) for record in caplog.records]
    gone = ["silent", "silent", "lost", "lost"]
    back = [("found", "INFO")] * 2
    assert levels == [*((event, "WARNING") for event in gone), *back, *((event, "INFO") for event in gone)]
    assert {vars(record)["site"] for record in caplog.records} == {"site-0"}
