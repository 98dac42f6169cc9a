"""Rows laid out where neighbours on the same machine read them. Needs mpi4py.

A message within one machine is copied from one process to the other, and then read to be weighted. Laid out in memory
that both share it is read at once, by every neighbour.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

__all__ = ["Shelf"]

_PLACES = 2  # a neighbour may still read the row of the round before, but not of the one before that
_SHARED = Path("/dev/shm")  # noqa: S108 - where Linux keeps memory that processes share
_PAGE = 4096  # bytes to which rows are rounded up
_TOKEN = 8  # random bytes in the name of a file


class Shelf:
    """One row per rank and round, read by neighbours on the same machine.

    Between :meth:`put` and :meth:`row` neighbours must have heard from each other, and in every round that uses the
    shelf each must hear from all: so whoever puts a row there knows that nobody reads the one it replaces.

    Parameters
    ----------
    comm : all ranks.  neighbors : of this one.
    node : the ranks that share memory with this one; those on the same machine by default.
    """

    def __init__(self, comm: MPI.Intracomm, neighbors: Sequence[int], node: MPI.Intracomm | None = None) -> None:
        self._comm = comm
        here = comm.Split_type(MPI.COMM_TYPE_SHARED) if node is None else node.Dup()
        ranks = np.empty(here.size, dtype=np.int64)
        here.Allgather(np.array([comm.rank], dtype=np.int64), ranks)
        here.Free()
        self._beside = set(ranks.tolist()).intersection(neighbors)
        self.refused = not _SHARED.is_dir() or not self._anywhere(bool(self._beside))
        """Whether nobody has a neighbour to share memory with, or there is not enough of it; the same at all ranks."""
        self._memory: dict[int, npt.NDArray[np.uint8]] = {}
        self._length = self._turn = 0

    def beside(self, rank: int) -> bool:
        """Whether that neighbour is on the same machine."""
        return rank in self._beside

    def holds(self, nbytes: int) -> bool:
        """Whether rows of that length fit, after making room for them where there is some; the same at all ranks."""
        if nbytes > self._length and not self.refused:
            self._grow(-(-max(nbytes, 2 * self._length) // _PAGE) * _PAGE)
        return 0 < nbytes <= self._length

    def put(self, row: npt.NDArray[Any]) -> None:
        """Lay out this rank's row of the round that begins."""
        self._turn = (self._turn + 1) % _PLACES
        np.copyto(self.row(self._comm.rank, row), row)

    def row(self, rank: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """That rank's row of this round, which has as many numbers of the same kind."""
        begin = self._turn * self._length
        return self._memory[rank][begin : begin + like.nbytes].view(like.dtype)

    def close(self) -> None:
        self._memory.clear()

    # ---------------------------------------------------------------------------------------------------- memory

    def _grow(self, length: int) -> None:
        """Files without a name: they are gone with the last process that has them, however it ends."""
        token = np.zeros(_TOKEN, dtype=np.uint8)
        if self._comm.rank == 0:
            token[:] = np.frombuffer(secrets.token_bytes(_TOKEN), dtype=np.uint8)
        self._comm.Bcast(token)
        found: dict[int, npt.NDArray[np.uint8]] = {}
        own = _path(token, self._comm.rank)
        with suppress(OSError):
            found[self._comm.rank] = _mapped(own, length * _PLACES, new=True)
        made = self._everywhere(self._comm.rank in found)
        if made:
            with suppress(OSError):
                found |= {rank: _mapped(_path(token, rank), length * _PLACES, new=False) for rank in self._beside}
        complete = self._everywhere(made and len(found) == len(self._beside) + 1)
        own.unlink(missing_ok=True)
        if complete:
            self._memory, self._length = found, length
        else:
            self.refused = True

    def _everywhere(self, here: bool) -> bool:
        return self._agreed(here, MPI.LAND)

    def _anywhere(self, here: bool) -> bool:
        return self._agreed(here, MPI.LOR)

    def _agreed(self, here: bool, op: MPI.Op) -> bool:
        found = np.array([here])
        self._comm.Allreduce(MPI.IN_PLACE, found, op)
        return bool(found[0])


def _path(token: npt.NDArray[np.uint8], rank: int) -> Path:
    return _SHARED / f"deepca-{token.tobytes().hex()}-{rank}"


def _mapped(path: Path, length: int, *, new: bool) -> npt.NDArray[np.uint8]:
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if new else 0), 0o600)
    try:
        if new:
            os.posix_fallocate(descriptor, 0, length)  # an error now rather than a signal later
        return np.frombuffer(mmap.mmap(descriptor, length), dtype=np.uint8)
    finally:
        os.close(descriptor)
