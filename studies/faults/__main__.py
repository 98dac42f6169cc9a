"""Run the fault suite: ``python -m studies.faults --help``."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deepca.cli.common import errors, require
from deepca.errors import InvalidInput
from studies.shared.report import page

__all__ = ["main"]


def main(
    out: Annotated[Path, typer.Option(help="Markdown page to write.")] = Path("out/faults.md"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Run fewer and shorter cases, with the same assertions.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option(help="Name of a case to run; may be given several times.")] = None,
    simulated: Annotated[
        int, typer.Option(help="Number of random fault schedules to simulate under a virtual clock.")
    ] = 200,
) -> None:
    """Inject faults into real agents and write the report; exit with code 1 if any case fails."""
    began = time.perf_counter()
    console = Console(stderr=True)
    with errors():
        require("grpc", "cryptography", extra="agent")
        require("sklearn", extra="experiments")
        from studies.faults.cases import CASES
        from studies.faults.harness import Scale
        from studies.faults.report import section

        names = [case.name for case in CASES]
        if unknown := [name for name in only or () if name not in names]:
            raise InvalidInput(f"--only {unknown[0]}: unknown case; choose from {', '.join(names)}")
        results = []
        with tempfile.TemporaryDirectory() as folder:
            for case in CASES:
                if only and case.name not in only:
                    continue
                start = time.perf_counter()
                one = case.run(Scale(Path(folder), not quick))
                results.append(one)
                mark = "[green]✔[/]" if one.holds else "[red]✘[/]"
                seconds = time.perf_counter() - start
                line = f"{mark} {escape(one.case)}: {one.passed} of {one.runs}"
                console.print(f"{line} [dim]{escape(one.figures)}, {seconds:.0f} s[/]", highlight=False)
                for problem in one.problems:
                    console.print(f"  {escape(problem)}", highlight=False)
        schedules = None
        if simulated:
            with ProcessPoolExecutor() as pool:
                passed = sum(pool.map(_passes, range(simulated)))
            schedules = (simulated, passed)
            console.print(f"{passed} of {simulated} simulated schedules passed", highlight=False)
        made = section(results, schedules)
        again = "make faults-quick" if quick else "make faults"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page("Faults and attacks", [replace(made, title="Cases")], again), encoding="utf-8")
    console.print(f"{escape(str(out))}, in {time.perf_counter() - began:.0f} s", highlight=False)
    if not made.holds:
        raise typer.Exit(1)


def _passes(seed: int) -> bool:
    from deepca._util.machine import one_blas_thread
    from studies.faults.schedules import draw_schedule, simulate

    with one_blas_thread():
        return simulate(draw_schedule(seed)).correct


if __name__ == "__main__":
    typer.run(main)
