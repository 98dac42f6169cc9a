"""Play the adversary on a network: measure what coalitions of sites learn about a single one, open and private."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from scipy import sparse

from deepca.data.local_data import LocalData, read
from deepca.data.sources import ArraySource, Source
from deepca.decomposition.settings import Settings, check_settings
from deepca.errors import InvalidInput, ParameterError
from deepca.network.private import MIN_PRIVATE_AGENTS
from deepca.network.sums.rounds import sum_tree
from deepca.planning.leakage.adversary import Coalition
from deepca.planning.leakage.recording import record_run
from deepca.planning.leakage.records import RecordedRun, Sites
from deepca.planning.leakage.scoring import Errors, TrueSite
from deepca.planning.methods import ObserverFactory
from deepca.topology.graph import Topology

__all__ = [
    "ADVERSARIES",
    "MAX_COLUMNS",
    "MAX_SITES",
    "PRIVATE_ALGORITHMS",
    "Adversary",
    "Exposure",
    "Leakage",
    "measure_leakage",
    "random_sites",
]

Adversary = Literal["parent", "one neighbour", "all neighbours", "all but two", "all others"]
"""Who tries to learn the numbers of a site: coalitions of other sites."""
ADVERSARIES: tuple[Adversary, ...] = get_args(Adversary)

MAX_SITES = 24
"""Largest number of sites: every coalition repeats the masks of the whole run."""
MAX_COLUMNS = 400
"""Largest number of columns: every estimate is a dense matrix."""
PRIVATE_ALGORITHMS = ("auto", "krylov", "covariance")
"""Algorithms that use exact sums only."""
_MAX_SPARED = 4  # number of choices of the second site that is not in a coalition of all but two
_EXACT = 1e-10  # errors below it are rounding, and not compared
_SPREAD = 0.5  # standard deviation of the means of random sites, in units of the standard deviation of their rows


@dataclass(frozen=True)
class Exposure:
    """Errors of the most successful coalition of a kind about a site.

    Parameters
    ----------
    site : int
        Index of the site.
    adversary : str
        Kind of coalition, one of :data:`ADVERSARIES`.
    members : tuple of int
        Its members.
    open, private : Errors
        Errors of what they rebuild from everything that they see in an open and in a private network.
    totals : Errors
        Errors of what they rebuild from the totals and their own rows alone.
    isolates : bool
        Whether all other sites are members, so that the totals give the numbers of the site away.
    """

    site: int
    adversary: Adversary
    members: tuple[int, ...]
    open: Errors
    private: Errors
    totals: Errors
    isolates: bool

    @property
    def success(self) -> tuple[float, float]:
        """Sort key by what the coalition has learned: in the open network first, then in the private one."""
        return -max(self.open.decisive, _EXACT), -self.private.decisive


@dataclass(frozen=True)
class Leakage:
    """Measured leakage of a network.

    Parameters
    ----------
    topology : str
        Name of the graph.
    names : tuple of str
        Names of the sites.
    n_rows : tuple of int
        Their numbers of rows.
    dim : int
        Number of columns.
    components : int
        Number of components that were computed.
    status : str
        How the fit ended.
    exposures : tuple of Exposure
        One for every site and kind of adversary that exists.
    n_coalitions : int
        Number of pairs of a coalition and a site that were tried.
    private_excess : float
        Largest difference, over all coalitions that leave at least two sites out, between an error in the private
        network and the same error of the totals: zero, unless masks fail.
    """

    topology: str
    names: tuple[str, ...]
    n_rows: tuple[int, ...]
    dim: int
    components: int
    status: str
    exposures: tuple[Exposure, ...]
    n_coalitions: int
    private_excess: float


def measure_leakage(
    sources: Sequence[Source],
    topology: Topology,
    settings: Settings,
    *,
    names: Sequence[str] | None = None,
    on_rows: Callable[[int], None] | None = None,
    observer_factory: ObserverFactory | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Leakage:
    """Run a fit in an open and in a private network, and rebuild the numbers of every site from what others see.

    Parameters
    ----------
    sources : sequence of Source
        Rows of each site, with the same columns in the same order.
    topology : Topology
        Static undirected graph of the sites.
    settings : Settings
        Settings of the fit; the algorithm must be one that uses exact sums only.
    names : sequence of str, optional
        Names of the sites; by default, their numbers.
    on_rows : callable, optional
        Called with the number of rows of each block after the block has been read.
    observer_factory : callable, optional
        Returns an observer for the run of a given name, "open" or "private".
    progress : callable, optional
        Called with the numbers of coalitions that are done, and of all.

    Returns
    -------
    Leakage
        Errors of what coalitions rebuild.

    Raises
    ------
    InvalidInput
        If the network cannot be private, or is too large.
    DataError
        If the rows cannot be used.
    """
    _check(sources, topology, settings)
    rows = [read((source,), form="covariance", on_rows=on_rows) for source in sources]
    open_run, private_run = (
        _recorded(rows, topology, settings, name, observer_factory) for name in ("open", "private")
    )
    sites = [TrueSite.of(source, one, open_run) for source, one in zip(sources, rows, strict=True)]
    measured = _Measurement(open_run, private_run, sites)
    exposures, n_coalitions = _worst(measured, topology, progress)
    return Leakage(
        topology=topology.name,
        names=tuple(map(str, range(len(sites)))) if names is None else tuple(names),
        n_rows=tuple(site.n for site in sites),
        dim=sources[0].d,
        components=len(open_run.model.components),
        status=str(open_run.model.status.code),
        exposures=exposures,
        n_coalitions=n_coalitions,
        private_excess=measured.excess,
    )


def _recorded(
    rows: Sequence[LocalData],
    topology: Topology,
    settings: Settings,
    name: str,
    observer_factory: ObserverFactory | None,
) -> RecordedRun:
    """Record a fit in an open or a private network."""
    observers = () if observer_factory is None else (observer_factory(name),)
    return record_run(rows, topology, settings, private=name == "private", observers=observers)


def _worst(
    measured: _Measurement, topology: Topology, progress: Callable[[int, int], None] | None
) -> tuple[tuple[Exposure, ...], int]:
    """Try all coalitions; return the most successful of each kind for every site, and the number of tries."""
    sites = range(topology.n_agents)
    tasks = [(site, kind, members) for site in sites for kind, members in _coalitions(topology, site)]
    best: dict[tuple[int, Adversary], Exposure] = {}
    for done, (site, kind, members) in enumerate(sorted(tasks, key=lambda task: sorted(task[2]))):
        if progress is not None:
            progress(done, len(tasks))
        found = measured.exposure(site, kind, members)
        if (site, kind) not in best or found.success > best[site, kind].success:
            best[site, kind] = found
    ordered = tuple(best[site, kind] for site in sites for kind in ADVERSARIES if (site, kind) in best)
    return ordered, len(tasks)


def random_sites(m: int, n_rows: int, columns: int, seed: int) -> tuple[ArraySource, ...]:
    """Draw Gaussian rows for m sites that differ in their means and covariances.

    Parameters
    ----------
    m : int
        Number of sites.
    n_rows : int
        Rows of each site.
    columns : int
        Number of columns.
    seed : int
        Seed.

    Returns
    -------
    tuple of ArraySource
        The rows of each site.
    """
    rng = np.random.default_rng(seed)
    spread = 1.0 / np.sqrt(np.arange(1.0, columns + 1.0))
    found = []
    for j in range(m):
        axes = np.linalg.qr(np.eye(columns) + 0.3 * rng.standard_normal((columns, columns)))[0]
        rows = (rng.standard_normal((n_rows, columns)) * spread) @ axes.T
        found.append(ArraySource(rows + _SPREAD * rng.standard_normal(columns) * spread, f"site {j}", agent=j))
    return tuple(found)


def _check(sources: Sequence[Source], topology: Topology, settings: Settings) -> None:
    """Raise InvalidInput if the leakage cannot be measured."""
    check_settings(settings)
    m, d = topology.n_agents, sources[0].d
    if not MIN_PRIVATE_AGENTS <= m <= MAX_SITES:
        raise InvalidInput(
            f"there are {m} sites, but leakage is measured for {MIN_PRIVATE_AGENTS} to {MAX_SITES}: two sites learn "
            "each other's numbers from any sum, and more sites take too long; choose a network of another size",
            parameter="agents",
        )
    if not topology.static_undirected:
        raise ParameterError(
            "topology", topology.name, "a static undirected network, such as ring, in which exact sums are possible"
        )
    if d > MAX_COLUMNS:
        raise InvalidInput(
            f"the rows have {d:,} columns, but leakage is measured for at most {MAX_COLUMNS}; measure it on some of "
            "the columns, or on random rows",
            parameter="columns",
        )
    if settings.algorithm not in PRIVATE_ALGORITHMS:
        raise ParameterError(
            "algorithm",
            settings.algorithm,
            "auto, krylov or covariance, which send exact sums only; other algorithms gossip, and the first message of "
            "a site is its own",
        )


class _Measurement:
    """Coalitions in both networks, and the errors of what they rebuild."""

    def __init__(self, open_run: RecordedRun, private_run: RecordedRun, sites: Sequence[TrueSite]) -> None:
        self._sites = sites
        self.excess = 0.0

        @lru_cache(maxsize=1)  # all sites that a coalition is tried on follow one another
        def coalitions(members: Sites) -> tuple[Coalition, Coalition, Coalition]:
            return (
                Coalition(open_run, members),
                Coalition(private_run, members),
                Coalition(private_run, members, totals_only=True),
            )

        self._coalitions = coalitions

    def exposure(self, site: int, kind: Adversary, members: Sites) -> Exposure:
        """Measure what a coalition learns about a site."""
        open_, private, totals = (self._sites[site].errors(one.estimate(site)) for one in self._coalitions(members))
        isolates = len(members) == len(self._sites) - 1
        if not isolates:
            self.excess = max(self.excess, *_differences(private, totals))
        return Exposure(site, kind, tuple(sorted(members)), open_, private, totals, isolates)


def _differences(a: Errors, b: Errors) -> Iterator[float]:
    for one, other in ((a.mean, b.mean), (a.covariance, b.covariance), (a.rows, b.rows)):
        yield abs((one or 0.0) - (other or 0.0))


def _coalitions(topology: Topology, site: int) -> Iterator[tuple[Adversary, Sites]]:
    """Yield the coalitions to try against a site."""
    m, neighbors = topology.n_agents, topology.neighbors(site)
    parent = _parents(topology).get(site)
    if parent is not None:
        yield "parent", frozenset([parent])
    for neighbor in neighbors:
        yield "one neighbour", frozenset([neighbor])
    yield "all neighbours", frozenset(neighbors)
    others = [j for j in range(m) if j != site]
    for at in sorted({round(i) for i in np.linspace(0, m - 2, min(m - 1, _MAX_SPARED))}):
        yield "all but two", frozenset(others) - {others[at]}
    yield "all others", frozenset(others)


@lru_cache(maxsize=4)
def _parents(topology: Topology) -> dict[int, int]:
    """Return the agent to which each agent but the root sends its sums."""
    found = {}
    for weights in sum_tree(topology, from_leader=True).up:
        entries = sparse.coo_array(weights)
        found.update({int(j): int(i) for i, j in zip(entries.row, entries.col, strict=True) if i != j})
    return found
