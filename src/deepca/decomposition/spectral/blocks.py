"""Blocks of a graph whose nodes are partitioned over agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.typing import Csr, csr
from deepca.errors import AsymmetricError, DataError
from deepca.network.base import Network
from deepca.topology.graph import Rule, Topology, from_edges

__all__ = [
    "SYMMETRY_TOLERANCE",
    "GraphBlock",
    "GraphMatrix",
    "Indices",
    "asymmetric_edge_error",
    "network_blocks",
    "partition_graph",
]

GraphMatrix = Literal["laplacian", "normalized", "adjacency"]
Indices = npt.NDArray[np.int64]
SYMMETRY_TOLERANCE = 1e-12
"""Largest accepted difference between the two weights of an edge, relative to the largest weight."""


@dataclass(frozen=True, eq=False)
class GraphBlock:
    """One agent's view of a graph: its nodes, their edges, and the agents that own the nodes at the other ends.

    Parameters
    ----------
    nodes : array of shape (n,)
        Numbers of the agent's nodes, ascending.
    weights : sparse array of shape (n, n + len(beyond))
        Weights of the edges; columns are the agent's nodes, then the nodes in ``beyond``.
    beyond : array of int
        Numbers of other agents' nodes that have an edge to one of this agent's nodes.
    owners : array of int
        Agents that own the nodes in ``beyond``.

    Raises
    ------
    DataError
        If shapes do not match, or numbers or weights are invalid.
    AsymmetricError
        If the two weights of an edge between two of the agent's nodes differ.
    """

    nodes: Indices
    weights: Csr
    beyond: Indices
    owners: Indices

    def __post_init__(self) -> None:
        """Check shapes, numbers and weights."""
        n, far = self.nodes.size, self.beyond.size
        if n == 0:
            raise DataError("the block has no nodes; every agent needs at least one", parameter="nodes")
        if self.weights.shape != (n, n + far) or self.owners.shape != (far,):
            raise DataError(
                f"the block has {n} nodes and {far} nodes beyond, but weights of shape {self.weights.shape} and owners "
                f"of shape {self.owners.shape}; give shapes ({n}, {n + far}) and ({far},)",
                parameter="weights" if self.weights.shape != (n, n + far) else "owners",
            )
        both = np.concatenate([self.nodes, self.beyond])
        if np.unique(both).size != both.size or both.min() < 0 or (np.diff(self.nodes) < 0).any():
            raise DataError(
                "node numbers are repeated, negative or out of order; number nodes from 0, and give ``nodes`` in "
                "ascending order",
                parameter="nodes",
            )
        _check_weights(self.weights, self.nodes, both)
        _check_symmetric(csr(self.weights[:, :n]), self.nodes, abs(self.weights).max())


def partition_graph(
    adjacency: Any, labels: npt.ArrayLike, *, rule: Rule = "paper", name: str = "graph"
) -> tuple[list[GraphBlock], Topology]:
    """Partition a weighted graph into blocks and link two agents if an edge joins their nodes.

    Parameters
    ----------
    adjacency : array or sparse matrix of shape (N, N)
        Symmetric weights.
    labels : array of shape (N,)
        Agent of every node, 0 … m − 1.
    rule : str
        Rule of the gossip weights; see :func:`deepca.topology.graph.from_edges`.
    name : str
        Name of the network.

    Returns
    -------
    blocks : list of GraphBlock
        One block per agent.
    topology : Topology
        Network in which two agents are linked if an edge joins their nodes.

    Raises
    ------
    DataError
        If weights or labels are invalid.
    AsymmetricError
        If the two weights of an edge differ.
    DisconnectedError
        If the edges between blocks do not connect all agents.
    """
    W, owner = _real(adjacency), np.asarray(labels)
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise DataError(
            f"adjacency has shape {W.shape}; give N × N weights for N nodes", parameter="adjacency", value=W.shape
        )
    m = _count_agents(owner, W.shape[0])
    W.eliminate_zeros()
    _check_weights(W, np.arange(owner.size), np.arange(owner.size))
    _check_symmetric(W, np.arange(owner.size), abs(W).max())
    blocks = []
    for j in range(m):
        mine = np.flatnonzero(owner == j)
        rows = csr(W[mine])
        beyond = np.setdiff1d(rows.indices, mine)
        blocks.append(GraphBlock(mine, csr(rows[:, np.concatenate([mine, beyond])]), beyond, owner[beyond]))
    links = {(j, int(i)) for j, block in enumerate(blocks) for i in block.owners}
    return blocks, from_edges(m, sorted(links), rule=rule, name=name)


def _count_agents(owner: npt.NDArray[Any], n_nodes: int) -> int:
    """Return the number of agents; raise DataError unless every node has an agent and every agent a node."""
    if owner.shape != (n_nodes,) or owner.dtype.kind not in "iu" or owner.min() < 0:
        raise DataError(
            f"labels have shape {owner.shape} and type {owner.dtype}; give the agent (0, 1, …) of each of the "
            f"{n_nodes} nodes",
            parameter="labels",
        )
    m = int(owner.max()) + 1
    empty = np.setdiff1d(np.arange(m), owner)
    if empty.size:
        raise DataError(
            f"labels assigns no node to agent {empty[0]}; number the agents 0 … {m - empty.size - 1} without gaps",
            parameter="labels",
            agent=int(empty[0]),
        )
    return m


def _real(adjacency: Any) -> Csr:
    """Return a copy of the weights in CSR format; raise DataError unless they are real numbers."""
    given: Any = adjacency if sparse.issparse(adjacency) else np.asarray(adjacency)
    if given.dtype.kind not in "biuf":
        raise DataError(
            f"the weights have type {given.dtype}; give real numbers", parameter="adjacency", value=given.dtype
        )
    return csr(given).copy()


def _check_weights(W: Csr, rows: Indices, columns: Indices) -> None:
    """Raise DataError for a weight that is negative or not finite; ``rows`` and ``columns`` are node numbers."""
    entries = sparse.coo_array(W)
    for i in np.flatnonzero(~(np.isfinite(entries.data) & (entries.data >= 0.0)))[:1]:
        u, v, weight = int(rows[entries.row[i]]), int(columns[entries.col[i]]), float(entries.data[i])
        raise DataError(
            f"edge ({u}, {v}) has the weight {weight:g}; give finite weights that are not negative",
            row=u,
            column=v,
            value=weight,
        )


def _check_symmetric(W: Csr, nodes: Indices, largest: float) -> None:
    """Raise AsymmetricError for an edge between these nodes whose two weights differ, relative to the largest."""
    difference = sparse.coo_array(W - W.T)
    for i in np.flatnonzero(~(np.abs(difference.data) <= SYMMETRY_TOLERANCE * largest))[:1]:
        u, v = int(difference.row[i]), int(difference.col[i])
        raise asymmetric_edge_error(int(nodes[u]), int(nodes[v]), float(W[u, v]), float(W[v, u]))


def network_blocks(network: Network) -> list[GraphBlock]:
    """Return the local agents' blocks of the network's own graph: one node per agent, weight 1 for every link."""
    blocks = []
    for j in network.local.ravel().tolist():
        neighbors = np.array(network.topology.neighbors(j), dtype=np.int64)
        blocks.append(GraphBlock(np.array([j]), csr(np.array([[0.0, *np.ones(neighbors.size)]])), neighbors, neighbors))
    return blocks


def asymmetric_edge_error(u: int, v: int, weight: float, back: float) -> AsymmetricError:
    """Return the error for an edge whose two weights differ."""
    return AsymmetricError(
        f"the weights are not symmetric at edge ({u}, {v}): {weight:.6g} one way, {back:.6g} the other; "
        "use (W + W.T)/2, or the larger of the two weights",
        row=u,
        column=v,
        value=(weight, back),
    )
