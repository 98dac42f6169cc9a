"""Graphs whose nodes are shared out over agents: what each of them sees, and products with what all see together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from deepca._util.typing import Array, Csr, csr
from deepca.errors import AsymmetricError, DataError, DisconnectedError, InvalidInput, TopologyError
from deepca.network.base import Network
from deepca.topology.graph import Rule, Topology, from_edges

__all__ = ["BlockRows", "GraphBlock", "Matrix", "network_blocks", "partition_graph"]

Matrix = Literal["laplacian", "normalized", "adjacency"]
_Numbers = npt.NDArray[np.int64]
_SYMMETRY = 1e-12


@dataclass(frozen=True, eq=False)
class GraphBlock:
    """What one agent sees of a graph: its own nodes, their edges, and who has the nodes at the other ends.

    nodes : numbers of its nodes, ``(n,)``, ascending.  beyond : numbers of others' nodes with an edge to one of them.
    owners : the agents that have those.  weights : of the edges, ``(n, n + len(beyond))``, own nodes first.
    """

    nodes: _Numbers
    weights: Csr
    beyond: _Numbers
    owners: _Numbers

    def __post_init__(self) -> None:
        n, far = self.nodes.size, self.beyond.size
        if n == 0:
            raise DataError("a block without nodes: every agent needs at least one")
        if self.weights.shape != (n, n + far) or self.owners.shape != (far,):
            raise DataError(
                f"a block of {n} nodes and {far} beyond has weights of shape {self.weights.shape} and "
                f"{self.owners.size} owners; expected ({n}, {n + far}) and {far}"
            )
        both = np.concatenate([self.nodes, self.beyond])
        if np.unique(both).size != both.size or both.min() < 0 or (np.diff(self.nodes) < 0).any():
            raise DataError("numbers of nodes must be different, not negative, and those of own nodes ascending")
        _check_weights(self.weights, self.nodes, both)
        _check_symmetric(csr(self.weights[:, :n]), self.nodes, abs(self.weights).max())


def partition_graph(
    adjacency: Any, labels: npt.ArrayLike, *, rule: Rule = "paper", name: str = "graph"
) -> tuple[list[GraphBlock], Topology]:
    """Blocks of a weighted graph by the agent of each node, and the network in which agents that share an edge talk.

    Parameters
    ----------
    adjacency : symmetric weights ``(N, N)``, dense or sparse.  labels : the agent, 0 … m − 1, of every node.
    """
    W, owner = _real(adjacency), np.asarray(labels)
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise DataError(f"the weights have shape {W.shape}; a graph of N nodes has N × N of them")
    if owner.shape != (W.shape[0],) or owner.dtype.kind not in "iu" or owner.min() < 0:
        raise DataError(f"labels: give the agent (0, 1, …) of each of the {W.shape[0]} nodes")
    m = int(owner.max()) + 1
    empty = np.setdiff1d(np.arange(m), owner)
    if empty.size:
        raise DataError(f"agent {empty[0]} has no node; number the agents 0 … {m - empty.size - 1} without gaps")
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
    """A copy of the weights as they are counted with; what is not real numbers is an error."""
    given: Any = adjacency if sparse.issparse(adjacency) else np.asarray(adjacency)
    if given.dtype.kind not in "biuf":
        raise DataError(f"the weights are of type {given.dtype}; those of a graph are real numbers")
    return csr(given).copy()


def _check_weights(W: Csr, rows: _Numbers, columns: _Numbers) -> None:
    """DataError that names an edge whose weight is none; rows, columns : the numbers of their nodes."""
    entries = sparse.coo_array(W)
    for i in np.flatnonzero(~(np.isfinite(entries.data) & (entries.data >= 0.0)))[:1]:
        edge = (int(rows[entries.row[i]]), int(columns[entries.col[i]]))
        raise DataError(f"edge {edge} has the weight {entries.data[i]:g}; weights are finite and not negative")


def _check_symmetric(W: Csr, nodes: _Numbers, largest: float) -> None:
    """AsymmetricError that names an edge between two of these nodes whose weights differ, relative to the largest."""
    apart = sparse.coo_array(W - W.T)
    for i in np.flatnonzero(~(np.abs(apart.data) <= _SYMMETRY * largest))[:1]:
        u, v = int(apart.row[i]), int(apart.col[i])
        raise _unsymmetric(int(nodes[u]), int(nodes[v]), float(W[u, v]), float(W[v, u]))


def network_blocks(network: Network) -> list[GraphBlock]:
    """The network's own graph, a node for each agent and a weight of one for each link: blocks of the agents here."""
    blocks = []
    for j in network.local.ravel().tolist():
        around = np.array(network.topology.neighbors(j), dtype=np.int64)
        blocks.append(GraphBlock(np.array([j]), csr(np.array([[0.0, *np.ones(around.size)]])), around, around))
    return blocks


