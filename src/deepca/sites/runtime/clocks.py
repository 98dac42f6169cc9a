"""Clocks and condition variables: the real ones here, virtual ones in :mod:`studies.faults.virtual`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol

__all__ = ["Clock", "Condition", "RealClock", "in_background"]


class Condition(Protocol):
    """The methods of ``threading.Condition`` that are used here."""

    def __enter__(self) -> object:
        """Acquire the lock."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object:
        """Release the lock."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until notified or timed out, and return whether it was notified."""
        ...

    def notify_all(self) -> None:
        """Wake every thread that waits."""
        ...


class Clock(Protocol):
    """A source of time, and of condition variables whose timeouts follow it."""

    def now(self) -> float:
        """Return the time in seconds; only differences are meaningful."""
        ...

    def condition(self) -> Condition:
        """Return a new condition variable."""
        ...


class RealClock:
    """The monotonic clock of this machine."""

    def now(self) -> float:
        """Return ``time.monotonic()``."""
        return time.monotonic()

    def condition(self) -> Condition:
        """Return a ``threading.Condition``."""
        return threading.Condition()


@contextmanager
def in_background(work: Callable[[threading.Event], None], name: str, patience: float | None = None) -> Iterator[None]:
    """Run ``work(over)`` in a thread while the context lasts.

    Parameters
    ----------
    work : callable
        Must return soon after the event ``over`` has been set.
    name : str
        Name of the thread.
    patience : float, optional
        Seconds to wait for ``work`` to return when the context ends; unlimited by default.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)
