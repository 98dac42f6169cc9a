"""Accelerated DeEPCA: subspace tracking with momentum and guard columns, without parameters to tune."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from deepca._util.floats import SMALLEST
from deepca._util.typing import Array, Orthonormalise
from deepca._util.validation import NONE, Integer, check
from deepca.algorithms.accelerated_state import AcceleratedState
from deepca.algorithms.base import Decentralized, local_starts, orthonormal_basis
from deepca.consensus.broadcasts import checked_count, for_local_agents, packed
from deepca.consensus.mixer_state import mean_of
from deepca.consensus.mixers import Mixer, PositiveChebyshev, default_mixer
from deepca.consensus.pacing import MatchedRounds
from deepca.network.base import Network
from deepca.operators.base import OperatorLike
from deepca.operators.linalg import qr, symmetric_part

__all__ = ["AcceleratedDeEPCA", "AcceleratedState"]

_SEED = 2029  # seed of the first guard columns, the same at all agents
_MIN_GUARDS, _MAX_GUARDS = 5, 17  # limits of the default number of columns beyond k, which is k + 1 between them


class AcceleratedDeEPCA(Decentralized):
    """DeEPCA with Chebyshev iterations instead of power iterations, on a few more columns than k.

    Parameters
    ----------
    A : OperatorLike
        The ``A_j`` of the local agents, each ``(d, d)``; see :mod:`deepca.operators`.
    W0 : array_like of shape (d, k)
        Orthonormal start W⁰, the same at every agent.
    network : Network
        Network of the m agents. Arrays have shape ``(*B, d, ·)`` with ``B = network.batch``.
    mix : Mixer, optional
        Mixer; by default PositiveChebyshev, or Gossip on directed and time-varying graphs.
    orthonormalise : callable, optional
        Function ``S ↦ (W, R)`` with ``W R = S``; the default is that of :class:`~deepca.algorithms.deepca.DeEPCA`.
    guards : int, optional
        Number of columns beyond k at the start; by default k + 1, but at least 5 and at most 17.

    Raises
    ------
    ParameterError
        If ``guards`` is not a positive whole number.

    Notes
    -----
    The recurrence, with tracking as in Algorithm 1 of [1]_::

        T_j^{t+1} = T_j^t + A_j X_j^t − A_j X_j^{t−1}             subspace tracking
        T^{t+1}   = Mix(T^{t+1}, K)                               K rounds with neighbours
        X^{t+1} R^{t+1} = T^{t+1} − (a/2) X^t − (a²/16) X^{t−1} (R^t)^{−1}

    With ``X^t R^t ⋯ R^1 = p_t(A) X⁰`` the last line is the three-term recurrence of the Chebyshev polynomials of
    ``[0, a]`` [2]_: eigenvalues in that interval are damped, and an eigenvalue λ above it grows relative to them by
    ``ξ + √(ξ²−1)``, ``ξ = 2λ/a − 1``, per iteration. For λ_k = (1+g) a that is about 1 + 2√g, compared with 1 + g
    for the power method.

    *Invariant.* T is tracked exactly like S in DeEPCA, however X^{t+1} is computed, so ``mean T^{t+1} = mean A X^t``
    for every t. Momentum enters X only.

    *Columns.* X has s ≥ k columns that converge as one block, followed by one guard column. They are orthonormalised
    in this order, so the guard, which converges last, never disturbs the block. The answer is the top k of the block by
    Rayleigh–Ritz, ``W = orth(F Y)``, with F the first s columns of ``X^{t+1} R^{t+1}`` and ``X Y`` the top-k Ritz
    vectors: its error falls with ``a/λ_k``, and tracking of the block converges with ``a/λ_s``. If a gap follows λ_s,
    few iterations are needed.

    *Adaptation.* The edge is the guard's Ritz value ``a = θ_{s+1} ≤ λ_{s+1}``: any error makes it too small, which is
    safe. It is zero (plain power iterations) while agents are far apart. Momentum restarts whenever the edge changes by
    more than a tenth. All agents use agent 0's Ritz values, which are piggybacked on gossip (``State.proposal``). The
    iteration starts with all columns. Once the Ritz values are steady, the s with the lowest estimated cost is chosen,
    all agents rotate their columns by the same matrix, agent 0's Ritz vectors, and the columns after the guard are
    dropped.

    References
    ----------
    .. [1] H. Ye and T. Zhang, "DeEPCA: Decentralized Exact PCA with Linear Convergence Rate", Journal of Machine
       Learning Research 22 (2021).
    .. [2] Y. Saad, "Numerical Methods for Large Eigenvalue Problems", revised edition, SIAM (2011).
    """

    name = "accelerated DeEPCA"
    pacing = MatchedRounds

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
            mix = PositiveChebyshev() if network.topology.static_undirected else default_mixer(network.topology)
        super().__init__(A, W0, network, mix, orthonormalise)
        d, k = self.W0.shape
        check("guards", guards, Integer(1), NONE, meaning="columns beyond k")
        self._columns = min(k + (min(max(k + 1, _MIN_GUARDS), _MAX_GUARDS) if guards is None else guards), d)

    def init(self, W: npt.ArrayLike | None = None) -> AcceleratedState:
        """Return the state before the first step: W⁰ (or W) with random guard columns."""
        W = local_starts(self.W0, W, self.network)
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
        """Take one accelerated iteration.

        Parameters
        ----------
        state : AcceleratedState
            State at iteration t.

        Returns
        -------
        AcceleratedState
            State at iteration t + 1.
        """
        X, s, a, k = state.X, state.s, state.a, state.W.shape[-1]
        AX = self.A @ X
        T = state.T + AX - state.AX  # T_j^t + A_j X_j^t − A_j X_j^{t−1}
        T, memory = self.mix.mix(self.network, T, state.memory, state.t, state.K)  # Mix(T, K)
        M = mean_of(T, memory)  # T, or T/y on a directed graph
        H = symmetric_part(np.swapaxes(X, -1, -2) @ M)
        F = M - (a / 2.0) * X - (a / 4.0) * ((a / 4.0) * state.past)  # a² could overflow or underflow
        X_next, R = _nested(self.orthonormalise, F, s, state.t)  # X R = F
        theta, Q = np.linalg.eigh(H)
        Y = _leading(H[..., :s, :s], k)
        W, _ = orthonormal_basis(self.orthonormalise, F[..., :s] @ Y, state.t)
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
        """Restart tracking at the leader's X: ``T_j = Mix(A_j X)``, so ``mean T = mean A X`` by definition.

        All agents take the leader's X, since when the network changed, only some of them may have dropped columns.

        Parameters
        ----------
        state : AcceleratedState
            State before the network changed.
        rounds : int
            Rounds of this mix.

        Returns
        -------
        AcceleratedState
            State with the same t and W, without momentum.
        """
        d, k = self.W0.shape
        B = self.network.batch
        [columns] = self.network.from_leader(packed(state.X.shape[-1]))
        p = checked_count(self.network.leader, "a number of columns", columns, d)
        own = state.X if state.X.shape[-1] == p else np.zeros((*B, d, p))
        X = for_local_agents(self.network.broadcast(own), self.network)
        AX = self.A @ X
        T, memory = self.mix.with_rounds(rounds).mix(self.network, AX, None, state.t)
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
    """Return ``X R = F`` with orthonormal X whose first s columns depend on the first s columns of F only."""
    X, R = orthonormal_basis(orthonormalise, F[..., :s], t)
    if F.shape[-1] == s:
        return X, R
    Xt, G = np.swapaxes(X, -1, -2), F[..., s:]
    for _ in range(3):  # three passes, since a zero column is replaced by an arbitrary one
        G, _ = orthonormal_basis(orthonormalise, G - X @ (Xt @ G), t)
    X = np.concatenate([X, G], axis=-1)
    return X, np.swapaxes(X, -1, -2) @ F


def _leading(H: Array, k: int) -> Array:
    """Return the top-k eigenvectors of H ``(*B, s, s)``, rotated as close as possible to the first k unit vectors."""
    Q = np.linalg.eigh(H)[1][..., ::-1][..., :k]
    left, _, right = np.linalg.svd(Q[..., :k, :])
    return np.asarray(Q @ np.swapaxes(left @ right, -1, -2))


def _inverse(R: Array, min_sigma: float) -> Array:
    """Return ``R^{−1}``, with smaller singular values raised to ``min_sigma``.

    Once the iteration is under way, ``min_sigma`` is a lower bound on them, so nothing is raised.
    """
    left, sigma, right = np.linalg.svd(R)
    floor = np.maximum(min_sigma, SMALLEST + 1e-14 * sigma[..., :1])
    return np.asarray(np.swapaxes(right, -1, -2) @ (np.swapaxes(left, -1, -2) / np.maximum(sigma, floor)[..., None]))
