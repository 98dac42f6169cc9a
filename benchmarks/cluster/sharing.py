"""How ranks share the cores of a machine: one for each where there are enough, and waiting that takes none.

MPI's own waiting never sleeps. Two ranks that the system puts on the same core then keep it from each other, for
milliseconds at a time.
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
    """Keep every rank on a core of its own, if there are enough; a launcher may have done so already."""
    cores = sorted(os.sched_getaffinity(0))
    if comm.size <= len(cores):
        os.sched_setaffinity(0, {cores[comm.rank]})


def asleep(comm: MPI.Intracomm, seconds: float = 0.005) -> None:
    """A barrier at which ranks sleep, and look again every now and then."""
    under_way = comm.Ibarrier()
    while not under_way.Test():
        time.sleep(seconds)


def first_alone(comm: MPI.Intracomm, work: Callable[[], None]) -> None:
    """Rank 0 works, the others sleep."""
    if comm.rank == 0:
        work()
    asleep(comm)
