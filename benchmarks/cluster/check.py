"""Time iterations on a few ranks, to validate the cost model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

import deepca
from benchmarks.cluster.costs import round_trip
from benchmarks.cluster.rounds import COLUMNS, in_turns
from benchmarks.cluster.sharing import sleeping_barrier
from deepca.consensus.exact import AllReduce
from deepca.operators.linalg import random_orthonormal

if TYPE_CHECKING:
    from mpi4py import MPI

    from deepca.consensus.mixers import Mixer

__all__ = ["ROUNDS", "ROW_BYTES", "Case", "Check", "cases", "measure"]

ROUNDS = 6
ROW_BYTES = 16_000_000  # size of the rows on each rank, in bytes


@dataclass(frozen=True)
class Case:
    """DeEPCA with a number of features, averaging by gossip on a torus or by ``MPI_Allreduce``."""

    ranks: int
    features: int
    collective: bool
    repetitions: int
    block: float
    """Target duration of a timed block in seconds, long enough for the start of a run not to matter."""

    @property
    def cost(self) -> float:
        """Approximate seconds, for progress bars."""
        return (self.repetitions + 3) * 1.5 * self.block


@dataclass(frozen=True)
class Check:
    """Seconds per iteration by repetition, and the cost of a message between two ranks on one core."""

    ranks: int
    features: int
    collective: bool
    neighbours: float
    seconds: tuple[float, ...]
    switch: float


def cases(ranks: int, quick: bool) -> Iterator[Case]:
    """Yield the cases: short and long messages, and both ways of averaging."""
    if ranks > 8:
        return
    for features in (10_000,) if quick else (300, 10_000):
        for collective in (False, True)[: min(ranks, 2)]:
            yield Case(ranks, features, collective, *((3, 0.2) if quick else (9, 0.5)))


def measure(case: Case, comm: MPI.Intracomm) -> Check | None:
    """Time iterations of ``deepca.solve`` in blocks between barriers, without shared memory between ranks."""
    from mpi4py import MPI

    from deepca.engines.mpi.network import MpiNetwork

    topology = deepca.topology.from_name("torus" if case.ranks > 2 else "ring", case.ranks)
    network = MpiNetwork(topology, comm, allreduce=case.collective, node=MPI.COMM_SELF)
    rng = np.random.default_rng(comm.rank)
    X = rng.standard_normal((ROW_BYTES // (8 * case.features), case.features))
    X[:, :COLUMNS] *= np.linspace(9.0, 5.0, COLUMNS)
    A = deepca.operators.from_rows([X], form="rows", workers=1)
    mixer: Mixer = AllReduce() if case.collective else deepca.FastMix(rounds=ROUNDS)
    algorithm = deepca.DeEPCA(A, random_orthonormal(case.features, COLUMNS, seed=0), network, mixer)
    state = deepca.solve(algorithm, max_iter=3, certify=False).state

    def iterate(count: int) -> None:
        deepca.solve(algorithm, max_iter=count, start=state, certify=False)

    (seconds,) = in_turns(comm, (iterate,), case.repetitions, case.block)
    network.close()
    switch = _switch(comm) if comm.size > 2 else 0.0
    if comm.rank:
        return None
    return Check(case.ranks, case.features, case.collective, float(topology.degrees.mean()), seconds, switch)


def _switch(comm: MPI.Intracomm) -> float:
    """Return the time of a short message between two ranks on the same core, while the others sleep."""
    pair = cast("MPI.Intracomm", comm.Split(0 if comm.rank < 2 else 1))
    found = 0.0
    if comm.rank < 2:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
        (seconds,) = in_turns(pair, (round_trip(pair, 8),), 5, 0.01)
        os.sched_setaffinity(0, before)
        found = float(np.median(seconds)) / 2.0
    sleeping_barrier(comm)
    pair.Free()
    return found
