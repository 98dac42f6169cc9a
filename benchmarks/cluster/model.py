"""What an iteration costs on many ranks: a few measured times, put together by arithmetic.

With n bytes of message (d × k numbers), K rounds, g neighbours, r bytes of rows per rank and P ranks:

    round      = call + g · (message(n) + add(n)) + combine(n)
    gossip     = product(r) + track(n) + K · round + orthonormalise(n) + loop
    allreduce  = product(r) + track(n) + call + ⌈log₂ P⌉ · (message(n) + add(n)) + orthonormalise(n) + loop
    tree sweep = product(r) + track(n) + 2 ⌈log₂ P⌉ · (call + message(n) + add(n)) + orthonormalise(n) + loop

The messages of a round are taken one after the other, and nothing is hidden behind something else, so that networks
with several links per node, and libraries with better algorithms for long messages, can only be faster.
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
    "Crowd",
    "Iteration",
    "Line",
    "Strong",
    "allreduce",
    "fitted",
    "gossip",
    "torus_lambda2",
    "torus_rounds",
    "tree_sweep",
]

NEIGHBOURS = 4  # on a torus


@dataclass(frozen=True)
class Line:
    """Seconds for so many bytes: ``start + slope · bytes``."""

    start: float
    slope: float

    def __call__(self, nbytes: float) -> float:
        return self.start + self.slope * nbytes


@dataclass(frozen=True)
class Costs:
    """Times of the parts, on one core each while the other one is busy as well.

    call : a round without neighbours, which is what the software takes.  message : from rank to rank.
    add : a neighbour's message, weighted.  combine : what a mixer does after a round.  track : S + AW − AW before it.
    orthonormalise : n bytes.  product : r bytes of rows, for both factors of Xᵀ(XW).  loop : the rest of an iteration.
    """

    call: float
    message: Line
    add: Line
    combine: Line
    track: Line
    orthonormalise: Line
    product: Line
    loop: float

    def over(self, latency: float, bandwidth: float) -> Costs:
        """The same over another interconnect: seconds, and bytes per second."""
        return replace(self, message=Line(latency, 1.0 / bandwidth))


@dataclass(frozen=True)
class Iteration:
    """Seconds of an iteration: local work, and what averaging takes. waits : how often a rank waits for others."""

    local: float
    averaging: float
    waits: int

    @property
    def seconds(self) -> float:
        return self.local + self.averaging

    @property
    def share(self) -> float:
        """Of averaging, in the whole."""
        return self.averaging / self.seconds


@dataclass(frozen=True)
class Crowd:
    """More ranks than cores. switch : seconds until a waiting rank has given its core to another."""

    ranks: int
    cores: int
    switch: float

    def seconds(self, iteration: Iteration) -> float:
        """Cores are shared, and with every wait each of their ranks has to have its turn."""
        turns = max(1.0, self.ranks / self.cores)
        return turns * (iteration.seconds + (iteration.waits * self.switch if turns > 1.0 else 0.0))


@dataclass(frozen=True)
class Strong:
    """A problem of a given size, divided among the ranks."""

    rows: int
    features: int
    components: int

    @property
    def message(self) -> int:
        """Bytes of what is averaged."""
        return 8 * self.features * self.components

    def held(self, ranks: int) -> float:
        """Bytes of rows at each rank."""
        return 8.0 * self.rows * self.features / ranks


def gossip(costs: Costs, *, rounds: int, neighbours: float, message: float, held: float) -> Iteration:
    """An iteration with K rounds of gossip."""
    one = costs.call + neighbours * (costs.message(message) + costs.add(message)) + costs.combine(message)
    return Iteration(_local(costs, message, held), rounds * one, rounds)


def allreduce(costs: Costs, *, ranks: int, message: float, held: float) -> Iteration:
    """An iteration with one average over all ranks at once, by recursive doubling."""
    depth = _depth(ranks)
    total = costs.call + depth * (costs.message(message) + costs.add(message))
    return Iteration(_local(costs, message, held), total, depth)


def tree_sweep(costs: Costs, *, ranks: int, message: float, held: float) -> Iteration:
    """An iteration with an average up a binary tree and down again, in messages of its own."""
    rounds = 2 * _depth(ranks)
    total = rounds * (costs.call + costs.message(message) + costs.add(message))
    return Iteration(_local(costs, message, held), total, rounds)


def torus_lambda2(rows: int, columns: int) -> float:
    """λ₂ of 𝐋 = I − M/λ_max(M) on a torus with sides of at least 3, whose eigenvalues are known.

    ``λ_ij(M) = (2 − 2 cos 2πi/rows) + (2 − 2 cos 2πj/columns)``: the smallest but 0 goes once around the longer side.
    """
    if min(rows, columns) < 3:
        raise ValueError(f"a torus of {rows} × {columns}: sides of at least 3, or it is another graph")

    def along(side: int, i: int) -> float:
        return 2.0 - 2.0 * math.cos(2.0 * math.pi * i / side)

    largest = along(rows, rows // 2) + along(columns, columns // 2)
    return 1.0 - along(max(rows, columns), 1) / largest


@lru_cache
def torus_rounds(side: int) -> int:
    """K with which the library begins on a torus of side × side: tracking then settles by 0.6 per iteration."""
    return deepca.mixing.first_rounds(deepca.FastMix(), deepca.topology.torus(side, side))


def fitted(nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    """The line whose relative errors at these sizes are least in squares; neither start nor slope is negative."""
    x, t = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if x.size == 1:
        return Line(float(t[0]), 0.0)
    scale = float(x.max())
    columns = np.stack([1.0 / t, x / scale / t], axis=1)
    start, slope = nnls(columns, np.ones_like(t))[0]
    return Line(float(start), float(slope) / scale)


def _local(costs: Costs, message: float, held: float) -> float:
    return costs.product(held) + costs.track(message) + costs.orthonormalise(message) + costs.loop


def _depth(ranks: int) -> int:
    return (ranks - 1).bit_length()
