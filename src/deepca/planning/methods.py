"""What plan and simulate share: methods that are tried one after the other, and the choice of the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from deepca._util.typing import Array
from deepca.network.compression import Messages
from deepca.operators.linalg import tan_theta
from deepca.solver.observers import Observer, Start, Step
from deepca.solver.result import Result

__all__ = ["ON_A_TREE", "Course", "Watch", "fastest", "messages_of"]

ON_A_TREE = ("krylov", "covariance")
"""Methods that rely on every message."""
Watch = Callable[[str], Observer]
"""Gives an observer for each method, such as a progress bar."""
T = TypeVar("T")


class Course(Generic[T]):
    """Observer of the largest angle to U at any agent, and of what the run has taken by then.

    seen : iteration, angle and what ``taken`` returned, after every ``every`` iterations.
    """

    def __init__(self, U: Array, taken: Callable[[], T], *, every: int = 1) -> None:
        self._U, self._taken, self._every = U, taken, every
        self.seen: list[tuple[int, float, T]] = []

    def begin(self, start: Start) -> None:
        self.seen.clear()

    def observe(self, step: Step) -> None:
        if step.after.t % self._every == 0:
            angle = float(np.max(tan_theta(self._U, step.after.W)))
            self.seen.append((step.after.t, angle, self._taken()))

    def end(self, result: Result[Any]) -> None:
        """Nothing to close."""


def messages_of(method: str, messages: Messages) -> Messages:
    """Return what a number takes in a message of this method: sums along a tree need all digits."""
    return "float64" if method in ON_A_TREE else messages


def fastest(seconds: Mapping[str, float], measure: str = "time") -> tuple[str | None, str]:
    """Return the method that takes least, None where none is given, and why. measure : of what, in words."""
    if not seconds:
        return None, "no method that may be recommended reaches the tolerance; ask for a larger one, or another k"
    best, *others = sorted(seconds, key=seconds.__getitem__)
    if not others:
        return best, "the only one that may be recommended and reaches the tolerance"
    factor = seconds[others[0]] / max(seconds[best], 1e-12)
    how = f"{factor:.1f} times as fast" if factor >= 1.05 else "about as fast"
    return best, f"least {measure}, {how} as {others[0]}"
