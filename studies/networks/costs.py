"""How many iterations, rounds and messages the certified answer takes on networks of every kind."""

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

__all__ = ["NETWORKS", "STUDY", "Outcome", "Task", "judge", "study", "tasks_of", "work"]

Method = Literal["accelerated", "deepca"]
How = Literal["default", "gossip", "pairwise"]
TOLERANCE = 1e-10
_MOST_ITERATIONS = 5000
_METHODS: dict[Method, type[AcceleratedDeEPCA] | type[DeEPCA]] = {"accelerated": AcceleratedDeEPCA, "deepca": DeEPCA}


@dataclass(frozen=True)
class Kind:
    """A network by its name, and how agents average there."""

    group: str
    name: str
    how: How = "default"

    @property
    def label(self) -> str:
        return f"`{self.name}`" + {"default": "", "gossip": ", plain gossip", "pairwise": ", pairwise"}[self.how]


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
    """One run, to a certified tan θ of 1e-10."""

    problem: Problem
    kind: Kind
    method: Method

    @property
    def cost(self) -> float:
        slow = 4.0 if self.kind.group == "changes" else 1.0
        return slow * (2.0 if self.method == "deepca" else 1.0) * (5.0 if self.problem.data == "w8a" else 1.0)


@dataclass(frozen=True)
class Outcome:
    """Iterations; rounds of them, of agreement in between and of the proof; what an agent sends, proof included.

    error : tan θ to the pooled answer, at the worst agent.  proven : whether a certificate says that it is small.
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
    """The run, and how far from scipy's answer it ended."""
    problem, m = task.problem, task.problem.agents
    network = SimulatedNetwork(from_name(task.kind.name, m, seed=0))
    mixers: dict[How, Mixer | None] = {"default": None, "gossip": Gossip(), "pairwise": Pairwise()}
    A, W0 = operator_of(problem, source), start_of(problem, source)
    algorithm: Any = _METHODS[task.method](A, W0, network, mixers[task.kind.how])
    result = solve(algorithm, max_iter=_MOST_ITERATIONS, stop=Tolerance(TOLERANCE))
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
    """Run what is not stored, and judge."""
    tasks = [task for task in tasks_of(setting.reduced) if is_available(task.problem, setting.source)]
    records = run_problems(tasks, work, setting)
    return judge({task: Outcome(**records[task]) for task in tasks})


STUDY = Study("rounds and messages", study)


def tasks_of(reduced: bool) -> list[Task]:
    """Return the runs of the study, or of its reduced form."""
    sets: tuple[tuple[Real, int], ...] = (("digits", 20),) if reduced else (("digits", 20), ("a9a", 50), ("w8a", 50))
    problems = [Problem(data, 5, agents, arrangement="file") for data, agents in sets]
    return [Task(problem, kind, method) for problem in problems for method in _METHODS for kind in NETWORKS]


def judge(outcomes: dict[Task, Outcome]) -> Section:
    """Judge what the runs have found, and say it in a section of the page."""
    worst = max(outcomes.values(), key=lambda outcome: outcome.error)
    proven = sum(outcome.proven for outcome in outcomes.values())
    assertions = (
        Assertion(
            "Every run ends with a certificate of tan θ ≤ 1e-10.",
            f"{proven} of {len(outcomes)} runs",
            proven == len(outcomes),
        ),
        Assertion(
            "And is within 1e-10 of the eigenvectors that scipy finds for the pooled matrix, at its worst agent.",
            f"worst error {worst.error:.1e}",
            worst.error <= TOLERANCE,
        ),
        _few_iterations(outcomes),
    )
    tables = []
    for problem, method in dict.fromkeys((task.problem, task.method) for task in outcomes):
        rows = [
            (task.kind.group, task.kind.label, *_cells(outcome))
            for task, outcome in outcomes.items()
            if (task.problem, task.method) == (problem, method)
        ]
        name = "the accelerated method" if method == "accelerated" else "DeEPCA"
        title = f"{problem.data}, {problem.agents} agents, k = {problem.k}: {name}"
        tables.append(Table(title, _HEADER, tuple(rows), note="", heads=2))
    return Section("Rounds and messages", _TEXT, assertions, tuple(tables))


def _few_iterations(outcomes: dict[Task, Outcome]) -> Assertion:
    """DeEPCA's iterations are those of the power method, as long as rounds suffice."""
    most: dict[Method, tuple[float, Task]] = {}
    for task, outcome in outcomes.items():
        ratio = outcome.iterations / outcomes[Task(task.problem, NETWORKS[0], task.method)].iterations
        if task.method not in most or ratio > most[task.method][0]:
            most[task.method] = ratio, task
    said = {method: f"{ratio:.2f} × ({t.kind.label}, {t.problem.data})" for method, (ratio, t) in most.items()}
    return Assertion(
        "DeEPCA's iterations depend on the data: no network takes more than 1.5 × those of the first one.",
        f"at most {said['deepca']}. The accelerated method, which chooses its columns while it runs: up to "
        f"{said['accelerated']}",
        most["deepca"][0] <= 1.5,
    )


_HEADER = ("links", "network", "iterations", "rounds", "to agree", "proof", "messages", "MB", "tan θ")


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
The same rows and the same start, on networks that stay, whose messages go one way, that change from round to round,
and on which only two agents meet at a time. Every run chooses its rounds while it runs and ends when a certificate
proves tan θ ≤ 1e-10 at every agent. *Rounds* are those of the iterations; *to agree*, those made in between only to
agree on when to stop, where nothing could ride along; *proof*, those of the certificate, which averages over a tree
where links stay and by plain gossip where they change. *Messages* and *MB* are what one agent sends on average,
everything included. A round of pairwise gossip is m/2 meetings, in which every agent sends one message on average.

On networks that stay the mixers are accelerated (Chebyshev, FastMix); on the others only plain averages are sound.
The second row shows what that alone costs. With one peer at a time, and where agents pair up, many rounds are made
and few messages are sent: one per agent and round. A directed ring is to be avoided, as a ring is, but more so. Where
pairs meet, most messages are the short ones by which agents agree.
"""
