"""Agents on the ranks of an MPI job. Needs the ``mpi`` extra (mpi4py, and an MPI library).

Every rank holds one agent or several; neighbours on the same rank exchange nothing, those on other ranks are reached
through a distributed-graph communicator. What all agree on goes through ``MPI_Allreduce``: a cluster has one owner, so
there is nobody to hide from, and one operation is faster than flooding the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from deepca._util.machine import keep_freed_memory
from deepca._util.typing import Array, Csr
from deepca.engines.local import even_shares
from deepca.engines.mpi.requests import PendingReduction, agreed, check_shares, finish, rows_of
from deepca.engines.mpi.routes import FarRows, Route
from deepca.engines.mpi.shared_memory import Shelf
from deepca.engines.mpi.watchdog import Patience
from deepca.network.base import Network, Pairs
from deepca.network.broadcasts import share_spectrum
from deepca.network.compression import Code, Copies, decode, encode
from deepca.network.reductions import Op, Pending, reducer
from deepca.network.traffic import Traffic
from deepca.topology.graph import Topology

__all__ = ["MpiNetwork"]

_FLOAT64 = np.dtype(np.float64)
_KEPT = 32  # buffers of different sizes
_FREED = 32 << 20  # bytes: larger arrays are given back to the system at once


class MpiNetwork(Network):
    """Arrays are ``(m_local, d, k)``: agents are numbered rank by rank, and each rank holds those of its share.

    Parameters
    ----------
    topology : the graph of all agents, the same at every rank.
    comm : the ranks that take part; all of the job by default. A duplicate is made, so messages never mix with others.
    shares : how many agents each rank holds; as even as possible by default. At least one each.
    allreduce : exact averages by ``MPI_Allreduce`` instead of a tree of messages between neighbours.
    timeout : seconds that a rank waits in one exchange before it ends the whole job and says for whom it has waited;
        None for as long as it takes. MPI itself would wait for ever.
    node : the ranks that share memory with this one; those on the same machine by default.

    One round is one ``Neighbor_allgather`` into a buffer that is used again and again, sent from where the numbers are
    (``Neighbor_alltoallw`` where ranks hold several agents: of those, only what a neighbour needs is sent). Where every
    rank holds one agent, those on the same machine read each other's numbers from shared memory, and the messages
    between them only say that they are there. Rounds with weights of their own, and those of a directed graph, use
    messages along just their edges.

    Traffic is that of the local agents, neighbours on the same rank included, so that it can be compared with other
    engines; ``left_the_rank`` counts the bytes that did. What is agreed counts as ``⌈log₂ ranks⌉`` control rounds.
    """

    reliable = True

    def __init__(
        self,
        topology: Topology,
        comm: MPI.Intracomm | None = None,
        *,
        shares: Sequence[int] | None = None,
        allreduce: bool = False,
        timeout: float | None = 600.0,
        node: MPI.Intracomm | None = None,
    ) -> None:
        world = MPI.COMM_WORLD if comm is None else comm
        held = even_shares(topology.n_agents, world.size) if shares is None else tuple(shares)
        check_shares(held, topology, world.size)
        first = int(sum(held[: world.rank]))
        super().__init__(topology, (held[world.rank],))
        keep_freed_memory(_FREED)
        self.collective = allreduce
        if topology.changing:
            self.reliable = False  # no tree of links is there all the time
        self.local = np.arange(first, first + held[world.rank])
        self._rank_of = np.repeat(np.arange(world.size), held)
        self._comm = world.Dup()
        self._depth = (world.size - 1).bit_length()
        self._patience = Patience(timeout, world.rank, self._where)
        self._full = self._route(topology.gossip_sparse)
        around = self._full.ranks
        self._graph_comm = self._comm.Create_dist_graph_adjacent(around, around, reorder=False)
        self._stays = topology.stays
        self._one_each = all(share == 1 for share in held)
        self._shelf = Shelf(self._comm, around, node)
        self._beside = tuple(self._shelf.beside(rank) for rank in around)
        self._all_beside = agreed(self._comm, all(self._beside))
        self._laid_out = self._one_each and not self._shelf.refused
        self._nodding: MPI.Prequest | None = None
        self._nods = np.zeros((len(around) + 1, 1), dtype=np.uint8)
        self._buffers: dict[tuple[int, int, np.dtype[Any]], npt.NDArray[Any]] = {}
        self._left = self._rounds = self._bytes = 0
        share_spectrum(self)

    @property
    def traffic(self) -> Traffic:
        self._settle()
        return super().traffic

    @property
    def left_the_rank(self) -> int:
        """Bytes that agents here have sent to agents on other ranks."""
        self._settle()
        return self._left

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        self._check_epoch()
        x = np.asarray(x, _FLOAT64)
        if weights is None and self._stays:
            route = self._full
            own = x.ravel() if self._one_each else rows_of(x)
            far, y = self._around(own, route.near)
            route.and_far(y, far)
            return y.reshape(x.shape)
        route, own = self._now() if weights is None else self._prepared(weights, self._route), rows_of(x)
        y = route.weighted(own, self._along(route, own))
        self._counted(route, 1, own[0].nbytes)
        if weights is None:
            self._ride(1)
        return y.reshape(x.shape)

    def meet(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        self._check_epoch()
        y, first = rows_of(np.array(x, _FLOAT64)), int(self.local[0])
        far, crossed = np.empty_like(y[0]), 0
        here = self._rank_of[pairs] == self._comm.rank
        for (i, j), (i_here, j_here) in zip(pairs[here.any(axis=1)], here[here.any(axis=1)], strict=True):
            if i_here and j_here:
                y[[i - first, j - first]] = (y[i - first] + y[j - first]) * 0.5
                continue
            own, other = (y[i - first], int(self._rank_of[j])) if i_here else (y[j - first], int(self._rank_of[i]))
            with self._patience.waiting((other,)):
                self._comm.Sendrecv(own, other, recvbuf=far, source=other)
            own += far
            own *= 0.5
            crossed += 1
        self._have_met(pairs, rounds, far.nbytes)
        self._left += crossed * far.nbytes
        return y.reshape(x.shape)

    def collect(self, x: Array, /) -> Array:
        self._check_epoch()
        beside, route, own = self.beside, self._full, rows_of(np.asarray(x, _FLOAT64))
        known = np.concatenate([own, self._along(route, own), np.zeros((1, own.shape[1]))])
        self._counted(route, 1, own[0].nbytes)
        self._ride(1)
        row_of = np.full(self.n_agents + 1, len(known) - 1)  # that of zeros, also for number −1
        row_of[np.concatenate([self.local, route.far])] = np.arange(len(known) - 1)
        return np.asarray(known[row_of[beside]].reshape(*beside.shape, *x.shape[1:]))

    def gossip_coded(self, x: Array, copies: Copies | None, code: Code, /) -> tuple[Array, Copies]:
        self._check_epoch()
        route = self._full
        before = Copies.before(x, copies, 0, self._graph)
        anew = before is not copies
        far = np.zeros((route.n_far, *x.shape[1:])) if anew else before.others[0]
        messages = encode(x - before.own, "float64" if anew else code, 1)
        sent = messages.ravel() if self._one_each else rows_of(messages)
        received, D = self._around(sent, lambda _: before.own + decode(messages, x.shape))
        far = far + decode(np.asarray(received).reshape(route.n_far, *messages.shape[1:]), far.shape)
        near = D - D[:1]  # (𝐋 − I) D does not change, and its rounding shrinks with the differences
        change = route.weighted(rows_of(near), rows_of(far - D[:1])).reshape(x.shape) - near
        return x + change, Copies(D, (far,), self._graph)

    def total_mean(self, x: Array, /) -> Array:
        self._check_epoch()
        total = np.asarray(rows_of(x).sum(axis=0))
        with self._patience.waiting("all ranks"):
            self._comm.Allreduce(MPI.IN_PLACE, total, MPI.SUM)
        self._count(rounds=self._depth, messages=self._depth, payload=total.nbytes)
        self._left += self._depth * total.nbytes
        return np.array(np.broadcast_to((total / self.n_agents).reshape(x.shape[1:]), x.shape))

    def broadcast(self, x: Array, /) -> Array:
        if self.reliable and not self.collective:
            return super().broadcast(x)
        self._check_epoch()
        own = np.asarray(x[self.leader - int(self.local[0]) if self.leads else 0], _FLOAT64)
        value = np.ascontiguousarray(own + 0.0)  # in the order that all ranks have in common, without negative zeros
        with self._patience.waiting("all ranks"):
            self._comm.Bcast(value, int(self._rank_of[self.leader]))
        self._count(control_rounds=self._depth, messages=self._depth, control=value.nbytes)
        self._left += self._depth * value.nbytes
        return value

    def reduce(self, x: Array, op: Op, /) -> Array:
        self._check_epoch()
        reduced = self._agreed(x, op, 0)
        self._count(control_rounds=self._depth, messages=self._depth, control=reduced.nbytes)
        return reduced.value

    def reduce_later(self, x: Array, op: Op, /) -> Pending:
        pending = self._agreed(x, op, self._flood_rounds())
        self._count_riding(self._depth * pending.nbytes)
        if pending.ready:
            pending.finish()
        else:
            self._riding.append(pending)
        return pending

    def begin(self, epoch: int, t: int, /, phase: str = "step") -> None:
        if epoch != self.epoch:
            self._finish_riding()
        super().begin(epoch, t, phase)

    def forget(self) -> None:
        self._finish_riding()
        super().forget()

    def close(self) -> None:
        """Give the communicators back; every rank has to. The network cannot be used after that."""
        self._finish_riding()
        self._patience.close()
        if self._nodding is not None:
            self._nodding.Free()
            self._nodding = None
        self._shelf.close()
        self._graph_comm.Free()
        self._comm.Free()

    # ------------------------------------------------------------------------------------------------ exchanges

    def _around(self, own: npt.NDArray[Any], meanwhile: Callable[[npt.NDArray[Any]], Array]) -> tuple[FarRows, Array]:
        """Every agent's row to all its neighbours: the rows of agents on other ranks, good until the next round.

        ``own`` : ``(m_local, n)``, or ``(n,)`` where every rank holds one agent. ``meanwhile`` : what is to be made of
        it, while others are on their way if that can be.
        """
        self._patience.whom = self._full.ranks
        self._patience.turns += 1
        try:
            place = self._shelf.put(own) if self._laid_out else None
            if place is None:
                return self._exchanged(own), meanwhile(own)
            if self._all_beside:
                nods = self._nod()
                made = meanwhile(own)
                nods.Wait()
                return cast("FarRows", place.others), made
            far = self._exchanged(own, nods=self._beside)
            return [far[i] if other is None else other for i, other in enumerate(place.others)], meanwhile(own)
        finally:
            self._patience.turns += 1
            self._rounds += 1
            self._bytes += own.nbytes
            if self._riding:
                self._ride(1)
            else:
                self.full_rounds += 1

    def _exchanged(self, own: npt.NDArray[Any], nods: tuple[bool, ...] = ()) -> npt.NDArray[Any]:
        """Rows from and to other ranks; of those in ``nods`` a single byte, to say that they are there."""
        route, row = self._full, own.nbytes // len(self.local)
        far = self._buffer(route, own)
        if self._one_each and not nods:
            self._graph_comm.Neighbor_allgather(own, far)
            return far
        kinds = route.kinds(row, nods)
        once, starts = [1] * len(kinds.sent), [begin * row for begin in route.begins]
        self._graph_comm.Neighbor_alltoallw(
            (own, (once, [0] * len(once)), kinds.sent), (far, (once, starts), kinds.received)
        )
        return far

    def _nod(self) -> MPI.Request:
        """A byte to and from every neighbour; when that is there, so is their row on the shelf."""
        if self._nodding is None:
            try:
                self._nodding = self._graph_comm.Neighbor_allgather_init(self._nods[-1], self._nods[:-1])
            except NotImplementedError:  # an MPI library older than MPI 4
                return self._graph_comm.Ineighbor_allgather(self._nods[-1], self._nods[:-1])
        self._nodding.Start()
        return self._nodding

    def _along(self, route: Route, own: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The same along the edges of a round with weights of its own."""
        far = self._buffer(route, own)
        kinds = route.kinds(own[0].nbytes)
        with self._patience.waiting(route.ranks):
            under_way = [
                self._graph_comm.Irecv((far[begin:], 1, kind), rank)
                for rank, begin, kind in zip(route.ranks, route.begins, kinds.received, strict=True)
                if kind is not MPI.DATATYPE_NULL
            ]
            under_way += [
                self._graph_comm.Isend((own, 1, kind), rank)
                for rank, kind in zip(route.ranks, kinds.sent, strict=True)
                if kind is not MPI.DATATYPE_NULL
            ]
            MPI.Request.Waitall(under_way)
        return far

    def _agreed(self, x: Array, op: Op, rounds: int) -> PendingReduction:
        own = np.asarray(reducer(op).reduce(np.asarray(x, dtype=np.float64), axis=0))
        return PendingReduction(own, op, rounds, self._comm, lambda: self._patience.waiting("all ranks"))

    def _finish_riding(self) -> None:
        """An operation that was begun has to be completed, at all ranks, even if nobody asks for its value."""
        finish(self._riding)

    def _ride(self, rounds: int) -> None:
        riding = self._riding
        super()._ride(rounds)
        finish([pending for pending in riding if pending.ready])

    def _swept(self, riding: list[Pending]) -> None:
        super()._swept(riding)
        finish(riding)

    def _buffer(self, route: Route, own: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Room for what other ranks send, the same again for the same size."""
        key = (route.n_far, own.shape[-1], own.dtype)
        found = self._buffers.get(key)
        if found is None:
            if len(self._buffers) >= _KEPT:
                self._buffers.clear()
            found = self._buffers[key] = np.empty((route.n_far, own.shape[-1]), dtype=own.dtype)
        return found

    def _counted(self, route: Route, rounds: int, payload: int) -> None:
        """So many rounds, with so many bytes in a message of each taken together."""
        sent = self._sent
        sent[0] += rounds
        sent[2] += rounds * route.messages
        sent[3] += route.messages * payload
        self._left += route.rows_sent * payload

    def _settle(self) -> None:
        """Full rounds are counted when somebody asks: a round takes not much longer than counting it."""
        self._counted(self._full, self._rounds, self._bytes // len(self.local))
        self._rounds = self._bytes = 0

    def _where(self) -> str:
        return f"iteration {self._t} ({self._phase})"

    def _now(self) -> Route:
        """That of the round that begins, where links change or go one way."""
        if not self.topology.changing:
            return self._full
        self.made += 1
        return self._route(self.topology.at(self.made - 1))

    def _route(self, weights: Csr) -> Route:
        return Route.of(weights, self._rank_of, self._comm.rank)
