"""Try a network before it is built: run every method on given data over given links, with simulated time.

The real algorithms run on the rows, from agreeing on counts and mean to the certificate, over a
:class:`~deepca.planning.timed.TimedNetwork`. Only time is simulated; the answers are exact, and certified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from deepca._util.machine import available_memory
from deepca._util.typing import Array
from deepca._util.validation import Integer, check
from deepca.data.columns import common_columns
from deepca.data.local_data import LocalData, read
from deepca.data.sources import ArraySource, Source
from deepca.decomposition.fit import decompose
from deepca.decomposition.settings import ALGORITHMS, Settings, check_settings
from deepca.errors import DataError, InvalidInput, ParameterError
from deepca.network.compression import Messages
from deepca.network.simulated import SimulatedNetwork
from deepca.operators.base import Operator
from deepca.operators.linalg import tan_theta
from deepca.planning.clock import PARTS, SimulatedClock
from deepca.planning.links import Links
from deepca.planning.methods import ObserverFactory, Trajectory, fastest, messages_of
from deepca.planning.timed import TimedNetwork, TimedOperator, check_speed
from deepca.solver.observers import Observer

__all__ = ["COMPARED", "GFLOPS", "Bottleneck", "Simulation", "Trial", "simulate", "stand_in_rows"]

COMPARED = ("krylov", "accelerated", "deepca", "depca")
"""Methods to try by default; "covariance", which reveals the covariances, is only tried on request."""
GFLOPS = 10.0
"""Default speed in 10⁹ operations per second: about that of one core for products with few columns."""
_MAX_BOTTLENECKS = 5  # links and agents that are reported


@dataclass(frozen=True)
class Bottleneck:
    """A link (its two agents) or an agent, and its seconds on the critical path."""

    kind: Literal["link", "agent"]
    agents: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        """Return the kind and the names."""
        return f"{self.kind} {' – '.join(self.agents)}"


@dataclass(frozen=True)
class Trial:
    """Simulated run of one method.

    Parameters
    ----------
    algorithm : str
        Name of the method.
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
    resent : int
        Messages that were lost and sent again.
    seconds : float
        Time until the last agent finishes.
    parts : dict
        Those seconds by cause, as in ``deepca.planning.clock.PARTS``.
    phases : dict
        Those seconds by phase: preparation, iterations and proof.
    bottlenecks : tuple of Bottleneck
        Links and agents that took most of the time, in descending order.
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
    resent: int
    seconds: float
    parts: dict[str, float]
    phases: dict[str, float]
    bottlenecks: tuple[Bottleneck, ...]
    curve: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Simulation:
    """Simulated runs of several methods, and a recommendation.

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
    trials : tuple of Trial
        One per method.
    recommended : str or None
        The fastest certified method.
    reason : str
        Reason for the recommendation.

    Examples
    --------
    >>> import deepca
    >>> links = deepca.Links.of(deepca.topology.ring(4), latency=0.03)
    >>> rows = stand_in_rows(0.5 ** np.arange(6.0), 4, 50, seed=0)
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
    trials: tuple[Trial, ...]
    recommended: str | None
    reason: str

    def __getitem__(self, algorithm: str) -> Trial:
        """Return the trial of one method."""
        for trial in self.trials:
            if trial.algorithm == algorithm:
                return trial
        raise ParameterError("algorithm", algorithm, f"choose one of {', '.join(t.algorithm for t in self.trials)}")


def simulate(
    sources: Sequence[Source],
    links: Links,
    n_components: int,
    *,
    algorithms: Sequence[str] = COMPARED,
    tol: float = 1e-8,
    max_iter: int = 2000,
    rounds: int | Literal["auto"] = "auto",
    messages: Messages = "float64",
    center: bool = True,
    scale: bool = False,
    gflops: float = GFLOPS,
    seed: int = 0,
    watch: ObserverFactory | None = None,
) -> Simulation:
    """Simulate how long each method takes on these rows over these links, and recommend the fastest.

    Parameters
    ----------
    sources : sequence of Source
        Rows of each agent, in the order of ``links.names``.
    links : Links
        Network with its speeds and losses; see :func:`deepca.read_links`.
    n_components : int
        Number of components.
    algorithms : sequence of str
        Names from ``deepca.decomposition.settings.ALGORITHMS``.
    tol : float
        Tolerance.
    max_iter : int
        Maximum number of iterations.
    rounds : int or "auto"
        Gossip rounds per iteration, for methods that gossip.
    messages : {"float64", "float32", "float16"}
        Precision of gossip messages, for methods that gossip.
    center, scale : bool
        Whether to subtract the mean, and to divide columns by their standard deviations.
    gflops : float
        Speed of an agent with slowdown 1, in 10⁹ operations per second; inf if computing takes no time.
    seed : int
        Seed of the starting point, and of losses, jitter and stalls.
    watch : callable, optional
        Returns an observer for a method, such as a progress bar.

    Returns
    -------
    Simulation
        Trials and recommendation.
    """
    _check(sources, links, n_components, algorithms, gflops)
    asked = Settings(int(n_components), center, scale, rounds=rounds, tol=tol, max_iter=max_iter, seed=seed)
    return _compare(sources, links, asked, _settings_of_each(asked, algorithms, messages), gflops, watch)


def _compare(
    sources: Sequence[Source],
    links: Links,
    asked: Settings,
    each: Sequence[Settings],
    gflops: float,
    watch: ObserverFactory | None,
) -> Simulation:
    """Try each algorithm, compare its answer with the pooled one, and recommend the fastest."""
    held = read(common_columns(sources))
    pooled = decompose(held, SimulatedNetwork(links.topology), replace(asked, algorithm="krylov"))
    trials = tuple(
        _trial(
            held, links, settings, pooled.components.T, gflops, () if watch is None else (watch(settings.algorithm),)
        )
        for settings in each
    )
    recommended, reason = fastest(
        {t.algorithm: t.seconds for t in trials if t.certified and t.algorithm != "covariance"}, "simulated time"
    )
    return Simulation(
        network=links.topology.name,
        agents=links.names,
        links=links.topology.n_edges,
        n_rows=pooled.n_rows,
        dim=held.sources[0].d,
        components=len(pooled.components),
        tol=asked.tol,
        gflops=gflops,
        trials=trials,
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
            f"got rows of {len(sources)} agents for a network of {m}; give those of every agent",
            parameter="sources",
            value=len(sources),
        )
    if not algorithms:
        raise InvalidInput(f"no algorithms given; choose from {', '.join(ALGORITHMS)}", parameter="algorithms")
    check("n_components", n_components, Integer(1), meaning="the same for all methods")
    check_speed(gflops)


def _settings_of_each(asked: Settings, algorithms: Sequence[str], messages: Messages) -> list[Settings]:
    """Return the checked settings of each algorithm; those that sum along a tree send float64."""
    each = []
    for name in dict.fromkeys(algorithms):
        each.append(replace(asked, algorithm=name, messages=messages_of(name, messages)))
        check_settings(each[-1])
    return each


def stand_in_rows(values: Array, m: int, rows: int, seed: int) -> tuple[Source, ...]:
    """Draw Gaussian rows for each of m agents, whose covariance has these eigenvalues, in place of real data."""
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


@dataclass(frozen=True)
class _TimedData(LocalData):
    """Local data whose products advance the agents' clocks."""

    clock: SimulatedClock = field(kw_only=True)

    def operator(self, *args: Any, **kwargs: Any) -> Operator:
        """Return the timed operator."""
        return TimedOperator(super().operator(*args, **kwargs), self.clock)


