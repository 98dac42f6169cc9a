"""Spectral clustering of a graph whose nodes are partitioned over agents; each agent sees only its own block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca._util.validation import Integer, check
from deepca.algorithms.partitioned_rows import random_rows
from deepca.decomposition.spectral.block_rows import BlockRows
from deepca.decomposition.spectral.blocks import GraphBlock
from deepca.decomposition.spectral.graphs import GraphEigenpairs, compute_eigenpairs, prepare
from deepca.network.base import Network
from deepca.network.trees import SpanningTree

__all__ = ["Clustering", "spectral_clustering"]

_MAX_STEPS = 300  # maximum number of Lloyd's iterations, as in scikit-learn


@dataclass(frozen=True, eq=False)
class Clustering:
    """Clusters of the local agents' nodes, and the embedding they come from.

    Parameters
    ----------
    labels : tuple of array
        One array ``(nodes,)`` per local agent: labels 0 … n_clusters − 1, ordered by the smallest node of each cluster.
    inertia : float
        Sum of squared distances of all nodes to the centres of their clusters.
    embedding : tuple of array
        One array ``(nodes, n_clusters)`` per local agent: rows of ``D^{−1/2} U``.
    eigenpairs : GraphEigenpairs
        Eigenpairs behind the embedding.

    Examples
    --------
    >>> import deepca
    >>> from deepca.decomposition.spectral import graphs
    >>> triangle = np.ones((3, 3)) - np.eye(3)
    >>> W = np.kron(np.eye(2), triangle)
    >>> W[2, 3] = W[3, 2] = 0.1  # a weak edge between two triangles
    >>> blocks, topology = graphs.partition_graph(W, [0, 0, 0, 1, 1, 1])
    >>> spectral_clustering(blocks, deepca.SimulatedNetwork(topology), 2).labels
    (array([0, 0, 0]), array([1, 1, 1]))
    """

    labels: tuple[npt.NDArray[np.int64], ...]
    inertia: float
    embedding: tuple[Array, ...]
    eigenpairs: GraphEigenpairs


def spectral_clustering(
    blocks: Sequence[GraphBlock],
    network: Network,
    n_clusters: int,
    *,
    restarts: int = 10,
    tol: float = 1e-12,
    seed: int = 0,
) -> Clustering:
    """Cluster nodes as :class:`sklearn.cluster.SpectralClustering` would, given the weights of the whole graph.

    Parameters
    ----------
    blocks : sequence of GraphBlock
        Blocks of the local agents.
    network : Network
        Network in which two agents are linked if an edge joins their nodes.
    n_clusters : int
        Number of clusters.
    restarts : int
        Number of runs of k-means, which take place simultaneously; the one with the smallest inertia is returned.
    tol : float
        Acceptable sine of the angle between the span of the eigenvectors and the true one, as far as rounding allows.
    seed : int
        Seed of the random start and of the first centres, the same at every agent.

    Returns
    -------
    Clustering
        Labels of the local agents' nodes.

    Raises
    ------
    ParameterError
        If ``n_clusters``, ``restarts`` or ``tol`` is invalid.
    AsymmetricError, DisconnectedError, TopologyError, GapError
        If the graph cannot be used, as for :func:`~deepca.decomposition.spectral.graphs.graph_eigenvectors`.

    Notes
    -----
    Rows of ``D^{−1/2} U`` are the points, with U the n_clusters smallest eigenvectors of ``I − D^{−1/2} W D^{−1/2}``.
    k-means sums and counts each cluster over all agents, so that centres have the same bits at every agent. The first
    centres are drawn as by k-means++: every node i draws an exponential random number ``e_i``, seeded by its node
    number, and the node with the smallest ``e_i / d_i²`` is chosen, where ``d_i`` is its distance to the nearest
    centre. So node i is chosen with a probability proportional to ``d_i²``.
    """
    check("restarts", restarts, Integer(1))
    rows, tree = prepare(blocks, network, n_clusters, matrix="normalized", which="smallest")
    found, U = compute_eigenpairs(rows, tree, n_clusters, which="smallest", tol=tol, seed=seed)
    root = np.sqrt(rows.degrees)[..., None]
    points = np.divide(U, root, out=np.zeros_like(U), where=root > 0.0)
    centres = _first_centres(rows, points, (restarts, n_clusters), seed)
    labels, inertia = _lloyd(rows, tree, points, centres)
    best = int(np.argmin(inertia))
    return Clustering(
        labels=_in_order_of_nodes(rows, labels[..., best], n_clusters),
        inertia=float(inertia[best]),
        embedding=rows.local_arrays(points),
        eigenpairs=found,
    )


def _in_order_of_nodes(
    rows: BlockRows, labels: npt.NDArray[np.int64], clusters: int
) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the labels of every local agent's nodes, with clusters in the order of their smallest nodes."""
    member = (labels[..., None] == np.arange(clusters)) & (rows.numbers >= 0)[..., None]
    first = rows.network.reduce(np.where(member, rows.numbers[..., None], np.inf).min(axis=-2), "min")
    ordered = np.argsort(np.argsort(first))[labels]
    return tuple(part[:, 0].astype(np.int64) for part in rows.local_arrays(ordered[..., None].astype(np.float64)))


