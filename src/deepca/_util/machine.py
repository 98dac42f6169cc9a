"""Determine and limit the resources of the process: cores, memory, BLAS threads."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import scipy.linalg  # noqa: F401 - loads its BLAS, so that threadpoolctl finds it
from threadpoolctl import ThreadpoolController

__all__ = ["available_memory", "keep_freed_memory", "launched_ranks", "one_blas_thread", "usable_cores"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
_DEFAULT_MEMORY = 4 << 30  # bytes, assumed if the system does not report how much is available


def usable_cores() -> int:
    """Return how many cores this process may use: those it is bound to or, for an unbound MPI rank, its share."""
    every = os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every
    return own if own < every else max(own // _ranks_here(), 1)


def launched_ranks() -> int:
    """Return the number of processes in this MPI job according to its launcher; 1 without a launcher."""
    return _first_count("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def _ranks_here() -> int:
    """Return the number of processes of this MPI job on this machine."""
    return _first_count("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def _first_count(*names: str) -> int:
    """Return the value of the first of these environment variables that is a number; 1 if none is."""
    for name in names:
        if os.environ.get(name, "").isdecimal():
            return max(int(os.environ[name]), 1)
    return 1


def available_memory() -> int:
    """Estimate the bytes that this process can allocate without swapping (4 GiB if the system does not report it)."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 // _ranks_here()
    except OSError:
        pass
    return _DEFAULT_MEMORY


def keep_freed_memory(largest: int = 4 << 20) -> None:
    """Let malloc keep freed arrays of up to ``largest`` bytes for reuse (glibc only).

    A message of a megabyte is copied a few times between sender and receiver. If each copy is returned to the system at
    once, allocating the next costs a page fault for every 4 KB, which takes 15 times as long as the copy itself.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, largest)
    mallopt(_M_TRIM_THRESHOLD, 4 * largest)


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    """Find the BLAS libraries that numpy and scipy have loaded, once, since the search takes milliseconds."""
    return ThreadpoolController()


class _BlasLimit:
    """Process-wide limit of one BLAS thread, shared by nested and concurrent contexts.

    The first context to be entered sets the limit, and the last one to be left lifts it. Agents in one process enter
    and leave at different times; if each restored the limit it found, the process could end up with the wrong one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        """Set the limit when the first context is entered."""
        with self._lock:
            if self._users == 0:
                self._limit = _libraries().limit(limits=1, user_api="blas")
            self._users += 1

    def __exit__(self, *_: object) -> None:
        """Lift the limit when the last active context is left."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._limit is not None:
                self._limit.restore_original_limits()
                self._limit = None


_BLAS = _BlasLimit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Use one BLAS thread within the context: d × k products are too small to split, and agents run in parallel."""
    with _BLAS:
        yield
