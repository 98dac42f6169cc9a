"""Grow a spanning tree and sum over it, without any agent knowing the whole graph.

Every agent learns only the indices of its parent and its children. Sums travel up the tree and back down, so all agents
receive the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array, Csr
from deepca.network.base import Network
from deepca.network.sums import COUNT, Addend, Total, Unit
from deepca.network.sums.rounds import SumTree, Tree, round_between

__all__ = ["SpanningTree"]

_UNIT = Unit(-224, 6)  # tried first: these sums are short, but squares of residuals are tiny


@dataclass(frozen=True, eq=False)
class SpanningTree:
    """Spanning tree for exact sums over all agents, in ``2 · depth`` rounds with m − 1 messages up and m − 1 down.

    Use :meth:`grow` to create one.

    Parameters
    ----------
    network : Network
        The network.
    n_agents : int
        Number of agents, counted over the tree.
    depth : int
        Distance of the farthest agent from the root.
    rounds : SumTree
        The rounds, with only the entries that concern local agents.
    """

    network: Network
    n_agents: int
    depth: int
    rounds: SumTree

    @classmethod
    def grow(cls, network: Network) -> SpanningTree:
        """Grow a tree of shortest paths from a central agent, by flooding.

        Parameters
        ----------
        network : Network
            A network on a static undirected graph.

        Returns
        -------
        SpanningTree
            The tree.

        Raises
        ------
        TopologyError
            If the graph is directed or time-varying.

        Notes
        -----
        ::

            h_j = 0 at the source,  h_j ← min(h_j, 1 + min_i h_i) over the neighbours i      hops from a source
            a:      an agent farthest from the first agent;  b: an agent farthest from a    ends of a long path
            root:   minimises max(h(a), h(b));  if some d is farther from it than that, minimises max(h(a), h(b), h(d))
        """
        if network.topology.n_agents == 1:
            return cls(network, 1, 0, SumTree((), (), int(network.local.ravel()[0]), 1))
        anyone, _ = _hops(network, _first(network, np.ones(network.batch, dtype=np.bool_)))
        from_a, _ = _hops(network, _farthest(network, anyone))
        known = [from_a, _hops(network, _farthest(network, from_a))[0]]
        for last in (False, True):
            least = np.max(known, axis=0)  # a lower bound on the eccentricity of every agent
            nearest = network.reduce(least, "min")
            hops, parent = _hops(network, _first(network, least == nearest))
            depth = int(network.reduce(hops, "max"))
            if last or depth == int(nearest):
                break
            known.append(_hops(network, _first(network, hops == depth))[0])
        theirs = network.collect(np.stack([parent, hops], axis=-1))  # tells parents their children
        up, down = _sweeps(network, (hops, parent), (theirs[..., 1], theirs[..., 0]), depth)
        top = round(float(network.reduce(np.where(hops == 0.0, network.local, -1.0), "max")))
        rounds = SumTree(up, down, top, None)
        ones = Addend("agents", np.ones((*network.batch, 1)), unit=COUNT, nonnegative=True)
        [counted], _ = network.totals_and_derive([ones], lambda totals: np.empty(0), 0, rounds)
        n_agents = int(counted.value[0])
        return cls(network, n_agents, depth, replace(rounds, n_agents=n_agents))

    @property
    def is_root_local(self) -> bool:
        """True if the root is local."""
        return bool((self.network.local == self.rounds.root).any())

    def sum(self, x: Array) -> Array:
        """Return the sum over all agents, bit-identical at every agent.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Local values.

        Returns
        -------
        ndarray of shape (…)
            The sum.

        Raises
        ------
        NetworkError
            If a message was lost or altered.
        """
        return self.sum_and_derive(x, lambda total: np.empty(0), 0)[0]

    def sum_and_derive(self, x: Array, derive: Callable[[Array], Array], size: int) -> tuple[Array, Array]:
        """Return the sum over all agents, and numbers that the root derives from it.

        Both travel down the tree and are bit-identical at every agent. Factorizations differ between processors, so the
        root computes them for all.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Local values.
        derive : callable
            Function of the sum, called by the root only.
        size : int
            Number of derived values.

        Returns
        -------
        total : ndarray of shape (…)
            The sum.
        derived : ndarray of shape (size,)
            The root's ``derive(total)``.

        Raises
        ------
        NetworkError
            If a message was lost or altered.
        """
        B = self.network.batch
        shape = x.shape[len(B) :]

        def derive_from(totals: list[Total]) -> Array:
            return derive(totals[0].value.reshape(shape))

        numbers = Addend("numbers", x.reshape(*B, -1), guess=_UNIT)
        [total], derived = self.network.totals_and_derive([numbers], derive_from, size, self.rounds)
        return total.value.reshape(shape), derived


def _hops(network: Network, source: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return each local agent's hops from the source, and the neighbour on the way there (−1 at the source)."""
    beside = network.neighbors
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
    """Return a mask that selects the agent with the smallest index in ``among``."""
    numbers = network.local.astype(np.float64)
    return np.asarray(numbers == network.reduce(np.where(among, numbers, np.inf), "min"))


def _sweeps(network: Network, mine: tuple[Array, Array], theirs: tuple[Array, Array], depth: int) -> Tree:
    """Return the weights of the rounds up and down, from hops and parents of local agents and their neighbours."""
    local = network.local.ravel()
    hops, parent = (part.ravel().astype(np.int64) for part in mine)
    around, beyond, beside = (part.reshape(local.size, -1) for part in (*theirs, network.neighbors))
    row, slot = np.nonzero((beside >= 0) & (beyond == local[:, None]) & (around > hops[:, None]))
    has = parent >= 0  # each end of a link knows it: links to parents, then links to children
    parents = np.concatenate([parent[has], local[row]])
    children = np.concatenate([local[has], beside[row, slot]])
    level = np.concatenate([hops[has], hops[row] + 1])
    links = np.unique([level, parents, children], axis=1)  # a link between two local agents occurs twice
    up: list[Csr] = []
    down: list[Csr] = []
    for at in range(1, depth + 1):
        _, above, below = links[:, links[0] == at]
        keep = np.bincount(local, minlength=network.topology.n_agents).astype(np.float64)
        up.insert(0, round_between(keep, above, below, 1.0))
        keep[local[hops == at]] = 0.0
        down.append(round_between(keep, below, above, 1.0))
    return tuple(up), tuple(down)
