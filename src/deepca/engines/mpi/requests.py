"""Pending reductions between ranks, and checks of how many agents each rank holds."""

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
from deepca.network.reductions import Op, Pending
from deepca.topology.graph import Topology

_under_way: set[Pending] = set()  # keeps their buffers alive, which MPI still writes to


class PendingReduction(Pending):
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


def agreed(comm: MPI.Intracomm, here: bool, op: MPI.Op = MPI.LAND) -> bool:
    """Return whether a condition holds on all ranks; with ``MPI.LOR``, on any rank."""
    found = np.array([here])
    comm.Allreduce(MPI.IN_PLACE, found, op)
    return bool(found[0])


def finish(pending: Sequence[Pending]) -> None:
    """Wait for all pending reductions."""
    for one in pending:
        if isinstance(one, PendingReduction):
            one.finish()


def rows_of(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return x as contiguous rows ``(m_local, n)``, in the order that all ranks use."""
    return np.ascontiguousarray(x).reshape(x.shape[0], math.prod(x.shape[1:]))


def check_shares(shares: tuple[int, ...], topology: Topology, ranks: int) -> None:
    """Raise TopologyError unless every rank holds at least one agent, and the ranks together hold all agents."""
    m = topology.n_agents
    if len(shares) != ranks:
        raise TopologyError(
            f"shares has {len(shares)} entries, but the job has {ranks} ranks; give one number per rank",
            parameter="shares",
            value=shares,
        )
    if m < ranks and min(shares, default=0) < 1:
        raise TopologyError(
            f"{topology.name} has {m} agent{plural(m)}, but the job has {ranks} ranks, and every rank needs "
            f"at least one agent; start {m} ranks or fewer (mpiexec -n {m})",
            parameter="topology",
            value=m,
        )
    idle = [rank for rank, share in enumerate(shares) if share < 1]
    if idle:
        raise TopologyError(
            f"rank {idle[0]} holds no agent; every rank needs at least one",
            parameter=f"shares[{idle[0]}]",
            value=shares[idle[0]],
        )
    if sum(shares) != m:
        raise TopologyError(
            f"the {ranks} ranks hold {sum(shares)} agents in total, but {topology.name} has {m}; change the number of "
            "ranks, or of agents on each",
            parameter="shares",
            value=shares,
        )