class BlockRows:
    """A matrix of the graph, ``M = diag(c) + s⊙W⊙s``, negated where its smallest eigenvalues are wanted.

    ======================  ================  ==============  ===============
    matrix                  c                 s               the constant one
    ======================  ================  ==============  ===============
    ``laplacian`` D − W     degrees           1, W negated    1
    ``normalized``          1                 D^{−1/2}        D^{1/2}
    ``adjacency`` W         0                 1
    ======================  ================  ==============  ===============

    Weights are divided by ``unit``, a power of two, so that the largest lies between 1 and 2; eigenvalues of ``D − W``
    and W are those of M times ``unit``.

    A product takes one round. An agent sends the values of those of its nodes that have an edge to another agent,
    filled up to as many as the agent with most of them has.
    """

    def __init__(self, blocks: Sequence[GraphBlock], network: Network, matrix: Matrix, *, negated: bool) -> None:
        if matrix not in get_args(Matrix):
            raise InvalidInput(f"matrix = {matrix!r}: give 'laplacian', 'normalized' or 'adjacency'")
        here = network.local.size
        if len(blocks) != here:
            raise InvalidInput(f"{len(blocks)} blocks for the {here} agents held here; give one for each, in order")
        self.network, self._sign = network, -1.0 if negated else 1.0
        n = max(block.nodes.size for block in blocks)
        self.numbers = np.full((here, n), -1, dtype=np.int64)
        for row, block in zip(self.numbers, blocks, strict=True):
            row[: block.nodes.size] = block.nodes
        seams = [_Seam.of(block) for block in blocks]
        most = [
            [seam.sent.size, seam.cut.shape[0], block.weights.max()] for seam, block in zip(seams, blocks, strict=True)
        ]
        width, cut, heaviest = network.reduce(np.array(most, dtype=np.float64).reshape(*network.batch, 3), "max")
        self._width, cuts = int(width), int(cut)
        theirs = _exchange_cuts(network, seams, cuts)
        # squares of weights may not fit where weights do
        unit = math.ldexp(1.0, max(math.frexp(float(heaviest))[1] - 1, -1022))
        self._near, self._far = (
            csr(part / unit) for part in _assembled(blocks, seams, network, theirs, n, self._width)
        )
        self.unit = 1.0 if matrix == "normalized" else unit
        self._sent = np.zeros((here, self._width), dtype=np.int64)
        self._used = np.zeros((here, self._width, 1))
        for j, seam in enumerate(seams):
            self._sent[j, : seam.sent.size], self._used[j, : seam.sent.size] = seam.sent, 1.0
        self.numbers = self.numbers.reshape(*network.batch, n)
        loops = self._near.diagonal().reshape(*self.numbers.shape)
        all_of: Array = np.asarray(self._near.sum(axis=1) + self._far.sum(axis=1), dtype=np.float64)
        self.degrees = all_of.reshape(self.numbers.shape) - loops  # a node's edge to itself does not count
        self.constant: Array | None = None
        real = (self.numbers >= 0).astype(np.float64)
        if matrix == "adjacency":
            self._c, self._s, self._off = 0.0 * loops, real, 1.0
        elif matrix == "laplacian":
            self._c, self._s, self._off, self.constant = self.degrees + loops, real, -1.0, real
        else:
            root = np.sqrt(self.degrees)
            inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0.0)
            self._c, self._s, self._off, self.constant = real + loops * inverse**2, inverse, -1.0, root
        around = self._s * self._weighted(self._s[..., None])[..., 0]  # the sum of a row of s⊙W⊙s
        inside = loops * self._s**2
        middle = self._sign * (self._c + self._off * inside)
        self.lowest = float(
            network.reduce(np.where(real > 0.0, middle - (around - inside), np.inf).min(axis=-1), "min")
        )

    def product(self, X: Array, /) -> Array:
        s = self._s[..., None]
        Y = self._c[..., None] * X + self._off * s * self._weighted(s * X)
        return self._sign * Y

    def check_connected(self) -> None:
        """DisconnectedError, at all agents alike, unless there is a way along edges between any two nodes.

        Every node takes the smallest number heard of: at once inside of a block, by rounds between them.
        """
        own = csgraph.connected_components(self._near, directed=False)[1]
        label, network = self._least(own, self.numbers.astype(np.float64)), self.network
        rounds = network.topology.flood_rounds + 1
        while True:
            before = label
            for _ in range(rounds):
                heard = self._heard(label[..., None])
                label = self._least(own, np.minimum(label, heard))
            if not float(network.reduce((label != before).any(axis=-1).astype(np.float64), "max")):
                break
        real = self.numbers >= 0
        low = float(network.reduce(np.where(real, label, np.inf).min(axis=-1), "min"))
        high = float(network.reduce(np.where(real, label, -np.inf).max(axis=-1), "max"))
        if low != high:
            raise DisconnectedError(
                f"the graph falls apart: no way along edges leads from node {low:.0f} to node {high:.0f}; its smallest "
                "eigenvalue is then repeated. Add edges between the parts, or treat each part by itself"
            )

    def local_arrays(self, X: Array) -> tuple[Array, ...]:
        """What ``(*B, n, k)`` holds of each local agent's nodes."""
        rows = X.reshape(-1, *X.shape[-2:])
        counts = np.count_nonzero(self.numbers.reshape(len(rows), -1) >= 0, axis=1)
        return tuple(np.array(row[:count]) for row, count in zip(rows, counts, strict=True))

    def _weighted(self, X: Array) -> Array:
        """``W X``: one round."""
        w = X.shape[-1]
        theirs = self.network.collect(self._boundary(X)).reshape(-1, w)
        return np.asarray(self._near @ X.reshape(-1, w) + self._far @ theirs).reshape(X.shape)

    def _boundary(self, X: Array) -> Array:
        rows = X.reshape(len(self._sent), -1, X.shape[-1])
        sent = np.take_along_axis(rows, self._sent[..., None], axis=1) * self._used
        return sent.reshape(*self.network.batch, *sent.shape[1:])

    def _least(self, own: npt.NDArray[Any], label: Array) -> Array:
        """The smallest label of each part of a block."""
        flat = np.where(self.numbers.ravel() >= 0, label.ravel(), np.inf)
        least = np.full(int(own.max()) + 1, np.inf)
        np.minimum.at(least, own, flat)
        return np.asarray(least[own].reshape(label.shape))

    def _heard(self, label: Array) -> Array:
        """The smallest label of neighbours beyond the block, infinite without any; ``(*B, n)``."""
        theirs = self.network.collect(self._boundary(np.where(np.isfinite(label), label, 0.0))).ravel()
        links, least = sparse.coo_array(self._far), np.full(self.numbers.size, np.inf)
        np.minimum.at(least, links.row, theirs[links.col])
        return least.reshape(self.numbers.shape)


