"""Decide from agreed numbers and a certificate how a run ended; :mod:`~deepca.solver.sentences` words it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from deepca._util.portable import log, median, power
from deepca._util.typing import Array
from deepca.algorithms.base import State
from deepca.solver import sentences
from deepca.solver.certificate.bounds import KNOWN, Certificate
from deepca.solver.result import Result, Status, StatusCode
from deepca.solver.stopping import Agreed, StopRule, Tolerance, at_floor, error_estimate, flat, more_iterations, rate

__all__ = [
    "DEFAULT_TOL",
    "UNDERFLOW",
    "deflated_status",
    "judge",
    "with_few_rows",
]

S_ = TypeVar("S_", bound=State)
UNDERFLOW = 1e-290  # products with smaller eigenvalues lose digits: the smallest normal number over eps, with a margin
DEFAULT_TOL = 1e-6  # below this error a run without a stop rule counts as converged
_MAX_AVERAGING_ROUNDING = 1e-13  # averages of numbers between one and two: a larger error is hardly rounding
_MAX_USEFUL_TANGENT = 1.0  # bounds on tan θ from here on say nothing about the subspace
_RATE_WINDOW = 24  # iterations over which a fluctuating rate is averaged
_MIN_E_FOLDS = 5.0  # by which an error should have shrunk before its rate is trusted


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

    ``lost`` says that tracking has drifted, ``stuck`` that the residual is only rounding, and ``auto`` that rounds are
    chosen while running, so that advice to change them would be useless. ``beyond`` bounds the eigenvalues beyond the
    rank: inf if no bound is known, None if none was computed.
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
        return sentences.underflown(largest, UNDERFLOW)
    done = looks_done or floor
    if end.rank < k and (proven or (done and _leading_proven(certificate, end.rank, tol, floor))):
        return _rank_below_k(history, k, certificate, eigenvalues, beyond)
    smallest = float(eigenvalues.min())
    if smallest < -1e-6 * float(np.abs(eigenvalues).max()) and (looks_done or floor or certificate is not None):
        return sentences.indefinite(smallest)
    if certificate is None:
        if looks_done:
            return sentences.done(stop, tol, made, sentences.Estimate.of(history))
        if floor:
            return _floor(stop, tol, made, sentences.Estimate.of(history))
        return _not_converged(history, state, made, tol, None, auto)
    if proven:
        return _proven(certificate, stop, tol, made, k)
    if lost:  # any other symptom may be a consequence of that
        return sentences.drifted(certificate)
    if certificate.missed and (looks_done or floor):
        return sentences.not_top(certificate)
    if ((looks_done or floor) and not certificate.unique) or (floor and not certificate.resolved):
        if certificate.drowned:  # rounding leaves no digit of λ_k, so nothing can be said about a gap
            return sentences.below_rounding(certificate.known(), k, certificate.scale, certificate)
        return sentences.not_unique(certificate, tol)
    if floor:
        return _at_floor(tol, certificate)
    return _not_converged(history, state, made, tol, certificate, auto)


def _proven(certificate: Certificate, stop: StopRule | None, tol: float, made: int, k: int) -> Status:
    """Return the status of a proven subspace; where nothing lies outside it, each leading part must be proven too."""
    if certificate.others or certificate.tells_all(tol):
        return sentences.done(stop, tol, made, certificate)
    if certificate.drowned:
        return sentences.below_rounding(certificate.known(), k, certificate.scale, certificate)
    if stop is not None:
        return _inaccurate_at_full_dimension(certificate, tol)
    return _floor(stop, tol, made, certificate)


def _lost_to_averaging(certificate: Certificate, proven: bool) -> bool:
    """Return whether lost messages rather than rounding hide λ_k."""
    return not proven and certificate.drowned and certificate.averaging_error > _MAX_AVERAGING_ROUNDING


def _floor(stop: StopRule | None, tol: float, made: int, seen: Certificate | sentences.Estimate) -> Status:
    """Return the status of a run at the rounding floor: completed without a stop rule, if the answer is usable."""
    if stop is None and (isinstance(seen, sentences.Estimate) or seen.proven_angle < _MAX_USEFUL_TANGENT):
        sentence = f"{{iterations}} iterations, at the rounding floor; {seen}"
        return Status.of(StatusCode.COMPLETED, sentence, iterations=made, **sentences.known_of(seen))
    return _at_floor(tol, seen)


def _at_floor(tol: float, seen: Certificate | sentences.Estimate) -> Status:
    """Return the status of a run that rounding keeps from improving; unusable if its certificate proves nothing."""
    if isinstance(seen, Certificate) and not seen.proven_angle < _MAX_USEFUL_TANGENT:
        if not seen.angle < _MAX_USEFUL_TANGENT or seen.worst_angle < _MAX_USEFUL_TANGENT:
            if seen.others and not seen.drowned:
                return sentences.not_unique(seen, tol)
            return sentences.below_rounding(seen.known(), seen.k, seen.scale, seen)
        sentence = (
            "an agent reports that its own components differ from the common ones (tan θ = {angle:.1e}), although all "
            "agents report that they agree; check the agents, one of them computes something else"
        )
        return Status.of(StatusCode.DISAGREEMENT, sentence, angle=seen.agents_angle)
    sentence = f"tolerance {{tolerance:.1e}} is below what rounding allows here; {seen}. Use a larger tolerance"
    return Status.of(StatusCode.ROUNDING_FLOOR, sentence, tolerance=tol, **sentences.known_of(seen))


def _rank_below_k(
    history: Sequence[Agreed], k: int, certificate: Certificate | None, eigenvalues: Array, beyond: float | None
) -> Status:
    """Return the status where fewer than k columns exceed rounding: no more exist, or rounding hides them."""
    rank = history[-1].rank
    values = np.sort(np.ravel(eigenvalues)[-k:])[::-1]
    if beyond is None:
        beyond = math.inf if values[rank:].any() else 0.0
    if rank == 0 or beyond == 0.0:
        return sentences.rank_deficient(rank, k)
    if beyond < math.inf:
        return sentences.exhausted(rank, k)
    known = rank if certificate is None else min(certificate.known(), rank)
    return sentences.below_rounding(known, k, float(values[0]), certificate)


def with_few_rows(result: Result[S_], limit: int) -> Result[S_]:
    """Return the result with its rank capped at ``limit``, the number of directions that the rows can have.

    Beyond that many, nothing can be hidden by rounding.
    """
    proof = result.certificate
    short = result.status.code in (StatusCode.BELOW_ROUNDING, StatusCode.RANK_DEFICIENT)
    if not short or proof is None or limit > result.rank or limit >= proof.k:
        return result
    return replace(
        result, status=sentences.rank_deficient(limit, proof.k), rank=limit, certificate=proof.of_rank(limit)
    )


def deflated_status(certificate: Certificate, rank: int, d: int, tol: float) -> Status:
    """Return the status of components found from the rows, ``rank`` of which exceed the rounding of σ₁."""
    k = certificate.k
    if rank < k:
        proven = _leading_proven(certificate, rank, tol, floor=True)
        return sentences.exhausted(rank, k) if proven else sentences.lost_in_rows(certificate, rank)
    worst = max(certificate.worst_part, certificate.worst_angle if k < d else 0.0)
    if worst <= tol and (k < d or certificate.tells_all(tol)):
        return sentences.done(Tolerance(tol), tol, 0, certificate)
    if k < d and certificate.gap <= certificate.separation:
        return sentences.lost_in_rows(certificate, k) if certificate.drowned else sentences.not_unique(certificate, tol)
    return _inaccurate_at_full_dimension(certificate, tol) if worst <= tol else _at_floor(tol, certificate)


def _inaccurate_at_full_dimension(certificate: Certificate, tol: float) -> Status:
    """Return the status where nothing lies outside: unproven parts, or proven ones with inaccurate small variances."""
    if certificate.worst_part > tol:
        return _at_floor(tol, certificate)
    sentence = (
        "rounding of the largest variance may have changed the smallest, {smallest:.3g}, by a relative {off:.0e}; "
        f"{certificate}"
    )
    return Status.of(
        StatusCode.ROUNDING_FLOOR,
        sentence,
        smallest=certificate.eigenvalues[-1],
        off=certificate.smallest_off,
        **sentences.known_of(certificate),
    )


def _leading_proven(certificate: Certificate | None, rank: int, tol: float, floor: bool) -> bool:
    """Return whether the columns above the rank cut-off are proven to the tolerance, or as well as rounding allows."""
    if certificate is None or rank == 0:
        return True
    return certificate.leading(rank) <= (max(tol, KNOWN) if floor else tol)


def _not_converged(
    history: Sequence[Agreed], state: State, made: int, tol: float, certificate: Certificate | None, auto: bool
) -> Status:
    """Return the status of an unfinished run: disagreement, divergence, or simply too few iterations."""
    end, error, r, k = history[-1], error_estimate(history), rate(history), state.W.shape[-1]
    rank_hint = " (the data also have only rank {rank}: ask for k ≤ {rank})" if end.rank < k else ""
    seen = {"iterations": made, "change": end.change, "disagreement": end.disagreement, "rank": end.rank}
    ratio = 1.0  # expected factor between successive changes
    if certificate is not None and 0.0 < certificate.next_eigenvalue < certificate.eigenvalues[-1]:
        ratio = certificate.next_eigenvalue / certificate.eigenvalues[-1]
    slow = ratio > 0.99 and end.disagreement <= end.change  # a small gap explains the slow progress
    stuck = not slow and not _change_falls(history)
    more_rounds = "check the network" if auto else 'use rounds="auto", or raise rounds'
    if stuck and end.change > 10.0 * end.floor * end.magnified and end.change > tol:
        if end.disagreement > 0.1 * end.change:
            cause = "the agents are {disagreement:.1e} apart, so the likely cause is too few rounds: " + more_rounds
        else:
            cause = (
                "the agents agree, so the likely cause is a missing gap behind k, or flipping signs: choose another k, "
                "or use the default orthonormalisation"
            )
        sentence = (
            "the subspace still moves by {change:.1e} per iteration after {iterations} iterations and does not settle; "
            + cause
            + rank_hint
        )
        return Status.of(StatusCode.DIVERGING, sentence, **seen)
    if end.disagreement > tol and end.disagreement >= min(error, end.change) and _disagreement_persists(history):
        sentence = (
            "did not converge: agents still disagree by {disagreement:.1e} after {iterations} iterations; "
            + more_rounds
            + rank_hint
        )
        return Status.of(StatusCode.DISAGREEMENT, sentence, **seen)
    if certificate is not None and ratio < 1.0:
        # the certificate knows the spectrum; the history may reflect only the faster part of it
        own = state.shrinks_by(certificate.eigenvalues[-1], certificate.others)
        slowest = own if r >= 1.0 else max(r, own)
        r = slowest if state.seen_gap is None else _expected_rate(history, own, made)
        error = max(error if math.isfinite(error) else 1.0, min(certificate.worst_angle, 1.0))
    if r < 1.0 and math.isfinite(error):
        more = more_iterations(min(error, 1.0), tol, r)
        more = more if state.most_left is None else min(more, state.most_left)
        sentence = (
            "did not converge: estimated error {error:.1e} after {iterations} iterations, shrinking by a factor of "
            "{rate:.6g} per iteration; about {more:,} more are needed for {tolerance:.0e}. Raise max_iter, or resume "
            "from the state" + rank_hint
        )
        return Status.of(StatusCode.OUT_OF_ITERATIONS, sentence, error=error, rate=r, more=more, tolerance=tol, **seen)
    sentence = (
        "did not converge: the subspace still moves by {change:.1e} per iteration after {iterations} iterations, and "
        "no convergence rate is visible yet. Raise max_iter, or resume from the state" + rank_hint
    )
    return Status.of(StatusCode.OUT_OF_ITERATIONS, sentence, **seen)


def _expected_rate(history: Sequence[Agreed], own: float, made: int) -> float:
    """Return the rate to expect of a method faster than the gap suggests: its own, or the observed one if slower.

    Polynomial methods gain little in the first 1/√gap iterations, so an early observed rate does not predict later
    ones.
    """
    seen = history[-_RATE_WINDOW:]
    if made * -log(own) < _MIN_E_FOLDS or len(seen) < 2 or not 0.0 < seen[-1].change < seen[0].change:
        return own
    return max(own, power(seen[-1].change / seen[0].change, 1.0 / (seen[-1].t - seen[0].t)))


def _disagreement_persists(history: Sequence[Agreed]) -> bool:
    """Return whether the disagreement between agents has hardly fallen recently."""
    apart = [entry.disagreement for entry in history[-40:]]
    return len(apart) < 2 or flat(apart, 0.9)


def _change_falls(history: Sequence[Agreed]) -> bool:
    """Return whether the change has fallen recently, by the medians of two halves; True for short histories."""
    changes = [entry.change for entry in history[-40:]]
    half = len(changes) // 2
    return half < 6 or median(changes[half:]) < 0.98 * median(changes[:half])
