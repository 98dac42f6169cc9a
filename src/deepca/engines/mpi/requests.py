"""Reduce values over ranks and check how agents are distributed over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from deepca._util.typing import Array
from deepca._util.units import plural
from deepca.errors import TopologyError
from deepca.network.reductions import Op, PendingReduction
from deepca.topology.graph import Topology

_under_way: set[PendingReduction] = set()  # keeps alive the buffers to which MPI still writes


class NonblockingReduction(PendingReduction):
    """Minimum or maximum over all ranks, started by the constructor; reading the value waits for it."""

    def __init__(self, own: Array, op: Op, rounds: int, comm: MPI.Intracomm, waiting: Callable[[], Any]) -> None:
        self._sign = 1.0 if op == "max" else -1.0
        # MPI_MAX may drop NaN, so it is sent separately
        flat = np.atleast_1d(own).ravel()
        missing = np.isnan(flat)
        self._sent = np.concatenate([np.where(missing, -np.inf, self._sign * flat), missing])
        self._found = np.empty_like(self._sent)
        self._shape, self._waiting = own.shape, waiting
        self._request: MPI.Request | None = comm.Iallreduce(self._sent, self._found, MPI.MAX)
        self.nbytes = self._sent.nbytes
        self.op, self.rounds_left = op, rounds
        _under_way.add(self)

    def finish(self) -> None:
        """Wait until the reduction is complete."""
        if self._request is not None:
            with self._waiting():
                self._request.Wait()
            self._request = None
            _under_way.discard(self)

    @property
    def value(self) -> Array:  # type: ignore[override]
        """The reduced value."""
        self.finish()
        n = self._found.size // 2
        found = np.where(self._found[n:] > 0.0, np.nan, self._sign * self._found[:n])
        return np.asarray(found.reshape(self._shape))


def true_on_all_ranks(comm: MPI.Intracomm, condition: bool) -> bool:
    """Return whether a condition holds on all ranks."""
    return _reduced(comm, condition, MPI.LAND)


def true_on_any_rank(comm: MPI.Intracomm, condition: bool) -> bool:
    """Return whether a condition holds on at least one rank."""
    return _reduced(comm, condition, MPI.LOR)


def _reduced(comm: MPI.Intracomm, condition: bool, op: MPI.Op) -> bool:
    found = np.array([condition])
    comm.Allreduce(MPI.IN_PLACE, found, op)
    return bool(found[0])


def finish(pending: Sequence[PendingReduction]) -> None:
    """Wait until these reductions are complete."""
    for one in pending:
        if isinstance(one, NonblockingReduction):
            one.finish()


def rows_of(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Flatten x to contiguous rows ``(m_local, n)``, in the same order on all ranks, whatever its memory layout."""
    return np.ascontiguousarray(x).reshape(x.shape[0], math.prod(x.shape[1:]))


def check_agents_per_rank(agents_per_rank: tuple[int, ...], topology: Topology, ranks: int) -> None:
    """Raise TopologyError unless every rank has at least one agent, and all agents are distributed."""
    m = topology.n_agents
    if len(agents_per_rank) != ranks:
        raise TopologyError(
            f"agents_per_rank has {len(agents_per_rank)} entries, but the job has {ranks} ranks; give one per rank",
            parameter="agents_per_rank",
            value=agents_per_rank,
        )
    if m < ranks and min(agents_per_rank, default=0) < 1:
        raise TopologyError(
            f"{topology.name} has {m} agent{plural(m)}, but the job has {ranks} ranks, and every rank needs "
            f"at least one agent; start {m} ranks or fewer (mpiexec -n {m})",
            parameter="topology",
            value=m,
        )
    idle = [rank for rank, agents in enumerate(agents_per_rank) if agents < 1]
    if idle:
        raise TopologyError(
            f"agents_per_rank[{idle[0]}] = {agents_per_rank[idle[0]]}, but every rank needs at least one agent; give a "
            "number above 0",
            parameter=f"agents_per_rank[{idle[0]}]",
            value=agents_per_rank[idle[0]],
        )
    if sum(agents_per_rank) != m:
        raise TopologyError(
            f"the {ranks} ranks have {sum(agents_per_rank)} agents in total, but {topology.name} has {m}; change the "
            "number of agents on each rank",
            parameter="agents_per_rank",
            value=agents_per_rank,
        )
