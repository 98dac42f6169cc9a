"""Exchange rows through memory shared with neighbours on the same machine; requires mpi4py.

A message between two processes is copied before it is read. From shared memory every neighbour reads the row directly.
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

from deepca.engines.mpi.requests import true_on_all_ranks, true_on_any_rank

__all__ = ["SharedRows", "Slot"]

_SLOTS = 2  # a neighbour may still read the row of the previous round, but not an older one
_SHARED = Path("/dev/shm")  # noqa: S108 - the folder of shared memory on Linux
_PAGE = 4096  # the length of a slot in bytes is a multiple of this
_MAX_LENGTHS = 32  # number of row lengths for which views are cached
_TOKEN_BYTES = 8  # number of random bytes in file names


@dataclass(frozen=True)
class Slot:
    """Views of the rows of one round: that of this rank, and those of its neighbours (None on other machines)."""

    own: npt.NDArray[Any]
    others: tuple[npt.NDArray[Any] | None, ...]


class SharedRows:
    """Rows in shared memory, one per rank and round, which neighbours on the same machine read.

    Neighbours must exchange a message after :meth:`put` and before they read. In every round that uses shared memory,
    each rank must receive a message from every neighbour, so that none still reads the row that the rank overwrites.

    Parameters
    ----------
    comm : Intracomm
        All ranks.
    neighbors : sequence of int
        Ranks of the neighbours.
    node : Intracomm, optional
        Ranks that share memory with this one; those on the same machine by default.

    Attributes
    ----------
    unavailable : bool
        Whether shared memory cannot be used, because the system has none, no two neighbours are on the same machine, or
        memory is short; the same on all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, neighbors: Sequence[int], node: MPI.Intracomm | None = None) -> None:
        self._comm = comm
        here = comm.Split_type(MPI.COMM_TYPE_SHARED) if node is None else node.Dup()
        ranks = np.empty(here.size, dtype=np.int64)
        here.Allgather(np.array([comm.rank], dtype=np.int64), ranks)
        here.Free()
        self._on_machine = set(ranks.tolist()).intersection(neighbors)
        self._neighbors = tuple(neighbors)
        self.unavailable = not _SHARED.is_dir() or not true_on_any_rank(comm, bool(self._on_machine))
        self._memory: dict[int, npt.NDArray[np.uint8]] = {}
        self._slots: dict[int, tuple[Slot, ...]] = {}
        self._length = self._turn = 0

    def shares_memory_with(self, rank: int) -> bool:
        """Return whether a neighbour is on the same machine."""
        return rank in self._on_machine

    def put(self, row: npt.NDArray[Any]) -> Slot | None:
        """Write this rank's row for a new round and return views of it and of the neighbours' rows.

        Return None on all ranks if shared memory cannot be used.
        """
        slots = self._slots.get(row.nbytes)
        if slots is None or slots[0].own.dtype is not row.dtype:
            slots = self._slots_for(row)
            if slots is None:
                return None
        turn = self._turn = (self._turn + 1) % _SLOTS
        slot = slots[turn]
        slot.own[:] = row
        return slot

    def close(self) -> None:
        """Release the memory."""
        self._slots.clear()
        self._memory.clear()

    # ---------------------------------------------------------------------------------------------------- memory

    def _slots_for(self, like: npt.NDArray[Any]) -> tuple[Slot, ...] | None:
        """Return slots for rows of a new length, growing the memory if needed."""
        if self.unavailable:
            return None
        if like.nbytes > self._length:
            self._grow(-(-max(like.nbytes, 2 * self._length) // _PAGE) * _PAGE)
        if not 0 < like.nbytes <= self._length:
            return None
        if len(self._slots) >= _MAX_LENGTHS:
            self._slots.clear()
        slots = self._slots[like.nbytes] = tuple(self._slot(turn, like) for turn in range(_SLOTS))
        return slots

    def _slot(self, turn: int, like: npt.NDArray[Any]) -> Slot:
        """Return the views of one slot."""
        begin = turn * self._length

        def row(rank: int) -> npt.NDArray[Any]:
            return self._memory[rank][begin : begin + like.nbytes].view(like.dtype)

        others = tuple(row(rank) if rank in self._on_machine else None for rank in self._neighbors)
        return Slot(row(self._comm.rank), others)

    def _grow(self, length: int) -> None:
        """Allocate memory in files that disappear with the last process that uses them, however that process ends.

        As long as a file has a name, it is empty. Its name is removed once the neighbours have opened the file, and
        only then is memory allocated.
        """
        token = np.zeros(_TOKEN_BYTES, dtype=np.uint8)
        if self._comm.rank == 0:
            token[:] = np.frombuffer(secrets.token_bytes(_TOKEN_BYTES), dtype=np.uint8)
        self._comm.Bcast(token)
        files: dict[int, int] = {}
        found: dict[int, npt.NDArray[np.uint8]] = {}
        try:
            own, here = _path(token, self._comm.rank), self._comm.rank
            with suppress(OSError):
                files[here] = _open(own, new=True)
            made = true_on_all_ranks(self._comm, bool(files))
            if made:
                with suppress(OSError):
                    files |= {rank: _open(_path(token, rank), new=False) for rank in self._on_machine}
            opened = true_on_all_ranks(self._comm, made and len(files) == len(self._on_machine) + 1)
            own.unlink(missing_ok=True)
            if true_on_all_ranks(self._comm, opened and _allocate(files[here], length * _SLOTS)):
                with suppress(OSError):
                    found = {rank: _map(file, length * _SLOTS) for rank, file in files.items()}
        finally:
            for file in files.values():
                os.close(file)
        if true_on_all_ranks(self._comm, len(found) == len(self._on_machine) + 1):
            self._slots.clear()
            self._memory, self._length = found, length
        else:
            self.unavailable = True


def _path(token: npt.NDArray[np.uint8], rank: int) -> Path:
    """Return the path of a rank's file."""
    return _SHARED / f"deepca-{token.tobytes().hex()}-{rank}"


def _open(path: Path, *, new: bool) -> int:
    """Open a rank's file, exclusively if it is new."""
    return os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if new else 0), 0o600)


def _allocate(file: int, length: int) -> bool:
    """Reserve the memory of a file; return False if too little is free, which would cause a fatal signal later."""
    try:
        os.posix_fallocate(file, 0, length)
    except OSError:
        return False
    return True


def _map(file: int, length: int) -> npt.NDArray[np.uint8]:
    """Map a file into memory."""
    return np.frombuffer(mmap.mmap(file, length), dtype=np.uint8)
