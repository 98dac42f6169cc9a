"""Word the status of a run: for each way in which it can end, what happened, its numbers, and the next step.

The same sentences are read in Python, on the command line, and in the logs of agents that are configured by files. So
they speak of components and of the tolerance, not of ``n_components`` or ``tol``, and name only parameters that are
called the same everywhere, such as ``max_iter``; a step that exists only in Python says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deepca._util.units import plural
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.result import Status, StatusCode
from deepca.solver.stopping import Agreed, StopRule, error_estimate

__all__ = [
    "Estimate",
    "UnfinishedRun",
    "averaging_failed",
    "below_rounding",
    "below_row_rounding",
    "below_underflow",
    "done",
    "drifted",
    "error_numbers",
    "gap_unresolved",
    "indefinite",
    "interrupted",
    "not_top",
    "not_unique",
    "rank_deficient",
    "rank_deficient_rows",
    "underflow",
]


RESUME = " (after deepca.solve, start=result.state continues from here)"
"""Advice for callers of :func:`deepca.solve`, who can resume instead of starting over."""
_MAX_ADVISED_TOLERANCE = 0.1  # tangent above which components would be too inaccurate to be of use


@dataclass(frozen=True)
class Estimate:
    """Estimated error of an answer without a certificate."""

    error: float
    disagreement: float

    @classmethod
    def of(cls, history: Sequence[Agreed]) -> Estimate:
        """Estimate the error from the history of agreed numbers."""
        return cls(error_estimate(history), history[-1].disagreement)

    def __str__(self) -> str:
        """Return the estimate as statuses show it."""
        distance = f"agents within {self.disagreement:.1e} of each other"
        return f"estimated error {self.error:.1e}, {distance}, not certified"


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that ended before its tolerance was reached, and its possible statuses.

    Attributes
    ----------
    end : Agreed
        The last agreed numbers.
    iterations : int
        Number of iterations of the run.
    k : int
        Number of components requested.
    auto : bool
        Whether the number of rounds is chosen while running.
    """

    end: Agreed
    iterations: int
    k: int
    auto: bool

    def diverging(self) -> Status:
        """Describe a subspace that keeps moving, and name the likely cause."""
        if self.end.disagreement > 0.1 * self.end.change:
            cause = "the agents are {disagreement:.1e} apart, so the likely cause is too little mixing; "
            cause += self._more_rounds
        else:
            cause = (
                "the agents agree, so the likely cause is a missing gap after k, or columns that flip their signs; "
                "ask for another k, or use the default orthonormalisation"
            )
        sentence = f"the subspace still moves by {{change:.1e}} per iteration after {self._count} and does not settle; "
        return self._status(StatusCode.DIVERGING, sentence + cause + self._rank_hint)

    def disagreeing(self) -> Status:
        """Describe agents that do not reach consensus."""
        sentence = f"did not converge: the agents still disagree by {{disagreement:.1e}} after {self._count}; "
        return self._status(StatusCode.DISAGREEMENT, sentence + self._more_rounds + self._rank_hint)

    def needs_more(self, error: float, rate: float, more: int, tolerance: float) -> Status:
        """Describe a run that converges at a known rate, and state how many more iterations are needed."""
        sentence = (
            f"did not converge in {self._count}: the estimated error is {{error:.1e}} and shrinks by a factor of "
            "{rate:.6g} per iteration; about {more:,} more are needed for a tolerance of {tolerance:.0e}"
        )
        sentence += self._rank_hint + ". Raise max_iter" + RESUME
        numbers = {"error": error, "rate": rate, "more": more, "tolerance": tolerance}
        return self._status(StatusCode.OUT_OF_ITERATIONS, sentence, **numbers)

    def without_rate(self) -> Status:
        """Describe a run that ended before a convergence rate was visible."""
        sentence = (
            f"did not converge in {self._count}: the subspace still moves by {{change:.1e}} per iteration, and no "
            "convergence rate is visible yet"
        )
        return self._status(StatusCode.OUT_OF_ITERATIONS, sentence + self._rank_hint + ". Raise max_iter" + RESUME)

    @property
    def _count(self) -> str:
        return f"{{iterations}} iteration{plural(self.iterations)}"

    @property
    def _more_rounds(self) -> str:
        if self.auto:
            return "rounds are chosen automatically, so check the network"
        return 'use rounds="auto", or a larger number of rounds'

    @property
    def _rank_hint(self) -> str:
        if self.end.rank >= self.k:
            return ""
        return " (the data also have only rank {rank}; ask for k ≤ {rank} components)"

    def _status(self, code: StatusCode, sentence: str, **numbers: float) -> Status:
        """Return the status with these numbers and those of the run."""
        end = self.end
        seen = {"iterations": self.iterations, "change": end.change, "disagreement": end.disagreement, "rank": end.rank}
        return Status.of(code, sentence, **numbers, **seen)


def error_numbers(seen: Certificate | Estimate) -> dict[str, float]:
    """Return what is known about the error of an answer, for the numbers of its status."""
    if isinstance(seen, Certificate):
        return {"angle": seen.proven_angle, "residual": seen.residual}
    return {"error": seen.error, "disagreement": seen.disagreement}


