"""Find components whose variances are lost in the rounding of the largest one, by going back to the rows.

Products ``A_j W`` are accurate to ``eps·λ₁``, so smaller eigenvalues and their components are lost in rounding. The
rows resolve more: a singular value σ_i of all rows together, ``λ_i = σ_i²``, is accurate to ``eps·σ₁``, as in a pooled
SVD. A steep spectrum is therefore found in stages::

    V = []
    repeat   A' = mean of (Y_j(I − VVᵀ))ᵀ Y_j(I − VVᵀ)      deflate the rows first, then multiply
             X  = top k − |V| of A'                          by the same method, with a separate certificate
             V  = [V, x_1 … x_r]                             those with λ' ≥ δ λ'_1, which products with A' resolve
    until k are found, or what remains of the rows is rounding

At the end V is rotated by the right singular vectors of ``Y V``, which removes the mixing left between stages. They are
computed from the Gram matrix of its columns, scaled to length one: these columns are nearly orthogonal, so no digits
are lost.

What is proven: in exact arithmetic, with ``R = (I − VVᵀ) A V`` and ``VᵀAV`` diagonal, column i of V leaves the span of
the first p eigenvectors by at most ``‖R_i‖ / (θ_i − λ_{p+1})`` (Davis and Kahan, column by column), and λ_{p+1} is at
most the largest eigenvalue of the rows deflated by the first p columns (Courant and Fischer). Rounding changes the rows
by at most e, the larger of ``4 eps ‖Y‖_F`` and the rounding of their centring. It therefore changes singular values by
at most e, and rotates the first p vectors by at most ``2e / (σ_p − σ_{p+1})`` (Weyl, Wedin).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg.lapack import dgejsv

from deepca._util.floats import EPS, SMALLEST
from deepca._util.portable import norm, total
from deepca._util.typing import Array
from deepca.consensus.averaging import common_average
from deepca.consensus.broadcasts import (
    SEMIORTHOGONALITY_TOLERANCE,
    check_basis,
    check_close,
    check_small,
    checked_count,
    for_local_agents,
    packed,
    unpacked,
)
from deepca.network.base import Network
from deepca.network.sums import COUNT, Addend
from deepca.network.traffic import Traffic
from deepca.operators.base import Operator
from deepca.operators.linalg import flip_signs, frobenius, project_out, symmetric_part
from deepca.solver.certificate.agreed_rounding import SIZES_UNIT
from deepca.solver.certificate.bounds import MAX_KNOWN_TANGENT, Certificate, tangent_bound
from deepca.solver.certificate.certification import digest_of
from deepca.solver.deflation_stages import (
    NORM_FACTOR,
    ZERO_FACTOR,
    Found,
    Search,
    bound_largest,
    common_components,
    estimate_remaining,
    find_in_stages,
    orthonormal_to,
    smallest_resolved,
    square,
)
from deepca.solver.result import Result, StatusCode
from deepca.solver.ritz_axes import completed
from deepca.solver.sentences import below_underflow
from deepca.solver.verdict import UNDERFLOW, deflated_status

__all__ = [
    "annihilate",
    "bound_beyond_rank",
    "count_independent",
    "graded_axes",
    "recover_small_components",
]


_ROUNDING_FACTOR = 4.0  # e, the bound on the rounding of the rows, in units of eps ‖Y‖_F
_NORM_FAILURE = 1e-7  # probability that the estimated norm of the remaining rows is too small


def recover_small_components(
    A: Operator, network: Network, X: Array, result: Result[Any], search: Search, *, tol: float, trace: float
) -> tuple[Array, Result[Any]]:
    """Use the rows to recompute components whose variances are lost in rounding; return components and result.

    Both are returned unchanged if the tolerance is already proven (then nothing is sent), or if an agent cannot go back
    to its rows; if squares of the remaining variances would underflow, only the status changes.

    Parameters
    ----------
    A : Operator
        The A_j of the local agents.
    network : Network
        Network that connects the agents.
    X : ndarray of shape (d, k)
        Components of ``result``, the same at every agent.
    result : Result
        Result of the run that found them.
    search : Search
        Function that finds the top of a deflated operator, by the method that found X.
    tol : float
        Tangent to prove.
    trace : float
        Trace of ``mean A_j``, the same at every agent.
    """
    k, proof = X.shape[1], result.certificate
    if proof is None or not _rounding_hides(proof, result, X.shape, tol):
        return X, result
    if EPS**2 * trace < UNDERFLOW:
        return X, replace(result, status=below_underflow(result.status, proof))
    before = network.traffic
    e = _rounding(A, network, trace)
    if e is None:
        return X, result
    found = find_in_stages(A, network, X, result, search, tol, e)
    if not found.stages:
        return X, result
    V, axes = _rotate(A, found, k, e, network)
    if not found.failed:
        axes = axes.above_rounding(k, max(tol, MAX_KNOWN_TANGENT))
    sigma = axes.sigma
    proof = _certificate(found, V, axes)
    iterating = sum((run.traffic for run in found.results[1:]), Traffic(agents=result.traffic.agents))
    proof = replace(proof, traffic=proof.traffic + (network.traffic - before) - iterating)
    changed = replace(
        result,
        W=for_local_agents(V, network),
        components=for_local_agents(V, network),
        eigenvalues=np.array(np.broadcast_to(proof.eigenvalues, result.eigenvalues.shape)),
        iterations=sum(run.iterations for run in found.results),
        traffic=result.traffic + iterating,
        status=found.last.status if found.failed else deflated_status(proof, sigma.size, len(V), tol),
        rank=sigma.size,
        certificate=proof,
    )
    return V, changed


def _pad(found: Found, V: Array, k: int) -> Array:
    """Pad V to k columns: with those of the last search if it failed, then with an arbitrary completion."""
    if found.failed and V.shape[1] < k:
        V = np.hstack([V, orthonormal_to(common_components(found.last), V)])
    return completed(V[:, :k], k)


def bound_beyond_rank(A: Operator, V: Array, values: Array, network: Network) -> float:
    """Bound the eigenvalues outside the span of orthonormal V if the rows contain only rounding there.

    V must be the same at every agent; ``values`` are the eigenvalues within it. Returns inf if the rows contain more
    than rounding, or if not all agents have rows.
    """
    e = _rounding(A, network, max(total(values), 0.0))
    if e is None:
        return math.inf
    if V.shape[1] == len(V):
        return 0.0
    return square(NORM_FACTOR * ZERO_FACTOR * e) if estimate_remaining(A, V, network) <= ZERO_FACTOR * e else math.inf


def annihilate(A: Operator, V: Array, network: Network) -> bool:
    """Return whether every ``A_j`` was formed without rounding, and ``A_j V`` is exactly zero at every agent."""
    network.begin(network.epoch, 0, "null vectors")
    nonzero = (A @ for_local_agents(V, network)).any(axis=(-2, -1)) | (A.rounding().rows > 0.0)
    found = np.reshape(nonzero, (*network.batch, 1)).astype(np.float64)
    if network.adds_exactly:
        return not network.total(found, COUNT)[0]
    return not network.reduce(found, "max").any()


def _rounding(A: Operator, network: Network, trace: float) -> float | None:
    """Return e, a bound on the Frobenius norm of the rounding errors in the rows of all agents.

    Returns None if an agent cannot go back to its rows.
    """
    network.begin(network.epoch, 0, "rounding of rows")
    lacking, errors = np.full((*network.batch, 1), float(not A.has_rows)), A.rounding().rows[..., None]
    if network.adds_exactly:
        counted, summed = network.totals(
            Addend("counts of agents without rows", lacking, unit=COUNT, nonnegative=True),
            Addend("squared rounding errors", errors, guess=SIZES_UNIT, nonnegative=True),
        )
        unavailable, centred = counted.value[0] > 0.0, float(summed.value[0]) / network.n_agents
    else:
        unavailable = network.reduce(lacking, "max")[0] > 0.0
        centred = 0.0 if unavailable else float(common_average(network, errors)[0])
    if unavailable:
        return None
    return max(_ROUNDING_FACTOR * EPS * math.sqrt(trace), math.sqrt(max(centred, 0.0)))


def graded_axes(G: Array) -> tuple[Array, Array]:
    """Return ``(T, σ)`` such that ``Z T`` has orthogonal columns of lengths σ, descending, from ``G = ZᵀZ``.

    Notes
    -----
    The columns of Z must be nearly orthogonal. With columns scaled to length one, the Cholesky factor R of G is as
    accurate as G, and the singular vectors of R, unlike the eigenvectors of G, keep short columns accurate. Jacobi
    rotations compute them as accurately as the columns are known; bidiagonalisation would be ten times less accurate
    for long columns.
    """
    lengths = np.sqrt(np.maximum(np.diagonal(G), 0.0))
    if lengths.min() > 0.0:
        try:
            R = np.linalg.cholesky(G / (lengths[:, None] * lengths)).T * lengths
            sigma, _, right, scaled, _, failed = dgejsv(R, joba=0, jobu=3, jobv=0)
            if failed == 0:
                return np.asarray(right), np.asarray(sigma * (scaled[0] / scaled[1]))
        except np.linalg.LinAlgError:  # lower rank: the columns are as orthogonal as possible
            pass
    order = np.argsort(-lengths, kind="stable")
    return np.eye(len(G))[:, order], lengths[order]


def _rounding_hides(proof: Certificate, result: Result[Any], shape: tuple[int, int], tol: float) -> bool:
    """Return whether the tolerance may be unproven because the rounding of the largest eigenvalue hides others."""
    d, k = shape
    if not proof.averaging_ok or result.status.code in (StatusCode.INDEFINITE_MEAN, StatusCode.TRACKING_LOST):
        return False
    steep = proof.eigenvalues[-1] < smallest_resolved(tol) * proof.eigenvalues[0]
    if result.status.code == StatusCode.RANK_DEFICIENT:
        return result.rank > 0 and proof.leading(result.rank) > tol
    return steep and (result.rank < k or not (proof.proves(tol) if k < d else proof.proves_leading_parts(tol)))


@dataclass(frozen=True)
class _Axes:
    """Numbers that bound the errors of the r axes after the final rotation.

    Attributes
    ----------
    sigma : ndarray of shape (r,)
        Singular values.
    residuals, noise : ndarray of shape (r,)
        Norms of the residuals, and of their rounding errors.
    parts : tuple of float
        Bounds on ``tan θ_p`` of the first p axes.
    remaining : float
        Bound on the largest eigenvalue outside all axes; −inf if nothing lies outside.
    e : float
        Bound on the rounding errors of the singular values: that of the rows, divided by the √s of
        :func:`count_independent`.
    """

    sigma: Array
    residuals: Array
    noise: Array
    parts: tuple[float, ...]
    remaining: float
    e: float

    def above_rounding(self, k: int, tol: float) -> _Axes:
        """Drop trailing columns whose angles are not known to ``tol``, if they may be nothing but rounding of the rows.

        Nothing is dropped if k columns were found, or if one of these columns clearly exceeds rounding.
        """
        r = max((p for p, part in enumerate(self.parts, 1) if part <= tol), default=0)
        if not 0 < r < self.sigma.size < k or self.sigma[r] > NORM_FACTOR * ZERO_FACTOR * self.e:
            return self
        remaining = max(square(float(self.sigma[r])), self.remaining) + norm((self.residuals + self.noise)[r:])
        return _Axes(self.sigma[:r], self.residuals[:r], self.noise[:r], self.parts[:r], remaining, self.e)


def _rotate(A: Operator, found: Found, k: int, e: float, network: Network) -> tuple[Array, _Axes]:
    """Rotate the columns found to the axes of ``Y V``, pad them to k, and bound their angles, at the leader."""
    V, sizes = np.hstack([stage.V for stage in found.stages]), [stage.V.shape[1] for stage in found.stages]
    d, made = V.shape
    network.begin(network.epoch, made, "graded axes")
    G = symmetric_part(common_average(network, A.gram(V).reshape(*network.batch, made * made)).reshape(made, made))
    r, independence = _agree_independent(network, G, e)
    V, G, e = V[:, :r], G[:r, :r], e / math.sqrt(independence)
    remaining = found.remaining
    if r < made:
        remaining = bound_largest(found.results[int(np.searchsorted(np.cumsum(sizes), r, side="right"))])
    remaining = remaining if r < d else -math.inf
    turn, sigma = graded_axes(G)
    AV = np.hstack([stage.AV for stage in found.stages])[:, :r]
    residuals = frobenius(project_out(AV, V) @ turn, axis=0)
    noise = np.abs(turn).T @ np.repeat([stage.noise for stage in found.stages], sizes)[:r]
    parts = np.array(_bound_leading(sigma, residuals + noise, remaining, e))
    filled = _pad(found, flip_signs(V @ turn), k)
    received = network.from_leader(packed(filled, sigma, residuals, noise, parts))
    common, *numbers = unpacked(received, (d, k), (r,), (r,), (r,), (r,))
    axes = _Axes(numbers[0], numbers[1], numbers[2], tuple(map(float, numbers[3])), remaining, e)
    if not network.is_leader_local:
        inside = V if r <= k else np.empty((d, 0))
        check_basis(network, "components", common, contains=inside, beyond=SEMIORTHOGONALITY_TOLERANCE)
        check_close(network, "singular values", numbers[0], sigma, 64.0 * e)
        lowest = 0.5 * np.concatenate([residuals, noise]) - 1e-12 * sigma[0] ** 2
        check_small(network, "residuals", float((lowest - np.concatenate([axes.residuals, axes.noise])).max()), 0.0)
        check_small(
            network, "bounds", float((0.5 * np.minimum(parts, 1.0) - numbers[3]).max()), SEMIORTHOGONALITY_TOLERANCE
        )
    return common, axes


def _agree_independent(network: Network, G: Array, e: float) -> tuple[int, float]:
    """Return the leader's :func:`count_independent`; other agents reject values that would make bounds too small."""
    own = count_independent(G, e)
    count, independence = network.from_leader(packed(*own))
    r = checked_count(network.leader, "a number of components", count, len(G))
    if r == own[0]:
        check_small(network, "the independence of components", float(independence) - 2.0 * own[1], 0.0)
    check_small(network, "the independence of components", abs(float(independence) - 0.5), 0.5)
    return max(r, 1), max(float(independence), SMALLEST)


