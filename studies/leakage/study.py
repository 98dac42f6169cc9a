"""Draw networks with few and with many rows per site, and measure what leaks in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deepca._util.machine import one_blas_thread
from deepca.decomposition.settings import Settings
from deepca.planning.leakage import Errors, Leakage, measure_leakage, random_sites
from deepca.reproduction.runner import in_parallel
from deepca.topology.graph import Topology
from deepca.topology.names import from_name

__all__ = ["Draw", "Plan", "Results", "leaves", "run"]


@dataclass(frozen=True)
class Plan:
    """What to draw.

    Parameters
    ----------
    draws : int
        Draws per network and number of rows.
    rows : tuple of int
        Numbers of rows per site.
    networks : tuple of str
        Names of networks.
    sites, columns, components : int
        Size of all problems.
    """

    draws: int = 50
    rows: tuple[int, ...] = (2, 3, 50, 1000)
    networks: tuple[str, ...] = ("ring", "star")
    sites: int = 5
    columns: int = 12
    components: int = 3

    def tasks(self) -> list[Draw]:
        """Return all draws; those with the same seed and number of rows have the same rows on every network."""
        return [
            Draw(network, rows, seed, self.sites, self.columns, self.components)
            for seed in range(self.draws)
            for rows in self.rows
            for network in self.networks
        ]


@dataclass(frozen=True)
class Draw:
    """One problem."""

    network: str
    rows: int
    seed: int
    sites: int
    columns: int
    components: int

    @property
    def topology(self) -> Topology:
        """The network."""
        return from_name(self.network, self.sites)


@dataclass(frozen=True)
class Results:
    """The plan, and what was measured in each draw."""

    plan: Plan
    measured: dict[Draw, Leakage]

    def of(self, network: str, rows: int) -> list[Leakage]:
        """Return the results of all draws of a network with that many rows per site."""
        return [found for draw, found in self.measured.items() if (draw.network, draw.rows) == (network, rows)]

    def by_parents(self, network: str, rows: int) -> list[Errors]:
        """Return the errors of the parents of all leaves of the spanning tree, in the open network."""
        last = leaves(from_name(network, self.plan.sites))
        return [
            one.open
            for found in self.of(network, rows)
            for one in found.exposures
            if one.adversary == "parent" and one.site in last
        ]

    def pairs(self, network: str, rows: int, *, isolating: bool = False) -> list[tuple[Errors, Errors]]:
        """Return the errors in the private network and those of the totals; of all other sites, or of any but those."""
        return [
            (one.private, one.totals)
            for found in self.of(network, rows)
            for one in found.exposures
            if one.isolates == isolating
        ]


def leaves(topology: Topology) -> set[int]:
    """Return the agents without children in the spanning tree."""
    _, parent = topology.paths_to(topology.center)
    return set(range(topology.n_agents)) - {int(j) for j in parent} - {topology.center}


def run(plan: Plan, progress: Callable[[float, float], None] | None = None, jobs: int | None = None) -> Results:
    """Measure all draws, in several processes."""
    tasks, measured = plan.tasks(), {}
    for draw, found in in_parallel(measure, tasks, jobs):
        measured[draw] = found
        if progress is not None:
            progress(len(measured), len(tasks))
    return Results(plan, {draw: measured[draw] for draw in tasks})


def measure(draw: Draw) -> tuple[Draw, Leakage]:
    """Measure one draw."""
    sources = random_sites(draw.sites, draw.rows, draw.columns, draw.seed)
    with one_blas_thread():
        return draw, measure_leakage(sources, draw.topology, Settings(n_components=draw.components))
