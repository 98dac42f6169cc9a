"""Test a network before it is built: run algorithms on given data over given links, with simulated time.

The real algorithms run on the rows, from agreeing on counts and mean to the certificate, over a
:class:`~deepca.planning.timed.TimedNetwork`. Only time is simulated; the answers are exact, and certified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from deepca._util.machine import available_memory
from deepca._util.renamed import renamed_attributes, renamed_names, renamed_parameters
from deepca._util.typing import Array
from deepca._util.units import counted
from deepca._util.validation import Integer, check
from deepca.data.columns import align_columns
from deepca.data.local_data import LocalData, read
from deepca.data.sources import ArraySource, Source
from deepca.decomposition.fit import decompose
from deepca.decomposition.settings import ALGORITHMS, Settings, check_settings
from deepca.errors import DataError, InvalidInput, ParameterError
from deepca.network.compression import Messages
from deepca.network.private import make_private
from deepca.network.simulated import SimulatedNetwork
from deepca.operators.linalg import tan_theta
from deepca.planning.clock import TIME_PARTS, SimulatedClock
from deepca.planning.links import Links
from deepca.planning.methods import TREE_ALGORITHMS, ObserverFactory, Trajectory, fastest, message_precision
from deepca.planning.timed import TimedData, TimedNetwork, check_speed
from deepca.solver.observers import Observer
from deepca.solver.result import StatusCode

__all__ = ["DEFAULT_ALGORITHMS", "GFLOPS", "Bottleneck", "SimulatedRun", "Simulation", "simulate", "surrogate_rows"]

__getattr__ = renamed_names(
    __name__, COMPARED="DEFAULT_ALGORITHMS", Trial="SimulatedRun", stand_in_rows="surrogate_rows"
)

DEFAULT_ALGORITHMS = ("krylov", "accelerated", "deepca", "depca")
"""Algorithms that are simulated by default; "covariance" is not, since it reveals the covariances."""
GFLOPS = 10.0
"""Default speed in 10⁹ operations per second: about that of one core for products with few columns."""
_MAX_BOTTLENECKS = 5  # number of links and agents to report


@dataclass(frozen=True)
class Bottleneck:
    """Link (of two agents) or agent, and the seconds for which the critical path waits for it."""

    kind: Literal["link", "agent"]
    agents: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        """Return the kind and the names of the agents as text."""
        return f"{self.kind} {' – '.join(self.agents)}"


@renamed_attributes(resent="retransmissions")
@dataclass(frozen=True)
class SimulatedRun:
    """Simulated run of one algorithm.

    Parameters
    ----------
    algorithm : str
        Name of the algorithm.
    status, advice : str
        As in :class:`~deepca.Status`.
    certified : bool
        Whether the tolerance, or as much as rounding allows, is proven.
    error : float
        Largest tangent of the angle to the pooled answer.
    iterations, rounds, control_rounds : int
        Numbers of iterations and rounds, certificate included.
    bytes_per_agent : float
        Bytes that an agent sends on average, certificate included.
    retransmissions : int
        Number of times that a lost message was sent again.
    seconds : float
        Time until the last agent finishes.
    parts : dict
        These seconds by cause; the keys are ``deepca.planning.clock.TIME_PARTS``.
    phases : dict
        These seconds by phase: preparation, iterations and proof.
    bottlenecks : tuple of Bottleneck
        Up to five links and agents that took the most time, in descending order.
    curve : tuple of tuple
        Seconds, and largest tangent of any agent, after every iteration.
    """

    algorithm: str
    status: str
    advice: str
    certified: bool
    error: float
    iterations: int
    rounds: int
    control_rounds: int
    bytes_per_agent: float
    retransmissions: int
    seconds: float
    parts: dict[str, float]
    phases: dict[str, float]
    bottlenecks: tuple[Bottleneck, ...]
    curve: tuple[tuple[float, float], ...]


@renamed_attributes(trials="runs")
@dataclass(frozen=True)
class Simulation:
    """Simulated runs of several algorithms, and a recommendation.

    Parameters
    ----------
    network : str
        Name of the network.
    agents : tuple of str
        Names of the agents.
    links : int
        Number of links.
    n_rows, dim, components : int
        Number of rows, columns and components.
    tol : float
        Tolerance.
    gflops : float
        Speed of an agent with slowdown 1, in 10⁹ operations per second.
    runs : tuple of SimulatedRun
        One per algorithm.
    recommended : str or None
        The fastest algorithm with a certified answer, other than "covariance"; None if every certificate failed.
    reason : str
        Reason for the recommendation.

    Examples
    --------
    >>> import deepca
    >>> links = deepca.Links.of(deepca.topology.ring(4), latency=0.03)
    >>> rows = surrogate_rows(0.5 ** np.arange(6.0), 4, 50, seed=0)
    >>> simulation = deepca.simulate(rows, links, 2, algorithms=["krylov", "deepca"])
    >>> simulation.recommended
    'krylov'
    """

    network: str
    agents: tuple[str, ...]
    links: int
    n_rows: int
    dim: int
    components: int
    tol: float
    gflops: float
    runs: tuple[SimulatedRun, ...]
    recommended: str | None
    reason: str

    def __getitem__(self, algorithm: str) -> SimulatedRun:
        """Return the run of one algorithm; raise ParameterError if it was not simulated."""
        for run in self.runs:
            if run.algorithm == algorithm:
                return run
        raise ParameterError("algorithm", algorithm, f"choose one of {', '.join(run.algorithm for run in self.runs)}")


@renamed_parameters(watch="observer_factory")
def simulate(
    sources: Sequence[Source],
    links: Links,
    n_components: int,
    *,
    algorithms: Sequence[str] | None = None,
    tol: float = 1e-10,
    max_iter: int = 2000,
    rounds: int | Literal["auto"] = "auto",
    messages: Messages = "float64",
    center: bool = True,
    scale: bool = False,
    gflops: float = GFLOPS,
    private: bool = False,
    seed: int = 0,
    observer_factory: ObserverFactory | None = None,
) -> Simulation:
    """Simulate how long each algorithm takes on these rows over these links, and recommend the fastest.

    Parameters
    ----------
    sources : sequence of Source
        Rows of each agent, in the order of ``links.names``.
    links : Links
        Network with its speeds and losses; see :func:`deepca.read_links`.
    n_components : int
        Number of components.
    algorithms : sequence of str
        Names from ``deepca.decomposition.settings.ALGORITHMS``; by default those of `DEFAULT_ALGORITHMS` that are
        possible.
    tol : float, default=1e-10
        Tolerance.
    max_iter : int, default=2000
        Maximum number of iterations.
    rounds : int or "auto"
        Gossip rounds per iteration, for algorithms that gossip.
    messages : {"float64", "float32", "float16"}
        Precision of gossip messages, for algorithms that gossip.
    center, scale : bool
        Whether to subtract the mean, and to divide columns by their standard deviations.
    gflops : float
        Speed of an agent with slowdown 1, in 10⁹ operations per second, from 1e-300 to 1e300; inf if computing takes no
        time.
    private : bool, default=False
        Whether agents mask what they add to sums; only "krylov" and "covariance" are possible then.
    seed : int
        Seed of the starting point, and of losses, jitter and stalls.
    observer_factory : callable, optional
        Returns an observer, such as a progress bar, for the algorithm of a given name.

    Returns
    -------
    Simulation
        Runs and recommendation.

    Raises
    ------
    InvalidInput
        If a parameter is outside its range (ParameterError), or the rows cannot be used (DataError).
    """
    if algorithms is None:
        algorithms = [name for name in DEFAULT_ALGORITHMS if name in TREE_ALGORITHMS or not private]
    _check(sources, links, n_components, algorithms, gflops)
    if private and (gossiping := [name for name in algorithms if name not in TREE_ALGORITHMS]):
        raise ParameterError(
            "algorithms",
            gossiping[0],
            f"choose {' or '.join(TREE_ALGORITHMS)}: with private sums, agents cannot gossip",
        )
    asked = Settings(int(n_components), center, scale, rounds=rounds, tol=tol, max_iter=max_iter, seed=seed)
    return _compare(
        sources, links, asked, _settings_of_each(asked, algorithms, messages), gflops, private, observer_factory
    )


def _compare(
    sources: Sequence[Source],
    links: Links,
    asked: Settings,
    each: Sequence[Settings],
    gflops: float,
    private: bool,
    observer_factory: ObserverFactory | None,
) -> Simulation:
    """Simulate each algorithm, compare its answer with that on pooled rows, and recommend the fastest."""
    data = read(align_columns(sources))
    exact = replace(asked, algorithm="krylov", rounds="auto")
    pooled = decompose(data, SimulatedNetwork(links.topology), exact)
    runs = tuple(
        _simulated_run(
            data,
            links,
            settings,
            pooled.components.T,
            TimedNetwork(links, gflops=gflops, seed=settings.seed or 0),
            private,
            () if observer_factory is None else (observer_factory(settings.algorithm),),
        )
        for settings in each
    )
    recommended, reason = fastest(
        {run.algorithm: run.seconds for run in runs if run.certified and run.algorithm != "covariance"},
        "simulated time",
        withheld=[run.algorithm for run in runs if run.certified and run.algorithm == "covariance"],
        unfinished=any(run.status == StatusCode.OUT_OF_ITERATIONS for run in runs),
    )
    return Simulation(
        network=links.topology.name,
        agents=links.names,
        links=links.topology.n_edges,
        n_rows=pooled.n_rows,
        dim=data.sources[0].d,
        components=len(pooled.components),
        tol=asked.tol,
        gflops=gflops,
        runs=runs,
        recommended=recommended,
        reason=reason,
    )


def _check(
    sources: Sequence[Source], links: Links, n_components: int, algorithms: Sequence[str], gflops: float
) -> None:
    """Raise an error unless :func:`simulate` accepts these values."""
    m = links.topology.n_agents
    if len(sources) != m:
        raise DataError(
            f"got rows of {counted(len(sources), 'agent')} for a network of {counted(m, 'agent')}; give the rows of "
            "every agent",
            parameter="sources",
            value=len(sources),
        )
    if not algorithms:
        raise InvalidInput(f"no algorithms given; choose from {', '.join(ALGORITHMS)}", parameter="algorithms")
    check("n_components", n_components, Integer(1), meaning="the same for all algorithms")
    check_speed(gflops)


def _settings_of_each(asked: Settings, algorithms: Sequence[str], messages: Messages) -> list[Settings]:
    """Return the checked settings of each algorithm; one that sums along a tree sends float64 in automatic rounds."""
    each = []
    for name in dict.fromkeys(algorithms):
        rounds = "auto" if name in TREE_ALGORITHMS else asked.rounds
        each.append(replace(asked, algorithm=name, rounds=rounds, messages=message_precision(name, messages)))
        check_settings(each[-1])
    return each


def surrogate_rows(values: Array, m: int, rows: int, seed: int) -> tuple[Source, ...]:
    """Draw rows for each of m agents from a Gaussian whose covariance has these eigenvalues, in place of real data."""
    if rows < 2:
        raise InvalidInput(
            f"{rows} rows per agent are too few; give at least two", parameter="rows_per_agent", value=rows
        )
    if 8 * m * rows * values.size > available_memory() // 4:
        raise InvalidInput(
            f"{m} × {rows:,} rows × {values.size:,} columns do not fit into memory; give fewer rows per agent",
            parameter="rows_per_agent",
            value=rows,
        )
    rng = np.random.default_rng((7211, seed))
    v = rng.standard_normal(values.size)
    v /= np.linalg.norm(v)
    found = []
    for j in range(m):
        X = rng.standard_normal((rows, values.size)) * np.sqrt(values)
        # reflected, so that components are not axes
        found.append(ArraySource(X - 2.0 * np.outer(X @ v, v), f"agent {j}", None))
    return tuple(found)


def _simulated_run(
    data: LocalData,
    links: Links,
    settings: Settings,
    U: Array,
    network: TimedNetwork,
    private: bool,
    observers: tuple[Observer, ...],
) -> SimulatedRun:
    """Run one algorithm over simulated links."""
    if private:
        make_private(network)
    clock = network.clock
    if data.form == "covariance":  # the covariances are computed from the rows once
        clock.compute(np.array([float(of.n) for of in data.moments]) * data.sources[0].d ** 2)
    timed = TimedData(data.sources, data.weights, data.forms, data.moments, data.is_float32, clock=clock)
    course = Trajectory(U, lambda: clock.elapsed)
    found = decompose(timed, network, settings, observers=(course, *observers))
    result = found.result
    last = int(clock.now.argmax())
    return SimulatedRun(
        algorithm=settings.algorithm,
        status=result.status.code,
        advice=result.status.advice,
        certified=result.status.ok and result.certificate is not None,
        error=float(tan_theta(U, found.components.T)),
        iterations=result.iterations,
        rounds=found.traffic.rounds,
        control_rounds=found.traffic.control_rounds,
        bytes_per_agent=found.traffic.bytes_per_agent,
        retransmissions=clock.retransmissions,
        seconds=clock.elapsed,
        parts=dict(zip(TIME_PARTS, clock.parts[last].tolist(), strict=True)),
        phases=network.phases,
        bottlenecks=_bottlenecks(links, clock),
        curve=tuple((seconds, angle) for _, angle, seconds in course.records),
    )


def _bottlenecks(links: Links, clock: SimulatedClock) -> tuple[Bottleneck, ...]:
    """Return the links and agents on which the critical path spends most of its time."""
    critical = clock.critical_path()
    m = links.topology.n_agents
    low, high = np.minimum(links.senders, links.receivers), np.maximum(links.senders, links.receivers)
    pairs, of = np.unique(low * m + high, return_inverse=True)
    on_pairs = np.bincount(of, critical.on_links, minlength=pairs.size)
    found = [
        Bottleneck("link", (links.names[pair // m], links.names[pair % m]), float(seconds))
        for pair, seconds in zip(pairs.tolist(), on_pairs, strict=True)
    ]
    found += [Bottleneck("agent", (links.names[j],), float(s)) for j, s in enumerate(critical.at_agents)]
    return tuple(sorted((one for one in found if one.seconds > 0.0), key=lambda one: -one.seconds)[:_MAX_BOTTLENECKS])
