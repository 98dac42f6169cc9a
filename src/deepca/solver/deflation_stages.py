"""Components found stage by stage: the largest, then the largest of what deflated rows leave."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.consensus.averaging import common_average
from deepca.network.base import Network
from deepca.network.broadcasts import check_basis, everywhere, packed
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius, without
from deepca.solver.result import Result

__all__ = ["Search"]

Search = Callable[[Operator, int, int], "Result[Any]"]
"""Finds the top so many of ``mean A_j`` in at most so many iterations, with a certificate."""

RANK = 8.0  # a singular value of at most so many e is zero, as far as the rows can tell
UNSEEN = 11.0  # by what a norm may exceed its estimate from eight random columns: P[χ²_8 < 8/11²] < _CHANCE
_COLUMNS = 8
_FEW, _LONGER = 100, 10  # iterations of a stage at most, in all and in those of the first
_SEED = 4177


@dataclass(frozen=True)
class Stage:
    """Some columns of V, their products with the rows deflated before, averaged, and the rounding of these."""

    V: Array
    AV: Array
    noise: float


@dataclass(frozen=True)
class Found:
    """The columns found, by stages; what ended the search, and a bound on the largest eigenvalue that is left."""

    stages: tuple[Stage, ...]
    last: Result[Any]
    left: float
    failed: bool
    results: tuple[Result[Any], ...]


def smallest_told(tol: float) -> float:
    """The smallest λ/λ₁ whose components products tell to the tolerance."""
    return min(max(64.0 * EPS / tol, 1e-6), 1e-2)


def in_stages(
    A: Operator, network: Network, X: Array, result: Result[Any], search: Search, tol: float, e: float
) -> Found:
    (d, k), results = X.shape, [result]
    stages: list[Stage] = []
    V, deflated, found = np.empty((d, 0)), A, result
    while True:
        proof = found.certificate
        if proof is None:
            return Found(tuple(stages), found, math.inf, True, tuple(results))
        theta = np.array(proof.eigenvalues)
        above = largest_searched(found)
        r = int(np.count_nonzero(theta >= max(smallest_told(tol) * theta[0], squared(RANK * e))))
        if r == 0:
            return Found(tuple(stages), found, above, not math.isfinite(above), tuple(results))
        stage = _stage(deflated, common_components(found)[:, :r], V, network)
        lost = frobenius(without(stage.AV, np.hstack([V, common_components(found)])), axis=0)
        hidden = (lost > 10.0 * tol * theta[:r] + 10.0 * stage.noise).any()
        if network.from_leader(packed(hidden)).any():  # what follows from matrix products is for one agent to decide
            return Found(tuple(stages), found, above, True, tuple(results))
        stages.append(stage)
        V = np.hstack([V, stage.V])
        if V.shape[1] == k:
            return Found(tuple(stages), found, proof.bound, False, tuple(results))
        rest = norm_left(A, V, network)
        if rest <= RANK * e:
            return Found(tuple(stages), found, squared(UNSEEN * RANK * e), False, tuple(results))
        deflated = A.without(V)
        # columns that are rounding only would never settle; those above it need no more than the first run did
        found = search(deflated, k - V.shape[1], max(_FEW, _LONGER * result.iterations))
        results.append(found)


def largest_searched(result: Result[Any]) -> float:
    """Bound on the largest eigenvalue of the operator that was searched."""
    proof = result.certificate
    return math.inf if proof is None else max(proof.eigenvalues[0], proof.bound) + proof.residual * proof.scale


def orthonormal_to(X: Array, V: Array) -> Array:
    """The columns of X, orthonormal and orthogonal to V to rounding."""
    Q, R = np.linalg.qr(without(X, V))
    return np.asarray(without(Q, V) * np.where(np.diagonal(R) < 0.0, -1.0, 1.0))


def common_components(result: Result[Any]) -> Array:
    """The common components ``(d, k)``."""
    return np.asarray(result.components.reshape(-1, *result.components.shape[-2:])[0])


def _stage(A: Operator, X: Array, before: Array, network: Network) -> Stage:
    """Take the columns X, orthonormal and orthogonal to those before, as the leader makes them."""
    network.begin(network.epoch, before.shape[1], "deflated products")
    V = network.from_leader(orthonormal_to(X, before))
    check_basis(network, "components", V, before)
    AV = A @ everywhere(V, network)
    size = float(network.reduce(frobenius(AV, axis=(-2, -1))[..., None], "max")[0])
    mean = common_average(network, AV.reshape(*network.batch, -1)).reshape(V.shape)
    return Stage(V, mean, 2.0 * EPS * size)


def norm_left(A: Operator, V: Array, network: Network) -> float:
    """``‖Y(I − VVᵀ)‖_F``, estimated from random columns; exact where these are all that is left."""
    d, r = V.shape
    columns = min(_COLUMNS, d - r)
    network.begin(network.epoch, r, "what is left")
    random = np.random.default_rng((_SEED, r)).standard_normal((d, columns))
    probes = network.from_leader(orthonormal_to(random, V))
    check_basis(network, "probes", probes, V)
    G = A.gram(probes)
    trace = common_average(network, np.trace(G, axis1=-2, axis2=-1)[..., None])[0]
    return math.sqrt(max(float(trace), 0.0) * (d - r) / columns)


def squared(x: float) -> float:
    """``x²``: a product is rounded alike everywhere, a power of the C library need not be."""
    return x * x
