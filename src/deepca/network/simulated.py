"""Simulate all agents in one process, with one array for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from deepca._util.typing import Array, Csr
from deepca.network.base import LinearMixer, Network, Pairs
from deepca.network.compression import Code, Copies, decode, encode
from deepca.network.reductions import Op, PendingReduction, reducer
from deepca.network.sums import SumLayout, Words
from deepca.network.sums.rounds import SumTree, sweeps
from deepca.topology.graph import Topology

__all__ = ["SimulatedNetwork", "disjoint_groups"]

_SPARSE_COST = 8  # dense multiply-adds that take as long as a sparse one (CSR times a tall block against dgemm)
_MAX_DENSE_AGENTS = 2048  # a dense m × m matrix of this size takes 32 MB
_CHEAP_COLLAPSE_AGENTS = 128  # largest m for which a matrix is worth computing even if it is used only once
_CACHED_MAPS = 8  # maximum number of matrices kept, one for each mixer and K


@dataclass(frozen=True)
class _Collapsed:
    """K rounds of a linear mixer as one m × m matrix, with their traffic."""

    matrix: Array
    rounds: int
    full_rounds: int
    messages: int


class SimulatedNetwork(Network):
    """Simulation of all agents in one process, with arrays of shape ``(m, d, k)``.

    Parameters
    ----------
    topology : Topology
        The network.

    Notes
    -----
    On a static graph, K rounds of a linear mixer are one matrix, found by applying the mixer to the identity. The
    rounds are either collapsed to that matrix or run individually with a sparse 𝐋, whichever needs fewer
    multiplications, so large sparse graphs never need a dense m × m matrix. The traffic counted is the same either way.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> network = deepca.SimulatedNetwork(deepca.topology.complete(4))
    >>> network.gossip(np.arange(4.0)).round(12).tolist()
    [1.5, 1.5, 1.5, 1.5]
    >>> network.traffic.messages
    12
    """

    reliable = True

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, (topology.n_agents,))
        self.local = np.arange(topology.n_agents)
        if topology.time_varying:
            self.reliable = False  # no spanning tree exists in every round
        self._messages = topology.n_messages
        m, gossip = topology.n_agents, topology.gossip_sparse
        dense = m <= _MAX_DENSE_AGENTS and gossip.nnz * _SPARSE_COST >= m * m
        self._L = gossip.toarray() if dense else gossip
        self._maps: dict[object, _Collapsed] = {}

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Multiply by the weights of the round, dense or sparse."""
        self._check_open()
        self._check_epoch()
        payload = x[0].nbytes
        if weights is None:
            matrix, messages = self._now()
            self._count(rounds=1, messages=messages, payload=payload, control=self._pending_bytes())
            self._advance_pending(1)
            return _apply(matrix, x)
        matrix, messages = self._prepared(weights, _with_messages)
        control = self._pending_bytes() if self._sweeping else 0
        self._count(rounds=1, messages=messages, payload=payload, control=control)
        return _apply(matrix, x)

    def average_pairs(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Average disjoint pairs at once, which gives the same result as one pair after another."""
        self._check_open()
        self._check_epoch()
        y = x.copy(order="K")
        for one, other in disjoint_groups(pairs, self.n_agents):
            y[one] = y[other] = (y[one] + y[other]) * 0.5
        self._count_pairs(pairs, rounds, x[0].nbytes)
        return y

    def collect(self, x: Array, /) -> Array:
        """Look up the values of the neighbours and count what separate agents would send."""
        self._check_open()
        self._check_epoch()
        beside = self.neighbors
        self._count(rounds=1, messages=self._messages, payload=x[0].nbytes, control=self._pending_bytes())
        self._advance_pending(1)
        return np.where((beside >= 0).reshape(*beside.shape, *(1,) * (x.ndim - 1)), x[beside], 0.0)

    def gossip_compressed(self, x: Array, copies: Copies | None, code: Code, /) -> tuple[Array, Copies]:
        """Encode and decode the messages of all agents, and mix the copies."""
        self._check_open()
        self._check_epoch()
        before = Copies.continued(x, copies, 0, self._graph)
        messages = encode(x - before.own, code if before is copies else "float64", 1)
        self._count(rounds=1, messages=self._messages, payload=messages[0].nbytes, control=self._pending_bytes())
        self._advance_pending(1)
        D = before.own + decode(messages, x.shape)
        relative = D - D[:1]  # leaves (𝐋 − I) D unchanged, and its rounding shrinks with the differences
        return x + (_apply(self._L, relative) - relative), Copies(D, graph=self._graph)

    def allreduce_mean(self, x: Array, /) -> Array:
        """Compute the mean, counted as the ``⌈log₂ m⌉`` pairwise rounds that m processes would make."""
        self._check_open()
        self._check_epoch()
        rounds = (self.n_agents - 1).bit_length()
        self._count(rounds=rounds, messages=rounds * self.n_agents, payload=x[0].nbytes)
        return np.array(np.broadcast_to(x.mean(axis=0), x.shape))

    def _sum_words(
        self, own: Words, layout: SumLayout, derive: Callable[[Words], Words], size: int, tree: SumTree, /
    ) -> tuple[Words, Words]:
        """Add up the rows and count what separate agents would send."""
        self._check_epoch()
        self._count_along(tree.up, own[0].nbytes, with_pending=True)
        summed = layout.carry(layout.carry_free_sum(own))
        derived = derive(summed)
        self._count_along(tree.down, own[0].nbytes + derived.nbytes, with_pending=True)
        return summed, derived

    def broadcast(self, x: Array, /) -> Array:
        """Return the leader's row and count what separate agents would send."""
        if self._runs_every_round or not (self.reliable and self.topology.fully_known):
            return super().broadcast(x)
        self._check_epoch()
        self._count_along(sweeps(self.topology)[1], x[0].nbytes, with_pending=False)
        return (
            np.asarray(x[self.leader], dtype=np.float64) + 0.0
        )  # without negative zeros, as separate agents receive it

    @property
    def _runs_every_round(self) -> bool:
        """True if rounds may not be skipped, because a subclass observes messages or exact averages are collective."""
        return self.collective or type(self).mix is Network.mix

    def _count_along(self, rounds: Sequence[Csr], payload: int, *, with_pending: bool) -> None:
        """Count the traffic of rounds with the given weights without running them."""
        control = self._pending_bytes() if with_pending else 0
        for weights in rounds:
            _, messages = self._prepared(weights, _with_messages)
            self._count(rounds=1, messages=messages, payload=payload, control=control)

    def mix(self, mixer: LinearMixer, x: Array, K: int, /) -> Array:
        """Run a mixer, collapsed to one matrix where that is cheaper."""
        self._check_open()
        m = self.n_agents
        cheaper = m * m <= _SPARSE_COST * K * self.topology.gossip_sparse.nnz
        # a matrix for a K that may not recur is worthwhile only if it is cheap to compute
        key, again = mixer.key(K), mixer.fixed or m <= _CHEAP_COLLAPSE_AGENTS
        if self.topology.time_varying or key is None or m > _MAX_DENSE_AGENTS or not cheaper or not again:
            return super().mix(mixer, x, K)
        self._check_epoch()
        linear = self._maps.pop(key, None) or self._collapse(mixer, K)
        self._maps[key] = linear  # the most recently used comes last
        if len(self._maps) > _CACHED_MAPS:
            self._maps.pop(next(iter(self._maps)))
        payload = x[0].nbytes
        self._count(rounds=linear.rounds, messages=linear.messages, payload=payload)
        if mixer.reaches_all:
            self._count_piggybacked(self._pending_bytes() * linear.messages)
            self._complete_pending(list(self._pending))
            return _apply(linear.matrix, x)
        # a pending value rides on every message until it is complete
        piggybacked = sum(p.value.nbytes * min(p.rounds_left, linear.full_rounds) for p in self._pending)
        self._count_piggybacked(piggybacked * self._messages)
        self._advance_pending(linear.full_rounds)
        return _apply(linear.matrix, x)

    def reduce(self, x: Array, op: Op, /) -> Array:
        """Reduce over the array and count the rounds that flooding would take."""
        self._check_epoch()
        value = reducer(op).reduce(np.asarray(x, dtype=np.float64), axis=0)
        rounds = self._flood_rounds()
        messages = sum(self._now()[1] for _ in range(rounds)) if self.topology.time_varying else rounds * self._messages
        self._count(control_rounds=rounds, messages=messages, control=np.asarray(value).nbytes)
        return np.asarray(value)

    def reduce_later(self, x: Array, op: Op, /) -> PendingReduction:
        """Reduce over the array; the value becomes ready when flooding would have completed it."""
        value = np.asarray(reducer(op).reduce(np.asarray(x, dtype=np.float64), axis=0))
        pending = PendingReduction(value, op, self._flood_rounds())
        if not pending.ready:
            self._pending.append(pending)
        return pending

    def _now(self) -> tuple[Array | Csr, int]:
        """Return weights and message count of the next round; advance the counter of a time-varying network."""
        if not self.topology.time_varying:
            return self._L, self._messages
        self.next_round += 1
        return self.topology.at(self.next_round - 1), self.topology.messages_at(self.next_round - 1)

    def _pending_bytes(self) -> int:
        return sum(pending.value.nbytes for pending in self._pending)

    def _collapse(self, mixer: LinearMixer, K: int) -> _Collapsed:
        probe = SimulatedNetwork(self.topology)
        matrix = mixer.run(probe, np.eye(self.n_agents), K)
        # make columns sum to one up to rounding, so that the mean is preserved
        matrix += (1.0 - matrix.sum(axis=0)) / self.n_agents
        sent = probe.traffic
        return _Collapsed(matrix, sent.rounds, probe.full_rounds, sent.messages)


def disjoint_groups(pairs: Pairs, m: int) -> list[Pairs]:
    """Split a sequence of pairs into groups of disjoint pairs, ``(2, n)`` arrays to be averaged one after another.

    The order matters only between pairs that share an agent, so the pairs of a group can be averaged at once.
    """
    latest, group = [0] * m, []  # number of the group of each agent's latest pair, and of each pair
    for i, j in pairs.tolist():
        latest[i] = latest[j] = max(latest[i], latest[j]) + 1
        group.append(latest[i])
    order = np.argsort(group, kind="stable")
    return [part.T for part in np.split(pairs[order], np.cumsum(np.bincount(group, minlength=1)))[1:-1]]


def _with_messages(weights: Csr) -> tuple[Csr, int]:
    entries = sparse.coo_array(weights)
    return weights, int(np.count_nonzero((entries.row != entries.col) & (entries.data != 0.0)))


def _apply(matrix: Array | Csr, x: Array) -> Array:
    """Return ``y_j = Σ_i matrix_ji x_i`` for x of shape ``(m, …)``, in the memory order of x."""
    m = x.shape[0]
    if x.ndim == 3 and not x.flags.c_contiguous:
        flipped = np.swapaxes(x, 1, 2)  # products of A_j have their last axes swapped in memory
        return np.swapaxes(np.asarray(matrix @ flipped.reshape(m, -1)).reshape(flipped.shape), 1, 2)
    return np.asarray(matrix @ x.reshape(m, -1)).reshape(x.shape)
