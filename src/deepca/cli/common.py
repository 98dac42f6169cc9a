"""What all commands share."""

from __future__ import annotations

import importlib.util
import json
import math
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from deepca.errors import DataError, DeepcaError, InvalidInput, MissingExtraError

__all__ = [
    "check_named_once",
    "check_output",
    "errors",
    "examples",
    "finite",
    "handling",
    "print_json",
    "require",
    "require_agent",
    "say",
]


@contextmanager
def errors(*, resumes: bool = False, silent: bool = False) -> Iterator[None]:
    """A user's mistake is one line on stderr and exit code 2, never a traceback.

    ``resumes`` : whether an interrupted command goes on where it stopped when it is called again.
    ``silent`` : whether another process says it.
    """
    try:
        yield
    except (DeepcaError, OSError) as error:
        if silent:
            raise typer.Exit(2) from None
        say(Console(stderr=True, emoji=False), f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        kept = (
            "what was finished is kept, and the same command goes on from there" if resumes else "nothing was written"
        )
        Console(stderr=True, emoji=False).print(f"stopped; {kept}")
        raise typer.Exit(130) from None


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle these signals as long as the context lasts; in threads other than the main one they stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def examples(*commands: str) -> str:
    """Return what stands below the options in the help of a command."""
    return "\n\n".join(["Examples:", *(f"  {command}" for command in commands)])


def say(console: Console, text: str) -> None:
    """Print a text whose lines are as long as they are, so that paths can be copied."""
    console.print(text, highlight=False, soft_wrap=True)


def print_json(said: object) -> None:
    """Print an answer for machines."""
    typer.echo(json.dumps(said, indent=2, ensure_ascii=False))


def finite(value: float) -> float | None:
    """Return the value, or None for JSON, which knows no infinity."""
    return value if math.isfinite(value) else None


def check_named_once(files: Sequence[Path]) -> None:
    """Raise DataError if a file is named twice."""
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise DataError(f"{file} is named twice: its rows would count double")
        seen.add(file.resolve())


def check_output(path: Path, option: str, inputs: Sequence[Path] = ()) -> None:
    """Says before any work is done that a file cannot be written, or would replace what is read."""
    if path.is_dir():
        raise InvalidInput(f"{option} {path}: this is a folder; give the name of a file")
    for file in inputs:
        if path.resolve() == file.resolve():
            raise InvalidInput(f"{option} {path}: this file is read; give another name, or its content would be lost")
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        raise InvalidInput(f"{option} {path}: nothing can be written to {folder}") from None


def require(*modules: str, extra: str) -> None:
    """An error that names the extra if a package is not there."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"this command needs {', '.join(missing)}; pip install 'deepca[{extra}]'")


def require_agent() -> None:
    """Raise an error that names the extra unless the packages of a site's agent are there."""
    require("grpc", "google", "cryptography", extra="agent")
    require("google.protobuf", extra="agent")  # not before "google" is known to be there
