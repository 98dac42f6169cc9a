"""Time, and waiting for it to pass: the real one here, a virtual one in :mod:`studies.faults.virtual`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol

__all__ = ["Clock", "Condition", "RealClock", "in_background"]


class Condition(Protocol):
    """What is used of ``threading.Condition``."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def notify_all(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds; only differences mean something."""
        ...

    def condition(self) -> Condition: ...


class RealClock:
    def now(self) -> float:
        return time.monotonic()

    def condition(self) -> Condition:
        return threading.Condition()


@contextmanager
def in_background(work: Callable[[threading.Event], None], name: str, patience: float | None = None) -> Iterator[None]:
    """Run ``work(over)`` in a thread while the context lasts; it has to return once ``over`` is set.

    patience : seconds for which that is waited for; None for as long as it takes.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)
