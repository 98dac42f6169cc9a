"""Define reductions over all agents, and reductions in progress."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from deepca._util.typing import Array
from deepca.errors import ParameterError

__all__ = ["Op", "PendingReduction", "neutral", "reducer"]

Op = Literal["min", "max"]


class PendingReduction:
    """Reduction in progress, whose values ride along with gossip messages.

    Parameters
    ----------
    value : ndarray
        Value reduced so far.
    op : {"min", "max"}
        The reduction.
    rounds : int
        Number of full rounds until every agent's value has reached every other agent.

    Attributes
    ----------
    value : ndarray
        The result, once `ready`.
    rounds_left : int
        Number of full rounds that remain.
    """

    def __init__(self, value: Array, op: Op, rounds: int) -> None:
        self.value, self.op, self.rounds_left = value, op, rounds

    @property
    def ready(self) -> bool:
        """True if the value is final."""
        return self.rounds_left <= 0


def reducer(op: Op) -> Any:
    """Return ``numpy.minimum`` or ``numpy.maximum``, which propagate NaN; raise ParameterError for any other ``op``."""
    if op not in ("min", "max"):
        raise ParameterError("op", op, "choose 'min' or 'max'")
    return np.minimum if op == "min" else np.maximum


def neutral(op: Op) -> float:
    """Return the neutral element, which an agent without a value sends; the opposite infinity is never sent."""
    return np.inf if op == "min" else -np.inf
