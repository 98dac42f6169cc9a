"""The engine of a test: the simulator, or the ranks of an MPI job with ``pytest --engine mpi`` under ``mpiexec``.

Tests get their networks from here. Over MPI every rank runs the same test and holds some of the agents. Arrays of a
result are those of the local agents; each rank asserts facts about its own agents, and a test that needs all agents
calls :func:`everyone`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import deepca
from deepca.algorithms import State, TrackedState
from deepca.network import AgentNetwork, Network, SimulatedNetwork, Traffic
from deepca.operators import Operator
from deepca.solver.observers import Observer
from deepca.solver.result import Result
from deepca.solver.stopping import StopRule
from deepca.topology import Topology
from tests.support.helpers import Make, RoundByRound, added, run_threads, summed

__all__ = [
    "ENGINES",
    "Done",
    "Engine",
    "SeparateRun",
    "Stepwise",
    "assert_same_traffic",
    "at_every_agent",
    "everyone",
    "gossip_messages",
    "mine",
    "network_of",
    "of_all",
    "of_mine",
    "over_mpi",
    "payload",
    "ranks_of",
    "run_separately",
    "total",
    "use_mpi",
    "whole",
]

Array = npt.NDArray[np.float64]
S_ = TypeVar("S_", bound=State)

Engine = SimulatedNetwork
"""Base class for networks that tests modify."""
Stepwise = RoundByRound
"""Base class for modified networks on which every round of a mixer must be a round of gossip."""
ENGINES: tuple[str, ...] = ("simulator", "threads")
"""Names of the engines for tests that run on several of them."""


def use_mpi() -> None:
    """Switch to MPI; must be called before tests that import the names above."""
    from tests.support.mpi_ranks import RankNetwork

    globals().update(Engine=RankNetwork, Stepwise=RankNetwork, ENGINES=("mpi",))


def over_mpi() -> bool:
    """Return whether tests run over MPI."""
    return "mpi" in ENGINES


def network_of(topology: Topology) -> Network:
    """Return a new network over a topology, which is closed after the test."""
    return Engine(topology)


# --------------------------------------------------------------------------------------------- local and all agents


def mine(m: int) -> npt.NDArray[np.int64]:
    """Return which of m agents are local, as indices."""
    if not over_mpi():
        return np.arange(m)
    from deepca.engines.local import distribute_evenly
    from tests.support.mpi_ranks import group

    ranks = group(m)
    shares = distribute_evenly(m, ranks.size)
    first = sum(shares[: ranks.rank])
    return np.arange(first, first + shares[ranks.rank])


def ranks_of(m: int) -> int:
    """Return the number of ranks that hold m agents; 1 without MPI."""
    if not over_mpi():
        return 1
    from tests.support.mpi_ranks import group

    return group(m).size


def everyone(x: npt.ArrayLike, m: int) -> npt.NDArray[Any]:
    """Gather the rows of all m agents from those of the local agents."""
    local = np.asarray(x)
    if not over_mpi():
        return local
    from tests.support.mpi_ranks import gathered

    return gathered(local, m)


def of_all(state: S_, m: int) -> S_:
    """Gather a state with the arrays of all m agents from the states of the local agents."""
    return _changed(state, lambda x: everyone(x, m))


def of_mine(state: S_, m: int) -> S_:
    """Return a state with the arrays of the local agents, given one with those of all m agents."""
    return _changed(state, lambda x: x[mine(m)])


def _changed(state: S_, change: Callable[[Array], Array]) -> S_:
    arrays = {name: x for name, x in vars(state).items() if isinstance(x, np.ndarray) and x.ndim == 3}
    changed: dict[str, Any] = {name: change(x) for name, x in arrays.items()}
    return replace(state, **changed)


def _stacked(states: Sequence[S_]) -> S_:
    arrays = {name: x.shape for name, x in vars(states[0]).items() if isinstance(x, np.ndarray) and x.ndim == 2}
    same_shape = {
        name for name, shape in arrays.items() if all(getattr(state, name).shape == shape for state in states)
    }
    stacks: dict[str, Any] = {name: np.stack([getattr(state, name) for state in states]) for name in same_shape}
    return replace(states[0], **stacks)


def total(traffic: Traffic, m: int) -> Traffic:
    """Return the traffic of all m agents: rounds are common, and messages and bytes are added up."""
    if not over_mpi():
        return traffic
    found = everyone(np.repeat([_numbers(traffic)], len(mine(m)), axis=0), m)
    assert (found[:, :2] == found[0, :2]).all(), "ranks counted different rounds"
    _, firsts = np.unique(found[:, -1], return_index=True)  # one row per rank
    rounds, control_rounds = (int(n) for n in found[0, :2])
    messages, sent, control = (int(n) for n in found[firsts, 2:5].sum(axis=0))
    return Traffic(rounds, control_rounds, messages, sent, control, m)


def _numbers(traffic: Traffic) -> list[int]:
    from tests.support.mpi_ranks import WORLD

    sent = (traffic.messages, traffic.bytes_sent, traffic.control_bytes)
    return [traffic.rounds, traffic.control_rounds, *sent, WORLD.rank]


def payload(traffic: Traffic) -> int:
    """Return the bytes of arrays, without pending reductions: the same on every engine."""
    return traffic.bytes_sent - traffic.control_bytes


def gossip_messages(traffic: Traffic, topology: Topology) -> int:
    """Return the messages of all agents without those of control rounds: the same on every engine."""
    if not over_mpi():
        return traffic.messages - 2 * topology.n_edges * traffic.control_rounds
    return traffic.messages - ranks_of(topology.n_agents) * traffic.control_rounds


def assert_same_traffic(one: Traffic, simulated: Traffic, topology: Topology, *, sums: bool = False) -> None:
    """Assert that the traffic of all agents matches the simulator's; over MPI, only the payload can.

    With ``sums``, it is that of exact sums, which are collective operations over MPI.
    """
    if not over_mpi():
        assert one == simulated
        return
    assert one.agents == simulated.agents
    if sums:
        return
    assert one.rounds == simulated.rounds
    assert payload(one) == payload(simulated)
    links = 2 * topology.n_edges
    assert gossip_messages(one, topology) == simulated.messages - links * simulated.control_rounds
    assert (one.control_rounds == 0) == (simulated.control_rounds == 0 or ranks_of(topology.n_agents) == 1)


# ---------------------------------------------------------------------------------------------------- work on an engine


@dataclass(frozen=True)
class Done:
    """Values of all agents, and their traffic."""

    values: npt.NDArray[Any]
    traffic: Traffic


def at_every_agent(kind: str, topology: Topology, work: Callable[[Network], npt.ArrayLike]) -> Done:
    """Call ``work`` on one of ENGINES: once for all local agents, or in a thread for each agent.

    Of an array ``x`` of all agents, ``x[network.local]`` is what to pass to the network.
    """
    m = topology.n_agents
    if kind != "threads":
        network = network_of(topology)
        return Done(everyone(work(network), m), total(network.traffic, m))

    def alone(network: AgentNetwork) -> tuple[npt.NDArray[Any], Traffic]:
        return np.asarray(work(network)), network.traffic

    values, sent = zip(*deepca.run_agents(topology, alone, timeout=20.0), strict=True)
    return Done(np.stack(values), added(sent))


# -------------------------------------------------------------------------------------------------- separate agents


@dataclass(frozen=True)
class SeparateRun:
    """A run with separate agents: one per thread, or on several ranks.

    Attributes
    ----------
    parts : list of Result
        Local results: one per thread, or the one of this rank.
    whole : Result
        Result of all agents, as from the simulator.
    """

    parts: list[Result[Any]]
    whole: Result[Any]


def run_separately(
    topology: Topology,
    A: Operator,
    make: Make,
    *,
    max_iter: int,
    stop: StopRule | None = None,
    observers: Callable[[int], Sequence[Observer]] = lambda part: (),
    start: Sequence[TrackedState] | None = None,
) -> SeparateRun:
    """Run one agent per thread, or some per rank; ``observers`` is called, and ``start`` has a state, for each part."""
    if not over_mpi():
        parts = run_threads(topology, A, make, max_iter=max_iter, stop=stop, observers=observers, start=start)
        return SeparateRun(parts, whole(parts, topology.n_agents))
    result = deepca.solve(
        make(A, network_of(topology)),
        max_iter=max_iter,
        stop=stop,
        observers=observers(0),
        start=None if start is None else start[0],
    )
    return SeparateRun([result], whole([result], topology.n_agents))


def whole(parts: Sequence[Result[Any]], m: int) -> Result[Any]:
    """Return the result of all m agents, given those of single agents or of this rank; they must have ended alike."""
    first = parts[0]
    ends = [(r.iterations, r.status.code, r.rank, r.restarts, r.state.t) for r in parts]
    assert len(set(ends)) == 1, f"agents ended differently: {ends}"

    def all_of(part: Callable[[Result[Any]], Array]) -> Array:
        return everyone(part(first), m) if over_mpi() else np.stack([part(r) for r in parts])

    if over_mpi():
        numbers = np.array([[first.iterations, first.rank, first.restarts, first.state.t]] * len(mine(m)))
        assert (everyone(numbers, m) == numbers[0]).all(), "ranks ended differently"
        codes = np.array([list(first.status.code.ljust(24).encode())] * len(mine(m)))
        assert (everyone(codes, m) == codes[0]).all(), "ranks ended with different statuses"
    return replace(
        first,
        W=all_of(lambda r: r.W),
        components=all_of(lambda r: r.components),
        eigenvalues=all_of(lambda r: r.eigenvalues),
        traffic=total(first.traffic, m) if over_mpi() else summed(parts),
        state=of_all(first.state, m) if over_mpi() else _stacked([r.state for r in parts]),
    )
