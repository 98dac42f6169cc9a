"""Statuses of a run: one sentence for each way in which it can end, with its numbers and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepca.solver.certificate.bounds import Certificate
from deepca.solver.result import Status, StatusCode
from deepca.solver.stopping import Agreed, StopRule, error_estimate

__all__ = [
    "Estimate",
    "averaging_failed",
    "below_rounding",
    "below_underflow",
    "done",
    "drifted",
    "exhausted",
    "indefinite",
    "known_of",
    "lost_in_rows",
    "not_judged",
    "not_top",
    "not_unique",
    "rank_deficient",
    "underflown",
]


@dataclass(frozen=True)
class Estimate:
    """Estimated error of an answer without a certificate."""

    error: float
    disagreement: float

    @classmethod
    def of(cls, history: Sequence[Agreed]) -> Estimate:
        """Return the estimate at the end of an agreed history."""
        return cls(error_estimate(history), history[-1].disagreement)

    def __str__(self) -> str:
        """Describe the estimate in the words used by statuses."""
        apart = f"agents within {self.disagreement:.1e} of each other"
        return f"estimated error {self.error:.1e}, {apart}, not certified"


def known_of(seen: Certificate | Estimate) -> dict[str, float]:
    """Return the known error of an answer, as numbers of its status."""
    if isinstance(seen, Certificate):
        return {"angle": seen.proven_angle, "residual": seen.residual}
    return {"error": seen.error, "disagreement": seen.disagreement}


def done(stop: StopRule | None, tol: float, made: int, seen: Certificate | Estimate) -> Status:
    """Describe a run that reached its tolerance or, without a stop rule, looks converged."""
    if stop is None:
        return Status.of(StatusCode.COMPLETED, f"{{iterations}} iterations; {seen}", iterations=made, **known_of(seen))
    return Status.of(StatusCode.CONVERGED, f"{seen} (tolerance {{tolerance:.1e}})", tolerance=tol, **known_of(seen))


def averaging_failed(certificate: Certificate) -> Status:
    """Describe a network on which averages are wrong."""
    sentence = (
        "averaging a number whose mean is known gave an error of {error:.1e}: messages are being lost or altered; "
        "repair the network, then run again"
    )
    return Status.of(StatusCode.AVERAGING_FAILED, sentence, error=certificate.averaging_error)


def underflown(largest: float, limit: float) -> Status:
    """Describe eigenvalues so small that products lose digits."""
    sentence = (
        "the largest eigenvalue is {largest:.1e}, and products below {limit:.0e} lose digits to underflow; scale up "
        "the A_j (or the rows, by the square root of that factor)"
    )
    return Status.of(StatusCode.BELOW_ROUNDING, sentence, largest=largest, limit=limit)


def not_top(certificate: Certificate) -> Status:
    """Describe an invariant subspace with a larger eigenvalue outside it."""
    sentence = (
        "the subspace is invariant (residual {residual:.1e}), but the eigenvalue {outside:.6g} outside it is larger "
        "than {inside:.6g} inside: W0 has no component in that direction. Start from "
        "deepca.operators.linalg.random_orthonormal(d, k)"
    )
    return Status.of(
        StatusCode.NOT_TOP,
        sentence,
        residual=certificate.residual,
        outside=certificate.next_eigenvalue,
        inside=certificate.eigenvalues[-1],
    )


def not_judged() -> Status:
    """Describe a run whose last iteration was a restart."""
    return Status(StatusCode.OUT_OF_ITERATIONS, "the network changed in the last iteration; resume from the state")


def below_rounding(known: int, k: int, largest: float, certificate: Certificate | None) -> Status:
    """Describe products with the A_j from which only the first ``known`` components can be determined."""
    angle = None if certificate is None or not known else certificate.leading(known)
    sentence = (
        "{known} of the k = {k} components are known"
        + (" (tan θ ≤ {angle:.1e})" if angle is not None else "")
        + "; the variances of the others are zero or lost in the rounding of the largest, {largest:.3g}, and products "
        "with the A_j cannot tell which. Ask for k ≤ {at_most}, or pass the rows themselves (DecentralizedPCA.fit, "
        "singular_triplets), which resolve smaller variances"
    )
    return Status.of(
        StatusCode.BELOW_ROUNDING, sentence, known=known, k=k, angle=angle, largest=largest, at_most=max(known, 1)
    )


def below_underflow(status: Status, certificate: Certificate) -> Status:
    """Describe rows too small to search for components hidden by rounding; return any other status unchanged."""
    if status.code != StatusCode.BELOW_ROUNDING:
        return status
    sentence = (
        "{known} of the k = {k} components are known; with these removed, the squares of the rows underflow "
        "(the largest variance is {largest:.1e}). Multiply the data by a power of ten"
    )
    return Status.of(
        StatusCode.BELOW_ROUNDING, sentence, known=certificate.known(), k=certificate.k, largest=certificate.scale
    )


def rank_deficient(rank: int, k: int) -> Status:
    """Describe data of rank ``rank``."""
    sentence = (
        "the data have rank {rank}, less than the k = {k} components requested; columns beyond the rank have "
        "eigenvalue zero and only complete the basis, identically at every agent. Ask for k ≤ {rank}"
    )
    if rank == 0:
        sentence = "the data have rank {rank}: every A_j W is zero, or too small to square"
    return Status.of(StatusCode.RANK_DEFICIENT, sentence, rank=rank, k=k)


def exhausted(rank: int, k: int) -> Status:
    """Describe rows in which ``rank`` directions rise above rounding."""
    sentence = (
        "the data have rank {rank} to within the rounding of the rows, less than the k = {k} components requested: "
        "smaller variances are indistinguishable from zero, and their columns only complete the basis, identically at "
        "every agent. Ask for k ≤ {rank}"
    )
    return Status.of(StatusCode.RANK_DEFICIENT, sentence, rank=rank, k=k)


def lost_in_rows(certificate: Certificate, rank: int) -> Status:
    """Describe ``rank`` components found from the rows, some of whose angles the rounding of the rows leaves open."""
    known = certificate.known()
    sentence = (
        "{known} of the k = {k} components are known; {unsure} more exceed the rounding of the rows, or the next "
        "variance, by too little to be determined exactly, and smaller ones cannot be determined at all. Ask for k ≤ "
        "{at_most}; if the rows lie far from zero, centring them saves digits"
    )
    return Status.of(
        StatusCode.BELOW_ROUNDING, sentence, known=known, k=certificate.k, unsure=rank - known, at_most=max(known, 1)
    )


def drifted(certificate: Certificate) -> Status:
    """Describe tracking whose mean has drifted."""
    sentence = (
        "tracking has drifted: mean S differs from mean A W by {drift:.1e} (relative), where rounding explains "
        "{noise:.1e}, so the components may be wrong by {angle:.1e}. Possible causes are messages or agents lost "
        "unnoticed, and A_j that change during a run. Resume from the state with a tolerance, which restarts tracking"
    )
    return Status.of(
        StatusCode.TRACKING_LOST,
        sentence,
        drift=certificate.drift,
        noise=certificate.noise,
        angle=min(certificate.worst_angle, 1.0),
    )


def not_unique(certificate: Certificate, tol: float) -> Status:
    """Describe a k without a gap behind it, and name values of k that have one."""
    k, inside = certificate.k, certificate.eigenvalues[-1]
    gap = certificate.gap / max(abs(inside), 1e-300)
    close = "differ by only {gap:.0e}, too little for a tolerance of {tolerance:.0e}" if gap > 1e-14 else "are equal"
    choices = tuple(choice for choice in (certificate.smaller_k, certificate.larger_k) if choice is not None)
    choose = " or ".join(f"k = {choice}" for choice in choices) or "no k up to {most}"
    sentence = (
        "subspace not unique: λ_{k} = {inside:.9g} and λ_{after} = {outside:.9g} " + f"{close}; well defined: {choose}"
    )
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


def indefinite(smallest: float) -> Status:
    """Describe a mean of the A_j with a negative eigenvalue."""
    sentence = (
        "the mean of the A_j has a negative eigenvalue, {smallest:.3g}, so these are the eigenvalues largest in "
        "modulus, not the largest; add the same multiple of the identity to every A_j, large enough to make the mean "
        "positive semidefinite"
    )
    return Status.of(StatusCode.INDEFINITE_MEAN, sentence, smallest=smallest)
