"""Count messages by neighbour and kind, and frames by kind."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FrameCounts", "MessageCounts"]

_Counts = dict[str, dict[str, list[int]]]  # number and bytes, by neighbour and kind


class FrameCounts:
    """Frames written to streams, by neighbour and kind: Parts with everything that is sent again, and all others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: _Counts = {}
        self._kept: _Counts = {}  # those that are in the log
        self._shown: _Counts = {}  # those up to the last call of ``new``

    def add(self, neighbor: str, kind: str, size: int) -> None:
        """Count a frame of ``size`` bytes to a neighbour."""
        with self._lock:
            count = self._all.setdefault(neighbor, {}).setdefault(kind, [0, 0])
            count[0] += 1
            count[1] += size

    def new(self) -> _Counts:
        """Return the frames that are not in the log yet."""
        with self._lock:
            self._shown = {to: {kind: [*count] for kind, count in kinds.items()} for to, kinds in self._all.items()}
        found: _Counts = {}
        for to, kinds in self._shown.items():
            for kind, (number, size) in kinds.items():
                before = self._kept.get(to, {}).get(kind, [0, 0])
                if number > before[0]:
                    found.setdefault(to, {})[kind] = [number - before[0], size - before[1]]
        return found

    def keep_new(self) -> None:
        """Note that what the last call of :meth:`new` returned is in the log."""
        self._kept = self._shown


@dataclass
class MessageCounts:
    """Messages by way ("sent" or "received"), neighbour and kind: their number and the bytes of their bodies.

    Attributes
    ----------
    counts : dict
        Number and bytes by ``(way, neighbour, kind)``.
    """

    counts: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)

    def copy(self) -> MessageCounts:
        """Return a copy, which later changes to this object do not affect."""
        return MessageCounts(dict(self.counts))

    def add(self, members: Mapping[str, Any]) -> None:
        """Count a line; only those of messages change anything."""
        way = members["line"]
        if way not in ("sent", "received"):
            return
        key = way, str(members["to" if way == "sent" else "from"]), str(members["kind"])
        number, size = self.counts.get(key, (0, 0))
        self.counts[key] = number + 1, size + int(members["bytes"])

    def as_json(self) -> dict[str, dict[str, dict[str, list[int]]]]:
        """Return nested mappings by way, neighbour and kind."""
        found: dict[str, dict[str, dict[str, list[int]]]] = {}
        for (way, neighbor, kind), count in sorted(self.counts.items()):
            found.setdefault(way, {}).setdefault(neighbor, {})[kind] = [*count]
        return found
