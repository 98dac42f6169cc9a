"""Everything that one run measures."""

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
    """What the page is made of.

    about : the machine, name by name.  load : cores that others used when the run began.
    command : that makes the page again.  quick : whether much was left out.  missing : data that could not be had.
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
        """Whether others had the cores as well, so that times say little."""
        return self.load > 0.25 * self.cores
