"""Commands that may run on several ranks: one of them speaks, and all end together."""

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
from deepca.engines.local import Engine, engine_of
from deepca.errors import InvalidInput, MissingExtraError

__all__ = ["console_behind_launcher", "consoles", "ending_together", "with_ranks"]


@contextmanager
def ending_together(
    name: str, *, allreduce: bool = False, timeout: float | None = None, resumes: bool = False
) -> Iterator[Engine]:
    """The engine of that name. A mistake that all ranks see is said once, by rank 0, and all have its exit code."""
    with errors(resumes=resumes):
        if name == "simulator" and launched_ranks() > 1:
            raise InvalidInput(
                f"{launched_ranks()} ranks were started, but the simulator is one process; add --engine mpi"
            )
        if name == "simulator" and timeout is not None:
            raise InvalidInput("--timeout is for ranks that wait for each other; add --engine mpi, or leave it out")
        engine = engine_of(name, allreduce=allreduce, timeout=600.0 if timeout is None else timeout)
    with errors(resumes=resumes, silent=not engine.speaks), engine.guard():
        yield engine


def consoles(engine: Engine) -> tuple[Console, Console]:
    """For notes (stderr) and for results (stdout). Under a launcher, as wide and as colourful as its own are."""
    if engine.name != "mpi" or launched_ranks() < 2:
        return Console(stderr=True, emoji=False), Console(emoji=False)
    return console_behind_launcher(2), console_behind_launcher(1)


def with_ranks(ranks: int, words: Sequence[str]) -> int:
    """Run ``deepca`` with these words on so many ranks of this machine; the exit code."""
    beside = Path(sys.executable).with_name("mpiexec")
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if launcher is None:
        raise MissingExtraError("there is no mpiexec here; pip install 'deepca[mpi]', or load this cluster's MPI")
    environment = dict(os.environ)
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # in a container, most likely
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    more = ["--oversubscribe"] if ranks > (os.cpu_count() or 1) else []
    command = [launcher, "-n", str(ranks), *more, sys.executable, "-m", "deepca", *words]
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own words


def console_behind_launcher(descriptor: int) -> Console:
    """Return a console as wide and as colourful as what is behind the launcher's own output.

    The launcher stands between rank 0 and the terminal, if there is one.
    """
    try:
        behind = os.open(f"/proc/{os.getppid()}/fd/{descriptor}", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return Console(stderr=descriptor == 2, force_terminal=False, emoji=False)
    try:
        width = os.get_terminal_size(behind).columns
    except OSError:
        return Console(stderr=descriptor == 2, force_terminal=False, emoji=False)
    finally:
        os.close(behind)
    return Console(stderr=descriptor == 2, force_terminal=True, width=width or None, emoji=False)