def count_independent(G: Array, e: float) -> tuple[int, float]:
    """Count how many columns of Z, from the first, extend the span of the previous ones by more than rounding.

    Returns their number, and their smallest s: the squared sine of the angle between a column and the span of the
    previous ones, computed from ``G = ZᵀZ``. If a component was inexact when the rows were deflated, a later stage
    finds part of that component again. If the rows contain nothing else, it finds only that part, and s is rounding.
    Rounding of the rows by e changes ``s ‖z‖`` by 2e, and σ by ``e/√s``.
    """
    lengths = np.sqrt(np.maximum(np.diagonal(G), 0.0))
    C = G / np.where(lengths > 0.0, lengths, 1.0) / np.where(lengths > 0.0, lengths, 1.0)[:, None]
    L, smallest = np.zeros_like(C), 1.0
    for j, length_j in enumerate(lengths):
        L[j, :j] = np.linalg.solve(L[:j, :j], C[:j, j])
        s = 1.0 - float(L[j, :j] @ L[j, :j])
        if not s * length_j > ZERO_FACTOR * e:
            return j, smallest
        L[j, j], smallest = math.sqrt(s), min(smallest, s)
    return len(G), smallest


def _bound_leading(sigma: Array, residuals: Array, remaining: float, e: float) -> tuple[float, ...]:
    """Bound ``tan θ_p`` of the first p columns for every p, given σ in descending order.

    ``remaining`` is an upper bound on the eigenvalues outside the span of all columns.
    """
    bounds = []
    for p in range(1, sigma.size + 1):
        if p == sigma.size and remaining == -math.inf:  # nothing lies outside
            bounds.append(0.0)
            continue
        inside = float(np.square(sigma[p])) if p < sigma.size else 0.0
        above = max(inside, remaining) + float(frobenius(residuals[p:]))
        below = math.sqrt(max(above, 0.0)) + e  # an upper bound on σ_{p+1} of the unrounded rows
        gap, squared = float(sigma[p - 1]) - e - below, np.square(sigma[:p]) - below**2
        if not (gap > 0.0 and math.isfinite(below)):
            bounds.append(math.inf)
            continue
        bounds.append(tangent_bound(float(frobenius(residuals[:p] / squared)) + 2.0 * e / gap, 1.0))
    return tuple(bounds)


