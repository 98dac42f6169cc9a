"""Test when a site enters a plan, and when it gives up a plan that others have already entered."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal

import pytest

from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import Record
from deepca.sites.runtime.assembly import Assembly
from deepca.sites.runtime.node_config import NodeConfig, Policy

SITES, PATIENCE = 3, 10.0
NAMES = tuple(f"site-{j}" for j in range(SITES))
EDGES = ((0, 1), (0, 2), (1, 2))
EVERYONE = frozenset(range(SITES))


class Scene:
    """Site 0 as it proposes a plan with all three sites, which no site has entered and site 2 has not proposed yet."""

    def __init__(self, on_loss: Literal["wait", "shrink"]) -> None:
        config = NodeConfig(NAMES, 0, EDGES, b"n" * 32, {"run": b"1"}, 1 << 20)
        policy = Policy(on_loss, PATIENCE, 100.0, 10.0)
        self.assembly = Assembly(config, policy, Incarnation(1, 1), 0.0)
        for site in (1, 2):
            self.assembly.learn(
                Record(site, Incarnation(1, site + 1), 0, "gathering", EVERYONE - {site}, {"run": b"1"})
            )
        self.look(0.0)
        assert not self.assembly.update_proposal(0.0)
        assert self.assembly.proposal is not None
        self.digest = self.assembly.proposal.digest
        self.publish(1, plan=self.digest)

    def publish(self, site: int, **changes: Any) -> None:
        known = self.assembly.table[site]
        self.assembly.learn(replace(known, version=known.version + 1, **changes))

    def look(self, now: float, reached: frozenset[int] = frozenset({1, 2})) -> None:
        self.assembly.update_presence(now, reached, dict.fromkeys(reached, now))

    @property
    def proposed(self) -> bytes:
        return b"" if self.assembly.proposal is None else self.assembly.proposal.digest


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
def test_a_link_that_comes_up_late_does_not_end_a_plan_that_a_member_runs(
    on_loss: Literal["wait", "shrink"],
) -> None:
    scene = Scene(on_loss)
    scene.publish(1, phase="running", epoch=1, links=frozenset({0}))  # its link to site 2 is not up yet
    scene.look(1.0)
    assert not scene.assembly.update_proposal(1.0)
    assert scene.proposed == scene.assembly.record.plan == scene.digest
    scene.publish(2, plan=scene.digest)
    scene.look(2.0)
    assert scene.assembly.update_proposal(2.0)
    assert scene.assembly.enter(2.0).epoch == 1


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
def test_a_short_absence_does_not_end_a_plan_that_a_member_runs(
    on_loss: Literal["wait", "shrink"],
) -> None:
    scene = Scene(on_loss)
    scene.publish(1, phase="running", epoch=1)
    scene.publish(2, links=frozenset())
    scene.look(1.0, frozenset())
    assert not scene.assembly.update_proposal(1.0)
    assert scene.proposed == scene.digest
    scene.publish(2, links=frozenset({0, 1}), plan=scene.digest)
    scene.look(2.0)
    assert scene.assembly.update_proposal(2.0)


def test_a_plan_is_given_up_when_the_only_site_that_runs_it_leaves() -> None:
    scene = Scene("shrink")
    scene.publish(1, phase="running", epoch=1)
    scene.look(1.0)
    assert not scene.assembly.update_proposal(1.0)
    scene.publish(1, phase="gathering", plan=b"")
    scene.look(2.0)
    assert not scene.assembly.update_proposal(2.0)
    assert scene.assembly.proposal is not None
    assert scene.assembly.proposal.epoch == 2


def test_a_plan_is_given_up_when_the_only_site_that_runs_it_is_away_beyond_the_patience() -> None:
    scene = Scene("shrink")
    scene.publish(1, phase="running", epoch=1)
    scene.look(1.0)
    scene.publish(2, links=frozenset({0}))
    scene.look(2.0, frozenset({2}))
    for now, members in ((3.0, (0, 1, 2)), (2.0 + PATIENCE + 1.0, (0, 2))):
        scene.look(now, frozenset({2}))
        assert not scene.assembly.update_proposal(now)
        assert scene.assembly.proposal is not None
        assert scene.assembly.proposal.members == members
        assert scene.assembly.proposal.epoch == (1 if len(members) == SITES else 2)


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
def test_a_plan_that_no_member_runs_is_given_up_when_a_site_is_away(on_loss: Literal["wait", "shrink"]) -> None:
    scene = Scene(on_loss)
    scene.publish(2, links=frozenset({1}))
    scene.publish(1, links=frozenset({2}))
    scene.look(1.0, frozenset())
    assert not scene.assembly.update_proposal(1.0)
    assert scene.proposed == scene.assembly.record.plan == b""


def test_sites_that_leave_are_logged_as_warnings_until_this_site_has_finished(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene("wait")
    with caplog.at_level(logging.INFO, "deepca"):
        scene.look(1.0, frozenset())
        scene.look(2.0)
        scene.assembly.publish(phase="finished")
        scene.look(3.0, frozenset())
    levels = [(vars(record)["event"], record.levelname) for record in caplog.records]
    gone = ["silent", "silent", "lost", "lost"]
    back = [("found", "INFO")] * 2
    assert levels == [*((event, "WARNING") for event in gone), *back, *((event, "INFO") for event in gone)]
    assert {vars(record)["site"] for record in caplog.records} == {"site-0"}
