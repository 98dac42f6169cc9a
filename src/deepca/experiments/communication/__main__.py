"""Run the comparison: ``python -m deepca.experiments.communication --help``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deepca.cli.common import errors, require
from deepca.errors import InvalidInput
from deepca.experiments.communication.report import sections
from deepca.experiments.communication.study import study
from deepca.experiments.problems import Source
from deepca.experiments.robustness.report import Setting, page
from deepca.progress import bars

__all__ = ["main"]

_FIGURE = Path("figures/communication.png")  # beside the page


def main(
    data: Annotated[Path | None, typer.Option(help="Folder with w8a and a9a; without it they are left out.")] = None,
    store: Annotated[Path, typer.Option(help="Folder for finished runs.")] = Path("out/communication"),
    out: Annotated[Path, typer.Option(help="The page; its figure goes to figures/ beside it.")] = Path(
        "out/communication.md"
    ),
    reduced: Annotated[bool, typer.Option("--reduced", help="Few cases and draws, the same assertions.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes; all usable cores by default.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Compare rounds and bytes, and write the page. The exit code is 1 if an assertion does not hold.

    Finished runs are kept: an interrupted call goes on where it stopped.
    """
    console, began = Console(stderr=True), time.perf_counter()
    with errors(resumes=True):
        require("sklearn", extra="experiments")
        require("matplotlib", extra="experiments")
        from deepca.experiments.communication.figure import draw, shown

        if jobs is not None and jobs < 1:
            raise InvalidInput(f"--jobs {jobs}: at least one process has to work")
        with bars(console, disable=quiet, details=()) as bar:
            task = bar.add_task("communication", total=None)

            def tell(done: float, total: float) -> None:
                bar.update(task, completed=done, total=total)

            results = study(Setting(Source(data), store, jobs, reduced, tell))
        case = shown(results)
        if case is not None:
            draw(results, case, out.parent / _FIGURE)
        parts = sections(results, None if case is None else (_FIGURE.as_posix(), case))
        command = "make bench-communication" + (" DATA=FOLDER" if data else "")
        if reduced:
            command = "python -m deepca.experiments.communication --reduced" + (" --data FOLDER" if data else "")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(parts, command, title="Communication"), encoding="utf-8")
    for assertion in (assertion for part in parts for assertion in part.assertions):
        mark = "[green]✔[/]" if assertion.holds else "[red]✘[/]"
        console.print(f"{mark} {escape(assertion.statement)} [dim]{escape(assertion.measured)}[/]", highlight=False)
    console.print(f"{escape(str(out))}, in {time.perf_counter() - began:.0f} s", highlight=False)
    if not all(part.holds for part in parts):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
