"""Plot two runs with faults against time: ``python -m studies.faults.timeline docs/figures/faults.png``.

The agents run the real protocol under a virtual clock, so that the figure is reproducible.
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
from studies.faults.schedules import Fault, Outcome, Schedule, SimulatedRun, rows_of

__all__ = ["Timeline", "draw", "record"]

_SITES = 6
_K = 3
_SETTINGS = Settings(_K, algorithm="deepca", tol=1e-9, rounds=4)


@dataclass
class Timeline:
    """What happened in a run, with virtual times.

    Parameters
    ----------
    title
        Title of the panel.
    schedule
        The run and its faults.
    steps
        Times and errors of each site's iterations, one list for each start of its agent.
    epochs
        Start and label of each epoch.
    ends
        When the iterations of each site ended.
    outcome
        Outcome of the run.
    """

    title: str
    schedule: Schedule
    steps: dict[int, list[list[tuple[float, float]]]] = field(default_factory=dict)
    epochs: list[tuple[float, str]] = field(default_factory=list)
    ends: dict[int, float] = field(default_factory=dict)
    outcome: Outcome | None = None


class _RecordedRun(SimulatedRun):
    timeline: Timeline
    exact: Array = np.empty(0)  # components of the pooled rows of the epoch's members

    def observers(self, site: int) -> tuple[Any, ...]:
        return (_Recorder(self, site),)

    def on_event(self, site: str, event: str, text: str, facts: Mapping[str, Any]) -> None:
        super().on_event(site, event, text, facts)
        known = len(self.timeline.epochs)
        if event == "epoch" and facts["epoch"] > known:
            names, resumed = facts["members"], facts["resumed_from"]
            count = len(names)
            pooled = np.vstack([self.rows[self.names.index(name)] for name in names])
            self.exact = np.linalg.svd(pooled - pooled.mean(axis=0), full_matrices=False)[2][:_K].T
            start = f"\nresumed from iteration {resumed}" if resumed >= 0 else ""
            self.timeline.epochs.append((self.clock.time, f"epoch {facts['epoch']}: {count} sites{start}"))


class _Recorder:
    def __init__(self, run: _RecordedRun, site: int) -> None:
        self._run, self._site = run, site

    def begin(self, start: Start) -> None:
        self._run.timeline.steps.setdefault(self._site, []).append([self._point(start.state)])

    def observe(self, step: Step) -> None:
        self._run.timeline.steps[self._site][-1].append(self._point(step.after))

    def _point(self, state: State) -> tuple[float, float]:
        return self._run.clock.time, float(tan_theta(self._run.exact, state.W))

    def end(self, result: Result[Any]) -> None:
        self._run.timeline.ends[self._site] = self._run.clock.time


def record(title: str, schedule: Schedule) -> Timeline:
    """Simulate a schedule and return the timeline of the run."""
    timeline = Timeline(title, schedule)
    timeline.outcome = Outcome(schedule)
    run = _RecordedRun(schedule, rows_of(schedule), timeline.outcome)
    run.timeline = timeline
    try:
        run.run()
    finally:
        run.clock.end()
    return timeline


def draw(path: Path) -> None:
    """Write a figure with a run that waits for its sites above one that continues without a lost site."""
    waiting = record(
        'on_loss = "wait": one site is killed and restarted after 3 s, another is frozen for 4 s',
        Schedule(
            3, ring(_SITES), _SETTINGS, "wait", (Fault(1.6, "kill", (2,), 3.0), Fault(6.0, "freeze", (4, 0), 4.0))
        ),
    )
    shrinking = record(
        'on_loss = "shrink", patience 2 s: the lost site is left out, and rejoins when it returns',
        Schedule(3, ring(_SITES), _SETTINGS, "shrink", (Fault(1.6, "kill", (2,), 5.0),), patience=2.0),
    )
    figure, panels = plt.subplots(2, 1, figsize=(10, 7.2), layout="constrained")
    for panel, timeline in zip(panels, (waiting, shrinking), strict=True):
        _panel(panel, timeline)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(panel: Axes, timeline: Timeline) -> None:
    colours = plt.get_cmap("tab10")
    for site, pieces in sorted(timeline.steps.items()):
        for number, piece in enumerate(pieces):
            times, errors = zip(*piece, strict=True)
            label = f"site {site}" if number == 0 else None
            panel.semilogy(times, errors, color=colours(site), lw=1.4, marker=".", ms=4, label=label)
        if site in timeline.ends:
            panel.plot([timeline.ends[site]], [pieces[-1][-1][1]], "o", color=colours(site), ms=6, mfc="white")
    panel.set_ylim(1e-12, 1e4)
    for fault in timeline.schedule.faults:
        site, at = fault.sites[0], 2.0 + fault.at
        panel.axvspan(at, at + fault.seconds, color=colours(site), alpha=0.12, lw=0)
        words = {"kill": "is down", "freeze": "is frozen"}[fault.kind]
        panel.annotate(f"site {site} {words}", (at + 0.06, 3e-12), color=colours(site), fontsize=9)
    for time, text in timeline.epochs:
        panel.axvline(time, color="0.6", lw=0.8, ls=":")
        panel.annotate(text, (time + 0.06, 3e3), color="0.35", fontsize=8, va="top")
    panel.axhline(timeline.schedule.settings.tol, color="0.5", lw=0.8, ls="--")
    panel.set_title(timeline.title, loc="left", fontsize=10)
    panel.set_xlabel("seconds (virtual)")
    panel.set_ylabel("tan θ to the exact answer")
    panel.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    panel.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
