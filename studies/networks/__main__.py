"""Run the studies of networks: ``python -m studies.networks --help``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepca.cli.common import errors, require
from studies.networks import costs, losses
from studies.networks.usage import USAGE
from studies.shared.command import Command
from studies.shared.report import Study

__all__ = ["STUDIES", "main"]

STUDIES: tuple[Study, ...] = (costs.STUDY, losses.STUDY)


def main(
    data: Annotated[Path | None, typer.Option(help="Folder with w8a and a9a; without it they are left out.")] = None,
    store: Annotated[Path, typer.Option(help="Folder for finished runs.")] = Path("out/networks"),
    out: Annotated[Path, typer.Option(help="The page.")] = Path("out/networks.md"),
    reduced: Annotated[bool, typer.Option("--reduced", help="Fewer runs, the same assertions.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes; all usable cores by default.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run the studies and write the page. The exit code is 1 if an assertion does not hold.

    Finished runs are kept: an interrupted call goes on where it stopped.
    """
    with errors(resumes=True):
        require("sklearn", extra="experiments")
        module, target = "studies.networks", "study-networks"
        command = Command(module, target, "Directed and changing networks", data, store, out, reduced, jobs, quiet)
        with command.settings(*(study.name for study in STUDIES)) as settings:
            sections = [study.run(setting) for study, setting in zip(STUDIES, settings, strict=True)]
        command.write([USAGE, *sections])
    command.conclude(sections)


if __name__ == "__main__":
    typer.run(main)
