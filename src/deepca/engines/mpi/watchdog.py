"""A deadline for calls that have none: MPI waits for ever for a rank that does not answer."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from deepca.errors import InvalidInput

__all__ = ["Patience"]

_logger = logging.getLogger(__name__)

_LOOKS = 20  # times that the clock is looked at before patience is over
_LONGEST = 60.0  # seconds between two looks
_EXIT = 1


class Patience:
    """Ends the process when one wait takes longer than ``timeout`` seconds; the launcher then ends the other ranks.

    There is no other way out: a rank inside of an MPI call cannot be called back.
    """

    def __init__(self, timeout: float | None, rank: int, where: Callable[[], str]) -> None:
        """``where`` : what the rank is at, for whoever has to be told."""
        if timeout is not None and not timeout > 0.0:
            raise InvalidInput(f"timeout = {timeout}: seconds, more than 0, or None for as long as it takes")
        self._timeout, self._rank, self._where = timeout, rank, where
        self.turns = 0
        """One more when a wait begins, and when it ends: odd during a wait. A round has no time to look at a clock."""
        self.whom: Sequence[int] | str = ""
        """Whom the present wait is for."""
        self._seen = (0, 0.0)  # turns at an earlier look, and when it was
        self._over = threading.Event()
        args = (weakref.ref(self), self._over)
        self._watch = threading.Thread(target=_look, args=args, name="deepca-patience", daemon=True)
        if timeout is not None:
            self._watch.start()

    def close(self) -> None:
        """Nothing will be waited for any more."""
        self._over.set()
        if self._watch.is_alive():
            self._watch.join()  # or the end of the process could meet it half way

    def waiting(self, whom: Sequence[int] | str) -> Patience:
        """For ``with``: what happens inside waits for ``whom``."""
        self.whom = whom
        return self

    def __enter__(self) -> None:
        self.turns += 1

    def __exit__(self, *_: object) -> None:
        self.turns += 1

    @property
    def pause(self) -> float:
        """Seconds between two looks at the clock."""
        return min((self._timeout or 0.0) / _LOOKS, _LONGEST)

    def check(self) -> None:
        """Ends the process if the present wait has taken too long, as far as earlier looks tell."""
        turns, now = self.turns, time.monotonic()
        if turns != self._seen[0]:
            self._seen = (turns, now)
        elif turns % 2 and self._timeout is not None and now - self._seen[1] > self._timeout:
            self.give_up(self._timeout)

    def give_up(self, timeout: float) -> None:
        """Say what was waited for in vain, and end the process."""
        whom = self.whom if isinstance(self.whom, str) else f"rank{'s' if len(self.whom) > 1 else ''} "
        if not isinstance(self.whom, str):
            whom += ", ".join(map(str, self.whom))
        _logger.critical(
            "error: rank %d has waited %g s in %s for %s; the job is ended. "
            "Checkpoints, if any were asked for, are kept.",
            self._rank,
            timeout,
            self._where(),
            whom,
        )
        logging.shutdown()
        os._exit(_EXIT)


def _look(at: weakref.ref[Patience], over: threading.Event) -> None:
    """Until whoever might wait is gone, or says so."""
    while (patience := at()) is not None:
        patience.check()
        pause = patience.pause
        del patience
        if over.wait(pause):
            return
