"""Measure the given parts on the ranks of one job; rank 0 prints one line of JSON per result.

mpiexec -n 4 python -m benchmarks.cluster.ranks [--quick] parity rounds check
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.cluster import check, costs, parity, rounds
from benchmarks.cluster.sharing import pin_to_own_core, sleeping_barrier

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["PARTS", "lines"]

PARTS: dict[str, ModuleType] = {"parity": parity, "rounds": rounds, "costs": costs, "check": check}


def lines(parts: list[str], ranks: int, quick: bool) -> Iterator[tuple[str, Any]]:
    """Yield the parts and cases of a job with a number of ranks, one for each line that rank 0 prints."""
    for part in parts:
        for case in PARTS[part].cases(ranks, quick):
            yield part, case


def main() -> None:
    """Measure all cases in order."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster.ranks", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS))
    options = parser.parse_args()

    # importing MPI initialises it, and a rank that waits occupies its core, so everything else is imported first
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    pin_to_own_core(comm)
    sleeping_barrier(comm)
    if comm.rank == 0:
        _print({"part": "started", "found": {"library": MPI.Get_library_version().split(",")[0]}})
    for part, case in lines(options.parts, comm.size, options.quick):
        found = PARTS[part].measure(case, comm)
        if found is not None:
            _print({"part": part, "found": asdict(found)})


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
