"""A deadline for calls that have none: MPI waits for ever for a rank that does not answer."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from deepca.errors import InvalidInput

__all__ = ["Patience"]

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
        self._since = 0.0  # when the present wait began; 0 while nothing is waited for
        self._whom: Sequence[int] | str = ""
        self._watch: threading.Thread | None = None

    def waiting(self, whom: Sequence[int] | str) -> Patience:
        """For ``with``: what happens inside waits for ``whom``."""
        self.begin(whom)
        return self

    def begin(self, whom: Sequence[int] | str) -> None:
        """The same without ``with``, which costs more than the rest of it; :meth:`end` has to follow."""
        self._whom = whom
        if self._watch is not None:
            self._since = time.monotonic()
        elif self._timeout is not None:
            self._watch = threading.Thread(target=_look, args=(weakref.ref(self),), name="deepca-patience", daemon=True)
            self._since = time.monotonic()
            self._watch.start()

    def end(self) -> None:
        self._since = 0.0

    def __enter__(self) -> None:
        """It has begun."""

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pause(self) -> float:
        """Seconds between two looks at the clock."""
        return min((self._timeout or 0.0) / _LOOKS, _LONGEST)

    def check(self) -> None:
        """Ends the process if the present wait has taken too long."""
        since, timeout = self._since, self._timeout
        if timeout is not None and since and time.monotonic() - since > timeout:
            self._give_up(timeout)

    def _give_up(self, timeout: float) -> None:
        whom = self._whom if isinstance(self._whom, str) else f"rank{'s' if len(self._whom) > 1 else ''} "
        if not isinstance(self._whom, str):
            whom += ", ".join(map(str, self._whom))
        sys.stderr.write(
            f"error: rank {self._rank} has waited {timeout:g} s in {self._where()} for {whom}; the job is ended. "
            "Checkpoints, if any were asked for, are kept.\n"
        )
        sys.stderr.flush()
        os._exit(_EXIT)


def _look(at: weakref.ref[Patience]) -> None:
    """Until whoever might wait is gone."""
    while (patience := at()) is not None:
        patience.check()
        pause = patience.pause
        del patience
        time.sleep(pause)
