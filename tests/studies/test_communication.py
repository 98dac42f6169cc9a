"""Test the comparison of rounds and bytes: recording of runs, choice of K, and the page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from deepca.algorithms import DeEPCA
from deepca.algorithms.base import State
from deepca.consensus.mixers import FastMix
from deepca.network import SimulatedNetwork
from deepca.network.traffic import Traffic
from deepca.reproduction.problems import DataSource, graph_of
from deepca.solver.loop import solve
from deepca.solver.observers import Step, Trace
from studies.communication import __main__ as command
from studies.communication.cells import (
    LADDER,
    LIMITS,
    SENDING,
    Case,
    Mark,
    Method,
    Outcome,
    PooledRunError,
    Run,
    Scope,
    everything,
    longest,
    sample,
)
from studies.communication.figure import choose_case, draw
from studies.communication.report import assertions, sections
from studies.communication.results import Results, worth_running
from studies.communication.study import study
from studies.communication.work import Ended, Watch, algorithm_of, problem_of, work
from studies.shared.problems import operator_of, start_of, truth_of
from studies.shared.report import Setting, page
from studies.shared.store import Record, key, run
from tests.support.helpers import check_wrong_options_of_a_study, run_study

NO_FOLDER = DataSource()
ER, W8A, A9A = Case("close", 3, "paper"), Case("w8a", 5, "paper"), Case("a9a", 5, "paper")


# ------------------------------------------------------------------------------------------------------------ scope


def test_the_full_scope_has_every_case_and_draw() -> None:
    scope = everything()
    assert len(scope.cases) == len(set(scope.cases)) == 3 * 5 * 4
    assert {case.graph: len(scope.draws_of(case)) for case in scope.cases} == {
        "paper": 20,
        "ring": 5,
        "torus": 5,
        "random-regular": 5,
    }
    assert {case.data for case in scope.without("w8a", "a9a").cases} == {"close"}
    assert len(sample().draws_of(sample().cases[0])) == 2


def test_the_iteration_limit_grows_with_the_iterations_of_the_power_method() -> None:
    assert [longest(power, "DeEPCA") for power in (2, 100, 5000)] == [60, 350, 4000]
    assert [longest(power, "accelerated") for power in (2, 100, 5000)] == [200, 350, 4000]


def test_runs_have_unique_keys_and_a_cost() -> None:
    runs = [
        Run(case.data, case.k, draw, method, case.graph, K, 100)
        for case in everything().cases
        for method, Ks in (("DeEPCA", LADDER), *((method, (0,)) for method in SENDING))
        for K in Ks
        for draw in range(2)
    ]
    assert len({key(task) for task in runs}) == len(runs)
    assert all(task.cost > 0.0 for task in runs)
    with pytest.raises(PooledRunError):
        _ = Run("a9a", 5, 0, "CPCA").case


@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_synthetic_problem_has_close_eigenvalues_a_gap_and_a_tail(k: int) -> None:
    A, B = (operator_of(problem_of("close", k, draw), NO_FOLDER).dense() for draw in (0, 7))
    assert (A == B).all()  # a draw changes only the graph and W⁰
    values = scipy.linalg.eigvalsh(A.mean(axis=0))[::-1]
    assert A.shape == (50, 100, 100)
    assert 1.0 - values[k - 1] / values[0] <= 1e-3 + 1e-12
    np.testing.assert_allclose(values[k] / values[k - 1], 0.8, atol=1e-12)
    np.testing.assert_allclose(values[k + 1 :] / values[k:-1], 0.95, atol=1e-10)
    starts = [start_of(problem_of("close", k, draw), NO_FOLDER) for draw in (0, 7)]
    assert np.abs(starts[0] - starts[1]).max() > 0.01


# -------------------------------------------------------------------------------------------------------- recording

U = np.eye(4)[:, :1]


def _watched(tangents: Iterable[Sequence[float]], longest: int = 100, stride: int = 1) -> tuple[Outcome, int]:
    """Watch agents with these tangents; return the outcome and the number of iterations.

    Each iteration takes 2 rounds, 1 control round and 7 bytes per agent.
    """
    watch, t = Watch(U, longest, stride=stride), 0
    for t, row in enumerate(tangents, 1):
        angles = np.arctan(np.array(row))
        W = np.stack([np.cos(angles), np.sin(angles), 0 * angles, 0 * angles], axis=-1)[..., None]
        traffic = Traffic(rounds=2 * t, control_rounds=t, bytes_sent=7 * len(row) * t, agents=len(row))
        try:
            watch.observe(Step(State(t - 1, W, W), State(t, W, W), traffic, 0.0, None))
        except Ended:
            break
    return watch.outcome(with_curve=True), t


def test_marks_include_control_rounds_and_bytes_per_agent() -> None:
    means = [1.0, 1e-3, 9e-7, 1e-8, 1e-11, *[1e-12] * 20]
    outcome, made = _watched([0.5 * mean, 1.5 * mean] for mean in means)
    assert outcome.marks == (Mark(3, 9, 21.0), Mark(5, 15, 35.0))
    assert outcome.ended == "reached"
    assert made == outcome.iterations == 10  # five more, to confirm that it stays
    assert not outcome.failed
    assert outcome.worst == pytest.approx(1.5e-12)
    np.testing.assert_allclose(outcome.curve[1], (6, 14.0, 1e-3), rtol=1e-12)


def test_a_limit_that_is_exceeded_again_does_not_count_as_reached() -> None:
    outcome, _ = _watched([mean] for mean in [1.0, 1e-7, 1e-3, 1e-7, 1e-11, 1e-9, 1e-11, *[1e-12] * 20])
    assert [mark and mark.iterations for mark in outcome.marks] == [4, 7]


def test_limits_apply_to_the_mean_over_agents() -> None:
    outcome, _ = _watched([1e-12, 4e-6] for _ in range(200))
    assert outcome.marks == (None, None)
    assert outcome.failed
    assert outcome.lowest == pytest.approx(2e-6)


def test_a_stalled_run_is_ended() -> None:
    outcome, made = _watched(([0.9**t + 1e-7] for t in range(10_000)), longest=600)
    floor = next(t for t in range(10_000) if 0.9**t < 2e-8)
    assert outcome.ended == "stalled"
    assert floor < made < floor + 150 + 100
    assert outcome.marks[0] is not None  # 1e-6 was reached
    assert outcome.marks[1] is None
    assert outcome.failed


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_run_with_non_finite_values_has_failed(value: float) -> None:
    watch = Watch(U, 100)
    W = np.full((2, 4, 1), value)
    with pytest.raises(Ended):
        watch.observe(Step(State(0, W, W), State(1, W, W), Traffic(agents=2), 0.0, None))
    outcome = watch.outcome(with_curve=False)
    assert (outcome.ended, outcome.marks, outcome.worst, outcome.curve) == ("not finite", (None, None), None, ())


def test_marks_match_a_trace_of_every_iteration() -> None:
    """Compare with a full trace: far from a limit, the run measures only every third iteration."""
    task = Run("close", 3, 1, "DeEPCA", "random-regular", 5, 500)
    problem = problem_of("close", 3, 1)
    network = SimulatedNetwork(graph_of("random-regular", 50, 1))
    trace = Trace(U=truth_of(problem, NO_FOLDER).U(3))
    algorithm = DeEPCA(operator_of(problem, NO_FOLDER), start_of(problem, NO_FOLDER), network, FastMix(5))
    solve(algorithm, max_iter=140, observers=[trace], certify=False)
    outcome = Outcome.from_record(json.loads(json.dumps(work(NO_FOLDER, task))))
    for limit, mark in zip(LIMITS, outcome.marks, strict=True):
        first = int(np.argmax(trace.tan_theta <= limit))
        assert mark == Mark(first + 1, trace.rounds[first], trace.bytes[first] / 50)
    assert outcome.curve == ()  # recorded for the first draw only


def test_each_method_builds_the_algorithm_of_its_name() -> None:
    problem = problem_of("close", 1, 0)
    A, W0 = operator_of(problem, NO_FOLDER), start_of(problem, NO_FOLDER)
    methods: tuple[Method, ...] = ("DeEPCA", *SENDING)
    names = {m: algorithm_of(Run("close", 1, 0, m, "torus", 4), A, W0).name for m in methods}
    assert names == {
        "DeEPCA": "DeEPCA",
        "DePCA": "DePCA",
        "accelerated": "accelerated DeEPCA",
        "accelerated, float32": "accelerated DeEPCA",
        "covariance averaging": "covariance averaging",
        "block Krylov": "block Krylov",
    }
    growing = algorithm_of(Run("close", 1, 0, "DePCA", "torus"), A, W0).mix
    assert growing is not None
    assert [growing.rounds_at(t) for t in (0, 9, 10, 100)] == [3, 3, 4, 13]
    fixed = algorithm_of(Run("close", 1, 0, "DeEPCA", "torus", 4), A, W0).mix
    assert fixed == FastMix(4)
    for method in ("CPCA", "pooled block Krylov"):
        pooled = algorithm_of(Run("close", 1, 0, method), A, W0)
        np.testing.assert_allclose(pooled.A.dense(), A.dense().mean(axis=0), atol=1e-14)
        assert pooled.network.n_agents == 1


# ------------------------------------------------------------------------------------------------- artificial results


def _outcome(rounds: float | None, *, per_round: float = 1e5, iterations: int = 10, lowest: float = 3e-4) -> Outcome:
    """Make an outcome that reaches the first limit in half of the rounds, and the second in all; for None, neither."""
    if rounds is None:
        return Outcome((None, None), 90, lowest, 1e-3, "stalled")
    marks = [Mark(iterations // part, int(rounds) // part, per_round * rounds / part) for part in (2, 1)]
    curve = tuple((1 + t, per_round * (1 + t), 10.0**-t) for t in range(12))
    return Outcome(tuple(marks), iterations, 1e-12, 1e-12, "reached", curve)


Made = dict[tuple[Method, int], Sequence[Outcome]]


def _results(made: dict[Case, Made], power: int = 100) -> Results:
    """Make results from outcomes, in which CPCA takes ``power`` iterations and pooled block Krylov 12."""
    outcomes = {}
    for case, groups in made.items():
        for (method, K), group in groups.items():
            for i, outcome in enumerate(group):
                outcomes[Run(case.data, case.k, i, method, case.graph, K, 100)] = outcome
        for i in range(2):
            outcomes[Run(case.data, case.k, i, "CPCA")] = _outcome(0, iterations=power)
            outcomes[Run(case.data, case.k, i, "pooled block Krylov")] = _outcome(0, iterations=12)
    return Results(Scope(tuple(made), draws=2), outcomes)


def _all(*rounds: float | None, **more: Any) -> list[Outcome]:
    return [_outcome(value, **more) for value in rounds]


FINE: Made = {
    ("DeEPCA", 1): _all(None, 90, lowest=2e-2),
    ("DeEPCA", 3): _all(300, 320),
    ("accelerated", 0): _all(40, 44),
    ("accelerated, float32", 0): _all(40, 44, per_round=4e4),
    ("covariance averaging", 0): _all(4, 4),
    ("block Krylov", 0): _all(48, 48),
    ("DePCA", 0): _all(None, None),
}


# ------------------------------------------------------------------------------------------------------ choice of K


def test_the_best_K_has_the_fewest_rounds_without_failures() -> None:
    results = _results({ER: {**FINE, ("DeEPCA", 5): _all(280, 500)}})
    assert [results.best(ER, limit) for limit in LIMITS] == [3, 3]
    paper = results.paper(ER, 1e-10)
    assert paper is not None
    assert (paper.median(1e-10, "rounds"), paper.median(1e-6, "rounds")) == (310.0, 155.0)
    # without the failure K = 1 would be the best
    better = _results({ER: {**FINE, ("DeEPCA", 1): _all(100, 90)}})
    assert better.best(ER, 1e-10) == 1


def test_the_best_K_may_differ_between_limits() -> None:
    fast = replace(_outcome(300), marks=(Mark(5, 50, 1.0), None))
    results = _results({ER: {**FINE, ("DeEPCA", 5): [fast, fast]}})
    assert [results.best(ER, limit) for limit in LIMITS] == [5, 3]


def test_there_is_no_best_K_if_every_K_fails() -> None:
    results = _results({ER: {("DeEPCA", 1): _all(None, None), ("DeEPCA", 3): _all(None, 100)}})
    assert results.best(ER, 1e-10) is None
    assert results.paper(ER, 1e-10) is None
    group = results.group(ER, "DeEPCA", 3)
    assert (group.failures(1e-10), group.hopeless, group.median(1e-10, "rounds")) == (1, False, 100.0)
    assert results.group(ER, "DeEPCA", 1).hopeless
    assert results.group(ER, "DeEPCA", 1).lowest == 3e-4


@pytest.mark.parametrize(
    ("K", "best", "runs"),
    [
        (3, (None, None), True),  # no K has worked yet
        (3, (50.0, 100.0), False),  # 3 · 0.8 · 100 > 100
        (3, (50.0, 250.0), True),
        (3, (130.0, 100.0), True),  # the other limit could be won
        (40, (None, 100.0), True),
    ],
)
def test_a_K_is_skipped_only_if_it_cannot_be_the_best(
    K: int, best: tuple[float | None, float | None], runs: bool
) -> None:
    power = dict(zip(LIMITS, (50.0, 100.0), strict=True))
    assert worth_running(K, power, dict(zip(LIMITS, best, strict=True))) is runs


def test_choosing_K_takes_few_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K = 1 fails and is abandoned after five draws; K = 3 works, so 5 and larger cannot win."""
    made: list[Run] = []

    def fake(source: DataSource, task: Run) -> Record:
        made.append(task)
        if task.graph is None:
            return _record(_outcome(0, iterations=100))
        if task.method != "DeEPCA":
            return _record(_outcome(50))
        return _record(_outcome(None if task.K == 1 else 100 * task.K, iterations=100))

    monkeypatch.setattr("studies.communication.study.work", fake)
    reported: list[tuple[float, float]] = []
    setting = Setting(NO_FOLDER, tmp_path, jobs=1, progress=lambda done, total: reported.append((done, total)))
    results = study(setting, Scope((ER,), draws=7))
    tried = [(task.K, task.draw) for task in made if task.method == "DeEPCA"]
    assert sorted(tried) == [(1, draw) for draw in range(5)] + [(3, draw) for draw in range(7)]
    assert results.best(ER, 1e-10) == 3
    assert len(results.group(ER, "DeEPCA", 1).outcomes) == 5
    assert all(task.longest == 350 for task in made if task.graph is not None)
    assert sum(task.method == "DePCA" for task in made) == 7
    assert reported[-1][0] == reported[-1][1]
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)


