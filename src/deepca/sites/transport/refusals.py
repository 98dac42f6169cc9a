"""Report refused connections to the endpoint, so that neither repetitions nor strangers fill its log."""

from __future__ import annotations

import time

from deepca.sites.transport.endpoint import Endpoint
from deepca.sites.transport.neighbors import Neighbor

__all__ = ["RefusalReporter"]

_MAX_REMEMBERED = 500  # maximum number of distinct refusals within `repeat`; more are an attack, and are not logged


class RefusalReporter:
    """Report to the endpoint which site was refused and why, each refusal at most once in ``repeat`` seconds.

    Used in the event loop's thread only.
    """

    def __init__(self, endpoint: Endpoint, repeat: float) -> None:
        self._endpoint, self._repeat = endpoint, repeat
        self._reported: dict[tuple[int | None, str, str], float] = {}

    def report(self, neighbor: Neighbor | None, where: str, why: str) -> None:
        """Report a refusal, unless the same one was reported recently; ``neighbor`` is None if it is unknown."""
        peer = neighbor.peer.index if neighbor is not None else None
        dialled = neighbor is not None and neighbor.peer.dial
        host = where if dialled else where.rpartition(":")[0]  # clients use a new port each time
        now = time.monotonic()
        self._reported = {key: at for key, at in self._reported.items() if now - at < self._repeat}
        if (peer, host, why) not in self._reported and len(self._reported) < _MAX_REMEMBERED:
            self._reported[peer, host, why] = now
            self._endpoint.refused(peer, where, why)

    def forget(self, neighbor: Neighbor) -> None:
        """Forget a neighbour's refusals because a stream was opened, so that the next one is reported in any case."""
        self._reported = {key: at for key, at in self._reported.items() if key[0] != neighbor.peer.index}
