"""The frame of the comparison of rounds and bytes: what is noted of a run, which K wins, what the page says."""

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
    Run,
    Scope,
    everything,
    longest,
    sample,
)
from studies.communication.figure import draw, shown
from studies.communication.report import assertions, sections
from studies.communication.results import Results, worth_running
from studies.communication.study import study
from studies.communication.work import Ended, Watch, algorithm_of, problem_of, work
from studies.shared.problems import operator_of, start_of, truth_of
from studies.shared.report import Setting, page
from studies.shared.store import Record, key, run
from tests.support.helpers import check_wrong_options_of_a_study, run_study

HERE = DataSource()  # what needs no folder
ER, W8A, A9A = Case("close", 3, "paper"), Case("w8a", 5, "paper"), Case("a9a", 5, "paper")


# ----------------------------------------------------------------------------------------------------- what is run


def test_all_that_is_asked_for_is_there() -> None:
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


def test_a_run_may_take_three_times_the_iterations_of_the_power_method() -> None:
    assert [longest(power, "DeEPCA") for power in (2, 100, 5000)] == [60, 350, 4000]
    assert [longest(power, "accelerated") for power in (2, 100, 5000)] == [200, 350, 4000]


def test_runs_have_keys_of_their_own_and_a_cost() -> None:
    runs = [
        Run(case.data, case.k, draw, method, case.graph, K, 100)
        for case in everything().cases
        for method, Ks in (("DeEPCA", LADDER), *((method, (0,)) for method in SENDING))
        for K in Ks
        for draw in range(2)
    ]
    assert len({key(task) for task in runs}) == len(runs)
    assert all(task.cost > 0.0 for task in runs)
    with pytest.raises(ValueError, match="no graph"):
        _ = Run("a9a", 5, 0, "CPCA").case


@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_synthetic_problem_has_close_eigenvalues_a_gap_and_a_tail(k: int) -> None:
    A, B = (operator_of(problem_of("close", k, draw), HERE).dense() for draw in (0, 7))
    assert (A == B).all()  # a draw is one of graph and W⁰
    values = scipy.linalg.eigvalsh(A.mean(axis=0))[::-1]
    assert A.shape == (50, 100, 100)
    assert 1.0 - values[k - 1] / values[0] <= 1e-3 + 1e-12
    np.testing.assert_allclose(values[k] / values[k - 1], 0.8, atol=1e-12)
    np.testing.assert_allclose(values[k + 1 :] / values[k:-1], 0.95, atol=1e-10)
    starts = [start_of(problem_of("close", k, draw), HERE) for draw in (0, 7)]
    assert np.abs(starts[0] - starts[1]).max() > 0.01


# ------------------------------------------------------------------------------------------------ what is noted of it

U = np.eye(4)[:, :1]


def _watched(tangents: Iterable[Sequence[float]], longest: int = 100, stride: int = 1) -> tuple[Outcome, int]:
    """The outcome of a run of agents with these tangents, and its iterations: each of 2 rounds, 1 control, 7 bytes."""
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


def test_limits_are_noted_with_control_rounds_and_bytes_per_agent() -> None:
    means = [1.0, 1e-3, 9e-7, 1e-8, 1e-11, *[1e-12] * 20]
    outcome, made = _watched([0.5 * mean, 1.5 * mean] for mean in means)
    assert outcome.marks == (Mark(3, 9, 21.0), Mark(5, 15, 35.0))
    assert outcome.ended == "reached"
    assert made == outcome.iterations == 10  # five more, in which it stays
    assert not outcome.failed
    assert outcome.worst == pytest.approx(1.5e-12)
    np.testing.assert_allclose(outcome.curve[1], (6, 14.0, 1e-3), rtol=1e-12)


def test_a_limit_that_is_left_again_was_not_reached() -> None:
    outcome, _ = _watched([mean] for mean in [1.0, 1e-7, 1e-3, 1e-7, 1e-11, 1e-9, 1e-11, *[1e-12] * 20])
    assert [mark and mark.iterations for mark in outcome.marks] == [4, 7]


def test_the_mean_over_agents_counts_not_the_best() -> None:
    outcome, _ = _watched([1e-12, 4e-6] for _ in range(200))
    assert outcome.marks == (None, None)
    assert outcome.failed
    assert outcome.lowest == pytest.approx(2e-6)


