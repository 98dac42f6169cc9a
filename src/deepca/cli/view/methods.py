"""What commands share that try several methods and recommend one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console

from deepca.solver.progress import ProgressBar, bars

__all__ = ["show_choice", "watching"]


@contextmanager
def watching(*, disable: bool) -> Iterator[Callable[[str], ProgressBar]]:
    """Gives a progress bar for each method that is tried; all are gone in the end."""
    progress = bars(Console(stderr=True, emoji=False), disable=disable)
    progress.live.transient = True
    with ExitStack() as showing:

        def watch(method: str) -> ProgressBar:
            if not progress.live.is_started:  # not before everything given has been checked
                showing.enter_context(progress)
            return ProgressBar(progress, description=f"trying {method}")

        yield watch


def show_choice(console: Console, recommended: str | None, reason: str) -> None:
    """Which one to take, and why."""
    if recommended is None:
        console.print(f"[red]✘[/] {reason}", highlight=False)
    else:
        console.print(f"[green]✔[/] [bold]{recommended}[/]: {reason}", highlight=False)
