"""Log of an agent, with one line per event, as text or JSON.

A JSON line is an object with ``time`` (UTC, milliseconds), ``site``, ``level``, ``event``, ``text`` and ``facts``.
A separate thread writes the lines, so that a blocked terminal or a full disk never stops an agent. Keys and rows cannot
get into the log: of bytes among the facts, only the size is written, and of arrays only the type.
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

__all__ = ["AgentLog", "JsonFormatter", "Style", "TextFormatter", "plain", "printable", "text_of"]

Style = Literal["text", "json"]

_MARKS = {logging.INFO: "     ", logging.WARNING: "warn ", logging.ERROR: "ERROR"}
_MAX_QUEUED = 10_000  # lines; bounds memory while nothing can be written
_MAX_KINDS = 1000  # distinct lines checked for repetition; bounds memory if every line differs
_MAX_LENGTH = 1000  # characters of a text; other sites may have written it


class TextFormatter(logging.Formatter):
    """Format events as aligned lines of text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for an event."""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        site, event = vars(record)["site"], vars(record)["event"].replace("_", " ")
        level = _MARKS.get(record.levelno, record.levelname)
        return f"{at}  {site + '  ' if site else ''}{level} {event:<10} {text_of(record)}"


class JsonFormatter(logging.Formatter):
    """Format each event as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for an event."""
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


def text_of(record: logging.LogRecord) -> str:
    """Return the text of a record, with the number of repetitions that were counted instead of written."""
    times, seconds = _repeats(record)
    return record.getMessage() + (f" ({times} times in {seconds:.0f} s)" if times > 1 else "")


def _repeats(record: logging.LogRecord) -> tuple[int, float]:
    """Return how often a record occurred, and within how many seconds."""
    repeats: tuple[int, float] = vars(record).get("repeats", (1, 0.0))
    return repeats


@dataclass
class _Kind:
    """Repetitions of a line within the current window: how often it occurred, and how often it was written."""

    last: logging.LogRecord
    times: int
    written: int

    @property
    def pending(self) -> bool:
        """True if some occurrences have not been written."""
        return self.times > self.written


class AgentLog(logging.Handler):
    """Handler that writes the events of one site, logged from any thread. Close it, or the last lines may be missing.

    A record with the attribute ``last`` ends the log: pending counts are written before it, and later records are
    ignored.

    Parameters
    ----------
    target : TextIO, Path or None
        A stream, or a file to append to; None to call the listener only.
    style : {"text", "json"}
        Format of the lines.
    site : str
        Name of the site; may be set later.
    window : float
        Seconds within which repetitions of a line are counted instead of written.
    listener : callable
        Called with the record of each line, in the log's thread.
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
        self._stream = _open(target) if isinstance(target, Path) else target
        self._ended = False
        self._lost = 0
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._since = 0.0
        self._queue: queue.Queue[logging.LogRecord | None] = queue.Queue(_MAX_QUEUED)
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue an event of this site for writing; ignore other records."""
        if not is_event(record, self.site):
            return
        try:
            self._queue.put_nowait(_clean(record))
        except queue.Full:
            self._lost += 1

    def close(self, patience: float = 2.0) -> None:
        """Write the remaining lines, waiting for ``patience`` seconds at most."""
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

    # ---------------------------------------------------------------------------------------------- in the log's thread

    def _work(self) -> None:
        while True:
            pending = any(kind.pending for kind in self._kinds.values())
            left = self._since + self._window - time.monotonic() if pending else None
            try:
                record = self._queue.get(timeout=None if left is None else max(left, 0.0))
            except queue.Empty:
                self._end_window()
                continue
            if record is None:
                self._end_window()
                return
            self._take(record)

    def _take(self, record: logging.LogRecord) -> None:
        if self._ended:
            return
        last = hasattr(record, "last")
        if last or time.monotonic() - self._since >= self._window:
            self._end_window()
        if self._lost:
            lost, self._lost = self._lost, 0
            missing = {"event": "log", "msg": f"{lost} lines are missing here", "facts": {"lines": lost}}
            level = {"levelno": logging.WARNING, "levelname": "WARNING"}
            self._write(logging.makeLogRecord({**vars(record), **missing, **level}))
        key = vars(record)["event"], re.sub(r":\d+", ":", record.getMessage())  # callers' ports differ every time
        kind = self._kinds.pop(key, None)
        if last:
            self._ended, self._kinds = True, {}
            self._write(record)
        elif kind is None:
            self._write(record)
            if len(self._kinds) < _MAX_KINDS:
                self._kinds[key] = _Kind(record, 1, 1)
        else:  # reinserted at the end, since counts are written in the order of the last occurrences
            self._kinds[key] = _Kind(record, kind.times + 1, kind.written)

    def _end_window(self) -> None:
        """Write pending counts, in the order of their last occurrence, and start a new window."""
        now = time.monotonic()
        pending = {key: kind for key, kind in self._kinds.items() if kind.pending}
        self._kinds = {key: _Kind(kind.last, 0, 0) for key, kind in pending.items()}
        for kind in pending.values():
            repeats = kind.times, max(now - self._since, 1.0)
            self._write(logging.makeLogRecord({**vars(kind.last), "repeats": repeats}))
        self._since = now

    def _write(self, record: logging.LogRecord) -> None:
        self._listener(record)
        if self._stream is None:
            return
        try:
            self._stream.write(self.format(record) + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # a full disk or a closed pipe must not end the run
            pass


def _clean(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy of an event's record that is safe to write; see :func:`plain` and :func:`printable`."""
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
    """Return a fact as plain data for JSON; bytes are replaced by their size, and arrays by their type."""
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
    """Return text without control characters or line breaks, since other sites may have written it."""
    text = text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def _open(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InvalidInput(
            f"cannot write the log {path}: {error.strerror}; give another --log-file", parameter="log_file", value=path
        ) from None
