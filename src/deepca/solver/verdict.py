"""Decide how a run ended, from agreed numbers and a certificate; :mod:`deepca.solver.sentences` has the wording."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from deepca._util.portable import log, median, power
from deepca._util.typing import Array
from deepca._util.units import plural
from deepca.algorithms.base import State
from deepca.solver import sentences
from deepca.solver.certificate.bounds import MAX_KNOWN_TANGENT, Certificate
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.stopping import Agreed, StopRule, Tolerance, at_floor, error_estimate, flat, more_iterations, rate

__all__ = [
    "DEFAULT_TOL",
    "UNDERFLOW",
    "cap_rank",
    "deflated_status",
    "judge",
]

S_ = TypeVar("S_", bound=State)
UNDERFLOW = 1e-290  # products with smaller eigenvalues lose digits: the smallest normal number over eps, with a margin
DEFAULT_TOL = 1e-6  # below this error a run without a stop rule counts as converged
_MAX_AVERAGING_ROUNDING = 1e-13  # largest error that rounding explains in a mean of numbers between one and two
_MAX_USEFUL_TANGENT = 1.0  # a bound on tan θ that is not below this says nothing about the subspace
_RATE_WINDOW = 24  # iterations over which a fluctuating rate is averaged
_MAX_FORESEEN_ITERATIONS = 10**9  # a larger prediction only says that no gap has been found yet
_MIN_E_FOLDS = 5.0  # at the expected rate, the error must have shrunk by e^5 before the observed rate is trusted


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
    """Return the status of a run that ends after ``made`` iterations.

    ``lost`` means that tracking has drifted, ``stuck`` that only rounding error is left in the residual, and ``auto``
    that the number of rounds is chosen while running, so that advice to change it would be pointless. ``beyond`` is an
    upper bound on the eigenvalues after the first ``rank``: inf if none is known, None if none was computed.
    """
    end, k = history[-1], state.W.shape[-1]
    tol = stop.tol if stop is not None else DEFAULT_TOL
    looks_done = stop.met(history) if stop is not None else max(error_estimate(history), end.disagreement) <= tol
    # without a stop rule the history may be too short to recognise rounding; then the size decides
    small = end.floor if len(history) > 2 else 10.0 * end.floor
    floor = stuck or at_floor(history) or (end.change <= small and end.disagreement <= 100.0 * end.floor)
    proven = certificate is not None and certificate.proves(tol)
    if certificate is not None and not (certificate.averaging_ok and not _lost_to_averaging(certificate, proven)):
        return sentences.averaging_failed(certificate)
    largest = float(np.abs(eigenvalues).max())
    if 0.0 < largest < UNDERFLOW:
        return sentences.underflow(largest, UNDERFLOW)
    done = looks_done or floor
    if end.rank < k and (proven or (done and _leading_proven(certificate, end.rank, tol, floor))):
        return _rank_below_k(history, k, certificate, eigenvalues, beyond)
    smallest = float(eigenvalues.min())
    if smallest < -1e-6 * largest and (done or certificate is not None):
        return sentences.indefinite(smallest)
    if certificate is None:
        if looks_done:
            return sentences.done(stop, tol, made, sentences.Estimate.of(history))
        if floor:
            return _floor(stop, tol, made, sentences.Estimate.of(history))
        return _not_converged(history, state, made, tol, None, auto)
    if proven:
        return _proven(certificate, stop, tol, made, k)
    if lost:  # drift may be the cause of all other symptoms
        return sentences.drifted(certificate, restarted=stop is not None)
    if certificate.larger_outside and done:
        return sentences.not_top(certificate)
    if (done and not certificate.unique) or (floor and not certificate.resolved):
        if certificate.hidden_by_rounding:  # rounding leaves no digit of λ_k, so nothing can be said about a gap
            return sentences.below_rounding(certificate.n_known(), k, certificate.scale, certificate)
        return sentences.not_unique(certificate, tol)
    if floor:
        return _at_floor(tol, certificate)
    return _not_converged(history, state, made, tol, certificate, auto)


def _proven(certificate: Certificate, stop: StopRule | None, tol: float, made: int, k: int) -> Status:
    """Return the status of a proven subspace; if k = d, that is trivial, and its leading parts must be proven too."""
    if certificate.others or certificate.proves_leading_parts(tol):
        return sentences.done(stop, tol, made, certificate)
    if certificate.hidden_by_rounding:
        return sentences.below_rounding(certificate.n_known(), k, certificate.scale, certificate)
    if stop is not None:
        return _inaccurate_at_full_dimension(certificate, tol)
    return _floor(stop, tol, made, certificate)


def _lost_to_averaging(certificate: Certificate, proven: bool) -> bool:
    """Return whether lost messages rather than rounding hide λ_k."""
    return not proven and certificate.hidden_by_rounding and certificate.averaging_error > _MAX_AVERAGING_ROUNDING


def _floor(stop: StopRule | None, tol: float, made: int, seen: Certificate | sentences.Estimate) -> Status:
    """Return the status of a run at the rounding floor: COMPLETED if it had no stop rule and the answer is usable."""
    if stop is None and (isinstance(seen, sentences.Estimate) or seen.proven_angle < _MAX_USEFUL_TANGENT):
        sentence = f"{{iterations}} iteration{plural(made)}, at the rounding floor; {seen}"
        return Status.of(StatusCode.COMPLETED, sentence, iterations=made, **sentences.error_numbers(seen))
    return _at_floor(tol, seen)


def _at_floor(tol: float, seen: Certificate | sentences.Estimate) -> Status:
    """Return the status of a run that rounding keeps from improving: not usable if its certificate proves nothing."""
    if isinstance(seen, Certificate) and not seen.proven_angle < _MAX_USEFUL_TANGENT:
        if not seen.angle < _MAX_USEFUL_TANGENT or seen.worst_angle < _MAX_USEFUL_TANGENT:
            if seen.others and not seen.hidden_by_rounding:
                return sentences.not_unique(seen, tol)
            return sentences.below_rounding(seen.n_known(), seen.k, seen.scale, seen)
        sentence = (
            "the components of one agent differ from the common ones (tan θ = {angle:.1e}), although all agents report "
            "that they agree; find the agent that computes with other data or other code, then run again"
        )
        return Status.of(StatusCode.DISAGREEMENT, sentence, angle=seen.agents_angle)
    sentence = f"the tolerance {{tolerance:.1e}} is smaller than rounding allows; {seen}. Use a larger tolerance"
    return Status.of(StatusCode.ROUNDING_FLOOR, sentence, tolerance=tol, **sentences.error_numbers(seen))


def _rank_below_k(
    history: Sequence[Agreed], k: int, certificate: Certificate | None, eigenvalues: Array, beyond: float | None
) -> Status:
    """Return the status if fewer than k columns exceed rounding: the data have no more, or rounding hides them."""
    rank = history[-1].rank
    values = np.sort(np.ravel(eigenvalues)[-k:])[::-1]
    if beyond is None:
        beyond = math.inf if values[rank:].any() else 0.0
    if rank == 0 or beyond == 0.0:
        return sentences.rank_deficient(rank, k)
    if beyond < math.inf:
        return sentences.rank_deficient_rows(rank, k)
    known = rank if certificate is None else min(certificate.n_known(), rank)
    return sentences.below_rounding(known, k, float(values[0]), certificate)


def cap_rank(result: Result[S_], limit: int) -> Result[S_]:
    """Return the result with its rank capped at ``limit``, the largest rank that the number of rows allows.

    All variances beyond it are exactly zero, so rounding cannot hide any.
    """
    proof = result.certificate
    short = result.status.code in (StatusCode.BELOW_ROUNDING, StatusCode.RANK_DEFICIENT)
    if not short or proof is None or limit > result.rank or limit >= proof.k:
        return result
    return replace(
        result, status=sentences.rank_deficient(limit, proof.k), rank=limit, certificate=proof.with_rank(limit)
    )


def deflated_status(certificate: Certificate, rank: int, d: int, tol: float) -> Status:
    """Return the status of components found from the rows, ``rank`` of which exceed the rounding of σ₁."""
    k = certificate.k
    if rank < k:
        proven = _leading_proven(certificate, rank, tol, floor=True)
        return sentences.rank_deficient_rows(rank, k) if proven else sentences.below_row_rounding(certificate, rank)
    worst = max(certificate.worst_leading_angle, certificate.worst_angle if k < d else 0.0)
    if worst <= tol and (k < d or certificate.proves_leading_parts(tol)):
        return sentences.done(Tolerance(tol), tol, 0, certificate)
    if k < d and certificate.gap <= certificate.separation:
        return (
            sentences.below_row_rounding(certificate, k)
            if certificate.hidden_by_rounding
            else sentences.not_unique(certificate, tol)
        )
    return _inaccurate_at_full_dimension(certificate, tol) if worst <= tol else _at_floor(tol, certificate)


def _inaccurate_at_full_dimension(certificate: Certificate, tol: float) -> Status:
    """Return the status for k = d if leading parts are unproven, or proven although small variances are inaccurate."""
    if certificate.worst_leading_angle > tol:
        return _at_floor(tol, certificate)
    sentence = (
        "the smallest variance, {smallest:.3g}, may have a relative error of {off:.0e} from the rounding of the "
        f"largest; {certificate}. Ask for fewer components if all variances must be accurate"
    )
    return Status.of(
        StatusCode.ROUNDING_FLOOR,
        sentence,
        smallest=certificate.eigenvalues[-1],
        off=certificate.smallest_relative_error,
        **sentences.error_numbers(certificate),
    )


def _leading_proven(certificate: Certificate | None, rank: int, tol: float, floor: bool) -> bool:
    """Return whether the columns above the rank cut-off are proven to the tolerance, or as well as rounding allows."""
    if certificate is None or rank == 0:
        return True
    return certificate.leading(rank) <= (max(tol, MAX_KNOWN_TANGENT) if floor else tol)


def _not_converged(
    history: Sequence[Agreed], state: State, made: int, tol: float, certificate: Certificate | None, auto: bool
) -> Status:
    """Return the status of an unfinished run: disagreement, divergence, or simply too few iterations."""
    end, estimate, r = history[-1], error_estimate(history), rate(history)
    run = sentences.UnfinishedRun(end, made, state.W.shape[-1], auto)
    ratio = 1.0  # expected factor between successive changes
    if certificate is not None and 0.0 < certificate.next_eigenvalue < certificate.eigenvalues[-1]:
        ratio = certificate.next_eigenvalue / certificate.eigenvalues[-1]
    slow = ratio > 0.99 and end.disagreement <= end.change  # a small gap explains the slow progress
    stuck = not slow and not _change_falls(history)
    if stuck and end.change > 10.0 * end.floor * end.magnified and end.change > tol:
        return run.diverging()
    if end.disagreement > tol and end.disagreement >= min(estimate, end.change) and _disagreement_persists(history):
        return run.disagreeing()
    error = estimate
    if certificate is not None and ratio < 1.0:
        # the certificate knows the spectrum; the history may reflect only the faster part of it
        own = state.convergence_factor(certificate.eigenvalues[-1], certificate.others)
        slowest = own if r >= 1.0 else max(r, own)
        r = slowest if state.estimated_gap is None else _expected_rate(history, own, made)
        error = max(error if math.isfinite(error) else 1.0, min(certificate.worst_angle, 1.0))
    if not (r < 1.0 and math.isfinite(error)):
        return run.without_rate()
    more = more_iterations(min(error, 1.0), tol, r)
    more = more if state.max_remaining is None else min(more, state.max_remaining)
    if certificate is not None and not certificate.resolved and (error <= tol or more > _MAX_FORESEEN_ITERATIONS):
        return sentences.gap_unresolved(certificate, estimate, made)
    return run.needs_more(error, r, more, tol)


def _expected_rate(history: Sequence[Agreed], own: float, made: int) -> float:
    """Return the expected rate of a polynomial method: ``own``, its theoretical rate, or the observed one if slower.

    Such methods gain little in the first 1/√gap iterations, so a rate observed early does not predict later ones.
    """
    seen = history[-_RATE_WINDOW:]
    if made * -log(own) < _MIN_E_FOLDS or len(seen) < 2 or not 0.0 < seen[-1].change < seen[0].change:
        return own
    return max(own, power(seen[-1].change / seen[0].change, 1.0 / (seen[-1].t - seen[0].t)))


def _disagreement_persists(history: Sequence[Agreed]) -> bool:
    """Return whether the disagreement between agents has hardly fallen recently."""
    recent = [entry.disagreement for entry in history[-40:]]
    return len(recent) < 2 or flat(recent, 0.9)


def _change_falls(history: Sequence[Agreed]) -> bool:
    """Return whether the median change fell from the earlier to the later half of recent numbers; True if too few."""
    changes = [entry.change for entry in history[-40:]]
    half = len(changes) // 2
    return half < 6 or median(changes[half:]) < 0.98 * median(changes[:half])
