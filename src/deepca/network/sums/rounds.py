"""Compute the rounds in which exact sums travel: up and down a spanning tree, or along the edges of a hypercube."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.typing import Array, Csr, csr
from deepca.errors import TopologyError
from deepca.topology.graph import Topology

__all__ = [
    "SumRound",
    "SumTree",
    "Tree",
    "check_weights",
    "hypercube_rounds",
    "is_hypercube",
    "round_between",
    "sum_tree",
    "sweeps",
]

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


@dataclass(frozen=True, eq=False)
class SumTree:
    """Rounds of an exact sum.

    Parameters
    ----------
    up : tuple of csr_array
        Rounds in which receivers add what they receive; only the positions of nonzero weights count.
    down : tuple of csr_array
        Rounds in which the sum returns; none if all agents have it after the rounds up.
    root : int
        The agent that has the sum first.
    n_agents : int or None
        Number of agents; None if it is unknown.
    counts : tuple of ndarray of int, optional
        Number of agents whose values each agent has added up before every round up, ``(m,)``.
    """

    up: tuple[Csr, ...]
    down: tuple[Csr, ...]
    root: int
    n_agents: int | None
    counts: tuple[npt.NDArray[np.int64], ...] | None = None


@dataclass(frozen=True)
class SumRound:
    """Part of one agent in a round of an exact sum.

    Parameters
    ----------
    receivers : tuple of int
        Neighbours to send to.
    expected : dict of int to (int or None)
        Neighbours to receive from, and the number of agents that their sums must include; None if it is unknown.
    n_words : int
        Number of words in the messages of the round.
    adds : bool
        Whether the sums received are added to those of this agent, on the way up, or replace them.
    """

    receivers: tuple[int, ...]
    expected: dict[int, int | None]
    n_words: int
    adds: bool


@lru_cache(maxsize=_CACHED_GRAPHS)
def sum_tree(topology: Topology, *, from_leader: bool) -> SumTree:
    """Return the rounds of an exact sum: along a tree, or of a hypercube unless the leader has to send numbers."""
    up, down = sweeps(topology)
    if not from_leader and topology.n_agents > 2 and is_hypercube(topology):
        up, down = hypercube_rounds(topology), ()
    counts = [np.ones(topology.n_agents, dtype=np.int64)]
    for weights in up:
        entries = sparse.coo_array(weights)
        counts.append(np.bincount(entries.row, counts[-1][entries.col], topology.n_agents).astype(np.int64))
    return SumTree(up, down, topology.center, topology.n_agents, tuple(counts))


@lru_cache(maxsize=_CACHED_GRAPHS)
def hypercube_rounds(topology: Topology) -> tuple[Csr, ...]:
    """Return the weights of one round per dimension of a hypercube, in which neighbours average."""
    m = topology.n_agents
    agents = np.arange(m)
    return tuple(round_between(np.full(m, 0.5), agents, agents ^ (1 << bit), 0.5) for bit in range(m.bit_length() - 1))


def is_hypercube(topology: Topology) -> bool:
    """Return whether agents are neighbours exactly if their indices differ in one bit."""
    m = topology.n_agents
    if topology.directed or m & (m - 1) or topology.n_edges * 2 != m * (m.bit_length() - 1):
        return False
    links = sparse.coo_array(topology.adjacency)
    differing_bits = links.row ^ links.col
    return bool(((differing_bits & (differing_bits - 1)) == 0).all())


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
