"""The accelerated tracked method: DeEPCA with momentum and guard columns, and nothing to tune."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from deepca._util.floats import SMALLEST
from deepca._util.portable import exp, log
from deepca._util.typing import Array, Orthonormalise
from deepca._util.validation import NOTHING, Whole, check
from deepca.algorithms.base import Decentralized, TrackedState, basis, chebyshev_growth, spread
from deepca.consensus.mixer_state import mean_of, turned
from deepca.consensus.mixers import Mixer, PositiveChebyshev, averager
from deepca.consensus.pacing import Matched
from deepca.network.base import Network
from deepca.network.broadcasts import counted, everywhere, packed
from deepca.operators.base import OperatorLike
from deepca.operators.linalg import qr, symmetric_part

if TYPE_CHECKING:
    from deepca.solver.stopping import Agreed

__all__ = ["AcceleratedDeEPCA", "AcceleratedState"]

_SEED = 2029
_FEWEST, _MOST = 5, 17  # guard columns by default: k + 1, but no fewer and no more than this
_TOGETHER = 0.1  # disagreement below which what agent 0 sees is what there is to see
_SETTLED = 3  # iterations after which columns are no longer sorted anew
_CHANGED = 0.1  # of the edge: a change after which momentum begins anew
_CLOSE = 1e-3  # change of the answer from which on columns that still move could hold it back
_STEADY = 0.1  # of a gap: by how much Ritz values may still move
_PATIENCE = 30  # iterations after which columns that still move are what holds the answer back
_WORTH, _WORTH_AT_ONCE = 0.9, 0.5  # of what it costs now: what another split must cost, to be worth changing to


@dataclass(frozen=True, kw_only=True)
class AcceleratedState(TrackedState):
    """A State with all columns that are iterated: s that converge as one block, and a guard.

    X : orthonormal ``(*B, d, s+1)``.  T : tracked ``A X`` of the step before, AX : the ``A_j X_j`` that it contains.
    past : ``X^{t−1} (R^t)^{−1}``, what momentum is applied to.  V : ``(*B, d, k)``, the Ritz vectors of the step
    before; S and AW are their products.  theta : Ritz values ``(*B, s+1)``.  axes : their vectors in terms of X.

    The same at every agent: s, and
    a : the edge; eigenvalues below it are damped.  agreed : agent 0's Ritz values, as far as all know of them.
    asking : whether its axes shall be agreed, too.  since : iteration in which the number of columns last changed.
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

    def multiplied(self, before: Array) -> Array:
        return self.V

    @property
    def excess(self) -> Array:
        return self.T - self.AX

    @property
    def heterogeneity(self) -> Array:
        return _difference(mean_of(self.T, self.memory)[..., : self.s], self.AX[..., : self.s])

    @property
    def seen_gap(self) -> float | None:
        k, theta = self.W.shape[-1], self.agreed
        return 1.0 - theta[k] / theta[k - 1] if len(theta) > k and theta[k - 1] > 0.0 else None

    @property
    def expected(self) -> float | None:
        if len(self.agreed) <= self.s:
            return None
        return min(
            chebyshev_growth(self.agreed[self.W.shape[-1] - 1], self.a),
            chebyshev_growth(self.agreed[self.s - 1], self.a),
        )

    def shrinks_by(self, inside: float, outside: Sequence[float]) -> float:
        """Return ``1/(ξ + √(ξ²−1))``: what lies beyond the block decides, or beyond k where there is no edge yet."""
        edge = min(self.a, outside[0]) if self.s > self.W.shape[-1] and self.a > 0.0 else outside[0]
        return exp(-chebyshev_growth(inside, edge))

    @property
    def proposal(self) -> Array:
        """Ritz values and, where wanted, their axes; agent 0's become known to all. Nothing where there is no guard."""
        if not self.asking:
            return self.theta if self.s < self.theta.shape[-1] else self.theta[..., :0]
        return np.concatenate([self.theta, self.axes.reshape(*self.axes.shape[:-2], -1)], axis=-1)

    def advised(self, values: Array, agreed: Agreed) -> Self:
        """What follows from agent 0's proposal: another edge, and perhaps fewer columns."""
        p = self.X.shape[-1]
        if agreed.t <= self.since:  # of other columns
            return self
        noise = agreed.disagreement * float(values[0])
        theta = tuple(map(float, np.maximum(values[:p], 0.0)))
        together = agreed.disagreement <= _TOGETHER
        state = self._with_edge(theta[self.s] if together else 0.0, theta)
        s = self._fitting(theta, noise, agreed)
        if s == self.s:
            return replace(state, asking=False)
        if values.size == p:
            return replace(state, asking=True)
        return state._turned(values[p:].reshape(p, p)[:, : s + 1])

    def _fitting(self, theta: tuple[float, ...], noise: float, agreed: Agreed) -> int:
        """How many columns the block should have: as many as now, while too little is known to say."""
        k = self.W.shape[-1]
        if agreed.t < _SETTLED or self.s == k:
            return self.s
        late = agreed.t - self.since > _PATIENCE
        if agreed.disagreement > _TOGETHER:  # as few as can be, where agents do not come together
            return k if late else self.s
        seen = tuple(max(value, noise) for value in theta)  # smaller ones are not told from zero, nor from each other
        costs = {s: _cost(seen, k, s, agreed.heterogeneity * theta[self.s - 1]) for s in range(k, self.s + 1)}
        best = min(costs, key=lambda s: costs[s])
        drowned = theta[self.s - 1] <= noise
        needed = _WORTH if agreed.change <= _CLOSE or late else _WORTH_AT_ONCE
        steady = late or _steady(self.agreed, theta, k, best)
        return best if drowned or (steady and costs[best] <= needed * costs[self.s]) else self.s

    def _with_edge(self, a: float, theta: tuple[float, ...]) -> Self:
        """Where the edge changes much, momentum begins anew: the past belongs to other polynomials."""
        anew = abs(a - self.a) > _CHANGED * self.a
        return replace(self, agreed=theta, a=a, past=np.zeros_like(self.past) if anew else self.past)

    def _turned(self, axes: Array) -> Self:
        """All columns expressed in the same axes at every agent, so that mean T = mean A X stays."""
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
            memory=turned(self.memory),
        )
        return other._with_edge(self.agreed[s] if self.a > 0.0 else 0.0, self.agreed[: s + 1])


