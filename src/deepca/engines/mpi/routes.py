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

__all__ = ["Datatypes", "FarRows", "Route"]

FarRows = Sequence[npt.NDArray[Any]] | npt.NDArray[Any]
"""Rows of agents on other ranks, in the order of a Route."""
_MAX_DATATYPES = 32  # cached sets of data types, one per row size
_MAX_DENSE = 64  # agents up to which weights are multiplied as a dense matrix
_PIECE = 1 << 17  # numbers to process at a time, so that they stay in the cache


@dataclass(frozen=True)
class Datatypes:
    """MPI data types of the rows to send to and to receive from each neighbouring rank, for rows of one size."""

    sent: list[MPI.Datatype]
    received: list[MPI.Datatype]


class Route:
    """Messages of one rank in a round with given weights, and the weighted sums of what arrives.

    Attributes
    ----------
    ranks : tuple of int
        Ranks with which this one exchanges rows.
    begins : list of int
        Position of the first row from each of these ranks among the rows received.
    n_far : int
        Number of rows received.
    far : ndarray
        Agents of the rows received.
    rows_sent : int
        Number of rows sent.
    messages : int
        Messages that local agents send, including those to agents on the same rank.
    near : callable
        Computes the part of ``weighted`` that comes from local agents.
    """

    def __init__(
        self,
        own: Csr,
        far: Csr,
        exchanged: dict[int, tuple[list[int], int]],
        messages: int,
        agents: npt.NDArray[np.int64],
    ) -> None:
        self.far = agents
        self._own: Array | Csr = own.toarray() if own.shape[0] <= _MAX_DENSE else own
        self._far: Array | Csr = far.toarray() if far.shape[0] <= _MAX_DENSE >= far.shape[1] else far
        self._far_weights: list[float] | None = far.toarray()[0].tolist() if own.shape[0] == 1 else None
        self.near: Callable[[npt.NDArray[Any]], Array] = partial(matmul, self._own)
        if self._far_weights is not None:
            self.near = partial(np.multiply, np.asarray(own.toarray()[0, 0]))
        self.ranks = tuple(exchanged)
        self._rows = [rows for rows, _ in exchanged.values()]
        self._counts = [count for _, count in exchanged.values()]
        self.begins = [sum(self._counts[:i]) for i in range(len(self._counts))]
        self.n_far, self.rows_sent, self.messages = sum(self._counts), sum(map(len, self._rows)), messages
        self._datatypes: dict[tuple[int, tuple[bool, ...]], Datatypes] = {}

    @classmethod
    def of(cls, weights: Csr, rank_of: npt.NDArray[np.int64], rank: int) -> Route:
        """Return the route of a rank for given weights; ``rank_of`` maps agents to ranks."""
        entries = sparse.coo_array(weights)
        used = (entries.row != entries.col) & (entries.data != 0.0)
        receivers, senders = entries.row[used], entries.col[used]
        mine, m = np.flatnonzero(rank_of == rank), rank_of.size
        comes = (rank_of[receivers] == rank) & (rank_of[senders] != rank)
        goes = (rank_of[senders] == rank) & (rank_of[receivers] != rank)
        near = sorted({*rank_of[senders[comes]].tolist(), *rank_of[receivers[goes]].tolist()})
        exchanged, order = {}, [np.empty(0, dtype=np.int64)]
        for other in near:
            wanted = np.unique(senders[comes & (rank_of[senders] == other)])
            given = np.unique(senders[goes & (rank_of[receivers] == other)]) - mine[0]
            exchanged[int(other)] = (given.tolist(), wanted.size)
            order.append(wanted)
        local = csr(weights)[mine]
        far = np.concatenate(order)
        messages = int(np.count_nonzero(rank_of[senders] == rank))
        empty = sparse.csr_array((mine.size, 0))
        weighted = csr(local[:, far]) if m and far.size else csr(empty)
        return cls(csr(local[:, mine]), weighted, exchanged, messages, far)

    def weighted(self, own: npt.NDArray[Any], far: FarRows) -> Array:
        """Return ``Σ_i 𝐋_ji x_i`` for the local agents j, from their own rows and those of other ranks.

        Rows are ``(m_local, n)``, or ``(n,)`` for a single agent.
        """
        return self.add_far(self.near(own), far)

    def add_far(self, y: Array, far: FarRows) -> Array:
        """Add the weighted rows of other ranks to the result y of ``near``, in place, and return it."""
        if self._far_weights is None:
            if len(far):
                y += self._far @ np.asarray(far)
            return y
        flat, n = y.ravel(), y.size
        if 0 < n <= _PIECE:  # BLAS rejects empty arrays
            for weight, other in zip(self._far_weights, far):  # noqa: B905 - the strict check takes longer than the addition
                daxpy(other, flat, n, weight)
            return y
        for begin in range(0, n, _PIECE):  # so that the sum stays in the cache
            piece = flat[begin : begin + _PIECE]
            for weight, other in zip(self._far_weights, far, strict=True):
                daxpy(other[begin : begin + _PIECE], piece, piece.size, weight)
        return y

    def datatypes(self, row: int, signals: tuple[bool, ...] = ()) -> Datatypes:
        """Return the data types for rows of ``row`` bytes; for the ranks marked in ``signals``, those of one byte."""
        found = self._datatypes.get((row, signals))
        if found is None:
            if len(self._datatypes) >= _MAX_DATATYPES:
                self._release()
            found = self._datatypes[row, signals] = self._create(row, signals or (False,) * len(self.ranks))
        return found

    def _create(self, row: int, signals: tuple[bool, ...]) -> Datatypes:
        """Create and commit the data types."""
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