def done(stop: StopRule | None, tol: float, made: int, seen: Certificate | Estimate) -> Status:
    """Describe a run that reached its tolerance or, without a stop rule, looks converged."""
    if stop is None:
        return Status.of(
            StatusCode.COMPLETED,
            f"{{iterations}} iteration{plural(made)}; {seen}",
            iterations=made,
            **error_numbers(seen),
        )
    return Status.of(
        StatusCode.CONVERGED, f"{seen} (tolerance {{tolerance:.1e}})", tolerance=tol, **error_numbers(seen)
    )


def averaging_failed(certificate: Certificate) -> Status:
    """Describe a run on a network that averages incorrectly."""
    sentence = (
        "the average of a number with a known mean is off by {error:.1e}, so messages are being lost or altered; "
        "repair the network, then run again"
    )
    return Status.of(StatusCode.AVERAGING_FAILED, sentence, error=certificate.averaging_error)


def underflow(largest: float, limit: float) -> Status:
    """Describe eigenvalues so small that products lose digits."""
    sentence = (
        "the largest eigenvalue is {largest:.1e}, but products below {limit:.0e} lose digits to underflow; multiply "
        "the data (the rows, or the A_j) by a large power of ten"
    )
    return Status.of(StatusCode.BELOW_ROUNDING, sentence, largest=largest, limit=limit)


def not_top(certificate: Certificate) -> Status:
    """Describe an invariant subspace with a larger eigenvalue outside it."""
    sentence = (
        "the subspace is invariant (residual {residual:.1e}), but an eigenvalue outside it, {outside:.6g}, is larger "
        "than the smallest inside, {inside:.6g}: the start W⁰ has no component along the eigenvector of {outside:.6g}. "
        "Start from random columns (in Python, deepca.operators.linalg.random_orthonormal(d, k))"
    )
    return Status.of(
        StatusCode.NOT_TOP,
        sentence,
        residual=certificate.residual,
        outside=certificate.next_eigenvalue,
        inside=certificate.eigenvalues[-1],
    )


def interrupted() -> Status:
    """Describe a run that ended with a restart of tracking, before any numbers were agreed on again."""
    sentence = "the network changed in the last iteration, so the result could not be checked; run again" + RESUME
    return Status(StatusCode.OUT_OF_ITERATIONS, sentence)


def below_rounding(known: int, k: int, largest: float, certificate: Certificate | None) -> Status:
    """Describe a run in which products with the A_j determine only the first ``known`` components."""
    if known == 0 and certificate is not None:
        return _none_known(
            certificate,
            "the rounding of the A_j, which are probably much larger than their mean. Subtract from the "
            "A_j what cancels in their mean, or compute from rows",
        )
    angle = None if certificate is None else certificate.leading(known)
    sentence = (
        "only {known} of the k = {k} components can be determined"
        + (" (tan θ ≤ {angle:.1e})" if angle is not None else "")
        + "; the remaining variances are zero or lost in the rounding of the largest, {largest:.3g}, and products with "
        "the A_j cannot show which of the two. Ask for k ≤ {at_most} components, or compute from rows that can be read "
        "again (rather than from matrices, or from the sums that partial_fit keeps), which resolve smaller variances"
    )
    return Status.of(StatusCode.BELOW_ROUNDING, sentence, known=known, k=k, angle=angle, largest=largest, at_most=known)


def _none_known(certificate: Certificate, cause_and_remedy: str) -> Status:
    """Describe a run in which rounding hides even the first component, so that a smaller k alone does not help."""
    bounded = certificate.n_bounded
    angle = certificate.leading(bounded) if bounded else math.inf
    sentence = (
        "none of the k = {k} components can be determined: the largest variance, {largest:.3g}, has a relative "
        "uncertainty of {uncertainty:.0e} from " + cause_and_remedy
    )
    if angle < _MAX_ADVISED_TOLERANCE:
        sentence += ", or ask for k ≤ {at_most} with a tolerance above {angle:.1e}"
    return Status.of(
        StatusCode.BELOW_ROUNDING,
        sentence,
        known=0,
        k=certificate.k,
        uncertainty=certificate.uncertainty,
        largest=certificate.scale,
        at_most=bounded,
        angle=angle,
    )


def below_underflow(status: Status, certificate: Certificate) -> Status:
    """Replace a below-rounding status if the rows are too small to search them further; return others unchanged."""
    if status.code != StatusCode.BELOW_ROUNDING:
        return status
    sentence = (
        "only {known} of the k = {k} components can be determined: once they are removed from the rows, the squares of "
        "what remains underflow (the largest variance is {largest:.1e}). Multiply the data by a large power of ten"
    )
    return Status.of(
        StatusCode.BELOW_ROUNDING, sentence, known=certificate.n_known(), k=certificate.k, largest=certificate.scale
    )


