"""Products with a matrix of a graph that is partitioned over agents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from deepca._util.typing import Array, Csr, csr
from deepca.decomposition.spectral.blocks import (
    SYMMETRY_TOLERANCE,
    GraphBlock,
    GraphMatrix,
    Indices,
    asymmetric_edge_error,
)
from deepca.errors import DisconnectedError, InvalidInput, ParameterError, TopologyError
from deepca.network.base import Network

__all__ = ["BlockRows"]


class BlockRows:
    """Local rows of a matrix M of the graph, or of −M if its smallest eigenvalues are wanted.

    Notes
    -----
    The matrix is ``M = diag(c) ± s⊙W⊙s``, with

    ======================  =======  ====  ========  =================
    matrix                  c        sign  s         known eigenvector
    ======================  =======  ====  ========  =================
    ``laplacian`` D − W     degrees  −     1         1
    ``normalized``          1        −     D^{−1/2}  D^{1/2}
    ``adjacency`` W         0        +     1         none
    ======================  =======  ====  ========  =================

    where weights are divided by ``unit``, a power of two, so that the largest lies between 1 and 2; eigenvalues of
    ``D − W`` and W are those of M times ``unit``.

    A product takes one round. An agent sends the values of those of its nodes that have an edge to another agent,
    padded to the largest number of such nodes at any agent.
    """

    def __init__(self, blocks: Sequence[GraphBlock], network: Network, matrix: GraphMatrix, *, negated: bool) -> None:
        if matrix not in get_args(GraphMatrix):
            raise ParameterError("matrix", matrix, "choose 'laplacian', 'normalized' or 'adjacency'")
        here = network.local.size
        if len(blocks) != here:
            raise InvalidInput(
                f"got {len(blocks)} blocks for {here} local agents; give one per agent, in order",
                parameter="blocks",
                value=len(blocks),
            )
        self.network, self._sign = network, -1.0 if negated else 1.0
        n = max(block.nodes.size for block in blocks)
        self.numbers = np.full((here, n), -1, dtype=np.int64)
        for row, block in zip(self.numbers, blocks, strict=True):
            row[: block.nodes.size] = block.nodes
        boundaries = [_Boundary.of(block) for block in blocks]
        most = [
            [boundary.sent.size, boundary.cut.shape[0], block.weights.max()]
            for boundary, block in zip(boundaries, blocks, strict=True)
        ]
        width, cut, heaviest = network.reduce(np.array(most, dtype=np.float64).reshape(*network.batch, 3), "max")
        self._width, cuts = int(width), int(cut)
        theirs = _exchange_cuts(network, boundaries, cuts)
        # scaled, since squares of weights may overflow or underflow
        unit = math.ldexp(1.0, max(math.frexp(float(heaviest))[1] - 1, -1022))
        self._near, self._far = (
            csr(part / unit) for part in _assemble(blocks, boundaries, network, theirs, n, self._width)
        )
        self.unit = 1.0 if matrix == "normalized" else unit
        self._sent = np.zeros((here, self._width), dtype=np.int64)
        self._used = np.zeros((here, self._width, 1))
        for j, boundary in enumerate(boundaries):
            self._sent[j, : boundary.sent.size], self._used[j, : boundary.sent.size] = boundary.sent, 1.0
        self.numbers = self.numbers.reshape(*network.batch, n)
        loops = self._near.diagonal().reshape(*self.numbers.shape)
        row_sums: Array = np.asarray(self._near.sum(axis=1) + self._far.sum(axis=1), dtype=np.float64)
        self.degrees = row_sums.reshape(self.numbers.shape) - loops  # self-loops do not count
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
        sums = self._s * self._weighted(self._s[..., None])[..., 0]  # sums of the rows of s⊙W⊙s
        diagonal = loops * self._s**2
        centres, radii = self._sign * (self._c + self._off * diagonal), sums - diagonal  # Gershgorin
        self.lowest = float(network.reduce(np.where(real > 0.0, centres - radii, np.inf).min(axis=-1), "min"))

    def product(self, X: Array, /) -> Array:
        """Multiply M by ``X``, ``(*B, n, w)``, in one round."""
        s = self._s[..., None]
        Y = self._c[..., None] * X + self._off * s * self._weighted(s * X)
        return self._sign * Y

    def check_connected(self) -> None:
        """Raise DisconnectedError, at all agents, unless the graph is connected.

        Every node adopts the smallest node number that reaches it: at once within a block, round by round between
        blocks.
        """
        own = csgraph.connected_components(self._near, directed=False)[1]
        label, network = self._least(own, self.numbers.astype(np.float64)), self.network
        rounds = network.topology.flood_rounds + 1
        while True:
            before = label
            for _ in range(rounds):
                label = self._least(own, np.minimum(label, self._least_beyond(label[..., None])))
            if not float(network.reduce((label != before).any(axis=-1).astype(np.float64), "max")):
                break
        real = self.numbers >= 0
        low = float(network.reduce(np.where(real, label, np.inf).min(axis=-1), "min"))
        high = float(network.reduce(np.where(real, label, -np.inf).max(axis=-1), "max"))
        if low != high:
            raise DisconnectedError(
                f"the graph is disconnected: no path leads from node {low:.0f} to node {high:.0f}, so its smallest "
                "eigenvalue is repeated; add edges between the components, or treat each one separately",
                value=(int(low), int(high)),
            )

    def local_arrays(self, X: Array) -> tuple[Array, ...]:
        """Split an array ``(*B, n, k)`` into one array per local agent, without padding rows."""
        rows = X.reshape(-1, *X.shape[-2:])
        counts = np.count_nonzero(self.numbers.reshape(len(rows), -1) >= 0, axis=1)
        return tuple(np.array(row[:count]) for row, count in zip(rows, counts, strict=True))

    def _weighted(self, X: Array) -> Array:
        """Compute ``W X`` in one round."""
        w = X.shape[-1]
        theirs = self.network.collect(self._boundary(X)).reshape(-1, w)
        return np.asarray(self._near @ X.reshape(-1, w) + self._far @ theirs).reshape(X.shape)

    def _boundary(self, X: Array) -> Array:
        """Select the rows of nodes with an edge to another agent."""
        rows = X.reshape(len(self._sent), -1, X.shape[-1])
        sent = np.take_along_axis(rows, self._sent[..., None], axis=1) * self._used
        return sent.reshape(*self.network.batch, *sent.shape[1:])

    def _least(self, own: npt.NDArray[Any], label: Array) -> Array:
        """Return the smallest label in each connected part of a block."""
        flat = np.where(self.numbers.ravel() >= 0, label.ravel(), np.inf)
        least = np.full(int(own.max()) + 1, np.inf)
        np.minimum.at(least, own, flat)
        return np.asarray(least[own].reshape(label.shape))

    def _least_beyond(self, label: Array) -> Array:
        """Return the smallest label among each node's neighbours beyond the block, ``(*B, n)``; inf if it has none."""
        theirs = self.network.collect(self._boundary(np.where(np.isfinite(label), label, 0.0))).ravel()
        links, least = sparse.coo_array(self._far), np.full(self.numbers.size, np.inf)
        np.minimum.at(least, links.row, theirs[links.col])
        return least.reshape(self.numbers.shape)


