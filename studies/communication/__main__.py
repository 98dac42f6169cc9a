"""Run the comparison; see ``python -m studies.communication --help``."""

from __future__ import annotations

from pathlib import Path

import typer

from deepca.cli.common import errors, require
from studies.communication.report import sections
from studies.communication.study import study
from studies.shared.command import Command, DataOption, JobsOption, OutOption, QuietOption, ReducedOption, StoreOption

__all__ = ["main"]

_FIGURE = Path("figures/communication.png")  # beside the page


def main(
    data: DataOption = None,
    store: StoreOption = Path("out/communication"),
    out: OutOption = Path("out/communication.md"),
    reduced: ReducedOption = False,
    jobs: JobsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare rounds and bytes, and write the page. The exit code is 1 if an assertion does not hold.

    Finished runs are stored: an interrupted command resumes where it stopped.
    """
    with errors(resumes=True):
        require("sklearn", extra="experiments")
        require("matplotlib", extra="experiments")
        from studies.communication.figure import choose_case, draw

        module, target = "studies.communication", "bench-communication"
        command = Command(module, target, "Communication", data, store, out, reduced, jobs, quiet)
        with command.settings("communication") as (setting,):
            results = study(setting)
        case = choose_case(results)
        if case is not None:
            draw(results, case, out.parent / _FIGURE)
        parts = sections(results, None if case is None else (_FIGURE.as_posix(), case))
        command.write(parts)
    command.conclude(parts)


if __name__ == "__main__":
    typer.run(main)
