"""Define :class:`Network`, the interface that algorithms and mixers are written against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepca._util.floats import LARGEST
from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array, Csr
from deepca.network.protocols import LinearMixer, MixerNetwork, Pairs, Position
from deepca.network.reductions import neutral
from deepca.network.sums.rounds import sweeps
from deepca.network.sums.totals import Totals

__all__ = ["LinearMixer", "MixerNetwork", "Network", "Pairs", "Position"]


@renamed_attributes(
    leads="is_leader_local",
    total_mean="allreduce_mean",
    moment="position",
    at="phase_and_iteration",
    beside="neighbors",
    meet="average_pairs",
    forget="discard_pending",
    gossip_coded="gossip_compressed",
    common="unbatched",
)
class Network(Totals):
    """Interface through which agents exchange values, the same on every engine.

    Every call blocks until the values that it needs have arrived. Arrays have shape ``(*B, …)``: ``B = (m,)`` if one
    process holds all agents, ``()`` if it holds a single one.

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
        Whether exact averages use a collective operation (:meth:`allreduce_mean`) instead of a tree of messages.
    has_one_owner : bool
        Whether all agents belong to one owner, so that there is nobody to hide numbers from.
    full_rounds, sweeps : int
        Number of rounds so far that used every edge, and of exact averages. Pending values ride along with both.
    """

    def broadcast(self, x: Array, /) -> Array:
        """Send the leader's x to every agent.

        On a reliable network whose graph all agents know, x travels down the spanning tree in m − 1 messages; on any
        other network it is flooded.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Only the leader's values matter; others provide the shape.

        Returns
        -------
        ndarray of shape (…)
            The leader's values, bit-identical at all agents.
        """
        if self.reliable and self.topology.fully_known:
            return self._down(np.where(self._mask(self.leader, x), x, 0.0), sweeps(self.topology)[1])
        return _restore_infinities(self.flood(np.clip(x, -LARGEST, LARGEST), self.leader) + 0.0)  # reductions reject +∞

    def from_leader(self, x: Array, /) -> Array:
        """Return the leader's version of an array that every process computes, but whose bits may differ.

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
        """Send one agent's x to every agent by flooding, which works on every kind of network.

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

    def unbatched(self, x: Array, /) -> Array:
        """Drop the leading axes ``B`` of an array that is the same for all local agents.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Equal along the leading axes.

        Returns
        -------
        ndarray of shape (…)
            The values of any one local agent.
        """
        return np.asarray(x[(0,) * len(self.batch)])

    def _mask(self, agent: int, x: Array) -> npt.NDArray[np.bool_]:
        """Return a mask that selects one agent's values; it broadcasts against x of shape ``(*B, …)``."""
        return np.reshape(self.local == agent, (*self.batch, *(1,) * (x.ndim - len(self.batch))))

    def _down(self, x: Array, rounds: tuple[Csr, ...]) -> Array:
        """Send the root's x down a tree in rounds with the given weights; all other agents pass zeros."""
        # remove negative zeros, whose sign adding a zero may flip, and infinities, which a zero weight turns into NaN
        x = np.clip(x + 0.0, -LARGEST, LARGEST)
        with self.public_numbers():
            for weights in rounds:
                x = self.gossip(x, weights)
        found = _restore_infinities(self.unbatched(x))
        if self._masks is not None:
            self._masks.record(found)
        return found

    def mix(self, mixer: LinearMixer, x: Array, K: int, /) -> Array:
        """Run a mixer; an engine that knows the whole graph may apply its linear map in one step.

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
        self._check_open()
        if not mixer.reaches_all:
            return mixer.run(self, x, K)
        pending, self._sweeping = list(self._pending), True
        try:
            x = mixer.run(self, x, K)
        finally:
            self._sweeping = False
        self._complete_pending(pending)
        return x


def _restore_infinities(found: Array) -> Array:
    """Turn the largest finite numbers, which were sent in place of infinities, back into infinities."""
    return np.asarray(np.where(np.abs(found) == LARGEST, np.copysign(np.inf, found), found))
