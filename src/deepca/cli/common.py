"""What all commands share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

from deepca.errors import DeepcaError, MissingExtraError

__all__ = ["errors", "require"]


@contextmanager
def errors() -> Iterator[None]:
    """A user's mistake is one line on stderr and exit code 2, never a traceback."""
    try:
        yield
    except (DeepcaError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; what was finished is kept, and the same command goes on from there")
        raise typer.Exit(130) from None


def require(*modules: str, extra: str) -> None:
    """An error that names the extra if a package is not there."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"this command needs {', '.join(missing)}; pip install 'deepca[{extra}]'")
