"""What the process may use: cores, memory, BLAS threads."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import scipy.linalg  # noqa: F401 - loads its BLAS, so that it is found
from threadpoolctl import ThreadpoolController

__all__ = ["available_memory", "keep_freed_memory", "launched_ranks", "one_blas_thread", "usable_cores"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def usable_cores() -> int:
    """Cores this process may use: those it may run on, or its share where a launcher has not bound ranks to cores."""
    every = os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every
    return own if own < every else max(own // _ranks_here(), 1)


def launched_ranks() -> int:
    """Processes of the MPI job that this one belongs to, as its launcher says; 1 without a launcher."""
    return _said("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def _ranks_here() -> int:
    """Those of them on this machine."""
    return _said("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def _said(*names: str) -> int:
    for name in names:
        if os.environ.get(name, "").isdecimal():
            return max(int(os.environ[name]), 1)
    return 1


def available_memory() -> int:
    """Bytes that this process can have without swapping (an estimate; 4 GiB where the system does not say)."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 // _ranks_here()
    except OSError:
        pass
    return 4 << 30


def keep_freed_memory(largest: int = 4 << 20) -> None:
    """Let the process keep arrays of up to ``largest`` bytes that it has freed (glibc; elsewhere nothing happens).

    A message of a megabyte is copied a few times on its way. If each copy is given back to the system at once, taking
    memory for the next costs a page fault for every 4 KB, and 15 times as long as the copying itself.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, largest)
    mallopt(_M_TRIM_THRESHOLD, 4 * largest)


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    """The BLAS libraries of this process; finding them takes milliseconds. numpy's and scipy's are loaded by then."""
    return ThreadpoolController()


class _BlasLimit:
    """One limit shared by nested and concurrent users, since BLAS threads belong to the process.

    First in sets it, last out lifts it. Agents of one process enter and leave at different times; if each restored
    what it found, the process would be left with the wrong number.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._limit = _libraries().limit(limits=1, user_api="blas")
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._limit is not None:
                self._limit.restore_original_limits()
                self._limit = None


_BLAS = _BlasLimit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One BLAS thread inside: d × k products are too small to share, and agents are what runs in parallel."""
    with _BLAS:
        yield
