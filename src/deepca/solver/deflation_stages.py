"""Find components in stages: first the largest, then the largest of what remains after deflating the rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.consensus.averaging import common_average, common_average_and_derive
from deepca.consensus.broadcasts import check_basis, for_local_agents, packed
from deepca.consensus.exact import ProductUnits, agree_on_units
from deepca.network.base import Network
from deepca.network.sums import Addend
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius, project_out
from deepca.solver.certificate.agreed_rounding import SIZES_UNIT
from deepca.solver.result import Result

__all__ = ["Search"]

Search = Callable[[Operator, int, int], "Result[Any]"]
"""``search(A, k, max_iter)`` finds the top k of ``mean A_j``, with a certificate."""

ZERO_FACTOR = 8.0  # singular values of at most 8 e, with e the rounding of the rows, may be zero
NORM_FACTOR = 11.0  # a norm exceeds its estimate from eight columns by a larger factor with P[χ²_8 < 8/11²] < 1e-7
_NORM_COLUMNS = 8  # number of random columns from which a norm is estimated
_MIN_STAGE_ITERATIONS = 100  # every stage may take this many iterations
_STAGE_FACTOR = 10  # a stage may take this many times the iterations of the first run
_SEED = 4177  # arbitrary, but the same at every agent


@dataclass(frozen=True)
class Stage:
    """Columns of V found in one stage, their averaged products with the deflated A, and the products' rounding."""

    V: Array
    AV: Array
    noise: float


@dataclass(frozen=True)
class Found:
    """Columns found by all stages, and how the search ended.

    Attributes
    ----------
    stages : tuple of Stage
        The columns.
    last : Result
        Result of the last search.
    remaining : float
        Bound on the largest eigenvalue that was not found.
    failed : bool
        Whether the search ended too early: with fewer than k columns, although more than rounding remained.
    results : tuple of Result
        Results of all searches, that of the undeflated operator first.
    """

    stages: tuple[Stage, ...]
    last: Result[Any]
    remaining: float
    failed: bool
    results: tuple[Result[Any], ...]


def smallest_resolved(tol: float) -> float:
    """Return the smallest λ/λ₁ at which products with the ``A_j`` determine a component to the tolerance."""
    return min(max(64.0 * EPS / tol, 1e-6), 1e-2)


def find_in_stages(
    A: Operator, network: Network, X: Array, result: Result[Any], search: Search, tol: float, e: float
) -> Found:
    """Find k components in stages, starting from those of ``result``; e is the rounding of the rows."""
    (d, k), results = X.shape, [result]
    stages: list[Stage] = []
    V, deflated, found = np.empty((d, 0)), A, result
    while True:
        proof = found.certificate
        if proof is None:
            return Found(tuple(stages), found, math.inf, True, tuple(results))
        theta = np.array(proof.eigenvalues)
        above = bound_largest(found)
        r = int(np.count_nonzero(theta >= max(smallest_resolved(tol) * theta[0], square(ZERO_FACTOR * e))))
        if r == 0:
            return Found(tuple(stages), found, above, not math.isfinite(above), tuple(results))
        stage = _stage(deflated, common_components(found)[:, :r], V, network)
        lost = frobenius(project_out(stage.AV, np.hstack([V, common_components(found)])), axis=0)
        hidden = (lost > 10.0 * tol * theta[:r] + 10.0 * stage.noise).any()
        if network.from_leader(packed(hidden)).any():  # decisions based on matrix products are the leader's
            return Found(tuple(stages), found, above, True, tuple(results))
        stages.append(stage)
        V = np.hstack([V, stage.V])
        if V.shape[1] == k:
            return Found(tuple(stages), found, proof.bound, False, tuple(results))
        rest = estimate_remaining(A, V, network)
        if rest <= ZERO_FACTOR * e:
            return Found(tuple(stages), found, square(NORM_FACTOR * ZERO_FACTOR * e), False, tuple(results))
        deflated = A.deflated(V)
        # columns that are only rounding never converge; others need about as many iterations as the first run
        found = search(deflated, k - V.shape[1], max(_MIN_STAGE_ITERATIONS, _STAGE_FACTOR * result.iterations))
        results.append(found)


def bound_largest(result: Result[Any]) -> float:
    """Return a bound on the largest eigenvalue of the operator that was searched."""
    proof = result.certificate
    return math.inf if proof is None else max(proof.eigenvalues[0], proof.bound) + proof.residual * proof.scale


def orthonormal_to(X: Array, V: Array) -> Array:
    """Make the columns of X orthonormal, and orthogonal to V, up to rounding."""
    Q, R = np.linalg.qr(project_out(X, V))
    return np.asarray(project_out(Q, V) * np.where(np.diagonal(R) < 0.0, -1.0, 1.0))


def common_components(result: Result[Any]) -> Array:
    """Return the components that all agents share, ``(d, k)``."""
    return np.asarray(result.components.reshape(-1, *result.components.shape[-2:])[0])


def _stage(A: Operator, X: Array, before: Array, network: Network) -> Stage:
    """Return a stage with the columns X, made orthonormal and orthogonal to the previous ones by the leader."""
    network.begin(network.epoch, before.shape[1], "deflated products")
    V = network.from_leader(orthonormal_to(X, before))
    check_basis(network, "components", V, before)
    AV = A @ for_local_agents(V, network)
    sizes = np.asarray(frobenius(AV, axis=(-2, -1)))[..., None]
    exact = network.adds_exactly
    largest = None if exact else float(network.reduce(sizes, "max")[0])
    addends = [(agree_on_units(network, A) if exact else ProductUnits()).addend("products", AV)]
    if exact:
        addends.append(Addend("sizes", sizes, guess=SIZES_UNIT, nonnegative=True))
    found, _ = common_average_and_derive(network, addends, lambda _: np.empty(0), 0)
    # the error of an exact mean is at most the mean of the errors
    size = float(found.mean[-1]) if largest is None else largest
    return Stage(V, found.mean[: V.size].reshape(V.shape), found.error_bound(size))


def estimate_remaining(A: Operator, V: Array, network: Network) -> float:
    """Estimate ``‖Y(I − VVᵀ)‖_F`` from random columns; exact if these span all that remains."""
    d, r = V.shape
    columns = min(_NORM_COLUMNS, d - r)
    network.begin(network.epoch, r, "what is left")
    random = np.random.default_rng((_SEED, r)).standard_normal((d, columns))
    probes = network.from_leader(orthonormal_to(random, V))
    check_basis(network, "probes", probes, V)
    G = A.gram(probes)
    trace = common_average(network, np.trace(G, axis1=-2, axis2=-1)[..., None])[0]
    return math.sqrt(max(float(trace), 0.0) * (d - r) / columns)


def square(x: float) -> float:
    """Return ``x²`` as a product, which has the same bits on every processor; ``pow`` of the C library may not."""
    return x * x
