"""When to stop, without ground truth, and at every agent in the same iteration.

After each step every agent takes a few local numbers (:func:`measure`); their maximum over all agents is agreed
through the network, riding along with gossip messages. Rules see agreed numbers only, and use arithmetic that gives the
same bits on every processor (:mod:`deepca._util.portable`), so all agents decide alike.

What is agreed: the largest change of a subspace in one step, the lowest rank, the largest ``‖A_j W_j‖ / σ_k(S_j)`` (by
how much rounding is magnified), how indefinite an ``A_j`` is and how different from the others, and the largest and
smallest of a few random functions ``gᵀ (W_j W_jᵀ) h + uᵀ (S_j/‖S_j‖) v``. The spread of the latter measures, without
any assumption about the mixing, how far apart the agents are: its mean square over random g, h, u, v is
``‖W_iW_iᵀ − W_jW_jᵀ‖²`` plus the squared relative difference of S_i and S_j. (S counts because eigenvalues come from
it, and because a subspace can be right long before S is: at once, when k reaches the rank of the data.)
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

_PROBES = 8
_NUMBERS = 5
MEASURED = _NUMBERS + 2 * _PROBES
_IN_A_ROW = 2
_PROBE_SEED = 1127
_STALL = 40
_NOISE = 16  # iterations by which noise is told from convergence


@dataclass(frozen=True)
class Agreed:
    """Numbers all agents agree on after step t (``t`` iterations made)."""

    t: int
    change: float
    """Largest distance (Frobenius norm of the sines) between the subspaces of two successive iterations."""
    disagreement: float
    """Distance between the two agents farthest apart, in subspace and in S/‖S‖, estimated from random functions."""
    rank: int
    """Lowest numerical rank of any agent's S."""
    floor: float
    """A change that rounding alone would explain, were the columns of S orthogonal and equally long."""
    magnified: float = 1.0
    """``‖A_j W_j‖ / σ_k(S_j)``: by what rounding in the products may exceed that floor."""
    indefinite: float = 0.0
    """The most negative eigenvalue of a ``W_jᵀ A_j W_j``, relative to σ_k(S_j)."""
    heterogeneity: float = 0.0
    """By how much an agent's own product differs from what is tracked, relative to σ_min of that; 0 if not needed."""


class StopRule(Protocol):
    """Decides from the agreed history alone."""

    @property
    def tol(self) -> float: ...
    def met(self, history: Sequence[Agreed]) -> bool: ...


@dataclass(frozen=True)
class Tolerance:
    """Stop when the worst agent's subspace is estimated to lie within ``tol`` (an angle) of its limit.

    The change per iteration alone would stop too early when convergence is slow; what is still to come at the
    observed rate r is ``change · r/(1−r)``. The agents must also agree to within ``tol``. Both must hold in two
    iterations in a row.

    That alone can be wrong: where the gap ``1 − λ_{k+1}/λ_k`` is small, the error in the direction of λ_{k+1} hides
    behind faster ones. :func:`deepca.solve` therefore proves it by a certificate, and goes on iterating where the proof
    fails; with ``certify=False`` it remains an estimate.
    """

    tol: float

    def __post_init__(self) -> None:
        check("tol", self.tol, Real(0.0, 1.0), meaning="the largest acceptable tangent of the angle")

    def met(self, history: Sequence[Agreed]) -> bool:
        return len(history) >= _IN_A_ROW and all(
            history[end - 1].disagreement <= self.tol and error_estimate(history[:end]) <= self.tol
            for end in range(len(history), len(history) - _IN_A_ROW, -1)
        )


