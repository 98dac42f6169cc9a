"""Compare times on one core and on two, asking several engines in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster.data import is_available, rows_of
from benchmarks.cluster.engines import SOLVERS
from benchmarks.cluster.jobs import Job

__all__ = ["CORES", "DATA", "EnginesDisagree", "Question", "Scaling", "asked", "measure", "measure_one", "present"]

CORES = (1, 2)
DATA = ("dense", "w8a")
_ENGINES = ("mpi", "simulator", "scikit-learn")
_ITERATIONS = {("dense", "rows"): 8, ("dense", "covariance"): 200, ("w8a", "rows"): 100, ("w8a", "covariance"): 1_000}
_TOLERANCE = 1e-6  # largest relative difference of variances between engines


class EnginesDisagree(RuntimeError):
    """Engines computed different variances for the same data, so their times cannot be compared."""


@dataclass(frozen=True)
class Question:
    """A question to one engine on a number of cores, about all rows (``whole``) or half of them."""

    engine: str
    cores: int
    what: str
    whole: bool = True


Times = dict[Question, tuple[float, ...]]


@dataclass(frozen=True)
class Scaling:
    """Seconds of every question by repetition, and the iterations of a fit."""

    data: str
    rows: int
    times: Times
    iterations: int

    def ratio(self, above: Question, below: Question) -> Any:
        """Return the ratio of the times of two questions, by repetition."""
        return np.array(self.times[above]) / np.array(self.times[below])

    def best(self, cores: int, *, whole: bool = True) -> Question:
        """Return the question about the faster of scikit-learn's solvers."""
        solvers = [Question("scikit-learn", cores, solver, whole) for solver in SOLVERS]
        return min(solvers, key=lambda question: float(np.median(self.times[question])))


def asked() -> Iterator[Question]:
    """Yield all questions; those to be compared follow each other closely."""
    for what in ("fit", "rows", "covariance"):
        for engine in ("mpi", "simulator"):
            for cores in CORES:
                yield Question(engine, cores, what)
            if what != "covariance":  # independent of the number of rows
                yield Question(engine, 1, what, whole=False)
    for solver in SOLVERS:
        for cores in CORES:
            yield Question("scikit-learn", cores, solver)
        yield Question("scikit-learn", 1, solver, whole=False)
    for what in ("products", "reading"):
        for cores in CORES:
            yield Question("mpi", cores, what)


def present(folder: Path | None) -> list[str]:
    """Return the data sets that are available."""
    return [data for data in DATA if is_available(data, folder)]


def measure(
    data: list[str], folder: Path | None, quick: bool, repetitions: int, tick: Callable[[str], None]
) -> list[Scaling]:
    """Start all engines once and ask them in turn, reversing the order every second time."""
    with ExitStack() as stack:
        jobs = {
            (engine, cores): stack.enter_context(_job(engine, cores, folder)) for engine in _ENGINES for cores in CORES
        }
        found = [measure_one(name, quick, jobs, repetitions, tick) for name in data]
        for job in jobs.values():
            job.finish()
    return found


def measure_one(
    data: str, quick: bool, jobs: dict[tuple[str, int], Job], repetitions: int, tick: Callable[[str], None]
) -> Scaling:
    """Ask all engines about one data set; raise EnginesDisagree if their variances differ."""
    rows = rows_of(data, quick)
    taken: dict[Question, list[float]] = {question: [] for question in asked()}
    variances: dict[bool, list[Any]] = {True: [], False: []}
    iterations = 0
    for repetition in range(repetitions + 1):
        questions = list(asked())
        for question in questions if repetition % 2 == 0 else reversed(questions):
            answer = jobs[question.engine, question.cores].ask(_line(question, data, rows, quick))
            if repetition:  # the first one allocates memory and builds matrices
                taken[question].append(float(answer["seconds"]))
            elif "variances" in answer:
                variances[question.whole].append(answer["variances"])
            iterations = max(iterations, int(answer.get("iterations", 0)))
            tick(data)
    for seen in variances.values():
        _check_agreement(np.array(seen), data)
    return Scaling(data, rows, {question: tuple(seconds) for question, seconds in taken.items()}, iterations)


def _line(question: Question, data: str, rows: int, quick: bool) -> dict[str, Any]:
    count = _ITERATIONS.get((data, question.what), 1)
    return {
        "data": data,
        "rows": rows if question.whole else rows // 2,
        "what": question.what,
        "count": max(count // 5, 1) if quick else count,
    }


def _check_agreement(variances: Any, data: str) -> None:
    """Raise EnginesDisagree unless all engines found the same variances."""
    difference = float((np.ptp(variances, axis=0) / variances.mean(axis=0)).max())
    if not difference <= _TOLERANCE:
        raise EnginesDisagree(
            f"{data}: variances of the engines differ by {difference:.1e}, so their times cannot be compared"
        )


def _job(engine: str, cores: int, folder: Path | None) -> Job:
    where = () if folder is None else ("--data", str(folder))
    if engine == "mpi":
        return Job("benchmarks.cluster.engines", engine, *where, ranks=cores, deadline=900.0)
    threads = cores if engine == "scikit-learn" else 1
    return Job("benchmarks.cluster.engines", engine, "--cores", str(cores), *where, threads=threads, deadline=900.0)
