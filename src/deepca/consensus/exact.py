"""Compute averages that are exact after a known number of rounds, and bitwise the same at every agent.

Gossip only approaches the mean; exact mixers compute it. They use different weights in each round, along a spanning
tree or the dimensions of a hypercube, and depend on every message: a single lost message makes the result wrong.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from deepca._util.floats import SMALLEST
from deepca._util.portable import total
from deepca._util.typing import Array, Csr
from deepca.consensus.mixers import Mixer
from deepca.errors import MixingError, NetworkError, SumMismatch
from deepca.network.base import MixerNetwork, Network
from deepca.network.sums import COUNT, Addend, Total, Unit
from deepca.network.sums.rounds import hypercube_rounds, is_hypercube, sweeps
from deepca.operators.base import Operator
from deepca.topology.graph import Topology

__all__ = [
    "AllReduce",
    "DimensionExchange",
    "ExactMixer",
    "ProductUnits",
    "TreeSweep",
    "agree_on_units",
    "check_symmetric",
    "exact_average",
    "exact_average_and_derive",
    "exact_mixer",
    "with_known",
]

_CONTROL_SEED = 6007  # seed of the control numbers, the same at all agents
_BOUND = Unit(-64, 2)  # bounds of products need few digits
_MAX_AGENTS_IN_ONE_WORD = 256  # means of one word then have errors of at most about eps times the trace of the mean
_SYMMETRY_TOLERANCE = 1e-8  # far beyond rounding, which is relative to the same bound
_CACHE_SIZE = 16  # maximum number of graphs whose weights are cached


@dataclass(frozen=True)
class ExactMixer(Mixer):
    """Base class of exact mixers, whose number of rounds follows from the graph: ``rounds`` and K are ignored."""

    memoryless = True

    def __post_init__(self) -> None:
        """Check ``messages``; ``rounds`` is ignored."""
        if self.messages != "float64":
            raise MixingError(
                f"{type(self).__name__} with messages = {self.messages!r}: an exact average needs all digits of every "
                'message; leave messages="float64", or use a mixer such as deepca.FastMix(messages="float32")',
                parameter="messages",
                value=self.messages,
            )

    def check(self, topology: Topology) -> None:
        """Raise MixingError if the graph is time-varying."""
        if topology.time_varying:
            raise MixingError(
                f"{type(self).__name__} needs a static graph, but {topology.name} is time-varying; use a tracked "
                "method (deepca.AcceleratedDeEPCA or deepca.DeEPCA; algorithm 'accelerated' or 'deepca')",
                parameter="mix",
                value=type(self).__name__,
            )

    @property
    def auto(self) -> bool:
        """False: K follows from the graph."""
        return False

    @property
    def fixed(self) -> bool:
        """True: K is the same in every iteration."""
        return True

    def rounds_in(self, topology: Topology, t: int, K: int = 0) -> int:
        """Return the number of rounds of one average."""
        return self.length(topology)

    @property
    def reaches_all(self) -> bool:
        """True: the mean contains the values of every agent."""
        return True

    def with_rounds(self, K: int) -> Self:
        """Return the same mixer, since K follows from the graph."""
        return self

    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        """Run each round of gossip with its own weights."""
        for weights in self.weights(network.topology):
            x = network.gossip(x, weights)
        return x

    def contraction(self, topology: Topology, K: int) -> float:
        """Return 0 if K rounds suffice for the average, else 1."""
        return 0.0 if self.length(topology) <= K else 1.0

    def length(self, topology: Topology) -> int:
        """Return the number of rounds of one average."""
        return max(len(self.weights(topology)), 1)

    @abstractmethod
    def weights(self, topology: Topology) -> tuple[Csr, ...]:
        """Return the gossip matrix of every round; repeated calls return the same objects."""


@dataclass(frozen=True)
class TreeSweep(ExactMixer):
    """Exact average over a spanning tree, in ``2 · depth`` rounds with m − 1 messages up and m − 1 down.

    Notes
    -----
    The tree has the shortest paths from a central agent, so its depth is the radius of the graph::

        up:    y_p = x_p + Σ_{c child of p} x_c      deepest level first; the root divides by m
        down:  y_c = x_p                             p the parent of c
    """

    def weights(self, topology: Topology) -> tuple[Csr, ...]:
        """Return the weights of the rounds up the tree, then down."""
        return _up_and_down(topology)


@dataclass(frozen=True)
class DimensionExchange(ExactMixer):
    """Exact average on a hypercube: ``y_j = (x_j + x_{j xor 2^b}) / 2`` along each dimension b, in log₂ m rounds."""

    def check(self, topology: Topology) -> None:
        """Raise MixingError unless the graph is a static hypercube."""
        super().check(topology)
        if not is_hypercube(topology):
            raise MixingError(
                f"DimensionExchange needs a hypercube, but {topology.name} is not one; use "
                "deepca.consensus.exact.TreeSweep",
                parameter="mix",
                value="DimensionExchange",
            )

    def weights(self, topology: Topology) -> tuple[Csr, ...]:
        """Return the weights of one round per dimension."""
        return hypercube_rounds(topology)


@dataclass(frozen=True)
class AllReduce(ExactMixer):
    """Exact average by one collective operation, ``MPI_Allreduce``: faster where the cluster offers it.

    The graph is not used. Separate sites have no such operation.
    """

    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        """Average over all agents at once."""
        return network.allreduce_mean(x)

    def length(self, topology: Topology) -> int:
        """Return 1: the operation counts as one round."""
        return 1

    def weights(self, topology: Topology) -> tuple[Csr, ...]:
        """Return an empty tuple: nothing is gossiped."""
        return ()


def exact_mixer(topology: Topology, *, collective: bool = False) -> ExactMixer:
    """Return the exact mixer with the fewest rounds on a graph; AllReduce if the network has collective operations."""
    if collective:
        return AllReduce()
    return DimensionExchange() if topology.n_agents > 2 and is_hypercube(topology) else TreeSweep()


def exact_average(network: Network, x: Array, unit: Unit | None = None) -> Array:
    """Return the mean over all agents of ``x``, shape ``(*B, n)``, bitwise the same everywhere: an exact sum over m."""
    return network.total(x.reshape(*network.batch, -1), unit) / network.n_agents


def exact_average_and_derive(
    network: Network, addends: Sequence[Addend], derive: Callable[[Array], Array], size: int
) -> tuple[Array, Array]:
    """Return exact averages, one after another, and ``size`` numbers that the leader derives from them.

    Both are bitwise the same everywhere; see :meth:`deepca.network.Network.totals_and_derive`.
    """

    def mean(totals: list[Total]) -> Array:
        return np.concatenate([total.value for total in totals]) / network.n_agents

    totals, derived = network.totals_and_derive(addends, lambda totals: derive(mean(totals)), size)
    return mean(totals), derived


@dataclass(frozen=True, eq=False)
class ProductUnits:
    """Units of exact sums of products ``A_j w`` with vectors of norm 1, one per row.

    Parameters
    ----------
    unit : Unit or None
        The units; None if they have to be found for every sum.
    limits : ndarray of shape (*B, d) or None
        Absolute values of the local agents' entries up to which the sums cannot overflow.
    largest : float
        Bound on the entries of the mean of the products; infinite if it is unknown.
    """

    unit: Unit | None = None
    limits: Array | None = None
    largest: float = math.inf

    def addend(self, name: str, Y: Array) -> Addend:
        """Return an addend of products ``(*B, d, k)``, flattened."""
        flat, directions = Y.reshape(*Y.shape[:-2], -1), Y.shape[-1]
        return Addend(name, flat, unit=self.unit, limits=self.limits, directions=directions)


def agree_on_units(network: Network, A: Operator) -> ProductUnits:
    """Agree on the units of sums of products with the ``A_j``, from bounds on their entries, in one exact sum.

    Each agent may send entries of up to ``2 (b_i + N_i / m)`` in row i, where ``b_i`` is its own bound and ``N_i`` the
    sum of the bounds of all agents, so sums cannot overflow. If an entry is larger, since a bound is wrong or outdated,
    agents find another unit. Numbers have one word, or two if there are many agents, since all of them may round alike.
    The units are unknown if an agent has no bounds.
    """
    m, bounds = network.n_agents, A.row_bounds()
    known = bounds is not None and bool(np.isfinite(bounds).all())
    own = bounds if bounds is not None and known else np.zeros((*network.batch, A.d))
    lacking = np.full((*network.batch, 1), float(not known))
    counted, total = network.totals(
        Addend("counts of operators without bounds", lacking, unit=COUNT, nonnegative=True),
        Addend("bounds of products", own, guess=_BOUND, digits=8, nonnegative=True),
    )
    N = total.value
    if counted.value[0] or not np.isfinite(N).all():
        return ProductUnits()
    unit = Unit.holding(N, words=1 if m <= _MAX_AGENTS_IN_ONE_WORD else 2)
    return ProductUnits(unit, 2.0 * (own + N / m), float(N.max(initial=0.0)) / m)


def check_symmetric(network: Network, Q: Array, AQ: Array, P: Array, AP: Array, largest: float) -> None:
    """Raise NetworkError if averages of products contradict the symmetry of A: ``Qᵀ(AP) = (AQ)ᵀP``.

    An agent that computes with other rows than before, or adds other numbers than products, contradicts it. Nobody can
    tell which agent that is.

    Parameters
    ----------
    network : Network
        Network of the agents.
    Q, AQ : ndarray of shape (d, s)
        Earlier directions and their averaged products.
    P, AP : ndarray of shape (d, p)
        New directions and their averaged products.
    largest : float
        Bound on the entries of averaged products.
    """
    if network.local.size == network.n_agents or not Q.shape[1]:
        return  # all products were computed here
    difference = float(np.abs(Q.T @ AP - AQ.T @ P).max())
    if difference <= _SYMMETRY_TOLERANCE * largest * math.sqrt(len(P)) + SMALLEST:
        return
    what = f"products differ by {difference:.1e} from those of a symmetric matrix"
    if network.plan is not None:
        raise SumMismatch(network.plan, what)
    raise NetworkError(
        f"{what}: an agent computes with other rows than before, or a message was altered; check the data and logs of "
        "all agents"
    )


def with_known(network: Network, x: Array, count: int = 1) -> tuple[Array, Array]:
    """Append ``count`` control numbers to x ``(*B, n)``; return the result and the means of the control numbers."""
    m = network.n_agents
    known = _known(m, count)
    flat = x.reshape(*network.batch, -1)
    means = np.array([total(row) / m for row in known])
    return np.concatenate([flat, known.T[network.local]], axis=-1), means


def _known(m: int, count: int = 1) -> Array:
    """Return the control numbers of all agents, ``(count, m)``."""
    return np.random.default_rng(_CONTROL_SEED).uniform(1.0, 2.0, (count, m))


@lru_cache(maxsize=_CACHE_SIZE)
def _up_and_down(topology: Topology) -> tuple[Csr, ...]:
    up, down = sweeps(topology)
    return up + down
