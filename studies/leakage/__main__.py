"""Run the leakage study; see ``python -m studies.leakage --help``."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import typer

from deepca._util.files import write_atomic
from deepca.cli.common import errors, require
from studies.leakage.report import sections
from studies.leakage.study import Plan, run
from studies.shared.command import Command, JobsOption, OutOption, QuietOption, ReducedOption
from studies.shared.report import page

__all__ = ["REDUCED", "main"]

_FIGURE = Path("figures/leakage.png")  # beside the page
_MODULE = "studies.leakage"
_TITLE = "Leakage"
REDUCED = Plan(draws=2, rows=(2, 50))


def main(
    out: OutOption = Path("out/leakage.md"),
    reduced: ReducedOption = False,
    jobs: JobsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Measure what sites learn about each other and write the page; exit with 1 if an assertion does not hold."""
    with errors(resumes=False):
        require("cryptography", extra="agent")
        require("matplotlib", extra="experiments")
        from studies.leakage.figure import draw

        again = f"python -m {_MODULE} --reduced" if reduced else "make study-leakage"
        made = f"Made by `{again}`{_commit()} on {datetime.now(UTC):%Y-%m-%d}."
        command = Command(_MODULE, "study-leakage", _TITLE, None, out.parent, out, reduced, jobs, quiet)
        with command.settings("leakage") as (setting,):
            results = run(REDUCED if reduced else Plan(), setting.progress, jobs)
        draw(results, out.parent / _FIGURE)
        parts = sections(results, _FIGURE.as_posix(), made)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, page(_TITLE, parts, again).encode())
    command.conclude(parts)


def _commit() -> str:
    """Return which commit is checked out, as part of a sentence; empty outside of a repository."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return f" at commit {done.stdout.strip()}" if done.returncode == 0 else ""


if __name__ == "__main__":
    typer.run(main)
