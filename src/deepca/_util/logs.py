"""Log events of a site's agent, and listen to them.

An event is a log record with three more attributes: ``site``, the site where it happened; ``event``, its kind; and
``facts``, a mapping. Several agents may run in one process; ``site`` distinguishes their records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

__all__ = ["EventHandler", "EventLogger", "is_event", "listening", "one_line"]

_lock = threading.Lock()
_levels: list[int] = []  # of the logger before each listener started; the last to end restores the first


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """Log the events of one site, such as ``log.info("south is there", event="link_up", facts={"site": "south"})``."""

    def __init__(self, logger: logging.Logger, site: str) -> None:
        super().__init__(logger, {})
        self.site = site

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Turn ``event`` and ``facts`` into attributes of the record."""
        about = {"site": self.site, "event": kwargs.pop("event"), "facts": kwargs.pop("facts", {})}
        return msg, {**kwargs, "extra": {**(kwargs.get("extra") or {}), **about}}


def is_event(record: logging.LogRecord, site: str | None = None) -> bool:
    """Return whether a record is an event, and of that site if one is given."""
    return all(hasattr(record, name) for name in ("site", "event", "facts")) and site in (None, vars(record)["site"])


class EventHandler(logging.Handler):
    """Pass events to a function as they happen.

    Parameters
    ----------
    hear : callable
        Called as ``hear(site, event, text, facts)``.
    site : str, optional
        The only site whose events are passed on; may be set later.
    """

    def __init__(self, hear: Callable[[str, str, str, Mapping[str, Any]], None], site: str | None = None) -> None:
        super().__init__()
        self._hear, self.site = hear, site

    def emit(self, record: logging.LogRecord) -> None:
        """Pass an event on, and ignore other records."""
        if is_event(record, self.site):
            more = vars(record)
            try:
                self._hear(more["site"], more["event"], record.getMessage(), more["facts"])
            except Exception:  # as in all handlers, an error must not reach the code that logs
                self.handleError(record)


def one_line(text: str, longest: int = 1000) -> str:
    """Return the beginning of an untrusted text as one printable line, safe for logs."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:longest])


@contextmanager
def listening(handler: logging.Handler) -> Iterator[None]:
    """Attach a handler to deepca's logger, at level INFO or lower, within the context."""
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
