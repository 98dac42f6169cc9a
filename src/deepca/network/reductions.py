"""Minima, maxima and sums that all agents know, and those still under way."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from deepca._util.typing import Array
from deepca.errors import InvalidInput

__all__ = ["Op", "Pending", "neutral", "reducer"]

Op = Literal["min", "max"]


class Pending:
    """A value on its way to agreement: flooded along with gossip messages, ready after ``flood_rounds`` of them."""

    def __init__(self, value: Array, op: Op, rounds: int) -> None:
        self.value, self.op, self.rounds_left = value, op, rounds

    @property
    def ready(self) -> bool:
        return self.rounds_left <= 0


def reducer(op: Op) -> Any:
    """``numpy.minimum`` or ``numpy.maximum``; both carry NaN on."""
    if op not in ("min", "max"):
        raise InvalidInput(f"op = {op!r}: networks reduce with 'min' or 'max'")
    return np.minimum if op == "min" else np.maximum


def neutral(op: Op) -> float:
    """The infinity that decides nothing; who has no number to offer sends it. The other one is never sent."""
    return np.inf if op == "min" else -np.inf
