"""Predict the cost of an iteration on many ranks from a few measured times.

With n bytes of message (d × k numbers), K rounds, g neighbours, r bytes of rows per rank and P ranks:

    round      = call(n) + g · (message(n) + add(n)) + combine(n)
    gossip     = product(r) + track(n) + K · round + orthonormalise(n) + loop
    allreduce  = product(r) + track(n) + call(n) + ⌈log₂ P⌉ · (message(n) + add(n)) + orthonormalise(n) + loop
    tree sweep = product(r) + track(n) + 2 ⌈log₂ P⌉ · (call(n) + message(n) + add(n)) + orthonormalise(n) + loop

The messages of a round are counted one after the other and nothing overlaps, so networks with several links per node
and libraries with better algorithms for long messages can only be faster.
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
    "Share",
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
    """Seconds as a function of bytes: ``start + slope · bytes``."""

    start: float
    slope: float

    def __call__(self, nbytes: float) -> float:
        """Return the seconds for a number of bytes."""
        return self.start + self.slope * nbytes


@dataclass(frozen=True)
class Costs:
    """Times of the parts, each on one core while the other core is busy.

    Parameters
    ----------
    call
        A round without neighbours: software overhead, and weighting the agent's own value.
    message
        A message from rank to rank.
    add
        Weighting and adding a neighbour's message.
    combine
        Work of a mixer after a round.
    track
        S + AW − AW before mixing.
    orthonormalise
        Orthonormalising n bytes.
    products
        Both factors of Xᵀ(XW) over r bytes of rows, by the number of features.
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
        """Return the line for rows with about that many features."""
        return min(self.products, key=lambda entry: abs(math.log(entry[0] / features)))[1]

    def over(self, latency: float, bandwidth: float) -> Costs:
        """Return the costs over another interconnect, given its latency and bandwidth."""
        return replace(self, message=Line(latency, 1.0 / bandwidth))


@dataclass(frozen=True)
class Iteration:
    """Seconds of local work and of averaging in an iteration, and the number of times a rank waits for others."""

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
class Crowd:
    """More ranks than cores; ``switch`` is the time until a waiting rank yields its core."""

    ranks: int
    cores: int
    switch: float

    def seconds(self, iteration: Iteration) -> float:
        """Return the seconds of an iteration when ranks share cores and take turns at every wait."""
        turns = max(1.0, self.ranks / self.cores)
        return turns * (iteration.seconds + (iteration.waits * self.switch if turns > 1.0 else 0.0))


@dataclass(frozen=True)
class Share:
    """The part of a problem at one rank; ``held`` is its bytes of rows."""

    features: int
    components: int
    held: float

    @property
    def message(self) -> int:
        """Bytes of a message."""
        return 8 * self.features * self.components


@dataclass(frozen=True)
class Strong:
    """A problem of fixed size, divided among the ranks."""

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
    ``λ_ij(M) = (2 − 2 cos 2πi/rows) + (2 − 2 cos 2πj/columns)``; the smallest nonzero one goes once around the longer
    side.
    """
    if min(rows, columns) < 3:
        raise ValueError(f"a torus of {rows} × {columns}: sides of at least 3, or it is another graph")

    def along(side: int, i: int) -> float:
        return 2.0 - 2.0 * math.cos(2.0 * math.pi * i / side)

    largest = along(rows, rows // 2) + along(columns, columns // 2)
    return 1.0 - along(max(rows, columns), 1) / largest


@lru_cache
def torus_rounds(side: int) -> int:
    """Return the initial K on a torus of side × side, with which tracking contracts by 0.6 per iteration."""
    return deepca.consensus.rates.first_rounds(deepca.FastMix(), deepca.topology.torus(side, side))


def fitted(nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    """Fit a line by least squares of relative errors, with nonnegative start and slope."""
    x, t = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if x.size == 1:
        return Line(float(t[0]), 0.0)
    scale = float(x.max())
    columns = np.stack([1.0 / t, x / scale / t], axis=1)
    start, slope = nnls(columns, np.ones_like(t))[0]
    return Line(float(start), float(slope) / scale)


def _local(costs: Costs, share: Share) -> float:
    n = share.message
    return costs.product(share.features)(share.held) + costs.track(n) + costs.orthonormalise(n) + costs.loop


def _depth(ranks: int) -> int:
    return (ranks - 1).bit_length()
