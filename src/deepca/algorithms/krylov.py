"""Block Krylov iterations over exact averages: few products, each averaged to rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.portable import exp
from deepca._util.typing import Array
from deepca.algorithms.base import OverExactAverages, State, chebyshev_growth, spread
from deepca.consensus.exact import exact_average_then
from deepca.errors import InvalidInput
from deepca.network.base import Network
from deepca.network.broadcasts import SEMI, check_basis, check_close, everywhere, packed, unpacked
from deepca.operators.base import OperatorLike
from deepca.operators.linalg import orthonormal_part, symmetric_part, without

__all__ = ["BlockKrylov", "KrylovState"]

_GUARDS = 2  # columns beyond k, so that a close λ_{k+1} is seen beside λ_k
_LEAST = 4  # columns: a round costs more than its bytes
_BLOCKS = 12  # of columns kept at most
_SEED = 2027


@dataclass(frozen=True)
class KrylovState(State):
    """A State with the space searched so far.

    Q : orthonormal ``(d, s)``, the same at every agent but for rounding.  AQ : ``A Q``, averaged.
    P : ``(d, p)``, the next block, the same bits at every agent (but for the first, of which the leader's counts).
    gap : ``1 − θ_{k+1}/θ_k`` as the leader sees it.
    """

    Q: Array
    AQ: Array
    P: Array
    gap: float = 0.1

    @property
    def seen_gap(self) -> float:
        return self.gap

    def shrinks_by(self, inside: float, outside: Sequence[float]) -> float:
        """Return ``1/(ξ + √(ξ²−1))``, the rate of the best polynomial; what lies beyond the block decides."""
        guards = max(self.P.shape[1] - self.W.shape[-1], 0)
        return exp(-chebyshev_growth(inside, outside[min(guards, len(outside) - 1)]))

    @property
    def most_left(self) -> int | None:
        """Return how many blocks make Q everything, where it is not cut down before."""
        (d, p), s = self.P.shape, self.Q.shape[1]
        return math.ceil((d - s) / p) + 1 if p > 0 and d <= _BLOCKS * p else None

    @property
    def common(self) -> bool:
        return True


class BlockKrylov(OverExactAverages):
    """Thick-restart block Lanczos with full orthogonalisation, on ``A = mean A_j`` itself::

        A P  = ExactAverage(A_j P)                        the only messages
        Q    = [Q, P],  H = QᵀAQ,  H y_i = θ_i y_i        Rayleigh–Ritz
        W    = Q [y_1 … y_k]
        P    = orth((I − QQᵀ) A P)                        what Q does not contain yet; random where nothing is left
        once Q has more than 12 blocks:  Q = Q [y_1 … y_s],  s = two blocks

    The next P, what is kept of Q and all that decides are computed by one agent, the root of the tree, and sent along
    with the average: the same bits at all of them, whatever their processors. Q, W and the like differ by no more than
    the rounding of products, and W by a rotation. Nothing is tracked, and nothing has to be chosen. With the relative
    gap g, power iterations need about 1/g products and Krylov spaces 1/√g: a handful instead of hundreds. Each is
    averaged to rounding, which takes more rounds than one mix of DeEPCA, and a network that keeps its promises.

    Parameters
    ----------
    A, W0, network : as for :class:`~deepca.algorithms.base.Decentralized`.
    guards : columns carried along beyond k; enough to have four, and two at least, by default.
    """

    name = "block Krylov"

    def __init__(self, A: OperatorLike, W0: npt.ArrayLike, network: Network, *, guards: int | None = None) -> None:
        super().__init__(A, W0, network)
        d, k = self.W0.shape
        if guards is not None and guards < 0:
            raise InvalidInput(f"guards = {guards}: a number of columns, 0 or more")
        self._width = min(max(k + _GUARDS, _LEAST) if guards is None else k + guards, d)

    def init(self, W: npt.ArrayLike | None = None) -> KrylovState:
        return self._from(spread(self.W0, W, self.network), 0)

    def step(self, state: KrylovState) -> KrylovState:
        Q, AQ, P, before = state.Q, state.AQ, state.P, self.network.common(state.W)
        (d, k), network = self.W0.shape, self.network
        if P.shape[1] == 0:  # Q is everything
            S = AQ @ (Q.T @ before)
            return KrylovState(state.t + 1, state.W, self._at_all(S), Q, AQ, P, state.gap)
        if Q.shape[1] == 0:
            P = network.from_leader(P)
            check_basis(network, "a first block", P)
        local = (self.A @ everywhere(P, network)).reshape(*network.batch, -1)
        Q = np.hstack([Q, P])
        width, kept = min(self._width, d - Q.shape[1]), self._kept(Q.shape[1])
        found: list[_Ritz] = []

        def following(mean: Array) -> Array:
            ritz = _Ritz.of(Q, AQ, mean.reshape(P.shape))
            found.append(ritz)
            new = self._filled(orthonormal_part(ritz.rest, 16.0 * EPS * ritz.size), Q, state.t)
            return packed(new, ritz.y[:, :kept], ritz.gap(k))

        mean, told = exact_average_then(network, local, following, d * width + Q.shape[1] * kept + 1)
        new, y, gap = unpacked(told, (d, width), (Q.shape[1], kept), ())
        ritz = found[0] if found else _Ritz.of(Q, AQ, mean.reshape(P.shape))
        ritz.check(network, new, y)
        AQ = ritz.AQ
        W, S = Q @ ritz.y[:, :k], AQ @ (Q.T @ before)  # S is A W of the step before
        if kept:
            Q, AQ = Q @ y, AQ @ y
        return KrylovState(state.t + 1, self._at_all(W), self._at_all(S), Q, AQ, new, float(gap))

    def _kept(self, columns: int) -> int:
        """Ritz vectors that are kept of so many columns; 0 while there is room for all."""
        return 2 * self._width if columns > max(_BLOCKS * self._width, 4 * _LEAST) else 0

    def _filled(self, P: Array, Q: Array, t: int) -> Array:
        """P orthonormal and orthogonal to Q; where columns have converged, random ones take their place.

        Without them, what Q does not contain would never come in: eigenvalues of higher multiplicity than P has
        columns, or everything else, if the start was invariant.
        """
        d = Q.shape[0]
        free = min(self._width, d - Q.shape[1]) - P.shape[1]
        if free > 0:
            P = np.hstack([P, np.random.default_rng((_SEED, t)).standard_normal((d, free))])
        return np.linalg.qr(without(np.linalg.qr(without(P, Q))[0], Q))[0][:, : d - Q.shape[1]]

    def restart(self, state: KrylovState, rounds: int) -> KrylovState:
        """The network changed, and with it A: nothing of AQ holds any more, but W is a good start."""
        return self._from(state.W, state.t)

    def directions(self, state: KrylovState) -> Array:
        """All that is known of the top of the spectrum: Ritz vectors ``(s, d)`` as rows, by falling value."""
        y = np.linalg.eigh(symmetric_part(state.Q.T @ state.AQ))[1]
        return np.asarray((state.Q @ y[:, ::-1][:, : 2 * self._width]).T)

    def _from(self, W: Array, t: int) -> KrylovState:
        """A first block, of which the first step takes the leader's."""
        own = self.network.common(W) if not self.network.leads else W.reshape(-1, *W.shape[-2:])[self._leader]
        d, k = own.shape
        more = np.random.default_rng(_SEED).standard_normal((d, self._width - k))
        P = np.linalg.qr(np.hstack([own, more]))[0]
        P[:, :k] = own
        empty = np.empty((d, 0))
        W = self._at_all(own)
        return KrylovState(t, W, np.zeros_like(W), empty, empty, P)

    @property
    def _leader(self) -> int:
        """Place of the leader among the local agents."""
        return int(np.flatnonzero(self.network.local.ravel() == self.network.leader)[0])


@dataclass(frozen=True)
class _Ritz:
    """Rayleigh–Ritz in Q: ``A Q``, values and vectors by falling value, and what of ``A P`` lies outside of Q."""

    Q: Array
    AQ: Array
    theta: Array
    y: Array
    rest: Array

    @classmethod
    def of(cls, Q: Array, AQ: Array, AP: Array) -> _Ritz:
        AQ = np.hstack([AQ, AP])
        theta, y = np.linalg.eigh(symmetric_part(Q.T @ AQ))
        return cls(Q, AQ, theta[::-1], y[:, ::-1], without(AP, Q))

    @property
    def size(self) -> float:
        return float(np.abs(self.theta).max())

    def gap(self, k: int) -> float:
        """``1 − θ_{k+1}/θ_k`` as seen here."""
        theta = self.theta
        return float(1.0 - theta[k] / theta[k - 1]) if theta.size > k and theta[k - 1] > 0.0 else 1.0

    def check(self, network: Network, P: Array, y: Array) -> None:
        """Contradiction unless P is a next block, and y the Ritz vectors to keep, but for rounding."""
        if network.leads:
            return
        allowed = SEMI * self.size
        check_basis(network, "a next block", P, self.Q, contains=self.rest, beyond=allowed)
        check_basis(network, "Ritz vectors", y)
        kept = y.T @ symmetric_part(self.Q.T @ self.AQ) @ y
        check_close(network, "Ritz vectors", np.diag(kept), self.theta[: y.shape[1]], allowed)
