"""Define what a mixer carries from one mix to the next; tracking algorithms store it in their State."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepca._util.typing import Array
from deepca.network.compression import Copies

__all__ = ["Memory", "PushSum", "after_rotation", "for_new_values", "mean_of"]


@dataclass(frozen=True)
class PushSum:
    """Push-sum weights on a directed graph: ones, mixed in every round in which x was mixed.

    Parameters
    ----------
    y : ndarray of shape B
        Positive weights ``y_j`` of the local agents.

    Notes
    -----
    ``x_j / y_j`` converges to the mean, while x_j itself converges to a multiple of it. Mixing preserves the sum of x
    over all agents, so x is tracked, never the ratio.
    """

    y: Array

    def __post_init__(self) -> None:
        """Make the weights read-only."""
        self.y.flags.writeable = False


Memory = Copies | PushSum


def mean_of(x: Array, memory: Memory | None) -> Array:
    """Return the local estimate of the mean of x ``(*B, …)``: x itself, or ``x / y`` on a directed graph."""
    if not isinstance(memory, PushSum):
        return x
    y = memory.y
    return np.asarray(x / y.reshape(y.shape + (1,) * (x.ndim - y.ndim)))


def after_rotation(memory: Memory | None) -> Memory | None:
    """Return the memory that remains valid after multiplying x from the right: weights, but not copies."""
    return memory if isinstance(memory, PushSum) else None


def for_new_values(memory: Memory | None) -> Memory | None:
    """Return the memory that remains valid when a new x is mixed: copies, but not weights."""
    return None if isinstance(memory, PushSum) else memory
