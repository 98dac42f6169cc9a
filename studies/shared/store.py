"""Runs that are kept: one small JSON file per finished run, read again the next time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from deepca import __version__
from deepca._util.files import write_whole
from deepca._util.machine import one_blas_thread
from deepca.reproduction.runner import in_parallel

__all__ = ["Record", "Task", "key", "run"]

Record = dict[str, Any]
"""What a run found, of numbers, texts, None, and lists and dicts of them."""
_FORMAT = 1  # of the files; raise it when a task means something else than before


class Task(Protocol):
    """The description of a run: a frozen dataclass of plain data."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def cost(self) -> float:
        """Relative time, for the time left."""
        ...


T = TypeVar("T", bound=Task)


def key(task: Task, edition: str = "") -> str:
    """A name that no other task, version of the package or edition of the data has."""
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
    """The record of every task: those in the folder ``store`` are read, the others made and stored one by one.

    Parameters
    ----------
    work : makes the record. It is sent to other processes, so it is a function of a module, or a partial of one.
    jobs : processes; all usable cores by default. Each has one BLAS thread.
    progress : told ``(done, total)`` in units of cost.
    edition : of the data that a task uses; another edition is another record.

    Interrupted, nothing finished is lost.
    """
    wanted = list(dict.fromkeys(tasks))
    files = {task: store / f"{key(task, edition(task) if edition else '')}.json" for task in wanted}
    found = {task: record for task in wanted if (record := _stored(task, files[task])) is not None}
    # the longest first, so that no core is left with a long one at the end
    todo = sorted((task for task in wanted if task not in found), key=lambda task: task.cost, reverse=True)
    done, total = sum(task.cost for task in found), sum(task.cost for task in wanted)
    tell = progress or (lambda _done, _total: None)
    tell(done, total)
    for task, record in in_parallel(partial(_one, work), todo, jobs):
        content = json.dumps({"task": asdict(task), "record": record}, indent=1, allow_nan=False)
        write_whole(files[task], content.encode())
        found[task] = record
        tell(done := done + task.cost, total)
    return {task: found[task] for task in wanted}


def _one(work: Callable[[T], Record], task: T) -> tuple[T, Record]:
    with one_blas_thread():
        return task, work(task)


def _stored(task: Task, file: Path) -> Record | None:
    """None for a file that is not there, damaged, or of another task."""
    try:
        content = json.loads(file.read_bytes())
        record, description = content["record"], content["task"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if description == json.loads(json.dumps(asdict(task))) and isinstance(record, dict) else None
