"""Components whose variance lies below the rounding of the largest one, found at the rows.

Products ``A_j W`` are good to ``eps·λ₁``, so an eigenvalue below that drowns, and the components that belong to it with
it. The rows know more: a singular value σ_i of all rows together, ``λ_i = σ_i²``, is good to ``eps·σ₁``, as a pooled
SVD has it. So where a spectrum is steep, it is taken in stages::

    V = []
    repeat   A' = mean of (Y_j(I − VVᵀ))ᵀ Y_j(I − VVᵀ)      rows deflated first, then multiplied
             X  = top k − |V| of A'                          by the same method, with a certificate of its own
             V  = [V, x_1 … x_r]                             those with λ' ≥ δ λ'_1, which products of A' tell well
    until k are found, or what is left of the rows is rounding

and at the end turned by the singular vectors of ``Y V``, whose columns are nearly orthogonal, through their Gram matrix
with columns scaled to length one: that settles what the stages left between each other.

What is proven. In exact arithmetic, with ``R = (I − VVᵀ) A V`` and ``VᵀAV`` diagonal, column i of V leaves the span of
the first p eigenvectors by ``‖R_i‖ / (θ_i − λ_{p+1})`` at most (Davis & Kahan, column by column), and λ_{p+1} is no
larger than the largest eigenvalue of the rows deflated by the first p columns (Courant & Fischer). Rounding changes the
rows by at most ``e = 4 eps ‖Y‖_F``, or by what centring them did if that is more, and with them singular values by e
and the first p vectors by an angle of ``2e / (σ_p − σ_{p+1})`` (Weyl, Wedin).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg.lapack import dgejsv

from deepca._util.floats import EPS, SMALLEST
from deepca._util.portable import length, total
from deepca._util.typing import Array
from deepca.consensus.averaging import common_average
from deepca.network.base import Network
from deepca.network.broadcasts import (
    SEMI,
    check_basis,
    check_close,
    check_small,
    counted,
    everywhere,
    packed,
    unpacked,
)
from deepca.network.traffic import Traffic
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius, largest_positive, symmetric_part, without
from deepca.solver.certificate.bounds import KNOWN, Certificate, tangent
from deepca.solver.certificate.certification import digest_of
from deepca.solver.deflation_stages import (
    RANK,
    UNSEEN,
    Found,
    Search,
    common_components,
    in_stages,
    largest_searched,
    norm_left,
    orthonormal_to,
    smallest_told,
    squared,
)
from deepca.solver.result import Result, StatusCode
from deepca.solver.ritz_axes import completed
from deepca.solver.sentences import below_underflow
from deepca.solver.verdict import UNDERFLOW, deflated_status

__all__ = ["as_given", "graded_axes", "independent", "rounding_beyond", "sharpened"]


_ROUNDING = 4.0  # e in units of eps ‖Y‖_F
_CHANCE = 1e-7


def sharpened(
    A: Operator, network: Network, X: Array, result: Result[Any], search: Search, *, tol: float, trace: float
) -> tuple[Array, Result[Any]]:
    """The components X with small variances found at the rows, where rounding of the largest hides them.

    Parameters
    ----------
    X : ``(d, k)``, the components of ``result``, the same at every agent.
    search : finds the top of a deflated operator, the way that X was found.
    trace : of ``mean A_j``, the same at every agent.

    Unchanged, and at no cost, where the tolerance is proven already; unchanged where not all agents have rows at hand.
    """
    k, proof = X.shape[1], result.certificate
    if proof is None or not _hidden(proof, result, X.shape, tol):
        return X, result
    if EPS**2 * trace < UNDERFLOW:
        return X, replace(result, status=below_underflow(result.status, proof))
    if not _at_hand(A, network):
        return X, result
    before, e = network.traffic, _rounding(A, network, trace)
    found = in_stages(A, network, X, result, search, tol, e)
    if not found.stages:
        return X, result
    V, turned = _turned(A, found, k, e, network)
    if not found.failed:
        turned = turned.above_rounding(k, max(tol, KNOWN))
    sigma = turned.sigma
    proof = _certificate(found, V, turned)
    iterating = sum((run.traffic for run in found.results[1:]), Traffic(agents=result.traffic.agents))
    proof = replace(proof, traffic=proof.traffic + (network.traffic - before) - iterating)
    changed = replace(
        result,
        W=everywhere(V, network),
        components=everywhere(V, network),
        eigenvalues=np.array(np.broadcast_to(proof.eigenvalues, result.eigenvalues.shape)),
        iterations=sum(run.iterations for run in found.results),
        traffic=result.traffic + iterating,
        status=found.last.status if found.failed else deflated_status(proof, sigma.size, len(V), tol),
        rank=sigma.size,
        certificate=proof,
    )
    return V, changed


def _filled(found: Found, V: Array, k: int) -> Array:
    """V with as many columns as were asked for: any, if there is nothing more; else whatever the last search had."""
    if found.failed and V.shape[1] < k:
        V = np.hstack([V, orthonormal_to(common_components(found.last), V)])
    return completed(V[:, :k], k)


def rounding_beyond(A: Operator, V: Array, values: Array, network: Network) -> float:
    """Bound eigenvalues outside the span of orthonormal V, the same at every agent, where the rows have only rounding.

    Returns inf where they have more than that, or where not all agents have rows at hand.  values : those within V.
    """
    if not _at_hand(A, network):
        return math.inf
    e = _rounding(A, network, max(total(values), 0.0))
    if V.shape[1] == len(V):
        return 0.0
    return squared(UNSEEN * RANK * e) if norm_left(A, V, network) <= RANK * e else math.inf


def as_given(A: Operator, network: Network) -> bool:
    """Whether no agent's matrix was made from rows, with their rounding in it: what is zero in it is zero."""
    network.begin(network.epoch, 0, "as given")
    return not network.reduce(np.reshape(A.rounding().rows > 0.0, (*network.batch, 1)).astype(np.float64), "max").any()


