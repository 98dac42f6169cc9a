"""An average made anew, with its error known instead of assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deepca._typing import Array
from deepca.errors import NetworkError
from deepca.exact import exact_average, exact_mixer
from deepca.linalg import frobenius
from deepca.memory import mean_of
from deepca.mixing import averager
from deepca.networks.base import Network

__all__ = ["Averaged", "average", "common_average"]

_TRIES = 8
_STEP = 1e-4  # what is left of a disagreement at the first look
_MANY, _IDLE = 512, 16  # looks in all, and without gain, where rounds are drawn and may be far worse than those tried
_LOST = 1e-11  # by what a mean of numbers below one may be off, all rounding included
_ROUNDING = 16.0 * float(np.finfo(np.float64).eps)


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


def average(
    network: Network,
    x: Array,
    rounds: int,
    enough: Callable[[Averaged], bool],
    *,
    tries: int = _TRIES,
    idle: int = 1,
) -> Averaged:
    """The mean over all agents of ``x``, shape ``(*B, n)``, mixed until ``enough`` or until rounding.

    Mixing keeps the mean, so the mean lies between the smallest and the largest value any agent holds (of ratios x/y on
    a directed graph, whose mean with weights y it is). Both are agreed by flooding; their midpoint is the answer, half
    their distance the error. ``rounds`` are mixed before the first
    look, and as many again while the error is too large and still shrinks: until ``idle`` looks one after the other
    have not halved it, or for ``tries`` looks.

    Where no message can get lost (``network.reliable``) the mean is computed instead, over a spanning tree
    (:func:`deepca.exact.exact_average`), in fewer rounds and to rounding.
    """
    if network.reliable:
        mean = exact_average(network, x)
        rounds = exact_mixer(network.topology, collective=network.collective).length(network.topology)
        return Averaged(mean, np.zeros_like(mean), rounds)
    made, before, still = 0, np.inf, 0
    mix, memory = averager(network.topology).with_rounds(rounds), None
    while True:
        x, memory = mix.remember(network, x, memory)
        made += rounds
        ratio = mean_of(x, memory)
        high = network.reduce(np.concatenate([ratio, -ratio], axis=-1), "max")
        n = x.shape[-1]
        found = Averaged((high[:n] - high[n:]) / 2.0, (high[:n] + high[n:]) / 2.0, made)
        still = still + 1 if found.doubt > 0.5 * before else 0
        if enough(found) or still >= idle or made >= tries * rounds:
            return found
        before = min(before, found.doubt)


def common_average(network: Network, x: Array) -> Array:
    """The mean over all agents of ``x``, shape ``(*B, n)``, to rounding; the same bits at every agent.

    Over a spanning tree where there is one all the time, else mixed until nothing is gained any more. Where links
    change, a look without gain may have been made after rounds in which few links were up, so only equal values count.
    """
    topology = network.topology
    if topology.whole and not topology.changing:
        return exact_average(network, x)
    rounds = averager(topology).rounds_for(topology, _STEP)
    if not topology.changing:
        return average(network, x, rounds, lambda found: False).mean
    m = network.n_agents
    number = (network.local.astype(np.float64)[..., None] + 0.5) / m  # their mean is a half: losses show in it
    x = np.concatenate([x, number], axis=-1)
    equal = _ROUNDING * network.reduce(np.abs(x), "max")

    def settled(found: Averaged) -> bool:
        return bool((found.error <= equal).all()) or not np.isfinite(found.error).all()

    for _ in range(_TRIES):
        found = average(network, x, rounds, settled, tries=_MANY, idle=_IDLE).mean
        if not abs(found[-1] - 0.5) > _LOST:
            return np.asarray(found[:-1])
    raise NetworkError(
        f"{topology.name}: agents average numbers whose mean is 0.5 to {found[-1]:.6g}: messages get lost and are not "
        "sent again, so no sum over all agents can be had"
    )
