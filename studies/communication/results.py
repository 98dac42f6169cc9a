"""Aggregate runs: medians over draws, and the best K of the paper's method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from studies.communication.cells import LADDER, LIMITS, Case, Graph, Mark, Method, Outcome, Run, Scope

__all__ = ["Group", "Results", "worth_running"]

Unit = Literal["iterations", "rounds", "bytes"]
_MIN_ITERATION_RATIO = 0.8  # DeEPCA never took less than this fraction of the power method's iterations, see fastest


@dataclass(frozen=True)
class Group:
    """The draws of one method in one case."""

    outcomes: tuple[Outcome, ...]

    def marks(self, limit: float) -> list[Mark]:
        """Return the marks of the draws that reached the limit."""
        found = (outcome.marks[LIMITS.index(limit)] for outcome in self.outcomes)
        return [mark for mark in found if mark is not None]

    def median(self, limit: float, unit: Unit) -> float | None:
        """Return the median over the draws that reached the limit, or None if none did."""
        found = [getattr(mark, unit) for mark in self.marks(limit)]
        return float(median(found)) if found else None

    def failures(self, limit: float) -> int:
        """Count the draws that did not reach the limit."""
        return len(self.outcomes) - len(self.marks(limit))

    @property
    def hopeless(self) -> bool:
        """Whether no draw reached any limit."""
        return all(mark is None for outcome in self.outcomes for mark in outcome.marks)

    @property
    def lowest(self) -> float | None:
        """Smallest mean tan θ of the median draw; None if it is not finite."""
        found = sorted(float("inf") if o.lowest is None else o.lowest for o in self.outcomes)
        value = found[len(found) // 2] if found else float("inf")
        return value if value < float("inf") else None


@dataclass(frozen=True)
class Results:
    """The outcomes of the runs in a scope."""

    scope: Scope
    outcomes: Mapping[Run, Outcome]
    _groups: dict[tuple[str, int, Graph | None, Method, int], list[tuple[int, Outcome]]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        """Group the outcomes by case, method and K."""
        for run, outcome in self.outcomes.items():
            name = (run.data, run.k, run.graph, run.method, run.K)
            self._groups.setdefault(name, []).append((run.draw, outcome))

    def group(self, case: Case, method: Method, K: int = 0) -> Group:
        """Return the draws of a method in a case; for pooled methods, those with the same data and seeds."""
        graph = None if method in ("CPCA", "pooled block Krylov") else case.graph
        draws = self.scope.draws_of(case)
        found = self._groups.get((case.data, case.k, graph, method, K), [])
        return Group(tuple(outcome for draw, outcome in sorted(found, key=lambda one: one[0]) if draw in draws))

    def ladder(self, case: Case) -> dict[int, Group]:
        """Return the groups of the paper's method by K, as far as they were run."""
        groups = {K: self.group(case, "DeEPCA", K) for K in LADDER}
        return {K: group for K, group in groups.items() if group.outcomes}

    def best(self, case: Case, limit: float) -> int | None:
        """Return the K with the fewest rounds among those without failed draws, or None."""
        found = {
            K: rounds
            for K, group in self.ladder(case).items()
            if group.failures(limit) == 0 and (rounds := group.median(limit, "rounds")) is not None
        }
        return min(found, key=lambda K: found[K], default=None)

    def paper(self, case: Case, limit: float) -> Group | None:
        """Return the group of the paper's method with its best K, or None."""
        K = self.best(case, limit)
        return None if K is None else self.group(case, "DeEPCA", K)

    def fastest(self) -> float | None:
        """Return the smallest ratio of DeEPCA's iterations to the power method's, by medians over draws."""
        found = []
        for case in self.scope.cases:
            for limit in LIMITS:
                power = self.group(case, "CPCA").median(limit, "iterations")
                medians = [group.median(limit, "iterations") for group in self.ladder(case).values()]
                found += [taken / power for taken in medians if taken is not None and power]
        return min(found, default=None)

    def joined(self, more: Mapping[Run, Outcome]) -> Results:
        """Return the results with more outcomes added."""
        return Results(self.scope, {**self.outcomes, **more})

    def open_at(self, K: int) -> list[Case]:
        """Return the cases in which K could still be the best."""
        return [case for case in self.scope.cases if self._open(case, K)]

    def _open(self, case: Case, K: int) -> bool:
        power = self.group(case, "CPCA")
        needs = {limit: power.median(limit, "iterations") for limit in LIMITS}
        best = {
            limit: paper.median(limit, "rounds") if (paper := self.paper(case, limit)) is not None else None
            for limit in LIMITS
        }
        return worth_running(K, needs, best)


def worth_running(K: int, power: Mapping[float, float | None], best: Mapping[float, float | None]) -> bool:
    """Return whether K could need fewer rounds than the best so far, for any limit.

    Parameters
    ----------
    K : int
        Rounds per iteration.
    power : mapping
        Iterations of the pooled power method by limit.
    best : mapping
        Rounds of the best K so far by limit; None where no K has worked.
    """

    def could_win(limit: float) -> bool:
        iterations, rounds = power[limit], best[limit]
        return iterations is None or rounds is None or _MIN_ITERATION_RATIO * K * iterations <= rounds

    return any(map(could_win, power))
