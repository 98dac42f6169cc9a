"""Terminal view of a running agent."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deepca._util.units import format_bytes, plural
from deepca.cli.view.log import AgentLog, text_of
from deepca.sites.config.site_file import SiteFile
from deepca.sites.runtime.node import LinkSnapshot
from deepca.sites.runtime.status import AgentSnapshot, span

__all__ = ["Screen", "render_screen"]

_LOG_LINES = 6  # last lines of the log that are shown
_SHOWN_ABOVE = {"progress", "waiting"}  # events that the upper part of the view shows
_COLOURS = {"up": "green", "silent": "yellow", "down": "red"}
_LEVELS = {logging.INFO: "dim", logging.WARNING: "yellow", logging.ERROR: "bold red"}


class Screen:
    """Context that shows the state of a running agent, refreshed several times per second, and removes it at the end.

    Attributes
    ----------
    log : AgentLog
        Handler of the agent's events, whose last lines are shown at the bottom.
    """

    def __init__(self, site: SiteFile, snapshot: Callable[[], AgentSnapshot], console: Console) -> None:
        self._site, self._snapshot = site, snapshot
        self.lines: deque[logging.LogRecord] = deque(maxlen=200)
        self.log = AgentLog(None, site=site.site, listener=self._receive)
        self._began = time.monotonic()
        self._live = Live(
            get_renderable=self._picture, console=console, refresh_per_second=4, transient=True, redirect_stdout=False
        )

    def __enter__(self) -> Screen:
        """Start the view."""
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the view."""
        self._live.stop()
        self.log.close()

    def print_last_problems(self) -> None:
        """Print the last warnings and errors of the log, after the view has been removed."""
        for record in [record for record in self.lines if record.levelno > logging.INFO][-_LOG_LINES:]:
            self._live.console.print(_line(record))

    def _receive(self, record: logging.LogRecord) -> None:
        if vars(record)["event"] not in _SHOWN_ABOVE:
            self.lines.append(record)

    def _picture(self) -> RenderableType:
        return render_screen(self._site, self._snapshot(), list(self.lines), time.monotonic() - self._began)


def render_screen(
    site: SiteFile, snapshot: AgentSnapshot, lines: Sequence[logging.LogRecord], elapsed: float
) -> RenderableType:
    """Return the view, as wide and high as the terminal allows."""
    return _Picture(site, snapshot, lines, elapsed)


class _Picture:
    def __init__(
        self, site: SiteFile, snapshot: AgentSnapshot, lines: Sequence[logging.LogRecord], elapsed: float
    ) -> None:
        self._site, self._now, self._lines, self._elapsed = site, snapshot, lines, elapsed

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        parts: list[RenderableType] = [self._header(), self._doing(), *self._numbers()]
        parts += [Padding(Text(text, style="yellow"), (0, 0, 0, 2)) for text in self._waits()]
        room = height - len(parts) - 5 - min(len(self._lines), _LOG_LINES)
        if self._now.links:
            parts += [Text(), *self._links(max(room, 3), width)]
        if self._lines:
            parts.append(Rule(style="dim"))
            parts += [_line(record) for record in self._lines[-_LOG_LINES:]]
        yield Group(*parts)

    def _header(self) -> RenderableType:
        grid = Table.grid(expand=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        grid.add_column(justify="right", no_wrap=True)
        network = self._site.network
        grid.add_row(
            f"[bold]{escape(self._site.site)}[/] [dim]of[/] {escape(network.name)} [dim]· run[/] {escape(network.run)}",
            f"[dim]{_clock(self._elapsed)}[/]",
        )
        return grid

    def _doing(self) -> RenderableType:
        now, m = self._now, len(self._site.network.sites)
        colour = "yellow" if now.waits else "green"
        epoch = f" [dim]· epoch {now.epoch} with {now.members} of {m} site{plural(m)}[/]" if now.members else ""
        return Text.from_markup(f"[{colour}]●[/] [bold]{escape(now.doing)}[/]{epoch}", overflow="ellipsis")

    def _numbers(self) -> list[RenderableType]:
        now = self._now
        parts = []
        if now.iteration is not None:
            parts.append(f"iteration {now.iteration}")
            if now.change is not None:
                parts.append(f"change {now.change:.0e}")
            if now.disagreement is not None:
                parts.append(f"disagreement {now.disagreement:.0e}")
            if now.left is not None:
                parts.append(f"about {span(now.left)} left")
        traffic = f"sent {format_bytes(now.sent)} · received {format_bytes(now.received)}"
        return [Text("  " + " · ".join(part)) for part in (parts, [traffic]) if part]

    def _waits(self) -> list[str]:
        waits = self._now.waits
        if not waits:
            return []
        return [f"waiting for {waits[0].text}", *(f"        and {wait.text}" for wait in waits[1:4])] + (
            [f"        and {len(waits) - 4} more"] if len(waits) > 4 else []
        )

    def _links(self, room: int, width: int) -> list[RenderableType]:
        """Return the table of links, as many as fit, those with problems first."""
        links = sorted(self._now.links, key=lambda link: ("down", "silent", "up").index(link.state))
        troubled = sum(bool(link.why) for link in links)
        shown = links[: max(room - min(troubled, room // 2), 2)] if len(links) + troubled > room else links
        skewed = any(link.skew is not None for link in links)
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("  neighbour", no_wrap=True, overflow="ellipsis", max_width=max(width // 4, 12))
        table.add_column("link", no_wrap=True)
        for name in ("last heard", "sent", "received", "sent again", *(["clock"] if skewed else [])):
            table.add_column(name, justify="right", no_wrap=True)
        for link in shown:
            table.add_row(*_row(link, skewed))
        parts: list[RenderableType] = [table]
        if len(shown) < len(links):
            rest = links[len(shown) :]
            up = sum(link.state == "up" for link in rest)
            parts.append(Text(f"  … and {len(rest)} more, {up} of them up", style="dim"))
        reasons = [link.why for link in shown if link.why][: max(room // 2, 1)]
        parts += [
            Padding(Text(f"{why}", style="red", overflow="ellipsis", no_wrap=True), (0, 0, 0, 2)) for why in reasons
        ]
        return parts


def _row(link: LinkSnapshot, skewed: bool) -> list[RenderableType]:
    silent = link.silent_for
    last = "never" if silent is None else "now" if silent < 1.0 else f"{span(silent)} ago"
    cells: list[RenderableType] = [
        Text(f"  {link.site}"),
        Text(link.state, style=_COLOURS[link.state]),
        last,
        format_bytes(link.sent_bytes),
        format_bytes(link.received_bytes),
        Text(str(link.retransmissions), style="yellow" if link.retransmissions else "dim"),
    ]
    if skewed:
        cells.append(Text("" if link.skew is None else f"{link.skew:+.0f} s", style="yellow"))
    return cells


def _line(record: logging.LogRecord) -> Text:
    at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
    return Text(f"{at}  {text_of(record)}", style=_LEVELS[record.levelno], overflow="ellipsis", no_wrap=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
