"""The largest eigenvalues outside a given subspace, found and bounded with fresh random columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from deepca._typing import Array
from deepca.averaging import average
from deepca.linalg import frobenius, orthonormal_part, symmetric_part, without
from deepca.mixing import averager
from deepca.networks.base import Network
from deepca.operators import Operator

__all__ = ["Outside", "everywhere", "probe"]

_LEAST = 8  # columns: rounds count for more than their size


@dataclass(frozen=True)
class Outside:
    """Ritz values of ``B = (I−XXᵀ) A (I−XXᵀ)`` after some block products.

    values : descending; each is at most the eigenvalue of B at its place.  errors : an eigenvalue of B lies within that
    of each value.  first, last : what the Ritz vectors have in the first and in the last block of columns.
    doubt : what the averages may be wrong by.  exact : whether nothing is left to find.
    """

    values: Array
    errors: Array
    first: Array
    last: Array
    doubt: float
    columns: int
    products: int
    dimension: int
    exact: bool

    def bound(self, failure: float) -> float:
        """λ₁(B), and with it λ_{k+1}(A), is at most this but for a probability of ``failure``: the better of two."""
        if self.exact:
            return float(self.values[0]) + 2.0 * self.doubt
        return min(self._beforehand(failure / 2.0), self._afterwards(failure / 2.0))

    def _afterwards(self, failure: float) -> float:
        """From what the probes have found.

        ``BQ = QH + F Eᵀ`` with F orthogonal to Q, and E the last block of columns. So an eigenvector u to an eigenvalue
        t above all Ritz values has ``uᵀQ`` in the row space of ``Eᵀ(t − H)⁻¹``. It is at most 1 long, so its part g in
        the first block is at most the cosine between that space and the first block. But g is how much of u the random
        start contained: ``‖g‖² ~ Beta(p/2, (n−p)/2)``, shorter than :func:`overlap` with probability ``failure`` only.
        The bound is the largest t whose cosine reaches that. Products that are wrong by δ change g by
        ``2δ/(t − ϑ₁)`` at most. (For one column: van Dorsselaer, Hochstenbach & van der Vorst 2000.)
        """
        top, width = float(self.values[0]), float(self.values[0] - self.values[-1])
        if width <= 0.0:
            return math.inf
        least = overlap(self.dimension, self.columns, failure)

        def may_be_missed(above: Array) -> npt.NDArray[np.bool_]:
            """Whether an eigenvalue that far above ϑ₁ may be."""
            turned = 2.0 * self.doubt / above
            basis, _ = np.linalg.qr(self.last.T / (above[:, None, None] + (top - self.values[:, None])))
            cosine = np.linalg.norm(np.swapaxes(basis, -1, -2) @ self.first.T, 2, axis=(-2, -1))
            return np.asarray(cosine * (1.0 + turned) + turned >= least)

        distance = width * np.geomspace(1e-9, 1e3, 49)
        missed = np.flatnonzero(may_be_missed(distance))
        if missed.size == 0:
            return top + float(distance[0])
        last = int(missed[-1])
        if last + 1 == distance.size:
            return math.inf
        fine = np.geomspace(distance[last], distance[last + 1], 17)
        return top + float(fine[min(int(np.flatnonzero(may_be_missed(fine))[-1]) + 1, fine.size - 1)])

    def _beforehand(self, failure: float) -> float:
        """From the number of products alone.

        For one uniformly random start and q products ``P[ϑ < (1−ε)λ₁] ≤ 1.648 √n e^{−√ε(2q−1)}`` if B ⪰ 0
        (Kuczyński & Woźniakowski 1992); p independent columns must all fail. Where B is indefinite the error is
        relative to λ₁ − λ_n, and both ends are bounded alike.
        """
        top, bottom = float(self.values[0]), float(self.values[-1])
        definite = bottom >= -2.0 * self.doubt
        chance = failure if definite else failure / 2.0
        logarithm = math.log(1.648 * math.sqrt(self.dimension)) - math.log(chance) / self.columns
        epsilon = (logarithm / (2 * self.products - 1)) ** 2
        if epsilon >= 0.5:
            return math.inf
        if definite:
            return max(top, 0.0) / (1.0 - epsilon) + 2.0 * self.doubt
        return top + epsilon * (top - bottom) / (1.0 - 2.0 * epsilon) + 2.0 * self.doubt


def probe(
    A: Operator, X: Array, network: Network, *, seed: int, accuracy: float, rounding: float = 0.0
) -> Iterator[Outside]:
    """Block Lanczos on B from fresh Gaussian columns; one more block product, the same at every agent, per item.

    ``X`` is the same ``(d, k)`` everywhere. Products are averaged anew until their error is below ``accuracy``.
    ``rounding`` is that of one product; directions that short are noise. What is left out is added to the doubt.
    """
    d, k = X.shape
    n = d - k
    p = columns_for(k, d)
    rounds = averager(network.topology).rounds_for(network.topology, 1e-2)
    block = orthonormal_part(without(np.random.default_rng(seed).standard_normal((d, p)), X), 0.0)
    Q, BQ, doubt = np.empty((d, 0)), np.empty((d, 0)), rounding
    for made in range(1, n + 1):
        Y = without(A @ everywhere(block, network), X)
        new = average(network, Y.reshape(*network.batch, -1), rounds, lambda found: found.doubt <= accuracy)
        rounds, doubt = new.rounds, math.hypot(doubt, new.doubt)
        Q, BQ = np.hstack([Q, block]), np.hstack([BQ, without(new.mean.reshape(block.shape), X)])
        H = Q.T @ BQ
        values, vectors = np.linalg.eigh(symmetric_part(H))
        values, vectors = values[::-1], vectors[:, ::-1]
        few = vectors[:, : 2 * p + 2]
        errors = frobenius(BQ @ few - (Q @ few) * values[: few.shape[1]], axis=0) + doubt
        new_columns = block.shape[1]
        left = without(without(BQ[:, -block.shape[1] :], Q), X)
        short = max(1e-12 * float(np.abs(values).max()), rounding)
        # short directions are mostly rounding, and orthogonal to the others only after another projection
        block = np.linalg.qr(without(without(orthonormal_part(left, short), Q), X))[0][:, : n - Q.shape[1]]
        exact = block.shape[1] == 0  # the probes' space is invariant, and every direction has a part in it
        if Q.shape[1] + block.shape[1] < min((made + 1) * p, n):
            doubt = math.hypot(doubt, math.sqrt(p) * short)  # invariant but for what was left out
        yield Outside(values, errors, vectors[:p], vectors[-new_columns:], doubt, p, made, n, exact)
        if exact:
            return


def columns_for(k: int, d: int) -> int:
    """How many probes: as many as components, and some more, since rounds count for more than their size."""
    return min(max(k, _LEAST), d - k)


def overlap(n: int, p: int, failure: float) -> float:
    """The part of a given unit vector that p random orthonormal columns of n entries contain, but for ``failure``."""
    return math.sqrt(float(betaincinv(p / 2.0, (n - p) / 2.0, failure))) if p < n else 1.0


def everywhere(X: Array, network: Network) -> Array:
    """X at every local agent: ``(*B, d, k)``."""
    return np.array(np.broadcast_to(X, (*network.batch, *X.shape)))
