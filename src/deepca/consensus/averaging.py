"""An average made anew, with its error known instead of assumed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deepca._util.floats import EPS
from deepca._util.portable import length
from deepca._util.typing import Array
from deepca.consensus.exact import TreeSweep, exact_average, exact_average_then, exact_mixer, with_known
from deepca.consensus.mixer_state import mean_of
from deepca.consensus.mixers import averager
from deepca.errors import NetworkError
from deepca.network.base import Network
from deepca.topology.graph import Topology

__all__ = [
    "LOST",
    "Averaged",
    "average",
    "average_then",
    "common_average",
    "common_average_then",
    "common_averaged_then",
    "messages_lost",
]

_TRIES = 8
_STEP = 1e-4  # what is left of a disagreement at the first look
_MANY, _IDLE = 512, 16  # looks in all, and without gain: rounds may be far worse than those by which K was chosen
LOST = 1e-11  # by what a mean of numbers between one and two may be off, all rounding included
_KNOWN = 8  # numbers with known mean: a lost message spoils few of them as little as it happens to spoil one
_UNNOTICED = 16.0  # by what all of these may be spoilt less than the numbers averaged are: some 16^−8 of losses
_NOTICED = 0.5  # weights that do not quite add up to one change all numbers alike, so once is enough of two roundings
_ROUNDING = 16.0 * EPS


@dataclass(frozen=True)
class Averaged:
    """``mean`` is the same bits at every agent; the true mean lies within ``± error`` of it, entry by entry.

    growth : roundings that the mean may be off by beyond that, in units of a product's: mixing rounds again and again.
    lost : by how much numbers with known mean came out wrong, beyond their error. Where that is more than rounding,
    messages were lost or altered, and neither mean nor error can be relied on.
    """

    mean: Array
    error: Array
    rounds: int
    lost: float = 0.0
    growth: float = 1.0

    @property
    def doubt(self) -> float:
        """Length of the error; the same bits at every agent, since decisions follow from it."""
        return length(self.error)

    def off_by(self, largest: float) -> float:
        """Bound the length of what rounding and lost messages may have done to the mean of vectors that long."""
        return 2.0 * EPS * self.growth * largest


def average(
    network: Network,
    x: Array,
    rounds: int,
    enough: Callable[[Averaged], bool],
) -> Averaged:
    """The mean over all agents of ``x``, shape ``(*B, n)``, mixed until ``enough`` or until rounding.

    Mixing keeps the mean, so the mean lies between the smallest and the largest value any agent holds (of ratios x/y on
    a directed graph, whose mean with weights y it is). Both are agreed by flooding; their midpoint is the answer, half
    their distance the error. ``rounds`` are mixed before the first
    look, and as many again while the error is too large and still shrinks: until some looks one after the other have
    not halved it, as few links may have been up in between. Some numbers with known means travel along.

    Where no message can get lost (``network.reliable``) the mean is computed instead, over a spanning tree
    (:func:`deepca.consensus.exact.exact_average`), in fewer rounds and to rounding.
    """
    if network.reliable:
        mean = exact_average(network, x)
        rounds = exact_mixer(network.topology, collective=network.collective).length(network.topology)
        return Averaged(mean, np.zeros_like(mean), rounds)
    made, before, still = 0, np.inf, 0
    mix, memory = averager(network.topology).with_rounds(rounds), None
    x, expected = with_known(network, x, _KNOWN)
    n = x.shape[-1]
    while True:
        x, memory = mix.remember(network, x, memory)
        made += rounds
        ratio = mean_of(x, memory)
        high = network.reduce(np.concatenate([ratio, -ratio], axis=-1), "max")
        mean, error = (high[:n] - high[n:]) / 2.0, (high[:n] + high[n:]) / 2.0
        lost = max(float((np.abs(mean[-_KNOWN:] - expected) - error[-_KNOWN:]).max()), 0.0)
        # one rounding per round, independent of each other, and weights that do not quite add up to one
        growth = math.sqrt(made) + (_UNNOTICED if lost > _ROUNDING * made else _NOTICED) * min(lost, LOST) / EPS
        found = Averaged(mean[:-_KNOWN], error[:-_KNOWN], made, lost, growth)
        still = still + 1 if found.doubt > 0.5 * before else 0
        if enough(found) or still >= _IDLE or made >= _MANY * rounds:
            return found
        before = min(before, found.doubt)


def average_then(
    network: Network,
    x: Array,
    rounds: int,
    enough: Callable[[Averaged], bool],
    derive: Callable[[Averaged], Array],
    size: int,
) -> tuple[Averaged, Array]:
    """The same, and ``size`` numbers that the leader derives from it, the same bits at every agent.

    They come along with the mean where that is computed over a tree, and are broadcast elsewhere.
    """
    if network.reliable:
        made = TreeSweep().length(network.topology)
        mean, told = exact_average_then(
            network, x, lambda mean: derive(Averaged(mean, np.zeros_like(mean), made)), size
        )
        return Averaged(mean, np.zeros_like(mean), made), told
    found = average(network, x, rounds, enough)
    return found, network.from_leader(derive(found) if network.leads else np.zeros(size))


def common_average_then(network: Network, x: Array, derive: Callable[[Array], Array], size: int) -> tuple[Array, Array]:
    """:func:`common_average`, and ``size`` numbers that the leader derives from it, the same bits at every agent."""
    found, told = common_averaged_then(network, x, derive, size)
    return found.mean, told


def common_averaged_then(
    network: Network, x: Array, derive: Callable[[Array], Array], size: int
) -> tuple[Averaged, Array]:
    """The same, and what is known of how good the mean is; its error is rounding (:meth:`Averaged.off_by`)."""
    if network.topology.whole and not network.topology.changing:
        mean, told = exact_average_then(network, x, derive, size)
        return Averaged(mean, np.zeros_like(mean), 0), told
    found = _common(network, x)
    return found, network.from_leader(derive(found.mean) if network.leads else np.zeros(size))


def common_average(network: Network, x: Array) -> Array:
    """The mean over all agents of ``x``, shape ``(*B, n)``, to rounding; the same bits at every agent.

    Over a spanning tree where there is one all the time, else mixed until nothing is gained any more. Where links
    change, a look without gain may have been made after rounds in which few links were up, so only equal values count.
    """
    if network.topology.whole and not network.topology.changing:
        return exact_average(network, x)
    return _common(network, x).mean


def _common(network: Network, x: Array) -> Averaged:
    topology = network.topology
    rounds = averager(topology).rounds_for(topology, _STEP)
    equal = _ROUNDING * network.reduce(np.abs(x), "max")

    def settled(found: Averaged) -> bool:
        return bool((found.error <= equal).all()) or not np.isfinite(found.error).all()

    found = average(network, x, rounds, settled)
    for _ in range(_TRIES - 1):
        if found.lost <= _ROUNDING * found.rounds:
            break
        again = average(network, x, rounds, settled)
        found = min(found, again, key=lambda one: one.lost)  # not above LOST is not yet as good as it can be
    if found.lost > LOST:
        raise messages_lost(topology, found.lost)
    return found


def messages_lost(topology: Topology, off: float) -> NetworkError:
    """Make the error of a network on which numbers with known mean come out wrong by ``off``."""
    return NetworkError(
        f"{topology.name}: the average of numbers with known mean is off by {off:.1e}: messages get lost and are not "
        "sent again, so no sum over all agents can be had"
    )
