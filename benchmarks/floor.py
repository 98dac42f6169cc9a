"""Measure the floor: the time to read the data once on one core, by the fastest function of numpy and scipy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from benchmarks.timing import Measure, Seconds, Tick, interleave, spread, timed
from deepca._util.typing import Array

__all__ = ["READERS", "Floor", "find_floor"]

READERS: dict[str, Callable[[Array], object]] = {
    "numpy.max": lambda x: x.max(),
    "numpy.dot(x, x)": lambda x: np.dot(x, x),
    "scipy dasum": blas.dasum,
    "numpy.sum": lambda x: x.sum(),
}


@dataclass(frozen=True)
class Floor:
    """A block of memory and the fastest way found to read it."""

    name: str
    data: Array
    reader: str
    others: dict[str, float]
    """Time of every reader as a multiple of the fastest."""

    @property
    def bytes(self) -> int:
        """Size of the block."""
        return self.data.nbytes

    def measure(self) -> Measure:
        """Return the measure of reading the block once."""
        read = READERS[self.reader]
        return timed(self.name, lambda: read(self.data), repeat=_reads(self.data))


def find_floor(name: str, data: npt.NDArray[np.float64], tick: Tick, *, repetitions: int = 9) -> Floor:
    """Time all readers on contiguous ``data`` and return the floor with the fastest one."""
    flat = data.reshape(-1)
    trials = [timed(reader, _bound(read, flat), repeat=_reads(flat)) for reader, read in READERS.items()]
    taken: dict[str, Seconds] = interleave(trials, repetitions, tick)
    best = min(taken, key=lambda reader: spread(taken[reader]).median)
    return Floor(name, flat, best, {reader: spread(taken[reader] / taken[best]).median for reader in READERS})


def _bound(read: Callable[[Array], object], data: Array) -> Callable[[], object]:
    return lambda: read(data)


def _reads(data: Array) -> int:
    """Return the number of reads per sample, such that a sample takes some milliseconds."""
    return max(2, (200 << 20) // data.nbytes)
