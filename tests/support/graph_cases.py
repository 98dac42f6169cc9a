"""Graphs partitioned over agents, and the spectra of their pooled matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy.linalg
from scipy import sparse
from scipy.sparse import csgraph

from deepca._util.typing import Csr, csr
from deepca.decomposition.spectral import graphs
from deepca.network import Network
from deepca.topology import Topology
from tests.support.engines import at_every_agent

__all__ = ["Shared", "entries", "pooled", "shared", "weighted"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shared:
    """A graph, its blocks, and the topology of their agents."""

    W: Csr
    blocks: list[graphs.GraphBlock]
    topology: Topology

    @property
    def size(self) -> int:
        return int(self.W.shape[0])

    def local(self, network: Network) -> list[graphs.GraphBlock]:
        return [self.blocks[int(j)] for j in network.local.ravel()]


def weighted(graph: nx.Graph[int], seed: int | None = None) -> Csr:
    """Return the weights of a graph: all one, or random between 1/2 and 2."""
    W = csr(nx.to_scipy_sparse_array(graph, weight=None, dtype=np.dtype(np.float64)))
    if seed is not None:
        upper = sparse.coo_array(sparse.triu(W, k=1))
        upper.data = np.random.default_rng(seed).uniform(0.5, 2.0, upper.nnz)
        W = csr(upper + upper.T)
    return W


def shared(W: Csr, m: int, seed: int = 0) -> Shared:
    """Partition a graph over m agents, in blocks of different sizes that are not contiguous."""
    rng, n = np.random.default_rng(seed), int(W.shape[0])
    cuts = np.sort(rng.choice(np.arange(1, n), m - 1, replace=False))
    labels = np.searchsorted(cuts, np.arange(n), side="right")
    stray = rng.choice(n, n // 10, replace=False)
    labels[stray] = rng.integers(m, size=stray.size)
    missing = np.setdiff1d(np.arange(m), labels)
    labels[rng.choice(n, missing.size, replace=False)] = missing
    labels = np.unique(labels, return_inverse=True)[1]
    return Shared(W, *graphs.partition_graph(W, labels))


def entries(kind: str, case: Shared, found: Callable[[Sequence[graphs.GraphBlock], Network], Sequence[Array]]) -> Array:
    """Return the parts of all agents, joined to ``(N, k)``, computed on one of ENGINES."""

    def work(network: Network) -> Array:
        blocks = case.local(network)
        parts = found(blocks, network)
        own = np.zeros((len(blocks), case.size, parts[0].shape[1]))
        for row, block, part in zip(own, blocks, parts, strict=True):
            row[block.nodes] = part
        return own.reshape(*network.batch, *own.shape[1:])

    return np.asarray(at_every_agent(kind, case.topology, work).values.sum(axis=0))


def pooled(W: Csr, matrix: str, which: str) -> tuple[Array, Array]:
    """Return all eigenvalues and eigenvectors, starting from the requested end."""
    normed = matrix == "normalized"
    M = W.toarray() if matrix == "adjacency" else np.asarray(csgraph.laplacian(W.toarray(), normed=normed))
    values, vectors = scipy.linalg.eigh(M.astype(np.float64))
    return (values, vectors) if which == "smallest" else (values[::-1], vectors[:, ::-1])
