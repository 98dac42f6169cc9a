"""Messages and weights of one rank in a round; requires mpi4py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import matmul
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI
from scipy import sparse
from scipy.linalg.blas import daxpy

from deepca._util.typing import Array, Csr, csr

__all__ = ["Datatypes", "RemoteRows", "Route"]

RemoteRows = Sequence[npt.NDArray[Any]] | npt.NDArray[Any]
"""Rows of agents on other ranks, in the order of ``Route.remote``."""
_MAX_DATATYPES = 32  # number of cached sets of data types, one per row size
_MAX_DENSE = 64  # largest number of agents for which weights are stored as a dense matrix
_MAX_CACHED_NUMBERS = 1 << 17  # count of numbers to add at a time, so that they stay in the processor cache


@dataclass(frozen=True)
class Datatypes:
    """MPI data types of the rows to send to and to receive from each neighbouring rank, for rows of one size."""

    sent: list[MPI.Datatype]
    received: list[MPI.Datatype]


class Route:
    """Messages of one rank in a round with given weights, and the weighted sums of the rows that arrive.

    Attributes
    ----------
    ranks : tuple of int
        Ranks with which this one exchanges rows.
    begins : list of int
        Position of the first row from each of these ranks among the rows received.
    n_remote : int
        Number of rows received.
    remote : ndarray
        Agents of the rows received, in that order.
    rows_sent : int
        Number of rows sent.
    messages : int
        Messages that local agents send, including those to agents on the same rank.
    weigh_local : callable
        Computes the part of :meth:`weighted` that comes from local agents.
    """

    def __init__(
        self,
        own: Csr,
        remote: Csr,
        exchanged: dict[int, tuple[list[int], int]],
        messages: int,
        agents: npt.NDArray[np.int64],
    ) -> None:
        self.remote = agents
        self._local: Array | Csr = own.toarray() if own.shape[0] <= _MAX_DENSE else own
        self._remote: Array | Csr = remote.toarray() if remote.shape[0] <= _MAX_DENSE >= remote.shape[1] else remote
        self._remote_weights: list[float] | None = remote.toarray()[0].tolist() if own.shape[0] == 1 else None
        self.weigh_local: Callable[[npt.NDArray[Any]], Array] = partial(matmul, self._local)
        if self._remote_weights is not None:
            self.weigh_local = partial(np.multiply, np.asarray(own.toarray()[0, 0]))
        self.ranks = tuple(exchanged)
        self._rows = [rows for rows, _ in exchanged.values()]
        self._counts = [count for _, count in exchanged.values()]
        self.begins = [sum(self._counts[:i]) for i in range(len(self._counts))]
        self.n_remote, self.rows_sent, self.messages = sum(self._counts), sum(map(len, self._rows)), messages
        self._datatypes: dict[tuple[int, tuple[bool, ...]], Datatypes] = {}

    @classmethod
    def of(cls, weights: Csr, rank_of: npt.NDArray[np.int64], rank: int) -> Route:
        """Create the route of a rank for given weights; ``rank_of`` maps agents to ranks."""
        entries = sparse.coo_array(weights)
        used = (entries.row != entries.col) & (entries.data != 0.0)
        receivers, senders = entries.row[used], entries.col[used]
        mine, m = np.flatnonzero(rank_of == rank), rank_of.size
        comes = (rank_of[receivers] == rank) & (rank_of[senders] != rank)
        goes = (rank_of[senders] == rank) & (rank_of[receivers] != rank)
        neighbours = sorted({*rank_of[senders[comes]].tolist(), *rank_of[receivers[goes]].tolist()})
        exchanged, order = {}, [np.empty(0, dtype=np.int64)]
        for other in neighbours:
            wanted = np.unique(senders[comes & (rank_of[senders] == other)])
            given = np.unique(senders[goes & (rank_of[receivers] == other)]) - mine[0]
            exchanged[int(other)] = (given.tolist(), wanted.size)
            order.append(wanted)
        local = csr(weights)[mine]
        remote = np.concatenate(order)
        messages = int(np.count_nonzero(rank_of[senders] == rank))
        empty = sparse.csr_array((mine.size, 0))
        weighted = csr(local[:, remote]) if m and remote.size else csr(empty)
        return cls(csr(local[:, mine]), weighted, exchanged, messages, remote)

    def weighted(self, own: npt.NDArray[Any], remote: RemoteRows) -> Array:
        """Return the weighted sums ``Σ_i 𝐋_ji x_i`` for the local agents j, from local and remote rows.

        Rows are ``(m_local, n)``, or ``(n,)`` for a single agent.
        """
        return self.add_remote(self.weigh_local(own), remote)

    def add_remote(self, y: Array, remote: RemoteRows) -> Array:
        """Add the weighted remote rows to the result y of ``weigh_local``, in place, and return y."""
        if self._remote_weights is None:
            if len(remote):
                y += self._remote @ np.asarray(remote)
            return y
        flat, n = y.ravel(), y.size
        if 0 < n <= _MAX_CACHED_NUMBERS:  # BLAS rejects empty arrays
            for weight, other in zip(self._remote_weights, remote):  # noqa: B905 - the check takes too long
                daxpy(other, flat, n, weight)
            return y
        for begin in range(0, n, _MAX_CACHED_NUMBERS):  # so that the sum stays in the cache
            piece = flat[begin : begin + _MAX_CACHED_NUMBERS]
            for weight, other in zip(self._remote_weights, remote, strict=True):
                daxpy(other[begin : begin + _MAX_CACHED_NUMBERS], piece, piece.size, weight)
        return y

    def datatypes(self, row: int, signals: tuple[bool, ...] = ()) -> Datatypes:
        """Return the data types for rows of ``row`` bytes; for ranks marked in ``signals``, those for one byte."""
        found = self._datatypes.get((row, signals))
        if found is None:
            if len(self._datatypes) >= _MAX_DATATYPES:
                self._release()
            found = self._datatypes[row, signals] = self._create(row, signals or (False,) * len(self.ranks))
        return found

    def _create(self, row: int, signals: tuple[bool, ...]) -> Datatypes:
        """Create and commit data types."""
        sent, received = [], []
        for rows, count, signal in zip(self._rows, self._counts, signals, strict=True):
            size = 1 if signal else row
            sent.append(MPI.BYTE.Create_hindexed_block(size, [i * row for i in rows]) if rows else None)
            received.append(MPI.BYTE.Create_contiguous(count * size) if count else None)
        return Datatypes(*([_committed(datatype) for datatype in datatypes] for datatypes in (sent, received)))

    def _release(self) -> None:
        """Free all cached data types."""
        for cached in self._datatypes.values():
            for datatype in (*cached.sent, *cached.received):
                if datatype is not MPI.DATATYPE_NULL:
                    datatype.Free()
        self._datatypes.clear()


def _committed(datatype: MPI.Datatype | None) -> MPI.Datatype:
    return MPI.DATATYPE_NULL if datatype is None else datatype.Commit()