@dataclass(frozen=True, eq=False)
class _Boundary:
    """Edges that leave a block.

    ``sent`` has the positions in the block of the nodes with such an edge, and ``cut`` has one row ``(node here, node
    beyond, weight)`` per edge.
    """

    sent: Indices
    cut: Array

    @classmethod
    def of(cls, block: GraphBlock) -> _Boundary:
        """Find the edges that leave a block."""
        out = sparse.coo_array(block.weights[:, block.nodes.size :])
        cut = np.column_stack([block.nodes[out.row], block.beyond[out.col], out.data])
        return cls(np.unique(out.row).astype(np.int64), cut)


def _exchange_cuts(network: Network, boundaries: Sequence[_Boundary], width: int) -> list[list[Array]]:
    """Return, for every local agent, the cut edges of its neighbours, in the order of ``network.neighbors``."""
    filled = np.full((len(boundaries), width, 3), -1.0)
    for row, boundary in zip(filled, boundaries, strict=True):
        row[: len(boundary.cut)] = boundary.cut
    slots = network.neighbors.shape[-1]
    got = network.collect(filled.reshape(*network.batch, width, 3)).reshape(len(boundaries), slots, width, 3)
    return [[cut[cut[:, 0] >= 0.0] for cut in agent] for agent in got]


