"""Hold the results of all measurements for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cluster.check import Check
from benchmarks.cluster.model import Costs
from benchmarks.cluster.parity import Agreement
from benchmarks.cluster.rounds import Timing
from benchmarks.cluster.scaling import Scaling

__all__ = ["Findings"]


@dataclass(frozen=True)
class Findings:
    """All results of a run, from which the page is written.

    ``about`` describes the machine; ``load`` is the number of cores that other processes used at the start; ``command``
    is the command that writes the page; ``quick`` is true if parts were skipped; ``missing`` lists unavailable data.
    """

    about: dict[str, str]
    cores: int
    load: float
    command: str
    quick: bool
    parities: Sequence[Agreement]
    timings: Sequence[Timing]
    scalings: Sequence[Scaling]
    missing: Sequence[str]
    costs: Costs
    checks: Sequence[Check]

    @property
    def busy(self) -> bool:
        """Whether other processes used so much of the cores that times are unreliable."""
        return self.load > 0.25 * self.cores
