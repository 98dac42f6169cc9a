"""Check the claims of certificates and statuses against the true spectrum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca import Certificate, Result, Status
from studies.adversary.reference import Spectrum, tangent
from studies.adversary.trial import Trial

__all__ = ["check_certificate", "check_result", "check_status"]

Array = npt.NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_DISTINCT_GAP = 1e-2  # eigenvalues with a larger relative gap must not be reported as equal
_NONZERO_ULPS = 1e3  # values above this multiple of d·eps times the largest one are not zero
_UNDERFLOW = 1e-290  # products involving eigenvalues below this lose digits
_FLOOR_TOLERANCE = 1e-6  # largest angle that a status may call usable at the rounding floor


def check_result(trial: Trial, result: Result[Any], truth: Spectrum, tol: float, *, lossy: bool = False) -> None:
    """Check every claim of a :class:`deepca.Result`; ``lossy`` is true if messages were lost during the run."""
    X = np.asarray(result.components).reshape(-1, *result.components.shape[-2:])[0]
    k, status, certificate = X.shape[1], result.status, result.certificate
    trial.status = status.code
    if certificate is not None:
        check_certificate(trial, certificate, X, truth, W=result.W)
    trial.proven = status.ok and certificate is not None and math.isfinite(certificate.angle)
    check_status(trial, status, truth, k, tol, X, rank=result.rank, W=result.W, lossy=lossy)


def check_certificate(
    trial: Trial, certificate: Certificate, X: Array, truth: Spectrum, *, W: Array | None = None
) -> None:
    """Check the angle, next-eigenvalue bound, leading parts and eigenvalues certified for X ``(d, k)``.

    ``W`` consists of the bases of the individual agents, to which ``worst_angle`` applies.
    """
    k, scale = X.shape[1], certificate.scale
    if not certificate.averaging_ok:
        return
    if math.isfinite(certificate.angle):
        trial.claim("angle", _angle(truth, k, X), certificate.angle, truth.angle_error_bound(k))
    if W is not None and math.isfinite(certificate.worst_angle):
        trial.claim("angle at an agent", _angle(truth, k, W), certificate.worst_angle, truth.angle_error_bound(k))
    if k < truth.d and certificate.others and scale > 0.0:
        above = max(float(truth.values[k] - certificate.bound), 0.0)
        trial.claim("λ_{k+1} above its bound", above / scale, 0.0, truth.value_error_bound(k) / scale)
    for r in range(1, k):
        leading = certificate.leading(r)
        if math.isfinite(leading):
            trial.claim(f"leading {r}", _angle(truth, r, X[:, :r]), leading, truth.angle_error_bound(r))
    if math.isfinite(certificate.angle) and scale > 0.0:
        off = np.abs(np.array(certificate.eigenvalues) - truth.values[:k]).astype(np.float64)
        worst = int(np.argmax(off))
        trial.claim("eigenvalue", off[worst] / scale, certificate.residual, truth.value_error_bound(worst) / scale)


def check_status(
    trial: Trial,
    status: Status,
    truth: Spectrum,
    k: int,
    tol: float,
    X: Array,
    *,
    rank: int | None = None,
    W: Array | None = None,
    lossy: bool = False,
) -> None:
    """Check the guarantee that a status gives, or the cause that it names."""
    code, error_bound = status.code, truth.angle_error_bound(k)
    if code == "converged":
        trial.claim("converged, components", _angle(truth, k, X), tol, error_bound)
        if W is not None:
            trial.claim("converged, an agent", _angle(truth, k, W), tol, error_bound)
    if code == "rank_deficient" and rank is not None:
        _check_rank(trial, truth, rank, tol, X)
    if code == "not_unique":
        relative_gap = truth.relative_gap(k)
        equal = relative_gap <= _DISTINCT_GAP or truth.below_rounding(k)
        trial.fact(f"wrong cause: not unique, but λ_k and λ_k+1 differ by {relative_gap:.1e}", equal)
    if code == "below_rounding" and float(truth.values[0]) > _UNDERFLOW:
        least = float(abs(truth.values[k - 1]))
        trial.fact(
            f"wrong cause: λ_k = {least:.1e} reported below the rounding level, which is {truth.rounding:.1e}",
            least <= truth.rounding,
        )
    if code == "not_top":
        trial.fact("wrong cause: not top, but the subspace is within the tolerance", _angle(truth, k, X) > tol)
    if code == "indefinite_mean":
        trial.fact("wrong cause: indefinite, but the mean matrix is not", float(truth.values[-1]) < 0.0)
    if code in ("tracking_lost", "averaging_failed"):
        trial.fact(f"wrong cause: {code}, but no message was lost", lossy)


def _check_rank(trial: Trial, truth: Spectrum, rank: int, tol: float, X: Array) -> None:
    """Check that the first ``rank`` components meet the tolerance and that the remaining spectrum is zero."""
    if rank == 0:
        trial.fact(
            "wrong cause: rank 0, but there is variance", float(truth.values[0]) <= float(np.finfo(np.float64).tiny)
        )
        return
    if rank < truth.d:
        largest, next_one = float(truth.values[0]), max(float(truth.values[rank]), 0.0)
        rounding = _NONZERO_ULPS * _EPS * truth.d
        if truth.roots:
            largest, next_one = math.sqrt(largest), math.sqrt(next_one)
        trial.claim(
            f"wrong cause: rank {rank}, but the next value is not zero",
            next_one / largest,
            rounding,
            truth.error_bound / largest,
        )
    trial.claim(
        "rank deficient, leading part",
        _angle(truth, rank, X[:, :rank]),
        max(tol, _FLOOR_TOLERANCE),
        truth.angle_error_bound(rank),
    )


def _angle(truth: Spectrum, k: int, X: Array) -> float:
    return tangent(truth.top(k), truth.vectors[:, k:], X)
