"""Random fault schedules under a virtual clock: no wrong result, no hang, and the same run for the same seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deepca.decomposition.settings import Settings
from deepca.errors import Unfinished
from deepca.sites.runtime.site_result import SiteResult
from deepca.topology import complete, path
from studies.faults import schedules
from studies.faults.schedules import Fault, Schedule, draw_schedule, simulate
from tests.support.seeds import law_seeds

pytestmark = pytest.mark.slow

# seeds of three different hangs that a search found in earlier versions
FORMER_HANGS = (1076, 1117, 1189)


@pytest.mark.parametrize("seed", [*FORMER_HANGS, *law_seeds(37)])
def test_every_schedule_ends_with_right_results(seed: int) -> None:
    outcome = simulate(draw_schedule(seed))
    assert outcome.correct, outcome.problems


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (simulate(draw_schedule(11)) for _ in range(2))
    assert (first.seconds, first.epochs) == (second.seconds, second.epochs)
    contents = [
        {site: one.content for site, one in outcome.endings.items() if isinstance(one, SiteResult)}
        for outcome in (first, second)
    ]
    assert contents[0] == contents[1]
    assert contents[0]


def test_all_kinds_of_faults_are_drawn() -> None:
    drawn = [draw_schedule(seed) for seed in range(100)]
    kinds = {fault.kind for schedule in drawn for fault in schedule.faults}
    assert kinds == {"kill", "freeze", "partition", "oneway", "noise", "slow", "full"}
    assert {schedule.on_loss for schedule in drawn} == {"wait", "shrink"}
    assert {schedule.settings.algorithm for schedule in drawn} == {"auto", "deepca", "accelerated"}
    assert max(len(fault.sites) for schedule in drawn for fault in schedule.faults) >= 5


def _schedule(faults: list[Fault], **changes: object) -> Schedule:
    plain = Schedule(0, complete(5), Settings(2, tol=1e-9), "shrink", tuple(faults), patience=2.0, deadline=60.0)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_site_that_restarts_while_another_is_down_continues_without_it() -> None:
    """The other site returns after the deadline."""
    outcome = simulate(_schedule([Fault(0.3, "kill", (4,), 70.0), Fault(0.4, "kill", (1,), 0.5)]))
    assert outcome.correct, outcome.problems
    endings = [outcome.endings[site] for site in range(4)]
    assert all(isinstance(one, SiteResult) and one.left_out == ("site-4",) for one in endings)
    assert isinstance(outcome.endings[4], Unfinished)


def test_a_wrong_result_is_detected() -> None:
    """Check the result against other rows than those it was computed from."""
    outcome = simulate(_schedule([Fault(0.3, "noise", (), 1.0, 0.01)]))
    assert outcome.correct
    others = [np.random.default_rng(j).standard_normal((20, 8)) for j in range(5)]
    schedules.check_results(outcome, others)
    assert len(outcome.problems) == 5
    assert "components are wrong" in outcome.problems[0]


@pytest.mark.parametrize("missing", [0, 2])
def test_waiting_for_a_missing_site_ends_unfinished_at_the_deadline(missing: int) -> None:
    faults = [Fault(0.2, "kill", (missing,), 45.0)]
    outcome = simulate(_schedule(faults, topology=path(3), on_loss="wait", deadline=40.0))
    assert len(outcome.endings) == 3
    assert all(isinstance(one, Unfinished) for one in outcome.endings.values())
    assert outcome.seconds < 50.0
    for site in {0, 1, 2} - {missing}:
        assert f"site-{missing}" in str(outcome.endings[site]) or site == 2 - missing
