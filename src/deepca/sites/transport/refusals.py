"""Report refusals to the endpoint, without repeating them and without letting strangers fill its log."""

from __future__ import annotations

import time

from deepca.sites.transport.endpoint import Endpoint
from deepca.sites.transport.neighbors import Neighbor

__all__ = ["RefusalReporter"]

_MOST_REMEMBERED = 500  # different refusals within `repeat`: whoever makes more up does not fill the log


class RefusalReporter:
    """Tells the endpoint who was refused and why, the same at most once in ``repeat`` seconds.

    Used in the event loop's thread.
    """

    def __init__(self, endpoint: Endpoint, repeat: float) -> None:
        self._endpoint, self._repeat = endpoint, repeat
        self._reported: dict[tuple[int | None, str, str], float] = {}

    def report(self, neighbor: Neighbor | None, where: str, why: str) -> None:
        """Tell the endpoint, unless it was told the same a short while ago. ``neighbor`` : where it is known who."""
        peer = neighbor.peer.index if neighbor is not None else None
        dialled = neighbor is not None and neighbor.peer.dial
        host = where if dialled else where.rpartition(":")[0]  # ports of clients vary
        now = time.monotonic()
        self._reported = {key: at for key, at in self._reported.items() if now - at < self._repeat}
        if (peer, host, why) not in self._reported and len(self._reported) < _MOST_REMEMBERED:
            self._reported[peer, host, why] = now
            self._endpoint.refused(peer, where, why)

    def forget(self, neighbor: Neighbor) -> None:
        """Report the next refusal of this neighbour whatever it is: a stream was up in between, so it is news."""
        self._reported = {key: at for key, at in self._reported.items() if key[0] != neighbor.peer.index}
