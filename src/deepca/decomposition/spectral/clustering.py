"""Spectral clustering of a graph whose nodes are shared out over agents: nobody sees more than its own block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca._util.validation import Whole, check
from deepca.algorithms.partitioned_rows import by_number
from deepca.decomposition.spectral.blocks import BlockRows, GraphBlock
from deepca.decomposition.spectral.graphs import GraphEigenpairs, eigenpairs_of, prepared
from deepca.network.base import Network
from deepca.network.trees import SpanningTree

__all__ = ["Clustering", "spectral_clustering"]

_STEPS = 300


@dataclass(frozen=True, eq=False)
class Clustering:
    """Each local agent's clusters of its nodes, and what they were found from.

    labels : for each local agent ``(nodes,)``, 0 … n_clusters − 1, in the order of the smallest number of a node.
    inertia : the sum of squared distances of nodes to the centres of their clusters.
    embedding : for each local agent ``(nodes, n_clusters)``, ``D^{−1/2} U``.  eigenpairs : those behind it.
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
    """Clusters of nodes, as from :class:`sklearn.cluster.SpectralClustering` on the weights of the whole graph.

    ::

        U = the n_clusters smallest eigenvectors of I − D^{−1/2} W D^{−1/2},    rows of D^{−1/2} U as points
        k-means on them:  c ← nearest centre,   sums and counts of each cluster added up over all agents

    Centres are the same bits everywhere. The first ones are drawn as by k-means++: every node draws an exponential
    number by its own name, and the smallest ``e_i / d_i²`` of all is chosen, which is node i with a probability
    proportional to ``d_i²``. All restarts are made at once, and the one with the smallest inertia counts.
    """
    check("restarts", restarts, Whole(1))
    rows, tree = prepared(blocks, network, n_clusters, matrix="normalized", which="smallest")
    found, U = eigenpairs_of(rows, tree, n_clusters, which="smallest", tol=tol, seed=seed)
    root = np.sqrt(rows.degrees)[..., None]
    points = np.divide(U, root, out=np.zeros_like(U), where=root > 0.0)
    centres = _seeded(rows, points, (restarts, n_clusters), seed)
    labels, inertia = _lloyd(rows, tree, points, centres)
    best = int(np.argmin(inertia))
    kept = labels[..., best]
    member = (kept[..., None] == np.arange(n_clusters)) & (rows.numbers >= 0)[..., None]
    first = network.reduce(np.where(member, rows.numbers[..., None], np.inf).min(axis=-2), "min")
    ordered = np.argsort(np.argsort(first))[kept]
    return Clustering(
        labels=tuple(part[:, 0].astype(np.int64) for part in rows.local_arrays(ordered[..., None].astype(np.float64))),
        inertia=float(inertia[best]),
        embedding=rows.local_arrays(points),
        eigenpairs=found,
    )


def _seeded(rows: BlockRows, points: Array, shape: tuple[int, int], seed: int) -> Array:
    """First centres ``(restarts, clusters, k)``, the same at every agent."""
    restarts, clusters = shape
    real = (rows.numbers >= 0)[..., None]
    draws = by_number(rows.numbers, restarts * clusters, seed + 1, np.random.Generator.standard_exponential)
    draws = draws.reshape(*rows.numbers.shape, clusters, restarts)
    nearest = np.ones((*rows.numbers.shape, restarts))
    centres = np.empty((restarts, 0, points.shape[-1]))
    for c in range(clusters):
        keys = np.divide(draws[..., c, :], nearest, out=np.full_like(nearest, np.inf), where=real & (nearest > 0.0))
        least = rows.network.reduce(keys.min(axis=-2), "min")
        chosen = (keys == least) & np.isfinite(keys)
        row = np.where(chosen[..., None], points[..., None, :], -np.inf).max(axis=-3)
        centre = rows.network.reduce(row, "max")
        # with fewer different points than clusters nothing is left to choose: the first centre once more
        centre = np.where(np.isfinite(centre), centre, centres[:, 0] if c else 0.0)
        centres = np.concatenate([centres, centre[:, None]], axis=1)
        apart = np.square(points[..., None, :] - centre).sum(axis=-1)
        nearest = apart if c == 0 else np.minimum(nearest, apart)
    return centres


def _lloyd(rows: BlockRows, tree: SpanningTree, points: Array, centres: Array) -> tuple[npt.NDArray[np.int64], Array]:
    """Lloyd's iterations of all restarts, until no centre moves: labels ``(*B, n, restarts)``, and inertias."""
    restarts, clusters, k = centres.shape
    real = (rows.numbers >= 0)[..., None]
    labels, inertia = np.zeros((*rows.numbers.shape, restarts), dtype=np.int64), np.zeros(restarts)
    for _ in range(_STEPS):
        apart = np.square(points[..., None, None, :] - centres).sum(axis=-1)
        labels = apart.argmin(axis=-1)
        member = ((labels[..., None] == np.arange(clusters)) & real[..., None]).astype(np.float64)
        sums = np.einsum("...nrc,...nk->...rck", member, points)
        parts = [sums, member.sum(axis=-3)[..., None], (apart * member).sum(axis=-3)[..., None]]
        total = tree.sum(np.concatenate(parts, axis=-1))
        counts, inertia = total[..., k : k + 1], np.add.accumulate(total[..., k + 1], axis=-1)[..., -1]
        moved = np.where(counts > 0.0, total[..., :k] / np.maximum(counts, 1.0), centres)
        if np.array_equal(moved, centres):  # the same bits at every agent, so all stop together
            break
        centres = moved
    return labels, inertia
