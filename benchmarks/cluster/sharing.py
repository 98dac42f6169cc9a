"""Share the cores of a machine among ranks: pin each to its own core and wait without occupying a core.

A rank that waits in an MPI call keeps its core busy, so two ranks on the same core block each other for milliseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["pin_to_own_core", "run_on_rank_0", "sleeping_barrier"]


def pin_to_own_core(comm: MPI.Intracomm) -> None:
    """Pin every rank to its own core, if there are enough cores and the launcher has not done so."""
    cores = sorted(os.sched_getaffinity(0))
    if comm.size <= len(cores):
        os.sched_setaffinity(0, {cores[comm.rank]})


def sleeping_barrier(comm: MPI.Intracomm, seconds: float = 0.005) -> None:
    """Wait for all ranks, sleeping ``seconds`` between checks."""
    under_way = comm.Ibarrier()
    while not under_way.Test():
        time.sleep(seconds)


def run_on_rank_0(comm: MPI.Intracomm, work: Callable[[], None]) -> None:
    """Call ``work`` on rank 0 while the other ranks sleep."""
    if comm.rank == 0:
        work()
    sleeping_barrier(comm)