def _rounding(A: Operator, network: Network, trace: float) -> float:
    """Return e: by what rounding changes the rows of all agents together, as a Frobenius norm."""
    network.begin(network.epoch, 0, "rounding of rows")
    centred = float(common_average(network, A.rounding().rows[..., None])[0])
    return max(_ROUNDING * EPS * math.sqrt(trace), math.sqrt(max(centred, 0.0)))


def _at_hand(A: Operator, network: Network) -> bool:
    """Whether every agent has its rows at hand."""
    network.begin(network.epoch, 0, "rows at hand")
    return bool(network.reduce(np.full((*network.batch, 1), float(A.has_rows)), "min")[0])


def graded_axes(G: Array) -> tuple[Array, Array]:
    """``(T, σ)`` with orthogonal columns of ``Z T``, of lengths σ, falling, from ``G = ZᵀZ`` with nearly orthogonal Z.

    With columns of Z scaled to length one, the Cholesky factor R of G is as good as G, and the singular vectors of R,
    not the eigenvectors of G, keep short columns good. Jacobi rotations find them as well as the columns are known;
    bidiagonalisation would lose an order of magnitude in the long ones.
    """
    lengths = np.sqrt(np.maximum(np.diagonal(G), 0.0))
    if lengths.min() > 0.0:
        try:
            R = np.linalg.cholesky(G / (lengths[:, None] * lengths)).T * lengths
            sigma, _, right, scaled, _, failed = dgejsv(R, joba=0, jobu=3, jobv=0)
            if failed == 0:
                return np.asarray(right), np.asarray(sigma * (scaled[0] / scaled[1]))
        except np.linalg.LinAlgError:  # of lower rank: the columns are as orthogonal as they can be
            pass
    order = np.argsort(-lengths, kind="stable")
    return np.eye(len(G))[:, order], lengths[order]