def _trial(
    held: LocalData, links: Links, settings: Settings, U: Array, gflops: float, observers: tuple[Observer, ...]
) -> Trial:
    """Run one method over simulated links."""
    network = TimedNetwork(links, gflops=gflops, seed=settings.seed or 0)
    clock = network.clock
    if held.form == "covariance":  # computed from the rows once
        clock.compute(np.array([float(of.n) for of in held.moments]) * held.sources[0].d ** 2)
    timed = _TimedData(held.sources, held.weights, held.form, held.moments, held.single, clock=clock)
    course = Trajectory(U, lambda: clock.elapsed)
    found = decompose(timed, network, settings, observers=(course, *observers))
    result = found.result
    last = int(clock.now.argmax())
    return Trial(
        algorithm=settings.algorithm,
        status=result.status.code,
        advice=result.status.advice,
        certified=result.status.ok and result.certificate is not None,
        error=float(tan_theta(U, found.components.T)),
        iterations=result.iterations,
        rounds=found.traffic.rounds,
        control_rounds=found.traffic.control_rounds,
        bytes_per_agent=found.traffic.bytes_per_agent,
        resent=clock.resent,
        seconds=clock.elapsed,
        parts=dict(zip(PARTS, clock.parts[last].tolist(), strict=True)),
        phases=network.phases,
        bottlenecks=_bottlenecks(links, clock),
        curve=tuple((seconds, angle) for _, angle, seconds in course.records),
    )


def _bottlenecks(links: Links, clock: SimulatedClock) -> tuple[Bottleneck, ...]:
    """Return the links and agents that take most of the critical path."""
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
