"""Command-line frame of a study: progress bars, the page, its assertions and the exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deepca.errors import InvalidInput
from deepca.reproduction.problems import DataSource
from deepca.solver.progress import bars
from studies.shared.report import Section, Setting, Study, page

__all__ = ["Command", "DataOption", "JobsOption", "OutOption", "QuietOption", "ReducedOption", "StoreOption"]

DataOption = Annotated[
    Path | None, typer.Option(help="Folder with w8a and a9a; without it, these data sets are skipped.")
]
StoreOption = Annotated[Path, typer.Option(help="Folder in which finished runs are stored.")]
OutOption = Annotated[Path, typer.Option(help="Page to write; figures go to figures/ beside it.")]
ReducedOption = Annotated[
    bool, typer.Option("--reduced", help="Make fewer and shorter runs, with the same assertions.")
]
JobsOption = Annotated[int | None, typer.Option(help="Number of processes; all usable cores by default.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]


@dataclass(frozen=True)
class Command:
    """Options of a study's command.

    Parameters
    ----------
    module : str
        Module to run with ``python -m``.
    target : str
        Target of ``make`` that runs the full study.
    title : str
        Title of the page.
    data : Path or None
        Folder with data sets.
    store : Path
        Folder in which finished runs are stored.
    out : Path
        Page to write.
    reduced : bool
        Whether to make fewer and shorter runs.
    jobs : int or None
        Number of processes; None for all usable cores.
    quiet : bool
        Whether to hide the progress bar.
    """

    module: str
    target: str
    title: str
    data: Path | None
    store: Path
    out: Path
    reduced: bool
    jobs: int | None
    quiet: bool
    console: Console = field(default_factory=lambda: Console(stderr=True))
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        """Check the number of processes."""
        if self.jobs is not None and self.jobs < 1:
            raise InvalidInput(
                f"--jobs {self.jobs}: at least one process is required", parameter="jobs", value=self.jobs
            )

    @contextmanager
    def settings(self, *names: str) -> Iterator[list[Setting]]:
        """Yield a setting for each of these studies, each with its own progress bar."""
        with bars(self.console, disable=self.quiet, details=()) as bar:

            def reporter(name: str) -> Callable[[float, float], None]:
                task = bar.add_task(name, total=None)
                return lambda done, total: bar.update(task, completed=done, total=total)

            reporters = [reporter(name) for name in names]
            yield [Setting(DataSource(self.data), self.store, self.jobs, self.reduced, report) for report in reporters]

    def run(self, studies: Sequence[Study]) -> list[Section]:
        """Run the studies and return their sections."""
        with self.settings(*(study.name for study in studies)) as settings:
            return [study.run(setting) for study, setting in zip(studies, settings, strict=True)]

    def write(self, sections: Sequence[Section]) -> None:
        """Write the page, including the command that reproduces it."""
        again = f"make {self.target}" + (" DATA=FOLDER" if self.data else "")
        if self.reduced:
            again = f"python -m {self.module} --reduced" + (" --data FOLDER" if self.data else "")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(page(self.title, sections, again), encoding="utf-8")

    def conclude(self, sections: Sequence[Section]) -> None:
        """Print the assertions; exit with code 1 if one does not hold."""
        for assertion in (assertion for section in sections for assertion in section.assertions):
            mark = "[green]✔[/]" if assertion.holds else "[red]✘[/]"
            text = f"{mark} {escape(assertion.statement)} [dim]{escape(assertion.measured)}[/]"
            self.console.print(text, highlight=False)
        seconds = time.perf_counter() - self.began
        self.console.print(f"{escape(str(self.out))}, in {seconds:.0f} s", highlight=False)
        if not all(section.holds for section in sections):
            raise typer.Exit(1)
