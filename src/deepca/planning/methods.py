"""Helpers of plan and simulate, which record the course of a run and choose the fastest method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from deepca._util.typing import Array
from deepca.network.compression import Messages
from deepca.operators.linalg import tan_theta
from deepca.solver.observers import Observer, Start, Step
from deepca.solver.result import Result

__all__ = ["TREE_METHODS", "ObserverFactory", "Trajectory", "fastest", "messages_of"]

TREE_METHODS = ("krylov", "covariance")
"""Methods that sum along a tree, and therefore rely on every message."""
ObserverFactory = Callable[[str], Observer]
"""Returns an observer for a method, such as a progress bar."""
T = TypeVar("T")


class Trajectory(Generic[T]):
    """Observer that records the largest angle of any agent, and the cost of the run so far.

    Parameters
    ----------
    U : array of shape (d, k)
        The exact answer.
    taken : callable
        Returns the cost of the run so far.
    every : int
        Number of iterations from one record to the next.

    Attributes
    ----------
    seen : list of tuple
        Iteration, angle and cost.
    """

    def __init__(self, U: Array, taken: Callable[[], T], *, every: int = 1) -> None:
        self._U, self._taken, self._every = U, taken, every
        self.records: list[tuple[int, float, T]] = []

    def begin(self, start: Start) -> None:
        """Discard the record of an earlier run."""
        self.records.clear()

    def observe(self, step: Step) -> None:
        """Record an iteration."""
        if step.after.t % self._every == 0:
            angle = float(np.max(tan_theta(self._U, step.after.W)))
            self.records.append((step.after.t, angle, self._taken()))

    def end(self, result: Result[Any]) -> None:
        """Do nothing."""


def messages_of(method: str, messages: Messages) -> Messages:
    """Return the precision of a method's messages: float64 if it sums along a tree."""
    return "float64" if method in TREE_METHODS else messages


def fastest(seconds: Mapping[str, float], measure: str = "time") -> tuple[str | None, str]:
    """Return the fastest method, or None for no methods, and the reason; ``measure`` names what is compared."""
    if not seconds:
        return None, "no method that may be recommended reaches the tolerance; choose a larger tolerance, or another k"
    best, *others = sorted(seconds, key=seconds.__getitem__)
    if not others:
        return best, "the only one that may be recommended and reaches the tolerance"
    factor = seconds[others[0]] / max(seconds[best], 1e-12)
    how = f"{factor:.1f} times as fast" if factor >= 1.05 else "about as fast"
    return best, f"least {measure}, {how} as {others[0]}"
