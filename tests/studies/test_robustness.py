"""Test the robustness studies: problems with the stated properties, stored runs, and the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from sklearn.datasets import load_digits

from deepca.errors import InvalidInput, NotFiniteError, ParameterError
from deepca.reproduction import problems as paper
from deepca.reproduction.problems import DataSource
from studies.robustness import __main__ as command
from studies.robustness import alignment
from studies.robustness.convergence import Settled, settle
from studies.robustness.families import families, few_rounds
from studies.shared.problems import (
    Arrangement,
    Problem,
    accuracy_of,
    checksum_of,
    is_available,
    operator_of,
    start_of,
    topology_of,
    truth_of,
)
from studies.shared.report import Assertion, Section, Setting, Study, Table, page
from studies.shared.store import Record, key, run
from studies.shared.synthetic import Synthetic, drop_for_condition
from tests.support.errors import raises
from tests.support.helpers import check_wrong_options_of_a_study, run_study
from tests.support.paths import SHARED
from tests.support.problems import close, pooled_answer, spectrum, spectrum_problem

DATA = SHARED
NO_FOLDER = DataSource()
needs_data = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not (DATA / "a9a.bz2").exists(), reason="needs a9a.bz2 and w8a.bz2 in ../shared/data"),
]


# ---------------------------------------------------------------------------------------------- synthetic problems


def _values(problem: Problem) -> Any:
    """Compute the eigenvalues of the mean with scipy, descending from λ_1 = 1."""
    return scipy.linalg.eigvalsh(operator_of(problem, NO_FOLDER).dense().mean(axis=0))[::-1]


DIVISIONS: tuple[Arrangement, ...] = ("noise", "indefinite", "opposite")


@pytest.mark.parametrize("arrangement", DIVISIONS)
@pytest.mark.parametrize("gap", [0.5, 0.2, 0.1, 0.03, 0.01, 1e-3, 1e-4])
def test_synthetic_means_have_the_stated_spectrum(arrangement: Arrangement, gap: float) -> None:
    values = _values(Problem(Synthetic(12, gap, inside=0.2, tail=0.3), 3, 7, arrangement=arrangement, draw=2))
    close(values[3] / values[2], 1.0 - gap, atol=1e-13)
    close(values[1:3] / values[:2], 0.8, atol=1e-13)
    close(values[4:] / values[3:-1], 0.7, atol=1e-12)
    close(values[0], 1.0, atol=1e-13)


@pytest.mark.parametrize("inside", [1e-3, 1e-6, 1e-12, 0.0])
def test_the_top_k_eigenvalues_can_be_close_or_equal(inside: float) -> None:
    values = _values(Problem(Synthetic(12, 0.3, inside=inside), 4, 6))
    close(1.0 - values[1:4] / values[:3], inside, atol=1e-14)
    close(values[4] / values[3], 0.7, atol=1e-13)


@pytest.mark.parametrize("condition", [1e4, 1e8, 1e12])
def test_the_top_k_eigenvalues_can_be_ill_conditioned(condition: float) -> None:
    problem = Problem(Synthetic(12, 0.5, inside=drop_for_condition(condition, 4)), 4, 6)
    values = _values(problem)
    close(values[3] * condition, 1.0, atol=1e-14 * condition)
    close(values[4] * condition, 0.5, atol=1e-14 * condition)
    assert accuracy_of(truth_of(problem, NO_FOLDER), 4) == pytest.approx(
        max(1e-8, 100 * 2.2e-16 * condition / 0.5), rel=0.1
    )


def test_small_gaps_alone_do_not_relax_the_accuracy() -> None:
    assert accuracy_of(truth_of(Problem(Synthetic(12, 1e-4), 4, 6), NO_FOLDER), 4) == 1e-8


@pytest.mark.parametrize("indefinite", [False, True])
def test_divisions_match_an_independent_implementation(indefinite: bool) -> None:
    """Compare with the generator of the test suite, which was written separately."""
    expected = spectrum_problem(12, 10, spectrum(10, 3, gap=0.3, decay=0.6), 5, 0.9, indefinite=indefinite)
    data = Synthetic(10, gap=0.82, inside=0.4, tail=0.4, heterogeneity=0.9)
    problem = Problem(data, 3, 12, arrangement="indefinite" if indefinite else "noise", data_seed=5)
    stack = operator_of(problem, NO_FOLDER).dense()
    close(stack, expected, atol=1e-14)
    smallest = np.linalg.eigvalsh(stack)[:, 0]
    assert (smallest < -1e-3).all() if indefinite else (smallest > -1e-14).all()


def test_opposite_halves_have_orthogonal_subspaces() -> None:
    problem = Problem(Synthetic(12, 0.3, heterogeneity=0.9), 3, 7, arrangement="opposite")
    stack = operator_of(problem, NO_FOLDER).dense()
    assert (np.linalg.eigvalsh(stack)[:, 0] > 0.0).all()
    tops = [pooled_answer(A, 3)[1] for A in stack]
    assert np.rad2deg(scipy.linalg.subspace_angles(tops[0], tops[-1])).min() > 89.9
    assert np.rad2deg(scipy.linalg.subspace_angles(tops[0], tops[2])).max() < 0.1


def test_the_truth_matches_scipy() -> None:
    problem = Problem(Synthetic(12, 0.3), 3, 6)
    truth = truth_of(problem, NO_FOLDER)
    values, U = pooled_answer(operator_of(problem, NO_FOLDER).dense(), 3)
    close(truth.values[:3], values, atol=1e-14)
    assert scipy.linalg.subspace_angles(truth.U(3), U).max() < 1e-12


def test_a_draw_changes_graph_start_and_data_unless_seeds_fix_them() -> None:
    problem = Problem(Synthetic(12, 0.3), 3, 12)

    def parts(of: Problem) -> tuple[Any, Any, Any]:
        return topology_of(of).gossip_matrix, start_of(of, NO_FOLDER), operator_of(of, NO_FOLDER).dense()

    for a, b in zip(parts(problem), parts(replace(problem, draw=1)), strict=True):
        assert np.abs(a - b).max() > 0.01
    kept = replace(problem, graph_seed=3, data_seed=7)
    same = [bool((a == b).all()) for a, b in zip(parts(kept), parts(replace(kept, draw=1)), strict=True)]
    assert same == [True, False, True]


@pytest.mark.parametrize("graph", ["erdos-renyi", "ring", "torus", "star"])
def test_graphs_have_the_requested_number_of_agents(graph: Any) -> None:
    assert topology_of(Problem("digits", 3, 12, graph, "file")).n_agents == 12


def test_invalid_problems_are_rejected() -> None:
    with raises(InvalidInput, parameter="arrangement", value="opposite"):
        Problem("digits", 3, 5, arrangement="opposite")
    with raises(InvalidInput, parameter="arrangement", value="label"):
        Problem(Synthetic(5, 0.1), 3, 5, arrangement="label")
    with raises(ParameterError, parameter="agents", value=1):
        Problem("digits", 3, 1, arrangement="file")
    with raises(ParameterError, parameter="k", value=0):
        Problem("digits", 0, 5, arrangement="file")
    with raises(ParameterError, parameter="gap", value=1.0):
        Synthetic(5, 1.0)
    with raises(ParameterError, parameter="heterogeneity", value=-0.5):
        Synthetic(5, 0.1, heterogeneity=-0.5)


# --------------------------------------------------------------------------------------------------- real problems


def test_digits_are_centred_and_complete_in_every_arrangement() -> None:
    X, labels = load_digits(return_X_y=True)
    X = X - X.mean(axis=0)
    arrangements: tuple[Arrangement, ...] = ("file", "label", "one-holds-most")
    stacks = {a: operator_of(Problem("digits", 3, 10, arrangement=a), NO_FOLDER).dense() for a in arrangements}
    for stack in stacks.values():
        close(stack.sum(axis=0), X.T @ X, atol=1e-8)
    ordered = X[np.argsort(labels, kind="stable")]
    close(stacks["label"][0], ordered[:179].T @ ordered[:179], atol=1e-8)
    most = X[: int(0.9 * len(X))]
    close(stacks["one-holds-most"][0], most.T @ most, atol=1e-8)
    shares = np.trace(stacks["one-holds-most"], axis1=1, axis2=2)[1:]
    assert shares.max() < 1.5 * shares.min()
    close(
        truth_of(Problem("digits", 3, 10, arrangement="label"), NO_FOLDER).values[0],
        np.linalg.norm(X, 2) ** 2 / 10,
        rtol=1e-12,
    )


def test_libsvm_sets_are_unavailable_without_a_folder() -> None:
    problem = Problem("a9a", 5, 50, arrangement="file")
    assert not is_available(problem, NO_FOLDER)
    assert is_available(problem, DataSource(DATA))
    assert is_available(Problem("digits", 5, 50, arrangement="file"), NO_FOLDER)
    assert checksum_of(Problem("digits", 5, 50, arrangement="file"), NO_FOLDER) == ""


@pytest.mark.parametrize("data", [pytest.param("a9a", marks=needs_data), pytest.param("w8a", marks=needs_data)])
def test_libsvm_sets_match_the_paper(data: Any, tmp_path: Path) -> None:
    source, rows = DataSource(DATA, tmp_path), {"a9a": 600, "w8a": 800}[data]
    for order in ("file", "label"):
        problem = Problem(data, 5, 50, arrangement=order)
        expected = paper.operator_of(source, data, 50, rows, order)
        close(operator_of(problem, source).dense(), expected.dense(), atol=1e-9)
        close(truth_of(problem, source).values[:6], paper.pooled_of(source, data, 50, rows).values[:6], rtol=1e-12)
    one = operator_of(Problem(data, 5, 50, arrangement="one-holds-most"), source)
    close(one.mean(), expected.mean(), atol=1e-9)
    assert len(checksum_of(problem, source)) == 8


# ------------------------------------------------------------------------------------------------------ convergence


def test_an_accuracy_counts_only_if_errors_stay_within_it() -> None:
    late = chain([1.0, 1e-9, 1.0, 1.0], repeat(1e-9))
    assert settle(late, 1e-8, 100) == Settled(5, 1e-9)
    assert next(late) == 1e-9
    lost = chain([1.0], repeat(1e-9, 19), repeat(0.5))
    assert settle(lost, 1e-8, 100) == Settled(None, 0.5)
    assert settle(chain(repeat(1.0, 99), repeat(1e-9)), 1e-8, 100) == Settled(100, 1e-9)
    assert settle(chain(repeat(1.0, 100), repeat(1e-9)), 1e-8, 100) == Settled(None, 1.0)


def test_a_run_with_non_finite_values_has_not_converged() -> None:
    def errors() -> Iterator[float]:
        yield 1e-9
        raise NotFiniteError("too large")

    assert settle(errors(), 1e-8, 100) == Settled(None, None)
    assert settle(repeat(np.inf), 1e-8, 30) == Settled(None, None)


# ------------------------------------------------------------------------------------------------------------ store


@dataclass(frozen=True)
class Square:
    """A task that computes a square."""

    of: int
    parts: tuple[int, ...] = (1, 2)

    @property
    def cost(self) -> float:
        return float(self.of)


@dataclass(frozen=True)
class Other(Square):
    """A different task with the same fields."""


def _square(task: Square) -> Record:
    return {"square": task.of**2, "nothing": None}


def test_tasks_have_unique_keys() -> None:
    tasks = [Square(1), Square(2), Square(1, (2, 1)), Other(1)]
    assert len({key(task) for task in tasks} | {key(Square(1), "another edition")}) == 5
    assert key(Square(1)) == key(Square(1))
    every = [task for family in (*families(), *few_rounds()) for task in alignment.tasks_of(family)]
    assert len({key(task) for task in every}) == len(set(every))


def test_finished_runs_are_stored(tmp_path: Path) -> None:
    tasks, reported = [Square(n) for n in (3, 1, 2)], list[tuple[float, float]]()
    made = run(tasks, _square, tmp_path, 1, lambda done, total: reported.append((done, total)))
    assert list(made.items()) == [(Square(n), {"square": n * n, "nothing": None}) for n in (3, 1, 2)]
    assert reported == [(0.0, 6.0), (3.0, 6.0), (5.0, 6.0), (6.0, 6.0)]
    assert run(tasks, _refuse, tmp_path, 1) == made
    with pytest.raises(_RunAgain):
        run(tasks, _refuse, tmp_path, 1, edition=lambda _task: "new")


class _RunAgain(Exception):
    """A task was run although its record is stored."""


def _refuse(*task: object) -> Record:
    raise _RunAgain(task)


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    made: list[int] = []

    def work(task: Square) -> Record:
        made.append(task.of)
        if len(made) == 3:
            raise KeyboardInterrupt
        return _square(task)

    tasks = [Square(n) for n in range(5)]
    with pytest.raises(KeyboardInterrupt):
        run(tasks, work, tmp_path, 1)
    assert made == [4, 3, 2]  # longest first
    assert len(run(tasks, work, tmp_path, 1)) == 5
    assert made == [4, 3, 2, 2, 1, 0]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"task": {}, "record": {"square": 9}}'])
def test_a_damaged_record_is_replaced(tmp_path: Path, damage: str) -> None:
    run([Square(3)], _square, tmp_path, 1)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["task"] == {"of": 3, "parts": [1, 2]}
    file.write_text(damage)
    assert run([Square(3)], _square, tmp_path, 1)[Square(3)]["square"] == 9
    assert json.loads(file.read_text())["record"] == {"square": 9, "nothing": None}


def test_two_processes_match_one(tmp_path: Path) -> None:
    problem = Problem(Synthetic(8, 0.5), 2, 4)
    tasks = [alignment.Task(problem, 3, "FastMix", name) for name in ("qr", "polar")]
    work = partial(alignment.work, NO_FOLDER)
    assert run(tasks, work, tmp_path / "two", 2) == run(tasks, work, tmp_path / "one", 1)


# -------------------------------------------------------------------------------------------------------- alignment


def test_sign_adjust_stalls_where_polar_converges() -> None:
    family = next(family for family in families() if family.name == "indefinite, few features")
    problem = replace(family.problem, draw=1)
    found = {
        name: alignment.Outcome(**alignment.work(NO_FOLDER, alignment.Task(problem, family.rounds, family.mixer, name)))
        for name in ("sign-adjust", "qr", "polar")
    }
    assert not found["sign-adjust"].converged
    assert found["qr"].converged
    assert found["polar"].ratio <= 1.1
    assert asdict(found["polar"])["accuracy"] == 1e-8


@pytest.mark.parametrize("draw", [pytest.param(4, marks=needs_data), pytest.param(5, marks=needs_data)])
def test_sign_adjust_fails_on_real_data_where_polar_converges(draw: int, tmp_path: Path) -> None:
    problem, source = Problem("a9a", 5, 50, arrangement="file", draw=draw), DataSource(DATA, tmp_path)
    expected: dict[alignment.Alignment, bool] = {"sign-adjust": False, "polar": True}
    for name, converges in expected.items():
        outcome = alignment.Outcome(**alignment.work(source, alignment.Task(problem, 1, "FastMix", name)))
        assert outcome.converged is converges


def _outcome(iterations: int | None) -> alignment.Outcome:
    return alignment.Outcome(iterations, 100, 1e-9 if iterations else None, 1e-9, 1e-8)


@pytest.mark.parametrize(
    ("default", "sign_adjust", "holds"),
    [
        ([100, 100, 150], [100, None, 100], [True, True, True, True]),
        ([100, 100, None], [100, None, 100], [False, True, True, True]),
        ([100, 111, 111], [100, None, 100], [True, True, False, False]),
        ([100, 100, 100], [100, 100, 100], [True, False, True, True]),
    ],
)
def test_assertions_can_fail(default: list[int | None], sign_adjust: list[int | None], holds: list[bool]) -> None:
    results: dict[Any, alignment.Outcomes] = {
        family: {
            "sign-adjust": [*map(_outcome, sign_adjust)],
            "qr": [_outcome(100)] * 3,
            "polar": [_outcome(100)] * 3,
            "default": [*map(_outcome, default)],
        }
        for family in (*families()[:2], *(family for family in families() if family.group == "close"))
    }
    assert [assertion.holds for assertion in alignment.judge(results, []).assertions] == holds


def test_families_have_enough_draws() -> None:
    with_data = [family for family in families() if family.problem.data in ("w8a", "a9a")]
    assert sum(len(family.draws) for family in families() if family not in with_data) >= 100
    assert {4, 5, 18, 20, 22} <= {draw for family in with_data for draw in family.draws if family.rounds == 1}
    assert {family.group for family in families(reduced=True)} == {family.group for family in families()}
    assert len({family.name for family in families()}) == len(families())


def test_the_reduced_study_holds_and_reuses_stored_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = alignment.study(Setting(NO_FOLDER, tmp_path, jobs=1, reduced=True))
    assert {assertion.statement: assertion.measured for assertion in section.assertions if not assertion.holds} == {}
    assert len(section.assertions) == 4
    assert "Not run, because no data folder was given: the families on a9a." in section.text
    assert all(len(row) == len(table.header) for table in section.tables for row in table.rows)
    monkeypatch.setattr(alignment, "work", _refuse)
    assert alignment.study(Setting(NO_FOLDER, tmp_path, jobs=1, reduced=True)) == section


# --------------------------------------------------------------------------------------------------------- the page


def _section(*holds: bool) -> Section:
    table = Table("Numbers", ("what", "how many"), (("|x|", "3"),), "A note.")
    return Section("Title", "Text.", tuple(Assertion(f"claim {i}", "1 of 2", h) for i, h in enumerate(holds)), (table,))


def test_the_page_shows_assertions_and_tables() -> None:
    text = page("Robustness", [_section(True, False)], "python -m something")
    assert "**1 of 2 assertions hold.**" in text
    assert "| claim 0 | 1 of 2 | ✔ yes |" in text
    assert "| claim 1 | 1 of 2 | ✘ no |" in text
    assert "### Numbers\n\n| what | how many |\n| --- | ---: |\n| \\|x\\| | 3 |\n\nA note." in text
    assert "python -m something" in text


@pytest.mark.parametrize(("holds", "code"), [((True, True), 0), ((True, False), 1)])
def test_the_exit_code_reports_failed_assertions(
    holds: tuple[bool, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "STUDIES", (Study("fake", lambda _setting: _section(*holds)),))
    out = tmp_path / "new" / "page.md"
    done = run_study(command.main, "--store", str(tmp_path), "--out", str(out), "--reduced")
    assert done.exit_code == code, done.output
    assert "python -m studies.robustness --reduced" in out.read_text()
    assert str(tmp_path) not in out.read_text()


def test_invalid_options_exit_with_code_2(tmp_path: Path) -> None:
    check_wrong_options_of_a_study(command.main, tmp_path)
