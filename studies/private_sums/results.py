"""Run all measurements of the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deepca._util.typing import Array
from studies.faults.message_timing import GOALS, time_rounds
from studies.private_sums.comparison import Comparison, Quartiles, compare
from studies.private_sums.costs import MaskCosts, mask_costs
from studies.private_sums.trials import Case
from studies.private_sums.uniformity import Uniformity, measure_uniformity

__all__ = ["FULL", "QUICK", "ROUND_BYTES", "ROUND_GOAL", "Plan", "Results", "Rounds", "run"]

ROUND_BYTES = 12_000
"""Size of the messages whose rounds are timed."""
ROUND_GOAL = GOALS[ROUND_BYTES]
"""Largest allowed ratio of the time of a round to that of a bare exchange."""
_ROUNDS_PER_REPETITION = 60


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Parameters
    ----------
    cases : tuple of Case
        Sites and rows that are compared.
    recorded : Case
        Sites and rows whose messages are tested.
    rounds : tuple of int
        Numbers of sites between which rounds are timed.
    repetitions : int
        Repetitions of that.
    """

    cases: tuple[Case, ...]
    recorded: Case
    rounds: tuple[int, ...]
    repetitions: int


FULL = Plan(
    (
        Case(5, 300, 300, 14),
        Case(5, 3_000, 300, 8),
        Case(5, 50_000, 150, 4),
        Case(10, 300, 300, 10),
        Case(10, 3_000, 300, 5),
        Case(10, 50_000, 150, 3),
    ),
    Case(5, 300, 300, 0),
    (5, 10),
    15,
)
"""Measurements of the published page."""
QUICK = Plan((Case(3, 20, 30, 2),), Case(3, 100, 40, 0), (3,), 2)
"""Measurements of a few seconds, for tests."""


@dataclass(frozen=True)
class Rounds:
    """Times of rounds between m sites in a ring.

    Parameters
    ----------
    m : int
        Number of sites.
    seconds : ndarray of shape (3, r)
        Time of a bare exchange, of an exchange between agents, and of a round of a sum, in every repetition.
    """

    m: int
    seconds: Array

    @property
    def exchange(self) -> Quartiles:
        """Ratio of an exchange to a bare one."""
        return Quartiles.of(self.seconds[1] / self.seconds[0])

    @property
    def relayed(self) -> Quartiles:
        """Ratio of a round of a sum to a bare exchange."""
        return Quartiles.of(self.seconds[2] / self.seconds[0])


@dataclass(frozen=True)
class Results:
    """All measurements: comparisons, times of rounds, costs of masks by case, and uniformity."""

    comparisons: tuple[Comparison, ...]
    rounds: tuple[Rounds, ...]
    costs: tuple[MaskCosts, ...]
    uniformity: Uniformity


def run(plan: Plan, folder: Path, progress: Callable[[float, float], None] = lambda done, total: None) -> Results:
    """Measure everything; ``folder`` is for rows, kits and logs."""
    total = sum(_work(case) * (case.pairs + 1) for case in plan.cases)
    done = 0.0
    rounds = []
    for m in plan.rounds:
        times = time_rounds(folder / f"rounds-{m}", plan.repetitions, m, ((ROUND_BYTES, _ROUNDS_PER_REPETITION),))
        rounds.append(Rounds(m, times[ROUND_BYTES]))
    uniformity = measure_uniformity(plan.recorded, folder / "recorded")
    comparisons = []
    for case in plan.cases:

        def step(case: Case = case) -> None:
            nonlocal done
            done += _work(case)
            progress(done, total)

        comparisons.append(compare(case, folder / f"{case.m}-{case.d}", step))
    costs = tuple(mask_costs(case.m, case.d) for case in plan.cases)
    return Results(tuple(comparisons), tuple(rounds), costs, uniformity)


def _work(case: Case) -> float:
    """Return how long a run takes, relative to others."""
    return case.m * (0.1 + case.d / 20_000)
