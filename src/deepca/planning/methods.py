"""Record the course of a run and choose the fastest algorithm: what plan and simulate have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from deepca._util.typing import Array
from deepca.network.compression import Messages
from deepca.operators.linalg import tan_theta
from deepca.solver.observers import Observer, Start, Step
from deepca.solver.result import Result

__all__ = ["TREE_ALGORITHMS", "ObserverFactory", "Trajectory", "fastest", "message_precision"]

TREE_ALGORITHMS = ("krylov", "covariance")
"""Algorithms that sum along a spanning tree, and therefore rely on every message."""
ObserverFactory = Callable[[str], Observer]
"""Function that returns an observer, such as a progress bar, for the algorithm of a given name."""
T = TypeVar("T")


class Trajectory(Generic[T]):
    """Observer that records the largest tangent of the angle of any agent, and the cost of the run so far.

    Parameters
    ----------
    U : array of shape (d, k)
        The exact components.
    cost_so_far : callable
        Returns the cost of the run so far.
    every : int, default=1
        Number of iterations from one record to the next.

    Attributes
    ----------
    records : list of tuple
        Iteration, tangent of the angle, and cost.
    """

    def __init__(self, U: Array, cost_so_far: Callable[[], T], *, every: int = 1) -> None:
        self._U, self._cost_so_far, self._every = U, cost_so_far, every
        self.records: list[tuple[int, float, T]] = []

    def begin(self, start: Start) -> None:
        """Discard the records of an earlier run."""
        self.records.clear()

    def observe(self, step: Step) -> None:
        """Record an iteration."""
        if step.after.t % self._every == 0:
            angle = float(np.max(tan_theta(self._U, step.after.W)))
            self.records.append((step.after.t, angle, self._cost_so_far()))

    def end(self, result: Result[Any]) -> None:
        """Do nothing."""


def message_precision(algorithm: str, messages: Messages) -> Messages:
    """Return the precision of an algorithm's messages: float64 if it sums along a tree, else ``messages``."""
    return "float64" if algorithm in TREE_ALGORITHMS else messages


def fastest(
    seconds: Mapping[str, float], measure: str = "time", *, withheld: Sequence[str] = (), unfinished: bool = False
) -> tuple[str | None, str]:
    """Return the fastest algorithm, or None if no algorithm qualifies, and the reason.

    Parameters
    ----------
    seconds : mapping
        Times of the eligible algorithms that reach the tolerance.
    measure : str, default="time"
        Name of what is compared.
    withheld : sequence of str
        Algorithms that reach the tolerance but are not eligible.
    unfinished : bool, default=False
        Whether an algorithm ran out of iterations, so that more of them may help.
    """
    if not seconds and withheld:
        reach, are = ("reaches", "is") if len(withheld) == 1 else ("reach", "are")
        why = "; covariance reveals the covariance of each agent to the others" if "covariance" in withheld else ""
        found = f"only {' and '.join(withheld)} {reach} the tolerance, but {are} not eligible"
        return None, f"{found}; add other methods, or choose a larger tolerance{why}"
    if not seconds:
        advice = f"{'raise max_iter, ' if unfinished else ''}choose a larger tolerance, or another k"
        return None, f"no method reaches the tolerance; {advice}"
    best, *others = sorted(seconds, key=seconds.__getitem__)
    if not others:
        return best, "the only eligible method that reaches the tolerance"
    factor = seconds[others[0]] / max(seconds[best], 1e-12)
    how = f"{factor:.1f} times as fast" if factor >= 1.05 else "about as fast"
    return best, f"least {measure} of the eligible methods, {how} as {others[0]}"
