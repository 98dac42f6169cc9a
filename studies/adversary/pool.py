"""Worker processes under a watchdog: a case that does not end is killed and counted."""

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

DEADLINE = 300.0  # seconds for one case; the slowest take fifteen, and many times that where others use the machine
_LOOK = 0.5  # seconds between looks at the clock

Case = tuple[str, int]


def serve_cases(pipe: Connection) -> None:
    """Say that imports are done; then run every case that comes, and send its outcome."""
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
    """Outcomes as they come; a worker that exceeds ``deadline`` on a case, or dies of it, is replaced.

    serve : what a worker does with its end of a pipe; a function that can be pickled.
    """
    waiting = iter(cases)
    workers = [_Worker(serve) for _ in range(processes)]
    try:
        busy = [worker for worker in workers if worker.start(next(waiting, None))]
        while busy:
            ready = wait([worker.pipe for worker in busy], timeout=_LOOK)
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
    """A process and the case it is at."""

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
        self.pipe.recv()  # imports are done, and do not count

    def start(self, case: Case | None) -> bool:
        if case is None:
            return False
        self.case, self.began = case, time.monotonic()
        self.pipe.send(case)
        return True

    def outcome(self, deadline: float, *, ready: bool) -> Outcome | None:
        """Of the case at hand, if it is over or has to be."""
        taken = time.monotonic() - self.began
        if ready:
            with suppress(EOFError, ConnectionResetError):
                found: Outcome = self.pipe.recv()
                return found
        elif taken <= deadline:
            return None
        self.end()
        self.__post_init__()
        why = "died" if ready else f"did not end within {deadline:.0f} s"
        return Outcome(*self.case, "hang", False, 0.0, 0.0, 0, 0, (f"hang: {why}",), seconds=taken, hung=True)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
