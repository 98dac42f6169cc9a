"""Attempt to certify the answer at the end of a run, and decide how to continue if the tolerance is not proven."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.algorithms.base import Algorithm, State
from deepca.network.traffic import Traffic
from deepca.operators.linalg import flip_signs, symmetric_part
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.certificate.certification import FAILURE_PROBABILITY, digest_of
from deepca.solver.certificate.certification import certify as fresh_certificate
from deepca.solver.deflation import annihilate, bound_beyond_rank
from deepca.solver.ritz_axes import principal_axes
from deepca.solver.stopping import Agreed, StopRule, at_floor, error_estimate, more_iterations, rate
from deepca.solver.verdict import DEFAULT_TOL

__all__ = ["Certifier", "ritz"]

S_ = TypeVar("S_", bound=State)
_MAX_REPAIRS = 3  # maximum number of restarts of tracking because fresh averages showed a drift


class Certifier:
    """Attempt to prove the answer of a run, and decide after each attempt how to continue.

    Attributes
    ----------
    attempts : int
        Number of attempts so far.
    traffic : Traffic
        Traffic of all attempts.
    certificate : Certificate or None
        The latest certificate; None before the first.
    components : ndarray of shape (d, k)
        The components that it certifies.
    over : bool
        Whether the run is over.
    lost : bool
        Whether tracking has drifted and must be restarted.
    stuck : bool
        Whether the residual no longer falls because it consists of rounding.
    more : int
        Number of iterations before the next attempt.
    beyond : float
        Bound on the eigenvalues beyond the rank; inf if unknown.
    """

    def __init__(self, algorithm: Algorithm[S_], stop: StopRule | None, last: int, first: int) -> None:
        self._algorithm, self._stop, self._last, self._first = algorithm, stop, last, first
        self._tol = stop.tol if stop is not None else DEFAULT_TOL
        self.attempts, self._repairs = 0, 0
        self._previous: Certificate | None = None
        self.traffic = Traffic(agents=algorithm.network.traffic.agents)
        self.certificate: Certificate | None = None
        self.components: Array = np.empty(0)
        self.over, self.lost, self.stuck, self.more = False, False, False, 0
        self.beyond = math.inf
        self._residual = math.inf

    def forget(self, attempts: int) -> None:
        """Discard what depended on the network before it changed; ``attempts`` is the largest count of any agent."""
        self._previous, self._residual, self.attempts = None, math.inf, attempts

    def attempt(self, recent: list[State], history: Sequence[Agreed]) -> None:
        """Certify the latest state and decide whether the run is over."""
        network, state = self._algorithm.network, recent[-1]
        before = network.traffic
        self.attempts += 1
        network.begin(network.epoch, state.t, "certificate")
        try:
            _, own = ritz(recent[-2] if len(recent) > 1 else state, state)
            certificate, self.components = fresh_certificate(
                self._algorithm.A,
                own,
                network,
                W=state.W,
                tracked=state.excess,
                tol=min(self._tol, 1e-13) if at_floor(history) else self._tol,  # at the floor, prove what is possible
                accuracy=1.0 if self._stop is not None else _reached(history),
                gap=_gap(state, history),
                # the probabilities of all attempts add up to less than FAILURE_PROBABILITY
                failure_probability=FAILURE_PROBABILITY / 2.0**self.attempts,
                max_products=max(40, (state.t - self._first) // 2),
                previous=self._previous,
                shared=state.is_shared,
            )
            if certificate.bound < certificate.eigenvalues[-1]:
                self._previous = certificate
            self._decide(state, history, certificate)
            if self.over and certificate.averaging_ok:  # refine the axes of the same subspace to rounding
                self.components, theta, error = principal_axes(self._algorithm.A, self.components, network)
                error = error / certificate.scale if certificate.scale > 0.0 else 0.0
                # the uncertainty of the A_j applies here too; averages without a tree add their error
                certificate = replace(
                    certificate,
                    eigenvalues=tuple(map(float, theta)),
                    residual=certificate.residual + error,
                    uncertainty=certificate.uncertainty + error,
                    coupling=certificate.uncertainty + 2.0 * error,
                    digest=digest_of(self.components),
                )
                if history and 0 < (rank := history[-1].rank) < certificate.k:
                    self.beyond = self._bound_beyond_rank(rank, theta, certificate)
        finally:
            self.traffic += network.traffic - before
        self.certificate = replace(certificate, traffic=self.traffic)

    def _bound_beyond_rank(self, rank: int, theta: Array, certificate: Certificate) -> float:
        """Return a bound on the eigenvalues beyond the rank: 0 if there can be none, inf if none is known."""
        A, network = self._algorithm.A, self._algorithm.network
        if certificate.n_rows is not None and certificate.n_rows <= rank:
            return 0.0
        if annihilate(A, self.components[:, rank:], network):
            return 0.0
        return bound_beyond_rank(A, self.components[:, :rank], theta[:rank], network)

    def _decide(self, state: State, history: Sequence[Agreed], certificate: Certificate) -> None:
        """Decide whether the run is over or tracking must restart, and after how many iterations to try again."""
        done = certificate.proves(self._tol)
        # the columns within the rank must be proven, too; if k = d, their axes are refined later, without iterating
        if history and 0 < history[-1].rank < certificate.k < len(self.components):
            done = done and certificate.leading(history[-1].rank) <= self._tol
        self.lost = certificate.drifted(self._tol) and not done
        # while the subspace still moves, eigenvectors outside may still enter it
        settled = at_floor(history) or (self._stop is not None and self._stop.met(history))
        hopeless = (settled and not certificate.unique) or not certificate.averaging_ok
        self.over = self._stop is None or state.t >= self._last or done
        if self.lost and not self.over:
            self._repairs += 1
            self._previous = None
            self.over = self._repairs > _MAX_REPAIRS
            return
        # the residual no longer falls and rounding explains it; on unreliable networks averages have larger errors
        rounding = 100.0 * certificate.noise
        if self._algorithm.network.reliable:
            rounding = max(rounding, 2.0 * certificate.uncertainty)
        self.stuck = certificate.residual > 0.5 * self._residual and certificate.residual <= rounding
        self._residual = certificate.residual
        self.over = self.over or hopeless or at_floor(history) or self.stuck
        if state.estimated_gap is not None:  # the method converges faster than power iterations, and accelerates
            r, factor = min(rate(history), 0.9) if history else 0.9, certificate.worst_angle / self._tol
            longest = self._last
        elif certificate.resolved and certificate.others:
            r, factor = certificate.next_eigenvalue / certificate.eigenvalues[-1], certificate.worst_angle / self._tol
            longest = self._last
        else:  # no gap seen yet: retry when the residual has fallen to a thousandth, or after as many iterations again
            r, factor, longest = rate(history) if history else 0.99, 1e3, max(state.t - self._first, 50)
        more = min(more_iterations(min(factor, 1.0 / self._tol), 0.9, r), longest)
        self.more = max(more, 2 ** (self.attempts - 1))


def _reached(history: Sequence[Agreed]) -> float:
    """Return the estimated error of the answer, or the disagreement or rounding if that is larger."""
    return max(error_estimate(history), history[-1].disagreement, EPS) if history else 1.0


def _gap(state: State, history: Sequence[Agreed]) -> float:
    """Guess the relative gap after k from the rate of convergence, or from Ritz values."""
    if state.estimated_gap is None and not history:
        return 0.1
    return min(max(1.0 - rate(history) if state.estimated_gap is None else state.estimated_gap, 1e-6), 0.5)


def ritz(before: State, state: State) -> tuple[Array, Array]:
    """Return eigenvalues ``(*B, k)`` and principal components ``(*B, d, k)``, both by descending eigenvalue.

    Notes
    -----
    S is the tracked ``A V`` with V the basis of the previous step, so ``VᵀS`` gives both without another round: with
    ``VᵀS = Q θ Qᵀ`` the components are ``V Q``, rotated into the newer subspace of W. The entry of largest
    absolute value of each is positive.
    """
    W, V = state.W, state.multiplied_basis(before.W)
    theta, Q = np.linalg.eigh(symmetric_part(np.swapaxes(V, -1, -2) @ state.estimate))
    left, _, right = np.linalg.svd(np.swapaxes(W, -1, -2) @ V @ Q[..., ::-1])
    return np.asarray(theta[..., ::-1]), flip_signs(W @ (left @ right))
