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

__all__ = ["SYMMETRY", "GraphBlock", "Indices", "Matrix", "asymmetric_edge", "network_blocks", "partition_graph"]

Matrix = Literal["laplacian", "normalized", "adjacency"]
Indices = npt.NDArray[np.int64]
SYMMETRY = 1e-12
"""Largest accepted difference between the two weights of an edge, relative to the largest weight."""


@dataclass(frozen=True, eq=False)
class GraphBlock:
    """One agent's view of a graph: its own nodes, their edges, and the agents that own the nodes at the other ends.

    Parameters
    ----------
    nodes : array of shape (n,)
        Numbers of its own nodes, ascending.
    weights : sparse array of shape (n, n + len(beyond))
        Weights of the edges; columns are its own nodes, then those in ``beyond``.
    beyond : array of int
        Numbers of other agents' nodes with an edge to one of its own.
    owners : array of int
        Agents that own the nodes in ``beyond``.

    Raises
    ------
    DataError
        If shapes do not match, or numbers or weights are invalid.
    AsymmetricError
        If the two weights of an edge between own nodes differ.
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
                f"a block of {n} nodes and {far} beyond has weights of shape {self.weights.shape} and "
                f"{self.owners.size} owners; expected ({n}, {n + far}) and {far}",
                parameter="weights" if self.weights.shape != (n, n + far) else "owners",
            )
        both = np.concatenate([self.nodes, self.beyond])
        if np.unique(both).size != both.size or both.min() < 0 or (np.diff(self.nodes) < 0).any():
            raise DataError(
                "node numbers are repeated, negative or out of order; number nodes from 0, own nodes ascending",
                parameter="nodes",
            )
        _check_weights(self.weights, self.nodes, both)
        _check_symmetric(csr(self.weights[:, :n]), self.nodes, abs(self.weights).max())


def partition_graph(
    adjacency: Any, labels: npt.ArrayLike, *, rule: Rule = "paper", name: str = "graph"
) -> tuple[list[GraphBlock], Topology]:
    """Partition a weighted graph into blocks, and link the agents that share an edge.

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
        Network in which agents that share an edge are linked.

    Raises
    ------
    DataError
        If Weights or labels are invalid.
    AsymmetricError
        If the two weights of an edge differ.
    """
    W, owner = _real(adjacency), np.asarray(labels)
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise DataError(
            f"adjacency has shape {W.shape}; give N × N weights for N nodes", parameter="adjacency", value=W.shape
        )
    if owner.shape != (W.shape[0],) or owner.dtype.kind not in "iu" or owner.min() < 0:
        raise DataError(
            f"labels have shape {owner.shape} and type {owner.dtype}; give the agent (0, 1, …) of each of the "
            f"{W.shape[0]} nodes",
            parameter="labels",
        )
    m = int(owner.max()) + 1
    empty = np.setdiff1d(np.arange(m), owner)
    if empty.size:
        raise DataError(
            f"agent {empty[0]} has no node; number the agents 0 … {m - empty.size - 1} without gaps",
            parameter="labels",
            agent=int(empty[0]),
        )
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
    apart = sparse.coo_array(W - W.T)
    for i in np.flatnonzero(~(np.abs(apart.data) <= SYMMETRY * largest))[:1]:
        u, v = int(apart.row[i]), int(apart.col[i])
        raise asymmetric_edge(int(nodes[u]), int(nodes[v]), float(W[u, v]), float(W[v, u]))


def network_blocks(network: Network) -> list[GraphBlock]:
    """Return the local agents' blocks of the network's own graph: one node per agent, weight 1 for every link."""
    blocks = []
    for j in network.local.ravel().tolist():
        around = np.array(network.topology.neighbors(j), dtype=np.int64)
        blocks.append(GraphBlock(np.array([j]), csr(np.array([[0.0, *np.ones(around.size)]])), around, around))
    return blocks


def asymmetric_edge(u: int, v: int, weight: float, back: float) -> AsymmetricError:
    """Return the error about an edge whose two weights differ."""
    return AsymmetricError(
        f"the weights are not symmetric at edge ({u}, {v}): {weight:.6g} one way, {back:.6g} the other; "
        "use (W + W.T)/2, or the larger of the two",
        row=u,
        column=v,
        value=(weight, back),
    )
