"""Attempts at a certificate at the end of a run, and what follows from one that does not prove the tolerance."""

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
from deepca.operators.linalg import largest_positive, symmetric_part
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.certificate.certification import FAILURE, digest_of
from deepca.solver.certificate.certification import certify as fresh_certificate
from deepca.solver.deflation import as_given, rounding_beyond
from deepca.solver.ritz_axes import principal_axes
from deepca.solver.stopping import Agreed, StopRule, at_floor, error_estimate, more_iterations, rate
from deepca.solver.verdict import PRESENTABLE

__all__ = ["Proof", "ritz"]

S_ = TypeVar("S_", bound=State)
_REPAIRS = 3  # restarts of a tracking that fresh averages contradict


class Proof:
    """Attempts at a certificate, and what follows from one that does not prove the tolerance."""

    def __init__(self, algorithm: Algorithm[S_], stop: StopRule | None, last: int, first: int) -> None:
        self._algorithm, self._stop, self._last, self._first = algorithm, stop, last, first
        self._tol = stop.tol if stop is not None else PRESENTABLE
        self.attempts, self._repairs = 0, 0
        self._known: Certificate | None = None
        self.traffic = Traffic(agents=algorithm.network.traffic.agents)
        self.certificate: Certificate | None = None
        self.components: Array = np.empty(0)
        self.over, self.lost, self.stuck, self.more = False, False, False, 0
        self.beyond = math.inf  # bound on variances beyond the rank, where the rows have only rounding there
        self._residual = math.inf

    def forget(self, attempts: int) -> None:
        """The network changed, and with it what is averaged; so many attempts were made by whoever made the most."""
        self._known, self._residual, self.attempts = None, math.inf, attempts

    def attempt(self, recent: list[State], history: Sequence[Agreed]) -> None:
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
                tol=min(self._tol, 1e-13) if at_floor(history) else self._tol,  # at the floor, as sharp as can be
                accuracy=1.0 if self._stop is not None else _reached(history),
                gap=_gap(state, history),
                failure=FAILURE / 2.0**self.attempts,  # all attempts together stay below it
                products=max(40, (state.t - self._first) // 2),
                known=self._known,
            )
            if certificate.bound < certificate.eigenvalues[-1]:
                self._known = certificate
            self._decide(state, history, certificate)
            if self.over and certificate.averaging_ok:  # the same subspace, its axes to rounding
                self.components, theta, off = principal_axes(self._algorithm.A, self.components, network)
                off = off / certificate.scale if certificate.scale > 0.0 else 0.0
                # the A_j may be off by as much as for the residual, and averages without a tree by some more
                certificate = replace(
                    certificate,
                    eigenvalues=tuple(map(float, theta)),
                    residual=certificate.residual + off,
                    uncertainty=certificate.uncertainty + off,
                    coupling=certificate.uncertainty + 2.0 * off,
                    digest=digest_of(self.components),
                )
                if history and 0 < (rank := history[-1].rank) < certificate.k:
                    self.beyond = self._beyond(rank, theta, certificate)
        finally:
            self.traffic += network.traffic - before
        self.certificate = replace(certificate, traffic=self.traffic)

    def _beyond(self, rank: int, theta: Array, certificate: Certificate) -> float:
        """Bound eigenvalues beyond the rank: 0 where there can be none, inf where nobody can tell."""
        A, network = self._algorithm.A, self._algorithm.network
        if certificate.n_rows is not None and certificate.n_rows <= rank:
            return 0.0
        if not theta[rank:].any() and as_given(A, network):
            return 0.0
        return rounding_beyond(A, self.components[:, :rank], theta[:rank], network)

    def _decide(self, state: State, history: Sequence[Agreed], certificate: Certificate) -> None:
        done = certificate.proves(self._tol)
        # the columns that carry the data, too; where k = d, their axes are turned to rounding without iterating
        if history and 0 < history[-1].rank < certificate.k < len(self.components):
            done = done and certificate.leading(history[-1].rank) <= self._tol
        self.lost = certificate.drifted(self._tol) and not done
        # while the subspace still moves, what lies outside may yet come in
        settled = at_floor(history) or (self._stop is not None and self._stop.met(history))
        hopeless = (settled and not certificate.unique) or not certificate.averaging_ok
        self.over = self._stop is None or state.t >= self._last or done
        if self.lost and not self.over:
            self._repairs += 1
            self._known = None
            self.over = self._repairs > _REPAIRS
            return
        # no smaller than before, and rounding could explain it; where messages may get lost, averages are off by more
        rounding = 100.0 * certificate.noise
        if self._algorithm.network.reliable:
            rounding = max(rounding, 2.0 * certificate.uncertainty)
        self.stuck = certificate.residual > 0.5 * self._residual and certificate.residual <= rounding
        self._residual = certificate.residual
        self.over = self.over or hopeless or at_floor(history) or self.stuck
        if state.seen_gap is not None:  # no power iteration: faster than the gap would tell, and ever faster
            r, factor = min(rate(history), 0.9) if history else 0.9, certificate.worst_angle / self._tol
            longest = self._last
        elif certificate.resolved and certificate.others:
            r, factor = certificate.next_eigenvalue / certificate.eigenvalues[-1], certificate.worst_angle / self._tol
            longest = self._last
        else:  # no gap to be seen yet: look again when the residual is a thousandth, or after as long again
            r, factor, longest = rate(history) if history else 0.99, 1e3, max(state.t - self._first, 50)
        more = min(more_iterations(min(factor, 1.0 / self._tol), 0.9, r), longest)
        self.more = max(more, 2 ** (self.attempts - 1))


def _reached(history: Sequence[Agreed]) -> float:
    """How good the answer seems to be, at least."""
    return max(error_estimate(history), history[-1].disagreement, EPS) if history else 1.0


def _gap(state: State, history: Sequence[Agreed]) -> float:
    """A guess of the relative gap behind k, from the rate of convergence or from Ritz values."""
    if state.seen_gap is None and not history:
        return 0.1
    return min(max(1.0 - rate(history) if state.seen_gap is None else state.seen_gap, 1e-6), 0.5)


def ritz(before: State, state: State) -> tuple[Array, Array]:
    """Eigenvalues ``(*B, k)`` and principal components ``(*B, d, k)``, both by descending eigenvalue.

    S is the tracked ``A V``, V the basis of the step before, so ``VᵀS`` gives both without another round: with
    ``VᵀS = Q θ Qᵀ`` the components are ``V Q``, carried over into the newer subspace of W. The largest entry of each is
    positive.
    """
    W, V = state.W, state.multiplied(before.W)
    theta, Q = np.linalg.eigh(symmetric_part(np.swapaxes(V, -1, -2) @ state.estimate))
    left, _, right = np.linalg.svd(np.swapaxes(W, -1, -2) @ V @ Q[..., ::-1])
    return np.asarray(theta[..., ::-1]), largest_positive(W @ (left @ right))
