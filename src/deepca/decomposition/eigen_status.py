"""Status of a search for eigenpairs, in terms of the original problem rather than the shifted one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from deepca.decomposition.leading import LeadingEigenpairs
from deepca.decomposition.pairs import RitzPairs, Which
from deepca.decomposition.settings import Settings
from deepca.solver.certificate.bounds import CLEAR_DIFFERENCE
from deepca.solver.result import Status, StatusCode

__all__ = ["EigenOutcome", "modulus_margin", "proven_largest", "status_of"]

_END = {"LA": "top", "SA": "bottom"}


@dataclass(frozen=True)
class EigenOutcome:
    """Outcome of a search for eigenpairs: the pairs, and the runs that found them.

    ``ends`` and ``shifts`` have one entry per run on ``± A + σI``, none if the A_j were not shifted; ``failed_status``
    is the status of the first run that failed, None if all succeeded.
    """

    pairs: RitzPairs
    iterations: int
    ends: tuple[LeadingEigenpairs, ...] = ()
    shifts: tuple[float, ...] = ()
    well_defined: tuple[int, ...] = ()
    failed_status: Status | None = None

    @property
    def choices(self) -> str:
        """Values of k to ask for instead, as text."""
        return " or ".join(f"k = {n}" for n in self.well_defined) or "another k"


def _tied(found: EigenOutcome, pairs: RitzPairs) -> bool:
    """Return whether λ_k and λ_{k+1} are equal up to the rounding of A, which may exceed that of the shifted A."""
    return abs(found.ends[0].certificate.gap) <= pairs.separation


def proven_largest(pairs: RitzPairs) -> bool:
    """Return whether every other eigenvalue is proven to be smaller in modulus."""
    least = float(np.abs(pairs.values).min()) - pairs.spread
    return pairs.values.size == pairs.vectors.shape[0] or least > max(-pairs.low, pairs.high)


def modulus_margin(pairs: RitzPairs) -> float:
    """Return how far the smallest modulus found exceeds the largest one seen outside, beyond doubt.

    The result is inf if no other eigenvalue was seen, and negative if the order is uncertain.
    """
    if math.isnan(pairs.seen):
        return math.inf
    return float(np.abs(pairs.values).min()) - pairs.seen - max(pairs.separation, 2.0 * pairs.spread)


def status_of(found: EigenOutcome, pairs: RitzPairs, which: Which, settings: Settings, unit: float) -> Status:
    """Return the status of a search; ``unit`` is the factor from eigenvalues of the mean to those asked for."""
    k, tol = pairs.values.size, settings.tol
    tied = found.failed_status is not None and found.failed_status.code == StatusCode.NOT_UNIQUE
    if found.failed_status is not None and which != "LM" and (tied or _tied(found, pairs)):
        return _no_gap_at_end(found, pairs, which, tol, unit)
    if which == "LM" and (tied or not proven_largest(pairs)):
        unsure = _no_gap_in_modulus(found, pairs, tied, unit, settings.algorithm)
        if unsure is not None:
            return unsure
    if found.failed_status is not None:
        return found.failed_status
    if pairs.angle > tol:
        rounding = pairs.spread <= 100.0 * pairs.noise
        return Status.of(
            StatusCode.ROUNDING_FLOOR if rounding else StatusCode.OUT_OF_ITERATIONS,
            "the bound tan θ ≤ {angle:.1e} for the span of the vectors exceeds the tolerance {tolerance:.1e}; "
            + ("rounding allows no better bound, so use a larger tolerance" if rounding else "raise max_iter"),
            angle=pairs.angle,
            tolerance=tol,
        )
    others = "all other eigenvalues lie between {low:.6g} and {high:.6g}, except with probability {failure:.0e}"
    return Status.of(
        StatusCode.CONVERGED,
        "tan θ ≤ {angle:.1e} for the span of the vectors (tolerance {tolerance:.1e}), largest residual "
        "{residual:.1e}; " + (others if k < pairs.vectors.shape[0] else "no other eigenvalues exist"),
        angle=pairs.angle,
        tolerance=tol,
        residual=float(pairs.residuals.max()) * unit,
        low=pairs.low * unit,
        high=pairs.high * unit,
        failure=pairs.failure,
    )


def _no_gap_at_end(found: EigenOutcome, pairs: RitzPairs, which: Which, tol: float, unit: float) -> Status:
    """Return the status if eigenvalue k cannot be separated from the next, at one end of the spectrum."""
    k, last = pairs.values.size, pairs.values[-1] * unit
    ahead = found.ends[0].certificate.next_eigenvalue
    after = float((1.0 if which == "LA" else -1.0) * (ahead - found.shifts[0])) * unit
    hidden = max(found.ends[0].certificate.resolution, pairs.separation) * unit
    largest = max(float(np.abs(pairs.values).max()), abs(pairs.low), abs(pairs.high)) * unit
    status = partial(
        Status.of,
        k=k,
        end=_END[which],
        last=last,
        next=after,
        hidden=hidden,
        largest=largest,
        tolerance=tol,
        choices=found.well_defined,
    )
    if CLEAR_DIFFERENCE * max(abs(last), abs(after)) <= hidden < largest:
        return status(
            StatusCode.BELOW_ROUNDING,
            "eigenvalue {k} from the {end}, {last:.3g}, and the next one, {next:.3g}, are lost in the rounding of the "
            "largest, which hides differences up to {hidden:.1e}, so they may or may not be equal; "
            f"ask for {found.choices}",
        )
    if abs(last - after) > max(hidden, CLEAR_DIFFERENCE * max(abs(last), abs(after))):
        return status(
            StatusCode.BELOW_ROUNDING,
            "eigenvalue {k} from the {end}, {last:.3g}, and the next one, {next:.3g}, differ too little, compared with "
            "the rounding of the largest, {largest:.3g}, to prove anything about the vectors; "
            f"ask for {found.choices}",
        )
    return status(
        StatusCode.NOT_UNIQUE,
        "subspace not unique: eigenvalue {k} from the {end}, {last:.9g}, and the next one, {next:.9g}, are equal or "
        "too close for a tolerance of {tolerance:.0e}; "
        f"ask for {found.choices}",
    )


def _no_gap_in_modulus(found: EigenOutcome, pairs: RitzPairs, tied: bool, unit: float, algorithm: str) -> Status | None:
    """Return the status if an eigenvalue outside may be as large in modulus; None if only one end did not converge."""
    k, last = pairs.values.size, pairs.values[-1] * unit
    if found.failed_status is not None and not tied:  # eigenvectors outside may still enter
        advice = (
            f"{found.failed_status.advice}. If k = {k} has no gap in modulus after it, more iterations do not help"
            + ("" if algorithm == "auto" else "; algorithm='auto' can find out")
        )
        return Status(found.failed_status.code, advice, found.failed_status.numbers)
    if tied or modulus_margin(pairs) <= 0.0:
        ends = (end.certificate.resolution for end in found.ends)
        hidden = max(pairs.separation, 2.0 * pairs.spread, 100.0 * pairs.noise, *ends)
        if CLEAR_DIFFERENCE * float(np.abs(pairs.values).min()) <= hidden < float(np.abs(pairs.values).max()):
            return Status.of(
                StatusCode.BELOW_ROUNDING,
                "eigenvalue {k} by modulus, {last:.3g}, and those that were not found are lost in the rounding of the "
                "largest, which hides differences up to {hidden:.1e}, so they may or may not be equal; "
                f"ask for {found.choices}",
                k=k,
                last=last,
                hidden=hidden * unit,
                choices=found.well_defined,
            )
        outside = "" if math.isnan(pairs.seen) else " of modulus {outside:.9g}"
        return Status.of(
            StatusCode.NOT_UNIQUE,
            "subspace not unique: eigenvalue {k} by modulus, {last:.9g}, cannot be distinguished from another one"
            + outside
            + ", so k = {k} has no gap after it; "
            f"ask for {found.choices}, or for one end of the spectrum (which='LA' or which='SA')",
            k=k,
            last=last,
            outside=pairs.seen * unit,
            choices=found.well_defined,
        )
    if found.failed_status is None:
        return Status.of(
            StatusCode.OUT_OF_ITERATIONS,
            "the iterations converged, but an eigenvalue that was not found may be larger in modulus: the smallest one "
            "found is {last:.9g}, and all others lie between {low:.9g} and {high:.9g}; ask for another k",
            k=k,
            last=last,
            low=pairs.low * unit,
            high=pairs.high * unit,
        )
    return None