def test_a_run_that_no_longer_halves_is_ended() -> None:
    outcome, made = _watched(([0.9**t + 1e-7] for t in range(10_000)), longest=600)
    floor = next(t for t in range(10_000) if 0.9**t < 2e-8)
    assert outcome.ended == "stalled"
    assert floor < made < floor + 150 + 100
    assert outcome.marks[0] is not None  # 1e-6 was reached
    assert outcome.marks[1] is None
    assert outcome.failed


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_run_that_is_not_finite_has_failed(value: float) -> None:
    watch = Watch(U, 100)
    W = np.full((2, 4, 1), value)
    with pytest.raises(Ended):
        watch.observe(Step(State(0, W, W), State(1, W, W), Traffic(agents=2), 0.0, None))
    outcome = watch.outcome(with_curve=False)
    assert (outcome.ended, outcome.marks, outcome.worst, outcome.curve) == ("not finite", (None, None), None, ())


def test_a_run_records_what_a_trace_of_every_iteration_shows() -> None:
    """Two ways to the same rounds and bytes; the run looks at every third iteration only, while far away."""
    task = Run("close", 3, 1, "DeEPCA", "random-regular", 5, 500)
    problem = problem_of("close", 3, 1)
    network = SimulatedNetwork(graph_of("random-regular", 50, 1))
    trace = Trace(U=truth_of(problem, HERE).U(3))
    algorithm = DeEPCA(operator_of(problem, HERE), start_of(problem, HERE), network, FastMix(5))
    solve(algorithm, max_iter=140, observers=[trace], certify=False)
    outcome = Outcome.from_record(json.loads(json.dumps(work(HERE, task))))
    for limit, mark in zip(LIMITS, outcome.marks, strict=True):
        first = int(np.argmax(trace.tan_theta <= limit))
        assert mark == Mark(first + 1, trace.rounds[first], trace.bytes[first] / 50)
    assert outcome.curve == ()  # of the first draw alone


def test_every_method_is_what_it_is_called() -> None:
    problem = problem_of("close", 1, 0)
    A, W0 = operator_of(problem, HERE), start_of(problem, HERE)
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


# -------------------------------------------------------------------------------------------------- made-up results


def _outcome(rounds: float | None, *, per_round: float = 1e5, iterations: int = 10, lowest: float = 3e-4) -> Outcome:
    """Half of the rounds to the first limit, all of them to the second; None: neither."""
    if rounds is None:
        return Outcome((None, None), 90, lowest, 1e-3, "stalled")
    marks = [Mark(iterations // part, int(rounds) // part, per_round * rounds / part) for part in (2, 1)]
    curve = tuple((1 + t, per_round * (1 + t), 10.0**-t) for t in range(12))
    return Outcome(tuple(marks), iterations, 1e-12, 1e-12, "reached", curve)


Made = dict[tuple[Method, int], Sequence[Outcome]]


def _results(made: dict[Case, Made], power: int = 100) -> Results:
    """Of these outcomes; CPCA takes ``power`` iterations, pooled block Krylov 12."""
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


# --------------------------------------------------------------------------------------------------------- which K


def test_the_best_K_is_the_one_with_the_fewest_rounds_that_never_fails() -> None:
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


def test_where_every_K_fails_there_is_no_best() -> None:
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
        (3, (None, None), True),  # nothing works yet
        (3, (50.0, 100.0), False),  # 3 · 0.8 · 100 > 100
        (3, (50.0, 250.0), True),
        (3, (130.0, 100.0), True),  # the other limit could be won
        (40, (None, 100.0), True),
    ],
)
def test_a_K_is_left_out_only_where_it_cannot_win(K: int, best: tuple[float | None, float | None], runs: bool) -> None:
    power = dict(zip(LIMITS, (50.0, 100.0), strict=True))
    assert worth_running(K, power, dict(zip(LIMITS, best, strict=True))) is runs