class AcceleratedDeEPCA(Decentralized):
    """DeEPCA whose power iterations are Chebyshev iterations, on a few columns more than are wanted::

        T_j^{t+1} = T_j^t + A_j X_j^t − A_j X_j^{t−1}             subspace tracking, as in Algorithm 1
        T^{t+1}   = Mix(T^{t+1}, K)                               K rounds with neighbours
        X^{t+1} R^{t+1} = T^{t+1} − (a/2) X^t − (a²/16) X^{t−1} (R^t)^{−1}

    With ``X^t R^t ⋯ R^1 = p_t(A) X⁰`` the last line is the three-term recurrence of the Chebyshev polynomials of
    ``[0, a]``: what lies there is damped, and an eigenvalue λ above grows by ``ξ + √(ξ²−1)``, ``ξ = 2λ/a − 1``, per
    iteration, relative to it. For λ_k = (1+g) a that is 1 + 2√g where the power method has 1 + g.

    *The invariant.* T is tracked exactly as S in DeEPCA, whatever X^{t+1} is made of, so ``mean T^{t+1} = mean A X^t``
    for every t. Momentum enters X alone.

    *Columns.* X has s ≥ k columns that converge as one block, and one guard behind them, orthonormalised in this order,
    so that the guard, which is last to settle, never disturbs the block. The answer is the top k of the block by
    Rayleigh–Ritz, ``W = orth((…) V)`` with V the Ritz vectors: its error falls with ``a/λ_k``, and the tracking of the
    block settles with ``a/λ_s``. With s chosen such that a gap lies behind it, few iterations are needed.

    *Online.* The edge is the guard's Ritz value ``a = θ_{s+1} ≤ λ_{s+1}``: too small where it is wrong, and so safe;
    zero (plain power iterations) while agents are far apart. Where it changes by a tenth, momentum begins anew. All
    agents use agent 0's Ritz values, which ride along with gossip to everyone (State.proposal). Iterations start with
    all columns; once the Ritz values are steady, that s is taken which promises the fewest rounds and bytes, all agents
    turn to agent 0's Ritz vectors, the same matrix for everyone, and columns behind the guard are dropped.

    Parameters
    ----------
    A, W0, network, mix, orthonormalise : see :class:`~deepca.algorithms.base.Decentralized`; the default
        mixer is PositiveChebyshev here, and Gossip on graphs that are directed or change.
    guards : columns to begin with beyond k; by default k + 1, but at least 5 and at most 17.
    """

    name = "accelerated DeEPCA"
    pacing = Matched

    def __init__(
        self,
        A: OperatorLike,
        W0: npt.ArrayLike,
        network: Network,
        mix: Mixer | None = None,
        orthonormalise: Orthonormalise | None = None,
        *,
        guards: int | None = None,
    ) -> None:
        if mix is None:
            mix = PositiveChebyshev() if network.topology.stays else averager(network.topology)
        super().__init__(A, W0, network, mix, orthonormalise)
        d, k = self.W0.shape
        check("guards", guards, Whole(1), NOTHING, meaning="columns beyond k")
        self._columns = min(k + (min(max(k + 1, _FEWEST), _MOST) if guards is None else guards), d)

    def init(self, W: npt.ArrayLike | None = None) -> AcceleratedState:
        W = spread(self.W0, W, self.network)
        d, k = self.W0.shape
        p, B = self._columns, self.network.batch
        more = np.random.default_rng(_SEED).standard_normal((d, p - k))
        X, _ = _nested(None, np.concatenate([W, np.zeros((*B, d, p - k)) + more], axis=-1), k, 0)
        none, zero = np.zeros_like(X), np.zeros_like(W)
        theta, axes = np.zeros((*B, p)), np.zeros((*B, p, p)) + np.eye(p)
        return AcceleratedState(
            0, W, zero, zero, X=X, T=none, AX=none, past=none, V=W, theta=theta, axes=axes, s=max(p - 1, k)
        )

    def step(self, state: AcceleratedState) -> AcceleratedState:
        X, s, a, k = state.X, state.s, state.a, state.W.shape[-1]
        AX = self.A @ X
        T = state.T + AX - state.AX  # T_j^t + A_j X_j^t − A_j X_j^{t−1}
        T, memory = self.mix.remember(self.network, T, state.memory, state.t, state.K)  # Mix(T, K)
        M = mean_of(T, memory)  # T, or T/y on a directed graph
        H = symmetric_part(np.swapaxes(X, -1, -2) @ M)
        F = M - (a / 2.0) * X - (a / 4.0) * ((a / 4.0) * state.past)  # a² may not fit where a does
        X_next, R = _nested(self.orthonormalise, F, s, state.t)  # X R = F
        theta, Q = np.linalg.eigh(H)
        Y = _leading(H[..., :s, :s], k)
        W, _ = basis(self.orthonormalise, F[..., :s] @ Y, state.t)
        return AcceleratedState(
            state.t + 1,
            W,
            T[..., :s] @ Y,
            AX[..., :s] @ Y,
            state.K,
            memory,
            X=X_next,
            T=T,
            AX=AX,
            past=X @ _inverse(R, a / 4.0),
            V=X[..., :s] @ Y,
            theta=theta[..., ::-1],
            axes=qr(R @ Q[..., ::-1])[0],
            s=s,
            a=a,
            agreed=state.agreed,
            asking=state.asking,
            since=state.since,
        )

    def restart(self, state: AcceleratedState, rounds: int) -> AcceleratedState:
        """Tracking begins again at the leader's X: ``T_j = Mix(A_j X)``, so mean T = mean A X by definition.

        One agent's X for all, since some may have dropped columns that others still had when the network changed.
        """
        d, k = self.W0.shape
        B = self.network.batch
        [told] = self.network.from_leader(packed(state.X.shape[-1]))
        p = counted(self.network.leader, "a number of columns", told, d)
        own = state.X if state.X.shape[-1] == p else np.zeros((*B, d, p))
        X = everywhere(self.network.broadcast(own), self.network)
        AX = self.A @ X
        T, memory = self.mix.with_rounds(rounds).remember(self.network, AX, None, state.t)
        return replace(
            state,
            X=X,
            T=T,
            AX=AX,
            past=np.zeros_like(AX),
            theta=np.zeros((*B, p)),
            axes=np.zeros((*B, p, p)) + np.eye(p),
            s=max(p - 1, k),
            a=0.0,
            agreed=(),
            asking=False,
            since=state.t,
            memory=memory,
        )


