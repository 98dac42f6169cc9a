"""What one rank sends and receives in a round, and how it weighs what it has. Needs mpi4py."""

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

__all__ = ["FarRows", "Kinds", "Route"]

FarRows = Sequence[npt.NDArray[Any]] | npt.NDArray[Any]
"""Rows of agents on other ranks, in the order of a Route."""
_KEPT = 32  # data types of different sizes
_DENSE_UP_TO = 64  # local agents whose weights are multiplied as a dense matrix
_PIECE = 1 << 17  # numbers weighted at a time, so that they stay in the cache


@dataclass(frozen=True)
class Kinds:
    """MPI data types of one size, per neighbouring rank: which rows are sent, and how many come."""

    sent: list[MPI.Datatype]
    received: list[MPI.Datatype]


class Route:
    """What one rank sends and receives in a round with certain weights, and how it weighs what it has.

    ranks : that this one exchanges rows with.  begins : where the rows of each begin among those that come.
    n_far : rows that come.  far : of which agents.  rows_sent : rows that go.
    messages : between agents, those of the same rank included.
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
        self._own: Array | Csr = own.toarray() if own.shape[0] <= _DENSE_UP_TO else own
        self._far: Array | Csr = far.toarray() if far.shape[0] <= _DENSE_UP_TO >= far.shape[1] else far
        self._alone: list[float] | None = far.toarray()[0].tolist() if own.shape[0] == 1 else None
        self.near: Callable[[npt.NDArray[Any]], Array] = partial(matmul, self._own)
        """``weighted`` over the local agents i alone."""
        if self._alone is not None:
            self.near = partial(np.multiply, np.asarray(own.toarray()[0, 0]))
        self.ranks = tuple(exchanged)
        self._rows = [rows for rows, _ in exchanged.values()]
        self._counts = [count for _, count in exchanged.values()]
        self.begins = [sum(self._counts[:i]) for i in range(len(self._counts))]
        self.n_far, self.rows_sent, self.messages = sum(self._counts), sum(map(len, self._rows)), messages
        self._kinds: dict[tuple[int, tuple[bool, ...]], Kinds] = {}

    @classmethod
    def of(cls, weights: Csr, rank_of: npt.NDArray[np.int64], rank: int) -> Route:
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
        """``Σ_i 𝐋_ji x_i`` of the local agents j, from the rows of the local agents and of others.

        Rows are ``(m_local, n)``, or ``(n,)`` where there is one.
        """
        return self.and_far(self.near(own), far)

    def and_far(self, y: Array, far: FarRows) -> Array:
        """Adds what comes from other ranks to y, what is found by ``near``; y itself is changed, and given back."""
        if self._alone is None:
            if len(far):
                y += self._far @ np.asarray(far)
            return y
        flat, n = y.ravel(), y.size
        if 0 < n <= _PIECE:  # BLAS refuses to add nothing
            for weight, other in zip(self._alone, far):  # noqa: B905 - to be strict takes longer than to add
                daxpy(other, flat, n, weight)
            return y
        for begin in range(0, n, _PIECE):  # what is added to stays in the cache
            piece = flat[begin : begin + _PIECE]
            for weight, other in zip(self._alone, far, strict=True):
                daxpy(other[begin : begin + _PIECE], piece, piece.size, weight)
        return y

    def kinds(self, row: int, nods: tuple[bool, ...] = ()) -> Kinds:
        """Of rows with so many bytes; where ``nods`` says so, of one byte instead."""
        found = self._kinds.get((row, nods))
        if found is None:
            if len(self._kinds) >= _KEPT:
                self._release()
            found = self._kinds[row, nods] = self._made(row, nods or (False,) * len(self.ranks))
        return found

    def _made(self, row: int, nods: tuple[bool, ...]) -> Kinds:
        sent, received = [], []
        for rows, count, nod in zip(self._rows, self._counts, nods, strict=True):
            sent.append(MPI.BYTE.Create_hindexed_block(1 if nod else row, [i * row for i in rows]) if rows else None)
            received.append(MPI.BYTE.Create_contiguous(count * (1 if nod else row)) if count else None)
        return Kinds(*([_ready(kind) for kind in kinds] for kinds in (sent, received)))

    def _release(self) -> None:
        for kinds in self._kinds.values():
            for kind in (*kinds.sent, *kinds.received):
                if kind is not MPI.DATATYPE_NULL:
                    kind.Free()
        self._kinds.clear()


def _ready(kind: MPI.Datatype | None) -> MPI.Datatype:
    return MPI.DATATYPE_NULL if kind is None else kind.Commit()
