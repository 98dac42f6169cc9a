"""Count the iterations, rounds and messages of a certified answer on networks of every kind."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from deepca.algorithms import AcceleratedDeEPCA, DeEPCA
from deepca.consensus.mixers import Gossip, Mixer
from deepca.consensus.pairwise import Pairwise
from deepca.network import SimulatedNetwork
from deepca.operators.linalg import tan_theta
from deepca.reproduction.problems import DataSource
from deepca.solver.loop import solve
from deepca.solver.stopping import Tolerance
from deepca.topology.names import from_name
from studies.shared.problems import (
    Problem,
    Real,
    is_available,
    operator_of,
    run_problems,
    start_of,
    truth_of,
)
from studies.shared.report import Assertion, Section, Setting, Study, Table
from studies.shared.store import Record

__all__ = ["LINKS", "NETWORKS", "STUDY", "Outcome", "Task", "judge", "study", "tasks_of", "work"]

Method = Literal["accelerated", "deepca"]
How = Literal["default", "gossip", "pairwise"]
TOLERANCE = 1e-10
_MAX_ITER = 5000
_METHODS: dict[Method, type[AcceleratedDeEPCA] | type[DeEPCA]] = {"accelerated": AcceleratedDeEPCA, "deepca": DeEPCA}


@dataclass(frozen=True)
class Kind:
    """A named network, and how agents average over it."""

    group: str
    name: str
    how: How = "default"

    @property
    def label(self) -> str:
        """Name shown in tables."""
        return f"`{self.name}`" + {"default": "", "gossip": ", plain gossip", "pairwise": ", pairwise"}[self.how]


LINKS = {"stays": "static", "directed": "directed", "changes": "time-varying", "pairs meet": "pairwise"}
"""Groups of networks as shown in tables; the keys are part of stored runs."""
NETWORKS = (
    Kind("stays", "erdos-renyi:0.5"),
    Kind("stays", "erdos-renyi:0.5", "gossip"),
    Kind("stays", "torus"),
    Kind("stays", "ring"),
    Kind("directed", "random-digraph:0.3"),
    Kind("directed", "directed-exponential"),
    Kind("directed", "directed-ring"),
    Kind("changes", "one-peer"),
    Kind("changes", "failing:0.1:erdos-renyi:0.5"),
    Kind("changes", "failing:0.5:erdos-renyi:0.5"),
    Kind("changes", "periodic:torus+star"),
    Kind("changes", "matchings:erdos-renyi:0.5"),
    Kind("pairs meet", "erdos-renyi:0.5", "pairwise"),
    Kind("pairs meet", "torus", "pairwise"),
)


@dataclass(frozen=True)
class Task:
    """One run to a certified tan θ of 1e-10."""

    problem: Problem
    kind: Kind
    method: Method

    @property
    def cost(self) -> float:
        """Relative duration."""
        slow = 4.0 if self.kind.group == "changes" else 1.0
        return slow * (2.0 if self.method == "deepca" else 1.0) * (5.0 if self.problem.data == "w8a" else 1.0)


@dataclass(frozen=True)
class Outcome:
    """Cost of a run, and its error.

    Parameters
    ----------
    iterations : int
        Number of iterations.
    rounds, control_rounds, proof_rounds : int
        Rounds of the iterations, of agreement between them, and of the certificate.
    messages, megabytes : float
        Sent per agent on average, including the certificate.
    error : float
        tan θ to the pooled answer at the worst agent.
    proven : bool
        Whether a certificate proves the tolerance.
    """

    iterations: int
    rounds: int
    control_rounds: int
    proof_rounds: int
    messages: float
    megabytes: float
    error: float
    proven: bool


def work(source: DataSource, task: Task) -> Record:
    """Solve the problem and compare with scipy's answer."""
    problem, m = task.problem, task.problem.agents
    network = SimulatedNetwork(from_name(task.kind.name, m, seed=0))
    mixers: dict[How, Mixer | None] = {"default": None, "gossip": Gossip(), "pairwise": Pairwise()}
    A, W0 = operator_of(problem, source), start_of(problem, source)
    algorithm: Any = _METHODS[task.method](A, W0, network, mixers[task.kind.how])
    result = solve(algorithm, max_iter=_MAX_ITER, stop=Tolerance(TOLERANCE))
    sent, certificate = network.traffic, result.certificate
    error = float(tan_theta(truth_of(problem, source).U(problem.k), result.W).max())
    proof = sent - result.traffic
    return asdict(
        Outcome(
            result.iterations,
            result.traffic.rounds,
            result.traffic.control_rounds,
            proof.rounds + proof.control_rounds,
            sent.messages / m,
            sent.bytes_per_agent / 1e6,
            error,
            certificate is not None and certificate.proves(TOLERANCE),
        )
    )


