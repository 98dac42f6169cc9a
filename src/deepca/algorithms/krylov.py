"""Block Krylov iterations over exact averages: few products, each averaged to rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._typing import Array
from deepca.algorithms.base import OverExactAverages, State, spread
from deepca.errors import InvalidInput
from deepca.exact import exact_average
from deepca.linalg import orthonormal_part, symmetric_part, without
from deepca.networks.base import Network
from deepca.operators import OperatorLike
from deepca.probing import everywhere

__all__ = ["BlockKrylov", "KrylovState"]

_EPS = float(np.finfo(np.float64).eps)
_GUARDS = 2  # columns beyond k, so that a close λ_{k+1} is seen beside λ_k
_LEAST = 4  # columns: a round costs more than its bytes
_BLOCKS = 12  # of columns kept at most
_SEED = 2027


@dataclass(frozen=True)
class KrylovState(State):
    """A State with the space searched so far.

    Q : orthonormal ``(d, s)``, the same at every agent.  AQ : ``A Q``, averaged.  P : ``(d, p)``, the next block.
    gap : ``1 − θ_{k+1}/θ_k`` as seen so far.
    """

    Q: Array
    AQ: Array
    P: Array
    gap: float = 0.1

    @property
    def seen_gap(self) -> float:
        return self.gap


class BlockKrylov(OverExactAverages):
    """Thick-restart block Lanczos with full orthogonalisation, on ``A = mean A_j`` itself::

        A P  = ExactAverage(A_j P)                        the only messages
        Q    = [Q, P],  H = QᵀAQ,  H y_i = θ_i y_i        Rayleigh–Ritz
        W    = Q [y_1 … y_k]
        P    = orth((I − QQᵀ) A P)                        what Q does not contain yet; random where nothing is left
        once Q has more than 12 blocks:  Q = Q [y_1 … y_s],  s = two blocks

    All agents hold the same Q, since an exact average is the same everywhere; nothing is tracked, and nothing has to be
    chosen. With the relative gap g, power iterations need about 1/g products and Krylov spaces 1/√g: a handful instead
    of hundreds. Each is averaged to rounding, which takes more rounds than one mix of DeEPCA, and a network that keeps
    its promises.

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
        Q, AQ, P = state.Q, state.AQ, state.P
        k, B = self.W0.shape[1], self.network.batch
        if P.shape[1] == 0:  # Q is everything
            S = AQ @ (Q.T @ _one(state.W))
            return KrylovState(state.t + 1, state.W, self._at_all(S), Q, AQ, P, state.gap)
        AP = exact_average(self.network, (self.A @ everywhere(P, self.network)).reshape(*B, -1)).reshape(P.shape)
        Q, AQ = np.hstack([Q, P]), np.hstack([AQ, AP])
        theta, y = np.linalg.eigh(symmetric_part(Q.T @ AQ))
        theta, y = theta[::-1], y[:, ::-1]
        W = Q @ y[:, :k]
        S = AQ @ (Q.T @ _one(state.W))  # A W of the step before
        P = orthonormal_part(without(AP, Q), 16.0 * _EPS * float(np.abs(theta).max()))
        P = self._filled(P, Q, state.t)
        if Q.shape[1] > max(_BLOCKS * self._width, 4 * _LEAST):
            kept = y[:, : 2 * self._width]
            Q, AQ = Q @ kept, AQ @ kept
        gap = 1.0 - theta[k] / theta[k - 1] if theta.size > k and theta[k - 1] > 0.0 else 1.0
        return KrylovState(state.t + 1, self._at_all(W), self._at_all(S), Q, AQ, P, float(gap))

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
        first = (self.network.local == 0)[..., None, None]
        common = self.network.reduce(np.where(first, W, -np.inf), "max") if t else _one(W)
        d, k = common.shape
        more = np.random.default_rng(_SEED).standard_normal((d, self._width - k))
        P = np.linalg.qr(np.hstack([common, more]))[0]
        P[:, :k] = common
        empty = np.empty((d, 0))
        W = self._at_all(common)
        return KrylovState(t, W, np.zeros_like(W), empty, empty, P)


def _one(W: Array) -> Array:
    """The common ``(d, k)`` behind ``(*B, d, k)``."""
    return np.asarray(W[(0,) * (W.ndim - 2)])
