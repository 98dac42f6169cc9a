"""Run the streaming study; see ``python -m studies.streaming --help``."""

from __future__ import annotations

from pathlib import Path

import typer

from deepca._util.files import write_atomic
from deepca.cli.common import errors, require
from studies.shared.command import Command, OutOption, QuietOption, ReducedOption
from studies.shared.report import page
from studies.streaming.drift import Drift

__all__ = ["REDUCED", "main"]

_FIGURE = Path("figures/streaming.png")  # beside the page
_MODULE = "studies.streaming"
REDUCED = Drift(d=20, agents=6, rows=60, batches=60, begins=10, ends=60)


def main(
    out: OutOption = Path("out/streaming.md"),
    reduced: ReducedOption = False,
    quiet: QuietOption = False,
) -> None:
    """Follow a rotating subspace and write the page. The exit code is 1 if an assertion does not hold."""
    with errors(resumes=False):
        require("sklearn", extra="experiments")
        require("matplotlib", extra="experiments")
        from studies.streaming.figure import draw
        from studies.streaming.report import sections
        from studies.streaming.study import run

        command = Command(_MODULE, "", "Streaming", None, out.parent, out, reduced, None, quiet)
        with command.settings("streaming") as (setting,):
            results = run(REDUCED if reduced else Drift(), setting.progress)
        draw(results, out.parent / _FIGURE)
        parts = sections(results, _FIGURE.as_posix())
        again = f"python -m {_MODULE}" + (" --reduced" if reduced else "") + f" --out {out.as_posix()}"
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, page("Streaming", parts, again).encode())
    command.conclude(parts)


if __name__ == "__main__":
    typer.run(main)
