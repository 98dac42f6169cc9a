"""Ranks for tests: jobs of mpiexec with a deadline, jobs that run many commands, and threads that act as ranks.

``python -m tests.support.mpi_jobs FOLDER``, started by mpiexec, is one rank of :func:`run_commands`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from deepca.engines.local import Engine
from tests.support.helpers import run_cli
from tests.support.paths import ROOT

__all__ = [
    "Answer",
    "Batch",
    "Command",
    "Job",
    "ThreadEngine",
    "as_words",
    "assert_over",
    "faulty_job",
    "lines_with",
    "mpi_job",
    "names_in",
    "run_commands",
    "run_job",
    "run_ranks",
    "user_environment",
]

WITHIN = 15.0  # seconds for a job to end after one rank fails
_GRACE = 5.0  # seconds for the processes of a job to end after mpiexec
_LAUNCHER_VARIABLES = ("OMPI_COMM_WORLD", "PMIX_", "PMI_")  # prefixes of variables that a launcher sets for its ranks
T_ = TypeVar("T_")


# ------------------------------------------------------------------------------------------------------------ one job


@dataclass(frozen=True)
class Job:
    """Outcome of a job.

    Attributes
    ----------
    code : int
        Exit code of mpiexec.
    over : float
        Time at which mpiexec and all its processes had ended (``time.time()``).
    left : tuple of str
        Command lines of processes that were still running then, and had to be killed.
    """

    code: int
    stdout: str
    stderr: str
    over: float
    left: tuple[str, ...]

    @property
    def said(self) -> str:
        """Exit code and output, for the messages of failed assertions."""
        return f"exit code {self.code}\n{self.stdout[-2000:]}\n{self.stderr[-6000:]}"


def mpi_job(
    ranks: int,
    *command: str | Path,
    cwd: Path | None = None,
    deadline: float = 200.0,
    more: Mapping[str, str] | None = None,
) -> Job:
    """Run ``mpiexec -n ranks command``; see :func:`run_job`."""
    return run_job(_mpiexec(), "-n", str(ranks), "--oversubscribe", *command, cwd=cwd, deadline=deadline, more=more)


def run_job(
    *command: str | Path, cwd: Path | None = None, deadline: float = 200.0, more: Mapping[str, str] | None = None
) -> Job:
    """Run a command that starts processes; fail the test unless it ends by the deadline, and leave nothing running.

    ``more`` is added to the environment of a user: without PYTHONPATH, and with one BLAS thread per rank.
    """
    words = list(map(str, command))
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env={**user_environment(), **(more or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # ranks have their own process groups, but stay in the session
    )
    try:
        stdout, stderr = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        running = _processes_of(process.pid)
        _end(process)
        stdout, stderr = process.communicate()
        pytest.fail(
            f"still running after {deadline:.0f} s: {' '.join(words)}\nrunning: {sorted(running.values())}\n"
            f"{stdout[-2000:]}\n{stderr[-4000:]}"
        )
    except BaseException:
        _end(process)
        raise
    end = time.monotonic() + _GRACE
    while (left := _processes_of(process.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    over = time.time()
    _end(process)
    return Job(process.returncode, stdout, stderr, over, tuple(left.values()))


def user_environment() -> dict[str, str]:
    """Return the environment without variables that a launcher or a checkout adds; root may start ranks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER_VARIABLES)}
    kept.pop("PYTHONPATH", None)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def _mpiexec() -> str:
    """Return the mpiexec installed beside this Python, or else the one on PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    assert found is not None, "mpiexec not found; pip install 'deepca[test]' includes it"
    return found


def _processes_of(session: int) -> dict[int, str]:
    """Return the running processes of a session, by process id, with their command lines (empty except on Linux)."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, _, _, of, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(of) == session and state not in "ZX":
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process and its whole session."""
    process.kill()  # does nothing if it has ended
    for pid in _processes_of(process.pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------------------------------------ a job in which a rank fails


_FAULTY = """
    import os, signal, sys, time
    from pathlib import Path
    from mpi4py import MPI
    import deepca.cli.commands.fit as command
    from deepca.cli import main
    from deepca.errors import DataError

    what, rank, t = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    del sys.argv[1:4]

    def fail():
        if what == "unexpected":
            return 1 // 0
        if what == "known":
            raise DataError("the disk of this rank is full of holes")
        if what == "sleeps":
            time.sleep(1000.0)
        os.kill(os.getpid(), {"stops": signal.SIGSTOP, "is killed": signal.SIGKILL}[what])

    class Faulty(command.ProgressBar):
        def observe(self, step):
            super().observe(step)
            if MPI.COMM_WORLD.rank == rank and step.after.t == t:
                Path("moment").write_text(repr(time.time()))
                fail()

    command.ProgressBar = Faulty
    main()
