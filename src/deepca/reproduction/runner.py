"""Run cells in parallel, store each outcome, and resume an interrupted reproduction."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from deepca import __version__
from deepca._util.files import write_atomic
from deepca._util.machine import usable_cores
from deepca.errors import DataError
from deepca.reproduction.cells import Cell, Outcome
from deepca.reproduction.problems import DataSource, checksum_of, compute

__all__ = ["Outcomes", "cost", "in_parallel", "run_cells"]

Outcomes = dict[Cell, Outcome]
T = TypeVar("T")
R = TypeVar("R")


def cost(cell: Cell) -> float:
    """Estimate the relative duration of a cell, for progress bars and for starting with the longest cells."""
    return cell.iterations * (1.0 + cell.agents * cell.rows / 4000.0 * (0.2 if cell.method == "CPCA" else 1.0))


def run_cells(
    cells: Iterable[Cell],
    source: DataSource,
    store: Path,
    *,
    jobs: int | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Outcomes:
    """Return the outcome of every cell: read the outcomes that are stored, and run the other cells.

    Each outcome is stored as soon as it is complete, so an interrupted call loses no finished cell.

    Parameters
    ----------
    cells : iterable of Cell
        The runs; duplicates are run once.
    source : DataSource
        Location of the data sets.
    store : Path
        Folder of the stored outcomes.
    jobs : int, optional
        Number of processes; one per core by default.
    progress : callable, optional
        Called as ``progress(done, total)``, in units of :func:`cost`.

    Returns
    -------
    dict of Cell to Outcome
        The outcomes, in the order of the cells.
    """
    wanted = list(dict.fromkeys(cells))
    # outcomes of other data or of another version of the code are not reused
    edition = {
        data: f"{__version__}-{checksum_of(data, source)[:8]}" for data in sorted({cell.data for cell in wanted})
    }
    files = {cell: store / f"{cell.key}-{edition[cell.data]}.npz" for cell in wanted}
    found = {cell: outcome for cell in wanted if (outcome := _stored(cell, files[cell])) is not None}
    todo = sorted((cell for cell in wanted if cell not in found), key=cost, reverse=True)
    total, done = sum(map(cost, wanted)), sum(map(cost, found))
    report_progress = progress or (lambda _done, _total: None)
    report_progress(done, total)
    for outcome in in_parallel(_compute, [(cell, source) for cell in todo], jobs):
        write_atomic(files[outcome.cell], outcome.to_bytes())
        found[outcome.cell] = outcome
        report_progress(done := done + cost(outcome.cell), total)
    return {cell: found[cell] for cell in wanted}


def in_parallel(work: Callable[[T], R], items: Sequence[T], jobs: int | None) -> Iterator[R]:
    """Call ``work`` on items in ``jobs`` processes (one per core by default), and yield results as they complete."""
    workers = min(jobs or usable_cores(), len(items))
    if workers <= 1:
        yield from map(work, items)
        return
    ignore = (signal.SIGINT, signal.SIG_IGN)  # this process handles interrupts and terminates the workers
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=signal.signal, initargs=ignore) as pool:
        running = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(running):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _compute(task: tuple[Cell, DataSource]) -> Outcome:
    return compute(*task)


def _stored(cell: Cell, file: Path) -> Outcome | None:
    try:
        outcome = Outcome.from_bytes(file.read_bytes())
    except (OSError, DataError):
        return None
    return outcome if outcome.cell == cell else None
