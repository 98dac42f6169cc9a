"""Average the matrices A_j themselves, which takes few rounds and yields the whole spectrum, but reveals them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.algorithms.base import ExactlyAveraged, State, local_starts
from deepca.consensus.broadcasts import for_local_agents
from deepca.consensus.exact import agree_on_units, exact_average_and_derive
from deepca.network.sums import Addend, Unit
from deepca.operators.linalg import top_eigenvectors

__all__ = ["CovarianceAveraging", "CovarianceState"]


@dataclass(frozen=True)
class CovarianceState(State):
    """State of covariance averaging.

    Parameters
    ----------
    t : int
        Number of iterations completed.
    W : ndarray of shape (*B, d, k)
        Top-k eigenvectors of A, one copy per local agent.
    S : ndarray of shape (*B, d, k)
        ``A W`` with the W of the previous step.
    A : ndarray of shape (d, d)
        Mean of all ``A_j``; shape (0, 0) before the first step and after a restart.
    gap : float, optional
        ``1 − λ_{k+1}/λ_k`` as computed by the leader; None while A is empty.
    """

    A: Array
    gap: float | None = None

    @property
    def estimated_gap(self) -> float | None:
        """Relative gap as computed by the leader."""
        return self.gap

    @property
    def is_shared(self) -> bool:
        """True: all agents compute W and S from the same A."""
        return True


class CovarianceAveraging(ExactlyAveraged):
    """Exact average of the matrices ``A_j``, and its top-k eigenvectors.

    Parameters
    ----------
    A : OperatorLike
        The ``A_j`` of the local agents, each ``(d, d)``; see :mod:`deepca.operators`.
    W0 : array_like of shape (d, k)
        Orthonormal start; only its shape influences the answer.
    network : Network
        Network of the m agents.

    Notes
    -----
    The method::

        A = ExactAverage(A_j)             d(d+1)/2 numbers, 2 · radius rounds
        W = top-k eigenvectors of A       computed locally, so the size of messages does not depend on k

    For small d no other method needs fewer rounds. But the ``A_j`` themselves are sent: the parent of a leaf of the
    spanning tree receives the leaf's covariance matrix unaltered, and every agent ends up with the covariance of all
    data. All other methods here send only products with a block of columns, so this one is never chosen automatically.
    """

    name = "covariance averaging"

    def init(self, W: npt.ArrayLike | None = None) -> CovarianceState:
        """Return the state before the first step.

        Parameters
        ----------
        W : array_like of shape (d, k) or (*B, d, k), optional
            Orthonormal start to use instead of W⁰.

        Returns
        -------
        CovarianceState
            The state at t = 0, without a mean.
        """
        W = local_starts(self.W0, W, self.network)
        return CovarianceState(0, W, np.zeros_like(W), np.empty((0, 0)))

    def step(self, state: CovarianceState) -> CovarianceState:
        """Average the ``A_j`` if that has not been done yet, and compute the eigenvectors of the mean.

        Parameters
        ----------
        state : CovarianceState
            State at iteration t.

        Returns
        -------
        CovarianceState
            State at iteration t + 1.
        """
        A, gap = (state.A, state.gap) if state.A.size else self._mean_and_gap()
        before = self.network.unbatched(state.W)
        U = top_eigenvectors(A, self.W0.shape[1])[1]
        return CovarianceState(state.t + 1, self._for_local_agents(U), self._for_local_agents(A @ before), A, gap)

    def restart(self, state: CovarianceState, rounds: int) -> CovarianceState:
        """Discard the mean, so that the next step averages the ``A_j`` of the changed network.

        Parameters
        ----------
        state : CovarianceState
            State before the network changed.
        rounds : int
            Not used: the number of rounds follows from the graph.

        Returns
        -------
        CovarianceState
            State with the same W and without a mean.
        """
        return CovarianceState(state.t, state.W, state.S, np.empty((0, 0)))

    def _mean_and_gap(self) -> tuple[Array, float]:
        """Return the mean, and the gap after λ_k as computed by the leader, since certificates need the same gap."""
        d, k = self.W0.shape
        rows, columns = np.triu_indices(d)

        def symmetric(mean: Array) -> Array:
            A = np.empty((d, d))
            A[rows, columns] = A[columns, rows] = mean
            return A

        def gap(mean: Array) -> Array:
            theta, _ = top_eigenvectors(symmetric(mean), min(k + 1, d))
            return np.array([1.0 - theta[k] / theta[k - 1] if k < d and theta[k - 1] > 0.0 else 1.0])

        local = (self.A @ for_local_agents(np.eye(d), self.network))[..., rows, columns]
        units, entries = agree_on_units(self.network, self.A), Addend("matrices", local, directions=d)
        if units.unit is not None and units.limits is not None:
            # an entry is bounded by the products with both unit vectors
            exponents, limits = np.broadcast_to(units.unit.exponent, d), units.limits
            unit = Unit(np.minimum(exponents[rows], exponents[columns]), units.unit.words)
            entries = replace(entries, unit=unit, limits=np.minimum(limits[..., rows], limits[..., columns]))
        mean, derived = exact_average_and_derive(self.network, [entries], gap, 1)
        return symmetric(mean), float(derived[0])