@dataclass(frozen=True, eq=False)
class _Seam:
    """Where a block meets others: ``sent``, places of its nodes that have an edge out, and all edges out, ``cut``,

    as rows ``(own node, other node, weight)``.
    """

    sent: _Numbers
    cut: Array

    @classmethod
    def of(cls, block: GraphBlock) -> _Seam:
        out = sparse.coo_array(block.weights[:, block.nodes.size :])
        cut = np.column_stack([block.nodes[out.row], block.beyond[out.col], out.data])
        return cls(np.unique(out.row).astype(np.int64), cut)


def _exchange_cuts(network: Network, seams: Sequence[_Seam], width: int) -> list[list[Array]]:
    """Of every local agent, its neighbours' edges that leave their blocks, in the order of ``network.beside``."""
    filled = np.full((len(seams), width, 3), -1.0)
    for row, seam in zip(filled, seams, strict=True):
        row[: len(seam.cut)] = seam.cut
    slots = network.beside.shape[-1]
    got = network.collect(filled.reshape(*network.batch, width, 3)).reshape(len(seams), slots, width, 3)
    return [[cut[cut[:, 0] >= 0.0] for cut in agent] for agent in got]


def _assembled(
    blocks: Sequence[GraphBlock],
    seams: Sequence[_Seam],
    network: Network,
    theirs: list[list[Array]],
    n: int,
    width: int,
) -> tuple[Csr, Csr]:
    """W between local nodes of the same agent, and between those and what is collected, of all local agents at once."""
    slots = network.beside.shape[-1]
    beside = network.beside.reshape(len(blocks), slots)
    near, far, trouble = [], [], []
    for j, (block, seam, cuts) in enumerate(zip(blocks, seams, theirs, strict=True)):
        slot_of = {int(i): slot for slot, i in enumerate(beside[j]) if i >= 0}
        place: dict[int, int] = {}
        known: dict[tuple[int, int], float] = {}
        for slot, cut in ((slot_of[i], cuts[slot_of[i]]) for i in slot_of):
            numbers = np.unique(cut[:, 0]).astype(np.int64).tolist()
            place |= {number: slot * width + position for position, number in enumerate(numbers)}
            known |= {(int(u), int(v)): weight for u, v, weight in cut.tolist()}
        me = int(network.local.ravel()[j])
        trouble.append(_trouble(me, block, seam, slot_of, known))
        own = sparse.coo_array(block.weights[:, : block.nodes.size])
        near.append(np.stack([own.row + j * n, own.col + j * n, own.data]))
        columns = np.array([place.get(int(v), 0) for v in seam.cut[:, 1]]) + j * slots * width
        rows = np.searchsorted(block.nodes, seam.cut[:, 0]) + j * n
        far.append(np.stack([rows, columns, seam.cut[:, 2]]))
    _agree_on(network, np.array(trouble).reshape(*network.batch, 6))
    size = len(blocks) * n
    return _matrix(near, (size, size)), _matrix(far, (size, len(blocks) * slots * width))