def _first_centres(rows: BlockRows, points: Array, shape: tuple[int, int], seed: int) -> Array:
    """Draw the first centres ``(restarts, clusters, k)`` by k-means++, the same at every agent."""
    restarts, clusters = shape
    real = (rows.numbers >= 0)[..., None]
    draws = random_rows(rows.numbers, restarts * clusters, seed + 1, np.random.Generator.standard_exponential)
    draws = draws.reshape(*rows.numbers.shape, clusters, restarts)
    nearest = np.ones((*rows.numbers.shape, restarts))
    centres = np.empty((restarts, 0, points.shape[-1]))
    for c in range(clusters):
        keys = np.divide(draws[..., c, :], nearest, out=np.full_like(nearest, np.inf), where=real & (nearest > 0.0))
        least = rows.network.reduce(keys.min(axis=-2), "min")
        chosen = (keys == least) & np.isfinite(keys)
        row = np.where(chosen[..., None], points[..., None, :], -np.inf).max(axis=-3)
        centre = rows.network.reduce(row, "max")
        # with fewer distinct points than clusters, repeat the first centre
        centre = np.where(np.isfinite(centre), centre, centres[:, 0] if c else 0.0)
        centres = np.concatenate([centres, centre[:, None]], axis=1)
        apart = np.square(points[..., None, :] - centre).sum(axis=-1)
        nearest = apart if c == 0 else np.minimum(nearest, apart)
    return centres


def _lloyd(rows: BlockRows, tree: SpanningTree, points: Array, centres: Array) -> tuple[npt.NDArray[np.int64], Array]:
    """Iterate Lloyd's algorithm until no centre of any restart moves; return labels ``(*B, n, restarts)``, inertias."""
    restarts, clusters, k = centres.shape
    real = (rows.numbers >= 0)[..., None]
    labels, inertia = np.zeros((*rows.numbers.shape, restarts), dtype=np.int64), np.zeros(restarts)
    for _ in range(_MAX_STEPS):
        apart = np.square(points[..., None, None, :] - centres).sum(axis=-1)
        labels = apart.argmin(axis=-1)
        member = ((labels[..., None] == np.arange(clusters)) & real[..., None]).astype(np.float64)
        sums = np.einsum("...nrc,...nk->...rck", member, points)
        parts = [sums, member.sum(axis=-3)[..., None], (apart * member).sum(axis=-3)[..., None]]
        total = tree.sum(np.concatenate(parts, axis=-1))
        counts, inertia = total[..., k : k + 1], np.add.accumulate(total[..., k + 1], axis=-1)[..., -1]
        moved = np.where(counts > 0.0, total[..., :k] / np.maximum(counts, 1.0), centres)
        if np.array_equal(moved, centres):  # bitwise identical at every agent, so all stop together
            break
        centres = moved
    return labels, inertia
