"""Helpers that all commands share: errors, output files, extras and JSON."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from deepca._util.units import plural
from deepca.cli.command import message_for
from deepca.errors import DataError, DeepcaError, InvalidInput, MissingExtraError, ParameterError
from deepca.topology.names import agents_in_name

__all__ = [
    "check_agents_in_name",
    "check_distinct",
    "check_figure",
    "check_output",
    "errors",
    "finite",
    "handle_signals",
    "print_json",
    "print_unwrapped",
    "require",
    "require_agent",
    "site_file",
]

_CLOSED_PIPE = 141  # exit code of a process that SIGPIPE ended, as shells report it


@contextmanager
def errors(*, resumes: bool = False, silent: bool = False) -> Iterator[None]:
    """Report a user's mistake in one line on stderr with exit code 2, without a traceback.

    Parameters
    ----------
    resumes : bool
        Whether the same command resumes after an interruption.
    silent : bool
        Whether to print no error, because another process prints it.
    """
    try:
        yield
    except BrokenPipeError:  # nothing reads the output any more, as after `| head`
        _discard_output()
        raise typer.Exit(_CLOSED_PIPE) from None
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # rich ends the process in this case
            raise typer.Exit(_CLOSED_PIPE) from None
        raise
    except (DeepcaError, OSError) as error:
        if not silent:
            print_unwrapped(Console(stderr=True, emoji=False), f"[bold red]error:[/] {escape(message_for(error))}")
        raise typer.Exit(2) from None
    except MemoryError:
        print_unwrapped(
            Console(stderr=True, emoji=False), "[bold red]error:[/] out of memory; use fewer rows, columns or agents"
        )
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        state = "finished work is kept, and the same command resumes" if resumes else "nothing was written"
        Console(stderr=True, emoji=False).print(f"stopped; {state}")
        raise typer.Exit(130) from None


def _discard_output() -> None:
    """Discard what is still buffered for standard output, which would fail again when the process ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle signals within the context. Do nothing in threads other than the main one, where Python forbids it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def print_unwrapped(console: Console, text: str) -> None:
    """Print text without wrapping its lines, so that paths can be copied."""
    console.print(text, highlight=False, soft_wrap=True)


def print_json(answer: object) -> None:
    """Print an answer as JSON."""
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False))


def finite(value: float) -> float | None:
    """Return the value, or None if it is infinite or NaN, which JSON cannot express."""
    return value if math.isfinite(value) else None


def check_agents_in_name(topology: str, agents: int | None, files: int) -> None:
    """Raise InvalidInput if the name of a network contains another number of agents than there are.

    ``agents`` is the number given as ``--agents``; if it is None, every one of the ``files`` belongs to one agent.
    """
    written = agents_in_name(topology)
    if written is None or written == (files if agents is None else agents):
        return
    there = f"--agents is {agents}"
    if agents is None:
        there = f"there {'are' if files > 1 else 'is'} {files} file{plural(files)}"
    shorter = re.sub(r":[0-9x]+ *(?=\+|$)", "", topology)
    raise InvalidInput(
        f"--topology {topology} has {written} agent{plural(written)}, but {there}; write --topology {shorter}, or "
        f"--agents {written}",
        parameter="topology",
        value=topology,
    )


def check_distinct(files: Sequence[Path]) -> None:
    """Raise DataError if the same file is given twice."""
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise DataError(f"{file} is given twice, so its rows would count twice; give it once", file=str(file))
        seen.add(file.resolve())


def check_output(path: Path, option: str, inputs: Sequence[Path] = ()) -> None:
    """Raise InvalidInput if a file cannot be written or would overwrite an input; called before any work is done."""
    name = option.lstrip("-")
    if path.is_dir():
        raise InvalidInput(f"{option} {path}: this is a folder; give the name of a file", parameter=name, value=path)
    for file in inputs:
        if path.resolve() == file.resolve():
            raise InvalidInput(
                f"{option} {path}: this file is an input and would be overwritten; give another name",
                parameter=name,
                value=path,
            )
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        raise InvalidInput(
            f"{option} {path}: cannot write to {folder}; give a path in a writable folder", parameter=name, value=path
        ) from None


def check_figure(path: Path, inputs: Sequence[Path] = ()) -> None:
    """Raise an error unless a figure can be written to a path given as ``--plot``."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise ParameterError("plot", path, "give the name of a file that ends in .png or .svg")
    check_output(path, "--plot", inputs)
    require("matplotlib", extra="plot")


def require(*modules: str, extra: str) -> None:
    """Raise MissingExtraError, naming the extra to install, if one of the modules is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"this command needs {', '.join(missing)}; pip install 'deepca[{extra}]'")


def require_agent() -> None:
    """Raise MissingExtraError unless the modules that a site's agent needs are installed."""
    require("grpc", "google", "cryptography", extra="agent")
    require("google.protobuf", extra="agent")  # find_spec would raise if "google" itself were missing


def site_file(site: Path) -> Path:
    """Return the ``site.toml`` that a path or its folder stands for; raise InvalidInput if it does not exist."""
    file = site / "site.toml" if site.is_dir() else site
    if not file.is_file():
        raise InvalidInput(
            f"{file}: file not found; check the path, or give the folder of a kit made by deepca init", file=str(file)
        )
    return file
