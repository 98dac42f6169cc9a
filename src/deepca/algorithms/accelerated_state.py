"""Define the state of accelerated DeEPCA and choose its edge and its number of columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from deepca._util.portable import exp, log
from deepca._util.typing import Array
from deepca.algorithms.base import TrackedState, chebyshev_growth
from deepca.consensus.mixer_state import after_rotation, mean_of

if TYPE_CHECKING:
    from deepca.solver.stopping import Agreed

__all__ = ["AcceleratedState"]

_MAX_DISAGREEMENT = 0.1  # above it, agent 0's Ritz values say little about those of other agents
_MIN_ITERATIONS = 3  # minimum number of iterations before columns are dropped, since QR sorts them first
_MAX_EDGE_CHANGE = 0.1  # largest relative change of the edge without a restart of momentum
_NEARLY_CONVERGED = 1e-3  # change of W below which columns that still move may be slowing it down
_MAX_RITZ_MOVE = 0.1  # largest change of a Ritz value, relative to a gap, that counts as steady
_MAX_WAIT = 30  # iterations with the same columns before those that still move count as slowing W down
_MAX_COST = 0.9  # largest cost, relative to that of the current columns, at which fewer columns are worth a change
_MAX_COST_EARLY = 0.5  # the same limit while W still changes much


@dataclass(frozen=True, kw_only=True)
class AcceleratedState(TrackedState):
    """State of the accelerated method: a block of s columns that converge together, and a guard column.

    Parameters
    ----------
    t : int
        Number of iterations completed.
    W : ndarray of shape (*B, d, k)
        Orthonormal bases of the answer.
    S : ndarray of shape (*B, d, k)
        ``T Y``, the tracked products of the Ritz vectors ``V = X Y``.
    AW : ndarray of shape (*B, d, k)
        ``A_j X_j Y``, the local products that S contains.
    K : int, default=0
        Number of rounds of the next mix if the mixer has ``rounds="auto"``; 0 for the mixer's first choice.
    memory : Memory, optional
        State of the mixer for compressed messages or directed graphs (:mod:`deepca.consensus.mixer_state`).
    X : ndarray of shape (*B, d, s+1)
        Orthonormal columns that are iterated.
    T : ndarray of shape (*B, d, s+1)
        Tracked ``A X`` of the previous step.
    AX : ndarray of shape (*B, d, s+1)
        Local products ``A_j X_j`` that T contains.
    past : ndarray of shape (*B, d, s+1)
        ``X^{t−1} (R^t)^{−1}``, to which momentum is applied.
    V : ndarray of shape (*B, d, k)
        Ritz vectors of the previous step, whose products are S and AW.
    theta : ndarray of shape (*B, s+1)
        Ritz values.
    axes : ndarray of shape (*B, s+1, s+1)
        Ritz vectors in terms of X.
    s : int
        Number of columns in the block, the same at every agent.
    a : float, default=0.0
        Upper end (edge) of the interval [0, a] in which eigenvalues are damped, the same at every agent.
    agreed : tuple of float, default=()
        Agent 0's Ritz values, as last received by all agents.
    asking : bool, default=False
        Whether agent 0 should also propose its axes to all agents; the same at every agent.
    since : int, default=0
        Iteration in which the number of columns last changed; the same at every agent.
    """

    X: Array
    T: Array
    AX: Array
    past: Array
    V: Array
    theta: Array
    axes: Array
    s: int
    a: float = 0.0
    agreed: tuple[float, ...] = ()
    asking: bool = False
    since: int = 0

    def multiplied_basis(self, before: Array) -> Array:
        """Return the Ritz vectors V, whose tracked product is S."""
        return self.V

    @property
    def excess(self) -> Array:
        """Tracked minus local product of all columns, ``T_j − A_j X_j``."""
        return self.T - self.AX

    @property
    def heterogeneity(self) -> Array:
        """Distance of local from tracked products of the block, ``‖T_j − A_j X_j‖ / σ_min(T_j)``, shape ``B``."""
        return _relative_distance(mean_of(self.T, self.memory)[..., : self.s], self.AX[..., : self.s])

    @property
    def estimated_gap(self) -> float | None:
        """Relative gap ``1 − θ_{k+1}/θ_k`` from agent 0's Ritz values; None before they are known."""
        k, theta = self.W.shape[-1], self.agreed
        return 1.0 - theta[k] / theta[k - 1] if len(theta) > k and theta[k - 1] > 0.0 else None

    @property
    def expected_log_decrease(self) -> float | None:
        """Log-growth of θ_k or θ_s per iteration relative to the edge, the smaller one; None before these are known."""
        if len(self.agreed) <= self.s:
            return None
        return min(
            chebyshev_growth(self.agreed[self.W.shape[-1] - 1], self.a),
            chebyshev_growth(self.agreed[self.s - 1], self.a),
        )

    def convergence_factor(self, inside: float, outside: Sequence[float]) -> float:
        """Return ``1/(ξ + √(ξ²−1))`` for the edge of the block, or for λ_{k+1} as long as no edge is set."""
        edge = min(self.a, outside[0]) if self.s > self.W.shape[-1] and self.a > 0.0 else outside[0]
        return exp(-chebyshev_growth(inside, edge))

    @property
    def proposal(self) -> Array:
        """Ritz values and, while ``asking``, axes that agent 0 proposes to all agents; empty without a guard column."""
        if not self.asking:
            return self.theta if self.s < self.theta.shape[-1] else self.theta[..., :0]
        return np.concatenate([self.theta, self.axes.reshape(*self.axes.shape[:-2], -1)], axis=-1)

    def with_proposal(self, values: Array, agreed: Agreed) -> Self:
        """Update the edge from agent 0's Ritz values, and drop columns if that lowers the estimated cost enough."""
        p = self.X.shape[-1]
        if agreed.t <= self.since:  # belongs to columns that have been replaced
            return self
        noise = agreed.disagreement * float(values[0])
        theta = tuple(map(float, np.maximum(values[:p], 0.0)))
        agree = agreed.disagreement <= _MAX_DISAGREEMENT
        state = self._with_edge(theta[self.s] if agree else 0.0, theta)
        s = self._best_columns(theta, noise, agreed)
        if s == self.s:
            return replace(state, asking=False)
        if values.size == p:
            return replace(state, asking=True)
        return state._rotated(values[p:].reshape(p, p)[:, : s + 1])

    def _best_columns(self, theta: tuple[float, ...], noise: float, agreed: Agreed) -> int:
        """Return the number of columns the block should have; the current number while too little is known."""
        k = self.W.shape[-1]
        if agreed.t < _MIN_ITERATIONS or self.s == k:
            return self.s
        late = agreed.t - self.since > _MAX_WAIT
        if agreed.disagreement > _MAX_DISAGREEMENT:  # agents that do not approach each other keep only k columns
            return k if late else self.s
        seen = tuple(max(value, noise) for value in theta)  # smaller values are noise
        costs = {s: _estimated_cost(seen, k, s, agreed.heterogeneity * theta[self.s - 1]) for s in range(k, self.s + 1)}
        best = min(costs, key=lambda s: costs[s])
        hidden_by_noise = theta[self.s - 1] <= noise
        needed = _MAX_COST if agreed.change <= _NEARLY_CONVERGED or late else _MAX_COST_EARLY
        steady = late or _is_steady(self.agreed, theta, k, best)
        return best if hidden_by_noise or (steady and costs[best] <= needed * costs[self.s]) else self.s

    def _with_edge(self, a: float, theta: tuple[float, ...]) -> Self:
        """Set the edge; if it changes much, restart momentum, since ``past`` then belongs to other polynomials."""
        restart = abs(a - self.a) > _MAX_EDGE_CHANGE * self.a
        return replace(self, agreed=theta, a=a, past=np.zeros_like(self.past) if restart else self.past)

    def _rotated(self, axes: Array) -> Self:
        """Express all columns in the same axes at every agent, which preserves ``mean T = mean A X``."""
        s = axes.shape[1] - 1
        other = replace(
            self,
            X=self.X @ axes,
            T=self.T @ axes,
            AX=self.AX @ axes,
            past=self.past @ axes,
            theta=self.theta[..., : s + 1],
            axes=np.zeros((*self.axes.shape[:-2], s + 1, s + 1)) + np.eye(s + 1),
            s=s,
            asking=False,
            since=self.t,
            memory=after_rotation(self.memory),
        )
        return other._with_edge(self.agreed[s] if self.a > 0.0 else 0.0, self.agreed[: s + 1])


