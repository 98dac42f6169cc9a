"""When to stop, without ground truth, and at every agent in the same iteration.

After each step every agent takes a few local numbers (:func:`measure`); their maximum over all agents is agreed
through the network, riding along with gossip messages. Rules see agreed numbers only, so all agents decide alike.

What is agreed: the largest change of a subspace in one step, the lowest rank, and the largest and smallest of a few
random functions ``gᵀ (W_j W_jᵀ) h + uᵀ (S_j/‖S_j‖) v``. The spread of the latter measures, without any assumption about
the mixing, how far apart the agents are: its mean square over random g, h, u, v is ``‖W_iW_iᵀ − W_jW_jᵀ‖²`` plus the
squared relative difference of S_i and S_j. (S counts because eigenvalues come from it, and because a subspace can be
right long before S is: at once, when k reaches the rank of the data.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from deepca._typing import Array
from deepca.algorithms.base import State
from deepca.errors import InvalidInput
from deepca.linalg import numerical_rank

__all__ = ["Agreed", "StopRule", "Tolerance", "agreed_from", "at_floor", "error_estimate", "measure"]

_PROBES = 8
_IN_A_ROW = 5  # a slow mode shows only when the fast ones have died
_PROBE_SEED = 1127
_EPS = float(np.finfo(np.float64).eps)


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
    """A change that rounding alone would explain."""


class StopRule(Protocol):
    """Decides from the agreed history alone."""

    @property
    def tol(self) -> float: ...
    def met(self, history: Sequence[Agreed]) -> bool: ...


@dataclass(frozen=True)
class Tolerance:
    """Stop when the worst agent's subspace is estimated to lie within ``tol`` (an angle) of its limit.

    The change per iteration alone would stop too early when convergence is slow; what is still to come at the
    observed rate r is ``change · r/(1−r)``. The agents must also agree to within ``tol``. Both must hold in five
    iterations in a row.

    This can be wrong where the relative gap ``1 − λ_{k+1}/λ_k`` is not much larger than ``tol``: the error in the
    direction of λ_{k+1} then moves by less than the tolerance per iteration and is not seen. Choose k at a clear gap.
    """

    tol: float

    def __post_init__(self) -> None:
        if not (isinstance(self.tol, (int, float, np.floating)) and 0.0 < self.tol < 1.0):
            raise InvalidInput(f"tol = {self.tol}: give the largest acceptable tangent of the angle, between 0 and 1")

    def met(self, history: Sequence[Agreed]) -> bool:
        return len(history) >= _IN_A_ROW and all(
            history[end - 1].disagreement <= self.tol and error_estimate(history[:end]) <= self.tol
            for end in range(len(history), len(history) - _IN_A_ROW, -1)
        )


def measure(before: State, after: State) -> Array:
    """One agent's numbers about the step between two states, to be reduced with "max": ``(*B, 2 + 2·probes)``."""
    W, V = after.W, before.W
    moved = W - V @ (np.swapaxes(V, -1, -2) @ W)
    change = np.sqrt(np.einsum("...dk,...dk->...", moved, moved))
    g, h, u, v = _probes(*W.shape[-2:])
    Wt, St = np.swapaxes(W, -1, -2), np.swapaxes(after.S, -1, -2)
    peak = np.abs(St).max(axis=(-2, -1), keepdims=True)
    St = St / np.where(peak > 0.0, peak, 1.0)  # squares of entries may not fit where entries do
    size = np.maximum(np.linalg.norm(St, axis=(-2, -1)), 1.0)  # the largest entry is 1
    z = np.einsum("...kp,...kp->...p", Wt @ g, Wt @ h) + np.einsum("...kp,kp->...p", St @ u, v) / size[..., None]
    rank = numerical_rank(W, after.S).astype(np.float64)
    return np.concatenate([change[..., None], -rank[..., None], z, -z], axis=-1)


def agreed_from(t: int, d: int, value: Array) -> Agreed:
    """The agreed maximum of :func:`measure` over all agents, in words."""
    spread = value[2 : 2 + _PROBES] + value[2 + _PROBES :]  # max z − min z
    return Agreed(
        t=t,
        change=float(value[0]),
        disagreement=float(np.sqrt(np.mean(np.square(np.maximum(spread, 0.0))) / 2.0)),
        rank=round(-float(value[1])) if math.isfinite(value[1]) else 0,
        floor=8.0 * _EPS * math.sqrt(d),
    )


def rate(history: Sequence[Agreed]) -> float:
    """Factor by which the change shrinks per iteration, the slowest of a short and a longer view; inf if unknown."""
    last = history[-1]
    if len(history) > 1 and last.change == 0.0:
        return 0.0
    earlier = [history[-1 - w] for w in (1, 2, 4, 8) if w < len(history)]
    rates = [(last.change / e.change) ** (1.0 / (last.t - e.t)) for e in earlier if e.change > 0.0]
    return max(rates, default=math.inf)


def error_estimate(history: Sequence[Agreed]) -> float:
    """How far the worst agent still has to go: ``change · r/(1−r)``; inf while the change does not shrink."""
    r, last = rate(history), history[-1]
    if last.change <= last.floor:  # the ratio of two roundings is no rate
        return last.change
    return last.change * r / (1.0 - r) if r < 1.0 else math.inf


def at_floor(history: Sequence[Agreed]) -> bool:
    """Whether the last changes, and what is between the agents, are rounding and nothing else."""
    last = history[-6:]
    return len(last) == 6 and all(e.change <= e.floor and e.disagreement <= 100.0 * e.floor for e in last)


@lru_cache(maxsize=16)
def _probes(d: int, k: int) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(_PROBE_SEED)
    g, h, u = rng.standard_normal((3, d, _PROBES))
    return g, h, u, rng.standard_normal((k, _PROBES))