def _nested(orthonormalise: Orthonormalise | None, F: Array, s: int, t: int) -> tuple[Array, Array]:
    """``X R = F`` with orthonormal X, whose first s columns are made of the first s columns of F alone."""
    X, R = basis(orthonormalise, F[..., :s], t)
    if F.shape[-1] == s:
        return X, R
    Xt, G = np.swapaxes(X, -1, -2), F[..., s:]
    for _ in range(3):  # a third time since a column without direction is filled with an arbitrary one
        G, _ = basis(orthonormalise, G - X @ (Xt @ G), t)
    X = np.concatenate([X, G], axis=-1)
    return X, np.swapaxes(X, -1, -2) @ F


def _leading(H: Array, k: int) -> Array:
    """The top-k eigenvectors of H ``(*B, s, s)``, turned to lie as close to the first k coordinates as they can."""
    Q = np.linalg.eigh(H)[1][..., ::-1][..., :k]
    left, _, right = np.linalg.svd(Q[..., :k, :])
    return np.asarray(Q @ np.swapaxes(left @ right, -1, -2))


def _inverse(R: Array, least: float) -> Array:
    """``R^{−1}``, with singular values raised to ``least``, below which none lies once iterations are under way."""
    left, sigma, right = np.linalg.svd(R)
    floor = np.maximum(least, SMALLEST + 1e-14 * sigma[..., :1])
    return np.asarray(np.swapaxes(right, -1, -2) @ (np.swapaxes(left, -1, -2) / np.maximum(sigma, floor)[..., None]))


