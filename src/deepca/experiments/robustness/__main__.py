"""Run the robustness studies: ``python -m deepca.experiments.robustness --help``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID

from deepca.cli.common import errors, require
from deepca.errors import InvalidInput
from deepca.experiments.problems import Source
from deepca.experiments.robustness import alignment, rounds, stopping
from deepca.experiments.robustness.report import Section, Setting, Study, page
from deepca.progress import bars

__all__ = ["STUDIES", "main"]

STUDIES: tuple[Study, ...] = (alignment.STUDY, stopping.STUDY, rounds.STUDY)


def main(
    data: Annotated[Path | None, typer.Option(help="Folder with w8a and a9a; without it they are left out.")] = None,
    store: Annotated[Path, typer.Option(help="Folder for finished runs.")] = Path("out/robustness"),
    out: Annotated[Path, typer.Option(help="The page.")] = Path("out/robustness.md"),
    reduced: Annotated[bool, typer.Option("--reduced", help="Fewer draws, the same assertions.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes; all usable cores by default.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run the studies and write the page. The exit code is 1 if an assertion does not hold.

    Finished runs are kept: an interrupted call goes on where it stopped.
    """
    console, began = Console(stderr=True), time.perf_counter()
    with errors():
        require("sklearn", extra="experiments")
        if jobs is not None and jobs < 1:
            raise InvalidInput(f"--jobs {jobs}: at least one process has to work")
        sections: list[Section] = []
        with bars(console, disable=quiet, details=()) as bar:
            tasks = {study.name: bar.add_task(study.name, total=None) for study in STUDIES}
            for study in STUDIES:

                def tell(done: float, total: float, task: TaskID = tasks[study.name]) -> None:
                    bar.update(task, completed=done, total=total)

                sections.append(study.run(Setting(Source(data), store, jobs, reduced, tell)))
        command = "make study-robustness" + (" DATA=FOLDER" if data else "")
        if reduced:
            command = "python -m deepca.experiments.robustness --reduced" + (" --data FOLDER" if data else "")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(sections, command), encoding="utf-8")
    for section in sections:
        for assertion in section.assertions:
            mark = "[green]✔[/]" if assertion.holds else "[red]✘[/]"
            console.print(f"{mark} {escape(assertion.statement)} [dim]{escape(assertion.measured)}[/]", highlight=False)
    console.print(f"{escape(str(out))}, in {time.perf_counter() - began:.0f} s", highlight=False)
    if not all(section.holds for section in sections):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
