"""One runner for all experiments: parallel over cores, stored cell by cell, resumed where it stopped."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from deepca._machine import usable_cores
from deepca.errors import DataError
from deepca.experiments.cells import Cell, Outcome
from deepca.experiments.problems import Source, compute, operator_of

__all__ = ["Outcomes", "Source", "cost", "in_parallel", "run_cells"]

Outcomes = dict[Cell, Outcome]
T = TypeVar("T")
R = TypeVar("R")


def cost(cell: Cell) -> float:
    """Relative time of a cell, for the time left."""
    return cell.iterations * (1.0 + cell.agents * cell.rows / 4000.0 * (0.2 if cell.method == "CPCA" else 1.0))


def run_cells(
    cells: Iterable[Cell],
    source: Source,
    store: Path,
    *,
    jobs: int | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Outcomes:
    """The outcome of every cell; those already in ``store`` are read, the others run and stored one by one.

    ``progress(done, total)`` is called in units of :func:`cost`. Interrupted, nothing finished is lost.
    """
    wanted = list(dict.fromkeys(cells))
    found = {cell: outcome for cell in wanted if (outcome := _stored(cell, store)) is not None}
    todo = sorted((cell for cell in wanted if cell not in found), key=cost, reverse=True)
    total, done = sum(map(cost, wanted)), sum(map(cost, found))
    tell = progress or (lambda _done, _total: None)
    tell(done, total)
    store.mkdir(parents=True, exist_ok=True)
    for data in sorted({cell.data for cell in todo}):  # read, checked and cached once, before workers want it
        first = next(cell for cell in todo if cell.data == data)
        operator_of(source, data, first.agents, first.rows, "file")
    for outcome in in_parallel(_compute, [(cell, source) for cell in todo], jobs):
        found[outcome.cell] = _keep(outcome, store)
        tell(done := done + cost(outcome.cell), total)
    return {cell: found[cell] for cell in wanted}


def in_parallel(work: Callable[[T], R], items: Sequence[T], jobs: int | None) -> Iterator[R]:
    """``work`` of every item, as they are done, on as many processes as there are cores (or jobs)."""
    workers = min(jobs or usable_cores(), len(items))
    if workers <= 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(running):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _compute(task: tuple[Cell, Source]) -> Outcome:
    return compute(*task)


def _stored(cell: Cell, store: Path) -> Outcome | None:
    try:
        outcome = Outcome.from_bytes((store / f"{cell.key}.npz").read_bytes())
    except (OSError, DataError):
        return None
    return outcome if outcome.cell == cell else None


def _keep(outcome: Outcome, store: Path) -> Outcome:
    """Written under another name first, so that a file is whole or not there."""
    handle, name = tempfile.mkstemp(dir=store, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        file.write(outcome.to_bytes())
    Path(name).replace(store / f"{outcome.cell.key}.npz")
    return outcome
