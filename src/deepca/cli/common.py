"""What all commands share."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from deepca.errors import DeepcaError, InvalidInput, MissingExtraError

__all__ = ["check_output", "errors", "require"]


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
        Console(stderr=True, emoji=False).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        kept = (
            "what was finished is kept, and the same command goes on from there" if resumes else "nothing was written"
        )
        Console(stderr=True, emoji=False).print(f"stopped; {kept}")
        raise typer.Exit(130) from None


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
