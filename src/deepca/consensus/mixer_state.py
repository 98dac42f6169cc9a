"""What a mixer keeps from one mix to the next. It is part of the State of whoever tracks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepca._util.typing import Array
from deepca.network.compression import Copies

__all__ = ["Memory", "PushSum", "mean_of", "of_new", "turned"]


@dataclass(frozen=True)
class PushSum:
    """On a directed graph: the weight ``y_j`` of the local agents, mixed from ones in all rounds since x began.

    ``x_j / y_j`` tends to the mean where x_j itself tends to a multiple of it. The sum over all agents stays that of x,
    so it is x that is tracked, never the ratio.
    """

    y: Array
    """Positive, shape ``B``."""

    def __post_init__(self) -> None:
        self.y.flags.writeable = False


Memory = Copies | PushSum


def mean_of(x: Array, memory: Memory | None) -> Array:
    """What x ``(*B, …)`` says of the mean: x itself, or ``x / y`` on a directed graph."""
    if not isinstance(memory, PushSum):
        return x
    y = memory.y
    return np.asarray(x / y.reshape(y.shape + (1,) * (x.ndim - y.ndim)))


def turned(memory: Memory | None) -> Memory | None:
    """After x was multiplied from the right: weights are the same, copies are of other numbers now."""
    return memory if isinstance(memory, PushSum) else None


def of_new(memory: Memory | None) -> Memory | None:
    """For another x, not the one that was mixed before: copies are as good as before, weights begin again at one."""
    return None if isinstance(memory, PushSum) else memory