def _hidden(proof: Certificate, result: Result[Any], shape: tuple[int, int], tol: float) -> bool:
    """Whether rounding of the largest eigenvalue may be what keeps the tolerance from being proven."""
    d, k = shape
    if not proof.averaging_ok or result.status.code in (StatusCode.INDEFINITE_MEAN, StatusCode.TRACKING_LOST):
        return False
    steep = proof.eigenvalues[-1] < smallest_told(tol) * proof.eigenvalues[0]
    if result.status.code == StatusCode.RANK_DEFICIENT:
        return result.rank > 0 and proof.leading(result.rank) > tol
    return steep and (result.rank < k or not (proof.proves(tol) if k < d else proof.tells_all(tol)))


@dataclass(frozen=True)
class _Turned:
    """What is known of the columns after the last turn, each ``(r,)``: σ, residuals, their rounding, and the bounds.

    left : a bound on the largest eigenvalue outside of all of them; −inf where nothing lies outside.
    e : what rounding does to σ.
    """

    sigma: Array
    outside: Array
    noise: Array
    parts: tuple[float, ...]
    left: float
    e: float

    def above_rounding(self, k: int, tol: float) -> _Turned:
        """Drop the last columns whose angles are not known to ``tol``, if the rows cannot tell them from rounding.

        Nothing is dropped where k columns have been found, or where one of those stands clear of rounding.
        """
        r = max((p for p, part in enumerate(self.parts, 1) if part <= tol), default=0)
        if not 0 < r < self.sigma.size < k or self.sigma[r] > UNSEEN * RANK * self.e:
            return self
        left = max(squared(float(self.sigma[r])), self.left) + length((self.outside + self.noise)[r:])
        return _Turned(self.sigma[:r], self.outside[:r], self.noise[:r], self.parts[:r], left, self.e)


def _turned(A: Operator, found: Found, k: int, e: float, network: Network) -> tuple[Array, _Turned]:
    """Turn the columns found to the axes of ``Y V``, fill them up to k, and bound their angles, as the leader does."""
    V, sizes = np.hstack([stage.V for stage in found.stages]), [stage.V.shape[1] for stage in found.stages]
    d, made = V.shape
    network.begin(network.epoch, made, "graded axes")
    G = symmetric_part(common_average(network, A.gram(V).reshape(*network.batch, made * made)).reshape(made, made))
    r, least = _common_independent(network, G, e)
    V, G, e = V[:, :r], G[:r, :r], e / math.sqrt(least)
    left = (
        found.left
        if r == made
        else largest_searched(found.results[int(np.searchsorted(np.cumsum(sizes), r, side="right"))])
    )
    left = left if r < d else -math.inf
    turn, sigma = graded_axes(G)
    outside = frobenius(without(np.hstack([stage.AV for stage in found.stages])[:, :r], V) @ turn, axis=0)
    noise = np.abs(turn).T @ np.repeat([stage.noise for stage in found.stages], sizes)[:r]
    parts = np.array(_parts(sigma, outside + noise, left, e))
    filled = _filled(found, largest_positive(V @ turn), k)
    told = network.from_leader(packed(filled, sigma, outside, noise, parts))
    common, *numbers = unpacked(told, (d, k), (r,), (r,), (r,), (r,))
    turned = _Turned(numbers[0], numbers[1], numbers[2], tuple(map(float, numbers[3])), left, e)
    if not network.leads:
        inside = V if r <= k else np.empty((d, 0))
        check_basis(network, "components", common, contains=inside, beyond=SEMI)
        check_close(network, "singular values", numbers[0], sigma, 64.0 * e)
        least = 0.5 * np.concatenate([outside, noise]) - 1e-12 * sigma[0] ** 2
        check_small(network, "residuals", float((least - np.concatenate([turned.outside, turned.noise])).max()), 0.0)
        check_small(network, "bounds", float((0.5 * np.minimum(parts, 1.0) - numbers[3]).max()), SEMI)
    return common, turned


def _common_independent(network: Network, G: Array, e: float) -> tuple[int, float]:
    """As :func:`independent`, the leader's; the others refuse what would make bounds smaller."""
    own = independent(G, e)
    count, least = network.from_leader(packed(*own))
    r = counted(network.leader, "a number of components", count, len(G))
    if r == own[0]:
        check_small(network, "how far components are independent", float(least) - 2.0 * own[1], 0.0)
    check_small(network, "how far components are independent", abs(float(least) - 0.5), 0.5)
    return max(r, 1), max(float(least), SMALLEST)


