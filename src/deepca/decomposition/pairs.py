"""Single eigenpairs within a subspace that all agents share, and what can be said of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.consensus.averaging import common_averaged_then
from deepca.decomposition.spectral_bounds import check_ends, ends_of, largest_of_all
from deepca.network.base import Network
from deepca.network.broadcasts import check_close, everywhere, packed
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius
from deepca.solver.certificate.certification import FAILURE, digest_of
from deepca.solver.certificate.probing import probe
from deepca.solver.ritz_axes import principal_axes

__all__ = ["Pairs", "Which", "order_of", "pairs_in", "probed"]

Which = Literal["LA", "SA", "LM"]
_TOLD_APART = 10.0  # residuals by which two eigenvalues must differ to have vectors of their own
_PRODUCTS = 60


@dataclass(frozen=True)
class Pairs:
    """Ritz pairs of ``A = mean A_j`` and where all other eigenvalues lie; the same bits at every agent.

    vectors : orthonormal ``(d, k)``.  values : ``(k,)``.
    residuals : ``‖A x_i − θ_i x_i‖``, ``(k,)``.  spread : ``‖AX − Xθ‖₂``.  noise : the rounding included in both.
    low, high : the other d − k eigenvalues lie in between, but for a probability of ``failure``.
    seen : the largest modulus found among the others; nan where nobody has looked.
    """

    vectors: Array
    values: Array
    residuals: Array
    spread: float
    noise: float
    low: float
    high: float
    failure: float
    seen: float = math.nan

    @property
    def size(self) -> float:
        return float(np.abs(self.values).max())

    @property
    def separation(self) -> float:
        """Smallest difference of eigenvalues that counts as a gap."""
        return max(4.0 * self.noise, 16.0 * EPS * self.size)

    @property
    def gap(self) -> float:
        """Between the chosen eigenvalues and all others, at least: these in an interval, those on one side or both."""
        if self.values.size == self.vectors.shape[0]:
            return math.inf
        return float(self._from_others().min()) - self.spread

    @property
    def angle(self) -> float:
        """Bound on ``tan θ_k`` between the vectors' span and the invariant subspace (Davis & Kahan)."""
        return float(_tangent(np.array(self.spread), np.array(self.gap)))

    @property
    def angles(self) -> Array:
        """Bound on ``tan`` of the angle between each vector and an eigenvector, ``(k,)``; inf where none is its own.

        ``sin ≤ ‖r_i‖ / δ_i``, δ_i the distance from θ_i to every eigenvalue but its own.
        """
        apart = np.abs(self.values[:, None] - self.values)
        np.fill_diagonal(apart, np.inf)
        nearest = np.minimum(apart.min(axis=1), self._from_others()) - self.spread
        return _tangent(self.residuals, nearest)

    @property
    def clusters(self) -> tuple[tuple[int, ...], ...]:
        """Groups of pairs, by number, whose eigenvalues cannot be told apart: only the span of a group is defined."""
        order = np.argsort(self.values, kind="stable")
        close = np.diff(self.values[order]) <= max(_TOLD_APART * self.spread, self.separation)
        groups = np.split(order, np.flatnonzero(~close) + 1)
        return tuple(tuple(sorted(map(int, group))) for group in groups if len(group) > 1)

    def _from_others(self) -> Array:
        """Distance of each value from the interval of all others, ``(k,)``."""
        if self.values.size == self.vectors.shape[0]:
            return np.full(self.values.size, np.inf)
        return np.maximum(self.values - self.high, self.low - self.values)

    def ordered(self, which: Which) -> Self:
        order = order_of(self.values, which)
        return replace(self, vectors=self.vectors[:, order], values=self.values[order], residuals=self.residuals[order])


def order_of(values: Array, which: Which) -> npt.NDArray[np.int64]:
    """Falling (LA), rising (SA), or by falling modulus (LM), where the positive of two alike comes first."""
    if which == "LM":
        return np.lexsort((-values, -np.abs(values)))
    return np.argsort(-values if which == "LA" else values, kind="stable")


def pairs_in(A: Operator, X: Array, network: Network, low: float, high: float, failure: float) -> Pairs:
    """Ritz pairs in the span of X, orthonormal ``(d, k)`` and the same everywhere, by two exact averages.

    The second is of fresh products ``A_j x_i``: a residual is not what the iterations believed.
    """
    X, theta, _ = principal_axes(A, X, network)
    network.begin(network.epoch, 0, "residuals")
    own = A @ everywhere(X, network)
    off = A.rounding()
    largest, *formed = largest_of_all(network, own, off)

    def lengths(mean: Array) -> Array:
        R = mean.reshape(X.shape) - X * theta
        return packed(np.linalg.norm(R, 2), frobenius(R, axis=0))

    found, told = common_averaged_then(network, own.reshape(*network.batch, -1), lengths, 1 + theta.size)
    if not network.leads:
        check_close(network, "residuals", told, lengths(found.mean), 16.0 * len(X) * EPS * largest)
    noise = found.off_by(largest) + off.bound(float(np.abs(theta).max()), *formed)
    return Pairs(X, theta, told[1:] + noise, float(told[0]) + noise, noise, low, high, failure)


def probed(A: Operator, pairs: Pairs, network: Network) -> Iterator[Pairs]:
    """The same pairs, with ever better bounds on the others, from fresh random columns orthogonal to all of them.

    With ``A = [[M, Rᵀ], [R, B]]`` in a basis that begins with X, every eigenvalue of A is within ‖R‖ of one of M or of
    B (Weyl). B's lie between the bounds that block Lanczos gives for both of its ends at once.
    """
    if pairs.values.size == pairs.vectors.shape[0]:
        return
    network.begin(network.epoch, 0, "outside")
    X, seed = pairs.vectors, int(digest_of(pairs.vectors)[:16], 16)
    accuracy = max(1e-4 * pairs.size, pairs.noise)
    probes = probe(
        A,
        X,
        network,
        seed=seed,
        accuracy=accuracy,
        rounding=pairs.noise,
        tell=lambda outside: packed(*ends_of(outside), np.abs(outside.values).max()),
        size=lambda _: 3,
    )
    for outside, told in probes:
        low, high, seen = map(float, told)
        check_ends(network, outside, (low, high))
        low, high = low - pairs.spread, high + pairs.spread
        # what was known before stays true
        yield replace(
            pairs,
            low=max(low, pairs.low),
            high=min(high, pairs.high),
            failure=pairs.failure + 2.0 * FAILURE,
            seen=seen,
        )
        if outside.products >= _PRODUCTS:
            return


def _tangent(residual: Array, reach: Array) -> Array:
    """``tan θ`` from ``sin θ ≤ residual / reach``; inf where that says nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sine = np.where(reach > 0.0, residual / reach, np.inf)
        return np.where(sine < 1.0, sine / np.sqrt(1.0 - np.minimum(sine, 1.0) ** 2), np.inf)
