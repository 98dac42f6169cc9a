"""Run commands on MPI ranks: rank 0 prints, and all ranks exit together with the same code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from deepca._util.machine import launched_ranks
from deepca.cli.common import errors
from deepca.engines.local import Engine, create_engine
from deepca.errors import InvalidInput, MissingExtraError

__all__ = ["TIMEOUT", "consoles", "launcher_console", "run_on_ranks", "running_engine"]

TIMEOUT = 600.0  # seconds that a rank waits for others by default


@contextmanager
def running_engine(
    name: str, *, allreduce: bool = False, timeout: float | None = None, resumes: bool = False
) -> Iterator[Engine]:
    """Provide the named engine. Rank 0 alone prints an error that all ranks raise; all exit with the same code."""
    with errors(resumes=resumes):
        if name == "simulator" and launched_ranks() > 1:
            raise InvalidInput(
                f"{launched_ranks()} ranks were started, but the simulator runs in one process; add --engine mpi",
                parameter="engine",
            )
        if name == "simulator" and timeout is not None:
            raise InvalidInput("--timeout applies to MPI ranks only; add --engine mpi, or omit it", parameter="timeout")
        engine = create_engine(name, allreduce=allreduce, timeout=TIMEOUT if timeout is None else timeout)
    with errors(resumes=resumes, silent=not engine.is_root), engine.guard():
        yield engine


def consoles(engine: Engine) -> tuple[Console, Console]:
    """Return consoles for notes (stderr) and results (stdout); under mpiexec, with the width of its terminal."""
    if engine.name != "mpi" or launched_ranks() < 2:
        return Console(stderr=True, emoji=False), Console(emoji=False)
    return launcher_console(2), launcher_console(1)


def run_on_ranks(ranks: int, arguments: Sequence[str]) -> int:
    """Run ``deepca`` with these arguments on ``ranks`` MPI ranks of this machine, and return the exit code."""
    own = Path(sys.executable).with_name("mpiexec")
    launcher = str(own) if own.exists() else shutil.which("mpiexec")
    if launcher is None:
        raise MissingExtraError(
            "mpiexec was not found; pip install 'deepca[mpi]', or load the MPI module of this cluster"
        )
    environment = dict(os.environ)
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # usually a container; Open MPI refuses root otherwise
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    more = ["--oversubscribe"] if ranks > (os.cpu_count() or 1) else []
    command = [launcher, "-n", str(ranks), *more, sys.executable, "-m", "deepca", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own arguments


def launcher_console(descriptor: int) -> Console:
    """Return a console with the width and colours of the terminal to which the launcher forwards rank 0's output."""
    try:
        terminal = os.open(f"/proc/{os.getppid()}/fd/{descriptor}", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return Console(stderr=descriptor == 2, force_terminal=False, emoji=False)
    try:
        width = os.get_terminal_size(terminal).columns
    except OSError:
        return Console(stderr=descriptor == 2, force_terminal=False, emoji=False)
    finally:
        os.close(terminal)
    return Console(stderr=descriptor == 2, force_terminal=True, width=width or None, emoji=False)
