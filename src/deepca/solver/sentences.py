"""One sentence for each way in which a run ends: its numbers, and what to do next."""

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
    """What is known of an answer without a certificate."""

    error: float
    disagreement: float

    @classmethod
    def of(cls, history: Sequence[Agreed]) -> Estimate:
        return cls(error_estimate(history), history[-1].disagreement)

    def __str__(self) -> str:
        apart = f"agents within {self.disagreement:.1e} of each other"
        return f"estimated error {self.error:.1e}, {apart}, not certified"


def known_of(seen: Certificate | Estimate) -> dict[str, float]:
    """Return what is known of the error of an answer, as numbers of its status."""
    if isinstance(seen, Certificate):
        return {"angle": seen.proven_angle, "residual": seen.residual}
    return {"error": seen.error, "disagreement": seen.disagreement}


def done(stop: StopRule | None, tol: float, made: int, seen: Certificate | Estimate) -> Status:
    """Describe a run that has reached its tolerance or, without a stop rule, looks converged."""
    if stop is None:
        return Status.of(StatusCode.COMPLETED, f"{{iterations}} iterations; {seen}", iterations=made, **known_of(seen))
    return Status.of(StatusCode.CONVERGED, f"{seen} (tolerance {{tolerance:.1e}})", tolerance=tol, **known_of(seen))


def averaging_failed(certificate: Certificate) -> Status:
    """Describe a network on which averages come out wrong."""
    sentence = (
        "a number whose mean is known came out wrong by {error:.1e} when averaged: messages are lost or altered on the "
        "way; repair the network, then run again"
    )
    return Status.of(StatusCode.AVERAGING_FAILED, sentence, error=certificate.averaging_error)


def underflown(largest: float, limit: float) -> Status:
    """Describe eigenvalues so small that products lose digits."""
    sentence = (
        "the largest eigenvalue is {largest:.1e}: products below {limit:.0e} underflow and lose digits; scale the "
        "A_j (rows by the root of that)"
    )
    return Status.of(StatusCode.BELOW_ROUNDING, sentence, largest=largest, limit=limit)


def not_top(certificate: Certificate) -> Status:
    """Describe an invariant subspace beside a larger eigenvalue."""
    sentence = (
        "the subspace is invariant (residual {residual:.1e}), but the eigenvalue {outside:.6g} outside it is larger "
        "than {inside:.6g} inside; W0 had no part in that direction: start from "
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
    return Status(StatusCode.OUT_OF_ITERATIONS, "the network changed in the last iteration; go on from the state")


def below_rounding(known: int, k: int, largest: float, certificate: Certificate | None) -> Status:
    """Describe products of the rows from which only the first ``known`` components can be told."""
    angle = None if certificate is None or not known else certificate.leading(known)
    sentence = (
        "{known} of the k = {k} components are known"
        + (" (tan θ ≤ {angle:.1e})" if angle is not None else "")
        + "; the variances of the others are lost in the rounding of the largest, {largest:.3g}, or are zero: products "
        "of the rows cannot tell. Ask for k ≤ {at_most}, or give the rows themselves (DecentralizedPCA.fit, "
        "singular_triplets), from which smaller ones can be told"
    )
    return Status.of(
        StatusCode.BELOW_ROUNDING, sentence, known=known, k=k, angle=angle, largest=largest, at_most=max(known, 1)
    )


def below_underflow(status: Status, certificate: Certificate) -> Status:
    """Describe the same of rows too small to be searched for what rounding hides; other statuses stay as they are."""
    if status.code != StatusCode.BELOW_ROUNDING:
        return status
    sentence = (
        "{known} of the k = {k} components are known; the squares of what is left of the rows without them underflow "
        "(the largest variance is {largest:.1e}): multiply the data by a power of ten"
    )
    return Status.of(
        StatusCode.BELOW_ROUNDING, sentence, known=certificate.known(), k=certificate.k, largest=certificate.scale
    )


def rank_deficient(rank: int, k: int) -> Status:
    """Describe data that have no more than ``rank`` directions."""
    sentence = (
        "the data have rank {rank}, less than the k = {k} components asked for; columns beyond the rank have "
        "eigenvalue zero and only complete the basis, the same way at every agent. Ask for k ≤ {rank}"
    )
    if rank == 0:
        sentence = "the data have rank {rank}: every A_j W is zero, or too small to square"
    return Status.of(StatusCode.RANK_DEFICIENT, sentence, rank=rank, k=k)


def exhausted(rank: int, k: int) -> Status:
    """Describe rows in which ``rank`` directions stand above rounding."""
    sentence = (
        "the data have rank {rank} to the rounding of the rows, less than the k = {k} components asked for: what lies "
        "beyond cannot be told from zero, and its columns only complete the basis, the same way at every agent. Ask "
        "for k ≤ {rank}"
    )
    return Status.of(StatusCode.RANK_DEFICIENT, sentence, rank=rank, k=k)


def lost_in_rows(certificate: Certificate, rank: int) -> Status:
    """Describe components found at the rows, ``rank`` of them, whose angles the rounding of the rows leaves open."""
    known = certificate.known()
    sentence = (
        "{known} of the k = {k} components are known; {unsure} more stand above the rounding of the rows, or above "
        "what follows, by too little to be told exactly, and what is smaller cannot be told at all. Ask for k ≤ "
        "{at_most}; rows far from zero lose fewer digits where they are centred"
    )
    return Status.of(
        StatusCode.BELOW_ROUNDING, sentence, known=known, k=certificate.k, unsure=rank - known, at_most=max(known, 1)
    )


def drifted(certificate: Certificate) -> Status:
    """Describe tracking that has left the mean."""
    sentence = (
        "what is tracked has drifted: mean S differs from mean A W by {drift:.1e} (relative), where rounding explains "
        "{noise:.1e}, so the components may be wrong by {angle:.1e}. Messages or agents that get lost unnoticed do "
        "that, and A_j that change during a run. Go on from the state with a tolerance: tracking then begins again"
    )
    return Status.of(
        StatusCode.TRACKING_LOST,
        sentence,
        drift=certificate.drift,
        noise=certificate.noise,
        angle=min(certificate.worst_angle, 1.0),
    )


def not_unique(certificate: Certificate, tol: float) -> Status:
    """Describe a k behind which there is no gap, and name k with one."""
    k, inside = certificate.k, certificate.eigenvalues[-1]
    gap = certificate.gap / max(abs(inside), 1e-300)
    close = "differ by {gap:.0e} only, too little for a tolerance of {tolerance:.0e}" if gap > 1e-14 else "are equal"
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
        "the mean of the A_j has the eigenvalue {smallest:.3g} < 0, so these are the eigenvalues largest in modulus, "
        "not the largest; add the same multiple of the identity to every A_j, large enough to make the mean positive"
    )
    return Status.of(StatusCode.INDEFINITE_MEAN, sentence, smallest=smallest)
