"""Compare private runs with open ones: the same digest, and ratios of times and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from studies.private_sums.trials import TOLERANCE, Case, Run, Trial

__all__ = ["BYTES_GOAL", "WALL_GOAL", "Comparison", "Quartiles", "compare"]

WALL_GOAL = 1.2
"""Largest allowed ratio of the time of a private run to that of an open one."""
BYTES_GOAL = 1.02
"""Largest allowed ratio of the bytes sent."""


class Quartiles(NamedTuple):
    """Median and quartiles of some numbers."""

    lower: float
    median: float
    upper: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Quartiles:
        """Return those of ``values``, of which there must be at least one."""
        return cls(*np.quantile(list(values), [0.25, 0.5, 0.75]).tolist())

    def text(self, digits: int = 2) -> str:
        """Return the median, and the quartiles in brackets."""
        return f"{self.median:.{digits}f} ({self.lower:.{digits}f} – {self.upper:.{digits}f})"


@dataclass(frozen=True)
class Comparison:
    """Private runs of a case, each with the open run that followed it with the same seed.

    Parameters
    ----------
    case : Case
        Sites and rows.
    pairs : tuple of (Run, Run)
        A private run and an open one.
    """

    case: Case
    pairs: tuple[tuple[Run, Run], ...]

    @property
    def same_digests(self) -> int:
        """Number of pairs with the same components, variances and mean, bit for bit."""
        return sum(private.digest == opened.digest for private, opened in self.pairs)

    @property
    def angle(self) -> float:
        """Largest bound of a certificate."""
        return max(run.angle for pair in self.pairs for run in pair)

    @property
    def proven(self) -> bool:
        """True if every run has proven the tolerance."""
        return all(run.proven and run.angle <= TOLERANCE for pair in self.pairs for run in pair)

    @property
    def wall(self) -> Quartiles:
        """Ratio of the times."""
        return self._ratio(lambda run: run.seconds)

    @property
    def cpu(self) -> Quartiles:
        """Ratio of the processor times of all sites."""
        return self._ratio(lambda run: run.cpu)

    @property
    def numbers(self) -> Quartiles:
        """Ratio of the bytes of the algorithm's messages."""
        return self._ratio(lambda run: run.numbers)

    @property
    def frames(self) -> Quartiles:
        """Ratio of the bytes of all frames of all sites."""
        return self._ratio(lambda run: float(sum(run.frames)))

    def seconds(self, which: int) -> Quartiles:
        """Return the times of the private runs (0) or of the open ones (1)."""
        return Quartiles.of(pair[which].seconds for pair in self.pairs)

    @property
    def others(self) -> Quartiles:
        """Number of cores that others used during the runs."""
        return Quartiles.of(run.others for pair in self.pairs for run in pair)

    def _ratio(self, of: Callable[[Run], float]) -> Quartiles:
        return Quartiles.of(of(private) / of(opened) for private, opened in self.pairs)


def compare(case: Case, folder: Path, progress: Callable[[], None] = lambda: None) -> Comparison:
    """Run the sites of a case in pairs: privately, then openly with the seed that the sites have made.

    An open run before them, which does not count, fills the caches of the system.
    """
    trial = Trial(case, folder)
    trial.run("open")
    progress()
    pairs = []
    for _ in range(case.pairs):
        private = trial.run("private")
        pairs.append((private, trial.run("open", private.seed)))
        progress()
    return Comparison(case, tuple(pairs))
