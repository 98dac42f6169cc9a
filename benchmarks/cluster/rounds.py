"""Compare a round of gossip with the bare exchange: ``Neighbor_allgather`` on the same graph with the same sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import deepca
from benchmarks.timing import WALL, Clock

if TYPE_CHECKING:
    from mpi4py import MPI

    from deepca._util.typing import Array
    from deepca.network.base import Network

__all__ = ["COLUMNS", "GOAL", "SIZES", "Case", "Timing", "cases", "in_turns", "measure"]

GOAL = 1.3
"""Largest allowed ratio of a round of gossip to the bare exchange."""
SIZES = {"12 KB": 300, "1 MB": 25_000, "8 MB": 200_000}
"""Number of rows of five float64 in a message, by the size shown on the page."""
COLUMNS = 5
_BLOCK = 0.06  # target duration of a timed block, in seconds
_LEAST = 3  # smallest number of rounds per block


@dataclass(frozen=True)
class Case:
    """One agent per rank on a graph, with messages of a given size."""

    ranks: int
    graph: str
    size: str
    repetitions: int

    @property
    def cost(self) -> float:
        """Approximate seconds, for progress bars."""
        one = max(_BLOCK, _LEAST * SIZES[self.size] / 1e6 * self.ranks * 0.1)
        return 4 * (self.repetitions + 2) * one


@dataclass(frozen=True)
class Timing:
    """Seconds per round by repetition; entries with the same index were measured directly after each other.

    Parameters
    ----------
    ours
        ``MpiNetwork.gossip``.
    separate_machines
        The same without shared memory, as if every rank were on its own machine.
    bare
        The bare exchange, of the same numbers every time.
    fresh
        The bare exchange of new numbers, which are not in the caches of other ranks.
    """

    ranks: int
    graph: str
    size: str
    neighbours: float
    ours: tuple[float, ...]
    separate_machines: tuple[float, ...]
    bare: tuple[float, ...]
    fresh: tuple[float, ...]


def cases(ranks: int, quick: bool) -> Iterator[Case]:
    """Yield the cases for a number of ranks."""
    graphs = ("ring",) if ranks == 2 else ("ring", "torus", "erdos-renyi") if ranks <= 8 else ("ring", "torus")
    sizes = tuple(SIZES) if ranks <= 8 and not quick else tuple(SIZES)[:2]
    for graph in graphs[:1] if quick else graphs:
        for size in sizes:
            yield Case(ranks, graph, size, 5 if quick else 15)


def measure(case: Case, comm: MPI.Intracomm) -> Timing | None:
    """Measure the four exchanges in turn; each round of gossip sends what the previous one returned, as in a run."""
    from mpi4py import MPI

    from deepca.engines.mpi.network import MpiNetwork

    topology = deepca.topology.from_name(case.graph, case.ranks, seed=0)
    around = topology.neighbors(comm.rank)
    networks = MpiNetwork(topology, comm), MpiNetwork(topology, comm, node=MPI.COMM_SELF)
    graph = comm.Create_dist_graph_adjacent(around, around, reorder=False)
    x: Array = np.random.default_rng(comm.rank).standard_normal((1, SIZES[case.size], COLUMNS))
    sent, received = x.ravel().copy(), np.empty((len(around), x.size))

    def ours(network: Network, count: int) -> None:
        y = x
        for _ in range(count):
            y = network.gossip(y)

    def bare(count: int) -> None:
        for _ in range(count):
            graph.Neighbor_allgather(sent, received)

    def fresh(count: int) -> None:
        for _ in range(count):
            np.add(sent, 1.0, out=sent)
            graph.Neighbor_allgather(sent, received)

    calls = (partial(ours, networks[0]), partial(ours, networks[1]), bare, fresh)
    times = in_turns(comm, calls, case.repetitions, _BLOCK)
    graph.Free()
    for network in networks:
        network.close()
    if comm.rank:
        return None
    return Timing(case.ranks, case.graph, case.size, float(topology.degrees.mean()), *times)


def in_turns(
    comm: MPI.Intracomm,
    calls: tuple[Callable[[int], None], ...],
    repetitions: int,
    block: float,
    clock: Clock = WALL,
) -> list[tuple[float, ...]]:
    """Return the seconds per unit of work of each function, by repetition, measured in turn between barriers.

    Every second repetition reverses the order, so that no function always follows the same one. ``clock`` is WALL for
    joint work of the ranks, and CPU for local work, for which the wait at the second barrier is excluded.
    """

    def timed(call: Callable[[int], None], count: int) -> float:
        comm.Barrier()
        start = clock()
        call(count)
        alone = clock()
        comm.Barrier()
        return ((clock() if clock is WALL else alone) - start) / count

    for call in calls:
        call(_LEAST)  # allocates buffers and their pages
    first = [timed(call, _LEAST) for call in calls]
    counts: list[int] = comm.bcast([max(_LEAST, math.ceil(block / max(seconds, 1e-9))) for seconds in first])
    taken: list[list[float]] = [[] for _ in calls]
    for repetition in range(repetitions):
        for i in range(len(calls)) if repetition % 2 == 0 else reversed(range(len(calls))):
            taken[i].append(timed(calls[i], counts[i]))
    return [tuple(values) for values in taken]