def _record(outcome: Outcome) -> Record:
    return {
        "marks": [None if m is None else vars(m) for m in outcome.marks],
        "iterations": outcome.iterations,
        "lowest": outcome.lowest,
        "worst": outcome.worst,
        "ended": outcome.ended,
        "curve": outcome.curve,
    }


# ------------------------------------------------------------------------------------------------------ resumability


def test_an_interrupted_study_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Run] = []

    def fake(stop_after: int, source: DataSource, task: Run) -> Record:
        if len(made) == stop_after:
            raise KeyboardInterrupt
        made.append(task)
        return _record(_outcome(50, iterations=50))

    scope, setting = Scope((ER,), draws=2), Setting(NO_FOLDER, tmp_path, jobs=1)
    monkeypatch.setattr("studies.communication.study.work", partial(fake, 9))
    with pytest.raises(KeyboardInterrupt):
        study(setting, scope)
    monkeypatch.setattr("studies.communication.study.work", partial(fake, -1))
    results = study(setting, scope)
    assert len(made) == len(set(made)) == len(results.outcomes)  # nothing is run twice
    before = list(made)
    assert study(setting, scope).outcomes == results.outcomes
    assert made == before


def test_two_processes_match_one(tmp_path: Path) -> None:
    tasks = [Run("close", 1, draw, "block Krylov", "torus", longest=60) for draw in range(2)]
    one, two = (run(tasks, partial(work, NO_FOLDER), tmp_path / str(jobs), jobs) for jobs in (1, 2))
    for alone, shared in zip(one.values(), two.values(), strict=True):
        assert (alone["marks"], alone["iterations"]) == (shared["marks"], shared["iterations"])
        # BLAS rounding may depend on the alignment of arrays in memory
        one_curve, other_curve = (np.array(record["curve"] or np.zeros((0, 3))) for record in (alone, shared))
        np.testing.assert_allclose(one_curve, other_curve, rtol=1e-6, atol=1e-12)
        assert max(alone["worst"], shared["worst"]) < 1e-12


