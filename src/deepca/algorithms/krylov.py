"""Block Krylov iterations with exactly averaged products: few products, each averaged to rounding error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.portable import exp
from deepca._util.typing import Array
from deepca._util.validation import NONE, Integer, check
from deepca.algorithms.base import ExactlyAveraged, State, chebyshev_growth, local_starts
from deepca.consensus.broadcasts import (
    SEMIORTHOGONALITY_TOLERANCE,
    check_basis,
    check_close,
    for_local_agents,
    packed,
    unpacked,
)
from deepca.consensus.exact import ProductUnits, agree_on_units, check_symmetric, exact_average_and_derive
from deepca.network.base import Network
from deepca.operators.base import OperatorLike
from deepca.operators.linalg import orthonormal_part, project_out, symmetric_part

__all__ = ["BlockKrylov", "KrylovState"]

_MIN_GUARDS = 2  # minimum number of columns beyond k by default, so that a λ_{k+1} close to λ_k is resolved
_MIN_COLUMNS = 4  # minimum number of columns of a block: the latency of a round outweighs a few more columns
_MAX_BLOCKS = 12  # maximum number of blocks in Q before a thick restart, to limit memory and the cost of Rayleigh–Ritz
_SEED = 2027  # seed of random columns, the same at all agents


@dataclass(frozen=True)
class KrylovState(State):
    """State of block Krylov iterations: the search space, and the next block.

    Parameters
    ----------
    t : int
        Number of iterations completed.
    W : ndarray of shape (*B, d, k)
        Top-k Ritz vectors, one copy per local agent.
    S : ndarray of shape (*B, d, k)
        ``A W`` with the W of the previous step.
    Q : ndarray of shape (d, s)
        Orthonormal basis of the search space, the same at every agent up to rounding.
    AQ : ndarray of shape (d, s)
        The exact average ``A Q``.
    P : ndarray of shape (d, p)
        The next block, bitwise the same at every agent; the leader broadcasts the first block before it is used.
    gap : float, default=0.1
        ``1 − θ_{k+1}/θ_k`` as computed by the leader.
    """

    Q: Array
    AQ: Array
    P: Array
    gap: float = 0.1

    @property
    def estimated_gap(self) -> float:
        """Relative gap as computed by the leader."""
        return self.gap

    def convergence_factor(self, inside: float, outside: Sequence[float]) -> float:
        """Return ``1/(ξ + √(ξ²−1))``, the rate of the best polynomial, for the first eigenvalue beyond the block."""
        guards = max(self.P.shape[1] - self.W.shape[-1], 0)
        return exp(-chebyshev_growth(inside, outside[min(guards, len(outside) - 1)]))

    @property
    def max_remaining(self) -> int | None:
        """Number of blocks until Q spans all of ℝᵈ; None if a thick restart comes first."""
        (d, p), s = self.P.shape, self.Q.shape[1]
        return math.ceil((d - s) / p) + 1 if p > 0 and d <= _MAX_BLOCKS * p else None

    @property
    def is_shared(self) -> bool:
        """True: all agents compute W and S from the same Q."""
        return True


class BlockKrylov(ExactlyAveraged):
    """Thick-restart block Lanczos with full orthogonalisation on ``A = mean_j A_j``.

    Parameters
    ----------
    A : OperatorLike
        The ``A_j`` of the local agents, each ``(d, d)``; see :mod:`deepca.operators`.
    W0 : array_like of shape (d, k)
        Orthonormal start W⁰, the same at every agent.
    network : Network
        Network of the m agents.
    guards : int, optional
        Number of columns of a block beyond k. By default at least two, and enough for a block of four columns.

    Raises
    ------
    ParameterError
        If ``guards`` is negative.

    Notes
    -----
    One iteration::

        A P  = ExactAverage(A_j P)                        the only messages
        Q    = [Q, P],  H = QᵀAQ,  H y_i = θ_i y_i        Rayleigh–Ritz
        W    = Q [y_1 … y_k]
        P    = orth((I − QQᵀ) A P)                        new directions; random ones where none are left
        once Q has more than 12 blocks and 16 columns:  Q = Q [y_1 … y_s],  s = two blocks

    One agent, the root of the spanning tree, computes the next P, the vectors kept in a restart, and everything that
    control flow depends on. It sends these numbers along with the average, so they are bitwise the same at all agents,
    whatever their processors. Between agents, Q and S differ only by the rounding of products, and W also by a
    rotation. Nothing is tracked, and nothing needs tuning.

    With relative gap g, power iterations need about 1/g products and Krylov spaces 1/√g [1]_ [2]_: a handful instead of
    hundreds. Each product is averaged to rounding error, which takes more rounds than one mix of DeEPCA and requires a
    network that loses no message.

    References
    ----------
    .. [1] Y. Saad, "Numerical Methods for Large Eigenvalue Problems", revised edition, SIAM (2011).
    .. [2] C. Musco and C. Musco, "Randomized Block Krylov Methods for Stronger and Faster Approximate Singular Value
       Decomposition", Advances in Neural Information Processing Systems 28 (2015).

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> A = np.stack([np.diag([5.0, 4.0, 2.0, 1.0, 0.5])] * 4)
    >>> network = deepca.SimulatedNetwork(deepca.topology.ring(4))
    >>> algorithm = deepca.BlockKrylov(A, np.linalg.qr(np.ones((5, 2)) + np.eye(5)[:, :2])[0], network)
    >>> state = algorithm.step(algorithm.step(algorithm.init()))
    >>> bool(deepca.operators.linalg.tan_theta(np.eye(5)[:, :2], state.W[0]) < 1e-10)
    True
    """

    name = "block Krylov"

    def __init__(self, A: OperatorLike, W0: npt.ArrayLike, network: Network, *, guards: int | None = None) -> None:
        super().__init__(A, W0, network)
        d, k = self.W0.shape
        check("guards", guards, Integer(0), NONE, meaning="columns beyond k")
        self._agreed: tuple[int, ProductUnits] | None = None
        self._width = min(max(k + _MIN_GUARDS, _MIN_COLUMNS) if guards is None else k + guards, d)

    def init(self, W: npt.ArrayLike | None = None) -> KrylovState:
        """Return the state before the first step.

        Parameters
        ----------
        W : array_like of shape (d, k) or (*B, d, k), optional
            Orthonormal start to use instead of W⁰.

        Returns
        -------
        KrylovState
            The state at t = 0, with an empty Q.
        """
        return self._start_at(local_starts(self.W0, W, self.network), 0)

    def step(self, state: KrylovState) -> KrylovState:
        """Add one block to the search space and take the top-k Ritz vectors.

        Parameters
        ----------
        state : KrylovState
            State at iteration t.

        Returns
        -------
        KrylovState
            State at iteration t + 1.
        """
        Q, AQ, P, before = state.Q, state.AQ, state.P, self.network.unbatched(state.W)
        (d, k), network = self.W0.shape, self.network
        if P.shape[1] == 0:  # Q spans everything
            S = AQ @ (Q.T @ before)
            return KrylovState(state.t + 1, state.W, self._for_local_agents(S), Q, AQ, P, state.gap)
        if Q.shape[1] == 0:
            P = network.from_leader(P)
            check_basis(network, "a first block", P)
        local = self.A @ for_local_agents(P, network)
        Q = np.hstack([Q, P])
        width, kept = min(self._width, d - Q.shape[1]), self._kept(Q.shape[1])
        found: list[_Ritz] = []

        def next_block(mean: Array) -> Array:
            ritz = _Ritz.of(Q, AQ, mean.reshape(P.shape))
            found.append(ritz)
            new = self._filled(orthonormal_part(ritz.rest, 16.0 * EPS * ritz.size), Q, state.t)
            return packed(new, ritz.y[:, :kept], ritz.gap(k))

        mean, derived = exact_average_and_derive(
            network, [self._units().addend("products", local)], next_block, d * width + Q.shape[1] * kept + 1
        )
        new, y, gap = unpacked(derived, (d, width), (Q.shape[1], kept), ())
        AP = mean.reshape(P.shape)
        check_symmetric(network, Q[:, : AQ.shape[1]], AQ, P, AP, self._units().largest)
        ritz = found[0] if found else _Ritz.of(Q, AQ, AP)
        ritz.check(network, new, y)
        AQ = ritz.AQ
        W, S = Q @ ritz.y[:, :k], AQ @ (Q.T @ before)  # S = A W with the previous W
        if kept:
            Q, AQ = Q @ y, AQ @ y
        return KrylovState(state.t + 1, self._for_local_agents(W), self._for_local_agents(S), Q, AQ, new, float(gap))

    def _units(self) -> ProductUnits:
        """Return the units of products, on which agents agree once per epoch."""
        if self._agreed is None or self._agreed[0] != self.network.epoch:
            self._agreed = self.network.epoch, agree_on_units(self.network, self.A)
        return self._agreed[1]

    def _kept(self, columns: int) -> int:
        """Return the number of Ritz vectors to keep in a restart if Q has that many columns; 0 if none is due."""
        return 2 * self._width if columns > max(_MAX_BLOCKS * self._width, 4 * _MIN_COLUMNS) else 0

    def _filled(self, P: Array, Q: Array, t: int) -> Array:
        """Return P orthonormalised against Q, with random columns in place of those that have converged.

        Without random columns, Q would never reach some eigenvectors: those of eigenvalues with a multiplicity larger
        than the width of P, or all others if the start was invariant.
        """
        d = Q.shape[0]
        free = min(self._width, d - Q.shape[1]) - P.shape[1]
        if free > 0:
            P = np.hstack([P, np.random.default_rng((_SEED, t)).standard_normal((d, free))])
        return np.linalg.qr(project_out(np.linalg.qr(project_out(P, Q))[0], Q))[0][:, : d - Q.shape[1]]

    def restart(self, state: KrylovState, rounds: int) -> KrylovState:
        """Start over from W: a changed network has another mean A, which invalidates AQ.

        Parameters
        ----------
        state : KrylovState
            State before the network changed; only t and W are used.
        rounds : int
            Not used: the number of rounds follows from the graph.

        Returns
        -------
        KrylovState
            State with the same t and W and an empty Q.
        """
        return self._start_at(state.W, state.t)

    def directions(self, state: KrylovState) -> Array:
        """Return the leading Ritz vectors, up to two blocks of them.

        Parameters
        ----------
        state : KrylovState
            State at any iteration.

        Returns
        -------
        ndarray of shape (s, d)
            Ritz vectors as rows, by descending Ritz value.
        """
        y = np.linalg.eigh(symmetric_part(state.Q.T @ state.AQ))[1]
        return np.asarray((state.Q @ y[:, ::-1][:, : 2 * self._width]).T)

    def _start_at(self, W: Array, t: int) -> KrylovState:
        """Return a state whose P is a first block that begins with W; the first step takes the leader's P."""
        own = (
            self.network.unbatched(W)
            if not self.network.is_leader_local
            else W.reshape(-1, *W.shape[-2:])[self._leader]
        )
        d, k = own.shape
        more = np.random.default_rng(_SEED).standard_normal((d, self._width - k))
        P = np.linalg.qr(np.hstack([own, more]))[0]
        P[:, :k] = own
        empty = np.empty((d, 0))
        W = self._for_local_agents(own)
        return KrylovState(t, W, np.zeros_like(W), empty, empty, P)

    @property
    def _leader(self) -> int:
        """Index of the leader among the local agents."""
        return int(np.flatnonzero(self.network.local.ravel() == self.network.leader)[0])


