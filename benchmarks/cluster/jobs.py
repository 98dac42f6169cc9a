"""Run measurements in other processes, alone or under mpiexec, which report lines of JSON before a deadline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Job", "JobFailed", "NoLauncher", "environment", "mpiexec"]

_GRACE = 10.0  # seconds that mpiexec has to terminate its ranks


class JobFailed(RuntimeError):
    """A job failed or missed its deadline.

    Parameters
    ----------
    message : str
        What happened, followed by the last lines that the job wrote.
    exit_code : int, optional
        Exit code of a job that failed by itself.
    late : bool
        Whether the job missed its deadline.
    output : str
        Last lines that the job wrote to its standard error.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, late: bool = False, output: str = "") -> None:
        super().__init__(message)
        self.exit_code, self.late, self.output = exit_code, late, output


class NoLauncher(JobFailed):
    """mpiexec, which starts the ranks, was not found."""


class Job:
    """A Python module run by ``ranks`` processes of mpiexec, or by one process without MPI.

    Rank 0 prints one line of JSON per result; lines are read as they arrive. A job that exceeds ``deadline`` seconds is
    terminated with all its ranks. ``threads`` is the number of BLAS threads of every process.
    """

    def __init__(
        self, module: str, *arguments: str, ranks: int | None = None, threads: int = 1, deadline: float
    ) -> None:
        self._name = " ".join((module, *arguments)) + (f" on {ranks} ranks" if ranks else "")
        start = [] if ranks is None else [mpiexec(), "-n", str(ranks), "--oversubscribe"]
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed with the job
        self._process = subprocess.Popen(
            [*start, sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(threads),
        )
        self._deadline, self._late = deadline, False
        self._timer = threading.Timer(deadline, self._on_deadline)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Self:
        """Return this job."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Terminate the job if an exception was raised, and close its streams."""
        if kind is not None:
            self._end()
        self._timer.cancel()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def answers(self) -> Iterator[Any]:
        """Yield each object that the job prints; raise JobFailed if the job fails."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        while (line := self._line()) is not None:
            yield line
        self.finish()

    def ask(self, question: Any) -> Any:
        """Send a question as one line and return the answer; raise JobFailed if the job ends without an answer."""
        if self._process.stdin is None:
            raise JobFailed(f"{self._name} does not read questions")
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.finish()
        answer = self._line()
        if answer is None:
            self.finish()
            raise JobFailed(f"{self._name} ended before it answered")
        return answer

    def finish(self) -> None:
        """Ask the job to end, by an empty line, and raise JobFailed if it fails."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(BrokenPipeError):
                self._process.stdin.write("\n")  # mpiexec does not forward the end of its input to the ranks
                self._process.stdin.close()
        code = self._process.wait()
        self._timer.cancel()
        if code != 0:
            why = f"took longer than {self._deadline:.0f} s" if self._late else f"ended with exit code {code}"
            self._errors.seek(0)
            output = "".join(self._errors.readlines()[-12:])
            raise JobFailed(
                f"{self._name} {why}\n{output}".rstrip(),
                exit_code=None if self._late else code,
                late=self._late,
                output=output,
            )

    def _line(self) -> Any:
        if self._process.stdout is None:
            return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def _on_deadline(self) -> None:
        self._late = True
        self._end()

    def _end(self) -> None:
        self._process.terminate()  # mpiexec forwards the signal to its ranks
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()


def mpiexec() -> str:
    """Return the mpiexec installed beside this Python, or else the one on PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise NoLauncher(
            "mpiexec not found beside this Python or on PATH; pip install 'deepca[mpi]', or install an MPI library"
        )
    return found


def environment(threads: int) -> dict[str, str]:
    """Return this environment with ``threads`` BLAS threads; if this process is root, ranks may run as root."""
    count = str(threads)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), count)
    root = {}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **limits, **root}
