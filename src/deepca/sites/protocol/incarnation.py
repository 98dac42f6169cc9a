"""Identify each start of an agent, so that a restarted agent is not mistaken for the one before it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

__all__ = ["Incarnation"]


@dataclass(frozen=True, order=True)
class Incarnation:
    """One start of an agent; later starts compare as larger.

    Parameters
    ----------
    number : int
        Number that increases with every start.
    boot : int
        Random number, which distinguishes starts with the same ``number``.
    """

    number: int
    boot: int

    def after(self, seen: Incarnation) -> Incarnation:
        """Return this start, renumbered to follow an incarnation that other sites know."""
        mixed = hashlib.sha256(f"{self.boot} {seen.number}".encode()).digest()
        return Incarnation(seen.number + 1, int.from_bytes(mixed[:8], "little") | 1)