def _relative_distance(T: Array, AX: Array) -> Array:
    """Return ``‖T_j − A_j X_j‖ / σ_min(T_j)``, shape ``B``, ignoring directions of zero length."""
    _, exponent = np.frexp(np.abs(T).max(axis=(-2, -1), initial=0.0))
    unit = np.ldexp(1.0, -exponent)[..., None, None]  # avoids overflow in squares of entries
    T, AX = T * unit, AX * unit
    sigma = np.sqrt(np.maximum(np.linalg.eigvalsh(np.swapaxes(T, -1, -2) @ T), 0.0))
    sigma = np.where(sigma > 1e-7 * sigma[..., -1:], sigma, sigma[..., -1:])  # smaller values are lost in the squares
    smallest, difference = sigma.min(axis=-1), np.linalg.norm(T - AX, axis=(-2, -1))
    return np.asarray(np.divide(difference, smallest, out=np.zeros_like(difference), where=smallest > 0.0))


def _estimated_cost(theta: tuple[float, ...], k: int, s: int, difference: float) -> float:
    """Estimate the cost of a block of s columns: iterations to 1e-10, times rounds, times the root of the columns.

    The error of the answer is the larger of two: that of the top k, which falls with θ_k relative to the edge, and what
    a moving block leaves in the tracking, which falls with θ_s relative to the edge and is smaller from the start.
    Rounds must make ``ρ_K difference/θ_s`` small, with ``difference`` the difference between agents
    (see :mod:`deepca.consensus.pacing`).
    """
    answer, block = chebyshev_growth(theta[k - 1], theta[s]), chebyshev_growth(theta[s - 1], theta[s])
    if min(answer, block) == 0.0:
        return math.inf
    rounds = max(log(5.0 * difference / theta[s - 1]), 1.0) if difference > 0.0 else 1.0
    return (max(log(1e10) / answer, log(1e8) / block) + 3.0) * rounds * math.sqrt(s + 1.0)


def _is_steady(before: tuple[float, ...], theta: tuple[float, ...], k: int, s: int) -> bool:
    """Return whether Ritz values move little compared with the gaps that decide s."""
    if len(before) != len(theta):
        return False
    moved = [abs(new - old) for new, old in zip(theta, before, strict=True)]
    return max(moved[s - 1], moved[s]) <= _MAX_RITZ_MOVE * (theta[s - 1] - theta[s]) and moved[
        k - 1
    ] <= _MAX_RITZ_MOVE * (theta[k - 1] - theta[s])
