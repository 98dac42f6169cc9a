"""Collect everything that one run measures."""

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
    """The content of the page.

    ``about`` describes the machine; ``load`` is the number of cores in use by others at the start; ``command``
    regenerates the page; ``quick`` tells whether parts were skipped; ``missing`` lists unavailable data.
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
        """Whether other processes used the cores, which makes times unreliable."""
        return self.load > 0.25 * self.cores
