"""The log of an agent: one line per event, for people or for machines.

As JSON, every line is one object: ``time`` (UTC, milliseconds), ``site``, ``level``, ``event``, ``text`` and ``facts``.
Lines are written by a thread of the log's own: a terminal that stands still, or a disk that is full, never stops an
agent. Keys and rows have no way in here; arrays and bytes among the facts are named by their size alone.
"""

from __future__ import annotations

import json
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

from deepca.errors import InvalidInput

__all__ = ["Entry", "Level", "Log", "Style", "level_of", "plain", "printable"]

Style = Literal["text", "json"]
Level = Literal["info", "warning", "error"]

_WARNINGS = {
    "checkpoint",
    "differs",
    "late",
    "left_out",
    "link_down",
    "lost",
    "minority",
    "refused",
    "regroup",
    "result",
    "revocations",
    "silent",
    "stopped",
    "waiting",
}
_ERRORS = {"failed", "unfinished"}
_FAREWELL = {"link_down", "lost", "silent"}  # what is to be expected once a run is over
_MOST_WAITING = 10_000  # lines
_MOST_KINDS = 1000  # of lines that are looked at for repetition
_LONGEST = 1000  # characters


def level_of(event: str, *, over: bool = False) -> Level:
    """How serious an event is. ``over`` : whether this site has finished already."""
    if event in _ERRORS:
        return "error"
    return "warning" if event in _WARNINGS and not (over and event in _FAREWELL) else "info"


@dataclass(frozen=True)
class Entry:
    """A line. ``times`` : how often it happened within ``seconds``, where it was counted and not repeated.

    last : whether no other line may follow.
    """

    time: float
    level: Level
    event: str
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    times: int = 1
    seconds: float = 0.0
    last: bool = False

    @property
    def said(self) -> str:
        """The text, with how often."""
        return self.text if self.times == 1 else f"{self.text} ({self.times} times in {self.seconds:.0f} s)"

    def as_text(self, site: str) -> str:
        """Aligned, for people."""
        at = datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        level = {"info": "     ", "warning": "warn ", "error": "ERROR"}[self.level]
        return f"{at}  {site + '  ' if site else ''}{level} {self.event.replace('_', ' '):<10} {self.said}"

    def as_json(self, site: str) -> str:
        """One object, for machines."""
        at = datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        repeated = {"times": self.times, "seconds": round(self.seconds, 1)} if self.times > 1 else {}
        said = {
            "time": at,
            "site": site,
            "level": self.level,
            "event": self.event,
            "text": self.text,
            "facts": {**self.facts, **repeated},
        }
        return json.dumps(said, ensure_ascii=False, allow_nan=False)


@dataclass
class _Seen:
    """A kind of line within the present window: how often it came, and how often it was written."""

    last: Entry
    times: int
    written: int

    @property
    def counted(self) -> bool:
        return self.times > self.written


class Log:
    """What run_agent takes as ``tell``, from any thread. To be closed, or the last lines may be missing.

    target : a stream, or a file that is added to; None where only the listener counts.  site : may be set later.
    window : seconds within which the same line is counted, not repeated.
    listener : gets every line, from the log's thread.
    """

    def __init__(
        self,
        target: TextIO | Path | None,
        style: Style = "text",
        *,
        site: str = "",
        window: float = 10.0,
        listener: Callable[[Entry], None] = lambda entry: None,
    ) -> None:
        self.site, self._style, self._window, self._listener = site, style, window, listener
        self._own = isinstance(target, Path)
        self._stream = _opened(target) if isinstance(target, Path) else target
        self._over = self._ended = False
        self._lost = 0
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._since = 0.0
        self._queue: queue.Queue[Entry | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def __call__(self, event: str, text: str, /, **facts: object) -> None:
        """Write a line, soon."""
        self._put(event, text, facts)

    def end(self, event: str, text: str, /, **facts: object) -> None:
        """Write the last line: what was counted until now is told before it, what comes later is not told."""
        self._put(event, text, facts, last=True)

    def _put(self, event: str, text: str, facts: Mapping[str, object], *, last: bool = False) -> None:
        entry = Entry(
            time.time(),
            level_of(event, over=self._over),
            printable(event),
            printable(text),
            {name: plain(value) for name, value in facts.items()},
            last=last,
        )
        self._over = self._over or event == "finished"
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._lost += 1

    def close(self, patience: float = 2.0) -> None:
        """Write what is left, for so many seconds at most."""
        end = time.monotonic() + patience
        try:
            self._queue.put(None, timeout=patience)
        except queue.Full:
            return
        self._thread.join(max(end - time.monotonic(), 0.0))
        if self._own and self._stream is not None and not self._thread.is_alive():
            with suppress(OSError):
                self._stream.close()

    # ------------------------------------------------------------------------------------------------ the log's thread

    def _work(self) -> None:
        while True:
            pending = any(seen.counted for seen in self._seen.values())
            left = self._since + self._window - time.monotonic() if pending else None
            try:
                entry = self._queue.get(timeout=None if left is None else max(left, 0.0))
            except queue.Empty:
                self._turn()
                continue
            if entry is None:
                self._turn()
                return
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        if self._ended:
            return
        if entry.last or time.monotonic() - self._since >= self._window:
            self._turn()
        if self._lost:
            lost, self._lost = self._lost, 0
            self._write(Entry(entry.time, "warning", "log", f"{lost} lines are missing here", {"lines": lost}))
        kind = entry.event, re.sub(r":\d+", ":", entry.text)  # the ports of callers change all the time
        seen = self._seen.pop(kind, None)
        if entry.last:
            self._ended, self._seen = True, {}
            self._write(entry)
        elif seen is None:
            self._write(entry)
            if len(self._seen) < _MOST_KINDS:
                self._seen[kind] = _Seen(entry, 1, 1)
        else:
            self._seen[kind] = _Seen(entry, seen.times + 1, seen.written)  # at the end: what happened last is told last

    def _turn(self) -> None:
        """The window is over: tell what was counted, all at once, so that the last line is about what came last."""
        now = time.monotonic()
        counted = {kind: seen for kind, seen in self._seen.items() if seen.counted}
        self._seen = {kind: _Seen(seen.last, 0, 0) for kind, seen in counted.items()}
        for seen in counted.values():
            self._write(replace(seen.last, times=seen.times, seconds=max(now - self._since, 1.0)))
        self._since = now

    def _write(self, entry: Entry) -> None:
        self._listener(entry)
        if self._stream is None:
            return
        line = entry.as_json(self.site) if self._style == "json" else entry.as_text(self.site)
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # a full disk, a closed pipe: the run is worth more than its log
            pass


def plain(value: object) -> Any:
    """A fact as JSON has it; of bytes and arrays only how large they are."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str():
            return printable(value)
        case Path():
            return printable(str(value))
        case bytes() | bytearray() | memoryview():
            return f"{len(value)} bytes"
        case Mapping():
            return {printable(str(name)): plain(one) for name, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(one) for one in value]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item())
    return f"({type(value).__name__})"


def printable(text: str) -> str:
    """Nothing that a terminal would obey or that would begin another line: others may have written it."""
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def _opened(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InvalidInput(f"the log {path} cannot be written: {error.strerror}") from None
