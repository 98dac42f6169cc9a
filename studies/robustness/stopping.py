"""Check that the stopping rule meets its tolerance, by comparing runs with the pooled answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from deepca._util.typing import Array
from deepca.algorithms import DeEPCA
from deepca.operators.linalg import tan_theta
from deepca.reproduction.problems import DataSource
from deepca.solver.loop import solve
from deepca.solver.observers import Start, Step
from deepca.solver.result import Result
from deepca.solver.stopping import Tolerance
from studies.robustness.families import work_of
from studies.shared.problems import Arrangement, Graph, Problem, build_inputs, is_available, run_problems
from studies.shared.report import Assertion, Section, Setting, Study, Table
from studies.shared.store import Record
from studies.shared.synthetic import Synthetic

__all__ = ["STUDY", "Outcome", "Task", "judge", "study", "work"]

_GRAPHS: tuple[Graph, ...] = ("erdos-renyi", "ring", "torus", "star")
_MAX_ITER = 400_000  # more than any problem here needs


@dataclass(frozen=True)
class Task:
    """One run in which only the tolerance is chosen."""

    problem: Problem
    tol: float

    @property
    def cost(self) -> float:
        """Relative duration."""
        return work_of(self.problem) * (1.0 - math.log10(self.tol)) / 9.0


@dataclass(frozen=True)
class Outcome:
    """Claims of a run, and the truth.

    Parameters
    ----------
    code : str
        Status code.
    iterations : int
        Number of iterations.
    oracle : int or None
        Iterations after which the worst agent stayed within the tolerance; None if it did not.
    error : float
        tan θ of the worst agent at the end.
    bound : float or None
        Bound of the certificate; None if infinite.
    rounds, certificate_rounds : int
        Rounds of the iterations and of the certificates.
    smaller_k, larger_k : int or None
        Numbers of components that the certificate names as well defined.
    """

    code: str
    iterations: int
    oracle: int | None
    error: float
    bound: float | None
    rounds: int
    certificate_rounds: int
    smaller_k: int | None
    larger_k: int | None


class _Oracle:
    """Observer that records the first iteration from which the worst agent stays within the tolerance."""

    def __init__(self, U: Array, tol: float, every: int) -> None:
        self._U, self._tol, self._every = U, tol, every
        self.reached: int | None = None

    def begin(self, start: Start) -> None:
        """Reset the record."""
        self.reached = None

    def observe(self, step: Step) -> None:
        """Update the record."""
        if step.after.t % self._every:
            return
        if float(tan_theta(self._U, step.after.W).max()) > self._tol:
            self.reached = None
        elif self.reached is None:
            self.reached = step.after.t

    def end(self, result: Result[Any]) -> None:
        """Do nothing."""


def work(source: DataSource, task: Task) -> Record:
    """Solve the problem and compare with the pooled answer."""
    problem = task.problem
    A, W0, network, truth, U = build_inputs(problem, source)
    gap = 1.0 - float(truth.values[problem.k] / truth.values[problem.k - 1])
    oracle = _Oracle(U, task.tol, 1 if gap > 5e-3 else 5)
    result = solve(DeEPCA(A, W0, network), max_iter=_MAX_ITER, stop=Tolerance(task.tol), observers=[oracle])
    certificate = result.certificate
    if certificate is None:
        raise RuntimeError(f"no certificate for {task}")
    taken, bound = certificate.traffic, certificate.worst_angle
    return asdict(
        Outcome(
            result.status.code,
            result.iterations,
            oracle.reached,
            float(max(tan_theta(U, result.W).max(), tan_theta(U, result.components).max())),
            bound if math.isfinite(bound) else None,
            result.traffic.rounds,
            taken.rounds + taken.control_rounds,
            certificate.smaller_k,
            certificate.larger_k,
        )
    )


def study(setting: Setting) -> Section:
    """Run whatever is not stored, and judge the outcomes."""
    suite = {name: tasks for name, tasks in _suite(setting.reduced).items() if _available(tasks, setting.source)}
    special = {**_without_gap(), **_below_rounding()}
    every = [task for tasks in (*suite.values(), *special.values()) for task in tasks]
    records = run_problems(every, work, setting)
    found = {name: [(task, Outcome(**records[task])) for task in tasks] for name, tasks in {**suite, **special}.items()}
    return judge({name: found[name] for name in suite}, {name: found[name] for name in special}, setting.reduced)


STUDY = Study("stopping", study)


def _available(tasks: Sequence[Task], source: DataSource) -> bool:
    return all(is_available(task.problem, source) for task in tasks)


def _suite(reduced: bool) -> dict[str, list[Task]]:
    """Return the problems with a unique subspace, by name."""
    tolerances: tuple[float, ...] = (1e-3, 1e-6, 1e-9)
    suite: dict[str, list[Task]] = {}
    for gap, draws, size in (
        (0.5, 6, 30),
        (0.2, 5, 30),
        (0.1, 4, 30),
        (0.03, 3, 30),
        (0.01, 2, 20),
        (1e-3, 1, 12),
        (1e-4, 1, 10),
    ):
        if reduced and gap < 0.02:
            continue
        agents, wanted = (20, tolerances) if size == 30 else (10, tolerances if gap >= 0.01 else (1e-3, 1e-6))
        if gap < 5e-4:
            wanted = (1e-3,)
        suite[f"gap {gap:g}"] = [
            Task(
                Problem(Synthetic(size, gap=gap, heterogeneity=0.8), 4 if size == 30 else 3, agents, graph, draw=i), tol
            )
            for graph in _GRAPHS
            for i in range(1 if reduced else draws)
            for tol in wanted
        ]
    arrangements: tuple[tuple[Arrangement, str], ...] = (
        ("file", ""),
        ("label", ", by label"),
        ("one-holds-most", ", one agent holds most rows"),
    )
    for arrangement, suffix in arrangements[: 2 if reduced else 3]:
        suite[f"digits{suffix}"] = [
            Task(Problem("digits", 5, 20, graph, arrangement, draw=i), tol)
            for graph in (_GRAPHS[:2] if reduced else _GRAPHS)
            for i in range(1 if reduced else 2)
            for tol in (tolerances[1:2] if reduced else tolerances)
        ]
    if not reduced:
        real: dict[Literal["a9a", "w8a"], tuple[Graph, ...]] = {"a9a": _GRAPHS, "w8a": _GRAPHS[:1]}
        for data, graphs in real.items():
            suite[data] = [
                Task(Problem(data, 5, 50, graph, "file", draw=i), tol)
                for graph in graphs
                for i in range(2 if graph == "erdos-renyi" else 1)
                for tol in tolerances
            ]
    return suite


def _without_gap() -> dict[str, list[Task]]:
    """Return problems with λ_4 = λ_5: there is no unique answer for k = 4, but there is for k = 3 and k = 5."""
    return {
        "no gap after k = 4": [
            Task(Problem(Synthetic(30, gap=0.0, heterogeneity=0.8), 4, 20, graph, draw=i), tol)
            for graph in _GRAPHS
            for i, tol in enumerate((1e-3, 1e-6, 1e-9))
        ]
    }


def _below_rounding() -> dict[str, list[Task]]:
    return {
        "tolerance 1e-16": [
            Task(Problem(Synthetic(30, gap=gap, heterogeneity=0.8), 4, 20, graph), 1e-16)
            for graph in _GRAPHS
            for gap in (0.5, 0.1)
        ]
    }


Runs = list[tuple[Task, Outcome]]


def judge(suite: dict[str, Runs], special: dict[str, Runs], reduced: bool) -> Section:
    """Judge the outcomes and return the section of the page."""
    runs = [entry for group in suite.values() for entry in group]
    ratios = np.array([outcome.error / task.tol for task, outcome in runs])
    within = float(np.mean(ratios <= 1.0))
    extra = np.array([outcome.iterations / (outcome.oracle or outcome.iterations) for _, outcome in runs])
    bounds = [(outcome.bound, outcome.error) for _, outcome in runs if outcome.bound is not None]
    safe = sum(error <= bound for bound, error in bounds)
    converged = sum(outcome.code == "converged" for _, outcome in runs)
    none = [outcome for _, outcome in special["no gap after k = 4"]]
    named = sum(o.code == "not_unique" and o.smaller_k == 3 and o.larger_k == 5 for o in none)
    floor = [outcome for _, outcome in special["tolerance 1e-16"]]
    at_floor = sum(outcome.code == "rounding_floor" for outcome in floor)
    worst_floor = max(outcome.error for outcome in floor)
    assertions = [
        Assertion(
            "Every run of the suite ends with the status “converged”.",
            f"{converged} of {len(runs)}",
            converged == len(runs),
        ),
        Assertion(
            "The true error is at most the tolerance in 99 % of the runs.", f"{100 * within:.1f} %", within >= 0.99
        ),
        Assertion(
            "The true error never exceeds ten times the tolerance.",
            f"at most {ratios.max():.2g} ×",
            bool(ratios.max() <= 10),
        ),
        Assertion(
            "Iterations are at most 1.25 × those of an oracle that knows the answer, in the median.",
            f"{np.median(extra):.3f} × (largest {extra.max():.2f} ×)",
            bool(np.median(extra) <= 1.25),
        ),
        Assertion(
            "The certificate's bound is never below the true error.", f"{safe} of {len(bounds)}", safe == len(bounds)
        ),
        Assertion(
            "Without a gap, the status is “not unique” and names k = 3 and k = 5 as well defined.",
            f"{named} of {len(none)}",
            named == len(none),
        ),
        Assertion(
            "Runs with a tolerance of 1e-16 end at the rounding floor and report it.",
            f"{at_floor} of {len(floor)}; largest error {worst_floor:.0e}",
            at_floor == len(floor) and worst_floor < 1e-12,
        ),
    ]
    if not reduced:
        assertions.insert(0, Assertion("The suite has at least 300 runs.", str(len(runs)), len(runs) >= 300))
    table = Table(
        "True error and iterations",
        ("problem", "runs", "error/tolerance, median", "largest", "iterations/oracle, median", "largest", "proof/run"),
        tuple(_row(name, group) for name, group in suite.items()),
        note="proof/run: rounds of the certificates, as a fraction of those of the iterations (median).",
        heads=1,
    )
    return Section("Stopping", _TEXT, tuple(assertions), (table,))


def _row(name: str, group: Runs) -> tuple[str, ...]:
    ratio = np.array([outcome.error / task.tol for task, outcome in group])
    extra = np.array([outcome.iterations / (outcome.oracle or outcome.iterations) for _, outcome in group])
    proof = np.array([outcome.certificate_rounds / outcome.rounds for _, outcome in group])
    return (
        name,
        str(len(group)),
        f"{np.median(ratio):.2g}",
        f"{ratio.max():.2g}",
        f"{np.median(extra):.3f}",
        f"{extra.max():.2f}",
        f"{np.median(proof):.2f}",
    )


_TEXT = """
`solve(DeEPCA(A, W0, network), stop=Tolerance(tol))`: rounds, orthonormalisation and stopping are left to the library.
The tolerance applies to the largest tan θ_k over all agents; the truth is the pooled answer computed by scipy. Graphs:
Erdős–Rényi, ring, torus and star; tolerances 1e-3, 1e-6 and 1e-9 (only 1e-3 at the smallest gap, where an iteration
reduces the error by a ten-thousandth).
"""
