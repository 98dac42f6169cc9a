"""One start of an agent, told apart from all others."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

__all__ = ["Incarnation"]


@dataclass(frozen=True, order=True)
class Incarnation:
    """One start of an agent. Later starts are larger; ``boot`` is random and tells apart what counting cannot."""

    incarnation: int
    boot: int

    def after(self, seen: Incarnation) -> Incarnation:
        """This start, counted as later than one that others know of."""
        mixed = hashlib.sha256(f"{self.boot} {seen.incarnation}".encode()).digest()
        return Incarnation(seen.incarnation + 1, int.from_bytes(mixed[:8], "little") | 1)