def _matrix(parts: list[Array], shape: tuple[int, int]) -> Csr:
    rows, columns, values = np.concatenate(parts, axis=1)
    return csr(sparse.coo_array((values, (rows.astype(np.int64), columns.astype(np.int64))), shape=shape))


def _trouble(
    me: int, block: GraphBlock, seam: _Seam, slot_of: dict[int, int], known: dict[tuple[int, int], float]
) -> list[float]:
    """The first edge that cannot be used: ``[agent, u, v, weight here, weight there, owner]``; infinite without any."""
    owners, scale = dict(zip(block.beyond.tolist(), block.owners.tolist(), strict=True)), abs(block.weights).max()
    for u, v, weight in seam.cut.tolist():
        other = owners[int(v)]
        if other not in slot_of:
            return [me, u, v, weight, np.nan, other]
        there = known.get((int(v), int(u)), 0.0)
        if not abs(weight - there) <= _SYMMETRY * scale:
            return [me, u, v, weight, there, other]
    mine = set(block.nodes.tolist())
    seen = {(int(u), int(v)) for u, v, _ in seam.cut.tolist()}
    for (u, v), weight in known.items():
        if v in mine and (v, u) not in seen:
            return [me, v, u, 0.0, weight, -1]
    return [np.inf] * 6


def _agree_on(network: Network, trouble: Array) -> None:
    """The same error everywhere, about the edge that the agent with the smallest number complains of."""
    agent = float(network.reduce(trouble[..., 0], "min"))
    if not np.isfinite(agent):
        return
    mine = (trouble[..., 0] == agent)[..., None]
    missing = network.reduce(np.where(mine, np.isnan(trouble), False).astype(np.float64), "max") > 0.0
    told = network.reduce(np.where(mine, np.nan_to_num(trouble), -np.inf), "max")
    u, v, owner = int(told[1]), int(told[2]), int(told[5])
    if missing[4]:
        raise TopologyError(
            f"edge ({u}, {v}) joins nodes of agents {agent:.0f} and {owner}, which are not linked in "
            f"{network.topology.name}; link them, or "
            "use the network of deepca.decomposition.spectral.graphs.partition_graph"
        )
    raise _unsymmetric(u, v, float(told[3]), float(told[4]))


def _unsymmetric(u: int, v: int, weight: float, back: float) -> AsymmetricError:
    return AsymmetricError(
        f"the weights are not symmetric at edge ({u}, {v}): {weight:.6g} one way, {back:.6g} the other; "
        "use (W + W.T)/2, or the larger of both"
    )
