"""Stopping rules that need no ground truth and stop every agent in the same iteration.

After each step every agent takes a few local measurements (:func:`measure`); their maximum over all agents is agreed
through the network, piggybacked on gossip messages. Where averages are exact, W and S are the same at all agents, so
these numbers follow from sums over all agents and tell nothing about the rows of a single one. Rules see agreed numbers
only, and use arithmetic that gives the same bits on every processor (:mod:`deepca._util.portable`), so all agents reach
the same decision.

The agreed numbers are the largest change of a subspace in one step, the lowest rank, the largest ``‖A_j W_j‖ /
σ_r(S_j)`` with r the rank of S_j (the amplification of rounding), the most negative eigenvalue of an ``A_j`` within W,
the heterogeneity of the ``A_j``, and the largest and smallest values of a few random functions ``gᵀ (W_j W_jᵀ) h +
uᵀ (S_j/‖S_j‖) v``. The spread of these functions measures the distance between agents without any assumption about the
mixing: its mean square over random g, h, u, v is ``‖W_iW_iᵀ − W_jW_jᵀ‖²`` plus the squared relative difference of S_i
and S_j. (S is included because eigenvalues are computed from it, and because W can converge long before S does:
immediately, if k is the rank of the data.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

import numpy as np

from deepca._util.floats import EPS
from deepca._util.portable import log, median, power, total
from deepca._util.typing import Array
from deepca._util.validation import Real, check
from deepca.algorithms.base import State, TrackedState
from deepca.operators.linalg import frobenius, rank_of, symmetric_part

__all__ = [
    "Agreed",
    "StopRule",
    "Tolerance",
    "agreed_from",
    "at_floor",
    "error_estimate",
    "flat",
    "measure",
    "more_iterations",
    "rate",
    "stalled",
]

_N_PROBES = 8  # random functions that estimate the disagreement
_PROBE_SEED = 1127  # arbitrary, but the same at every agent
_N_NUMBERS = 5  # measurements besides the random functions
N_MEASUREMENTS = _N_NUMBERS + 2 * _N_PROBES  # numbers that each agent measures in a step
_CONSECUTIVE = 2  # iterations in a row in which the rule must hold, since a single one may be a coincidence
_STALL_WINDOW = 40  # iterations without progress that count as a stall
_NOISE_WINDOW = 16  # iterations needed to distinguish noise from convergence


@dataclass(frozen=True)
class Agreed:
    """Numbers on which all agents agree after step t.

    Parameters
    ----------
    t : int
        Number of iterations completed.
    change : float
        Largest distance (Frobenius norm of the sines) between the subspaces of two successive iterations.
    disagreement : float
        Distance between the two agents farthest apart, in subspace and in S/‖S‖, estimated from random functions.
    rank : int
        Lowest numerical rank of any agent's S.
    floor : float
        Change that rounding alone would explain if the columns of S were orthogonal and equally long.
    magnified : float, default=1.0
        ``‖A_j W_j‖ / σ_r(S_j)`` with r the rank of S_j: factor by which rounding in the products may exceed that floor.
    indefinite : float, default=0.0
        Absolute value of the most negative eigenvalue of any ``W_jᵀ A_j W_j``, relative to σ_r(S_j); 0 if none is
        negative.
    heterogeneity : float, default=0.0
        Largest difference between local and tracked product of an agent, relative to σ_min of the latter; 0 if the
        algorithm does not measure it.
    """

    t: int
    change: float
    disagreement: float
    rank: int
    floor: float
    magnified: float = 1.0
    indefinite: float = 0.0
    heterogeneity: float = 0.0


class StopRule(Protocol):
    """Rule that decides whether to stop, from nothing but the history of agreed numbers."""

    @property
    def tol(self) -> float:
        """Error at which the rule stops, as the tangent of an angle."""
        ...

    def met(self, history: Sequence[Agreed]) -> bool:
        """Return whether the run can stop.

        Parameters
        ----------
        history : sequence of Agreed
            Numbers agreed so far, oldest first.

        Returns
        -------
        bool
            Whether the rule is met.
        """
        ...


@dataclass(frozen=True)
class Tolerance:
    """Stop when the worst agent's subspace is estimated to lie within an angle of its limit.

    Parameters
    ----------
    tol : float
        Largest acceptable tangent of the angle, between 0 and 1.

    Notes
    -----
    A limit on the change per iteration would stop too early when convergence is slow: with the observed rate r, the
    distance still to cover is ``change · r/(1−r)``. The agents must also agree to within ``tol``. Both conditions must
    hold in two consecutive iterations.

    The estimate can be wrong: if the gap ``1 − λ_{k+1}/λ_k`` is small, errors that shrink faster hide the one along the
    eigenvector of λ_{k+1}. :func:`deepca.solve` therefore proves the result by a certificate and continues iterating if
    the proof fails; with ``certify=False`` it remains an estimate.

    Examples
    --------
    >>> import deepca
    >>> deepca.Tolerance(1e-10)
    Tolerance(tol=1e-10)
    """

    tol: float

    def __post_init__(self) -> None:
        """Raise ParameterError unless ``tol`` lies between 0 and 1."""
        check("tol", self.tol, Real(0.0, 1.0, example="1e-6"))

    def met(self, history: Sequence[Agreed]) -> bool:
        """Return whether estimated error and disagreement are within ``tol`` in two consecutive iterations.

        Parameters
        ----------
        history : sequence of Agreed
            Numbers agreed so far, oldest first.

        Returns
        -------
        bool
            Whether the rule is met.
        """
        return len(history) >= _CONSECUTIVE and all(
            history[end - 1].disagreement <= self.tol and error_estimate(history[:end]) <= self.tol
            for end in range(len(history), len(history) - _CONSECUTIVE, -1)
        )


def measure(before: State, after: State) -> Array:
    """Measure the step between two states at each local agent.

    Parameters
    ----------
    before, after : State
        States around the step.

    Returns
    -------
    ndarray of shape (*B, 5 + 2·probes)
        Numbers to be reduced with "max" over all agents; see :func:`agreed_from`.
    """
    if after.W.ndim > 2 and after.W.strides[0] == 0 == after.S.strides[0]:  # one array for all agents
        return np.array(np.broadcast_to(measure(_first(before), _first(after)), (*after.W.shape[:-2], N_MEASUREMENTS)))
    W, V = after.W, before.W
    moved = W - V @ (np.swapaxes(V, -1, -2) @ W)
    change = np.sqrt(np.einsum("...dk,...dk->...", moved, moved))
    if W.__array_interface__ == V.__array_interface__:  # the same array, so only rounding could differ
        change = np.zeros_like(change)
    g, h, u, v = _probes(*W.shape[-2:])
    S = after.estimate
    Wt, St = np.swapaxes(W, -1, -2), np.swapaxes(S, -1, -2)
    if not isinstance(after, TrackedState):  # bases chosen independently may differ by a rotation between agents
        v = np.swapaxes(V, -1, -2) @ h
    peak = np.abs(St).max(axis=(-2, -1), keepdims=True)
    St = St / np.where(peak > 0.0, peak, 1.0)  # squares of entries may overflow or underflow where the entries do not
    size = np.maximum(np.linalg.norm(St, axis=(-2, -1)), 1.0)  # the largest entry is 1
    z = np.einsum("...kp,...kp->...p", Wt @ g, Wt @ h) + np.einsum("...kp,...kp->...p", St @ u, v) / size[..., None]
    if after.is_shared:  # null directions may legitimately differ between processors
        z = np.zeros_like(z)
    sigma = np.linalg.svd(Wt @ S, compute_uv=False)
    rank = rank_of(sigma, W.shape[-2])
    AV = after.AW if isinstance(after, TrackedState) else S
    V = after.multiplied_basis(V)
    # directions beyond the rank are replaced: rounding in them is not magnified
    shortest = np.take_along_axis(sigma, np.maximum(rank - 1, 0)[..., None], axis=-1)[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        magnified = np.nan_to_num(frobenius(AV, axis=(-2, -1)) / shortest, nan=1.0, posinf=1.0 / EPS)
        lowest = np.linalg.eigvalsh(symmetric_part(np.swapaxes(V, -1, -2) @ AV))[..., 0]
        indefinite = np.nan_to_num(np.maximum(-lowest, 0.0) / shortest, nan=0.0, posinf=1.0 / EPS)
    numbers = [change, -rank, magnified, indefinite, after.heterogeneity]
    return np.concatenate([np.stack(numbers, axis=-1), z, -z], axis=-1)


def _first(state: State) -> State:
    """Return the state of the first agent."""
    return State(state.t, state.W[0], state.S[0])


def agreed_from(t: int, d: int, value: Array) -> Agreed:
    """Return the agreed numbers from the maximum of :func:`measure` over all agents.

    Parameters
    ----------
    t : int
        Number of iterations completed.
    d : int
        Dimension of the data.
    value : ndarray
        The maximum.

    Returns
    -------
    Agreed
        The same numbers by name.
    """
    spread = (
        value[_N_NUMBERS : _N_NUMBERS + _N_PROBES] + value[_N_NUMBERS + _N_PROBES : N_MEASUREMENTS]
    )  # max z − min z
    return Agreed(
        t=t,
        change=float(value[0]),
        disagreement=math.sqrt(total(np.square(np.maximum(spread, 0.0))) / (2.0 * _N_PROBES)),
        rank=round(-float(value[1])) if math.isfinite(value[1]) else 0,
        floor=8.0 * EPS * math.sqrt(d),
        magnified=float(value[2]),
        indefinite=float(value[3]),
        heterogeneity=float(value[4]),
    )


def rate(history: Sequence[Agreed]) -> float:
    """Return the factor by which the change shrinks per iteration.

    Parameters
    ----------
    history : sequence of Agreed
        Numbers agreed so far; not empty.

    Returns
    -------
    float
        The largest of the factors over the last 1, 2, 4 and 8 iterations; inf if unknown.
    """
    last = history[-1]
    if len(history) > 1 and last.change == 0.0:
        return 0.0
    earlier = [history[-1 - w] for w in (1, 2, 4, 8) if w < len(history)]
    rates = [power(last.change / e.change, 1.0 / (last.t - e.t)) for e in earlier if e.change > 0.0]
    return max(rates, default=math.inf)


def error_estimate(history: Sequence[Agreed]) -> float:
    """Estimate how far the worst agent is from its limit.

    Parameters
    ----------
    history : sequence of Agreed
        Numbers agreed so far; not empty.

    Returns
    -------
    float
        ``change · r/(1−r)`` with the rate r; inf while the change does not shrink; the change itself once it is at most
        ``floor``.
    """
    r, last = rate(history), history[-1]
    if last.change <= last.floor:  # the ratio of two rounding errors is not a rate
        return last.change
    return last.change * r / (1.0 - r) if r < 1.0 else math.inf


def at_floor(history: Sequence[Agreed]) -> bool:
    """Return whether the recent changes and the disagreement consist of rounding only.

    Six changes in a row that are at most ``floor`` are taken for rounding. Larger ones, up to ``floor · magnified``,
    are taken for rounding only if they fluctuate instead of falling, as rounding does and convergence does not.

    Parameters
    ----------
    history : sequence of Agreed
        Numbers agreed so far.

    Returns
    -------
    bool
        Whether the rounding floor is reached.
    """
    last = history[-6:]
    if len(last) == 6 and all(e.change <= e.floor and e.disagreement <= 100.0 * e.floor for e in last):
        return True
    last = history[-_NOISE_WINDOW:]
    if len(last) < _NOISE_WINDOW or any(
        max(e.change, 0.01 * e.disagreement) > e.floor * max(e.magnified, 1.0) for e in last
    ):
        return False
    changes = [e.change for e in last]
    ups = sum(after > before for before, after in pairwise(changes))
    return ups >= _NOISE_WINDOW // 4 and flat(changes, 0.7)


def stalled(history: Sequence[Agreed]) -> bool:
    """Return whether progress has ended far above rounding, as it does after a disturbance of tracking.

    Slow convergence looks similar, but its change keeps shrinking, however slowly, and exceeds the disagreement.

    Parameters
    ----------
    history : sequence of Agreed
        Numbers agreed so far.

    Returns
    -------
    bool
        Whether the run has stalled.
    """
    last = history[-_STALL_WINDOW:]
    large = max(last[-1].change, last[-1].disagreement) if last else 0.0
    if len(last) < _STALL_WINDOW or large <= 100.0 * last[-1].floor * max(last[-1].magnified, 1.0):
        return False
    change, disagreement = [entry.change for entry in last], [entry.disagreement for entry in last]
    agents_differ = all(a > c for a, c in zip(disagreement, change, strict=True))
    return flat(change, 0.9995) or (agents_differ and flat(disagreement, 0.98))


def flat(values: Sequence[float], limit: float) -> bool:
    """Return whether numbers no longer fall: the median of the later half exceeds ``limit`` times that of the earlier.

    Parameters
    ----------
    values : sequence of float
        Numbers in the order of iterations.
    limit : float
        Ratio of the later median to the earlier one above which progress has ended.

    Returns
    -------
    bool
        Whether the ratio exceeds ``limit``.
    """
    half = len(values) // 2
    return median(values[half:]) > limit * median(values[:half])


@lru_cache(maxsize=16)
def _probes(d: int, k: int) -> tuple[Array, Array, Array, Array]:
    """Return the vectors g, h, u and v of the random functions."""
    rng = np.random.default_rng(_PROBE_SEED)
    g, h, u = rng.standard_normal((3, d, _N_PROBES))
    return g, h, u, rng.standard_normal((k, _N_PROBES))


def more_iterations(error: float, tol: float, r: float) -> int:
    """Return the number of iterations that reduce ``error`` to ``tol`` at the rate r.

    Parameters
    ----------
    error : float
        Current error.
    tol : float
        Error to reach.
    r : float
        Factor by which the error shrinks per iteration.

    Returns
    -------
    int
        Number of iterations, plus one as a margin.
    """
    return math.ceil(log(max(error, tol) / tol) / -log(min(max(r, 1e-3), 1.0 - 1e-12))) + 1