def test_data_sets_without_a_folder_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.communication.study.work", lambda _source, _task: _record(_outcome(50, iterations=50)))
    results = study(Setting(NO_FOLDER, tmp_path, jobs=1), Scope((ER, A9A, W8A), draws=1))
    assert results.scope.cases == (ER,)
    assert {task.data for task in results.outcomes} == {"close"}


# --------------------------------------------------------------------------------------------------------- the page


def _page(results: Results) -> str:
    return page("Communication", sections(results, ("figures/f.png", results.scope.cases[0])), "make x")


def test_the_page_shows_medians_ratios_and_failures() -> None:
    text = _page(_results({W8A: FINE, A9A: FINE, replace(A9A, k=10): FINE}))
    assert text.startswith("# Communication\n\n**4 of 4 assertions hold.**")
    assert "![tan θ against rounds and against bytes](figures/f.png)" in text
    # summary: both data sets side by side
    assert (
        "| method | w8a, k = 5: rounds | ÷ | bytes per agent | ÷ | a9a, k = 5: rounds | ÷ | bytes per agent | ÷ |"
        in text
    )
    assert "| DeEPCA, best K | 310, K = 3 |  | 31 MB |  | 310, K = 3 |  | 31 MB |  |" in text
    assert "| accelerated | 42 | 7.38 | 4.2 MB | 7.38 | 42 | 7.38 | 4.2 MB | 7.38 |" in text
    assert "| accelerated, float32 messages | 42 | 7.38 | 1.68 MB | 18.5 |" in text
    assert "| DePCA, K growing | never: 3e-4 |  | – |  |" in text
    assert "| CPCA: iterations | 100 |  |  |  |" in text
    assert "| pooled block Krylov: products | 12 |" in text
    # tables of a data set, graph and limit
    assert "### a9a, Erdős–Rényi, to 1e-6" in text
    assert "| 10 | rounds | 155, K = 3 | 21 (÷ 7.38) |" in text
    assert "| 10 | bytes | 31 MB | 4.2 MB (÷ 7.38) | 1.68 MB (÷ 18.5) | 400 kB (÷ 77.5) |" in text
    # by K
    assert "| 5 | Erdős–Rényi | 90 (1 of 2 failed) | **310** |  |  |  |  |" in text
    assert "2 draws of graph and W⁰." in text


