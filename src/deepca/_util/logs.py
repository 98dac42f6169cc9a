"""Log the events of a site's agent and pass them to handlers.

An event is a log record with three extra attributes: ``site``, the site where it happened; ``event``, its kind; and
``facts``, a mapping with its details. Several agents may run in one process; ``site`` distinguishes their records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

__all__ = ["EventHandler", "EventLogger", "attached", "is_event", "one_line"]

_lock = threading.Lock()
_levels: list[int] = []  # level before each active handler was attached; detaching the last one restores the original


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """Logger of one site's events: ``log.info("connected to south", event="link_up", facts={"site": "south"})``."""

    def __init__(self, logger: logging.Logger, site: str) -> None:
        super().__init__(logger, {})
        self.site = site

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Turn ``event`` and ``facts`` into attributes of the record."""
        about = {"site": self.site, "event": kwargs.pop("event"), "facts": kwargs.pop("facts", {})}
        return msg, {**kwargs, "extra": {**(kwargs.get("extra") or {}), **about}}


def is_event(record: logging.LogRecord, site: str | None = None) -> bool:
    """Return whether a log record is an event, and of the given site if there is one."""
    return all(hasattr(record, name) for name in ("site", "event", "facts")) and site in (None, vars(record)["site"])


class EventHandler(logging.Handler):
    """Logging handler that passes events to a function as they happen.

    Parameters
    ----------
    callback : callable
        Called as ``callback(site, event, text, facts)``.
    site : str, optional
        Pass on the events of this site only; can also be set later, as an attribute.
    """

    def __init__(self, callback: Callable[[str, str, str, Mapping[str, Any]], None], site: str | None = None) -> None:
        super().__init__()
        self._callback, self.site = callback, site

    def emit(self, record: logging.LogRecord) -> None:
        """Pass an event on and ignore other records."""
        if is_event(record, self.site):
            more = vars(record)
            try:
                self._callback(more["site"], more["event"], record.getMessage(), more["facts"])
            except Exception:  # as in all handlers, an error must not reach the code that logs
                self.handleError(record)


def one_line(text: str, max_length: int = 1000) -> str:
    """Truncate an untrusted text and make it one printable line, safe for logs."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:max_length])


@contextmanager
def attached(handler: logging.Handler) -> Iterator[None]:
    """Attach a handler to deepca's logger within the context, with the logger's level at INFO or lower."""
    logger = logging.getLogger("deepca")
    with _lock:
        _levels.append(logger.level)
        logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
        logger.addHandler(handler)
    try:
        yield
    finally:
        with _lock:
            logger.removeHandler(handler)
            logger.setLevel(_levels.pop())
