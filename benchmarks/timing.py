"""Measure times that can be compared: interleaved repetitions, a ratio for each, and medians with quartiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import threadpoolctl

from deepca._util.machine import one_blas_thread

__all__ = ["CPU", "WALL", "Measure", "Spread", "Tick", "interleave", "one_core", "spread", "timed"]

Clock = Callable[[], float]
CPU: Clock = time.thread_time
"""Processor time of the calling thread, which other programs on the same cores do not affect."""
WALL: Clock = time.perf_counter
"""Wall-clock time, for work that is shared by several threads or processes."""
Measure = Callable[[], Mapping[str, float]]
"""Function that runs something once and returns its seconds per unit of work, by name."""
Tick = Callable[[], None]
"""Function called after every measurement, to advance a progress bar."""
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over repetitions."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Format as ``median (quartile – quartile)``."""
        digits = 2 if self.median < 10 else 1 if self.median < 100 else 0
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} – {self.high:.{digits}f})"


def spread(values: npt.ArrayLike) -> Spread:
    """Return median and quartiles of one value per repetition."""
    low, median, high = np.quantile(np.asarray(values, dtype=np.float64), [0.25, 0.5, 0.75])
    return Spread(float(median), float(low), float(high))


def timed(name: str, call: Callable[[], object], *, repeat: int = 1, per: int = 1, clock: Clock = CPU) -> Measure:
    """Return the measure that times ``repeat`` calls, each of which does ``per`` units of work."""

    def measure() -> dict[str, float]:
        start = clock()
        for _ in range(repeat):
            call()
        return {name: (clock() - start) / (repeat * per)}

    return measure


def interleave(measures: Sequence[Measure], repetitions: int, tick: Tick) -> dict[str, Seconds]:
    """Run all measures in turn, repeatedly, so that disturbances affect all; every second time in reverse order.

    Entry i of every result comes from repetition i, so results can be divided entry by entry.
    """
    for measure in measures:
        measure()
        tick()
    taken: dict[str, list[float]] = {}
    for repetition in range(repetitions):
        for measure in measures if repetition % 2 == 0 else reversed(measures):
            for name, seconds in measure().items():
                taken.setdefault(name, []).append(seconds)
            tick()
    return {name: np.array(values) for name, values in taken.items()}


@contextmanager
def one_core() -> Iterator[None]:
    """Limit BLAS to one thread; raise RuntimeError if a library keeps more, as processor times would mislead."""
    with one_blas_thread():
        many = [
            pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas" and pool["num_threads"] > 1
        ]
        if many:
            raise RuntimeError(f"a BLAS library kept {many[0]['num_threads']} threads; times would not be comparable")
        yield
