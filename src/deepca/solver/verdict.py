"""From agreed numbers and a certificate to a status: one sentence with the figures and the next thing to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from deepca._util.portable import log, median, power
from deepca._util.typing import Array
from deepca.algorithms.base import State
from deepca.solver.certificate.bounds import KNOWN, Certificate
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.stopping import Agreed, StopRule, Tolerance, at_floor, error_estimate, more_iterations, rate

__all__ = [
    "PRESENTABLE",
    "UNDERFLOW",
    "below_rounding",
    "below_underflow",
    "deflated_status",
    "judge",
    "not_judged",
    "with_few_rows",
]

S_ = TypeVar("S_", bound=State)
UNDERFLOW = 1e-290  # eigenvalues below which products lose digits: the smallest normal number over eps, and some
PRESENTABLE = 1e-6  # without a stop rule: what looks converged
_SPOILT = 1e-13  # error of an average of numbers between one and two that rounding hardly makes
_NOTHING = 1.0  # tangent from which an angle says nothing
_SEEN = 24  # iterations over which a rate that goes up and down is averaged
_UNDER_WAY = 5.0  # e-folds that an error should have shrunk by before its rate is believed


def judge(
    history: Sequence[Agreed],
    stop: StopRule | None,
    state: State,
    made: int,
    certificate: Certificate | None,
    lost: bool,
    stuck: bool,
    eigenvalues: Array,
    auto: bool,
    beyond: float | None = None,
) -> Status:
    """The status of a run that ends here, after ``made`` iterations.

    state : the last one.
    lost : what is tracked has left the mean.  stuck : the residual is rounding.  eigenvalues : all that were found.
    auto : rounds are chosen while running, so that asking for other ones is no advice.  beyond : bound on eigenvalues
    beyond the rank, inf where nobody can tell; None where nobody has looked.
    """
    end, k = history[-1], state.W.shape[-1]
    tol = stop.tol if stop is not None else PRESENTABLE
    looks_done = stop.met(history) if stop is not None else max(error_estimate(history), end.disagreement) <= tol
    # without a stop rule there may be no history to tell rounding from; then the size decides
    small = end.floor if len(history) > 2 else 10.0 * end.floor
    floor = stuck or at_floor(history) or (end.change <= small and end.disagreement <= 100.0 * end.floor)
    proven = certificate is not None and certificate.proves(tol)
    if certificate is not None and not (certificate.averaging_ok and not _spoilt(certificate, proven)):
        return _averaging_failed(certificate)
    largest = float(np.abs(eigenvalues).max())
    if 0.0 < largest < UNDERFLOW:
        return _underflown(largest)
    done = looks_done or floor
    if end.rank < k and (proven or (done and _leading_proven(certificate, end.rank, tol, floor))):
        return _short(history, k, certificate, eigenvalues, beyond)
    smallest = float(eigenvalues.min())
    if smallest < -1e-6 * float(np.abs(eigenvalues).max()) and (looks_done or floor or certificate is not None):
        return _indefinite(smallest)
    if certificate is None:
        if looks_done:
            return _done(stop, tol, made, _seen(history))
        if floor:
            return _floor(stop, tol, made, _seen(history))
        return _not_there(history, state, made, tol, None, auto)
    if proven:
        return _proven(certificate, stop, tol, made, k)
    if lost:  # whatever else is seen may come from that
        return _drifted(certificate)
    if certificate.missed and (looks_done or floor):
        return _not_top(certificate)
    if ((looks_done or floor) and not certificate.unique) or (floor and not certificate.resolved):
        if certificate.drowned:  # rounding leaves no digit of λ_k, so that nothing can be said of a gap
            return below_rounding(certificate.known(), k, certificate.scale, certificate)
        return _not_unique(certificate, tol)
    if floor:
        return _at_floor(tol, str(certificate), certificate)
    return _not_there(history, state, made, tol, certificate, auto)


def _averaging_failed(certificate: Certificate) -> Status:
    return Status(
        StatusCode.AVERAGING_FAILED,
        f"a number whose mean is known came out wrong by {certificate.averaging_error:.1e} when averaged: messages "
        "are lost or altered on the way; repair the network, then run again",
    )


def _underflown(largest: float) -> Status:
    return Status(
        StatusCode.BELOW_ROUNDING,
        f"the largest eigenvalue is {largest:.1e}: products below {UNDERFLOW:.0e} underflow and lose digits; scale "
        "the A_j (rows by the root of that)",
    )


def _proven(certificate: Certificate, stop: StopRule | None, tol: float, made: int, k: int) -> Status:
    """The subspace is proven; where nothing lies outside of it, each of its parts has to be."""
    if certificate.others or certificate.tells_all(tol):
        return _done(stop, tol, made, str(certificate))
    if certificate.drowned:
        return below_rounding(certificate.known(), k, certificate.scale, certificate)
    if stop is not None:
        return _few_digits(certificate, tol)
    return _floor(stop, tol, made, str(certificate), certificate)


def _not_top(certificate: Certificate) -> Status:
    return Status(
        StatusCode.NOT_TOP,
        f"the subspace is invariant (residual {certificate.residual:.1e}), but the eigenvalue "
        f"{certificate.next_eigenvalue:.6g} outside it is larger than {certificate.eigenvalues[-1]:.6g} inside; W0 "
        "had no part in that direction: start from deepca.operators.linalg.random_orthonormal(d, k)",
    )


def _spoilt(certificate: Certificate, proven: bool) -> bool:
    """Whether it is lost messages, not rounding, that leave nothing of λ_k."""
    return not proven and certificate.drowned and certificate.averaging_error > _SPOILT


def not_judged() -> Status:
    """For a run whose last iteration was a restart."""
    return Status(StatusCode.OUT_OF_ITERATIONS, "the network changed in the last iteration; go on from the state")


def _seen(history: Sequence[Agreed]) -> str:
    end = history[-1]
    apart = f"agents within {end.disagreement:.1e} of each other"
    return f"estimated error {error_estimate(history):.1e}, {apart}, not certified"


def _done(stop: StopRule | None, tol: float, made: int, seen: str) -> Status:
    if stop is None:
        return Status(StatusCode.COMPLETED, f"{made} iterations; {seen}")
    return Status(StatusCode.CONVERGED, f"{seen} (tolerance {tol:.1e})")


def _floor(stop: StopRule | None, tol: float, made: int, seen: str, certificate: Certificate | None = None) -> Status:
    if stop is None and (certificate is None or certificate.proven_angle < _NOTHING):
        return Status(StatusCode.COMPLETED, f"{made} iterations, at the rounding floor; {seen}")
    return _at_floor(tol, seen, certificate)


def _at_floor(tol: float, seen: str, certificate: Certificate | None = None) -> Status:
    """Nothing more can be gained; where a certificate proves nothing, what there is cannot be used either."""
    if certificate is not None and not certificate.proven_angle < _NOTHING:
        if not certificate.angle < _NOTHING or certificate.worst_angle < _NOTHING:
            if certificate.others and not certificate.drowned:
                return _not_unique(certificate, tol)
            return below_rounding(certificate.known(), certificate.k, certificate.scale, certificate)
        return Status(
            StatusCode.DISAGREEMENT,
            f"an agent says that its own components are apart from the common ones (tan θ = "
            f"{certificate.agents_angle:.1e}), though all say that they have come together; look at the agents: one of "
            "them computes something else",
        )
    return Status(
        StatusCode.ROUNDING_FLOOR,
        f"tolerance {tol:.1e} lies below what rounding allows here; {seen}. Ask for a larger one",
    )


def _short(
    history: Sequence[Agreed], k: int, certificate: Certificate | None, eigenvalues: Array, beyond: float | None
) -> Status:
    """Fewer columns than k carry more than rounding: because no more exist, or because rounding hides them."""
    rank = history[-1].rank
    values = np.sort(np.ravel(eigenvalues)[-k:])[::-1]
    if beyond is None:
        beyond = math.inf if values[rank:].any() else 0.0
    if rank == 0 or beyond == 0.0:
        return _rank_deficient(rank, k)
    if beyond < math.inf:
        return _exhausted(rank, k)
    known = rank if certificate is None else min(certificate.known(), rank)
    return below_rounding(known, k, float(values[0]), certificate)


def below_rounding(known: int, k: int, largest: float, certificate: Certificate | None) -> Status:
    """The status where only the first ``known`` components can be told from products of the rows."""
    angle = "" if certificate is None or not known else f" (tan θ ≤ {certificate.leading(known):.1e})"
    return Status(
        StatusCode.BELOW_ROUNDING,
        f"{known} of the k = {k} components are known{angle}; the variances of the others are lost in the rounding of "
        f"the largest, {largest:.3g}, or are zero: products of the rows cannot tell. Ask for k ≤ {max(known, 1)}, or "
        "give the rows themselves (DecentralizedPCA.fit, singular_triplets), from which smaller ones can be told",
    )


def below_underflow(status: Status, certificate: Certificate) -> Status:
    """The same, but of rows too small for what rounding hides to be looked for among them."""
    if status.code != StatusCode.BELOW_ROUNDING:
        return status
    known = certificate.known()
    return Status(
        StatusCode.BELOW_ROUNDING,
        f"{known} of the k = {certificate.k} components are known; the squares of what is left of the rows without "
        f"them underflow (the largest variance is {certificate.scale:.1e}): multiply the data by a power of ten",
    )


def with_few_rows(result: Result[S_], limit: int) -> Result[S_]:
    """The same where ``limit`` says how many directions the rows can have: beyond these, nothing is hidden."""
    proof = result.certificate
    short = result.status.code in (StatusCode.BELOW_ROUNDING, StatusCode.RANK_DEFICIENT)
    if not short or proof is None or limit > result.rank or limit >= proof.k:
        return result
    return replace(result, status=_rank_deficient(limit, proof.k), rank=limit, certificate=proof.of_rank(limit))


def deflated_status(certificate: Certificate, rank: int, d: int, tol: float) -> Status:
    """The status of components that were found at the rows, ``rank`` of them above the rounding of σ₁."""
    k = certificate.k
    if rank < k:
        proven = _leading_proven(certificate, rank, tol, floor=True)
        return _exhausted(rank, k) if proven else _lost_in_rows(certificate, rank)
    worst = max(certificate.worst_part, certificate.worst_angle if k < d else 0.0)
    if worst <= tol and (k < d or certificate.tells_all(tol)):
        return _done(Tolerance(tol), tol, 0, str(certificate))
    if k < d and certificate.gap <= certificate.separation:
        return _lost_in_rows(certificate, k) if certificate.drowned else _not_unique(certificate, tol)
    return _few_digits(certificate, tol) if worst <= tol else _at_floor(tol, str(certificate), certificate)


def _few_digits(certificate: Certificate, tol: float) -> Status:
    """Where nothing lies outside: parts are not proven, or they are but the smallest variances have few digits."""
    if certificate.worst_part > tol:
        return _at_floor(tol, str(certificate), certificate)
    return Status(
        StatusCode.ROUNDING_FLOOR,
        f"rounding of the largest variance may have changed the smallest, {certificate.eigenvalues[-1]:.3g}, by "
        f"{certificate.smallest_off:.0e} of itself; {certificate}",
    )


def _rank_deficient(rank: int, k: int) -> Status:
    if rank == 0:
        return Status(StatusCode.RANK_DEFICIENT, "the data have rank 0: every A_j W is zero, or too small to square")
    return Status(
        StatusCode.RANK_DEFICIENT,
        f"the data have rank {rank}, less than the k = {k} components asked for; columns beyond the rank have "
        f"eigenvalue zero and only complete the basis, the same way at every agent. Ask for k ≤ {rank}",
    )


def _exhausted(rank: int, k: int) -> Status:
    return Status(
        StatusCode.RANK_DEFICIENT,
        f"the data have rank {rank} to the rounding of the rows, less than the k = {k} components asked for: what lies "
        "beyond cannot be told from zero, and its columns only complete the basis, the same way at every agent. Ask "
        f"for k ≤ {rank}",
    )


def _lost_in_rows(certificate: Certificate, rank: int) -> Status:
    """Describe components found at the rows, ``rank`` of them, whose angles the rounding of the rows leaves open."""
    known = certificate.known()
    return Status(
        StatusCode.BELOW_ROUNDING,
        f"{known} of the k = {certificate.k} components are known; {rank - known} more stand above the rounding of the "
        "rows, or above what follows, by too little to be told exactly, and what is smaller cannot be told at all. Ask "
        f"for k ≤ {max(known, 1)}; rows far from zero lose fewer digits where they are centred",
    )


def _drifted(certificate: Certificate) -> Status:
    return Status(
        StatusCode.TRACKING_LOST,
        f"what is tracked has drifted: mean S differs from mean A W by {certificate.drift:.1e} (relative), where "
        f"rounding explains {certificate.noise:.1e}, so the components may be wrong by "
        f"{min(certificate.worst_angle, 1.0):.1e}. Messages or agents that get lost unnoticed do that, and A_j that "
        "change during a run. Go on from the state with a tolerance: tracking then begins again",
    )


def _not_unique(certificate: Certificate, tol: float) -> Status:
    k, inside, outside = certificate.k, certificate.eigenvalues[-1], certificate.next_eigenvalue
    gap = certificate.gap / max(abs(inside), 1e-300)
    difference = f"differ by {gap:.0e} only, too little for a tolerance of {tol:.0e}" if gap > 1e-14 else "are equal"
    choices = [f"k = {choice}" for choice in (certificate.smaller_k, certificate.larger_k) if choice is not None]
    choose = " or ".join(choices) or f"no k up to {k + certificate.probes}"
    return Status(
        StatusCode.NOT_UNIQUE,
        f"subspace not unique: λ_{k} = {inside:.9g} and λ_{k + 1} = {outside:.9g} {difference}; well defined: {choose}",
    )


def _indefinite(smallest: float) -> Status:
    return Status(
        StatusCode.INDEFINITE_MEAN,
        f"the mean of the A_j has the eigenvalue {smallest:.3g} < 0, so these are the eigenvalues largest in modulus, "
        "not the largest; add the same multiple of the identity to every A_j, large enough to make the mean positive",
    )


def _leading_proven(certificate: Certificate | None, rank: int, tol: float, floor: bool) -> bool:
    """Whether the columns that carry the data are as good as asked for, or as rounding allows."""
    if certificate is None or rank == 0:
        return True
    return certificate.leading(rank) <= (max(tol, KNOWN) if floor else tol)


def _not_there(
    history: Sequence[Agreed], state: State, made: int, tol: float, certificate: Certificate | None, auto: bool
) -> Status:
    """Disagreement, divergence, or simply too few iterations."""
    end, error, r, k = history[-1], error_estimate(history), rate(history), state.W.shape[-1]
    few = f" (the data also have rank {end.rank} only: ask for k ≤ {end.rank})" if end.rank < k else ""
    ratio = 1.0  # by what the change may be expected to shrink
    if certificate is not None and 0.0 < certificate.next_eigenvalue < certificate.eigenvalues[-1]:
        ratio = certificate.next_eigenvalue / certificate.eigenvalues[-1]
    slow = ratio > 0.99 and end.disagreement <= end.change  # a small gap explains what is seen
    stuck = not slow and not _shrinks(history)
    more_rounds = "look at the network" if auto else 'use rounds="auto", or raise rounds'
    if stuck and end.change > 10.0 * end.floor * end.magnified and end.change > tol:
        if end.disagreement > 0.1 * end.change:
            cause = f"the agents are {end.disagreement:.1e} apart, so the likely cause is too few rounds: {more_rounds}"
        else:
            cause = (
                "the agents agree, so the likely cause is no clear gap behind k, or signs that flip: choose another k, "
                "or leave the orthonormalisation to the library"
            )
        return Status(
            StatusCode.DIVERGING,
            f"the subspace still moves by {end.change:.1e} per iteration after {made} iterations and does not settle; "
            f"{cause}{few}",
        )
    if end.disagreement > tol and end.disagreement >= min(error, end.change) and _keeps_apart(history):
        return Status(
            StatusCode.DISAGREEMENT,
            f"did not converge: disagreement stayed at {end.disagreement:.1e} after {made} iterations; "
            f"{more_rounds}{few}",
        )
    if certificate is not None and ratio < 1.0:
        # the certificate has seen the spectrum; the history may have seen only the faster part of it
        own = state.shrinks_by(certificate.eigenvalues[-1], certificate.others)
        slowest = own if r >= 1.0 else max(r, own)
        r = slowest if state.seen_gap is None else _later(history, own, made)
        error = max(error if math.isfinite(error) else 1.0, min(certificate.worst_angle, 1.0))
    if r < 1.0 and math.isfinite(error):
        more = more_iterations(min(error, 1.0), tol, r)
        more = more if state.most_left is None else min(more, state.most_left)
        return Status(
            StatusCode.OUT_OF_ITERATIONS,
            f"did not converge: estimated error {error:.1e} after {made} iterations, shrinking by {r:.6g} per "
            f"iteration; about {more:,} more are needed for {tol:.0e}. Raise max_iter, or go on from the state{few}",
            more,
        )
    return Status(
        StatusCode.OUT_OF_ITERATIONS,
        f"did not converge: the subspace still moves by {end.change:.1e} per iteration after {made} iterations, and no "
        f"rate can be seen yet. Raise max_iter, or go on from the state{few}",
    )


def _later(history: Sequence[Agreed], own: float, made: int) -> float:
    """Return the rate to expect of a method that is faster than the gap tells: its own, or the one seen if slower.

    Polynomials gain little in the first 1/√gap iterations, so what is seen before says nothing about what comes.
    """
    seen = history[-_SEEN:]
    if made * -log(own) < _UNDER_WAY or len(seen) < 2 or not 0.0 < seen[-1].change < seen[0].change:
        return own
    return max(own, power(seen[-1].change / seen[0].change, 1.0 / (seen[-1].t - seen[0].t)))


def _keeps_apart(history: Sequence[Agreed]) -> bool:
    """Whether the agents have hardly come nearer to each other in the recent past."""
    apart = [entry.disagreement for entry in history[-40:]]
    half = max(len(apart) // 2, 1)
    return median(apart[half:]) > 0.9 * median(apart[:half]) if len(apart) > 1 else True


def _shrinks(history: Sequence[Agreed]) -> bool:
    """Whether the change has fallen from one half of the recent past to the next; assumed where that is short."""
    changes = [entry.change for entry in history[-40:]]
    half = len(changes) // 2
    return half < 6 or median(changes[half:]) < 0.98 * median(changes[:half])