def test_K_is_chosen_from_few_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K = 1 fails in every draw and is given up after five; K = 3 works, so that 5 and more cannot win."""
    made: list[Run] = []

    def fake(source: DataSource, task: Run) -> Record:
        made.append(task)
        if task.graph is None:
            return _record(_outcome(0, iterations=100))
        if task.method != "DeEPCA":
            return _record(_outcome(50))
        return _record(_outcome(None if task.K == 1 else 100 * task.K, iterations=100))

    monkeypatch.setattr("studies.communication.study.work", fake)
    told: list[tuple[float, float]] = []
    setting = Setting(HERE, tmp_path, jobs=1, progress=lambda done, total: told.append((done, total)))
    results = study(setting, Scope((ER,), draws=7))
    tried = [(task.K, task.draw) for task in made if task.method == "DeEPCA"]
    assert sorted(tried) == [(1, draw) for draw in range(5)] + [(3, draw) for draw in range(7)]
    assert results.best(ER, 1e-10) == 3
    assert len(results.group(ER, "DeEPCA", 1).outcomes) == 5
    assert all(task.longest == 350 for task in made if task.graph is not None)
    assert sum(task.method == "DePCA" for task in made) == 7
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)


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


def test_an_interrupted_study_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Run] = []

    def fake(stop_after: int, source: DataSource, task: Run) -> Record:
        if len(made) == stop_after:
            raise KeyboardInterrupt
        made.append(task)
        return _record(_outcome(50, iterations=50))

    scope, setting = Scope((ER,), draws=2), Setting(HERE, tmp_path, jobs=1)
    monkeypatch.setattr("studies.communication.study.work", partial(fake, 9))
    with pytest.raises(KeyboardInterrupt):
        study(setting, scope)
    monkeypatch.setattr("studies.communication.study.work", partial(fake, -1))
    results = study(setting, scope)
    assert len(made) == len(set(made)) == len(results.outcomes)  # nothing twice
    before = list(made)
    assert study(setting, scope).outcomes == results.outcomes
    assert made == before


def test_two_processes_find_what_one_does(tmp_path: Path) -> None:
    tasks = [Run("close", 1, draw, "block Krylov", "torus", longest=60) for draw in range(2)]
    one, two = (run(tasks, partial(work, HERE), tmp_path / str(jobs), jobs) for jobs in (1, 2))
    for alone, shared in zip(one.values(), two.values(), strict=True):
        assert (alone["marks"], alone["iterations"]) == (shared["marks"], shared["iterations"])
        # how BLAS rounds may depend on where arrays lie in memory
        one_curve, other_curve = (np.array(record["curve"] or np.zeros((0, 3))) for record in (alone, shared))
        np.testing.assert_allclose(one_curve, other_curve, rtol=1e-6, atol=1e-12)
        assert max(alone["worst"], shared["worst"]) < 1e-12


def test_data_sets_without_a_folder_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.communication.study.work", lambda _source, _task: _record(_outcome(50, iterations=50)))
    results = study(Setting(HERE, tmp_path, jobs=1), Scope((ER, A9A, W8A), draws=1))
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


def test_a_case_in_which_the_paper_fails_says_so() -> None:
    # one draw is fewer than two, but all there are
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
def test_the_assertions_can_fail(accelerated: list[Outcome], single: list[Outcome], holds: list[bool]) -> None:
    made: Made = {**FINE, ("accelerated", 0): accelerated, ("accelerated, float32", 0): single}
    judged = assertions(_results({W8A: made, A9A: made}))
    assert [assertion.holds for assertion in judged] == holds
    assert "1/7" in judged[1].statement
    assert "(aim 60)" in judged[2].statement


def test_assertions_about_what_was_not_run_are_left_out() -> None:
    assert len(assertions(_results({ER: FINE}))) == 1
    assert len(assertions(_results({A9A: FINE}))) == 2
    nothing = Results(Scope((ER,)), {})
    assert [assertion.holds for assertion in assertions(nothing)] == [False]


def test_every_row_is_as_long_as_its_header() -> None:
    cases = [W8A, A9A, ER, replace(ER, graph="ring"), replace(A9A, graph="torus", k=20)]
    for section in sections(_results(dict.fromkeys(cases, FINE)), None):
        for table in section.tables:
            assert {len(row) for row in table.rows} == {len(table.header)}, table.title


def test_the_figure_shows_the_first_draw(tmp_path: Path) -> None:
    assert shown(_results({ER: FINE, W8A: FINE})) == W8A
    assert shown(_results({ER: FINE, A9A: FINE})) == A9A
    assert shown(_results({ER: FINE})) == ER
    assert shown(_results({replace(ER, graph="ring"): FINE})) is None
    path = tmp_path / "new" / "figure.png"
    draw(_results({ER: FINE}), ER, path)
    assert path.read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------------ the command


@pytest.mark.parametrize(("rounds", "code"), [(30, 0), (None, 1)])
def test_the_exit_code_tells_whether_all_holds(
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


def test_wrong_options_are_one_line_and_code_2(tmp_path: Path) -> None:
    check_wrong_options_of_a_study(command.main, tmp_path)
