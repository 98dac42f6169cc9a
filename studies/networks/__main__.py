"""Run the network studies; see ``python -m studies.networks --help``."""

from __future__ import annotations

from pathlib import Path

import typer

from deepca.cli.common import errors, require
from studies.networks import costs, losses
from studies.networks.usage import USAGE
from studies.shared.command import Command, DataOption, JobsOption, OutOption, QuietOption, ReducedOption, StoreOption
from studies.shared.report import Study

__all__ = ["STUDIES", "main"]

STUDIES: tuple[Study, ...] = (costs.STUDY, losses.STUDY)


def main(
    data: DataOption = None,
    store: StoreOption = Path("out/networks"),
    out: OutOption = Path("out/networks.md"),
    reduced: ReducedOption = False,
    jobs: JobsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run the studies and write the page. The exit code is 1 if an assertion does not hold.

    Finished runs are stored: an interrupted command resumes where it stopped.
    """
    with errors(resumes=True):
        require("sklearn", extra="experiments")
        module, target = "studies.networks", "study-networks"
        command = Command(module, target, "Directed and time-varying networks", data, store, out, reduced, jobs, quiet)
        sections = command.run(STUDIES)
        command.write([USAGE, *sections])
    command.conclude(sections)


if __name__ == "__main__":
    typer.run(main)
