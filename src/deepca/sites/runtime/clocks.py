"""Time, and waiting for it to pass: the real one here, a virtual one in :mod:`studies.faults.virtual`."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Protocol

__all__ = ["Clock", "Condition", "RealClock"]


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
