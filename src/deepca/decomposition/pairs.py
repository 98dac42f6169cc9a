"""Ritz pairs in a subspace that all agents share, with error bounds for each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.consensus.averaging import common_average_and_derive
from deepca.consensus.broadcasts import check_close, for_local_agents, packed
from deepca.consensus.exact import ProductUnits, agree_on_units
from deepca.decomposition.spectral_bounds import check_ends, ends_of
from deepca.network.base import Network
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius
from deepca.solver.certificate.agreed_rounding import AgreedRounding, rounding_addend
from deepca.solver.certificate.certification import FAILURE_PROBABILITY, digest_of
from deepca.solver.certificate.probing import probe
from deepca.solver.ritz_axes import principal_axes

__all__ = ["RitzPairs", "Which", "order_of", "ritz_pairs", "with_tighter_bounds"]

Which = Literal["LA", "SA", "LM"]
# eigenvalues closer than this multiple of the residual norm form a cluster, of which only the span is defined
_CLUSTER_WIDTH = 10.0
_MAX_PRODUCTS = 60  # number of products after which probing stops, even if the bounds are still loose


@dataclass(frozen=True)
class RitzPairs:
    """Ritz pairs of ``A = mean A_j`` and bounds on all other eigenvalues, bitwise identical at every agent.

    Parameters
    ----------
    vectors : array of shape (d, k)
        Orthonormal Ritz vectors X.
    values : array of shape (k,)
        Ritz values θ.
    residuals : array of shape (k,)
        Upper bounds on ``‖A x_i − θ_i x_i‖`` that include rounding errors.
    spread : float
        Upper bound on ``‖AX − Xθ‖₂`` that includes rounding errors.
    noise : float
        Bound on the rounding errors, which ``residuals`` and ``spread`` include.
    low, high : float
        Interval that contains the other d − k eigenvalues, except with probability ``failure``.
    failure : float
        Probability with which these bounds may fail.
    seen : float
        Largest modulus seen among the other eigenvalues; nan before any probing.
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
        """Largest modulus of the values."""
        return float(np.abs(self.values).max())

    @property
    def separation(self) -> float:
        """Smallest difference of eigenvalues that counts as a gap."""
        return max(4.0 * self.noise, 16.0 * EPS * self.size)

    @property
    def gap(self) -> float:
        """Lower bound on the distance between the eigenvalues found and all others."""
        if self.values.size == self.vectors.shape[0]:
            return math.inf
        return float(self._from_others().min()) - self.spread

    @property
    def angle(self) -> float:
        """Bound on ``tan θ_k`` between the vectors' span and the invariant subspace (Davis & Kahan)."""
        return float(_tangent_bounds(np.array(self.spread), np.array(self.gap)))

    @property
    def angles(self) -> Array:
        """Bound on the tangent of the angle between each vector and an eigenvector, ``(k,)``; inf within a cluster.

        ``sin ≤ ‖r_i‖ / δ_i``, with δ_i the distance from θ_i to every eigenvalue other than its own.
        """
        distances = np.abs(self.values[:, None] - self.values)
        np.fill_diagonal(distances, np.inf)
        nearest = np.minimum(distances.min(axis=1), self._from_others()) - self.spread
        return _tangent_bounds(self.residuals, nearest)

    @property
    def clusters(self) -> tuple[tuple[int, ...], ...]:
        """Indices of pairs whose eigenvalues cannot be distinguished; only the span of such a group is defined."""
        order = np.argsort(self.values, kind="stable")
        close = np.diff(self.values[order]) <= max(_CLUSTER_WIDTH * self.spread, self.separation)
        groups = np.split(order, np.flatnonzero(~close) + 1)
        return tuple(tuple(sorted(map(int, group))) for group in groups if len(group) > 1)

    def _from_others(self) -> Array:
        """Return the distance of each value from the interval of all others, ``(k,)``."""
        if self.values.size == self.vectors.shape[0]:
            return np.full(self.values.size, np.inf)
        return np.maximum(self.values - self.high, self.low - self.values)

    def ordered(self, which: Which) -> Self:
        """Return the same pairs, sorted as by :func:`order_of`."""
        order = order_of(self.values, which)
        return replace(self, vectors=self.vectors[:, order], values=self.values[order], residuals=self.residuals[order])


