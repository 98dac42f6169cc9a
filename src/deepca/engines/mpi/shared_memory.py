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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from deepca.engines.mpi.requests import agreed

__all__ = ["Place", "Shelf"]

_PLACES = 2  # a neighbour may still read the row of the round before, but not of the one before that
_SHARED = Path("/dev/shm")  # noqa: S108 - where Linux keeps memory that processes share
_PAGE = 4096  # bytes to which rows are rounded up
_KEPT = 32  # lengths of rows whose places are remembered
_TOKEN = 8  # random bytes in the name of a file


@dataclass(frozen=True)
class Place:
    """Where rows of one length are in one round: this rank's, and those of its neighbours, None for those elsewhere."""

    own: npt.NDArray[Any]
    others: tuple[npt.NDArray[Any] | None, ...]


class Shelf:
    """One row per rank and round, read by neighbours on the same machine.

    Between :meth:`put` and reading, neighbours must have heard from each other, and in every round that uses the
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
        self._neighbors = tuple(neighbors)
        self.refused = not _SHARED.is_dir() or not agreed(comm, bool(self._beside), MPI.LOR)
        """Whether nobody has a neighbour to share memory with, or there is not enough of it; the same at all ranks."""
        self._memory: dict[int, npt.NDArray[np.uint8]] = {}
        self._places: dict[int, tuple[Place, ...]] = {}
        self._length = self._turn = 0

    def beside(self, rank: int) -> bool:
        """Whether that neighbour is on the same machine."""
        return rank in self._beside

    def put(self, row: npt.NDArray[Any]) -> Place | None:
        """Lay out this rank's row of the round that begins; where the others' rows of this round will be.

        None where there is no room for it; the same at all ranks.
        """
        places = self._places.get(row.nbytes)
        if places is None or places[0].own.dtype is not row.dtype:
            places = self._room(row)
            if places is None:
                return None
        turn = self._turn = (self._turn + 1) % _PLACES
        place = places[turn]
        place.own[:] = row
        return place

    def close(self) -> None:
        self._places.clear()
        self._memory.clear()

    # ---------------------------------------------------------------------------------------------------- memory

    def _room(self, like: npt.NDArray[Any]) -> tuple[Place, ...] | None:
        """Places for rows of another length, made where there are none."""
        if self.refused:
            return None
        if like.nbytes > self._length:
            self._grow(-(-max(like.nbytes, 2 * self._length) // _PAGE) * _PAGE)
        if not 0 < like.nbytes <= self._length:
            return None
        if len(self._places) >= _KEPT:
            self._places.clear()
        places = self._places[like.nbytes] = tuple(self._place(turn, like) for turn in range(_PLACES))
        return places

    def _place(self, turn: int, like: npt.NDArray[Any]) -> Place:
        begin = turn * self._length

        def row(rank: int) -> npt.NDArray[Any]:
            return self._memory[rank][begin : begin + like.nbytes].view(like.dtype)

        others = tuple(row(rank) if rank in self._beside else None for rank in self._neighbors)
        return Place(row(self._comm.rank), others)

    def _grow(self, length: int) -> None:
        """Files without a name: they are gone with the last process that has them, however it ends.

        They have a name only until neighbours have opened them, and no length before it is gone.
        """
        token = np.zeros(_TOKEN, dtype=np.uint8)
        if self._comm.rank == 0:
            token[:] = np.frombuffer(secrets.token_bytes(_TOKEN), dtype=np.uint8)
        self._comm.Bcast(token)
        files: dict[int, int] = {}
        found: dict[int, npt.NDArray[np.uint8]] = {}
        try:
            own, here = _path(token, self._comm.rank), self._comm.rank
            with suppress(OSError):
                files[here] = _opened(own, new=True)
            made = agreed(self._comm, bool(files))
            if made:
                with suppress(OSError):
                    files |= {rank: _opened(_path(token, rank), new=False) for rank in self._beside}
            opened = agreed(self._comm, made and len(files) == len(self._beside) + 1)
            own.unlink(missing_ok=True)
            if agreed(self._comm, opened and _has_room(files[here], length * _PLACES)):
                with suppress(OSError):
                    found = {rank: _mapped(file, length * _PLACES) for rank, file in files.items()}
        finally:
            for file in files.values():
                os.close(file)
        if agreed(self._comm, len(found) == len(self._beside) + 1):
            self._places.clear()
            self._memory, self._length = found, length
        else:
            self.refused = True


def _path(token: npt.NDArray[np.uint8], rank: int) -> Path:
    return _SHARED / f"deepca-{token.tobytes().hex()}-{rank}"


def _opened(path: Path, *, new: bool) -> int:
    return os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if new else 0), 0o600)


def _has_room(file: int, length: int) -> bool:
    """Takes it: an error now rather than a signal later."""
    try:
        os.posix_fallocate(file, 0, length)
    except OSError:
        return False
    return True


def _mapped(file: int, length: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(file, length), dtype=np.uint8)
