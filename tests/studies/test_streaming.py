"""Run the reduced streaming study, and test its claims about tracking, exact answers and warm starts."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

from studies.shared.report import page
from studies.streaming.__main__ import REDUCED
from studies.streaming.drift import Drift
from studies.streaming.figure import draw
from studies.streaming.report import SAVING, sections
from studies.streaming.study import STEPS, Results, run
from tests.support.paths import ROOT
from tests.support.problems import close


@cache
def results() -> Results:
    return run(REDUCED)


def test_all_assertions_hold_on_the_reduced_study(tmp_path: Path) -> None:
    parts = sections(results(), None)
    judged = [assertion for part in parts for assertion in part.assertions]
    assert len(judged) >= 6
    assert all(assertion.holds for assertion in judged), page("Streaming", parts, "")
    draw(results(), tmp_path / "figures" / "streaming.png")
    assert (tmp_path / "figures" / "streaming.png").read_bytes().startswith(b"\x89PNG")


def test_the_tracking_error_is_bounded_and_more_iterations_reduce_the_lag() -> None:
    found, turning = results(), slice(REDUCED.begins, REDUCED.ends)
    errors = [found.tracked[steps].exact[turning] for steps in STEPS]
    assert all(error.max() < 0.3 for error in errors)
    assert errors[0].mean() > 2.0 * errors[1].mean() > 4.0 * errors[2].mean()
    lags = [found.tracked[steps].lag for steps in STEPS]
    assert lags[0] > lags[1] > lags[2] > found.recomputed.lag
    assert lags[0] - found.recomputed.lag < 5.0
    assert found.partial_fit.exact.max() < 1e-9
    assert found.partial_fit.lag == pytest.approx(found.recomputed.lag, abs=1e-6)
    rounds = [found.tracked[steps].rounds for steps in STEPS]
    assert rounds[0] < rounds[1] < rounds[2] < found.partial_fit.rounds


def test_a_warm_start_saves_rounds_where_iterations_are_many() -> None:
    calls = results().calls
    for algorithm, tol in SAVING:
        assert calls[algorithm, tol].warm < calls[algorithm, tol].cold
        assert calls[algorithm, tol].warm_rounds < calls[algorithm, tol].cold_rounds
    assert calls["deepca", 1e-4].warm < 0.75 * calls["deepca", 1e-4].cold
    for one in calls.values():
        assert one.warm <= 1.05 * one.cold


def test_the_stream_has_the_stated_properties() -> None:
    drift = Drift(d=12, agents=4, rows=20_000, begins=2, ends=30)
    for t in (0, 2, 10, 29, 40):
        axes = drift.axes(t)
        close(axes.T @ axes, np.eye(12), atol=1e-13)
        between = scipy.linalg.subspace_angles(axes[:, :3], drift.axes(0)[:, :3])
        close(between, np.full(3, drift.angle(t)), atol=1e-7)
        # the subspace of two batches ago has a lag of two batches
        if 4 <= t < 30:
            assert drift.lag(t, drift.axes(t - 2)[:, :3]) == pytest.approx(2.0, abs=1e-9)
    pooled = np.concatenate(drift.batch(10))
    close(pooled.T @ pooled / len(pooled), (drift.axes(10) * drift.eigenvalues) @ drift.axes(10).T, atol=0.1)
    own = [X.T @ X / len(X) for X in drift.batch(10)]
    assert np.linalg.norm(own[0] - own[1], 2) > 1.0  # agents are heterogeneous


def test_the_published_page_matches_the_report() -> None:
    """Only headings and snippets are compared, since the last digits of numbers may differ between machines."""
    published = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")
    made = page("Streaming", sections(results(), "figures/streaming.png"), "")
    heads = [line for line in made.splitlines() if line.startswith(("#", "```", "import", "pca", "| Assertion"))]
    assert heads
    shown = published.splitlines()
    assert [line for line in heads if line not in shown] == []
    assert "✘" not in published
    shown_help = subprocess.run(
        [sys.executable, "-m", "studies.streaming", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "--reduced" in shown_help
