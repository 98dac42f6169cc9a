"""State that a mixer carries from one mix to the next; tracking algorithms store it in their State."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepca._util.typing import Array
from deepca.network.compression import Copies

__all__ = ["Memory", "PushSum", "mean_of", "of_new", "turned"]


@dataclass(frozen=True)
class PushSum:
    """Push-sum weights on a directed graph, mixed from ones in all rounds since x began.

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


def turned(memory: Memory | None) -> Memory | None:
    """Return the memory that remains valid after x was multiplied from the right: weights, but not copies."""
    return memory if isinstance(memory, PushSum) else None


def of_new(memory: Memory | None) -> Memory | None:
    """Return the memory that remains valid for another x than the one mixed before: copies, but not weights."""
    return None if isinstance(memory, PushSum) else memory
