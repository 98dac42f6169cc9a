"""Share the cores of a machine among ranks: one each if there are enough, and waiting without using a core.

MPI waits without sleeping, so two ranks on the same core block each other for milliseconds at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["asleep", "first_alone", "on_own_core"]


def on_own_core(comm: MPI.Intracomm) -> None:
    """Pin every rank to its own core if there are enough, unless the launcher has done so."""
    cores = sorted(os.sched_getaffinity(0))
    if comm.size <= len(cores):
        os.sched_setaffinity(0, {cores[comm.rank]})


def asleep(comm: MPI.Intracomm, seconds: float = 0.005) -> None:
    """Wait at a barrier, sleeping between checks."""
    under_way = comm.Ibarrier()
    while not under_way.Test():
        time.sleep(seconds)


def first_alone(comm: MPI.Intracomm, work: Callable[[], None]) -> None:
    """Let rank 0 work while the others sleep."""
    if comm.rank == 0:
        work()
    asleep(comm)
