"""All agents in one process and one array: the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from deepca._util.typing import Array, Csr
from deepca.network.base import LinearMixer, Network, Pairs
from deepca.network.compression import Code, Copies, decode, encode
from deepca.network.reductions import Op, Pending, reducer
from deepca.network.sweeps import sweeps
from deepca.topology.graph import Topology

__all__ = ["SimulatedNetwork", "apart"]

# A sparse multiply-add costs about this many dense ones (CSR times a tall block against dgemm).
_SPARSE_COST = 8
_DENSE_UP_TO = 2048
_ALWAYS_UP_TO = 128
_KEPT = 8  # matrices of different K


@dataclass(frozen=True)
class _Collapsed:
    """K rounds of a linear mixer as one m × m matrix, and what they send."""

    matrix: Array
    rounds: int
    full_rounds: int
    messages: int


class SimulatedNetwork(Network):
    """Arrays are ``(m, d, k)``. On a static graph a linear mixer is one matrix, found by applying it to the identity.

    Whether K rounds are collapsed to that matrix or run one by one with a sparse 𝐋 is decided by which needs fewer
    multiplications, so large sparse graphs never meet a dense m × m matrix. Traffic is counted alike in both cases.
    """

    reliable = True

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, (topology.n_agents,))
        self.local = np.arange(topology.n_agents)
        if topology.changing:
            self.reliable = False  # no tree of links is there all the time
        self._messages = topology.n_messages
        m, gossip = topology.n_agents, topology.gossip_sparse
        dense = m <= _DENSE_UP_TO and gossip.nnz * _SPARSE_COST >= m * m
        self._L = gossip.toarray() if dense else gossip
        self._maps: dict[object, _Collapsed] = {}

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        self._check_epoch()
        payload = x[0].nbytes
        if weights is None:
            matrix, messages = self._now()
            self._count(rounds=1, messages=messages, payload=payload, control=self._riding_bytes())
            self._ride(1)
            return _apply(matrix, x)
        matrix, messages = self._prepared(weights, _with_messages)
        self._count(rounds=1, messages=messages, payload=payload, control=self._riding_bytes() if self._sweeping else 0)
        return _apply(matrix, x)

    def meet(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        self._check_epoch()
        y = x.copy(order="K")
        for one, other in apart(pairs, self.n_agents):
            y[one] = y[other] = (y[one] + y[other]) * 0.5
        self._have_met(pairs, rounds, x[0].nbytes)
        return y

    def collect(self, x: Array, /) -> Array:
        self._check_epoch()
        beside = self.beside
        self._count(rounds=1, messages=self._messages, payload=x[0].nbytes, control=self._riding_bytes())
        self._ride(1)
        return np.where((beside >= 0).reshape(*beside.shape, *(1,) * (x.ndim - 1)), x[beside], 0.0)

    def gossip_coded(self, x: Array, copies: Copies | None, code: Code, /) -> tuple[Array, Copies]:
        self._check_epoch()
        before = Copies.before(x, copies, 0, self._graph)
        messages = encode(x - before.own, code if before is copies else "float64", 1)
        self._count(rounds=1, messages=self._messages, payload=messages[0].nbytes, control=self._riding_bytes())
        self._ride(1)
        D = before.own + decode(messages, x.shape)
        apart = D - D[:1]  # (𝐋 − I) D does not change, and its rounding shrinks with the differences
        return x + (_apply(self._L, apart) - apart), Copies(D, graph=self._graph)

    def total_mean(self, x: Array, /) -> Array:
        """Counted as ``⌈log₂ m⌉`` rounds of pairs, as a machine of m processes would make them."""
        self._check_epoch()
        rounds = (self.n_agents - 1).bit_length()
        self._count(rounds=rounds, messages=rounds * self.n_agents, payload=x[0].nbytes)
        return np.array(np.broadcast_to(x.mean(axis=0), x.shape))

    def sweep(self, x: Array, derive: Callable[[Array], Array], size: int, /) -> tuple[Array, Array]:
        """Nothing has to move where one process holds all agents; what agents apart would send is counted."""
        if self._every_round:
            return super().sweep(x, derive, size)
        self._check_epoch()
        up, down = sweeps(self.topology)
        self._count_along(up, x[0].nbytes, riding=True)
        mean = x.sum(axis=0) / self.n_agents
        told = np.asarray(derive(mean), dtype=np.float64)
        self._count_along(down, x[0].nbytes + told.nbytes, riding=True)
        self._swept(list(self._riding))
        return mean + 0.0, told + 0.0

    def broadcast(self, x: Array, /) -> Array:
        if self._every_round or not (self.reliable and self.topology.whole):
            return super().broadcast(x)
        self._check_epoch()
        self._count_along(sweeps(self.topology)[1], x[0].nbytes, riding=False)
        return np.asarray(x[self.leader], dtype=np.float64) + 0.0  # as the others would have it: no negative zero

    @property
    def _every_round(self) -> bool:
        """Whether every round has to be made: a subclass looks at messages, or the machine adds up."""
        return self.collective or type(self).mix is Network.mix

    def _count_along(self, rounds: Sequence[Csr], payload: int, *, riding: bool) -> None:
        """Count rounds with those weights as if each was made."""
        control = self._riding_bytes() if riding else 0
        for weights in rounds:
            _, messages = self._prepared(weights, _with_messages)
            self._count(rounds=1, messages=messages, payload=payload, control=control)

    def mix(self, mixer: LinearMixer, x: Array, K: int, /) -> Array:
        m = self.n_agents
        cheaper = m * m <= _SPARSE_COST * K * self.topology.gossip_sparse.nnz
        # a K that may not come again is worth a matrix only where making one costs nothing
        key, again = mixer.key(K), mixer.fixed or m <= _ALWAYS_UP_TO
        if self.topology.changing or key is None or m > _DENSE_UP_TO or not cheaper or not again:
            return super().mix(mixer, x, K)
        self._check_epoch()
        linear = self._maps.pop(key, None) or self._collapse(mixer, K)
        self._maps[key] = linear  # the newest last
        if len(self._maps) > _KEPT:
            self._maps.pop(next(iter(self._maps)))
        payload = x[0].nbytes
        self._count(rounds=linear.rounds, messages=linear.messages, payload=payload)
        if mixer.spreads:
            self._count_riding(self._riding_bytes() * linear.messages)
            self._swept(list(self._riding))
            return _apply(linear.matrix, x)
        # a value under way rides on every message until it has arrived
        ridden = sum(p.value.nbytes * min(p.rounds_left, linear.full_rounds) for p in self._riding)
        self._count_riding(ridden * self._messages)
        self._ride(linear.full_rounds)
        return _apply(linear.matrix, x)

    def reduce(self, x: Array, op: Op, /) -> Array:
        self._check_epoch()
        value = reducer(op).reduce(np.asarray(x, dtype=np.float64), axis=0)
        rounds = self._flood_rounds()
        messages = sum(self._now()[1] for _ in range(rounds)) if self.topology.changing else rounds * self._messages
        self._count(control_rounds=rounds, messages=messages, control=np.asarray(value).nbytes)
        return np.asarray(value)

    def reduce_later(self, x: Array, op: Op, /) -> Pending:
        value = np.asarray(reducer(op).reduce(np.asarray(x, dtype=np.float64), axis=0))
        pending = Pending(value, op, self._flood_rounds())
        if not pending.ready:
            self._riding.append(pending)
        return pending

    def _now(self) -> tuple[Array | Csr, int]:
        """Weights and messages of the round that begins."""
        if not self.topology.changing:
            return self._L, self._messages
        self.made += 1
        return self.topology.at(self.made - 1), self.topology.messages_at(self.made - 1)

    def _riding_bytes(self) -> int:
        return sum(pending.value.nbytes for pending in self._riding)

    def _collapse(self, mixer: LinearMixer, K: int) -> _Collapsed:
        probe = SimulatedNetwork(self.topology)
        matrix = mixer.run(probe, np.eye(self.n_agents), K)
        matrix += (1.0 - matrix.sum(axis=0)) / self.n_agents  # columns sum to one but for rounding: the mean stays
        sent = probe.traffic
        return _Collapsed(matrix, sent.rounds, probe.full_rounds, sent.messages)


def apart(pairs: Pairs, m: int) -> list[Pairs]:
    """The same meetings in few groups, in each of which nobody meets twice: ``(2, n)`` arrays, one after the other.

    Who meets next does not depend on meetings of others in between, so those of a group can be held at once.
    """
    made, group = [0] * m, []
    for i, j in pairs.tolist():
        made[i] = made[j] = max(made[i], made[j]) + 1
        group.append(made[i])
    order = np.argsort(group, kind="stable")
    return [part.T for part in np.split(pairs[order], np.cumsum(np.bincount(group, minlength=1)))[1:-1]]


def _with_messages(weights: Csr) -> tuple[Csr, int]:
    entries = sparse.coo_array(weights)
    return weights, int(np.count_nonzero((entries.row != entries.col) & (entries.data != 0.0)))


def _apply(matrix: Array | Csr, x: Array) -> Array:
    """``y_j = Σ_i matrix_ji x_i`` for x of shape ``(m, …)``, keeping the memory order of x."""
    m = x.shape[0]
    if x.ndim == 3 and not x.flags.c_contiguous:
        flipped = np.swapaxes(x, 1, 2)  # products of A_j come with the last axes swapped in memory
        return np.swapaxes(np.asarray(matrix @ flipped.reshape(m, -1)).reshape(flipped.shape), 1, 2)
    return np.asarray(matrix @ x.reshape(m, -1)).reshape(x.shape)
