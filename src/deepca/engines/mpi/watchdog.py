"""Limit the duration of MPI calls, which would wait forever for a rank that does not respond."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from deepca._util.units import plural
from deepca.errors import ParameterError

__all__ = ["Watchdog"]

_logger = logging.getLogger(__name__)

_CHECKS_PER_TIMEOUT = 20  # number of checks per timeout, so that a wait exceeds the timeout by at most a tenth
_MAX_PAUSE = 60.0  # seconds between two checks, so that no sleep overflows
_EXIT_CODE = 1


class Watchdog:
    """Thread that ends the process if a single wait exceeds a timeout; the launcher then ends the other ranks.

    The process cannot raise an error instead, since an MPI call cannot be interrupted.

    Parameters
    ----------
    timeout : float or None
        Seconds; None to wait indefinitely.
    rank : int
        This rank, for the message.
    where : callable
        Returns a description of what the rank is doing, for the message.

    Attributes
    ----------
    turns : int
        Number of waits that have begun plus number of waits that have ended, so odd during a wait. Reading a clock in
        every round would be too slow.
    awaited_ranks : sequence of int or str
        The ranks that the current wait is for.
    """

    def __init__(self, timeout: float | None, rank: int, where: Callable[[], str]) -> None:
        """Start the thread unless ``timeout`` is None."""
        if timeout is not None and not timeout > 0.0:
            raise ParameterError("timeout", timeout, "give a number of seconds above 0, or None to wait indefinitely")
        self._timeout, self._rank, self._where = timeout, rank, where
        self.turns = 0
        self.awaited_ranks: Sequence[int] | str = ""
        self._seen = (0, 0.0)  # turns at an earlier check, and its time
        self._over = threading.Event()
        args = (weakref.ref(self), self._over)
        self._watch = threading.Thread(target=_watch, args=args, name="deepca-watchdog", daemon=True)
        if timeout is not None:
            self._watch.start()

    def close(self) -> None:
        """Stop watching."""
        self._over.set()
        if self._watch.is_alive():
            self._watch.join()  # so that the thread does not run while the interpreter shuts down

    def waiting(self, whom: Sequence[int] | str) -> Watchdog:
        """Return a context manager for a wait for these ranks, or for what a text describes."""
        self.awaited_ranks = whom
        return self

    def __enter__(self) -> None:
        """Begin a wait."""
        self.turns += 1

    def __exit__(self, *_: object) -> None:
        """End a wait."""
        self.turns += 1

    @property
    def pause(self) -> float:
        """Seconds between two checks."""
        return min((self._timeout or 0.0) / _CHECKS_PER_TIMEOUT, _MAX_PAUSE)

    def check(self) -> None:
        """End the process if the current wait, which began before an earlier check, has exceeded the timeout."""
        turns, now = self.turns, time.monotonic()
        if turns != self._seen[0]:
            self._seen = (turns, now)
        elif turns % 2 and self._timeout is not None and now - self._seen[1] > self._timeout:
            self.abort(self._timeout)

    def abort(self, timeout: float) -> None:
        """Log which ranks this one has waited for, and end the process."""
        whom = self.awaited_ranks if isinstance(self.awaited_ranks, str) else f"rank{plural(len(self.awaited_ranks))} "
        if not isinstance(self.awaited_ranks, str):
            whom += ", ".join(map(str, self.awaited_ranks))
        _logger.critical(
            "error: rank %d has waited %g s in %s for %s; terminating the job. Checkpoints, if any, are kept.",
            self._rank,
            timeout,
            self._where(),
            whom,
        )
        logging.shutdown()
        os._exit(_EXIT_CODE)


def _watch(at: weakref.ref[Watchdog], over: threading.Event) -> None:
    """Check at intervals until the watchdog is closed or garbage collected."""
    while (watchdog := at()) is not None:
        watchdog.check()
        pause = watchdog.pause
        del watchdog
        if over.wait(pause):
            return
