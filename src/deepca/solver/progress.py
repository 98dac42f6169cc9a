"""Progress with time left, as observers: a bar, or lines of a log. Needs the ``cli`` extra (rich)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deepca.solver.observers import Start, Step
from deepca.solver.result import Result

__all__ = ["ProgressBar", "ProgressLines", "bars"]


_OF_A_RUN = ("iteration {task.fields[iteration]}", "[dim]{task.fields[note]}")


def bars(console: Console | None = None, *, disable: bool = False, details: Sequence[str] = _OF_A_RUN) -> Progress:
    """A place on the terminal in which several runs can show their bars, with details, one below the other."""
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


class _Distance:
    """How far a run has come.

    Without a stop rule, by iterations. With one, by how far the change per iteration has come down, on a logarithmic
    scale, from where it began to the tolerance.
    """

    def __init__(self, start: Start) -> None:
        self._max_iter, self._first, self._tol = start.max_iter, start.state.t, start.tol
        self._worst: float | None = None

    def made(self, step: Step) -> int:
        return step.after.t - self._first

    def after(self, step: Step) -> tuple[float, str]:
        """The part that is done, and what the numbers are."""
        done, note = self.made(step) / self._max_iter, ""
        if step.agreed is not None and self._tol is not None:
            change = max(step.agreed.change, 1e-300)
            self._worst = max(self._worst or change, change)
            note = f"change {change:.0e}, between agents {step.agreed.disagreement:.0e}"
            if self._worst > self._tol:
                come_down = math.log(self._worst / change) / math.log(self._worst / self._tol)
                done = max(done, min(come_down, 0.99))
        return done, note


class ProgressBar:
    """Shows how far a run has come (:class:`_Distance`); the time left follows from that."""

    def __init__(self, progress: Progress | None = None, *, description: str | None = None) -> None:
        self._own = progress is None
        self._progress = progress if progress is not None else bars()
        self._description = description
        self._task: TaskID | None = None
        self._distance: _Distance | None = None

    def begin(self, start: Start) -> None:
        self._distance = _Distance(start)
        if self._own:
            self._progress.start()
        self._task = self._progress.add_task(self._description or start.name, total=1.0, iteration=0, note="")

    def observe(self, step: Step) -> None:
        if self._task is None or self._distance is None:
            return
        done, note = self._distance.after(step)
        self._progress.update(self._task, completed=done, iteration=self._distance.made(step), note=note)

    def end(self, result: Result[Any]) -> None:
        if self._task is not None:
            self._progress.update(
                self._task, completed=1.0, iteration=result.iterations, note=result.status.code.replace("_", " ")
            )
        if self._own:
            self._progress.stop()


class ProgressLines:
    """The same as lines of text, for the log of a batch job: one every so many seconds, and one at the end."""

    def __init__(self, say: Callable[[str], None], *, every: float = 10.0) -> None:
        self._say, self._every, self._last = say, every, 0.0
        self._distance: _Distance | None = None

    def begin(self, start: Start) -> None:
        self._distance, self._last = _Distance(start), 0.0
        self._say(f"{start.name}: begins")

    def observe(self, step: Step) -> None:
        if self._distance is None:
            return
        done, note = self._distance.after(step)
        if step.elapsed - self._last < self._every:
            return
        self._last = step.elapsed
        left = f", about {step.elapsed * (1.0 - done) / done:.0f} s left" if done > 0.0 else ""
        self._say(f"iteration {self._distance.made(step)} after {step.elapsed:.0f} s: {note or 'no numbers yet'}{left}")

    def end(self, result: Result[Any]) -> None:
        said = result.status.code.replace("_", " ")
        self._say(f"{result.iterations} iterations in {result.elapsed:.1f} s: {said}")
