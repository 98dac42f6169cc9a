"""Averages that are exact after a known number of rounds, and the same bits at every agent.

Gossip approaches the mean at every agent at once; these mixers compute it. They use other weights in each round, along
a spanning tree or the dimensions of a hypercube, and rely on every message: nothing averages out a loss.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._typing import Array, Csr, csr
from deepca.errors import MixingError, NetworkError
from deepca.mixing import Mixer
from deepca.networks.base import Averaging, Network
from deepca.topology import Topology

__all__ = ["AllReduce", "DimensionExchange", "ExactMixer", "TreeSweep", "exact_average", "exact_mixer"]

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
        return _sweeps(topology)


@dataclass(frozen=True)
class DimensionExchange(ExactMixer):
    """On a hypercube: ``y_j = (x_j + x_{j xor 2^b}) / 2`` for every dimension b, log₂ m rounds."""

    def check(self, topology: Topology) -> None:
        super().check(topology)
        if not _is_hypercube(topology):
            raise MixingError(f"{topology.name} is no hypercube; use deepca.exact.TreeSweep")

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
    m, B = network.n_agents, network.batch
    known = np.random.default_rng(_CONTROL_SEED).uniform(1.0, 2.0, m)
    flat = np.concatenate([x.reshape(*B, -1), known[network.local][..., None]], axis=-1)
    mean = exact_mixer(network.topology, collective=network.collective)(network, flat)
    mean = mean[(0,) * len(B)]
    if not abs(float(mean[-1]) - float(known.mean())) <= 1e-9:
        raise NetworkError(
            f"a number with mean {known.mean():.6g} came out as {float(mean[-1]):.6g}: a message was lost or altered"
        )
    return np.asarray(mean[:-1])


@lru_cache(maxsize=_KEPT)
def _sweeps(topology: Topology) -> tuple[Csr, ...]:
    m = topology.n_agents
    if m == 1:
        return ()
    depth, parent = topology.paths_to(topology.middle)
    rounds: list[Csr] = []
    for level in range(int(depth.max()), 0, -1):
        children = np.flatnonzero(depth == level)
        share = 1.0 / m if level == 1 else 1.0
        keep = np.ones(m)
        keep[depth == 0] = share
        rounds.append(_round(keep, parent[children], children, share))
    depth, parent = topology.paths_from(topology.middle)
    for level in range(1, int(depth.max()) + 1):
        children = np.flatnonzero(depth == level)
        keep = np.ones(m)
        keep[children] = 0.0
        rounds.append(_round(keep, children, parent[children], 1.0))
    return tuple(rounds)


@lru_cache(maxsize=_KEPT)
def _exchanges(topology: Topology) -> tuple[Csr, ...]:
    m = topology.n_agents
    agents = np.arange(m)
    return tuple(_round(np.full(m, 0.5), agents, agents ^ (1 << bit), 0.5) for bit in range(m.bit_length() - 1))


def _round(keep: Array, receivers: npt.NDArray[np.int64], senders: npt.NDArray[np.int64], weight: float) -> Csr:
    own = np.flatnonzero(keep)
    rows, columns = np.concatenate([own, receivers]), np.concatenate([own, senders])
    values = np.concatenate([keep[own], np.full(len(receivers), weight)])
    return csr(sparse.coo_array((values, (rows, columns)), shape=(keep.size, keep.size)))


def _is_hypercube(topology: Topology) -> bool:
    m = topology.n_agents
    if m & (m - 1) or topology.n_edges * 2 != m * (m.bit_length() - 1):
        return False
    links = sparse.coo_array(topology.adjacency)
    apart = links.row ^ links.col
    return bool(((apart & (apart - 1)) == 0).all())