@dataclass(frozen=True)
class _Ritz:
    """Result of Rayleigh–Ritz in Q: ``A Q``, descending Ritz values, their vectors, and ``rest = (I − QQᵀ) A P``."""

    Q: Array
    AQ: Array
    theta: Array
    y: Array
    rest: Array

    @classmethod
    def of(cls, Q: Array, AQ: Array, AP: Array) -> _Ritz:
        """Compute Ritz pairs of ``Q = [Q', P]`` from ``AQ = A Q'`` and ``AP = A P``."""
        AQ = np.hstack([AQ, AP])
        theta, y = np.linalg.eigh(symmetric_part(Q.T @ AQ))
        return cls(Q, AQ, theta[::-1], y[:, ::-1], project_out(AP, Q))

    @property
    def size(self) -> float:
        """Largest absolute Ritz value."""
        return float(np.abs(self.theta).max())

    def gap(self, k: int) -> float:
        """Return ``1 − θ_{k+1}/θ_k``."""
        theta = self.theta
        return float(1.0 - theta[k] / theta[k - 1]) if theta.size > k and theta[k - 1] > 0.0 else 1.0

    def check(self, network: Network, P: Array, y: Array) -> None:
        """Raise Contradiction unless P is a valid next block and y are the Ritz vectors to keep, up to rounding."""
        if network.is_leader_local:
            return
        allowed = SEMIORTHOGONALITY_TOLERANCE * self.size
        check_basis(network, "a next block", P, self.Q, contains=self.rest, beyond=allowed)
        check_basis(network, "Ritz vectors", y)
        kept = y.T @ symmetric_part(self.Q.T @ self.AQ) @ y
        check_close(network, "Ritz vectors", np.diag(kept), self.theta[: y.shape[1]], allowed)
