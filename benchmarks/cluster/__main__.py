"""Measure and write the page; see ``python -m benchmarks.cluster --help``."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.cluster import check, costs, page, parity, ranks, rounds, scaling
from benchmarks.cluster.findings import Findings
from benchmarks.cluster.jobs import Job, JobFailed
from benchmarks.report import cores_in_use, machine
from deepca._util.machine import usable_cores
from deepca.solver.progress import bars

_DATA = Path("..") / "shared" / "data"
_PARTS: dict[int, list[str]] = {
    1: ["check"],
    2: ["rounds", "costs", "check"],
    4: ["rounds", "check", "parity"],
    8: ["rounds", "check", "parity"],
    50: ["rounds", "parity"],
}
_START = 0.8  # core seconds in which a rank imports everything
_QUESTION_SECONDS = {"dense": 0.9, "w8a": 0.1}  # approximate time of one question

Advance = Callable[[float], None]


def main() -> None:
    """Parse the options, measure, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="Markdown page to write")
    parser.add_argument("--quick", action="store_true", help="fewer ranks, sizes and repetitions: about a minute")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="folder with w8a (default: ../shared/data if it exists)"
    )
    options = parser.parse_args()
    folder = options.data or (_DATA if _DATA.is_dir() else None)
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that jobs end with this process
    try:
        found = measure(folder, options.quick, console)
    except JobFailed as failed:
        sys.exit(f"error: {failed}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page.page_of(found), encoding="utf-8")
    busy = f", but the machine was busy ({found.load:.1f} of its cores in use)" if found.busy else ""
    console.print(f"{options.out}{busy}", highlight=False)
    if max(max(p.fixed, p.stopped) for p in found.parities) > parity.GOAL:
        sys.exit(f"error: ranks and simulator differ by more than {parity.GOAL:g}; see {options.out}")


def measure(folder: Path | None, quick: bool, console: Console) -> Findings:
    """Measure all parts, one job after the other."""
    load, about, cores = cores_in_use(), machine(), usable_cores()
    present = scaling.present(folder) if cores > 1 else []
    repetitions = 2 if quick else 7
    asked = len(list(scaling.asked())) * (repetitions + 1)
    turns = sum(asked * _cost(data, quick) for data in present)
    jobs = [n for n in _PARTS if not (quick and n > 8)]
    total = turns + sum(_START * n + sum(case.cost for _, case in _lines(n, quick)) for n in jobs)
    lines: dict[str, list[Any]] = {}
    with bars(console, details=("{task.fields[now]}",)) as bar:
        task = bar.add_task("cluster", total=total, now="")

        def say(now: str) -> Advance:
            bar.update(task, now=now)
            if not console.is_terminal:
                at = bar.tasks[task]
                console.print(f"{at.percentage:.0f} % after {at.elapsed or 0.0:.0f} s: {now}", highlight=False)
            return lambda cost: bar.advance(task, cost)

        for n in jobs:
            _on_ranks(n, quick, lines, say(f"{n} ranks" if n > 1 else "one rank"))
        advance = say("one and two cores")
        scalings = scaling.measure(present, folder, quick, repetitions, lambda data: advance(_cost(data, quick)))
    samples = costs.Samples(**lines["costs"][0])
    about["MPI"] = lines["started"][0]["library"]
    return Findings(
        about,
        cores,
        load,
        "python -m benchmarks.cluster --quick --out PAGE" if quick else "make bench-mpi",
        quick,
        [parity.Agreement(**line) for line in lines["parity"]],
        [rounds.Timing(**line) for line in lines["rounds"]],
        scalings,
        [data for data in scaling.DATA if data not in present and cores > 1],
        costs.as_costs(samples),
        [check.Check(**line) for line in lines["check"]],
    )


def _on_ranks(n: int, quick: bool, lines: dict[str, list[Any]], advance: Advance) -> None:
    arguments = (*(["--quick"] if quick else []), *_PARTS[n])
    expected = _lines(n, quick)
    deadline = 120.0 + 10.0 * (_START * n + sum(case.cost for _, case in expected))
    with Job("benchmarks.cluster.ranks", *arguments, ranks=n, deadline=deadline) as job:
        costs_left = [_START * n, *(case.cost for _, case in expected)]
        for line, cost in zip(job.answers(), costs_left, strict=True):
            lines.setdefault(line["part"], []).append(line["found"])
            advance(cost)


def _lines(n: int, quick: bool) -> list[tuple[str, Any]]:
    return list(ranks.lines(_PARTS[n], n, quick))


def _cost(data: str, quick: bool) -> float:
    return _QUESTION_SECONDS[data] / (4.0 if quick else 1.0)


if __name__ == "__main__":
    main()