def measure(before: State, after: State) -> Array:
    """One agent's numbers about the step between two states, to be reduced with "max": ``(*B, 5 + 2·probes)``."""
    if after.W.ndim > 2 and after.W.strides[0] == 0 == after.S.strides[0]:  # one array for all agents
        return np.array(np.broadcast_to(measure(_first(before), _first(after)), (*after.W.shape[:-2], MEASURED)))
    W, V = after.W, before.W
    moved = W - V @ (np.swapaxes(V, -1, -2) @ W)
    change = np.sqrt(np.einsum("...dk,...dk->...", moved, moved))
    g, h, u, v = _probes(*W.shape[-2:])
    S = after.estimate
    Wt, St = np.swapaxes(W, -1, -2), np.swapaxes(S, -1, -2)
    if not isinstance(after, TrackedState):  # bases that agents chose by themselves may be turned against each other
        v = np.swapaxes(V, -1, -2) @ h
    peak = np.abs(St).max(axis=(-2, -1), keepdims=True)
    St = St / np.where(peak > 0.0, peak, 1.0)  # squares of entries may not fit where entries do
    size = np.maximum(np.linalg.norm(St, axis=(-2, -1)), 1.0)  # the largest entry is 1
    z = np.einsum("...kp,...kp->...p", Wt @ g, Wt @ h) + np.einsum("...kp,...kp->...p", St @ u, v) / size[..., None]
    if after.common:  # in directions without length every processor has others, and none is wrong
        z = np.zeros_like(z)
    sigma = np.linalg.svd(Wt @ S, compute_uv=False)
    rank = rank_of(sigma, W.shape[-2])
    AV = after.AW if isinstance(after, TrackedState) else S
    V = after.multiplied(V)
    # directions beyond the rank are filled in anew: rounding in them is not magnified
    shortest = np.take_along_axis(sigma, np.maximum(rank - 1, 0)[..., None], axis=-1)[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        magnified = np.nan_to_num(frobenius(AV, axis=(-2, -1)) / shortest, nan=1.0, posinf=1.0 / EPS)
        lowest = np.linalg.eigvalsh(symmetric_part(np.swapaxes(V, -1, -2) @ AV))[..., 0]
        indefinite = np.nan_to_num(np.maximum(-lowest, 0.0) / shortest, nan=0.0, posinf=1.0 / EPS)
    numbers = [change, -rank, magnified, indefinite, after.heterogeneity]
    return np.concatenate([np.stack(numbers, axis=-1), z, -z], axis=-1)


def _first(state: State) -> State:
    return State(state.t, state.W[0], state.S[0])


def agreed_from(t: int, d: int, value: Array) -> Agreed:
    """The agreed maximum of :func:`measure` over all agents, in words."""
    spread = value[_NUMBERS : _NUMBERS + _PROBES] + value[_NUMBERS + _PROBES : MEASURED]  # max z − min z
    return Agreed(
        t=t,
        change=float(value[0]),
        disagreement=math.sqrt(total(np.square(np.maximum(spread, 0.0))) / (2.0 * _PROBES)),
        rank=round(-float(value[1])) if math.isfinite(value[1]) else 0,
        floor=8.0 * EPS * math.sqrt(d),
        magnified=float(value[2]),
        indefinite=float(value[3]),
        heterogeneity=float(value[4]),
    )


def rate(history: Sequence[Agreed]) -> float:
    """Factor by which the change shrinks per iteration, the slowest of a short and a longer view; inf if unknown."""
    last = history[-1]
    if len(history) > 1 and last.change == 0.0:
        return 0.0
    earlier = [history[-1 - w] for w in (1, 2, 4, 8) if w < len(history)]
    rates = [power(last.change / e.change, 1.0 / (last.t - e.t)) for e in earlier if e.change > 0.0]
    return max(rates, default=math.inf)


def error_estimate(history: Sequence[Agreed]) -> float:
    """How far the worst agent still has to go: ``change · r/(1−r)``; inf while the change does not shrink."""
    r, last = rate(history), history[-1]
    if last.change <= last.floor:  # the ratio of two roundings is no rate
        return last.change
    return last.change * r / (1.0 - r) if r < 1.0 else math.inf


def at_floor(history: Sequence[Agreed]) -> bool:
    """Whether the last changes, and what is between the agents, are rounding and nothing else.

    Below ``floor`` they are. Where products magnify rounding it takes more: changes of that size that no longer fall
    but go up and down, as rounding does and convergence does not.
    """
    last = history[-6:]
    if len(last) == 6 and all(e.change <= e.floor and e.disagreement <= 100.0 * e.floor for e in last):
        return True
    last = history[-_NOISE:]
    if len(last) < _NOISE or any(max(e.change, 0.01 * e.disagreement) > e.floor * max(e.magnified, 1.0) for e in last):
        return False
    changes = [e.change for e in last]
    ups = sum(after > before for before, after in pairwise(changes))
    return ups >= _NOISE // 4 and flat(changes, 0.7)


def stalled(history: Sequence[Agreed]) -> bool:
    """Whether nothing shrinks any more, far above rounding: what a disturbed tracking settles into.

    Slow convergence looks alike at first sight, but there the change shrinks, if little, and leads the disagreement.
    """
    last = history[-_STALL:]
    large = max(last[-1].change, last[-1].disagreement) if last else 0.0
    if len(last) < _STALL or large <= 100.0 * last[-1].floor * max(last[-1].magnified, 1.0):
        return False
    change, apart = [entry.change for entry in last], [entry.disagreement for entry in last]
    return flat(change, 0.9995) or (all(a > c for a, c in zip(apart, change, strict=True)) and flat(apart, 0.98))


def flat(values: Sequence[float], limit: float) -> bool:
    """Whether the later half of some numbers is larger than ``limit`` times the earlier one, by their medians."""
    half = len(values) // 2
    return median(values[half:]) > limit * median(values[:half])


@lru_cache(maxsize=16)
def _probes(d: int, k: int) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(_PROBE_SEED)
    g, h, u = rng.standard_normal((3, d, _PROBES))
    return g, h, u, rng.standard_normal((k, _PROBES))


def more_iterations(error: float, tol: float, r: float) -> int:
    """Iterations that bring ``error`` to ``tol`` at the rate r."""
    return math.ceil(log(max(error, tol) / tol) / -log(min(max(r, 1e-3), 1.0 - 1e-12))) + 1
