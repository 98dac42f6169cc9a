"""Graphs by their shape: rings, grids, random graphs, and whatever networkx makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import networkx as nx
import numpy as np

from deepca.errors import AsymmetricError, DisconnectedError, TopologyError

if TYPE_CHECKING:
    Graph = nx.Graph[Any]
    Seed = int | np.random.Generator | None
from deepca.topology.graph import Rule, Topology, check_agents, from_edges

__all__ = [
    "complete",
    "erdos_renyi",
    "from_name",
    "from_networkx",
    "grid",
    "hypercube",
    "path",
    "random_regular",
    "ring",
    "star",
    "torus",
]


def erdos_renyi(m: int, p: float, *, seed: Seed = None, rule: Rule = "paper", attempts: int = 100) -> Topology:
    """Every pair of agents is connected with probability p, drawn again (from the same stream) until connected."""
    check_agents(m)
    if not 0.0 < p <= 1.0:
        raise TopologyError(f"p = {p}: the probability of an edge must lie in (0, 1]")
    rng = np.random.default_rng(seed)
    draw = nx.fast_gnp_random_graph if p < 0.1 else nx.gnp_random_graph
    for _ in range(attempts):
        graph = draw(m, p, seed=int(rng.integers(2**31)))
        if nx.is_connected(graph):
            return _from_graph(graph, f"erdos-renyi({m}, {p:g})", rule)
    raise DisconnectedError(
        f"{attempts} draws of an Erdős–Rényi graph with m = {m}, p = {p:g} were all disconnected; "
        f"raise p (p ≥ {min(1.0, 2 * np.log(max(m, 2)) / m):.2g} is usually connected)"
    )


def ring(m: int, *, rule: Rule = "paper") -> Topology:
    """Agent j talks to j − 1 and j + 1 (mod m)."""
    return _generated(lambda: nx.cycle_graph(m) if m > 2 else nx.path_graph(m), m, f"ring({m})", rule)


def path(m: int, *, rule: Rule = "paper") -> Topology:
    """A line of agents."""
    return _generated(lambda: nx.path_graph(m), m, f"path({m})", rule)


def star(m: int, *, rule: Rule = "paper") -> Topology:
    """Agent 0 in the middle, all others connected to it only."""
    return _generated(lambda: nx.star_graph(m - 1), m, f"star({m})", rule)


def complete(m: int, *, rule: Rule = "paper") -> Topology:
    """Everyone talks to everyone (λ₂ = 0 with the paper's weights)."""
    return _generated(lambda: nx.complete_graph(m), m, f"complete({m})", rule)


def grid(rows: int, columns: int, *, rule: Rule = "paper") -> Topology:
    """A rectangle of agents, each connected to those above, below, left and right."""
    return _generated(lambda: nx.grid_2d_graph(rows, columns), rows * columns, f"grid({rows}×{columns})", rule)


def torus(rows: int, columns: int, *, rule: Rule = "paper") -> Topology:
    """A grid whose opposite sides are joined."""
    return _generated(
        lambda: nx.grid_2d_graph(rows, columns, periodic=cast("Any", (rows > 2, columns > 2))),
        rows * columns,
        f"torus({rows}×{columns})",
        rule,
    )


def hypercube(dimension: int, *, rule: Rule = "paper") -> Topology:
    """``2 ** dimension`` agents; neighbours differ in one bit of their number."""
    if dimension < 0:
        raise TopologyError(f"dimension = {dimension}: a hypercube has dimension 0 or more")
    m = 1 << dimension
    edges = [(j, j ^ (1 << bit)) for j in range(m) for bit in range(dimension) if j < j ^ (1 << bit)]
    return from_edges(m, edges, rule=rule, name=f"hypercube({dimension})")


def random_regular(m: int, degree: int, *, seed: Seed = None, rule: Rule = "paper", attempts: int = 100) -> Topology:
    """A random graph in which every agent has the same number of neighbours, drawn until connected."""
    check_agents(m)
    if not 0 < degree < m or (m * degree) % 2:
        raise TopologyError(
            f"no graph of {m} agents with {degree} neighbours each: 0 < degree < m, and m · degree must be even"
        )
    rng = np.random.default_rng(seed)
    for _ in range(attempts):
        graph = nx.random_regular_graph(degree, m, seed=int(rng.integers(2**31)))
        if nx.is_connected(graph):
            return _from_graph(graph, f"random-regular({m}, {degree})", rule)
    raise DisconnectedError(f"{attempts} draws of a {degree}-regular graph on {m} agents were all disconnected")


def from_networkx(graph: Graph, *, rule: Rule = "paper") -> Topology:
    """The graph's nodes, in their order, as agents 0 … m − 1. Edge weights are ignored; a one-way edge is an error."""
    if graph.is_directed():
        for u, v in graph.edges():
            if not graph.has_edge(v, u):
                raise AsymmetricError(f"edge {u!r} → {v!r} has no way back; agents must hear each other")
    return _from_graph(graph, graph.name or "networkx", rule)


def from_name(spec: str, m: int | None = None, *, seed: Seed = None, rule: Rule = "paper") -> Topology:
    """A network by name, such as ``"ring:50"`` or ``"erdos-renyi:0.5:50"``; see :mod:`deepca.topology.names`."""
    from deepca.topology.names import from_name as named  # builds on this module

    return named(spec, m, seed=seed, rule=rule)


def _generated(build: Callable[[], Graph], m: int, name: str, rule: Rule) -> Topology:
    check_agents(m)
    return _from_graph(build(), name, rule)


def _from_graph(graph: Graph, name: str, rule: Rule) -> Topology:
    order = {node: j for j, node in enumerate(graph.nodes())}
    return from_edges(len(order), ((order[u], order[v]) for u, v in graph.edges()), rule=rule, name=name)
