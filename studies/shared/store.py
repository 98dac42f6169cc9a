"""Store finished runs as one small JSON file each and reuse them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from deepca import __version__
from deepca._util.files import write_atomic
from deepca._util.machine import one_blas_thread
from deepca.reproduction.runner import in_parallel

__all__ = ["Record", "Task", "key", "run"]

Record = dict[str, Any]
"""Result of a run as JSON data."""
_FORMAT = 1  # part of the key; increment when the meaning of a task changes


class Task(Protocol):
    """Description of a run: a frozen dataclass of plain data."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def cost(self) -> float:
        """Relative duration, for scheduling and the estimate of the remaining time."""
        ...


T = TypeVar("T", bound=Task)


def key(task: Task, edition: str = "") -> str:
    """Return a name unique to the task, the package version and the edition of the data."""
    kind = f"{type(task).__module__}.{type(task).__qualname__}"
    text = json.dumps([_FORMAT, __version__, edition, kind, asdict(task)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def run(
    tasks: Iterable[T],
    work: Callable[[T], Record],
    store: Path,
    jobs: int | None = None,
    progress: Callable[[float, float], None] | None = None,
    edition: Callable[[T], str] | None = None,
) -> dict[T, Record]:
    """Return the record of every task, reading stored ones and running the others.

    Records are stored one by one, so an interruption loses no finished run.

    Parameters
    ----------
    tasks : iterable of Task
        Tasks to run.
    work : callable
        Makes the record of a task. It is sent to other processes, so it must be picklable: a module-level function,
        or a partial of one.
    store : Path
        Folder of the records.
    jobs : int, optional
        Number of processes, each with one BLAS thread; all usable cores by default.
    progress : callable, optional
        Called with ``(done, total)`` in units of cost.
    edition : callable, optional
        Returns the edition of the data that a task uses; records of other editions are not reused.

    Returns
    -------
    dict
        Record of each task, in the order of the tasks.
    """
    wanted = list(dict.fromkeys(tasks))
    files = {task: store / f"{key(task, edition(task) if edition else '')}.json" for task in wanted}
    found = {task: record for task in wanted if (record := _stored(task, files[task])) is not None}
    # longest first, so that no core is left with a long task at the end
    todo = sorted((task for task in wanted if task not in found), key=lambda task: task.cost, reverse=True)
    done, total = sum(task.cost for task in found), sum(task.cost for task in wanted)
    report_progress = progress or (lambda _done, _total: None)
    report_progress(done, total)
    for task, record in in_parallel(partial(_one, work), todo, jobs):
        content = json.dumps({"task": asdict(task), "record": record}, indent=1, allow_nan=False)
        write_atomic(files[task], content.encode())
        found[task] = record
        report_progress(done := done + task.cost, total)
    return {task: found[task] for task in wanted}


def _one(work: Callable[[T], Record], task: T) -> tuple[T, Record]:
    with one_blas_thread():
        return task, work(task)


def _stored(task: Task, file: Path) -> Record | None:
    """Return the stored record, or None if the file is missing, damaged or belongs to another task."""
    try:
        content = json.loads(file.read_bytes())
        record, description = content["record"], content["task"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if description == json.loads(json.dumps(asdict(task))) and isinstance(record, dict) else None
