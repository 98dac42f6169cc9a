"""Define :class:`Network`, the interface over which algorithms and mixers are written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from deepca._util.floats import LARGEST
from deepca._util.typing import Array, Csr
from deepca.network.exchanges import Exchanges
from deepca.network.protocols import Averaging, LinearMixer, Moment, Pairs
from deepca.network.reductions import neutral
from deepca.network.sweeps import Tree, sweeps

__all__ = ["Averaging", "LinearMixer", "Moment", "Network", "Pairs"]


class Network(Exchanges):
    """Blocking operations between agents, the same on every engine.

    Arrays have shape ``(*B, …)``: ``B = (m,)`` where one process holds all agents, ``()`` where it holds one.

    Parameters
    ----------
    topology : Topology
        Graph and gossip matrix 𝐋.
    batch : tuple of int
        ``B``, the leading axes of local arrays.

    Attributes
    ----------
    batch : tuple of int
        ``B``.
    epoch : int
        Incarnation of the run; it increases when tracking has to restart.
    local : ndarray of int
        Indices of the local agents, of shape ``batch``.
    reliable : bool
        Whether every message is certain to arrive, so that exact averages may depend on each of them.
    collective : bool
        Whether exact averages use a collective operation (:meth:`total_mean`) instead of a tree of messages.
    full_rounds, sweeps : int
        Rounds so far that used every edge, and exact averages so far. Pending values travel with both.
    """

    def broadcast(self, x: Array, /) -> Array:
        """Send the leader's x to every agent.

        It travels down the spanning tree in m − 1 messages if every message is certain to arrive, else by flooding.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Only the leader's values matter; others provide the shape.

        Returns
        -------
        ndarray of shape (…)
            The leader's values, bit-identical at all agents.
        """
        if self.reliable and self.topology.whole:
            return self._down(np.where(self._mask(self.leader, x), x, 0.0), sweeps(self.topology)[1])
        return _restore_infinities(self.flood(np.clip(x, -LARGEST, LARGEST), self.leader) + 0.0)  # only finite ones

    def from_leader(self, x: Array, /) -> Array:
        """Broadcast an array that the local agents have in common, but whose bits may differ between processes.

        Parameters
        ----------
        x : ndarray of shape (…)
            The local version.

        Returns
        -------
        ndarray of shape (…)
            The leader's version.
        """
        return self.broadcast(np.broadcast_to(x, (*self.batch, *x.shape)))

    def flood(self, x: Array, source: int, /) -> Array:
        """Send the x of one agent to every agent by flooding, which works on every kind of network.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Only the values of `source` matter; others provide the shape.
        source : int
            Index of the sender.

        Returns
        -------
        ndarray of shape (…)
            The values of `source`.
        """
        return self.reduce(np.where(self._mask(source, x), x, neutral("max")), "max")

    def common(self, x: Array, /) -> Array:
        """Return the one array behind x, which is the same for all local agents.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Equal along the leading axes.

        Returns
        -------
        ndarray of shape (…)
            The array.
        """
        return np.asarray(x[(0,) * len(self.batch)])

    def _mask(self, agent: int, x: Array) -> npt.NDArray[np.bool_]:
        """Return a mask, which broadcasts against x of shape ``(*B, …)``, of that agent's values."""
        return np.reshape(self.local == agent, (*self.batch, *(1,) * (x.ndim - len(self.batch))))

    def sweep(self, x: Array, derive: Callable[[Array], Array], size: int, /) -> tuple[Array, Array]:
        """Compute an exact mean over all agents, and numbers that the leader derives from it.

        Sums travel up the spanning tree; the mean and ``derive(mean)`` travel down. Both are bit-identical at every
        agent, whatever its processor. Pending values ride along and are complete afterwards.

        Parameters
        ----------
        x : ndarray of shape (*B, n)
            Local values.
        derive : callable
            Function of the mean, called by the leader only.
        size : int
            Number of derived values.

        Returns
        -------
        mean : ndarray of shape (n,)
            The mean.
        derived : ndarray of shape (size,)
            The leader's ``derive(mean)``.
        """
        if self.collective:
            mean = self.common(self.total_mean(x))
            both = self.from_leader(np.concatenate([mean, derive(mean) if self.leads else np.zeros(size)]))
            self._swept(list(self._riding))
            return both[: mean.size], both[mean.size :]
        riding, self._sweeping = list(self._riding), True
        try:
            found = self.sum_along(sweeps(self.topology), self.leader, x, derive, size)
        finally:
            self._sweeping = False
        self._swept(riding)
        return found

    def sum_along(
        self, tree: Tree, root: int, x: Array, derive: Callable[[Array], Array], size: int, /
    ) -> tuple[Array, Array]:
        """Sum up a tree, and send the sum and numbers that its root derives from it down again.

        Parameters
        ----------
        tree : Tree
            Weights of the rounds up and down.
        root : int
            Agent at the top.
        x : ndarray of shape (*B, n)
            Local values.
        derive : callable
            Function of the sum, called by the root only.
        size : int
            Number of derived values.

        Returns
        -------
        total : ndarray of shape (n,)
            The sum, weighted as the rounds up say.
        derived : ndarray of shape (size,)
            The root's ``derive(total)``.
        """
        up, down = tree
        for weights in up:
            x = self.gossip(x, weights)
        n = x.shape[-1]
        both = np.zeros((*self.batch, n + size))
        for at in map(tuple, np.argwhere(self.local == root)):
            both[(*at, slice(n))] = x[at]
            both[(*at, slice(n, None))] = derive(x[at])
        both = self._down(both, down)
        return both[:n], both[n:]

    def _down(self, x: Array, rounds: tuple[Csr, ...]) -> Array:
        """Send the root's x down a tree, by rounds with those weights; other agents pass zeros."""
        # no negative zero, which another zero could turn positive, and no infinity, which a zero weight turns into NaN
        x = np.clip(x + 0.0, -LARGEST, LARGEST)
        if self._known_entries is not None:  # along the leader's tree: sums over other trees are not verified
            self._known_entries = np.where(np.arange(self.n_agents) == self.leader, self._known_entries, 0.0)
        for weights in rounds:
            x = self.gossip(x, weights)
        return _restore_infinities(self.common(x))

    def mix(self, mixer: LinearMixer, x: Array, K: int, /) -> Array:
        """Run a mixer. An engine that knows the whole graph may apply the same linear map at once.

        Parameters
        ----------
        mixer : LinearMixer
            The mixer.
        x : ndarray of shape (*B, …)
            Local values.
        K : int
            Number of rounds.

        Returns
        -------
        ndarray of shape (*B, …)
            Mixed values.
        """
        if not mixer.spreads:
            return mixer.run(self, x, K)
        riding, self._sweeping = list(self._riding), True
        try:
            x = mixer.run(self, x, K)
        finally:
            self._sweeping = False
        self._swept(riding)
        return x


def _restore_infinities(found: Array) -> Array:
    """Turn the largest finite numbers, which were sent in place of infinities, back into infinities."""
    return np.asarray(np.where(np.abs(found) == LARGEST, np.copysign(np.inf, found), found))
