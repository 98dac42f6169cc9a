"""The command around a study: progress while it runs, then the page, its assertions, and an exit code."""

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

DataOption = Annotated[Path | None, typer.Option(help="Folder with w8a and a9a; without it they are left out.")]
StoreOption = Annotated[Path, typer.Option(help="Folder for finished runs.")]
OutOption = Annotated[Path, typer.Option(help="The page; a figure goes to figures/ beside it.")]
ReducedOption = Annotated[bool, typer.Option("--reduced", help="Fewer and shorter runs, the same assertions.")]
JobsOption = Annotated[int | None, typer.Option(help="Processes; all usable cores by default.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


@dataclass(frozen=True)
class Command:
    """What the options of a study's command say.

    module : what ``python -m`` runs.  target : what ``make`` runs, for all of it.  title : of the page.
    data : folder with data sets, or None.  store : of finished runs.  out : the page.  jobs : processes.
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
        if self.jobs is not None and self.jobs < 1:
            raise InvalidInput(f"--jobs {self.jobs}: at least one process has to work")

    @contextmanager
    def settings(self, *names: str) -> Iterator[list[Setting]]:
        """How to run each of these studies, with a progress bar of its own."""
        with bars(self.console, disable=self.quiet, details=()) as bar:

            def teller(name: str) -> Callable[[float, float], None]:
                task = bar.add_task(name, total=None)
                return lambda done, total: bar.update(task, completed=done, total=total)

            tellers = [teller(name) for name in names]
            yield [Setting(DataSource(self.data), self.store, self.jobs, self.reduced, tell) for tell in tellers]

    def run(self, studies: Sequence[Study]) -> list[Section]:
        """What each of these studies finds."""
        with self.settings(*(study.name for study in studies)) as settings:
            return [study.run(setting) for study, setting in zip(studies, settings, strict=True)]

    def write(self, sections: Sequence[Section]) -> None:
        """The page, with the command that makes it again."""
        again = f"make {self.target}" + (" DATA=FOLDER" if self.data else "")
        if self.reduced:
            again = f"python -m {self.module} --reduced" + (" --data FOLDER" if self.data else "")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(page(self.title, sections, again), encoding="utf-8")

    def conclude(self, sections: Sequence[Section]) -> None:
        """Show what holds; exit code 1 if something does not."""
        for assertion in (assertion for section in sections for assertion in section.assertions):
            mark = "[green]✔[/]" if assertion.holds else "[red]✘[/]"
            text = f"{mark} {escape(assertion.statement)} [dim]{escape(assertion.measured)}[/]"
            self.console.print(text, highlight=False)
        seconds = time.perf_counter() - self.began
        self.console.print(f"{escape(str(self.out))}, in {seconds:.0f} s", highlight=False)
        if not all(section.holds for section in sections):
            raise typer.Exit(1)
