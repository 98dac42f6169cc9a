"""Averaging the matrices themselves: all of the spectrum at once, in a handful of rounds, and with nothing hidden."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.algorithms.base import OverExactAverages, State, spread
from deepca.consensus.exact import exact_average_then
from deepca.network.broadcasts import everywhere
from deepca.operators.linalg import top_eigenvectors

__all__ = ["CovarianceAveraging", "CovarianceState"]


@dataclass(frozen=True)
class CovarianceState(State):
    """A State with ``A``, the mean of all ``A_j``, ``(d, d)``; empty before the first step.  gap : as for Krylov."""

    A: Array
    gap: float | None = None

    @property
    def seen_gap(self) -> float | None:
        return self.gap


class CovarianceAveraging(OverExactAverages):
    """The mean matrix, averaged once, and its eigenvectors::

        A = ExactAverage(A_j)             d(d+1)/2 numbers, 2 · radius rounds
        W = top-k eigenvectors of A       at home; k does not matter to what is sent

    For small d nothing needs fewer rounds. But the A_j themselves travel: the neighbour up the tree receives an agent's
    covariance matrix as it is, and every agent ends with the covariance of all data. No other method here sends more
    than products with k columns, so this one is never chosen unless asked for by name.

    Parameters: A, W0 and network as for :class:`~deepca.algorithms.base.Decentralized`; W0 only says how many.
    """

    name = "covariance averaging"

    def init(self, W: npt.ArrayLike | None = None) -> CovarianceState:
        W = spread(self.W0, W, self.network)
        return CovarianceState(0, W, np.zeros_like(W), np.empty((0, 0)))

    def step(self, state: CovarianceState) -> CovarianceState:
        A, gap = (state.A, state.gap) if state.A.size else self._mean()
        before = self.network.common(state.W)
        U = top_eigenvectors(A, self.W0.shape[1])[1]
        return CovarianceState(state.t + 1, self._at_all(U), self._at_all(A @ before), A, gap)

    def restart(self, state: CovarianceState, rounds: int) -> CovarianceState:
        """The network changed, and with it the mean: it is averaged anew."""
        return CovarianceState(state.t, state.W, state.S, np.empty((0, 0)))

    def _mean(self) -> tuple[Array, float]:
        """The mean, and the gap behind k as the leader sees it, on which a certificate's averages depend."""
        d, k = self.W0.shape
        rows, columns = np.triu_indices(d)

        def whole(mean: Array) -> Array:
            A = np.empty((d, d))
            A[rows, columns] = A[columns, rows] = mean
            return A

        def gap(mean: Array) -> Array:
            theta, _ = top_eigenvectors(whole(mean), min(k + 1, d))
            return np.array([1.0 - theta[k] / theta[k - 1] if k < d and theta[k - 1] > 0.0 else 1.0])

        local = (self.A @ everywhere(np.eye(d), self.network))[..., rows, columns]
        mean, told = exact_average_then(self.network, local, gap, 1)
        return whole(mean), float(told[0])
