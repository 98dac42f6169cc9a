"""Seeded schedules of faults under a virtual clock: no wrong answer, no hang, and the same course for the same seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deepca.decomposition.settings import Settings
from deepca.errors import Unfinished
from deepca.sites.runtime.run import Ending
from deepca.topology import complete, path
from studies.faults import schedules
from studies.faults.schedules import Fault, Schedule, draw, play
from tests.support.seeds import law_seeds

pytestmark = pytest.mark.slow

# hangs that were found by search, each by another way; and the first ones of the common sequence
FOUND = (1076, 1117, 1189)


@pytest.mark.parametrize("seed", [*FOUND, *law_seeds(37)])
def test_every_schedule_ends_as_it_must(seed: int) -> None:
    outcome = play(draw(seed))
    assert outcome.correct, outcome.problems


def test_the_same_seed_has_the_same_course() -> None:
    first, second = (play(draw(11)) for _ in range(2))
    assert (first.seconds, first.epochs) == (second.seconds, second.epochs)
    contents = [
        {site: one.content for site, one in outcome.endings.items() if isinstance(one, Ending)}
        for outcome in (first, second)
    ]
    assert contents[0] == contents[1]
    assert contents[0]


def test_schedules_are_drawn_with_every_kind_of_fault() -> None:
    drawn = [draw(seed) for seed in range(100)]
    kinds = {fault.kind for schedule in drawn for fault in schedule.faults}
    assert kinds == {"kill", "freeze", "partition", "oneway", "noise", "slow", "full"}
    assert {schedule.on_loss for schedule in drawn} == {"wait", "shrink"}
    assert {schedule.settings.algorithm for schedule in drawn} == {"auto", "deepca", "accelerated"}
    assert max(len(fault.sites) for schedule in drawn for fault in schedule.faults) >= 5


def _schedule(faults: list[Fault], **changes: object) -> Schedule:
    plain = Schedule(0, complete(5), Settings(2, tol=1e-9), "shrink", tuple(faults), patience=2.0, deadline=60.0)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_site_that_restarts_while_another_is_gone_goes_on_without_it() -> None:
    """The other one comes back after the deadline."""
    outcome = play(_schedule([Fault(0.3, "kill", (4,), 70.0), Fault(0.4, "kill", (1,), 0.5)]))
    assert outcome.correct, outcome.problems
    endings = [outcome.endings[site] for site in range(4)]
    assert all(isinstance(one, Ending) and one.left_out == ("site-4",) for one in endings)
    assert isinstance(outcome.endings[4], Unfinished)


def test_a_wrong_answer_is_noticed() -> None:
    """The judge itself: rows that are not those of the result."""
    outcome = play(_schedule([Fault(0.3, "noise", (), 1.0, 0.01)]))
    assert outcome.correct
    others = [np.random.default_rng(j).standard_normal((20, 8)) for j in range(5)]
    schedules.judge(outcome, others)
    assert len(outcome.problems) == 5
    assert "components are wrong" in outcome.problems[0]


@pytest.mark.parametrize("missing", [0, 2])
def test_waiting_for_one_that_does_not_come_ends_unfinished_and_not_as_a_hang(missing: int) -> None:
    faults = [Fault(0.2, "kill", (missing,), 45.0)]
    outcome = play(_schedule(faults, topology=path(3), on_loss="wait", deadline=40.0))
    assert len(outcome.endings) == 3
    assert all(isinstance(one, Unfinished) for one in outcome.endings.values())
    assert outcome.seconds < 50.0
    for site in {0, 1, 2} - {missing}:
        assert f"site-{missing}" in str(outcome.endings[site]) or site == 2 - missing
