"""Test the network studies: runs, assertions, the page and its commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import deepca
from deepca.reproduction.problems import DataSource
from studies.networks import __main__ as command
from studies.networks import costs, losses
from studies.networks.usage import USAGE
from studies.shared.problems import Problem, operator_of, truth_of
from tests.support.helpers import check_wrong_options_of_a_study, run_cli, run_study
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "networks.md"
SMALL = Problem("digits", 3, 6, arrangement="file")
KINDS = (costs.NETWORKS[0], costs.Kind("changes", "one-peer"), costs.Kind("pairs meet", "ring", "pairwise"))
METHODS: tuple[costs.Method, ...] = ("accelerated", "deepca")
TASKS = [costs.Task(SMALL, kind, method) for kind in KINDS for method in METHODS]


def test_the_truth_matches_scipy() -> None:
    U = scipy.linalg.eigh(operator_of(SMALL, DataSource()).dense().mean(axis=0))[1][:, ::-1][:, :3]
    assert np.abs(np.abs(U.T @ truth_of(SMALL, DataSource()).U(3)) - np.eye(3)).max() < 1e-12


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.kind.name}-{task.method}")
def test_an_outcome_counts_everything_that_was_sent(task: costs.Task) -> None:
    found = costs.Outcome(**costs.work(DataSource(), task))
    assert found.proven
    assert found.error <= 1e-10
    assert found.iterations > 5
    assert found.rounds >= found.iterations
    assert (found.control_rounds > 0) == (task.kind.how == "pairwise")  # pairwise exchanges carry no control values
    everything = found.rounds + found.control_rounds + found.proof_rounds
    if task.kind.name == "one-peer":  # one message per agent and round
        assert found.messages == everything
    assert found.proof_rounds > 0


def test_losses_are_repaired_or_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MAX_ITER", 250)
    ended = losses.Outcome(**losses.work(DataSource(), losses.Task(1e-2, 100, 0)))
    assert ended.error_uncertified > 1e-6
    assert (ended.status, ended.proven, ended.restarts) == ("converged", True, 1)
    assert ended.error <= 1e-10
    lasting = losses.Outcome(**losses.work(DataSource(), losses.Task(1e-2, None, 0)))
    assert (lasting.status, lasting.proven) == ("averaging_failed", False)
    assert lasting.error > 1e-6


def test_assertions_can_fail() -> None:
    good = costs.Outcome(20, 100, 0, 30, 200.0, 1.0, 1e-12, True)
    outcomes = dict.fromkeys(TASKS, good)
    assert costs.judge(outcomes).holds
    wrongs = (replace(good, error=1e-9), replace(good, proven=False), replace(good, iterations=40))
    for i, wrong in enumerate(wrongs):
        section = costs.judge(outcomes | {TASKS[3]: wrong})
        assert [assertion.holds for assertion in section.assertions].count(False) == 1, i
    fine = losses.Outcome(1e-3, 1e-4, "disagreement", 1e-12, 1, "converged", True)
    made = {losses.Task(1e-3, until, seed): fine for until in (300, None) for seed in range(3)}
    assert losses.judge(made).holds
    for other in (replace(fine, error=1e-3), replace(fine, status="max_iter", proven=False)):
        assert not losses.judge(made | {losses.Task(1e-3, 300, 0): other}).holds
    assert not losses.judge(dict.fromkeys(made, replace(fine, error_uncertified=1e-12))).holds


def test_the_command_writes_the_page_and_stores_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "tasks_of", lambda reduced: TASKS)
    monkeypatch.setattr(losses, "LOSSES", (1e-2,))
    arguments = ("--reduced", "--jobs", "1", "--store", str(tmp_path / "runs"), "--out", str(tmp_path / "page.md"))
    done = run_study(command.main, *arguments)
    assert done.exit_code == 0, done.output
    first = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "6 of 6 assertions hold" in first
    assert USAGE.text.strip() in first
    assert "| time-varying | `one-peer` |" in first
    assert len(list((tmp_path / "runs").glob("*.json"))) == 6 + 2
    monkeypatch.setattr(costs, "work", lambda source, task: pytest.fail("a stored task was run again"))
    assert run_study(command.main, *arguments).exit_code == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == first


def test_invalid_options_exit_with_code_2(tmp_path: Path) -> None:
    check_wrong_options_of_a_study(command.main, tmp_path)


# ---------------------------------------------------------------------------------------------------------- the page


def test_the_published_page_is_complete() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert USAGE.text.strip() in page, "run make study-networks"
    [n_true, n_all] = map(int, re.findall(r"\*\*(\d+) of (\d+) assertions hold", page)[0])
    assert n_true == n_all == 6
    for data in ("digits", "a9a", "w8a"):
        for method in ("the accelerated method", "DeEPCA"):
            assert re.search(rf"### {data}, \d+ agents, k = 5: {method}", page)
    for kind in costs.NETWORKS:
        assert page.count(f"| {costs.LINKS[kind.group]} | {kind.label} |") == 6


def test_commands_on_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    pooled = PCA(5).fit(load_digits().data)
    for line in block.splitlines():
        arguments = shlex.split(line)[1:]
        files = [str(path) for path in sorted(tmp_path.glob("sites/*.csv"))]
        arguments = [word for each in arguments for word in (files if each == "sites/*.csv" else [each])]
        done = run_cli(*arguments)
        assert done.exit_code == 0, done.output
        if arguments[0] == "fit":
            found = deepca.load("model.npz")
            np.testing.assert_allclose(np.abs(found.components @ pooled.components_.T), np.eye(5), atol=1e-9)
    assert {path.name for path in tmp_path.glob("*.png")} == {"digraph.png", "matchings.png"}
