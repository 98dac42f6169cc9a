"""Compare automatic rounds with the best fixed K, known in hindsight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Literal

import numpy as np

from deepca._util.typing import Array
from deepca.algorithms import DeEPCA
from deepca.consensus.mixers import FastMix
from deepca.operators.linalg import tan_theta
from deepca.reproduction.problems import DataSource
from deepca.solver.loop import solve
from deepca.solver.observers import Start, Step
from deepca.solver.result import Result
from deepca.solver.stopping import Tolerance
from studies.robustness.convergence import centralised, decentralised, settle
from studies.robustness.families import work_of
from studies.shared.problems import Arrangement, Graph, Problem, build_inputs, is_available, run_problems
from studies.shared.report import Assertion, Section, Setting, Study, Table
from studies.shared.store import Record
from studies.shared.synthetic import Synthetic

__all__ = ["STUDY", "Outcome", "Task", "judge", "study", "work"]

_GRAPHS: tuple[Graph, ...] = ("erdos-renyi", "ring", "torus", "star")
_FIXED = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 50, 64, 80)
_ACCURACY = 1e-8
_PATIENCE = 3  # every run may take this many times the iterations of the power method, plus 100


@dataclass(frozen=True)
class Task:
    """One problem, solved with automatic rounds and with every fixed K that can still win."""

    problem: Problem

    @property
    def cost(self) -> float:
        """Relative duration."""
        return work_of(self.problem)


@dataclass(frozen=True)
class Outcome:
    """Rounds until the worst agent is within 1e-8 of the pooled answer; None if not within the limit.

    Parameters
    ----------
    power : int
        Iterations of the power method.
    best_rounds : int or None
        Best fixed K.
    best : int or None
        Total number of rounds with the best fixed K.
    iterations, auto : int or None
        Iterations and total number of rounds with automatic rounds.
    """

    power: int
    best_rounds: int | None
    best: int | None
    iterations: int | None
    auto: int | None

    @property
    def ratio(self) -> float:
        """Total automatic rounds over those of the best fixed K.

        It is infinite if automatic rounds fail, and 1 if only they succeed.
        """
        if self.auto is None:
            return float("inf")
        return self.auto / self.best if self.best is not None else 1.0


class _Reached:
    """Observer that records when the worst agent is within the accuracy for the first time."""

    def __init__(self, U: Array) -> None:
        self._U = U
        self.rounds: int | None = None
        self.iterations: int | None = None

    def begin(self, start: Start) -> None:
        """Do nothing."""

    def observe(self, step: Step) -> None:
        """Record the first iteration within the accuracy."""
        if self.rounds is None and float(tan_theta(self._U, step.after.W).max()) <= _ACCURACY:
            self.rounds, self.iterations = step.traffic.rounds, step.after.t

    def end(self, result: Result[Any]) -> None:
        """Do nothing."""


def work(source: DataSource, task: Task) -> Record:
    """Run automatic rounds first, then each fixed K for as long as it can still be the best."""
    problem = task.problem
    A, W0, network, _, U = build_inputs(problem, source)
    power = settle(centralised(A.mean(), W0, U), _ACCURACY, 1_000_000).iterations
    if power is None:
        raise RuntimeError(f"the power method does not reach {_ACCURACY:.0e} on {problem}")
    limit = _PATIENCE * power + 100
    reached = _Reached(U)
    solve(DeEPCA(A, W0, network), max_iter=limit, stop=Tolerance(1e-10), observers=[reached], certify=False)
    best: tuple[int, int] | None = None
    for K in _FIXED:
        if best is not None and 0.5 * K * power > best[0]:
            break  # K cannot win even with half of the iterations of the power method
        most = limit if best is None else min(limit, best[0] // K)
        errors = decentralised(DeEPCA(A, W0, network, FastMix(K)), U)
        count = _first_within(errors, most)
        if count is not None and (best is None or K * count < best[0]):
            best = K * count, K
    return asdict(
        Outcome(power, best[1] if best else None, best[0] if best else None, reached.iterations, reached.rounds)
    )


def _first_within(errors: Any, most: int) -> int | None:
    """Return the number of iterations to the accuracy, or None if it exceeds ``most``."""
    worse = sum(1 for _ in takewhile(lambda pair: pair[0] < most and pair[1] > _ACCURACY, enumerate(errors)))
    return worse + 1 if worse < most else None


def study(setting: Setting) -> Section:
    """Run whatever is not stored, and judge the outcomes."""
    groups = {
        name: tasks
        for name, tasks in _groups(setting.reduced).items()
        if all(is_available(task.problem, setting.source) for task in tasks)
    }
    records = run_problems([task for tasks in groups.values() for task in tasks], work, setting)
    return judge({name: [(t, Outcome(**records[t])) for t in tasks] for name, tasks in groups.items()})


STUDY = Study("rounds", study)


def _groups(reduced: bool) -> dict[str, list[Task]]:
    draws = 1 if reduced else 3
    graphs = _GRAPHS[:2] if reduced else _GRAPHS

    def synthetic(arrangement: Arrangement, heterogeneity: float, gap: float) -> Callable[[Graph, int], Problem]:
        wanted = Synthetic(30, gap=gap, heterogeneity=heterogeneity)
        return lambda graph, draw: Problem(wanted, 4, 20, graph, arrangement, draw=draw)

    def digits(arrangement: Arrangement) -> Callable[[Graph, int], Problem]:
        return lambda graph, draw: Problem("digits", 5, 20, graph, arrangement, draw=draw)

    kinds: dict[str, Callable[[Graph, int], Problem]] = {
        "agents alike, gap 0.1": synthetic("noise", 0.3, 0.1),
        "agents differ, gap 0.5": synthetic("noise", 0.9, 0.5),
        "agents differ, gap 0.1": synthetic("noise", 0.9, 0.1),
        "agents differ, gap 0.02": synthetic("noise", 0.9, 0.02),
        "indefinite A_j, ‖A_j‖ ≈ 3 λ₁": synthetic("indefinite", 2.0, 0.1),
        "indefinite A_j, ‖A_j‖ ≈ 11 λ₁": synthetic("indefinite", 10.0, 0.1),
        "opposite halves": synthetic("opposite", 0.98, 0.2),
        "digits, rows as in the file": digits("file"),
        "digits, rows sorted by label": digits("label"),
        "digits, one agent holds 90 %": digits("one-holds-most"),
    }
    if reduced:
        kinds = {name: kinds[name] for name in list(kinds)[1:3] + list(kinds)[6:]}
    groups = {
        name: [Task(make(graph, draw)) for graph in graphs for draw in range(draws)] for name, make in kinds.items()
    }
    if not reduced:
        orders: dict[Literal["a9a", "w8a"], tuple[Arrangement, ...]] = {
            "a9a": ("file", "label", "one-holds-most"),
            "w8a": ("file", "label"),
        }
        for data, arrangements in orders.items():
            for order in arrangements:
                groups[f"{data}, {order}"] = [
                    Task(Problem(data, 5, 50, graph, order, draw=draw))
                    for graph in (_GRAPHS if data == "a9a" else _GRAPHS[:1])
                    for draw in range(2 if graph == "erdos-renyi" else 1)
                ]
    return groups


def judge(groups: dict[str, list[tuple[Task, Outcome]]]) -> Section:
    """Judge the outcomes and return the section of the page."""
    runs = [outcome for group in groups.values() for _, outcome in group]
    ratios = np.array([outcome.ratio for outcome in runs])
    failed = int(np.count_nonzero(~np.isfinite(ratios)))
    assertions = (
        Assertion("Automatic rounds never fail.", f"{failed} of {len(runs)} fail", failed == 0),
        Assertion(
            "Automatic rounds take at most 1.3 × the rounds of the best fixed K, known in hindsight, in the median.",
            f"{np.median(ratios):.2f} ×",
            bool(np.median(ratios) <= 1.3),
        ),
        Assertion(
            "Automatic rounds take at most 2 × as many in the worst case.",
            f"{ratios.max():.2f} ×",
            bool(ratios.max() <= 2.0),
        ),
    )
    table = Table(
        "Rounds to 1e-8: ratio of automatic to best fixed K",
        ("problem", *_GRAPHS),
        tuple((name, *(_entry(group, graph) for graph in _GRAPHS)) for name, group in groups.items()),
        note="Each entry: the largest ratio over the draws, and in brackets the best fixed K (median). Below 1, "
        "adapting K beats every fixed K.",
        heads=1,
    )
    return Section("Automatic rounds", _TEXT, assertions, (table,))


def _entry(group: list[tuple[Task, Outcome]], graph: Graph) -> str:
    found = [outcome for task, outcome in group if task.problem.graph == graph]
    if not found:
        return "—"
    best = [outcome.best_rounds for outcome in found if outcome.best_rounds is not None]
    return f"{max(outcome.ratio for outcome in found):.2f} ({np.median(best):g})" if best else "—"


_TEXT = """
`rounds="auto"` starts from the graph and then adapts to what the agents observe, without knowing the answer. It is
compared with the fixed K that turns out to need the fewest rounds for the same problem: a choice that cannot be made in
advance. With the wrong K, the method fails or takes several times as long.
"""