def _certificate(found: Found, V: Array, axes: _Axes) -> Certificate:
    """Return the certificate of all stages together."""
    (d, k), sigma, remaining, e = V.shape, axes.sigma, axes.remaining, axes.e
    formed = e * (2.0 * float(sigma[0]) + e)  # change of the squared singular values by rounding of the rows
    uncertainty = norm(axes.noise) + formed
    runs = [run.certificate for run in found.results if run.certificate is not None]
    first, last, r = runs[0], runs[-1], sigma.size
    theta, unit = np.square(sigma), 1.0 / float(np.square(sigma[0]))
    separation = 4.0 * e * float(sigma[-1])
    probed_outside = r == k < d  # then the last stage probed the space outside the k columns
    gaps = [j for j in range(1, r) if sigma[j - 1] - sigma[j] > 4.0 * e]
    return replace(
        first,
        angle=axes.parts[-1] if r == k else math.inf,
        agents_angle=0.0,
        residual=(norm(axes.residuals + axes.noise) + formed) * unit,
        uncertainty=uncertainty * unit,
        noise=norm(axes.noise) * unit,
        coupling=uncertainty * unit,
        eigenvalues=(*map(float, theta), *(last.eigenvalues if found.failed else [0.0] * (k - r)))[:k],
        others=last.others if probed_outside else (),
        bound=square(math.sqrt(max(remaining, 0.0)) + e) if math.isfinite(remaining) else remaining,
        failure=total([run.failure for run in runs]) + (_NORM_FAILURE if r < k and r < d else 0.0),
        separation=separation,
        smaller_k=max(gaps, default=None) if r == k else r,
        larger_k=None if last.larger_k is None or not probed_outside else last.larger_k + k - last.k,
        averaging_error=max(run.averaging_error for run in runs),
        digest=digest_of(V),
        probes=last.probes,
        products=sum(run.products for run in runs),
        parts=(*axes.parts, *[math.inf] * (k - r)),
    )