"""


def faulty_job(ranks: int, folder: Path, what: str, rank: int, t: int, *words: object) -> Job:
    """Run ``deepca`` with these words in a folder, with one rank failing after iteration t."""
    (folder / "faulty.py").write_text(textwrap.dedent(_FAULTY), encoding="utf-8")
    (folder / "moment").unlink(missing_ok=True)
    return mpi_job(ranks, *as_words(sys.executable, "faulty.py", what, rank, t, *words), cwd=folder, deadline=120.0)


def assert_over(job: Job, folder: Path, within: float = WITHIN) -> None:
    """Assert that the whole job failed in time, and left no process running and no partial file."""
    moment = float((folder / "moment").read_text())
    assert job.code != 0, job.said
    assert job.left == ()
    assert job.over - moment < within, job.said
    assert not list(folder.rglob("*.npz*"))


# ------------------------------------------------------------------------------------------- many commands in one job


@dataclass(frozen=True)
class Command:
    """``deepca`` with these words, run by all ranks at once in the folder ``within`` (with ``{rank}`` replaced)."""

    words: tuple[str, ...]
    within: str = "."


@dataclass(frozen=True)
class Answer:
    """Outcome of a command on one rank.

    Attributes
    ----------
    read, written : list of str
        Files in the folder of the batch that were opened.
    error : str or None
        Text of an unexpected exception.
    """

    code: int
    stdout: str
    stderr: str
    read: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    error: str | None = None


class Batch:
    """Outcomes of a job that runs one command after the other."""

    def __init__(self, job: Job, folder: Path, ranks: int) -> None:
        self.job, self._folder, self._ranks = job, folder, ranks

    def __getitem__(self, name: str) -> list[Answer]:
        """Return the outcomes of a command on all ranks."""
        files = [_answer_file(self._folder, name, rank) for rank in range(self._ranks)]
        if not all(file.exists() for file in files):
            pytest.fail(f"the job did not finish {name}\n{self.job.said}")
        return [Answer(**json.loads(file.read_text(encoding="utf-8"))) for file in files]


def run_commands(ranks: int, folder: Path, commands: Mapping[str, Command], *, deadline: float = 200.0) -> Batch:
    """Run commands in sequence on the same ranks, since starting a job takes longer than most commands.

    ``folder`` is the working directory, and receives the outcomes. If the job ends early, earlier outcomes are
    available.
    """
    listed = {name: asdict(command) for name, command in commands.items()}
    (folder / "commands.json").write_text(json.dumps(listed), encoding="utf-8")
    job = mpi_job(ranks, sys.executable, "-m", "tests.support.mpi_jobs", folder, cwd=ROOT, deadline=deadline)
    return Batch(job, folder, ranks)


def _answer_file(folder: Path, name: str, rank: int) -> Path:
    return folder / "answers" / f"{name}.{rank}.json"


def _be_a_rank(folder: Path) -> None:
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    opened: list[tuple[str, bool]] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
            path, _, flags = arguments
            opened.append((str(Path(path).resolve()), bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))))

    sys.addaudithook(watch)
    (folder / "answers").mkdir(exist_ok=True)
    for name, listed in json.loads((folder / "commands.json").read_text(encoding="utf-8")).items():
        command = Command(**listed)
        os.chdir(folder / command.within.format(rank=rank))
        MPI.COMM_WORLD.Barrier()
        opened.clear()
        done = run_cli(*command.words)
        mine = [(Path(path).relative_to(folder), write) for path, write in opened if Path(path).is_relative_to(folder)]
        unexpected = done.exception if not isinstance(done.exception, SystemExit) else None
        answer = Answer(
            done.exit_code,
            done.stdout,
            done.stderr,
            sorted({str(path) for path, write in mine if not write}),
            sorted({str(path) for path, write in mine if write}),
            None if unexpected is None else repr(unexpected),
        )
        _answer_file(folder, name, rank).write_text(json.dumps(asdict(answer)), encoding="utf-8")


# ------------------------------------------------------------------------------------------------ threads act as ranks


class _Meeting:
    """Meeting point at which threads exchange texts."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=30.0)
        self._said = [""] * ranks

    def texts(self, rank: int, own: str) -> list[str]:
        self._said[rank] = own
        self._barrier.wait()
        found = list(self._said)
        self._barrier.wait()
        return found


class ThreadEngine(Engine):
    """Engine of one of several ranks that are threads of this process: the common part of engines, without MPI."""

    name = "threads"

    def __init__(self, meeting: _Meeting, rank: int, ranks: int) -> None:
        self._meeting, self.rank, self.ranks = meeting, rank, ranks

    def gather_texts(self, own: str) -> list[str]:
        return self._meeting.texts(self.rank, own)


def run_ranks(ranks: int, work: Callable[[ThreadEngine], T_]) -> list[T_ | Exception]:
    """Return the result or exception of every rank."""
    meeting = _Meeting(ranks)

    def one(rank: int) -> T_ | Exception:
        try:
            return work(ThreadEngine(meeting, rank, ranks))
        except Exception as error:
            return error

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


def as_words(*words: object) -> tuple[str, ...]:
    """Return the words of a command line."""
    return tuple(map(str, words))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def lines_with(text: str, part: str) -> Sequence[str]:
    return [line for line in text.splitlines() if part in line]


if __name__ == "__main__":
    _be_a_rank(Path(sys.argv[1]).resolve())
