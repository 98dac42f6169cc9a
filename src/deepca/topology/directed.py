"""Strongly connected directed networks with column-stochastic weights.

Agent i sends to its out-neighbours and knows nothing else about the graph. It splits its value into equal shares,
keeps one and sends one to each out-neighbour: ``C_ji = 1 / (1 + out-degree of i)``. The columns of C sum to one, so the
sum over all agents is preserved. The rows need not sum to one, so values converge to ``π_j m`` times the mean, where
``C π = π``: agents with more senders accumulate more. The push-sum weight y starts from ones, is mixed in the same way
and also converges to ``π_j m``, so the ratio of value to weight converges to the mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array, Csr, Seed, csr
from deepca._util.units import counted
from deepca.errors import DisconnectedError, MassError, TopologyError
from deepca.topology.adjacency import (
    adjacency_at,
    check_agents,
    check_square,
    checked_pairs,
    components_of,
    format_agents,
    freeze,
    links_of,
    shortest_paths,
)
from deepca.topology.graph import MAX_DENSE_AGENTS, Topology
from deepca.topology.spectra import second_largest_modulus

__all__ = ["Digraph", "exponential", "from_arcs", "from_weights", "random_digraph", "ring"]

_COLUMN_SUM_TOLERANCE = 1e-12  # a column of C is a few divisions, each rounded to 1e-16


@renamed_attributes(limit="stationary_distribution")
@dataclass(frozen=True, eq=False, repr=False)
class Digraph(Topology):
    """A strongly connected directed graph of agents with its column-stochastic weights C.

    Use the functions of :mod:`deepca.topology.directed` to create one.

    Parameters
    ----------
    name : str
        Name for messages and plots.
    rule : str
        Rule that set the weights, or ``"custom"``.
    gossip_sparse : csr_array of shape (m, m)
        The weights C: ``C[j, i]`` is the share of agent i's value that goes to agent j; `adjacency` has a
        one where this is nonzero and i ≠ j.
    lambda2 : float
        Second largest modulus of an eigenvalue of C.
    lambda_min : float
        ``-lambda2``.
    """

    def __post_init__(self) -> None:
        """Validate C and make it read-only."""
        _check_columns(self.gossip_sparse)
        freeze(self.gossip_sparse)
        _check_strongly_connected(self.adjacency)
        if self.n_agents > 1 and not self.lambda2 < 1.0 - 1e-12:
            raise TopologyError(
                f"the weights of {self.name} have a second eigenvalue of modulus {self.lambda2:.6g}, so averaging does "
                "not converge; let every agent keep a share of its value (a positive diagonal)",
                parameter="matrix",
                value=self.lambda2,
            )

    def __repr__(self) -> str:
        """Describe the graph and its spectral gap."""
        arcs = f"{counted(self.n_agents, 'agent')}, {counted(self.n_messages, 'arc')}"
        return f"Digraph({self.name}, {arcs}, 1 − |λ₂| = {1 - self.lambda2:.4g})"

    @property
    def directed(self) -> bool:
        """True: links are directed."""
        return True

    @property
    def n_messages(self) -> int:
        """Number of messages in one round: one per arc."""
        return int(self.adjacency.nnz)

    @cached_property
    def degrees(self) -> npt.NDArray[np.int64]:
        """Number of agents to which every agent sends."""
        return np.bincount(self.adjacency.indices, minlength=self.n_agents).astype(np.int64)

    @cached_property
    def center(self) -> int:
        """Agent with the smallest sum of outward and inward eccentricity; for large m, the best of 16 random agents."""
        m = self.n_agents
        tried = np.arange(m) if m <= MAX_DENSE_AGENTS else np.random.default_rng(0).choice(m, 16, replace=False)
        there = csgraph.shortest_path(self.adjacency, unweighted=True, indices=tried).max(axis=1)
        back = csgraph.shortest_path(csr(self.adjacency.T), unweighted=True, indices=tried).max(axis=1)
        return int(tried[int((there + back).argmin())])

    def paths_from(self, source: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Find shortest paths from one agent to all others, along the direction of the arcs."""
        return shortest_paths(self._outward, source)

    def paths_to(self, target: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Find shortest paths from all other agents to one, along the direction of the arcs."""
        return shortest_paths(self.adjacency, target)

    @cached_property
    def modes(self) -> npt.NDArray[np.complex128]:
        """Eigenvalues of C other than 1, by descending modulus (dense solver, for up to a few thousand agents)."""
        values = np.linalg.eigvals(self.gossip_matrix).astype(np.complex128)
        others = np.delete(values, int(np.abs(values - 1.0).argmin()))
        return others[np.argsort(-np.abs(others))]

    @property
    def eigenvalues(self) -> Array:
        """Undefined, since C is not symmetric; raise TopologyError. See :attr:`modes`."""
        raise TopologyError(f"{self.name} is directed, so its eigenvalues are complex; use `modes`")

    @cached_property
    def stationary_distribution(self) -> Array:
        """Stationary distribution π: ``C π = π``, positive, with sum one."""
        m = self.n_agents
        system = np.concatenate([self.gossip_matrix - np.eye(m), np.ones((1, m))])
        return np.asarray(np.linalg.lstsq(system, np.eye(m + 1)[-1])[0])

    def contraction(self, K: int) -> float:
        """Bound the distance of the push-sum ratios x/y from the mean after K rounds, relative to the initial one.

        Notes
        -----
        The bound is ``‖C^K − y1ᵀ/m‖ / min_j y_j`` with ``y = C^K 1``: the ratios are ``x_j / y_j``, and
        ``x − x̄y = (C^K − y1ᵀ/m)(x⁰ − x̄1)``. For large m it is an estimate from λ₂.
        """
        m = self.n_agents
        if m == 1:
            return 0.0
        if m > MAX_DENSE_AGENTS:
            return float(min(np.sqrt(m) * self.lambda2**K * m, 1e300))
        if _rounds_until_negligible(self) <= K:
            return 0.0
        power = np.linalg.matrix_power(self.gossip_matrix, K)
        y = power.sum(axis=1)
        return float(np.linalg.norm(power - y[:, None] / m, 2) / y.min())

    def senders(self, j: int) -> tuple[int, ...]:
        """Return the agents from which agent j receives.

        Parameters
        ----------
        j : int
            Index of the agent.

        Returns
        -------
        tuple of int
            Their indices, in ascending order.
        """
        return self._row(self.adjacency, j)

    def receivers(self, j: int) -> tuple[int, ...]:
        """Return the agents to which agent j sends.

        Parameters
        ----------
        j : int
            Index of the agent.

        Returns
        -------
        tuple of int
            Their indices, in ascending order.
        """
        return self._row(self._outward, j)

    def neighbors(self, j: int) -> tuple[int, ...]:
        """Return the agents from which agent j receives or to which it sends."""
        return tuple(sorted({*self.senders(j), *self.receivers(j)}))

    def to_networkx(self) -> nx.DiGraph[Any]:
        """Convert to a networkx graph; arcs point from sender to receiver and have the attribute ``weight``."""
        graph: nx.DiGraph[Any] = nx.DiGraph(name=self.name)
        graph.add_nodes_from(range(self.n_agents))
        arcs = sparse.coo_array(self.gossip_sparse)
        sent = [(int(i), int(j), float(part)) for j, i, part in zip(arcs.row, arcs.col, arcs.data, strict=True)]
        graph.add_weighted_edges_from((i, j, part) for i, j, part in sent if i != j)
        return graph

    @cached_property
    def _outward(self) -> Csr:
        return csr(self.adjacency.T)


def from_arcs(m: int, arcs: Iterable[tuple[int, int]], *, name: str = "arcs") -> Digraph:
    """Create a directed network from a list of arcs.

    Parameters
    ----------
    m : int
        Number of agents; they are numbered 0 … m − 1.
    arcs : iterable of (int, int)
        ``(i, j)`` means that agent i sends to agent j; repeated arcs count once.
    name : str, default="arcs"
        Name for messages and plots.

    Returns
    -------
    Digraph
        The graph, with weights ``C_ji = 1 / (1 + out-degree of i)``.

    Raises
    ------
    TopologyError
        If an arc is invalid, or the graph is not strongly connected (`DisconnectedError`).

    Examples
    --------
    >>> from deepca.topology.directed import from_arcs
    >>> graph = from_arcs(3, [(0, 1), (1, 2), (2, 0)])
    >>> graph.senders(1), graph.receivers(1)
    ((0,), (2,))
    """
    ends = checked_pairs(arcs, m, "arc")
    links = adjacency_at(ends[:, 1], ends[:, 0], m)
    _check_strongly_connected(links)
    kept = csr(links + sparse.eye_array(m, format="csr"))
    shares = 1.0 / np.bincount(kept.indices, minlength=m)
    return _weighted(csr(kept @ sparse.diags_array(shares)), name, "out-degree")


def from_weights(matrix: npt.ArrayLike | Csr, *, name: str = "custom") -> Digraph:
    """Create a directed network from a given weight matrix C.

    Parameters
    ----------
    matrix : array_like or sparse array of shape (m, m)
        ``C[j, i]`` is the share of agent i's value that goes to agent j: nonnegative, with columns that sum to one.
    name : str, default="custom"
        Name for messages and plots.

    Returns
    -------
    Digraph
        The graph of its nonzero entries.

    Raises
    ------
    TopologyError
        If C is malformed, a column does not sum to one (`MassError`), the graph is not strongly connected
        (`DisconnectedError`), or the second eigenvalue has modulus one.
    """
    weights = csr(matrix if sparse.issparse(matrix) else np.atleast_2d(np.asarray(matrix, dtype=np.float64))).copy()
    weights.eliminate_zeros()
    _check_columns(weights)
    _check_strongly_connected(links_of(weights))
    return _weighted(weights, name, "custom")


def ring(m: int) -> Digraph:
    """Create a directed ring, in which agent j sends to agent j + 1 (mod m).

    Parameters
    ----------
    m : int
        Number of agents.

    Returns
    -------
    Digraph
        The directed ring.
    """
    check_agents(m)
    return from_arcs(m, [(j, (j + 1) % m) for j in range(m)] if m > 1 else [], name=f"directed-ring({m})")


def exponential(m: int) -> Digraph:
    """Create an exponential graph, in which agent j sends to agents j + 1, j + 2, j + 4, … (mod m).

    Parameters
    ----------
    m : int
        Number of agents.

    Returns
    -------
    Digraph
        The exponential graph, which has low degree and small diameter.
    """
    check_agents(m)
    hops = [1 << bit for bit in range(int(m - 1).bit_length())]
    arcs = [(j, (j + hop) % m) for j in range(m) for hop in hops]
    return from_arcs(m, arcs, name=f"directed-exponential({m})")


def random_digraph(m: int, p: float, *, seed: Seed = None, attempts: int = 100) -> Digraph:
    """Draw a strongly connected graph in which every agent sends to every other with probability p.

    Parameters
    ----------
    m : int
        Number of agents.
    p : float
        Probability of an arc, in (0, 1].
    seed : int or Generator, optional
        Seed of the graph.
    attempts : int, default=100
        Maximum number of graphs to draw, from one random stream, until one is strongly connected.

    Returns
    -------
    Digraph
        The first strongly connected graph drawn.

    Raises
    ------
    TopologyError
        If p is not in (0, 1], or none of the graphs drawn is strongly connected (`DisconnectedError`).
    """
    check_agents(m)
    if not 0.0 < p <= 1.0:
        raise TopologyError(f"p = {p}: the probability of an arc must be in (0, 1]", parameter="p", value=p)
    rng = np.random.default_rng(seed)
    for _ in range(attempts):
        drawn = rng.random((m, m)) < p
        np.fill_diagonal(drawn, val=False)
        if csgraph.connected_components(drawn, directed=True, connection="strong")[0] == 1:
            return from_arcs(m, [(int(i), int(j)) for i, j in np.argwhere(drawn)], name=f"random-digraph({m}, {p:g})")
    raise DisconnectedError(
        f"none of {attempts} random directed graphs with m = {m}, p = {p:g} is strongly connected; "
        f"increase p (p ≥ {min(1.0, 2 * np.log(max(m, 2)) / m):.2g} usually suffices)",
        parameter="p",
        value=p,
    )


def _weighted(weights: Csr, name: str, rule: str) -> Digraph:
    weights.sort_indices()
    m = int(weights.shape[0])
    if m == 1:
        return Digraph(name, rule, csr(np.ones((1, 1))), 0.0, 0.0)
    second = second_largest_modulus(weights, MAX_DENSE_AGENTS)
    return Digraph(name, rule, weights, second, -second)


def _rounds_until_negligible(graph: Digraph) -> int:
    """Return the number of rounds after which only rounding errors remain, so that C^K need not be computed."""
    if graph.lambda2 <= 0.0:
        return graph.n_agents + 1
    return int(np.ceil(np.log(1e-30) / np.log(graph.lambda2))) + graph.n_agents


def _check_columns(weights: Csr) -> None:
    """Raise TopologyError unless C is square, finite and nonnegative with columns that sum to one."""
    check_square(weights)
    if weights.data.size and weights.data.min() < 0.0:
        i = int(sparse.coo_array(weights).col[int(sparse.coo_array(weights).data.argmin())])
        raise TopologyError(
            f"agent {i} sends a negative share of its value, {weights.data.min():.6g}; weights must not be negative",
            agent=i,
            value=float(weights.data.min()),
        )
    sums = np.asarray(weights.sum(axis=0), dtype=np.float64).ravel()
    worst = int(np.abs(sums - 1.0).argmax())
    if abs(sums[worst] - 1.0) > _COLUMN_SUM_TOLERANCE:
        what = "loses mass" if sums[worst] < 1.0 else "creates mass"
        raise MassError(
            f"agent {worst} {what}: the shares that it keeps and sends, column {worst} of the weights, sum to "
            f"{sums[worst]:.12g}; every column must sum to 1",
            agent=worst,
            value=float(sums[worst]),
        )


def _check_strongly_connected(links: Csr) -> None:
    """Raise DisconnectedError, listing the components, unless a directed graph is strongly connected."""
    count, label = csgraph.connected_components(links, directed=True, connection="strong")
    if count == 1:
        return
    # links[j, i] means that i sends to j; find a component that sends nothing to the others
    entries = sparse.coo_array(links)
    sending = {int(label[i]) for j, i in zip(entries.row, entries.col, strict=True) if label[i] != label[j]}
    silent = next((c for c in range(count) if c not in sending), 0)
    components = components_of(label, count)
    raise DisconnectedError(
        f"the directed graph is not strongly connected: it has {count} components, and no message from agents "
        f"{format_agents(components[silent])} reaches the others; add arcs so that there is a path from every agent to "
        "every other",
        components=components,
    )
