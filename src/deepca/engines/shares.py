"""How agents are dealt to ranks."""

from __future__ import annotations

__all__ = ["even_shares"]


def even_shares(n_agents: int, ranks: int) -> tuple[int, ...]:
    """How many agents each rank holds: the same number, or one more for some."""
    return tuple(n_agents * (i + 1) // ranks - n_agents * i // ranks for i in range(ranks))
