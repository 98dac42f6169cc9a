"""Helpers shared by test files: small graphs of every kind, angles by scipy, and runs with one thread per agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import typer
from typer.testing import CliRunner

import deepca
from deepca.algorithms import TrackedState
from deepca.cli.app import app
from deepca.network import AgentNetwork, Network, SimulatedNetwork, Traffic
from deepca.network.transports import MemoryHub
from deepca.operators import Operator
from deepca.solver.observers import Observer, Start, Step
from deepca.solver.result import Result
from deepca.solver.stopping import StopRule
from deepca.topology import Topology

Array = npt.NDArray[np.float64]
Tracked = deepca.DeEPCA | deepca.DePCA
Make = Callable[[Operator, Network], Tracked]

GRAPHS: dict[str, Callable[[], Topology]] = {
    "erdos-renyi": lambda: deepca.topology.erdos_renyi(7, 0.5, seed=1),
    "ring": lambda: deepca.topology.ring(6),
    "path": lambda: deepca.topology.path(5),
    "star": lambda: deepca.topology.star(6),
    "complete": lambda: deepca.topology.complete(5),
    "grid": lambda: deepca.topology.grid(2, 3),
    "torus": lambda: deepca.topology.torus(3, 3),
    "hypercube": lambda: deepca.topology.hypercube(3),
    "random-regular": lambda: deepca.topology.random_regular(6, 3, seed=0),
    "edges": lambda: deepca.topology.from_edges(5, [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)]),
    "one agent": lambda: deepca.topology.complete(1),
    "two agents": lambda: deepca.topology.path(2),
}


class RoundByRound(SimulatedNetwork):
    """Simulator without collapsed rounds: every round of a mixer is a round of gossip."""

    mix = Network.mix


class Recorder:
    """Observer that records all notifications."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.steps: list[Step] = []
        self.ends: list[Result[Any]] = []

    def begin(self, start: Start) -> None:
        self.starts.append(start)

    def observe(self, step: Step) -> None:
        self.steps.append(step)

    def end(self, result: Result[Any]) -> None:
        self.ends.append(result)


class AtIteration:
    """Observer that acts once, after iteration t."""

    def __init__(self, t: int, act: Callable[[], object]) -> None:
        self._t, self._act, self.done = t, act, False

    def begin(self, start: Start) -> None:
        """Do nothing."""

    def observe(self, step: Step) -> None:
        if step.after.t >= self._t and not self.done:
            self.done = True
            self._act()

    def end(self, result: Result[Any]) -> None:
        """Do nothing."""


def tangents(U: Array, W: Array) -> Array:
    """Return the tangent of the largest principal angle between span U and every agent's span W, by scipy."""
    return np.tan([scipy.linalg.subspace_angles(U, w).max() for w in W.reshape(-1, *W.shape[-2:])])


def worst_tangent(U: Array, W: Array) -> float:
    """Return the tangent at the worst agent."""
    return float(tangents(U, W).max())


def run_threads(
    topology: Topology,
    A: Operator,
    make: Make,
    *,
    max_iter: int,
    stop: StopRule | None = None,
    observers: Callable[[int], Sequence[Observer]] = lambda agent: (),
    start: Sequence[TrackedState] | None = None,
    hub: MemoryHub | None = None,
    timeout: float = 60.0,
) -> list[Result[TrackedState]]:
    """Run one agent per thread, and return the results of all agents."""

    def work(network: AgentNetwork) -> Result[TrackedState]:
        j = network.agent
        return deepca.solve(
            make(A.agent(j), network),
            max_iter=max_iter,
            stop=stop,
            observers=observers(j),
            start=None if start is None else start[j],
        )

    return deepca.run_agents(topology, work, timeout=timeout, hub=hub)


def summed(results: Sequence[Result[Any]]) -> Traffic:
    """Return the traffic of all agents, including rounds that were repeated because a new epoch began."""
    return added([result.traffic for result in results], alike=not any(result.restarts for result in results))


def added(sent: Sequence[Traffic], *, alike: bool = True) -> Traffic:
    """Add up the traffic of single agents: rounds are common if ``alike``, messages and bytes are summed."""
    assert not alike or len({(t.rounds, t.control_rounds) for t in sent}) == 1
    return Traffic(
        max(t.rounds for t in sent),
        max(t.control_rounds for t in sent),
        sum(t.messages for t in sent),
        sum(t.bytes_sent for t in sent),
        sum(t.control_bytes for t in sent),
        len(sent),
    )


def random_psd_rows(m: int, n: int, d: int, eigenvalues: Sequence[float], seed: int) -> list[Array]:
    """Return rows, n per agent, such that the mean of ``X_jᵀX_j`` has exactly the given non-zero eigenvalues."""
    rng = np.random.default_rng(seed)
    r = len(eigenvalues)
    if r == 0:
        return [np.zeros((n, d)) for _ in range(m)]
    Q = np.linalg.qr(rng.standard_normal((m * n, r)))[0]
    V = np.linalg.qr(rng.standard_normal((d, r)))[0]
    X = (Q * np.sqrt(np.asarray(eigenvalues) * m)) @ V.T
    return [np.asarray(X[j * n : (j + 1) * n]) for j in range(m)]


# ------------------------------------------------------------------------------------------------- command line


def run_cli(*arguments: str, columns: int = 100) -> Any:
    """Run ``deepca …`` in a terminal of the given width."""
    return CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns), "TERM": "dumb"})


def json_of(*arguments: str) -> dict[str, Any]:
    """Return the document printed by ``deepca … --json``, which must print nothing else."""
    done = run_cli(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def run_study(main: Callable[..., None], *words: str) -> Any:
    """Run the command of a study without its progress bar."""
    command = typer.Typer()
    command.command()(main)
    return CliRunner().invoke(command, [*words, "--quiet"])


def check_wrong_options_of_a_study(main: Callable[..., None], folder: Path) -> None:
    """Assert that wrong options end a study with exit code 2 and without a traceback."""
    done = run_study(main, "--jobs", "0", "--out", str(folder / "page.md"))
    assert done.exit_code == 2
    assert "at least one process" in done.output
    done = run_study(main, "--data", str(folder / "nowhere"), "--store", str(folder), "--out", str(folder / "page.md"))
    assert done.exit_code == 2
    assert "Traceback" not in done.output
