"""Averages that are exact after a known number of rounds, and the same bits at every agent.

Gossip approaches the mean at every agent at once; these mixers compute it. They use other weights in each round, along
a spanning tree or the dimensions of a hypercube, and rely on every message: nothing averages out a loss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from scipy import sparse

from deepca._util.portable import total
from deepca._util.typing import Array, Csr
from deepca.consensus.mixers import Mixer
from deepca.errors import MixingError, NetworkError
from deepca.network.base import Averaging, Network
from deepca.network.sweeps import round_between, sweeps
from deepca.topology.graph import Topology

__all__ = [
    "AllReduce",
    "DimensionExchange",
    "ExactMixer",
    "TreeSweep",
    "exact_average",
    "exact_average_then",
    "exact_mixer",
    "with_known",
]

_CONTROL_SEED = 6007
_KEPT = 16  # graphs whose weights are remembered


@dataclass(frozen=True)
class ExactMixer(Mixer):
    """As many rounds as the graph needs, whatever K is asked for."""

    memoryless = True

    def __post_init__(self) -> None:  # K follows from the graph
        if self.messages != "float64":
            raise MixingError(
                f"{type(self).__name__} with messages = {self.messages!r}: an exact average needs all digits of every "
                'message; leave messages="float64", or use a mixer such as deepca.FastMix(messages="float32")'
            )

    def check(self, topology: Topology) -> None:
        if topology.changing:
            raise MixingError(
                f"{type(self).__name__} needs links that stay, but {topology.name} changes from round to round; use a "
                "tracked method there (deepca.AcceleratedDeEPCA, deepca.DeEPCA; algorithm 'accelerated' or 'deepca')"
            )

    @property
    def auto(self) -> bool:
        return False

    @property
    def fixed(self) -> bool:
        return True

    def rounds_in(self, topology: Topology, t: int, K: int = 0) -> int:
        return self.length(topology)

    @property
    def spreads(self) -> bool:
        return True

    def with_rounds(self, K: int) -> Self:
        return self

    def run(self, network: Averaging, x: Array, K: int, /) -> Array:
        for weights in self.weights(network.topology):
            x = network.gossip(x, weights)
        return x

    def contraction(self, topology: Topology, K: int) -> float:
        return 0.0 if self.length(topology) <= K else 1.0

    def length(self, topology: Topology) -> int:
        """Rounds of one average."""
        return max(len(self.weights(topology)), 1)

    @abstractmethod
    def weights(self, topology: Topology) -> tuple[Csr, ...]:
        """Of every round, the same objects each time."""


@dataclass(frozen=True)
class TreeSweep(ExactMixer):
    """Sums up a spanning tree to its root, and the mean down again: ``2 · depth`` rounds of at most m − 1 messages.

    The tree is that of shortest paths from an agent in the middle, so its depth is the radius of the graph::

        up:    y_p = x_p + Σ_{c child of p} x_c      deepest first;  at the root, divided by m
        down:  y_c = x_p                             p the parent of c
    """

    def weights(self, topology: Topology) -> tuple[Csr, ...]:
        return _up_and_down(topology)


@dataclass(frozen=True)
class DimensionExchange(ExactMixer):
    """On a hypercube: ``y_j = (x_j + x_{j xor 2^b}) / 2`` for every dimension b, log₂ m rounds."""

    def check(self, topology: Topology) -> None:
        super().check(topology)
        if not _is_hypercube(topology):
            raise MixingError(f"{topology.name} is no hypercube; use deepca.consensus.exact.TreeSweep")

    def weights(self, topology: Topology) -> tuple[Csr, ...]:
        return _exchanges(topology)


@dataclass(frozen=True)
class AllReduce(ExactMixer):
    """The mean by one operation of the machine, ``MPI_Allreduce``: for who wants speed and has a cluster.

    Nobody's neighbours matter then. Engines between sites have no such operation.
    """

    def run(self, network: Averaging, x: Array, K: int, /) -> Array:
        return network.total_mean(x)

    def length(self, topology: Topology) -> int:
        return 1

    def weights(self, topology: Topology) -> tuple[Csr, ...]:
        return ()


def exact_mixer(topology: Topology, *, collective: bool = False) -> ExactMixer:
    """The exact mixer with the fewest rounds on this graph; ``collective`` where the machine adds up over all."""
    if collective:
        return AllReduce()
    return DimensionExchange() if topology.n_agents > 2 and _is_hypercube(topology) else TreeSweep()


def exact_average(network: Network, x: Array) -> Array:
    """The mean over all agents of ``x``, shape ``(*B, n)``, to rounding; the same bits at every agent.

    A number whose mean is known travels along. If it comes out wrong, a message was lost or altered.
    """
    flat, known = with_known(network, x)
    with network.following(_known(network.n_agents)[0], flat.shape[-1] - 1):
        mean = exact_mixer(network.topology, collective=network.collective)(network, flat)
    return _checked(network.common(mean), known)


def exact_average_then(network: Network, x: Array, derive: Callable[[Array], Array], size: int) -> tuple[Array, Array]:
    """The same, and what the leader derives from the mean: ``size`` numbers, the same bits at every agent.

    Factorizations and matrix products round differently on another processor. So the root of the tree computes what
    follows from the mean, and the way down carries both: no round more, and ``m − 1`` longer messages. ``derive`` is
    called where the leader is held, and nowhere else; whoever receives its numbers checks them.
    """
    TreeSweep().check(network.topology)
    flat, known = with_known(network, x)
    with network.following(_known(network.n_agents)[0], flat.shape[-1] - 1):
        mean, told = network.sweep(flat, lambda total: derive(total[:-1]), size)
    return _checked(mean, known), told


def with_known(network: Network, x: Array, count: int = 1) -> tuple[Array, Array]:
    """Append some more numbers to x ``(*B, n)``; return all, and the means of those numbers over all agents."""
    m = network.n_agents
    known = _known(m, count)
    flat = x.reshape(*network.batch, -1)
    means = np.array([total(row) / m for row in known])
    return np.concatenate([flat, known.T[network.local]], axis=-1), means


def _known(m: int, count: int = 1) -> Array:
    """Those numbers of all agents, ``(count, m)``."""
    return np.random.default_rng(_CONTROL_SEED).uniform(1.0, 2.0, (count, m))


def _checked(mean: Array, known: Array) -> Array:
    """The mean without that number, if it came out right."""
    if not abs(float(mean[-1]) - float(known[0])) <= 1e-9:
        raise NetworkError(
            f"a number with mean {float(known[0]):.6g} came out as {float(mean[-1]):.6g}: a message was lost or altered"
        )
    return np.asarray(mean[:-1] + 0.0)  # no negative zero: on the way down its sign may be lost


@lru_cache(maxsize=_KEPT)
def _up_and_down(topology: Topology) -> tuple[Csr, ...]:
    up, down = sweeps(topology)
    return up + down


@lru_cache(maxsize=_KEPT)
def _exchanges(topology: Topology) -> tuple[Csr, ...]:
    m = topology.n_agents
    agents = np.arange(m)
    return tuple(round_between(np.full(m, 0.5), agents, agents ^ (1 << bit), 0.5) for bit in range(m.bit_length() - 1))


def _is_hypercube(topology: Topology) -> bool:
    m = topology.n_agents
    if topology.directed or m & (m - 1) or topology.n_edges * 2 != m * (m.bit_length() - 1):
        return False
    links = sparse.coo_array(topology.adjacency)
    apart = links.row ^ links.col
    return bool(((apart & (apart - 1)) == 0).all())
