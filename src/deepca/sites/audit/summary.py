"""Summarise audit logs: messages by neighbour and kind, and what they showed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deepca.sites.audit.reader import AuditLog

__all__ = ["SentMessages", "frames_of", "summarise"]

_COVERS: dict[Any, str] = {True: "masked", "public": "public", "structural": "structural", False: "open"}


@dataclass
class SentMessages:
    """Messages of one kind that were sent to one neighbour.

    Parameters
    ----------
    neighbor, kind : str
        The neighbour, and the kind; of data, with the phase of the algorithm.
    messages : int
        Their number.
    bytes : int
        Size of their headers and bodies.
    masked, public, structural, open : int
        Number of messages that show nothing; what all agents know; values that all agents flood; numbers of this site.
    """

    neighbor: str
    kind: str
    messages: int = 0
    bytes: int = 0
    masked: int = 0
    public: int = 0
    structural: int = 0
    open: int = 0

    @property
    def masked_share(self) -> float:
        """Share of the messages that are masked."""
        return self.masked / self.messages if self.messages else 0.0


def summarise(logs: Iterable[AuditLog]) -> list[SentMessages]:
    """Return what was sent, by neighbour and kind."""
    rows: dict[tuple[str, str], SentMessages] = {}
    for log in logs:
        for line in log.lines:
            members = line.members
            if members["line"] != "sent":
                continue
            kind = str(members["kind"])
            kind = f"{kind}: {members['phase']}" if kind == "data" else kind
            row = rows.setdefault((str(members["to"]), kind), SentMessages(str(members["to"]), kind))
            row.messages += 1
            row.bytes += int(members["bytes"]) + int(members["header"])
            cover = _COVERS.get(members.get("masked"), "open")
            setattr(row, cover, getattr(row, cover) + 1)
    return [rows[key] for key in sorted(rows)]


def frames_of(logs: Iterable[AuditLog]) -> dict[str, tuple[int, int]]:
    """Return the number and size of the frames written to streams, by kind."""
    found: dict[str, tuple[int, int]] = {}
    for log in logs:
        for line in log.lines:
            if line.members["line"] == "frames":
                for kind, (number, size) in line.members["counts"].items():
                    before = found.get(kind, (0, 0))
                    found[kind] = before[0] + int(number), before[1] + int(size)
    return dict(sorted(found.items()))
