"""Hypothesis strategies for random connected graphs and mixers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import networkx as nx
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from deepca import topology
from deepca.consensus.mixers import Chebyshev, FastMix, Gossip, Mixer
from deepca.topology import Rule, Topology
from tests.support import engines

__all__ = ["connected", "edge_lists", "mixed_topologies", "mixers", "quick", "seeds", "topologies"]

_Test = TypeVar("_Test", bound=Callable[..., Any])
RULES: tuple[Rule, ...] = get_args(Rule)
seeds = st.integers(min_value=0, max_value=2**31 - 1)


def quick(examples: int) -> Callable[[_Test], _Test]:
    """Set the number of examples of a test.

    The profile (``tests/conftest.py``) determines whether these are the same on every machine and rank, or five times
    as many fresh ones. Over MPI there are fewer examples.
    """

    def decorate(test: _Test) -> _Test:
        if not engines.over_mpi():
            return settings(max_examples=examples * settings().max_examples // 100)(test)
        from tests.support.mpi_ranks import agreeing

        return settings(max_examples=max(examples // 8, 5))(agreeing(test))

    return decorate


def edge_lists(m: int, extra: float, seed: int) -> list[tuple[int, int]]:
    """Return the edges of a random spanning tree of m agents, and every other pair with probability ``extra``."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(m)
    edges = {(int(order[j]), int(order[rng.integers(j)])) for j in range(1, m)}
    edges |= {(i, j) for i in range(m) for j in range(i + 1, m) if rng.random() < extra and (j, i) not in edges}
    assert m == 1 or nx.is_connected(nx.Graph(list(edges)))
    return sorted(edges)


@st.composite
def connected(draw: st.DrawFn, min_agents: int = 1, max_agents: int = 12) -> tuple[int, list[tuple[int, int]]]:
    """Draw the number of agents and the edges of a connected graph, from trees to complete graphs."""
    m = draw(st.integers(min_agents, max_agents))
    return m, edge_lists(m, draw(st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0])), draw(seeds))


@st.composite
def topologies(draw: st.DrawFn, rules: tuple[Rule, ...] = RULES, min_agents: int = 1, max_agents: int = 12) -> Topology:
    """Draw a connected graph with the weights of a random rule."""
    m, edges = draw(connected(min_agents, max_agents))
    return topology.from_edges(m, edges, rule=draw(st.sampled_from(rules)))


@st.composite
def mixers(draw: st.DrawFn, max_rounds: int = 8) -> Mixer:
    """Draw one of three mixers with a random number of rounds."""
    kinds: list[Callable[[int], Mixer]] = [FastMix, Gossip, Chebyshev]
    return draw(st.sampled_from(kinds))(draw(st.integers(1, max_rounds)))


@st.composite
def mixed_topologies(
    draw: st.DrawFn, min_agents: int = 1, max_agents: int = 12, max_rounds: int = 8
) -> tuple[Topology, Mixer]:
    """Draw a topology with a mixer that its gossip matrix allows."""
    mixer = draw(mixers(max_rounds))
    place = draw(topologies(min_agents=min_agents, max_agents=max_agents))
    if isinstance(mixer, FastMix) and not place.positive_semidefinite:
        mixer = Chebyshev(rounds=mixer.rounds)
    return place, mixer
