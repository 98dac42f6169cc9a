"""Predict the cost of an iteration on many ranks from a few measured times.

With n bytes of message (d × k numbers), K rounds, g neighbours, r bytes of rows per rank and P ranks:

    round      = call(n) + g · (message(n) + add(n)) + combine(n)
    gossip     = product(r) + track(n) + K · round + orthonormalise(n) + loop
    allreduce  = product(r) + track(n) + call(n) + ⌈log₂ P⌉ · (message(n) + add(n)) + orthonormalise(n) + loop
    tree sweep = product(r) + track(n) + 2 ⌈log₂ P⌉ · (call(n) + message(n) + add(n)) + orthonormalise(n) + loop

The model adds up the messages of a round, as if nothing overlapped. Networks with several links per node, and MPI
libraries with better algorithms for long messages, can only be faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import nnls

import deepca

__all__ = [
    "NEIGHBOURS",
    "Costs",
    "Iteration",
    "Line",
    "Oversubscription",
    "Share",
    "StrongScaling",
    "allreduce",
    "fitted",
    "gossip",
    "torus_lambda2",
    "torus_rounds",
    "tree_sweep",
]

NEIGHBOURS = 4  # number of neighbours of a rank on a torus


@dataclass(frozen=True)
class Line:
    """Seconds as a function of bytes: ``start + slope · bytes``."""

    start: float
    slope: float

    def __call__(self, nbytes: float) -> float:
        """Return the seconds for a number of bytes."""
        return self.start + self.slope * nbytes


@dataclass(frozen=True)
class Costs:
    """Times of the parts of an iteration, measured on one core while the other one is busy.

    Parameters
    ----------
    call
        A round without neighbours: overhead of the software, and weighting of the agent's own value.
    message
        A message from rank to rank.
    add
        Weighting and adding a neighbour's message.
    combine
        What a mixer computes after a round.
    track
        The tracking update before mixing, ``S + AW − AW_previous``.
    orthonormalise
        Orthonormalisation of an array of n bytes.
    products
        The product Xᵀ(XW) with r bytes of rows, by the number of features.
    loop
        The rest of an iteration.
    """

    call: Line
    message: Line
    add: Line
    combine: Line
    track: Line
    orthonormalise: Line
    products: tuple[tuple[int, Line], ...]
    loop: float

    def product(self, features: int) -> Line:
        """Return the line that was measured for the nearest number of features."""
        return min(self.products, key=lambda entry: abs(math.log(entry[0] / features)))[1]

    def over(self, latency: float, bandwidth: float) -> Costs:
        """Return the costs over another interconnect, given its latency and bandwidth."""
        return replace(self, message=Line(latency, 1.0 / bandwidth))


@dataclass(frozen=True)
class Iteration:
    """Seconds of local work and of averaging in an iteration, and how often a rank waits for others."""

    local: float
    averaging: float
    waits: int

    @property
    def seconds(self) -> float:
        """Seconds in total."""
        return self.local + self.averaging

    @property
    def share(self) -> float:
        """Share of averaging in the iteration."""
        return self.averaging / self.seconds


@dataclass(frozen=True)
class Oversubscription:
    """More ranks than cores; ``switch`` is the time until a waiting rank yields its core."""

    ranks: int
    cores: int
    switch: float

    def seconds(self, iteration: Iteration) -> float:
        """Return the seconds per iteration; ranks that share a core take turns and yield it at every wait."""
        turns = max(1.0, self.ranks / self.cores)
        return turns * (iteration.seconds + (iteration.waits * self.switch if turns > 1.0 else 0.0))


@dataclass(frozen=True)
class Share:
    """The part of a problem on one rank; ``row_bytes`` is the size of its rows in bytes."""

    features: int
    components: int
    row_bytes: float

    @property
    def message(self) -> int:
        """Bytes of a message."""
        return 8 * self.features * self.components


@dataclass(frozen=True)
class StrongScaling:
    """A problem of fixed size that is divided among the ranks (strong scaling)."""

    rows: int
    features: int
    components: int

    def share(self, ranks: int) -> Share:
        """Return the part of each rank."""
        return Share(self.features, self.components, 8.0 * self.rows * self.features / ranks)


def gossip(costs: Costs, share: Share, *, rounds: int, neighbours: float) -> Iteration:
    """Predict an iteration with K rounds of gossip."""
    n = share.message
    one = costs.call(n) + neighbours * (costs.message(n) + costs.add(n)) + costs.combine(n)
    return Iteration(_local(costs, share), rounds * one, rounds)


def allreduce(costs: Costs, share: Share, *, ranks: int) -> Iteration:
    """Predict an iteration with one average over all ranks by recursive doubling."""
    n, depth = share.message, _depth(ranks)
    total = costs.call(n) + depth * (costs.message(n) + costs.add(n))
    return Iteration(_local(costs, share), total, depth)


def tree_sweep(costs: Costs, share: Share, *, ranks: int) -> Iteration:
    """Predict an iteration with an average up and down a binary tree."""
    n, rounds = share.message, 2 * _depth(ranks)
    return Iteration(_local(costs, share), rounds * (costs.call(n) + costs.message(n) + costs.add(n)), rounds)


def torus_lambda2(rows: int, columns: int) -> float:
    """Return λ₂ of 𝐋 = I − M/λ_max(M) on a torus with sides of at least 3.

    Notes
    -----
    ``λ_ij(M) = (2 − 2 cos 2πi/rows) + (2 − 2 cos 2πj/columns)``; the smallest nonzero one belongs to the wave that goes
    once around the longer side.
    """
    if min(rows, columns) < 3:
        raise ValueError(f"torus of {rows} × {columns}: both sides must be at least 3")

    def along(side: int, i: int) -> float:
        return 2.0 - 2.0 * math.cos(2.0 * math.pi * i / side)

    largest = along(rows, rows // 2) + along(columns, columns // 2)
    return 1.0 - along(max(rows, columns), 1) / largest


@lru_cache
def torus_rounds(side: int) -> int:
    """Return the library's initial K on a torus of side × side, with which tracking contracts by 0.6 per iteration."""
    return deepca.consensus.rates.first_rounds(deepca.FastMix(), deepca.topology.torus(side, side))


def fitted(nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    """Fit a line with nonnegative start and slope by least squares of the relative errors."""
    x, t = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if x.size == 1:
        return Line(float(t[0]), 0.0)
    scale = float(x.max())
    columns = np.stack([1.0 / t, x / scale / t], axis=1)
    start, slope = nnls(columns, np.ones_like(t))[0]
    return Line(float(start), float(slope) / scale)


def _local(costs: Costs, share: Share) -> float:
    n = share.message
    return costs.product(share.features)(share.row_bytes) + costs.track(n) + costs.orthonormalise(n) + costs.loop


def _depth(ranks: int) -> int:
    return (ranks - 1).bit_length()
