"""A spanning tree that agents find by themselves, and sums over it: nobody has to know the whole graph.

Every agent ends with the numbers of its parent and its children. Sums go up the tree and down again, so that all agents
hold the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array, Csr
from deepca.errors import NetworkError
from deepca.network.base import Network
from deepca.network.sweeps import Tree, round_between

__all__ = ["SpanningTree"]


def _nothing(total: Array) -> Array:
    """Derive no numbers."""
    return np.empty(0)


@dataclass(frozen=True, eq=False)
class SpanningTree:
    """Sums over all agents in ``2 · depth`` rounds of at most m − 1 messages.

    n_agents : counted over the tree.  depth : of the farthest agent, from the root.
    up, down : weights of the rounds, of which the entries of local agents are known here.
    root : the agent at the top of the tree.
    """

    network: Network
    n_agents: int
    depth: int
    up: tuple[Csr, ...]
    down: tuple[Csr, ...]
    root: int = 0

    @classmethod
    def grow(cls, network: Network) -> SpanningTree:
        """A tree of shortest paths from an agent near the middle, by flooding.

        ::

            h_j = 0 at the source,  h_j ← min(h_j, 1 + min_i h_i) over the neighbours i      hops from a source
            a, b:   farthest from the first agent; from a                                   ends of a long path
            root:   where max(h(a), h(b)) is smallest;  if some d is farther from there, where max(h(a), h(b), h(d)) is
        """
        if network.topology.n_agents == 1:
            return cls(network, 1, 0, (), (), int(network.local.ravel()[0]))
        anyone, _ = _hops(network, _first(network, np.ones(network.batch, dtype=np.bool_)))
        from_a, _ = _hops(network, _farthest(network, anyone))
        known = [from_a, _hops(network, _farthest(network, from_a))[0]]
        for last in (False, True):
            least = np.max(known, axis=0)  # nobody can be nearer to all than this
            nearest = network.reduce(least, "min")
            hops, parent = _hops(network, _first(network, least == nearest))
            depth = int(network.reduce(hops, "max"))
            if last or depth == int(nearest):
                break
            known.append(_hops(network, _first(network, hops == depth))[0])
        theirs = network.collect(np.stack([parent, hops], axis=-1))  # who is whose child
        up, down = _sweeps(network, (hops, parent), (theirs[..., 1], theirs[..., 0]), depth)
        top = round(float(network.reduce(np.where(hops == 0.0, network.local, -1.0), "max")))
        counted, _ = network.sum_along((up, down), top, np.ones((*network.batch, 1)), _nothing, 0)
        return cls(network, round(float(counted[0])), depth, up, down, top)

    @property
    def leads(self) -> bool:
        """Whether the root is held here."""
        return bool((self.network.local == self.root).any())

    def sum(self, x: Array) -> Array:
        """The sum over all agents of ``x``, shape ``(*B, …)``: the same bits at every agent.

        A one of every agent travels along; if they do not come out as many as there are, a message was lost.
        """
        return self.sum_then(x)[0]

    def sum_then(self, x: Array, derive: Callable[[Array], Array] = _nothing, size: int = 0) -> tuple[Array, Array]:
        """The same, and ``size`` numbers that the root derives from the sum, the same bits at every agent.

        The way down carries both: factorizations differ from one processor to another, so one agent makes them.
        """
        network, B = self.network, self.network.batch
        flat = np.concatenate([x.reshape(*B, -1), np.ones((*B, 1))], axis=-1)

        def made(total: Array) -> Array:
            return derive(np.asarray(total[:-1].reshape(x.shape[len(B) :])))

        if network.collective:
            found = network.common(network.total_mean(flat)) * self.n_agents
            told = made(found) if self.leads else np.zeros(size)
            told = network.flood(np.broadcast_to(told, (*B, size)), self.root) if size else told
        else:
            found, told = network.sum_along((self.up, self.down), self.root, flat, made, size)
        if not abs(float(found[-1]) - self.n_agents) <= 1e-9 * self.n_agents:
            raise NetworkError(
                f"{self.n_agents} agents were counted as {float(found[-1]):g}: a message was lost or altered"
            )
        return np.asarray(found[:-1].reshape(x.shape[len(B) :])), told


def _hops(network: Network, source: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """How far every local agent is from the source, and the first neighbour on the way there; −1 at the source."""
    beside = network.beside
    hops, parent = np.where(source, 0.0, np.inf), np.full(network.batch, -1.0)
    for _ in range(network.topology.flood_rounds):
        theirs = np.where(beside >= 0, network.collect(hops[..., None])[..., 0], np.inf)
        nearest = theirs.argmin(axis=-1)[..., None]
        found = 1.0 + np.take_along_axis(theirs, nearest, axis=-1)[..., 0]
        parent = np.where(found < hops, np.take_along_axis(beside, nearest, axis=-1)[..., 0], parent)
        hops = np.minimum(hops, found)
    return hops, parent


def _farthest(network: Network, hops: Array) -> npt.NDArray[np.bool_]:
    return _first(network, hops == network.reduce(hops, "max"))


def _first(network: Network, among: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The agent with the smallest number of those."""
    numbers = network.local.astype(np.float64)
    return np.asarray(numbers == network.reduce(np.where(among, numbers, np.inf), "min"))


def _sweeps(network: Network, mine: tuple[Array, Array], theirs: tuple[Array, Array], depth: int) -> Tree:
    """Weights of the rounds up and down, from the hops and parents of local agents and of their neighbours."""
    local = network.local.ravel()
    hops, parent = (part.ravel().astype(np.int64) for part in mine)
    around, beyond, beside = (part.reshape(local.size, -1) for part in (*theirs, network.beside))
    row, slot = np.nonzero((beside >= 0) & (beyond == local[:, None]) & (around > hops[:, None]))
    has = parent >= 0  # a link is known at both of its ends
    parents = np.concatenate([parent[has], local[row]])
    children = np.concatenate([local[has], beside[row, slot]])
    level = np.concatenate([hops[has], hops[row] + 1])
    links = np.unique([level, parents, children], axis=1)  # a link between two local agents was named twice
    up: list[Csr] = []
    down: list[Csr] = []
    for at in range(1, depth + 1):
        _, above, below = links[:, links[0] == at]
        keep = np.bincount(local, minlength=network.topology.n_agents).astype(np.float64)
        up.insert(0, round_between(keep, above, below, 1.0))
        keep[local[hops == at]] = 0.0
        down.append(round_between(keep, below, above, 1.0))
    return tuple(up), tuple(down)
