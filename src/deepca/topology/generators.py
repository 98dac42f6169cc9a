"""Create common graphs, such as rings, grids and random graphs, and convert graphs from networkx."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import networkx as nx
import numpy as np

from deepca._util.typing import Seed
from deepca._util.units import plural
from deepca.errors import AsymmetricError, DisconnectedError, TopologyError
from deepca.topology.adjacency import check_agents
from deepca.topology.graph import Rule, Topology, from_edges

if TYPE_CHECKING:
    Graph = nx.Graph[Any]

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
    """Draw a connected Erdős–Rényi graph, in which each pair of agents shares an edge with probability p.

    Parameters
    ----------
    m : int
        Number of agents.
    p : float
        Probability of an edge, in (0, 1].
    seed : int or Generator, optional
        Seed of the graph.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.
    attempts : int, default=100
        Maximum number of graphs to draw until one is connected; all come from the same random stream.

    Returns
    -------
    Topology
        The first connected graph drawn.

    Raises
    ------
    DisconnectedError
        If none of the graphs drawn is connected.
    TopologyError
        If p is not in (0, 1].
    """
    check_agents(m)
    if not 0.0 < p <= 1.0:
        raise TopologyError(f"p = {p}: the probability of an edge must be in (0, 1]", parameter="p", value=p)
    rng = np.random.default_rng(seed)
    draw = nx.fast_gnp_random_graph if p < 0.1 else nx.gnp_random_graph
    for _ in range(attempts):
        graph = draw(m, p, seed=int(rng.integers(2**31)))
        if nx.is_connected(graph):
            return _from_graph(graph, f"erdos-renyi({m}, {p:g})", rule)
    enough = min(1.0, 2 * np.log(max(m, 2)) / m)
    raise DisconnectedError(
        f"none of {attempts} Erdős–Rényi graphs with m = {m}, p = {p:g} is connected; use a larger probability, such "
        f"as {enough:.2g} (erdos-renyi:{enough:.2g}:{m})",
        parameter="p",
        value=p,
        suggestions=(f"erdos-renyi:{enough:.2g}:{m}",),
    )


def ring(m: int, *, rule: Rule = "paper") -> Topology:
    """Create a ring, in which agent j is connected to agents j − 1 and j + 1 (mod m).

    Parameters
    ----------
    m : int
        Number of agents.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.

    Returns
    -------
    Topology
        The ring.

    Examples
    --------
    >>> from deepca.topology import ring
    >>> ring(5)
    Topology(ring(5), rule='paper', 5 agents, 5 edges, 1 − λ₂ = 0.382)
    """
    return _generate(lambda: nx.cycle_graph(m) if m > 2 else nx.path_graph(m), m, f"ring({m})", rule)


def path(m: int, *, rule: Rule = "paper") -> Topology:
    """Create a path, in which agent j is connected to agents j − 1 and j + 1.

    Parameters
    ----------
    m : int
        Number of agents.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.

    Returns
    -------
    Topology
        The path.
    """
    return _generate(lambda: nx.path_graph(m), m, f"path({m})", rule)


def star(m: int, *, rule: Rule = "paper") -> Topology:
    """Create a star, in which agent 0 is connected to all others.

    Parameters
    ----------
    m : int
        Number of agents.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.

    Returns
    -------
    Topology
        The star.
    """
    return _generate(lambda: nx.star_graph(m - 1), m, f"star({m})", rule)


def complete(m: int, *, rule: Rule = "paper") -> Topology:
    """Create a complete graph, in which all agents are connected (λ₂ = 0 with the paper's weights).

    Parameters
    ----------
    m : int
        Number of agents.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.

    Returns
    -------
    Topology
        The complete graph.
    """
    return _generate(lambda: nx.complete_graph(m), m, f"complete({m})", rule)


def grid(rows: int, columns: int, *, rule: Rule = "paper") -> Topology:
    """Create a rectangular grid, in which agents are connected to those above, below, left and right.

    Parameters
    ----------
    rows, columns : int
        Shape of the rectangle.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.

    Returns
    -------
    Topology
        The grid.
    """
    return _generate(lambda: nx.grid_2d_graph(rows, columns), rows * columns, f"grid({rows}×{columns})", rule)


def torus(rows: int, columns: int, *, rule: Rule = "paper") -> Topology:
    """Create a torus: a rectangular grid whose opposite sides are connected.

    Parameters
    ----------
    rows, columns : int
        Shape of the grid.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.

    Returns
    -------
    Topology
        The torus.
    """
    return _generate(
        lambda: nx.grid_2d_graph(rows, columns, periodic=cast("Any", (rows > 2, columns > 2))),
        rows * columns,
        f"torus({rows}×{columns})",
        rule,
    )


def hypercube(dimension: int, *, rule: Rule = "paper") -> Topology:
    """Create a hypercube of ``2 ** dimension`` agents, connected if their indices differ in one bit.

    Parameters
    ----------
    dimension : int
        Number of neighbours of every agent, at least 0.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.

    Returns
    -------
    Topology
        The hypercube.

    Raises
    ------
    TopologyError
        If the dimension is negative.
    """
    if dimension < 0:
        raise TopologyError(
            f"dimension = {dimension}: a hypercube has dimension 0 or more", parameter="dimension", value=dimension
        )
    m = 1 << dimension
    edges = [(j, j ^ (1 << bit)) for j in range(m) for bit in range(dimension) if j < j ^ (1 << bit)]
    return from_edges(m, edges, rule=rule, name=f"hypercube({dimension})")


def random_regular(m: int, degree: int, *, seed: Seed = None, rule: Rule = "paper", attempts: int = 100) -> Topology:
    """Draw a connected random graph in which every agent has the same number of neighbours.

    Parameters
    ----------
    m : int
        Number of agents.
    degree : int
        Neighbours of every agent, with ``0 < degree < m`` and ``m * degree`` even.
    seed : int or Generator, optional
        Seed of the graph.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.
    attempts : int, default=100
        Maximum number of graphs to draw until one is connected; all come from the same random stream.

    Returns
    -------
    Topology
        The first connected graph drawn.

    Raises
    ------
    DisconnectedError
        If none of the graphs drawn is connected.
    TopologyError
        If no graph has this degree.
    """
    check_agents(m)
    if not 0 < degree < m or (m * degree) % 2:
        most = min(max(degree, 1), m - 1)
        even = most - (m * most) % 2 or 2  # the nearest degree for which m · degree is even
        parity = ", and an even number, since the number of agents is odd" if m % 2 else ""
        advice = f"use fewer than {m} neighbours{parity}, such as random-regular:{even}:{m}"
        raise TopologyError(
            f"no graph of {m} agents gives every agent {degree} neighbour{plural(degree)}; "
            f"{advice if even < m else 'use more agents'}",
            parameter="degree",
            value=degree,
            suggestions=(f"random-regular:{even}:{m}",) if even < m else (),
        )
    rng = np.random.default_rng(seed)
    for _ in range(attempts):
        graph = nx.random_regular_graph(degree, m, seed=int(rng.integers(2**31)))
        if nx.is_connected(graph):
            return _from_graph(graph, f"random-regular({m}, {degree})", rule)
    raise DisconnectedError(
        f"none of {attempts} random {degree}-regular graphs of {m} agents is connected; increase the degree",
        parameter="degree",
        value=degree,
    )


def from_networkx(graph: Graph, *, rule: Rule = "paper") -> Topology:
    """Convert a networkx graph.

    Parameters
    ----------
    graph : networkx.Graph
        Graph whose nodes, in their order, become agents 0 … m − 1. Edge weights are ignored. A directed graph must
        contain the reverse of every edge.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.

    Returns
    -------
    Topology
        The same graph.

    Raises
    ------
    AsymmetricError
        If a directed graph has an edge without its reverse.
    DisconnectedError
        If the graph is not connected.
    TopologyError
        If the graph is empty or has an edge from a node to itself.
    """
    if graph.is_directed():
        for u, v in graph.edges():
            if not graph.has_edge(v, u):
                raise AsymmetricError(
                    f"edge {u!r} → {v!r} has no reverse edge; add it, or use deepca.topology.directed.from_arcs",
                    edge=(u, v),
                )
    return _from_graph(graph, graph.name or "networkx", rule)


def from_name(spec: str, m: int | None = None, *, seed: Seed = None, rule: Rule = "paper") -> Topology:
    """Create a network from a name such as ``"ring:50"`` or ``"erdos-renyi:0.5:50"``.

    Parameters
    ----------
    spec : str
        The name, in the syntax of :mod:`deepca.topology.names`.
    m : int, optional
        Number of agents; if `spec` contains it too, both must agree.
    seed : int or Generator, optional
        Seed of random networks.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.

    Returns
    -------
    Topology
        The network.

    Raises
    ------
    TopologyError
        If the name is invalid; its `suggestions` are names to use instead.

    Examples
    --------
    >>> from deepca.topology import from_name
    >>> from_name("torus:3x4").n_agents
    12
    """
    from deepca.topology.names import from_name as named  # lazy: that module imports this one

    return named(spec, m, seed=seed, rule=rule)


def _generate(build: Callable[[], Graph], m: int, name: str, rule: Rule) -> Topology:
    check_agents(m)
    return _from_graph(build(), name, rule)


def _from_graph(graph: Graph, name: str, rule: Rule) -> Topology:
    order = {node: j for j, node in enumerate(graph.nodes())}
    return from_edges(len(order), ((order[u], order[v]) for u, v in graph.edges()), rule=rule, name=name)
