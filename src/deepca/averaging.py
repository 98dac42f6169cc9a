"""An average made anew, with its error known instead of assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deepca._typing import Array
from deepca.exact import exact_average, exact_mixer
from deepca.linalg import frobenius
from deepca.memory import mean_of
from deepca.mixing import averager
from deepca.networks.base import Network

__all__ = ["Averaged", "average", "common_average"]

_TRIES = 8
_STEP = 1e-4  # what is left of a disagreement at the first look


@dataclass(frozen=True)
class Averaged:
    """``mean`` is the same bits at every agent; the true mean lies within ``± error`` of it, entry by entry."""

    mean: Array
    error: Array
    rounds: int

    @property
    def doubt(self) -> float:
        """Length of the error."""
        return float(frobenius(self.error))


def average(network: Network, x: Array, rounds: int, enough: Callable[[Averaged], bool]) -> Averaged:
    """The mean over all agents of ``x``, shape ``(*B, n)``, mixed until ``enough`` or until rounding.

    Mixing keeps the mean, so the mean lies between the smallest and the largest value any agent holds (of ratios x/y on
    a directed graph, whose mean with weights y it is). Both are agreed by flooding; their midpoint is the answer, half
    their distance the error. ``rounds`` are mixed before the first
    look, and as many again while the error is too large and still shrinks.

    Where no message can get lost (``network.reliable``) the mean is computed instead, over a spanning tree
    (:func:`deepca.exact.exact_average`), in fewer rounds and to rounding.
    """
    if network.reliable:
        mean = exact_average(network, x)
        rounds = exact_mixer(network.topology, collective=network.collective).length(network.topology)
        return Averaged(mean, np.zeros_like(mean), rounds)
    made, before = 0, np.inf
    mix, memory = averager(network.topology).with_rounds(rounds), None
    while True:
        x, memory = mix.remember(network, x, memory)
        made += rounds
        ratio = mean_of(x, memory)
        high = network.reduce(np.concatenate([ratio, -ratio], axis=-1), "max")
        n = x.shape[-1]
        found = Averaged((high[:n] - high[n:]) / 2.0, (high[:n] + high[n:]) / 2.0, made)
        if enough(found) or found.doubt > 0.5 * before or made >= _TRIES * rounds:
            return found
        before = found.doubt


def common_average(network: Network, x: Array) -> Array:
    """The mean over all agents of ``x``, shape ``(*B, n)``, to rounding; the same bits at every agent.

    Over a spanning tree where there is one all the time, else mixed until nothing is gained any more.
    """
    topology = network.topology
    if topology.whole and not topology.changing:
        return exact_average(network, x)
    rounds = averager(topology).rounds_for(topology, _STEP)
    return average(network, x, rounds, lambda found: False).mean