def test_the_page_reports_failures_of_the_paper_method() -> None:
    # K = 5 has a single draw, and it fails
    made = {**FINE, ("DeEPCA", 3): _all(None, None), ("DeEPCA", 5): _all(None), ("accelerated", 0): _all(40, None)}
    results = _results({W8A: made})
    text = _page(results)
    assert "fails: at best 1 of 2, K = 1" in text
    assert "40 [1 of 2 failed]" in text
    assert "| 5 | Erdős–Rényi | 90 (1 of 2 failed) | 2 of 2 failed: 3e-4 |" in text
    judged = assertions(results)
    assert [assertion.holds for assertion in judged] == [False, False, False]
    assert judged[0].measured == "1 of 2 runs fail (w8a, k = 5, Erdős–Rényi: 1); with float32 messages 0 of 2"


@pytest.mark.parametrize(
    ("accelerated", "single", "holds"),
    [
        (_all(40, 44), _all(40, 44, per_round=4e4), [True, True, True, True]),
        (_all(40, None), _all(40, 44, per_round=4e4), [False, False, False, True]),
        (_all(80, 80), _all(40, 44, per_round=4e4), [True, False, True, True]),
        (_all(111, 111), _all(40, 44, per_round=4e4), [True, False, False, True]),
        (_all(40, 44), _all(40, 44, per_round=1.3e5), [True, True, True, False]),
        (_all(40, 44), _all(None, 40, per_round=4e4), [True, True, True, False]),
    ],
)
def test_assertions_can_fail(accelerated: list[Outcome], single: list[Outcome], holds: list[bool]) -> None:
    made: Made = {**FINE, ("accelerated", 0): accelerated, ("accelerated, float32", 0): single}
    judged = assertions(_results({W8A: made, A9A: made}))
    assert [assertion.holds for assertion in judged] == holds
    assert "1/7" in judged[1].statement
    assert "(aim 60)" in judged[2].statement