def order_of(values: Array, which: Which) -> npt.NDArray[np.int64]:
    """Return the indices that sort ``values``: descending for "LA", ascending for "SA", by descending modulus for "LM".

    Of two values with the same modulus, the positive one comes first.
    """
    if which == "LM":
        return np.lexsort((-values, -np.abs(values)))
    return np.argsort(-values if which == "LA" else values, kind="stable")


def ritz_pairs(A: Operator, X: Array, network: Network, low: float, high: float, failure: float) -> RitzPairs:
    """Compute the Ritz pairs in the span of X, by two exact averages.

    X is orthonormal, ``(d, k)``, and the same at every agent. The second average is of fresh products ``A_j x_i``, so
    residuals do not rely on the state of the iterations.
    """
    X, theta, _ = principal_axes(A, X, network)
    network.begin(network.epoch, 0, "residuals")
    own = A @ for_local_agents(X, network)
    off, exact = A.rounding(), network.adds_exactly
    agreed = None if exact else AgreedRounding.of_largest(network, own, off)

    def lengths(mean: Array) -> Array:
        R = mean[: X.size].reshape(X.shape) - X * theta
        return packed(np.linalg.norm(R, 2), frobenius(R, axis=0))

    units = agree_on_units(network, A) if exact else ProductUnits()
    addends = [units.addend("products", own), *([rounding_addend(own, off)] if exact else [])]
    found, shared = common_average_and_derive(network, addends, lengths, 1 + theta.size)
    agreed = agreed or AgreedRounding.from_means(found.mean[X.size :], network.n_agents)
    if not network.is_leader_local:
        check_close(network, "residuals", shared, lengths(found.mean), 16.0 * len(X) * EPS * agreed.size)
    noise = found.error_bound(agreed.size) + agreed.bound(off, float(np.abs(theta).max()))
    return RitzPairs(X, theta, shared[1:] + noise, float(shared[0]) + noise, noise, low, high, failure)


def with_tighter_bounds(A: Operator, pairs: RitzPairs, network: Network) -> Iterator[RitzPairs]:
    """Yield the same pairs with tighter and tighter bounds on the other eigenvalues.

    The bounds come from random probes orthogonal to the vectors.

    With ``A = [[M, Rᵀ], [R, B]]`` in a basis that begins with X, every eigenvalue of A is within ‖R‖ of one of M or of
    B (Weyl). Block Lanczos bounds both ends of the spectrum of B at once.
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
        units=agree_on_units(network, A) if network.reliable else ProductUnits(),
        derive=lambda outside: packed(*ends_of(outside), np.abs(outside.values).max()),
        size=lambda _: 3,
    )
    for outside, shared in probes:
        low, high, seen = map(float, shared)
        check_ends(network, outside, (low, high))
        low, high = low - pairs.spread, high + pairs.spread
        # earlier bounds remain valid
        yield replace(
            pairs,
            low=max(low, pairs.low),
            high=min(high, pairs.high),
            failure=pairs.failure + 2.0 * FAILURE_PROBABILITY,
            seen=seen,
        )
        if outside.products >= _MAX_PRODUCTS:
            return


def _tangent_bounds(residual: Array, gap: Array) -> Array:
    """Return the bound on ``tan θ`` that follows from ``sin θ ≤ residual / gap``; inf unless that is below 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sine = np.where(gap > 0.0, residual / gap, np.inf)
        return np.where(sine < 1.0, sine / np.sqrt(1.0 - np.minimum(sine, 1.0) ** 2), np.inf)
