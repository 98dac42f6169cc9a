"""Test that figures show all curves and runs that they are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import deepca
from deepca.errors import InvalidInput
from deepca.planning.simulation import SimulatedRun, Simulation
from deepca.plots import curves, network
from deepca.plots import simulation as simulation_plots
from deepca.plots.curves import Curve, convergence, style
from tests.support.errors import raises


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect the figures that are drawn."""
    drawn: list[Figure] = []

    class Kept(Figure):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            drawn.append(self)

    monkeypatch.setattr(curves, "Figure", Kept)
    monkeypatch.setattr(simulation_plots, "Figure", Kept)
    return drawn


def curve(i: int, length: int = 30) -> Curve:
    return Curve(f"method {i}", np.geomspace(1.0, 10.0 ** -(2 + i % 12), length), 3 * np.arange(1, length + 1))


@pytest.mark.parametrize("count", [0, 5, 28])
def test_every_curve_is_drawn(count: int, figures: list[Figure], tmp_path: Path) -> None:
    convergence([curve(i) for i in range(count)], tmp_path / "curves.png", title="all", ylabel="error")
    left, right = figures[0].axes
    for axes in (left, right):
        assert len(axes.lines) == count
        looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
        assert len(looks) == count
    legends = [left.get_legend(), *figures[0].legends]
    named = [text.get_text() for legend in legends if legend is not None for text in legend.get_texts()]
    assert named == [f"method {i}" for i in range(count)]


def test_curves_of_one_point_zeros_and_no_finite_value_are_visible(figures: list[Figure], tmp_path: Path) -> None:
    """A logarithmic axis would show none of them without special treatment."""
    steps = np.arange(1, 4)
    given = [
        curve(0),
        Curve("one", np.array([1e-3]), np.array([7])),
        Curve("zeros", np.zeros(3), steps),
        Curve("infinite", np.full(3, np.inf), steps),
        Curve("unknown", np.full(3, np.nan), steps),
        Curve("sends nothing", np.array([1.0, 0.1, 0.01]), np.zeros(3, dtype=np.int64)),
    ]
    convergence(given, tmp_path / "curves.svg", title="odd ones", ylabel="error")
    for axes in figures[0].axes:
        assert len(axes.lines) == len(given)
        low, high = axes.get_ylim()
        for line in axes.lines:
            x, y = (np.asarray(values, dtype=np.float64) for values in line.get_data())
            assert x.size == y.size > 0
            assert np.isfinite(y).all()
            assert ((low <= y) & (y <= high)).all()
            assert y.size > 1 or line.get_marker() == "o"


def run(i: int, seconds: float) -> SimulatedRun:
    course = tuple((seconds * t / 10, 10.0**-t) for t in range(11))
    parts = dict.fromkeys(("latency", "transmission", "losses", "compute", "stragglers"), seconds / 5)
    return SimulatedRun(f"method {i}", "converged", "", True, 1e-10, 10, 10, 0, 1e3, 0, seconds, parts, {}, (), course)


def test_every_trial_of_a_simulation_is_drawn(figures: list[Figure], tmp_path: Path) -> None:
    """There are more runs than colours; one takes no time, and one never converges."""
    runs = [run(i, 1.0 + i) for i in range(9)]
    runs.append(run(9, 0.0))
    runs.append(replace(run(10, 3.0), error=np.inf, certified=False, curve=((1.0, np.inf), (3.0, np.nan))))
    simulation = Simulation("ring:4", ("a", "b", "c", "d"), 4, 60, 5, 2, 1e-10, np.inf, tuple(runs), None, "")
    simulation_plots.draw(simulation, tmp_path / "runs.png")
    axes = figures[0].axes[0]
    named = [line for line in axes.lines if str(line.get_label()).startswith("method")]
    assert len(named) == len(runs)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for line in named:
        x, y = (np.asarray(values, dtype=np.float64) for values in line.get_data())
        assert ((left <= x) & (x <= right)).all()
        assert ((low <= y) & (y <= high)).all()
    assert len({(line.get_color(), line.get_linestyle()) for line in named}) == len(runs)


def test_the_first_28_curves_have_different_styles() -> None:
    assert len({(style(i)["color"], style(i)["linestyle"]) for i in range(28)}) == 28


def test_figures_that_cannot_be_drawn_are_rejected(tmp_path: Path) -> None:
    ring = deepca.topology.ring(3)
    with raises(InvalidInput, parameter="path", file=str(tmp_path / "a.pdf"), value=".pdf"):
        network.draw(ring, tmp_path / "a.pdf")
    with raises(InvalidInput, parameter="topology", value=(1001, 1001)):
        network.draw(deepca.topology.ring(1001), tmp_path / "a.png")
    simulation = Simulation("ring:3", ("a", "b", "c"), 3, 60, 5, 2, 1e-10, np.inf, (run(0, 0.0),), None, "")
    with raises(InvalidInput, parameter="path", file=str(tmp_path / "a"), value=""):
        simulation_plots.draw(simulation, tmp_path / "a")
    with raises(InvalidInput, parameter="simulation", file=str(tmp_path / "a.svg")):
        simulation_plots.draw(simulation, tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())