def _difference(T: Array, AX: Array) -> Array:
    """``‖T_j − A_j X_j‖ / σ_min(T_j)``, shape ``B``; directions without length do not count."""
    _, exponent = np.frexp(np.abs(T).max(axis=(-2, -1), initial=0.0))
    unit = np.ldexp(1.0, -exponent)[..., None, None]  # squares of entries may not fit where entries do
    T, AX = T * unit, AX * unit
    sigma = np.sqrt(np.maximum(np.linalg.eigvalsh(np.swapaxes(T, -1, -2) @ T), 0.0))
    sigma = np.where(sigma > 1e-7 * sigma[..., -1:], sigma, sigma[..., -1:])  # squares tell no smaller ones
    least, apart = sigma.min(axis=-1), np.linalg.norm(T - AX, axis=(-2, -1))
    return np.asarray(np.divide(apart, least, out=np.zeros_like(apart), where=least > 0.0))


def _cost(theta: tuple[float, ...], k: int, s: int, apart: float) -> float:
    """Of s columns in the block, from Ritz values: iterations to 1e-10, times rounds, times the root of the columns.

    The error in the answer is that of the top k, which falls with θ_k against the edge, or what a block that still
    moves leaves in the tracking, which falls with θ_s against the edge and is smaller from the start. Rounds have to
    make ρ_K ``apart``/θ_s small, apart : by how much agents differ (see :mod:`deepca.consensus.pacing`).
    """
    answer, block = chebyshev_growth(theta[k - 1], theta[s]), chebyshev_growth(theta[s - 1], theta[s])
    if min(answer, block) == 0.0:
        return math.inf
    rounds = max(log(5.0 * apart / theta[s - 1]), 1.0) if apart > 0.0 else 1.0
    return (max(log(1e10) / answer, log(1e8) / block) + 3.0) * rounds * math.sqrt(s + 1.0)


def _steady(before: tuple[float, ...], theta: tuple[float, ...], k: int, s: int) -> bool:
    """Whether Ritz values move by little, compared with the gaps that decide about s."""
    if len(before) != len(theta):
        return False
    moved = [abs(new - old) for new, old in zip(theta, before, strict=True)]
    return max(moved[s - 1], moved[s]) <= _STEADY * (theta[s - 1] - theta[s]) and moved[k - 1] <= _STEADY * (
        theta[k - 1] - theta[s]
    )