def rank_deficient(rank: int, k: int) -> Status:
    """Describe data whose rank is less than k."""
    sentence = (
        "the data have rank {rank}, but k = {k} components were requested; those beyond the rank have eigenvalue zero "
        "and only complete the basis, identically at every agent. Ask for k ≤ {rank} components"
    )
    if rank == 0:
        sentence = (
            "the data have rank {rank}: every product A_j W is zero, or too small to square. Unless the data are zero, "
            "multiply them by a large power of ten"
        )
    return Status.of(StatusCode.RANK_DEFICIENT, sentence, rank=rank, k=k)


def rank_deficient_rows(rank: int, k: int) -> Status:
    """Describe rows in which only ``rank`` directions exceed rounding."""
    sentence = (
        "the data have rank {rank} up to the rounding of the rows, but k = {k} components were requested; the "
        "remaining variances cannot be distinguished from zero, and their components only complete the basis, "
        "identically at every agent. Ask for k ≤ {rank} components"
    )
    return Status.of(StatusCode.RANK_DEFICIENT, sentence, rank=rank, k=k)


def below_row_rounding(certificate: Certificate, rank: int) -> Status:
    """Describe ``rank`` components found from the rows, if rounding prevents a bound on the angle of some of them."""
    known = certificate.n_known()
    if known == 0:
        return _none_known(
            certificate,
            "the rounding of the rows. If the rows are far from zero, centre them, which saves digits; if a "
            "column is nearly constant, exclude it or do not scale columns",
        )
    sentence = (
        "only {known} of the k = {k} components can be determined. The variances of {unsure} more exceed the rounding "
        "of the rows, or the next variance, by too little to determine their directions; smaller ones are lost. Ask "
        "for k ≤ {at_most} components; if the rows are far from zero, centre them, which saves digits"
    )
    return Status.of(
        StatusCode.BELOW_ROUNDING, sentence, known=known, k=certificate.k, unsure=rank - known, at_most=known
    )


def drifted(certificate: Certificate, *, restarted: bool) -> Status:
    """Describe a run whose tracked mean has drifted from the mean of the products.

    ``restarted`` says whether tracking was restarted when it drifted, as it is in runs with a tolerance.
    """
    advice = "run again" if restarted else "run again with a tolerance, so that tracking is restarted when it drifts"
    sentence = (
        "tracking has drifted: mean S differs from mean A W by {drift:.1e} (relative), but rounding explains only "
        "{noise:.1e}, so the components may be wrong by {angle:.1e}. Messages or agents may have been lost unnoticed, "
        "or the A_j may have changed during the run. Remove the cause, then " + advice + RESUME
    )
    return Status.of(
        StatusCode.TRACKING_LOST,
        sentence,
        drift=certificate.drift,
        noise=certificate.noise,
        angle=min(certificate.worst_angle, 1.0),
    )


def not_unique(certificate: Certificate, tol: float) -> Status:
    """Describe a k without a gap after it and name values of k that have one."""
    k, inside = certificate.k, certificate.eigenvalues[-1]
    gap = certificate.gap / max(abs(inside), 1e-300)
    close = "are equal"
    if gap > 1e-14:
        close = "have a relative difference of only {gap:.0e}, too little for a tolerance of {tolerance:.0e}"
    choices = tuple(choice for choice in (certificate.smaller_k, certificate.larger_k) if choice is not None)
    choose = f"ask for {' or '.join(f'k = {choice}' for choice in choices)} components"
    if not choices:
        choose = "no k up to {most} has a gap after it, so try a larger one"
    sentence = f"subspace not unique: λ_{{k}} = {{inside:.9g}} and λ_{{after}} = {{outside:.9g}} {close}; {choose}"
    return Status.of(
        StatusCode.NOT_UNIQUE,
        sentence,
        k=k,
        after=k + 1,
        inside=inside,
        outside=certificate.next_eigenvalue,
        gap=gap,
        tolerance=tol,
        choices=choices,
        most=k + certificate.probes,
    )


def gap_unresolved(certificate: Certificate, error: float, made: int) -> Status:
    """Describe a run that ended before λ_k and λ_{k+1} could be distinguished, so that its estimate is not proven."""
    inside, outside = certificate.eigenvalues[-1], certificate.next_eigenvalue
    sentence = (
        f"not proven after {{iterations}} iteration{plural(made)}: "
        "λ_{k} = {inside:.9g} and λ_{after} = {outside:.9g} cannot be distinguished yet, so the estimated error of "
        "{error:.1e} may be wrong. Raise max_iter, or ask for another k" + RESUME
    )
    return Status.of(
        StatusCode.OUT_OF_ITERATIONS,
        sentence,
        iterations=made,
        k=certificate.k,
        after=certificate.k + 1,
        inside=inside,
        outside=outside,
        error=error,
    )


def indefinite(smallest: float) -> Status:
    """Describe a mean of the A_j with a negative eigenvalue."""
    sentence = (
        "the mean of the A_j has a negative eigenvalue, {smallest:.3g}, so the eigenvalues found are the largest in "
        "absolute value rather than the largest; add the same multiple of the identity to every A_j, large enough to "
        "make the mean positive semidefinite"
    )
    return Status.of(StatusCode.INDEFINITE_MEAN, sentence, smallest=smallest)
