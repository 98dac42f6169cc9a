"""Limit the size of networks that are created by name, where a large number is probably a typo."""

from __future__ import annotations

import math

from deepca.errors import TopologyError

__all__ = ["check_links", "check_pairs", "check_time_varying_size"]

_MAX_TIME_VARYING_AGENTS = 1000  # measuring the mixing rate requires products of the weight matrices of many rounds
_MAX_LINKS = 5_000_000  # building as many takes a few gigabytes; a larger number is probably a typo
_PAIRS_PER_LINK = 4  # ordered pairs of agents whose drawing takes as much memory as building one link


def check_time_varying_size(name: str, m: int) -> None:
    """Raise TopologyError for a time-varying network with too many agents to measure how fast it mixes."""
    if m > _MAX_TIME_VARYING_AGENTS:
        raise TopologyError(
            f"{name} has {m:,} agents, but time-varying networks created by name may have at most "
            f"{_MAX_TIME_VARYING_AGENTS:,}; create larger ones with deepca.topology.time_varying",
            parameter="m",
            value=m,
        )


def check_pairs(name: str, m: int, p: float) -> None:
    """Raise TopologyError for a random digraph so large that its name is probably mistyped."""
    pairs = m * (m - 1)  # all are drawn, even if few become arcs
    allowed = min(_PAIRS_PER_LINK * _MAX_LINKS, int(_MAX_LINKS / p))
    if pairs > allowed:
        most = (1 + math.isqrt(1 + 4 * allowed)) // 2
        raise TopologyError(
            f"{name} of {m:,} agents: {pairs:,} ordered pairs of agents would have to be drawn, each with "
            f"probability {p:g}, but at most {allowed:,} are supported; use at most {most:,} agents",
            parameter="m",
            value=m,
        )


def check_links(name: str, m: int, links: float) -> None:
    """Raise TopologyError for a network so large that its name is probably mistyped."""
    if links > _MAX_LINKS:
        raise TopologyError(
            f"{name} of {m:,} agents has about {links:,.0f} links; at most {_MAX_LINKS:,} are supported. Use fewer "
            "agents, or a network with fewer links per agent",
            parameter="links",
            value=round(links),
        )
