"""Trying a network before it is built: every method on given data over given links, with simulated time.

The real algorithms run on the rows, from agreeing on counts and mean to the certificate, over a
:class:`~deepca.planning.timed.TimedNetwork`. What is simulated is time alone; the answers are exact, and proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from deepca._util.machine import available_memory
from deepca._util.typing import Array
from deepca._util.validation import Whole, check
from deepca.data.columns import common_columns
from deepca.data.local_data import LocalData, read
from deepca.data.sources import ArraySource, Source
from deepca.decomposition.fit import decompose
from deepca.decomposition.settings import ALGORITHMS, Settings, check_settings
from deepca.errors import DataError, InvalidInput
from deepca.network.compression import Messages
from deepca.network.simulated import SimulatedNetwork
from deepca.operators.base import Operator
from deepca.operators.linalg import tan_theta
from deepca.planning.clock import PARTS, SimulatedClock
from deepca.planning.links import Links
from deepca.planning.methods import Course, Watch, fastest, messages_of
from deepca.planning.timed import TimedNetwork, TimedOperator, check_speed
from deepca.solver.observers import Observer

__all__ = ["COMPARED", "GFLOPS", "Bottleneck", "Simulation", "Trial", "simulate", "stand_in_rows"]

COMPARED = ("krylov", "accelerated", "deepca", "depca")
"""What is tried unless told; averaging covariances shows them to others, and is tried when it is named."""
GFLOPS = 10.0
"""10⁹ operations per second: about what one core makes of products with few columns."""
_TOLD = 5  # links and agents that are named


@dataclass(frozen=True)
class Bottleneck:
    """A link (its two agents) or an agent, and its seconds on the chain of waits that decided the total."""

    kind: Literal["link", "agent"]
    agents: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {' – '.join(self.agents)}"


@dataclass(frozen=True)
class Trial:
    """One method, tried.

    status : as in :class:`~deepca.Status`.  certified : whether the tolerance is proven, or as much as rounding allows.
    error : largest tangent of the angle to the pooled answer.  iterations, rounds, control_rounds, bytes_per_agent : of
    everything, proof included.  resent : messages sent again.
    seconds : until the last agent is done.  parts : what they are made of, as in ``deepca.planning.clock.PARTS``.
    phases : seconds of preparation, iterations and proof.  bottlenecks : what took most, most first.
    curve : after every iteration, seconds and the largest tangent of any agent.
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
    """Every method's trial, and which one to take: the fastest that is certified; None if none is."""

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
        """The trial of one method."""
        for trial in self.trials:
            if trial.algorithm == algorithm:
                return trial
        raise InvalidInput(f"{algorithm!r} was not tried; {', '.join(t.algorithm for t in self.trials)} were")


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
    watch: Watch | None = None,
) -> Simulation:
    """How long every method takes over these links, on these rows, and which one to take.

    Parameters
    ----------
    sources : the rows of each agent, in the order of ``links.names``.
    links : who talks to whom, how fast, and what is lost; see :func:`deepca.planning.links_csv.read_links`.
    algorithms : of ``deepca.decomposition.settings.ALGORITHMS``.
    rounds, messages : of every mix, and what a number takes in a message; for methods that gossip.
    gflops : what an agent with slowdown 1 computes, in 10⁹ operations per second; inf counts computing as nothing.
    seed : of the start, and of losses, jitter and stalls.
    watch : gives an observer for each method, such as a progress bar.
    """
    _check(sources, links, n_components, algorithms, gflops)
    asked = Settings(
        n_components=int(n_components), center=center, scale=scale, rounds=rounds, tol=tol, max_iter=max_iter, seed=seed
    )
    each = _settings_of_each(asked, algorithms, messages)
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
        components=int(n_components),
        tol=tol,
        gflops=gflops,
        trials=trials,
        recommended=recommended,
        reason=reason,
    )


def _check(
    sources: Sequence[Source], links: Links, n_components: int, algorithms: Sequence[str], gflops: float
) -> None:
    """Raise an error unless these are what :func:`simulate` takes."""
    m = links.topology.n_agents
    if len(sources) != m:
        raise DataError(f"rows of {len(sources)} agents for a network of {m}; give those of every agent")
    if not algorithms:
        raise InvalidInput(f"no algorithm to try; choose from {', '.join(ALGORITHMS)}")
    check("n_components", n_components, Whole(1), meaning="the same for all methods")
    check_speed(gflops)


def _settings_of_each(asked: Settings, algorithms: Sequence[str], messages: Messages) -> list[Settings]:
    """The settings of each algorithm, checked; those that sum along a tree send float64."""
    each = []
    for name in dict.fromkeys(algorithms):
        each.append(replace(asked, algorithm=name, messages=messages_of(name, messages)))
        check_settings(each[-1])
    return each


def stand_in_rows(values: Array, m: int, rows: int, seed: int) -> tuple[Source, ...]:
    """Gaussian rows for each of m agents whose covariance has these eigenvalues, where there are no data yet."""
    if rows < 2:
        raise InvalidInput(f"{rows} rows per agent: at least two are needed")
    if 8 * m * rows * values.size > available_memory() // 4:
        raise InvalidInput(f"{m} × {rows:,} rows × {values.size:,} columns do not fit into memory; ask for fewer rows")
    rng = np.random.default_rng((7211, seed))
    v = rng.standard_normal(values.size)
    v /= np.linalg.norm(v)
    found = []
    for j in range(m):
        X = rng.standard_normal((rows, values.size)) * np.sqrt(values)
        found.append(ArraySource(X - 2.0 * np.outer(X @ v, v), f"agent {j}", None))  # no axis is a component
    return tuple(found)


@dataclass(frozen=True)
class _TimedData(LocalData):
    """Local data whose products take the agents' time."""

    clock: SimulatedClock = field(kw_only=True)

    def operator(self, *args: Any, **kwargs: Any) -> Operator:
        return TimedOperator(super().operator(*args, **kwargs), self.clock)


def _trial(
    held: LocalData, links: Links, settings: Settings, U: Array, gflops: float, observers: tuple[Observer, ...]
) -> Trial:
    network = TimedNetwork(links, gflops=gflops, seed=settings.seed or 0)
    clock = network.clock
    if held.form == "covariance":  # made from the rows once
        clock.compute(np.array([float(of.n) for of in held.moments]) * held.sources[0].d ** 2)
    timed = _TimedData(held.sources, held.weights, held.form, held.moments, held.single, clock=clock)
    course = Course(U, lambda: clock.elapsed)
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
        curve=tuple((seconds, angle) for _, angle, seconds in course.seen),
    )


def _bottlenecks(links: Links, clock: SimulatedClock) -> tuple[Bottleneck, ...]:
    critical = clock.critical()
    m = links.topology.n_agents
    low, high = np.minimum(links.senders, links.receivers), np.maximum(links.senders, links.receivers)
    pairs, of = np.unique(low * m + high, return_inverse=True)
    on_pairs = np.bincount(of, critical.on_links, minlength=pairs.size)
    found = [
        Bottleneck("link", (links.names[pair // m], links.names[pair % m]), float(seconds))
        for pair, seconds in zip(pairs.tolist(), on_pairs, strict=True)
    ]
    found += [Bottleneck("agent", (links.names[j],), float(s)) for j, s in enumerate(critical.at_agents)]
    return tuple(sorted((one for one in found if one.seconds > 0.0), key=lambda one: -one.seconds)[:_TOLD])
