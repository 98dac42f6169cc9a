"""Compute round weights along a spanning tree that all agents know: sums go up to its root, results come back down."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.typing import Array, Csr, csr
from deepca.errors import TopologyError
from deepca.topology.graph import Topology

__all__ = ["Tree", "check_weights", "round_between", "sweeps"]

Tree = tuple[tuple[Csr, ...], tuple[Csr, ...]]
"""Weights of the rounds up a tree to its root, and of the rounds back down."""

_CACHED_GRAPHS = 16  # maximum number of graphs whose weights are cached


@lru_cache(maxsize=_CACHED_GRAPHS)
def sweeps(topology: Topology) -> Tree:
    """Return the round weights along a tree with root ``topology.center``; the rounds up leave the mean at the root."""
    m = topology.n_agents
    if m == 1:
        return (), ()
    up: list[Csr] = []
    depth, parent = topology.paths_to(topology.center)
    for level in range(int(depth.max()), 0, -1):
        children = np.flatnonzero(depth == level)
        share = 1.0 / m if level == 1 else 1.0
        keep = np.ones(m)
        keep[depth == 0] = share
        up.append(round_between(keep, parent[children], children, share))
    down: list[Csr] = []
    depth, parent = topology.paths_from(topology.center)
    for level in range(1, int(depth.max()) + 1):
        children = np.flatnonzero(depth == level)
        keep = np.ones(m)
        keep[children] = 0.0
        down.append(round_between(keep, children, parent[children], 1.0))
    return tuple(up), tuple(down)


def round_between(keep: Array, receivers: npt.NDArray[np.int64], senders: npt.NDArray[np.int64], weight: float) -> Csr:
    """Return weights that add ``weight`` times the sender's value to ``keep`` times the receiver's own."""
    own = np.flatnonzero(keep)
    rows, columns = np.concatenate([own, receivers]), np.concatenate([own, senders])
    values = np.concatenate([keep[own], np.full(len(receivers), weight)])
    return csr(sparse.coo_array((values, (rows, columns)), shape=(keep.size, keep.size)))


def check_weights(weights: Csr, topology: Topology) -> None:
    """Raise TopologyError unless all nonzero weights lie on edges or the diagonal."""
    m = topology.n_agents
    if weights.shape != (m, m):
        raise TopologyError(f"round weights have shape {weights.shape}; expected ({m}, {m})", value=weights.shape)
    entries = sparse.coo_array(weights)
    used = (entries.row != entries.col) & (entries.data != 0.0)
    allowed = topology.adjacency
    for i, j in zip(entries.row[used], entries.col[used], strict=True):
        if not allowed[i, j]:
            raise TopologyError(
                f"round weights use the pair ({i}, {j}), which is not an edge of {topology.name}", edge=(int(i), int(j))
            )
