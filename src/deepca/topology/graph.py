"""Define :class:`Topology`: an undirected graph of agents with its gossip matrix 𝐋.

A topology is immutable and validated on construction: 𝐋 is symmetric, its rows sum to one, the graph is connected, and
every eigenvalue of 𝐋 other than that of the constant vector is smaller than one in modulus.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from deepca._util import portable
from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array, Csr, csr
from deepca._util.units import counted
from deepca.errors import TopologyError
from deepca.topology.adjacency import (
    adjacency_at,
    check_connected,
    check_gossip,
    checked_pairs,
    freeze,
    links_of,
    shortest_paths,
)
from deepca.topology.spectra import MAX_PORTABLE_AGENTS, extreme_eigenvalues
from deepca.topology.weights import Rule, gossip_weights

__all__ = ["Rule", "Topology", "from_edges", "from_gossip_matrix", "links_of"]

MAX_DENSE_AGENTS = 1500  # largest number for dense eigensolvers, and for computing distances from every agent
_MAX_EXACT_MODES = 500  # largest number for which `modes` are eigenvalues; more use a grid, which suffices to choose K


@renamed_attributes(changing="time_varying", stays="static_undirected", whole="fully_known")
@renamed_attributes(middle="center", flood_from="flood_rounds_from")
@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """A connected undirected graph of agents with its gossip matrix 𝐋; :mod:`deepca.topology` creates named ones.

    Parameters
    ----------
    name : str
        Name for messages and plots, such as ``"ring(50)"``.
    rule : str
        Rule that set the weights, or ``"custom"``.
    gossip_sparse : csr_array of shape (m, m)
        The gossip matrix 𝐋. The properties `gossip_matrix` and `laplacian` are dense, for small networks.
    lambda2 : float
        λ₂(𝐋), the second largest eigenvalue; 0 for a single agent.
    lambda_min : float
        The smallest eigenvalue of 𝐋.

    Examples
    --------
    >>> from deepca import topology
    >>> topology.ring(6).neighbors(0)
    (1, 5)
    """

    name: str
    rule: str
    gossip_sparse: Csr = field(repr=False)
    lambda2: float
    lambda_min: float

    def __post_init__(self) -> None:
        """Validate 𝐋 and make it read-only."""
        check_gossip(self.gossip_sparse)
        freeze(self.gossip_sparse)
        if self.n_agents > 1:
            check_connected(self.adjacency)
            if not (largest := max(abs(self.lambda2), abs(self.lambda_min))) < 1.0:
                raise TopologyError(
                    f"the gossip matrix of {self.name} has λ₂ = {self.lambda2:.6g} and λ_min = {self.lambda_min:.6g}; "
                    "both must be smaller than 1 in modulus; use deepca.topology.from_edges, which sets such weights",
                    parameter="matrix",
                    value=largest,
                )

    def __repr__(self) -> str:
        """Describe the graph and its spectral gap."""
        size = f"{counted(self.n_agents, 'agent')}, {counted(self.n_edges, 'edge')}, 1 − λ₂ = {1 - self.lambda2:.4g}"
        return f"Topology({self.name}, rule={self.rule!r}, {size})"

    @property
    def directed(self) -> bool:
        """True if links are directed; see :mod:`deepca.topology.directed`."""
        return False

    @property
    def time_varying(self) -> bool:
        """True if links change between rounds; see :mod:`deepca.topology.time_varying`."""
        return False

    @property
    def static_undirected(self) -> bool:
        """True if one symmetric 𝐋 applies to all rounds: neither directed nor time-varying."""
        return not (self.directed or self.time_varying)

    @property
    def fully_known(self) -> bool:
        """True if the whole graph is known locally, so that all agents can derive the same spanning tree."""
        return True

    @property
    def n_agents(self) -> int:
        """Number of agents, m."""
        return int(self.gossip_sparse.shape[0])

    @property
    def n_edges(self) -> int:
        """Number of pairs of agents with a link in at least one direction."""
        return len(self.edges)

    @property
    def n_messages(self) -> int:
        """Number of messages in one round."""
        return 2 * self.n_edges

    @property
    def gossip_matrix(self) -> Array:
        """𝐋 as a dense ``(m, m)`` array."""
        return np.asarray(self.gossip_sparse.toarray())

    @cached_property
    def adjacency(self) -> Csr:
        """Ones where two agents are connected, as a CSR array."""
        links = links_of(self.gossip_sparse)
        freeze(links)
        return links

    @cached_property
    def edges(self) -> npt.NDArray[np.int64]:
        """Pairs of connected agents, ``(n, 2)``, the smaller index first."""
        links = sparse.coo_array(sparse.triu(csr(self.adjacency + self.adjacency.T), k=1))
        found = np.stack([links.row, links.col], axis=1).astype(np.int64)
        found.flags.writeable = False
        return found

    @cached_property
    def degrees(self) -> npt.NDArray[np.int64]:
        """Number of neighbours of every agent."""
        return np.asarray(np.diff(self.adjacency.indptr), dtype=np.int64)

    @property
    def laplacian(self) -> Array:
        """Graph Laplacian M as a dense ``(m, m)`` array, with out-degrees if the graph is directed."""
        return np.diag(self.degrees.astype(np.float64)) - self.adjacency.toarray()

    @property
    def positive_semidefinite(self) -> bool:
        """True if ``𝐋 ⪰ 0``, which FastMix requires."""
        return self.static_undirected and self.lambda_min >= -1e-12

    @cached_property
    def flood_rounds(self) -> int:
        """Rounds that flooding takes to reach every agent: the diameter, or an upper bound for large m."""
        if self.n_agents <= MAX_DENSE_AGENTS:
            return int(csgraph.shortest_path(self.adjacency, unweighted=True).max())
        # paths through any one agent give an upper bound; a central agent gives a tight one
        return int(self.paths_to(self.center)[0].max() + self.paths_from(self.center)[0].max())

    def at(self, r: int) -> Csr:
        """Return the weights of round r.

        Parameters
        ----------
        r : int
            Round, counted from 0 over the whole run.

        Returns
        -------
        csr_array of shape (m, m)
            Entry ``[j, i]`` is the weight that agent j gives to the message of agent i.
        """
        return self.gossip_sparse

    def messages_at(self, r: int) -> int:
        """Return the number of messages in round r.

        Parameters
        ----------
        r : int
            Round, counted from 0 over the whole run.

        Returns
        -------
        int
            Messages sent by all agents together.
        """
        return self.n_messages

    def flood_rounds_from(self, r: int) -> int:
        """Return how many rounds flooding that starts in round r takes to reach every agent.

        Parameters
        ----------
        r : int
            First round.

        Returns
        -------
        int
            Rounds after which a value that any agent knows has reached every agent.
        """
        return self.flood_rounds

    def contraction(self, K: int) -> float:
        """Bound the disagreement that remains after K rounds of plain averaging, relative to the initial one.

        Parameters
        ----------
        K : int
            Number of rounds.

        Returns
        -------
        float
            ``max(|λ₂|, |λ_min|)^K``; 0 for a single agent.
        """
        return portable.power(max(abs(self.lambda2), abs(self.lambda_min)), K) if self.n_agents > 1 else 0.0

    @cached_property
    def modes(self) -> npt.NDArray[Any]:
        """Eigenvalues of 𝐋 other than the first; for large graphs a fine grid that includes the extremes."""
        if self.n_agents == 1:
            return np.zeros(0)
        if self.n_agents <= _MAX_EXACT_MODES:
            return np.sort(self.eigenvalues)[:-1]
        return np.linspace(self.lambda_min, self.lambda2, _MAX_EXACT_MODES)

    @property
    def spectrum(self) -> Array:
        """λ₂, λ_min and the modes, from which the number of rounds is chosen."""
        return np.concatenate([[self.lambda2, self.lambda_min], self.modes])

    def with_spectrum(self, spectrum: Array) -> Topology:
        """Return a copy with a spectrum computed on another processor, so that all agents use the same bits.

        Parameters
        ----------
        spectrum : ndarray
            Value of :attr:`spectrum` there.

        Returns
        -------
        Topology
            The same graph and weights.
        """
        other = replace(self, lambda2=float(spectrum[0]), lambda_min=float(spectrum[1]))
        other.__dict__["modes"] = spectrum[2:]
        return other

    @cached_property
    def center(self) -> int:
        """Agent with the smallest eccentricity; for large m, the midpoint of a long shortest path."""
        if self.n_agents <= MAX_DENSE_AGENTS:
            return int(csgraph.shortest_path(self.adjacency, unweighted=True).max(axis=1).argmin())
        hops, parent = self.paths_from(int(self.paths_from(0)[0].argmax()))
        at = hops.argmax()
        for _ in range(hops.max() // 2):
            at = parent[at]
        return int(at)

    def paths_from(self, source: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Find shortest paths from one agent to all others.

        Parameters
        ----------
        source : int
            Index of the agent.

        Returns
        -------
        hops, parent : ndarray of int
            Distance of every agent from `source`, and its predecessor on a shortest path; negative at `source`.
        """
        return shortest_paths(self.adjacency, source)

    def paths_to(self, target: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Find shortest paths from all other agents to one.

        Parameters
        ----------
        target : int
            Index of the agent.

        Returns
        -------
        hops, parent : ndarray of int
            Distance from every agent to `target`, and the next agent on a shortest path; negative at `target`.
        """
        return self.paths_from(target)

    @cached_property
    def eigenvalues(self) -> Array:
        """All eigenvalues of 𝐋 in descending order, from a dense solver (for up to a few thousand agents)."""
        if self.n_agents <= MAX_PORTABLE_AGENTS:
            return portable.eigenvalues(self.gossip_matrix)[::-1]
        return np.asarray(np.linalg.eigvalsh(self.gossip_matrix)[::-1], dtype=np.float64)

    def neighbors(self, j: int) -> tuple[int, ...]:
        """Return the agents with which agent j exchanges messages.

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

    def _row(self, links: Csr, j: int) -> tuple[int, ...]:
        if not 0 <= j < self.n_agents:
            raise TopologyError(f"agent {j} does not exist; agents are numbered 0 … {self.n_agents - 1}", agent=j)
        return tuple(int(i) for i in links.indices[int(links.indptr[j]) : int(links.indptr[j + 1])])

    def to_networkx(self) -> nx.Graph[Any]:
        """Convert to a networkx graph.

        Returns
        -------
        networkx.Graph
            Nodes are agents; edges have their gossip weight as ``weight``.
        """
        graph: nx.Graph[Any] = nx.from_scipy_sparse_array(sparse.triu(self.gossip_sparse, k=1))
        graph.name = self.name
        return graph


def from_edges(m: int, edges: Iterable[tuple[int, int]], *, rule: Rule = "paper", name: str = "edges") -> Topology:
    """Create a topology from a list of undirected edges.

    Parameters
    ----------
    m : int
        Number of agents; they are numbered 0 … m − 1.
    edges : iterable of (int, int)
        Pairs of connected agents; repeated edges count once.
    rule : str, default="paper"
        Rule that sets the weights; see :mod:`deepca.topology.weights`.
    name : str, default="edges"
        Name for messages and plots.

    Returns
    -------
    Topology
        The graph with its gossip matrix.

    Raises
    ------
    TopologyError
        If an edge is invalid, or the edges do not connect all agents (`DisconnectedError`).
    ParameterError
        If the rule is unknown.
    """
    ends = checked_pairs(edges, m, "edge")
    both = np.concatenate([ends, ends[:, ::-1]])
    return Topology(name, rule, *gossip_weights(adjacency_at(both[:, 0], both[:, 1], m), rule, MAX_DENSE_AGENTS))


def from_gossip_matrix(matrix: npt.ArrayLike | Csr, *, name: str = "custom") -> Topology:
    """Create a topology from a given gossip matrix 𝐋, for weights that no rule provides.

    Parameters
    ----------
    matrix : array_like or sparse array of shape (m, m)
        Symmetric, with rows that sum to one.
    name : str, default="custom"
        Name for messages and plots.

    Returns
    -------
    Topology
        The graph of its nonzero entries.

    Raises
    ------
    TopologyError
        If the matrix is not symmetric (`AsymmetricError`) or connected (`DisconnectedError`), or otherwise invalid.
    """
    gossip = csr(matrix if sparse.issparse(matrix) else np.atleast_2d(np.asarray(matrix, dtype=np.float64))).copy()
    gossip.eliminate_zeros()
    check_gossip(gossip)
    check_connected(links_of(gossip))
    return Topology(name, "custom", gossip, *extreme_eigenvalues(gossip, MAX_DENSE_AGENTS))
