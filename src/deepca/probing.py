"""The largest eigenvalues outside a given subspace, found and bounded with fresh random columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from deepca._typing import Array
from deepca.averaging import average
from deepca.linalg import frobenius, orthonormal_part, symmetric_part, without
from deepca.mixing import Chebyshev
from deepca.networks.base import Network
from deepca.operators import Operator

__all__ = ["Outside", "everywhere", "probe"]

_LEAST = 4  # columns: rounds count for more than their size


@dataclass(frozen=True)
class Outside:
    """Ritz values of ``B = (I−XXᵀ) A (I−XXᵀ)`` after some block products.

    values : descending; each is at most the eigenvalue of B at its place.  errors : an eigenvalue of B lies within that
    of each value.  doubt : what the averages may be wrong by.  exact : whether nothing is left to find.
    """

    values: Array
    errors: Array
    doubt: float
    columns: int
    products: int
    dimension: int
    exact: bool

    def bound(self, failure: float) -> float:
        """λ₁(B), and with it λ_{k+1}(A), is at most this but for a probability of ``failure``.

        For one uniformly random start and q products ``P[ϑ < (1−ε)λ₁] ≤ 1.648 √n e^{−√ε(2q−1)}`` if B ⪰ 0
        (Kuczyński & Woźniakowski 1992); p independent columns must all fail. Where B is indefinite the error is
        relative to λ₁ − λ_n, and both ends are bounded alike.
        """
        top, bottom = float(self.values[0]), float(self.values[-1])
        if self.exact:
            return top + 2.0 * self.doubt
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
    p = min(max(k, _LEAST), n)
    rounds = Chebyshev().rounds_for(network.topology, 1e-2)
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
        left = without(without(BQ[:, -block.shape[1] :], Q), X)
        short = max(1e-12 * float(np.abs(values).max()), rounding)
        block = orthonormal_part(left, short)[:, : n - Q.shape[1]]
        exact = block.shape[1] == 0  # the probes' space is invariant, and every direction has a part in it
        if Q.shape[1] + block.shape[1] < min((made + 1) * p, n):
            doubt = math.hypot(doubt, math.sqrt(p) * short)  # invariant but for what was left out
        yield Outside(values, errors, doubt, p, made, n, exact)
        if exact:
            return


def everywhere(X: Array, network: Network) -> Array:
    """X at every local agent: ``(*B, d, k)``."""
    return np.array(np.broadcast_to(X, (*network.batch, *X.shape)))
