"""Network of agents on the ranks of an MPI job; requires the ``mpi`` extra (mpi4py, and an MPI library).

Every rank holds one or more agents. Neighbours on the same rank exchange no messages; those on other ranks are reached
through a distributed-graph communicator. Reductions use ``MPI_Allreduce``: all ranks belong to one owner, so nothing
needs to be hidden from them, and one collective operation is faster than flooding the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from deepca._util.machine import keep_freed_memory
from deepca._util.renamed import renamed_attributes, renamed_parameters
from deepca._util.typing import Array, Csr
from deepca.consensus.broadcasts import share_spectrum
from deepca.engines.local import distribute_evenly
from deepca.engines.mpi.requests import NonblockingReduction, check_agents_per_rank, finish, rows_of, true_on_all_ranks
from deepca.engines.mpi.routes import RemoteRows, Route
from deepca.engines.mpi.shared_memory import SharedRows
from deepca.engines.mpi.watchdog import Watchdog
from deepca.network.base import Network, Pairs
from deepca.network.compression import Code, Copies, decode, encode
from deepca.network.reductions import Op, PendingReduction, reducer
from deepca.network.sums import SumLayout, SumTree, Words
from deepca.network.traffic import Traffic
from deepca.topology.graph import Topology

__all__ = ["MpiNetwork"]

_FLOAT64 = np.dtype(np.float64)
_MAX_BUFFERS = 32  # number of cached receive buffers, one per size
_MAX_RETAINED_BYTES = 32 << 20  # freed arrays up to this size are reused; larger ones go back to the system


@renamed_attributes(left_the_rank="bytes_to_other_ranks")
class MpiNetwork(Network):
    """Network of the local agents of one rank; agents are numbered rank by rank, and arrays are ``(m_local, d, k)``.

    Parameters
    ----------
    topology : Topology
        Graph of all agents, the same on every rank.
    comm : Intracomm, optional
        The participating ranks; all ranks of the job by default. The communicator is duplicated, so that messages are
        not mixed with those of its other users.
    agents_per_rank : sequence of int, optional
        Number of agents on each rank, at least one; by default, the numbers differ by at most one.
    allreduce : bool, default=False
        Broadcast by ``MPI_Bcast`` instead of a tree of messages between neighbours.
    timeout : float or None, default=600.0
        Seconds that a rank waits in one exchange before it ends the whole job and reports which ranks it waited for;
        None to wait indefinitely, as MPI does.
    node : Intracomm, optional
        Ranks that share memory with this one; those on the same machine by default.

    Notes
    -----
    One round is one ``Neighbor_allgather`` into a reused buffer, sent without copying (``Neighbor_alltoallw`` where
    ranks hold several agents, which sends each neighbour only the rows it needs). Where every rank holds one agent,
    ranks on the same machine read each other's rows from shared memory, and the messages between them only signal that
    rows are ready. Rounds with given weights, and those of directed or time-varying graphs, send messages only along
    the edges that they use.

    Traffic is that of the local agents and includes messages between agents on the same rank, as on other engines;
    ``bytes_to_other_ranks`` counts only the bytes sent to other ranks. Reductions count as ``⌈log₂ ranks⌉`` control
    rounds.

    Raises
    ------
    TopologyError
        If ``agents_per_rank`` does not distribute all agents, or leaves a rank without agents.
    ParameterError
        If ``timeout`` is not positive.
    """

    reliable = has_one_owner = True

    @renamed_parameters(shares="agents_per_rank")
    def __init__(
        self,
        topology: Topology,
        comm: MPI.Intracomm | None = None,
        *,
        agents_per_rank: Sequence[int] | None = None,
        allreduce: bool = False,
        timeout: float | None = 600.0,
        node: MPI.Intracomm | None = None,
    ) -> None:
        world = MPI.COMM_WORLD if comm is None else comm
        counts = distribute_evenly(topology.n_agents, world.size) if agents_per_rank is None else tuple(agents_per_rank)
        check_agents_per_rank(counts, topology, world.size)
        first = int(sum(counts[: world.rank]))
        super().__init__(topology, (counts[world.rank],))
        keep_freed_memory(_MAX_RETAINED_BYTES)
        self.collective = allreduce
        if topology.time_varying:
            self.reliable = False  # no spanning tree exists in every round
        self.local = np.arange(first, first + counts[world.rank])
        self._rank_of = np.repeat(np.arange(world.size), counts)
        self._comm = world.Dup()
        self._depth = (world.size - 1).bit_length()
        self._watchdog = Watchdog(timeout, world.rank, lambda: f"iteration {self._t} ({self._phase})")
        self._full = self._route(topology.gossip_sparse)
        around = self._full.ranks
        self._graph_comm = self._comm.Create_dist_graph_adjacent(around, around, reorder=False)
        self._stays = topology.static_undirected
        self._one_each = all(count == 1 for count in counts)
        self._shared = SharedRows(self._comm, around, node)
        self._shares_memory = tuple(self._shared.shares_memory_with(rank) for rank in around)
        self._all_share_memory = true_on_all_ranks(self._comm, all(self._shares_memory))
        self._uses_shared = self._one_each and not self._shared.unavailable
        self._signal_request: MPI.Prequest | None = None
        self._signals = np.zeros((len(around) + 1, 1), dtype=np.uint8)
        self._buffers: dict[tuple[int, int, np.dtype[Any]], npt.NDArray[Any]] = {}
        self._bytes_to_other_ranks = self._rounds = self._bytes = 0
        share_spectrum(self)

    @property
    def traffic(self) -> Traffic:
        """Traffic of the local agents."""
        self._count_full_rounds()
        return super().traffic

    @property
    def bytes_to_other_ranks(self) -> int:
        """Bytes sent by local agents to agents on other ranks."""
        self._count_full_rounds()
        return self._bytes_to_other_ranks

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Exchange one round of messages, overlapped with the local sum where possible."""
        self._check_epoch()
        x = np.asarray(x, _FLOAT64)
        if weights is None and self._stays:
            route = self._full
            own = x.ravel() if self._one_each else rows_of(x)
            remote, y = self._exchange_full(own, route.weigh_local)
            route.add_remote(y, remote)
            return y.reshape(x.shape)
        route, own = self._now() if weights is None else self._prepared(weights, self._route), rows_of(x)
        y = route.weighted(own, self._exchange_along(route, own))
        self._counted(route, 1, own[0].nbytes)
        if weights is None:
            self._advance_pending(1)
        return y.reshape(x.shape)

    def average_pairs(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Average pairs of agents, by messages where they are on different ranks."""
        self._check_epoch()
        y, first = rows_of(np.array(x, _FLOAT64)), int(self.local[0])
        remote, crossed = np.empty_like(y[0]), 0
        here = self._rank_of[pairs] == self._comm.rank
        for (i, j), (i_here, j_here) in zip(pairs[here.any(axis=1)], here[here.any(axis=1)], strict=True):
            if i_here and j_here:
                y[[i - first, j - first]] = (y[i - first] + y[j - first]) * 0.5
                continue
            own, other = (y[i - first], int(self._rank_of[j])) if i_here else (y[j - first], int(self._rank_of[i]))
            with self._watchdog.waiting((other,)):
                self._comm.Sendrecv(own, other, recvbuf=remote, source=other)
            own += remote
            own *= 0.5
            crossed += 1
        self._count_pairs(pairs, rounds, remote.nbytes)
        self._bytes_to_other_ranks += crossed * remote.nbytes
        return y.reshape(x.shape)

    def collect(self, x: Array, /) -> Array:
        """Receive the rows of all neighbours."""
        self._check_epoch()
        beside, route, own = self.neighbors, self._full, rows_of(np.asarray(x, _FLOAT64))
        known = np.concatenate([own, self._exchange_along(route, own), np.zeros((1, own.shape[1]))])
        self._counted(route, 1, own[0].nbytes)
        self._advance_pending(1)
        row_of = np.full(self.n_agents + 1, len(known) - 1)  # the row of zeros, also for index −1
        row_of[np.concatenate([self.local, route.remote])] = np.arange(len(known) - 1)
        return np.asarray(known[row_of[beside]].reshape(*beside.shape, *x.shape[1:]))

    def gossip_compressed(self, x: Array, copies: Copies | None, code: Code, /) -> tuple[Array, Copies]:
        """Exchange one round of compressed differences."""
        self._check_epoch()
        route = self._full
        before = Copies.continued(x, copies, 0, self._graph)
        fresh = before is not copies
        remote = np.zeros((route.n_remote, *x.shape[1:])) if fresh else before.others[0]
        messages = encode(x - before.own, "float64" if fresh else code, 1)
        sent = messages.ravel() if self._one_each else rows_of(messages)
        received, D = self._exchange_full(sent, lambda _: before.own + decode(messages, x.shape))
        remote = remote + decode(np.asarray(received).reshape(route.n_remote, *messages.shape[1:]), remote.shape)
        near = D - D[:1]  # leaves (𝐋 − I) D unchanged, and its rounding shrinks with the differences
        change = route.weighted(rows_of(near), rows_of(remote - D[:1])).reshape(x.shape) - near
        return x + change, Copies(D, (remote,), self._graph)

    def allreduce_mean(self, x: Array, /) -> Array:
        """Average over all agents by one ``MPI_Allreduce``."""
        self._check_epoch()
        mean = self._allreduce(np.asarray(rows_of(x).sum(axis=0))) / self.n_agents
        return np.array(np.broadcast_to(mean.reshape(x.shape[1:]), x.shape))

    def _allreduce(self, sums: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Add up the arrays of all ranks in place."""
        with self._watchdog.waiting("all ranks"):
            self._comm.Allreduce(MPI.IN_PLACE, sums, MPI.SUM)
        self._count(rounds=self._depth, messages=self._depth, payload=sums.nbytes)
        self._bytes_to_other_ranks += self._depth * sums.nbytes
        return sums

    def _sum_words(
        self, own: Words, layout: SumLayout, derive: Callable[[Words], Words], size: int, tree: SumTree, /
    ) -> tuple[Words, Words]:
        """Add the messages of all agents by one ``MPI_Allreduce``; the root's rank broadcasts what it derives."""
        self._check_epoch()
        summed = layout.carry(self._allreduce(layout.carry_free_sum(own)))
        derived = derive(summed) if (self.local == tree.root).any() else np.zeros(size, dtype=np.uint64)
        return summed, self._bcast(derived, tree.root) if size else derived

    def broadcast(self, x: Array, /) -> Array:
        """Broadcast the leader's value, by ``MPI_Bcast`` with ``allreduce`` or on unreliable networks."""
        if self.reliable and not self.collective:
            return super().broadcast(x)
        self._check_epoch()
        own = np.asarray(x[self.leader - int(self.local[0]) if self.is_leader_local else 0], _FLOAT64)
        return self._bcast(np.ascontiguousarray(own + 0.0), self.leader)  # C order, without negative zeros

    def _bcast(self, value: npt.NDArray[Any], agent: int) -> npt.NDArray[Any]:
        """Replace the value on all ranks by that of the rank of an agent."""
        with self._watchdog.waiting("all ranks"):
            self._comm.Bcast(value, int(self._rank_of[agent]))
        self._count(control_rounds=self._depth, messages=self._depth, control=value.nbytes)
        self._bytes_to_other_ranks += self._depth * value.nbytes
        return value

    def reduce(self, x: Array, op: Op, /) -> Array:
        """Reduce over all agents by one ``MPI_Allreduce``."""
        self._check_epoch()
        reduced = self._start_reduction(x, op, 0)
        self._count(control_rounds=self._depth, messages=self._depth, control=reduced.nbytes)
        return reduced.value

    def reduce_later(self, x: Array, op: Op, /) -> PendingReduction:
        """Start an ``MPI_Iallreduce``; its value becomes ready in the round in which flooding would have ended."""
        pending = self._start_reduction(x, op, self._flood_rounds())
        self._count_piggybacked(self._depth * pending.nbytes)
        if pending.ready:
            pending.finish()
        else:
            self._pending.append(pending)
        return pending

    def begin(self, epoch: int, t: int, /, phase: str = "step") -> None:
        """Complete pending reductions if the epoch changes."""
        if epoch != self.epoch:
            self._finish_pending()
        super().begin(epoch, t, phase)

    def discard_pending(self) -> None:
        """Complete pending reductions and discard their values."""
        self._finish_pending()
        super().discard_pending()

    def close(self) -> None:
        """Free the communicators; every rank must call this, and the network cannot be used afterwards."""
        self._finish_pending()
        self._watchdog.close()
        if self._signal_request is not None:
            self._signal_request.Free()
            self._signal_request = None
        self._shared.close()
        self._graph_comm.Free()
        self._comm.Free()

    def _exchange_full(
        self, own: npt.NDArray[Any], meanwhile: Callable[[npt.NDArray[Any]], Array]
    ) -> tuple[RemoteRows, Array]:
        """Exchange rows between neighbouring agents; the remote rows that are returned are valid until the next round.

        ``own`` is ``(m_local, n)``, or ``(n,)`` where every rank holds one agent. ``meanwhile(own)`` is computed while
        messages are in flight, if possible, and is returned as well.
        """
        self._watchdog.awaited_ranks = self._full.ranks
        self._watchdog.turns += 1
        try:
            slot = self._shared.put(own) if self._uses_shared else None
            if slot is None:
                return self._exchange_rows(own), meanwhile(own)
            if self._all_share_memory:
                signals = self._signal()
                made = meanwhile(own)
                signals.Wait()
                return cast("RemoteRows", slot.others), made
            remote = self._exchange_rows(own, signals=self._shares_memory)
            return [remote[i] if other is None else other for i, other in enumerate(slot.others)], meanwhile(own)
        finally:
            self._watchdog.turns += 1
            self._rounds += 1
            self._bytes += own.nbytes
            if self._pending:
                self._advance_pending(1)
            else:
                self.full_rounds += 1

    def _exchange_rows(self, own: npt.NDArray[Any], signals: tuple[bool, ...] = ()) -> npt.NDArray[Any]:
        """Exchange rows with other ranks; with ranks marked in ``signals``, only a byte that says a row is ready."""
        route, row = self._full, own.nbytes // len(self.local)
        remote = self._buffer(route, own)
        if self._one_each and not signals:
            self._graph_comm.Neighbor_allgather(own, remote)
            return remote
        types = route.datatypes(row, signals)
        once, starts = [1] * len(types.sent), [begin * row for begin in route.begins]
        self._graph_comm.Neighbor_alltoallw(
            (own, (once, [0] * len(once)), types.sent), (remote, (once, starts), types.received)
        )
        return remote

    def _signal(self) -> MPI.Request:
        """Exchange a byte with every neighbour; once it has arrived, the neighbour's row is in shared memory."""
        if self._signal_request is None:
            try:
                self._signal_request = self._graph_comm.Neighbor_allgather_init(self._signals[-1], self._signals[:-1])
            except NotImplementedError:  # an MPI library older than MPI 4
                return self._graph_comm.Ineighbor_allgather(self._signals[-1], self._signals[:-1])
        self._signal_request.Start()
        return self._signal_request

    def _exchange_along(self, route: Route, own: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Exchange rows only along the edges that a route uses."""
        remote = self._buffer(route, own)
        types = route.datatypes(own[0].nbytes)
        with self._watchdog.waiting(route.ranks):
            requests = [
                self._graph_comm.Irecv((remote[begin:], 1, datatype), rank)
                for rank, begin, datatype in zip(route.ranks, route.begins, types.received, strict=True)
                if datatype is not MPI.DATATYPE_NULL
            ]
            requests += [
                self._graph_comm.Isend((own, 1, datatype), rank)
                for rank, datatype in zip(route.ranks, types.sent, strict=True)
                if datatype is not MPI.DATATYPE_NULL
            ]
            MPI.Request.Waitall(requests)
        return remote

    def _start_reduction(self, x: Array, op: Op, rounds: int) -> NonblockingReduction:
        """Start a reduction whose value becomes ready after ``rounds`` rounds."""
        own = np.asarray(reducer(op).reduce(np.asarray(x, dtype=np.float64), axis=0))
        return NonblockingReduction(own, op, rounds, self._comm, lambda: self._watchdog.waiting("all ranks"))

    def _finish_pending(self) -> None:
        """Complete all pending reductions, as MPI requires on every rank even if the values are not needed."""
        finish(self._pending)

    def _advance_pending(self, rounds: int) -> None:
        """Advance pending reductions by ``rounds`` rounds and complete those that are due."""
        pending = self._pending
        super()._advance_pending(rounds)
        finish([one for one in pending if one.ready])

    def _complete_pending(self, pending: list[PendingReduction]) -> None:
        """Complete the reductions that a sweep has carried to all agents."""
        super()._complete_pending(pending)
        finish(pending)

    def _buffer(self, route: Route, own: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a buffer for remote rows, which is reused for rows of the same size."""
        key = (route.n_remote, own.shape[-1], own.dtype)
        found = self._buffers.get(key)
        if found is None:
            if len(self._buffers) >= _MAX_BUFFERS:
                self._buffers.clear()
            found = self._buffers[key] = np.empty((route.n_remote, own.shape[-1]), dtype=own.dtype)
        return found

    def _counted(self, route: Route, rounds: int, payload: int) -> None:
        """Count rounds over a route; ``payload`` is the size of one message in bytes, summed over the rounds."""
        sent = self._sent
        sent[0] += rounds
        sent[2] += rounds * route.messages
        sent[3] += route.messages * payload
        self._bytes_to_other_ranks += route.rows_sent * payload

    def _count_full_rounds(self) -> None:
        """Count the full rounds since the last call; counting each one at once would take as long as the round."""
        self._counted(self._full, self._rounds, self._bytes // len(self.local))
        self._rounds = self._bytes = 0

    def _now(self) -> Route:
        """Return the route of the next round on a directed or time-varying network."""
        if not self.topology.time_varying:
            return self._full
        self.next_round += 1
        return self._route(self.topology.at(self.next_round - 1))

    def _route(self, weights: Csr) -> Route:
        """Return the route for given weights."""
        return Route.of(weights, self._rank_of, self._comm.rank)
