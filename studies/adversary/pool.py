"""Run cases in worker processes with a time limit; a case that exceeds it is killed and reported."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from studies.adversary import run
from studies.adversary.trial import Outcome

__all__ = ["DEADLINE", "Case", "run_all", "serve_cases"]

DEADLINE = 300.0  # seconds per case; the slowest take 15 s, and far longer on a busy machine
_POLL_INTERVAL = 0.5  # seconds between checks of the time limit

Case = tuple[str, int]


def serve_cases(pipe: Connection) -> None:
    """Signal that imports are done, then run each case received and send back its outcome."""
    pipe.send(None)
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            pipe.send(run(*pipe.recv()))


def run_all(
    cases: Iterable[Case],
    *,
    processes: int = 2,
    deadline: float = DEADLINE,
    serve: Callable[[Connection], None] = serve_cases,
) -> Iterator[Outcome]:
    """Yield outcomes in order of completion.

    A worker that dies or exceeds ``deadline`` seconds on a case is replaced, and the case counts as hung.

    Parameters
    ----------
    cases : iterable of (str, int)
        Family and seed of each case.
    processes : int
        Number of worker processes.
    deadline : float
        Time limit per case in seconds.
    serve : callable
        Main function of a worker, called with its end of a pipe. It must be picklable.

    Yields
    ------
    Outcome
    """
    waiting = iter(cases)
    workers = [_Worker(serve) for _ in range(processes)]
    try:
        busy = [worker for worker in workers if worker.start(next(waiting, None))]
        while busy:
            ready = wait([worker.pipe for worker in busy], timeout=_POLL_INTERVAL)
            for worker in list(busy):
                outcome = worker.outcome(deadline, ready=worker.pipe in ready)
                if outcome is None:
                    continue
                yield outcome
                if not worker.start(next(waiting, None)):
                    busy.remove(worker)
    finally:
        for worker in workers:
            worker.end()


@dataclass
class _Worker:
    """A worker process and the case it is running."""

    serve: Callable[[Connection], None]
    process: BaseProcess = field(init=False)
    pipe: Connection = field(init=False)
    case: Case = field(init=False, default=("", 0))
    began: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=self.serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()  # wait for the imports, which do not count towards the time limit

    def start(self, case: Case | None) -> bool:
        if case is None:
            return False
        self.case, self.began = case, time.monotonic()
        self.pipe.send(case)
        return True

    def outcome(self, deadline: float, *, ready: bool) -> Outcome | None:
        """Return the outcome of the current case if it has finished or exceeded the deadline, else None."""
        taken = time.monotonic() - self.began
        if ready:
            with suppress(EOFError, ConnectionResetError):
                found: Outcome = self.pipe.recv()
                return found
        elif taken <= deadline:
            return None
        self.end()
        self.__post_init__()
        why = "the worker died" if ready else f"not finished within {deadline:.0f} s"
        return Outcome(*self.case, "hang", False, 0.0, 0.0, 0, 0, (f"hang: {why}",), seconds=taken, hung=True)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
