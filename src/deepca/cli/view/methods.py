"""Show a comparison of methods, and the recommended one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.table import Table

from deepca.solver.progress import ProgressBar, bars

__all__ = ["add_method", "method_progress", "show_recommendation"]


@contextmanager
def method_progress(*, disable: bool) -> Iterator[Callable[[str], ProgressBar]]:
    """Provide a function that adds a progress bar for a method; all bars are removed at the end."""
    progress = bars(Console(stderr=True, emoji=False), disable=disable)
    progress.live.transient = True
    with ExitStack() as showing:

        def observer_factory(method: str) -> ProgressBar:
            if not progress.live.is_started:  # only once the input has been checked
                showing.enter_context(progress)
            return ProgressBar(progress, description=f"running {method}")

        yield observer_factory


def add_method(table: Table, method: str, *cells: str, recommended: str | None, reaches: bool) -> None:
    """Add the row of a method, highlighted if it is recommended and dimmed if it misses the tolerance."""
    chosen = method == recommended
    style = "bold green" if chosen else "" if reaches else "dim"
    table.add_row(f"{'▸' if chosen else ' '} {method}", *cells, style=style)


def show_recommendation(console: Console, recommended: str | None, reason: str) -> None:
    """Show the recommended method and the reason."""
    if recommended is None:
        console.print(f"[red]✘[/] {reason}", highlight=False)
    else:
        console.print(f"[green]✔[/] [bold]{recommended}[/]: {reason}", highlight=False)
