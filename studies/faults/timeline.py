"""A picture of two runs that are hurt: ``python -m studies.faults.timeline docs/figures/faults.png``.

Simulated agents under a virtual clock, with the protocol of real ones; so the picture is the same every time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from deepca._util.typing import Array
from deepca.algorithms.base import State
from deepca.decomposition.settings import Settings
from deepca.operators.linalg import tan_theta
from deepca.solver.observers import Start, Step
from deepca.solver.result import Result
from deepca.topology import ring
from studies.faults.schedules import Fault, Outcome, Play, Schedule, rows_of

__all__ = ["Course", "course", "draw"]

_SITES = 6
_K = 3
_SETTINGS = Settings(_K, algorithm="deepca", tol=1e-9, rounds=4)


@dataclass
class Course:
    """What happened in one run: error against time by site, in pieces from one start to the next, and epochs."""

    title: str
    schedule: Schedule
    steps: dict[int, list[list[tuple[float, float]]]] = field(default_factory=dict)
    epochs: list[tuple[float, str]] = field(default_factory=list)
    ends: dict[int, float] = field(default_factory=dict)
    outcome: Outcome | None = None


class _Watched(Play):
    course: Course
    exact: Array = np.empty(0)  # the answer for the members of the epoch

    def observers(self, site: int) -> tuple[Any, ...]:
        return (_Watcher(self, site),)

    def hear(self, site: str, event: str, text: str, facts: Mapping[str, Any]) -> None:
        super().hear(site, event, text, facts)
        known = len(self.course.epochs)
        if event == "epoch" and facts["epoch"] > known:
            names, resumed = facts["members"], facts["resumed_from"]
            count = len(names)
            pooled = np.vstack([self.rows[self.names.index(name)] for name in names])
            self.exact = np.linalg.svd(pooled - pooled.mean(axis=0), full_matrices=False)[2][:_K].T
            start = f"\nback to iteration {resumed}" if resumed >= 0 else ""
            self.course.epochs.append((self.clock.time, f"epoch {facts['epoch']}: {count} sites{start}"))


class _Watcher:
    def __init__(self, play: _Watched, site: int) -> None:
        self._play, self._site = play, site

    def begin(self, start: Start) -> None:
        self._play.course.steps.setdefault(self._site, []).append([self._point(start.state)])

    def observe(self, step: Step) -> None:
        self._play.course.steps[self._site][-1].append(self._point(step.after))

    def _point(self, state: State) -> tuple[float, float]:
        return self._play.clock.time, float(tan_theta(self._play.exact, state.W))

    def end(self, result: Result[Any]) -> None:
        self._play.course.ends[self._site] = self._play.clock.time


def course(title: str, schedule: Schedule) -> Course:
    """Play a schedule and keep what happened."""
    found = Course(title, schedule)
    found.outcome = Outcome(schedule)
    play = _Watched(schedule, rows_of(schedule), found.outcome)
    play.course = found
    try:
        play.run()
    finally:
        play.clock.end()
    return found


def draw(path: Path) -> None:
    """Both runs, one above the other."""
    waiting = course(
        'on_loss = "wait": one site is killed and started again after 3 s, another is frozen for 4 s',
        Schedule(
            3, ring(_SITES), _SETTINGS, "wait", (Fault(1.6, "kill", (2,), 3.0), Fault(6.0, "freeze", (4, 0), 4.0))
        ),
    )
    shrinking = course(
        'on_loss = "shrink", patience 2 s: the lost site is left out, and taken in again when it is back',
        Schedule(3, ring(_SITES), _SETTINGS, "shrink", (Fault(1.6, "kill", (2,), 5.0),), patience=2.0),
    )
    figure, panels = plt.subplots(2, 1, figsize=(10, 7.2), layout="constrained")
    for panel, found in zip(panels, (waiting, shrinking), strict=True):
        _panel(panel, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(panel: Axes, found: Course) -> None:
    colours = plt.get_cmap("tab10")
    for site, pieces in sorted(found.steps.items()):
        for number, piece in enumerate(pieces):
            times, errors = zip(*piece, strict=True)
            label = f"site {site}" if number == 0 else None
            panel.semilogy(times, errors, color=colours(site), lw=1.4, marker=".", ms=4, label=label)
        if site in found.ends:
            panel.plot([found.ends[site]], [pieces[-1][-1][1]], "o", color=colours(site), ms=6, mfc="white")
    panel.set_ylim(1e-12, 1e4)
    for fault in found.schedule.faults:
        site, at = fault.sites[0], 2.0 + fault.at
        panel.axvspan(at, at + fault.seconds, color=colours(site), alpha=0.12, lw=0)
        words = {"kill": "is gone", "freeze": "is frozen"}[fault.kind]
        panel.annotate(f"site {site} {words}", (at + 0.06, 3e-12), color=colours(site), fontsize=9)
    for time, text in found.epochs:
        panel.axvline(time, color="0.6", lw=0.8, ls=":")
        panel.annotate(text, (time + 0.06, 3e3), color="0.35", fontsize=8, va="top")
    panel.axhline(found.schedule.settings.tol, color="0.5", lw=0.8, ls="--")
    panel.set_title(found.title, loc="left", fontsize=10)
    panel.set_xlabel("seconds (virtual)")
    panel.set_ylabel("tan θ to the exact answer")
    panel.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    panel.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