def study(setting: Setting) -> Section:
    """Run whatever is not stored, and judge the outcomes."""
    tasks = [task for task in tasks_of(setting.reduced) if is_available(task.problem, setting.source)]
    records = run_problems(tasks, work, setting)
    return judge({task: Outcome(**records[task]) for task in tasks})


STUDY = Study("rounds and messages", study)


def tasks_of(reduced: bool) -> list[Task]:
    """Return the tasks of the study or of its reduced form."""
    sets: tuple[tuple[Real, int], ...] = (("digits", 20),) if reduced else (("digits", 20), ("a9a", 50), ("w8a", 50))
    problems = [Problem(data, 5, agents, arrangement="file") for data, agents in sets]
    return [Task(problem, kind, method) for problem in problems for method in _METHODS for kind in NETWORKS]


def judge(outcomes: dict[Task, Outcome]) -> Section:
    """Judge the outcomes and return the section of the page."""
    worst = max(outcomes.values(), key=lambda outcome: outcome.error)
    proven = sum(outcome.proven for outcome in outcomes.values())
    assertions = (
        Assertion(
            "Every run ends with a certificate of tan θ ≤ 1e-10.",
            f"{proven} of {len(outcomes)} runs",
            proven == len(outcomes),
        ),
        Assertion(
            "At the worst agent, every run is within 1e-10 of scipy's eigenvectors of the pooled matrix.",
            f"worst error {worst.error:.1e}",
            worst.error <= TOLERANCE,
        ),
        _few_iterations(outcomes),
    )
    tables = []
    for problem, method in dict.fromkeys((task.problem, task.method) for task in outcomes):
        rows = [
            (LINKS[task.kind.group], task.kind.label, *_cells(outcome))
            for task, outcome in outcomes.items()
            if (task.problem, task.method) == (problem, method)
        ]
        name = "the accelerated method" if method == "accelerated" else "DeEPCA"
        title = f"{problem.data}, {problem.agents} agents, k = {problem.k}: {name}"
        tables.append(Table(title, _HEADER, tuple(rows), note="", heads=2))
    return Section("Rounds and messages", _TEXT, assertions, tuple(tables))


def _few_iterations(outcomes: dict[Task, Outcome]) -> Assertion:
    """Assert that DeEPCA's iterations hardly depend on the network, given enough rounds."""
    most: dict[Method, tuple[float, Task]] = {}
    for task, outcome in outcomes.items():
        ratio = outcome.iterations / outcomes[Task(task.problem, NETWORKS[0], task.method)].iterations
        if task.method not in most or ratio > most[task.method][0]:
            most[task.method] = ratio, task
    texts = {method: f"{ratio:.2f} × ({t.kind.label}, {t.problem.data})" for method, (ratio, t) in most.items()}
    return Assertion(
        "DeEPCA's iterations depend on the data only: no network takes more than 1.5 × those of the first one.",
        f"at most {texts['deepca']}. The accelerated method, which adapts its number of columns: up to "
        f"{texts['accelerated']}",
        most["deepca"][0] <= 1.5,
    )


_HEADER = ("links", "network", "iterations", "rounds", "control", "proof", "messages", "MB", "tan θ")


def _cells(outcome: Outcome) -> tuple[str, ...]:
    return (
        f"{outcome.iterations}",
        f"{outcome.rounds:,}",
        f"{outcome.control_rounds:,}",
        f"{outcome.proof_rounds:,}",
        f"{outcome.messages:,.0f}",
        f"{outcome.megabytes:,.1f}" if outcome.megabytes < 100.0 else f"{outcome.megabytes:,.0f}",
        f"{outcome.error:.0e}",
    )


_TEXT = """
The same rows and the same start on static networks, on directed networks, on networks that change from round to round,
and with pairwise gossip, where only two agents exchange at a time. Every run chooses its number of rounds automatically
and ends when a certificate proves tan θ ≤ 1e-10 at every agent. *Rounds* counts those of the iterations; *control*,
additional rounds spent only on agreeing when to stop, where nothing could be piggybacked; *proof*, those of the
certificate, which averages over a tree where links are permanent and by plain gossip where they change. *Messages* and
*MB* are what one agent sends on average, including everything. A round of pairwise gossip consists of m/2 exchanges, in
which every agent sends one message on average.

On static networks the mixers are accelerated (Chebyshev, FastMix); on the others only plain averaging is sound. The
second row shows the cost of that alone. Networks with one peer at a time, and matchings, take many rounds but send few
messages: one per agent and round. Rings are slow, and directed rings even more so; avoid both. With pairwise gossip,
most messages are the short ones by which agents agree on when to stop.
"""
