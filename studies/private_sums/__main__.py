"""Run the study of private sums; see ``python -m studies.private_sums --help``."""

from __future__ import annotations

import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from deepca._util.files import write_atomic
from deepca.cli.common import errors, require
from studies.shared.command import Command, OutOption, QuietOption
from studies.shared.report import page

__all__ = ["main"]

_FIGURE = Path("figures/private-sums.png")  # beside the page
_MODULE = "studies.private_sums"
_TARGET = "study-privacy"
_ROOT = Path(__file__).resolve().parents[2]


def main(
    out: OutOption = Path("out/private-sums.md"),
    quick: Annotated[bool, typer.Option("--quick", help="Measure one small network, in seconds.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Compare private networks with open ones and write the page. The exit code is 1 if a goal is missed."""
    with errors(resumes=False):
        require("grpc", "cryptography", extra="agent")
        require("matplotlib", extra="experiments")
        from studies.private_sums.figure import draw
        from studies.private_sums.report import sections
        from studies.private_sums.results import FULL, QUICK, run

        about = _about()
        command = Command(_MODULE, _TARGET, "Private sums in figures", None, out.parent, out, quick, None, quiet)
        with command.settings("private sums") as (setting,), tempfile.TemporaryDirectory() as folder:
            assert setting.progress is not None
            results = run(QUICK if quick else FULL, Path(folder), setting.progress)
        draw(results.comparisons, out.parent / _FIGURE)
        parts = sections(results, _FIGURE.as_posix(), about)
        again = f"python -m {_MODULE} --quick --out {out.as_posix()}" if quick else f"make {_TARGET}"
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, page(command.title, parts, again).encode())
    command.conclude(parts)


def _about() -> str:
    """Describe the code, the date and the machine, without names or addresses."""
    from benchmarks.report import machine

    kind = ", ".join(f"{name} {value}" for name, value in machine().items())
    today = datetime.now(UTC).date().isoformat()
    return f"Measured at commit {_commit()} on {today}, on one machine: {kind}."


def _commit() -> str:
    """Return the abbreviated hash of the commit, with a note if files differ from it."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=, with changes", "--exclude=*"],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


if __name__ == "__main__":
    typer.run(main)