def test_assertions_about_missing_cases_are_left_out() -> None:
    assert len(assertions(_results({ER: FINE}))) == 1
    assert len(assertions(_results({A9A: FINE}))) == 2
    nothing = Results(Scope((ER,)), {})
    assert [assertion.holds for assertion in assertions(nothing)] == [False]


def test_rows_of_tables_match_their_header() -> None:
    cases = [W8A, A9A, ER, replace(ER, graph="ring"), replace(A9A, graph="torus", k=20)]
    for section in sections(_results(dict.fromkeys(cases, FINE)), None):
        for table in section.tables:
            assert {len(row) for row in table.rows} == {len(table.header)}, table.title


def test_the_figure_shows_the_preferred_case(tmp_path: Path) -> None:
    assert choose_case(_results({ER: FINE, W8A: FINE})) == W8A
    assert choose_case(_results({ER: FINE, A9A: FINE})) == A9A
    assert choose_case(_results({ER: FINE})) == ER
    assert choose_case(_results({replace(ER, graph="ring"): FINE})) is None
    path = tmp_path / "new" / "figure.png"
    draw(_results({ER: FINE}), ER, path)
    assert path.read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------------ the command


@pytest.mark.parametrize(("rounds", "code"), [(30, 0), (None, 1)])
def test_the_exit_code_reports_failed_assertions(
    rounds: float | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Made = {**FINE, ("accelerated", 0): _all(30, rounds)}
    monkeypatch.setattr(command, "study", lambda _setting: _results({ER: made}))
    out = tmp_path / "new" / "page.md"
    done = run_study(command.main, "--store", str(tmp_path), "--out", str(out), "--reduced")
    assert done.exit_code == code, done.output
    text = out.read_text()
    assert "python -m studies.communication --reduced" in text
    assert str(tmp_path) not in text
    assert (out.parent / "figures" / "communication.png").exists()


def test_invalid_options_exit_with_code_2(tmp_path: Path) -> None:
    check_wrong_options_of_a_study(command.main, tmp_path)
