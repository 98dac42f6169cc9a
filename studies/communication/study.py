"""Run the comparison: the pooled baselines, DeEPCA at its smallest K and the other methods, then DeEPCA at larger K."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from studies.communication.cells import (
    LADDER,
    LIMITS,
    SENDING,
    Case,
    Data,
    Method,
    Outcome,
    Run,
    Scope,
    everything,
    longest,
    sample,
)
from studies.communication.results import Results
from studies.communication.work import problem_of, work
from studies.shared.problems import checksum_of, is_available
from studies.shared.report import Setting
from studies.shared.store import run

__all__ = ["study"]

_POOLED: tuple[Method, ...] = ("CPCA", "pooled block Krylov")
_PARALLEL_COST = 10_000.0  # below this total cost, starting processes takes longer than it saves
_TRIAL_DRAWS = 5  # a K that reaches no limit in these draws is abandoned


def study(setting: Setting, scope: Scope | None = None) -> Results:
    """Run whatever is not stored; data sets without a folder are left out."""
    scope = scope or (sample() if setting.reduced else everything())
    absent = {case.data for case in scope.cases if not is_available(problem_of(case.data, case.k, 0), setting.source)}
    scope = scope.without(*absent)
    results = _run_tasks(Results(scope, {}), _pooled(scope), setting, later=0.0)
    power = _power(results)
    others = [
        _run_of(case, draw, method, power)
        for case in scope.cases
        for method in SENDING
        for draw in scope.draws_of(case)
    ]
    for i, K in enumerate(LADDER):
        cases = results.open_at(K)
        first, rest = (
            [_run_of(case, draw, "DeEPCA", power, K) for case, draw in part] for part in _parts(scope, cases)
        )
        # about half of the cases are expected to need the next K as well
        later = 0.5 * sum(task.cost for task in (*first, *rest)) * (i < len(LADDER) - 1)
        results = _run_tasks(
            results, first + (others if i == 0 else []), setting, later + sum(task.cost for task in rest)
        )
        rest = [task for task in rest if not results.group(task.case, "DeEPCA", K).hopeless]
        results = _run_tasks(results, rest, setting, later)
    return results


def _parts(scope: Scope, cases: Sequence[Case]) -> tuple[list[tuple[Case, int]], list[tuple[Case, int]]]:
    """Split the draws of every case into the trial draws and the rest."""
    draws = [(case, draw) for case in cases for draw in scope.draws_of(case)]
    return [(case, draw) for case, draw in draws if draw < _TRIAL_DRAWS], [
        one for one in draws if one[1] >= _TRIAL_DRAWS
    ]


def _pooled(scope: Scope) -> list[Run]:
    wanted = {(case.data, case.k, draw): None for case in scope.cases for draw in scope.draws_of(case)}
    return [Run(data, k, draw, method) for data, k, draw in wanted for method in _POOLED]


def _power(results: Results) -> dict[tuple[Data, int, int], int]:
    """Return the power method's iterations to the smallest limit, by data set, k and draw."""
    last = LIMITS.index(min(LIMITS))
    found = {}
    for task, outcome in results.outcomes.items():
        if task.method == "CPCA" and (mark := outcome.marks[last]) is not None:
            found[task.data, task.k, task.draw] = mark.iterations
    return found


def _run_of(case: Case, draw: int, method: Method, power: dict[tuple[Data, int, int], int], K: int = 0) -> Run:
    return Run(case.data, case.k, draw, method, case.graph, K, longest(power[case.data, case.k, draw], method))


def _run_tasks(results: Results, tasks: Sequence[Run], setting: Setting, later: float) -> Results:
    """Run the tasks and add them to the results.

    ``later`` is the cost expected after them, for the estimate of the remaining time.
    """
    before = sum(task.cost for task in results.outcomes)
    short = sum(task.cost for task in tasks) < _PARALLEL_COST
    report_progress = setting.progress or (lambda _done, _total: None)
    records = run(
        tasks,
        partial(work, setting.source),
        setting.store,
        1 if short else setting.jobs,
        lambda done, total: report_progress(before + done, before + total + later),
        lambda task: checksum_of(problem_of(task.data, task.k, task.draw), setting.source),
    )
    return results.joined({task: Outcome.from_record(record) for task, record in records.items()})
