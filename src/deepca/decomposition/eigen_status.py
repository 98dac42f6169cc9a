"""What can be said of eigenpairs that were found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from deepca.decomposition.leading import Leading
from deepca.decomposition.pairs import Pairs, Which
from deepca.decomposition.settings import Settings
from deepca.solver.certificate.bounds import VISIBLE
from deepca.solver.result import Status, StatusCode

__all__ = ["FoundPairs", "beyond", "largest_of", "status_of"]

_END = {"LA": "top", "SA": "bottom"}


@dataclass(frozen=True)
class FoundPairs:
    pairs: Pairs
    iterations: int
    ends: tuple[Leading, ...] = ()
    shifts: tuple[float, ...] = ()
    well_defined: tuple[int, ...] = ()
    ended: Status | None = None
    """Of the first run that did not reach what it should; None if all did."""

    @property
    def choices(self) -> str:
        """Other k to ask for, in words."""
        return " or ".join(f"k = {n}" for n in self.well_defined) or "another k"


def _tied(found: FoundPairs, pairs: Pairs) -> bool:
    """Whether the last value and the next are equal to the rounding of A, which may be more than of the shifted A."""
    return abs(found.ends[0].certificate.gap) <= pairs.separation


def largest_of(pairs: Pairs) -> bool:
    """Whether every other eigenvalue is proven to be smaller in modulus."""
    least = float(np.abs(pairs.values).min()) - pairs.spread
    return pairs.values.size == pairs.vectors.shape[0] or least > max(-pairs.low, pairs.high)


def beyond(pairs: Pairs) -> float:
    """By how much the chosen values are larger in modulus than what was found outside, less what does not count."""
    if math.isnan(pairs.seen):
        return math.inf
    return float(np.abs(pairs.values).min()) - pairs.seen - max(pairs.separation, 2.0 * pairs.spread)


def status_of(found: FoundPairs, pairs: Pairs, which: Which, settings: Settings, unit: float) -> Status:
    """In the words of the problem that was asked, not of the shifted one."""
    k, tol = pairs.values.size, settings.tol
    tied = found.ended is not None and found.ended.code == StatusCode.NOT_UNIQUE
    if found.ended is not None and which != "LM" and (tied or _tied(found, pairs)):
        return _no_gap_at_end(found, pairs, which, tol, unit)
    if which == "LM" and (tied or not largest_of(pairs)):
        unsure = _no_gap_in_modulus(found, pairs, tied, unit)
        if unsure is not None:
            return unsure
    if found.ended is not None:
        return found.ended
    if pairs.angle > tol:
        rounding = pairs.spread <= 100.0 * pairs.noise
        return Status.of(
            StatusCode.ROUNDING_FLOOR if rounding else StatusCode.OUT_OF_ITERATIONS,
            "the span of the vectors is within tan θ ≤ {angle:.1e} of the true one, not proven to be within the "
            "tolerance {tolerance:.1e}" + ("; rounding allows no more here" if rounding else "; raise max_iter"),
            angle=pairs.angle,
            tolerance=tol,
        )
    others = "other eigenvalues between {low:.6g} and {high:.6g} but for a probability of {failure:.0e}"
    return Status.of(
        StatusCode.CONVERGED,
        "tan θ ≤ {angle:.1e} for the span of the vectors (tolerance {tolerance:.1e}), largest residual "
        "{residual:.1e}; " + (others if k < pairs.vectors.shape[0] else "there are no others"),
        angle=pairs.angle,
        tolerance=tol,
        residual=float(pairs.residuals.max()) * unit,
        low=pairs.low * unit,
        high=pairs.high * unit,
        failure=pairs.failure,
    )


def _no_gap_at_end(found: FoundPairs, pairs: Pairs, which: Which, tol: float, unit: float) -> Status:
    """Nothing tells the last eigenvalue from the next, at one end of the spectrum."""
    k, last = pairs.values.size, pairs.values[-1] * unit
    ahead = found.ends[0].certificate.next_eigenvalue
    after = float((1.0 if which == "LA" else -1.0) * (ahead - found.shifts[0])) * unit
    told_apart = max(found.ends[0].certificate.told_apart, pairs.separation) * unit
    largest = max(float(np.abs(pairs.values).max()), abs(pairs.low), abs(pairs.high)) * unit
    status = partial(
        Status.of,
        k=k,
        end=_END[which],
        last=last,
        next=after,
        hidden=told_apart,
        largest=largest,
        tolerance=tol,
        choices=found.well_defined,
    )
    if VISIBLE * max(abs(last), abs(after)) <= told_apart < largest:
        return status(
            StatusCode.BELOW_ROUNDING,
            "the eigenvalue {last:.3g}, number {k} from the {end}, and the next, {next:.3g}, are lost in the rounding "
            "of the largest, which hides differences up to {hidden:.1e}: they may be equal or not; "
            f"well defined: {found.choices}",
        )
    if abs(last - after) > max(told_apart, VISIBLE * max(abs(last), abs(after))):
        return status(
            StatusCode.BELOW_ROUNDING,
            "the eigenvalue {last:.3g}, number {k} from the {end}, and the next, {next:.3g}, differ by too little, "
            "beside the rounding of the largest, {largest:.3g}, for the vectors to be proven; "
            f"well defined: {found.choices}",
        )
    return status(
        StatusCode.NOT_UNIQUE,
        "subspace not unique: the eigenvalue {last:.9g}, number {k} from the {end}, and the next, {next:.9g}, are "
        "equal or too close for a tolerance of {tolerance:.0e}; "
        f"well defined: {found.choices}",
    )


def _no_gap_in_modulus(found: FoundPairs, pairs: Pairs, tied: bool, unit: float) -> Status | None:
    """Something outside may be as large in modulus as what was found; None where only the ends are in doubt."""
    k, last = pairs.values.size, pairs.values[-1] * unit
    if found.ended is not None and not tied:  # what is outside may yet come in
        advice = f"{found.ended.advice}. Or no gap in modulus is left behind k = {k}: algorithm='auto' would tell"
        return Status(found.ended.code, advice, found.ended.numbers)
    if tied or beyond(pairs) <= 0.0:
        ends = (end.certificate.told_apart for end in found.ends)
        told_apart = max(pairs.separation, 2.0 * pairs.spread, 100.0 * pairs.noise, *ends)
        if VISIBLE * float(np.abs(pairs.values).min()) <= told_apart < float(np.abs(pairs.values).max()):
            return Status.of(
                StatusCode.BELOW_ROUNDING,
                "the eigenvalue {last:.3g}, number {k} in modulus, and what lies outside the vectors found are "
                "lost in the rounding of the largest, which hides differences up to {hidden:.1e}: they may be equal "
                f"or not; well defined: {found.choices}",
                k=k,
                last=last,
                hidden=told_apart * unit,
                choices=found.well_defined,
            )
        outside = "" if math.isnan(pairs.seen) else " of modulus {outside:.9g}"
        return Status.of(
            StatusCode.NOT_UNIQUE,
            "subspace not unique: number {k} in modulus is the eigenvalue {last:.9g}, and outside the vectors found "
            "there is one" + outside + " that cannot be told from it, so that no gap is left behind k = {k}; "
            f"choose {found.choices}, or one end of the spectrum (which='LA' or 'SA')",
            k=k,
            last=last,
            outside=pairs.seen * unit,
            choices=found.well_defined,
        )
    if found.ended is None:
        return Status.of(
            StatusCode.OUT_OF_ITERATIONS,
            "each end is found, but not that nothing else is larger in modulus: the smallest is {last:.9g}, and "
            "others may reach from {low:.9g} to {high:.9g}; ask for another k",
            k=k,
            last=last,
            low=pairs.low * unit,
            high=pairs.high * unit,
        )
    return None
