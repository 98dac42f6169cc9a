"""The figure of two runs with faults is drawn, and its runs lose few iterations to the faults."""

from __future__ import annotations

from pathlib import Path

from deepca.decomposition.settings import Settings
from deepca.topology import ring
from studies.faults.schedules import Fault, Schedule
from studies.faults.timeline import draw, record


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "faults.png")
    assert (tmp_path / "faults.png").stat().st_size > 20_000


def test_a_killed_site_costs_at_most_one_checkpoint_interval() -> None:
    settings = Settings(3, algorithm="deepca", tol=1e-9, rounds=4)
    found = record("killed", Schedule(3, ring(6), settings, "wait", (Fault(1.6, "kill", (2,), 3.0),)))
    assert len(found.epochs) == 2
    assert set(found.ends) == set(range(6))
    for pieces in found.steps.values():
        before, after = pieces
        assert after[0][1] <= 1e3 * before[-1][1]  # only a few iterations are repeated
        assert after[-1][1] <= 1e-9
