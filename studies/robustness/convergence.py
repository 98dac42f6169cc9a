"""Count the iterations after which a run reaches an accuracy and stays within it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from deepca._util.machine import one_blas_thread
from deepca._util.typing import Array
from deepca.algorithms.base import Algorithm
from deepca.errors import NotFiniteError
from deepca.operators.linalg import polar, tan_theta

__all__ = ["Settled", "centralised", "decentralised", "settle"]


@dataclass(frozen=True)
class Settled:
    """Result of following a run.

    Parameters
    ----------
    iterations : int or None
        Iterations after which the error stayed within the accuracy; None if it did not.
    error : float or None
        Error at the end; None if it is not finite.
    """

    iterations: int | None
    error: float | None


def settle(errors: Iterator[float], accuracy: float, limit: int) -> Settled:
    """Follow the errors until they stay within ``accuracy``; give up if they have not reached it by ``limit``.

    An error stays within the accuracy if it does so for a fifth more iterations, and for at least twenty.
    """
    reached, error = None, np.inf
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        try:
            for t in count(1):
                error = next(errors)
                if not error <= accuracy:
                    reached = None
                elif reached is None:
                    reached = t
                if (t >= limit) if reached is None else (t >= reached + max(20, reached // 5)):
                    break
        except NotFiniteError:
            reached, error = None, np.inf
    return Settled(reached, error if np.isfinite(error) else None)


def decentralised(algorithm: Algorithm[Any], U: Array) -> Iterator[float]:
    """Yield tan θ of the worst agent after every iteration."""
    state = algorithm.init()
    while True:
        state = algorithm.step(state)
        yield float(tan_theta(U, state.W).max())


def centralised(A: Array, W0: Array, U: Array) -> Iterator[float]:
    """Yield tan θ after every iteration of the power method on the pooled matrix."""
    W = W0
    while True:
        W, _ = polar(A @ W)
        yield float(tan_theta(U, W))