def _assemble(
    blocks: Sequence[GraphBlock],
    boundaries: Sequence[_Boundary],
    network: Network,
    theirs: list[list[Array]],
    n: int,
    width: int,
) -> tuple[Csr, Csr]:
    """Return the weights among each local agent's nodes, and those of edges to nodes beyond, as two block matrices."""
    slots = network.neighbors.shape[-1]
    neighbors = network.neighbors.reshape(len(blocks), slots)
    near, far, faults = [], [], []
    for j, (block, boundary, cuts) in enumerate(zip(blocks, boundaries, theirs, strict=True)):
        slot_of = {int(i): slot for slot, i in enumerate(neighbors[j]) if i >= 0}
        place: dict[int, int] = {}
        known: dict[tuple[int, int], float] = {}
        for slot, cut in ((slot_of[i], cuts[slot_of[i]]) for i in slot_of):
            numbers = np.unique(cut[:, 0]).astype(np.int64).tolist()
            place |= {number: slot * width + position for position, number in enumerate(numbers)}
            known |= {(int(u), int(v)): weight for u, v, weight in cut.tolist()}
        me = int(network.local.ravel()[j])
        faults.append(_first_fault(me, block, boundary, slot_of, known))
        own = sparse.coo_array(block.weights[:, : block.nodes.size])
        near.append(np.stack([own.row + j * n, own.col + j * n, own.data]))
        columns = np.array([place.get(int(v), 0) for v in boundary.cut[:, 1]]) + j * slots * width
        rows = np.searchsorted(block.nodes, boundary.cut[:, 0]) + j * n
        far.append(np.stack([rows, columns, boundary.cut[:, 2]]))
    _raise_first_fault(network, np.array(faults).reshape(*network.batch, 6))
    size = len(blocks) * n
    return _matrix(near, (size, size)), _matrix(far, (size, len(blocks) * slots * width))


def _matrix(parts: list[Array], shape: tuple[int, int]) -> Csr:
    rows, columns, values = np.concatenate(parts, axis=1)
    return csr(sparse.coo_array((values, (rows.astype(np.int64), columns.astype(np.int64))), shape=shape))


def _first_fault(
    me: int, block: GraphBlock, boundary: _Boundary, slot_of: dict[int, int], known: dict[tuple[int, int], float]
) -> list[float]:
    """Return the first invalid edge, ``[agent, u, v, weight here, weight there, owner]``; all inf without one."""
    owners, scale = dict(zip(block.beyond.tolist(), block.owners.tolist(), strict=True)), abs(block.weights).max()
    for u, v, weight in boundary.cut.tolist():
        other = owners[int(v)]
        if other not in slot_of:
            return [me, u, v, weight, np.nan, other]
        there = known.get((int(v), int(u)), 0.0)
        if not abs(weight - there) <= SYMMETRY_TOLERANCE * scale:
            return [me, u, v, weight, there, other]
    mine = set(block.nodes.tolist())
    seen = {(int(u), int(v)) for u, v, _ in boundary.cut.tolist()}
    for (u, v), weight in known.items():
        if v in mine and (v, u) not in seen:
            return [me, v, u, 0.0, weight, -1]
    return [np.inf] * 6


def _raise_first_fault(network: Network, faults: Array) -> None:
    """Raise the same error at every agent, about the invalid edge found by the agent with the smallest number."""
    agent = float(network.reduce(faults[..., 0], "min"))
    if not np.isfinite(agent):
        return
    mine = (faults[..., 0] == agent)[..., None]
    missing = network.reduce(np.where(mine, np.isnan(faults), False).astype(np.float64), "max") > 0.0
    fault = network.reduce(np.where(mine, np.nan_to_num(faults), -np.inf), "max")
    u, v, owner = int(fault[1]), int(fault[2]), int(fault[5])
    if missing[4]:
        raise TopologyError(
            f"edge ({u}, {v}) joins nodes of agents {agent:.0f} and {owner}, which are not linked in "
            f"{network.topology.name}; link them, or use the network that "
            "deepca.decomposition.spectral.graphs.partition_graph returns",
            row=u,
            column=v,
            agent=int(agent),
        )
    raise asymmetric_edge_error(u, v, float(fault[3]), float(fault[4]))