def independent(G: Array, e: float) -> tuple[int, float]:
    """How many of the first columns of Z are more than rounding beside those before them, from ``G = ZᵀZ``.

    With it the smallest s of these, s being the squared sine of the angle between a column and the span of those before
    it. Components that were not exact when the rows were deflated are found once more, in part or, where the rows have
    nothing else, in whole: then s is rounding. Rounding of the rows by e changes ``s ‖z‖`` by 2e, and σ by ``e/√s``.
    """
    lengths = np.sqrt(np.maximum(np.diagonal(G), 0.0))
    C = G / np.where(lengths > 0.0, lengths, 1.0) / np.where(lengths > 0.0, lengths, 1.0)[:, None]
    L, least = np.zeros_like(C), 1.0
    for j, length_j in enumerate(lengths):
        L[j, :j] = np.linalg.solve(L[:j, :j], C[:j, j])
        s = 1.0 - float(L[j, :j] @ L[j, :j])
        if not s * length_j > RANK * e:
            return j, least
        L[j, j], least = math.sqrt(s), min(least, s)
    return len(G), least


def _parts(sigma: Array, residuals: Array, left: float, e: float) -> tuple[float, ...]:
    """Bounds on ``tan θ_p`` of the first p columns, by falling σ; ``left`` bounds what lies outside all of them."""
    bounds = []
    for p in range(1, sigma.size + 1):
        if p == sigma.size and left == -math.inf:  # nothing lies outside
            bounds.append(0.0)
            continue
        inside = float(np.square(sigma[p])) if p < sigma.size else 0.0
        above = max(inside, left) + float(frobenius(residuals[p:]))
        below = math.sqrt(max(above, 0.0)) + e  # σ_{p+1} of the rows as given is no larger
        reach, squared = float(sigma[p - 1]) - e - below, np.square(sigma[:p]) - below**2
        if not (reach > 0.0 and math.isfinite(below)):
            bounds.append(math.inf)
            continue
        bounds.append(tangent(float(frobenius(residuals[:p] / squared)) + 2.0 * e / reach, 1.0))
    return tuple(bounds)


def _certificate(found: Found, V: Array, of: _Turned) -> Certificate:
    """What the stages prove together, in the terms of the whole."""
    (d, k), sigma, left, e = V.shape, of.sigma, of.left, of.e
    formed = e * (2.0 * float(sigma[0]) + e)  # what rounding of the rows does to squares of singular values
    off = length(of.noise) + formed
    runs = [run.certificate for run in found.results if run.certificate is not None]
    first, last, r = runs[0], runs[-1], sigma.size
    theta, unit = np.square(sigma), 1.0 / float(np.square(sigma[0]))
    separation = 4.0 * e * float(sigma[-1])
    ended = r == k < d  # the last stage looked outside all of them
    gaps = [j for j in range(1, r) if sigma[j - 1] - sigma[j] > 4.0 * e]
    return replace(
        first,
        angle=of.parts[-1] if r == k else math.inf,
        agents_angle=0.0,
        residual=(length(of.outside + of.noise) + formed) * unit,
        uncertainty=off * unit,
        noise=length(of.noise) * unit,
        coupling=off * unit,
        eigenvalues=(*map(float, theta), *(last.eigenvalues if found.failed else [0.0] * (k - r)))[:k],
        others=last.others if ended else (),
        bound=squared(math.sqrt(max(left, 0.0)) + e) if math.isfinite(left) else left,
        failure=total([run.failure for run in runs]) + (_CHANCE if r < k and r < d else 0.0),
        separation=separation,
        smaller_k=max(gaps, default=None) if r == k else r,
        larger_k=None if last.larger_k is None or not ended else last.larger_k + k - last.k,
        averaging_error=max(run.averaging_error for run in runs),
        digest=digest_of(V),
        probes=last.probes,
        products=sum(run.products for run in runs),
        parts=(*of.parts, *[math.inf] * (k - r)),
    )
