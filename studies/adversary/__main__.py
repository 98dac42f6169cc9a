"""Run cases and write the report page; see ``python -m studies.adversary --help``."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from itertools import chain, zip_longest
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deepca import __version__
from studies.adversary import FAMILIES, cases_of
from studies.adversary.pool import DEADLINE, Case, run_all
from studies.adversary.report import Run, page, summary
from studies.adversary.trial import Outcome


def main() -> int:
    """Run the requested cases and return 1 if any claim was violated, 0 otherwise."""
    options = parser().parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"  # inherited by the workers
    single = options.family is not None and options.cases is None
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    counts = cases_of(options.cases or 10_000)
    if options.family is not None:
        counts = {options.family: options.cases or 1}
    console, began = Console(), time.monotonic()
    outcomes = _run(_interleave(counts, seed), sum(counts.values()), options, console)
    if single:
        console.print(outcomes[0])
    console.print(summary(outcomes), soft_wrap=True)
    command = f"python -m studies.adversary --cases {options.cases or 10_000} --seed {seed}"
    if options.family is not None:
        command = (
            f"python -m studies.adversary --family {options.family} --cases {counts[options.family]} --seed {seed}"
        )
    if options.out is not None:
        about = Run(command, seed, time.monotonic() - began, options.processes, __version__)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(page(outcomes, about), encoding="utf-8")
    return int(any(outcome.violations for outcome in outcomes))


def parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.adversary",
        description="Check the library on hard random cases against independent answers.",
    )
    parser.add_argument(
        "--cases", type=int, metavar="N", help="total number of cases (default 10,000; with --family 1)"
    )
    parser.add_argument("--family", choices=sorted(FAMILIES), help="run only cases of this family")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the first case of each family (default: random)")
    parser.add_argument("--processes", type=int, default=2, metavar="P", help="number of worker processes (default 2)")
    parser.add_argument("--deadline", type=float, default=DEADLINE, metavar="SECONDS", help="time limit per case")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report page to FILE")
    return parser


def _interleave(counts: dict[str, int], seed: int) -> list[Case]:
    """Interleave the families so that the estimate of the remaining time is accurate."""
    rounds = zip_longest(*([(family, seed + i) for i in range(n)] for family, n in counts.items()))
    return [case for case in chain.from_iterable(rounds) if case is not None]


def _run(cases: list[Case], total: int, options: argparse.Namespace, console: Console) -> list[Outcome]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    outcomes = []
    with Progress(*columns, console=console, transient=True, speed_estimate_period=120.0) as progress:
        task = progress.add_task("cases", total=total)
        for outcome in run_all(cases, processes=options.processes, deadline=options.deadline):
            outcomes.append(outcome)
            progress.advance(task)
            for violation in outcome.violations:
                where = f"--family {outcome.family} --seed {outcome.seed}"
                progress.console.print(
                    f"{where}: {outcome.status}: {violation} ({outcome.about})", soft_wrap=True, markup=False
                )
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
