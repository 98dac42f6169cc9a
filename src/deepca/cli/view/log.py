"""The log of an agent: one line per event, for people or for machines.

As JSON, every line is one object: ``time`` (UTC, milliseconds), ``site``, ``level``, ``event``, ``text`` and ``facts``.
Lines are written by a thread of the log's own: a terminal that stands still, or a disk that is full, never stops an
agent. Keys and rows have no way in here; arrays and bytes among the facts are named by their size alone.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

from deepca._util.logs import is_event
from deepca.errors import InvalidInput

__all__ = ["AgentLog", "JsonFormatter", "Style", "TextFormatter", "plain", "printable", "said"]

Style = Literal["text", "json"]

_MARKS = {logging.INFO: "     ", logging.WARNING: "warn ", logging.ERROR: "ERROR"}  # of levels
_MOST_WAITING = 10_000  # lines
_MOST_KINDS = 1000  # of lines that are looked at for repetition
_LONGEST = 1000  # characters


class TextFormatter(logging.Formatter):
    """Format events as aligned lines, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        site, event = vars(record)["site"], vars(record)["event"].replace("_", " ")
        level = _MARKS.get(record.levelno, record.levelname)
        return f"{at}  {site + '  ' if site else ''}{level} {event:<10} {said(record)}"


class JsonFormatter(logging.Formatter):
    """Format events as one JSON object each, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        more, (times, seconds) = vars(record), _repeats(record)
        repeated = {"times": times, "seconds": round(seconds, 1)} if times > 1 else {}
        line = {
            "time": at,
            "site": more["site"],
            "level": record.levelname.lower(),
            "event": more["event"],
            "text": record.getMessage(),
            "facts": {**more["facts"], **repeated},
        }
        return json.dumps(line, ensure_ascii=False, allow_nan=False)


def said(record: logging.LogRecord) -> str:
    """Return the text of a record, with how often it happened where it was counted and not repeated."""
    times, seconds = _repeats(record)
    return record.getMessage() + (f" ({times} times in {seconds:.0f} s)" if times > 1 else "")


def _repeats(record: logging.LogRecord) -> tuple[int, float]:
    """How often a record happened, within how many seconds."""
    repeats: tuple[int, float] = vars(record).get("repeats", (1, 0.0))
    return repeats


@dataclass
class _Seen:
    """A kind of line within the present window: how often it came, and how often it was written."""

    last: logging.LogRecord
    times: int
    written: int

    @property
    def counted(self) -> bool:
        return self.times > self.written


class AgentLog(logging.Handler):
    """Write the events of one site, from any thread. To be closed, or the last lines may be missing.

    A record with the attribute ``last`` ends the log: what was counted until then is written before it, what comes
    later is not written.

    target : a stream, or a file that is added to; None where only the listener counts.  site : may be set later.
    window : seconds within which the same line is counted, not repeated.
    listener : gets the record of every line, from the log's thread.
    """

    def __init__(
        self,
        target: TextIO | Path | None,
        style: Style = "text",
        *,
        site: str = "",
        window: float = 10.0,
        listener: Callable[[logging.LogRecord], None] = lambda record: None,
    ) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
        self.site, self._window, self._listener = site, window, listener
        self._own = isinstance(target, Path)
        self._stream = _opened(target) if isinstance(target, Path) else target
        self._ended = False
        self._lost = 0
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._since = 0.0
        self._queue: queue.Queue[logging.LogRecord | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line for an event of this site, soon; ignore other records."""
        if not is_event(record, self.site):
            return
        try:
            self._queue.put_nowait(_cleaned(record))
        except queue.Full:
            self._lost += 1

    def close(self, patience: float = 2.0) -> None:
        """Write what is left, for so many seconds at most."""
        super().close()
        if not self._thread.is_alive():
            return
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
                record = self._queue.get(timeout=None if left is None else max(left, 0.0))
            except queue.Empty:
                self._turn()
                continue
            if record is None:
                self._turn()
                return
            self._take(record)

    def _take(self, record: logging.LogRecord) -> None:
        if self._ended:
            return
        last = hasattr(record, "last")
        if last or time.monotonic() - self._since >= self._window:
            self._turn()
        if self._lost:
            lost, self._lost = self._lost, 0
            missing = {"event": "log", "msg": f"{lost} lines are missing here", "facts": {"lines": lost}}
            level = {"levelno": logging.WARNING, "levelname": "WARNING"}
            self._write(logging.makeLogRecord({**vars(record), **missing, **level}))
        kind = vars(record)["event"], re.sub(r":\d+", ":", record.getMessage())  # ports of callers change all the time
        seen = self._seen.pop(kind, None)
        if last:
            self._ended, self._seen = True, {}
            self._write(record)
        elif seen is None:
            self._write(record)
            if len(self._seen) < _MOST_KINDS:
                self._seen[kind] = _Seen(record, 1, 1)
        else:  # at the end: what happened last is written last
            self._seen[kind] = _Seen(record, seen.times + 1, seen.written)

    def _turn(self) -> None:
        """The window is over: write what was counted, all at once, so that the last line is about what came last."""
        now = time.monotonic()
        counted = {kind: seen for kind, seen in self._seen.items() if seen.counted}
        self._seen = {kind: _Seen(seen.last, 0, 0) for kind, seen in counted.items()}
        for seen in counted.values():
            repeats = seen.times, max(now - self._since, 1.0)
            self._write(logging.makeLogRecord({**vars(seen.last), "repeats": repeats}))
        self._since = now

    def _write(self, record: logging.LogRecord) -> None:
        self._listener(record)
        if self._stream is None:
            return
        try:
            self._stream.write(self.format(record) + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # a full disk, a closed pipe: the run is worth more than its log
            pass


def _cleaned(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy of an event's record that can be written: see :func:`plain` and :func:`printable`."""
    more = vars(record)
    return logging.makeLogRecord(
        {
            **more,
            "msg": printable(record.getMessage()),
            "args": None,
            "event": printable(more["event"]),
            "facts": {name: plain(value) for name, value in more["facts"].items()},
        }
    )


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
