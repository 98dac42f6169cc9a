"""Run the benchmarks; see ``python -m benchmarks --help``."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks import core, estimator, scaling
from benchmarks.report import Section, machine, show, write_json, write_markdown

_SUBJECTS = {"core": core, "scaling": scaling, "estimator": estimator}


def main() -> None:
    """Parse the options, measure, and print or write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure the speed of deepca as ratios of times from the same run."
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and sizes: under 30 seconds")
    parser.add_argument(
        "--only",
        choices=sorted(_SUBJECTS),
        help="measure only one subject: core (one iteration), scaling (growth with size) or estimator (a whole fit)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    options = parser.parse_args()

    console, about = Console(), machine()
    if not console.is_terminal:
        console = Console(width=110)
    command = "python -m benchmarks" + (" --quick" if options.quick else "")
    command += f" --only {options.only}" if options.only else ""
    console.print(" · ".join(f"{name} {value}" for name, value in about.items()), style="dim")
    sections: list[Section] = []
    columns = (TextColumn("{task.description:>8}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        chosen = {name: _SUBJECTS[name] for name in _SUBJECTS if options.only in (None, name)}
        tasks = {name: progress.add_task(name, total=subject.steps(options.quick)) for name, subject in chosen.items()}
        for name, subject in chosen.items():
            sections += subject.measure(options.quick, lambda task=tasks[name]: progress.advance(task))
    show(sections, console)
    if options.markdown:
        write_markdown(options.markdown, sections, command, about)
    if options.json:
        write_json(options.json, sections, command, about)


if __name__ == "__main__":
    main()
