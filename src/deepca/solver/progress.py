"""Observers that show progress with the remaining time, as a bar or as log lines; requires the ``cli`` extra (rich)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deepca._util.units import plural
from deepca.solver.observers import Start, Step
from deepca.solver.result import Result

__all__ = ["ProgressBar", "ProgressLines", "bars"]


_RUN_DETAILS = ("iteration {task.fields[iteration]}", "[dim]{task.fields[note]}")


def bars(console: Console | None = None, *, disable: bool = False, details: Sequence[str] = _RUN_DETAILS) -> Progress:
    """Return a terminal display in which several runs can show their progress bars, one below the other."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=28),
        TextColumn("{task.percentage:>3.0f}%"),
        *map(TextColumn, details),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=disable,
    )


class _Fraction:
    """Estimate of the completed fraction of a run.

    Without a stop rule it is the fraction of the iterations. With one it measures how far the change per iteration has
    fallen from its largest value to the tolerance, on a logarithmic scale.
    """

    def __init__(self, start: Start) -> None:
        self._max_iter, self._first, self._tol = start.max_iter, start.state.t, start.tol
        self._worst: float | None = None

    def iterations(self, step: Step) -> int:
        """Return the number of iterations so far."""
        return step.after.t - self._first

    def after(self, step: Step) -> tuple[float, str]:
        """Return the completed fraction, and a note with the current numbers."""
        done, note = self.iterations(step) / self._max_iter, ""
        if step.agreed is not None and self._tol is not None:
            change = max(step.agreed.change, 1e-300)
            self._worst = max(self._worst or change, change)
            note = f"change {change:.0e}, disagreement {step.agreed.disagreement:.0e}"
            if self._worst > self._tol:
                fallen = math.log(self._worst / change) / math.log(self._worst / self._tol)
                done = max(done, min(fallen, 0.99))
        return done, note


class ProgressBar:
    """Show the completed fraction of a run as a bar, with the estimated time left."""

    def __init__(self, progress: Progress | None = None, *, description: str | None = None) -> None:
        self._own = progress is None
        self._progress = progress if progress is not None else bars()
        self._description = description
        self._task: TaskID | None = None
        self._fraction: _Fraction | None = None

    def begin(self, start: Start) -> None:
        """Add a bar for the run."""
        self._fraction = _Fraction(start)
        if self._own:
            self._progress.start()
        self._task = self._progress.add_task(self._description or start.name, total=1.0, iteration=0, note="")

    def observe(self, step: Step) -> None:
        """Advance the bar."""
        if self._task is None or self._fraction is None:
            return
        done, note = self._fraction.after(step)
        self._progress.update(self._task, completed=done, iteration=self._fraction.iterations(step), note=note)

    def end(self, result: Result[Any]) -> None:
        """Complete the bar, with the status of the run beside it."""
        if self._task is not None:
            self._progress.update(
                self._task, completed=1.0, iteration=result.iterations, note=result.status.code.replace("_", " ")
            )
        if self._own:
            self._progress.stop()


class ProgressLines:
    """Report progress as lines of text for the log of a batch job, one every few seconds and one at the end."""

    def __init__(self, say: Callable[[str], None], *, every: float = 10.0) -> None:
        self._say, self._every, self._last = say, every, 0.0
        self._fraction: _Fraction | None = None

    def begin(self, start: Start) -> None:
        """Report that the run has started."""
        self._fraction, self._last = _Fraction(start), 0.0
        self._say(f"{start.name}: started")

    def observe(self, step: Step) -> None:
        """Report the current numbers and the time left, if the last line is old enough."""
        if self._fraction is None:
            return
        done, note = self._fraction.after(step)
        if step.elapsed - self._last < self._every:
            return
        self._last = step.elapsed
        left = f", about {step.elapsed * (1.0 - done) / done:.0f} s left" if done > 0.0 else ""
        self._say(
            f"iteration {self._fraction.iterations(step)} after {step.elapsed:.0f} s: {note or 'no numbers yet'}{left}"
        )

    def end(self, result: Result[Any]) -> None:
        """Report the status of the run."""
        code = result.status.code.replace("_", " ")
        self._say(f"{result.iterations} iteration{plural(result.iterations)} in {result.elapsed:.1f} s: {code}")
