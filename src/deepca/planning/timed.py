"""Simulate a network with clocks: the same numbers, and the times at which agents would have them over given links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from deepca._util.typing import Array, Csr
from deepca.data.local_data import LocalData
from deepca.network.base import LinearMixer, Network, Pairs
from deepca.network.simulated import SimulatedNetwork, disjoint_groups
from deepca.operators.base import MixedOperator, Operator
from deepca.operators.dense_rows import DenseRows
from deepca.operators.rounding import Rounding
from deepca.operators.sparse_rows import SparseRows
from deepca.planning.clock import Arcs, SimulatedClock
from deepca.planning.links import Links, ValueRange
from deepca.planning.metered import CERTIFICATE_PHASES, round_weights

__all__ = ["TimedData", "TimedNetwork", "TimedOperator", "check_speed", "operations"]

_PREPARING = ("mean", "remainder", "spread", "columns")  # phases before the iterations
_MAX_CACHED_ROUNDS = 256  # number of weight matrices whose links are cached, since time-varying networks have many
_SPEED = ValueRange("a number from 1e-300 to 1e300, or inf if computing takes no time", positive=True, infinite=True)


class TimedNetwork(SimulatedNetwork):
    """Simulated network with a clock for every agent.

    Arrays, rounds and traffic are bitwise those of :class:`SimulatedNetwork`. An agent continues as soon as it has
    received the messages of its round, so some agents may be rounds ahead of others, as far as the graph allows. Lost
    messages are sent again, so losses cost time but no accuracy. On a network of
    :func:`deepca.topology.time_varying.lossy`, lost messages are not sent again: receivers wait for
    ``retransmission_timeout``, then use their own values instead.

    Parameters
    ----------
    links : Links
        Links of the network, which also determine its topology.
    gflops : float
        Speed of an agent with slowdown 1, in 10⁹ operations per second; inf if computing takes no time.
    seed : int
        Seed of losses, jitter and stalls.

    Attributes
    ----------
    clock : SimulatedClock
        Time of every agent.

    Raises
    ------
    ParameterError
        If ``gflops`` is not from 1e-300 to 1e300, or inf.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> links = deepca.Links.of(deepca.topology.ring(4), latency=0.25)
    >>> network = deepca.TimedNetwork(links)
    >>> x = network.gossip(np.ones((4, 2)))
    >>> network.clock.elapsed
    0.25
    """

    def __init__(self, links: Links, *, gflops: float = np.inf, seed: int = 0) -> None:
        super().__init__(links.topology)
        gflops = check_speed(gflops)
        self.links, self.clock = links, SimulatedClock(links, flops=gflops * 1e9, seed=seed)
        self._all = Arcs.of(links, np.arange(links.latency.size))
        self._arcs: dict[int, tuple[Csr, Arcs]] = {}
        self._using: Sequence[Arcs] = ()  # links of each of the current rounds, if they do not use every link
        self._drawn: list[Csr] = []  # weights of the rounds of a time-varying network
        self._rides: Sequence[tuple[int, int]] = ()  # bytes of values that ride along, and their numbers of rounds
        self._spent = {"preparation": 0.0, "iterations": 0.0, "proof": 0.0}
        self._doing, self._since = "preparation", 0.0

    @property
    def phases(self) -> dict[str, float]:
        """Simulated seconds of preparation, iterations and proof, each until the slowest agent has finished it."""
        return {**self._spent, self._doing: self._spent[self._doing] + self.clock.elapsed - self._since}

    def begin(self, epoch: int, t: int, /, phase: str = "step") -> None:
        """Begin a phase and count it towards preparation, iterations or proof."""
        super().begin(epoch, t, phase)
        self._spent, self._since = self.phases, self.clock.elapsed
        self._doing = "proof" if phase in CERTIFICATE_PHASES else "preparation" if phase in _PREPARING else "iterations"

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Advance the clocks by one round."""
        with self._sending(() if weights is None else [self._used(weights)]):
            return super().gossip(x, weights)

    def mix(self, mixer: LinearMixer, x: Array, K: int, /) -> Array:
        """Advance the clocks by K rounds."""
        using = [self._used(weights) for weights in round_weights(mixer, self.topology, K)]
        if mixer.reaches_all and not using and self.n_agents > 1:
            return self.allreduce_mean(x)
        rides = [(p.value.nbytes, len(using) if mixer.reaches_all else p.rounds_left) for p in self._pending]
        with self._sending(using, rides):
            return super().mix(mixer, x, K)

    allreduce_mean = Network.allreduce_mean  # raises an error, since a collective operation uses none of these links

    def _now(self) -> tuple[Array | Csr, int]:
        matrix, messages = super()._now()
        if self.topology.time_varying:
            self._drawn.append(self.topology.at(self.next_round - 1))
        return matrix, messages

    def _count(
        self, *, rounds: int = 0, control_rounds: int = 0, messages: int = 0, payload: int = 0, control: int = 0
    ) -> None:
        super()._count(
            rounds=rounds, control_rounds=control_rounds, messages=messages, payload=payload, control=control
        )
        drawn, self._drawn = self._drawn, []
        for r in range(rounds + control_rounds):
            nbytes = payload + control + sum(size for size, left in self._rides if r < left)
            if drawn:
                self._drawn_round(drawn[r], nbytes)
            else:
                self.clock.round(self._using[r] if self._using else self._all, nbytes)

    def _count_pairs(self, pairs: Pairs, rounds: int, payload: int) -> None:
        self._pairs_averaged += len(pairs)
        super()._count(rounds=rounds, messages=2 * len(pairs), payload=payload)
        for one, other in disjoint_groups(pairs, self.n_agents):
            index = np.sort(self.links.find(np.r_[one, other], np.r_[other, one]))
            self.clock.round(Arcs.of(self.links, index), payload)

    def _drawn_round(self, weights: Csr, nbytes: int) -> None:
        """Advance the clocks by a round of a time-varying network."""
        heard = self._used(weights)
        if getattr(self.topology, "preserves_sum", True):
            self.clock.round(heard, nbytes)
            return
        lost = np.ones(self._all.index.size, dtype=np.bool_)
        lost[heard.index] = False
        self.clock.round(self._all, nbytes, lost)

    def _count_along(self, rounds: Sequence[Csr], payload: int, *, with_pending: bool) -> None:
        for weights in rounds:
            with self._sending([self._used(weights)]):
                super()._count_along([weights], payload, with_pending=with_pending)

    @contextmanager
    def _sending(self, using: Sequence[Arcs], rides: Sequence[tuple[int, int]] = ()) -> Iterator[None]:
        """Let the rounds of a ``with`` block use these links, and count these values that ride along."""
        before = self._using, self._rides
        self._using, self._rides = using, rides
        try:
            yield
        finally:
            self._using, self._rides = before

    def _used(self, weights: Csr) -> Arcs:
        """Return the links that a round with these weights uses."""
        known = self._arcs.get(id(weights))
        if known is None or known[0] is not weights:
            entries = sparse.coo_array(weights)
            sent = (entries.row != entries.col) & (entries.data != 0.0)
            index = np.sort(self.links.find(entries.row[sent].astype(np.int64), entries.col[sent].astype(np.int64)))
            if len(self._arcs) >= _MAX_CACHED_ROUNDS:
                self._arcs.clear()
            known = self._arcs[id(weights)] = (weights, Arcs.of(self.links, index))
        return known[1]


class TimedOperator(Operator):
    """Operator whose products advance the agents' clocks."""

    def __init__(self, A: Operator, clock: SimulatedClock) -> None:
        self._A, self._clock, self._each = A, clock, operations(A)
        self.batch, self.d, self.form, self.bytes_read = A.batch, A.d, A.form, A.bytes_read
        self.row_counts = A.row_counts

    def __matmul__(self, W: Array) -> Array:
        """Multiply and advance the clocks."""
        self._clock.compute(self._each * W.shape[-1])
        return self._A @ W

    def rounding(self) -> Rounding:
        """Return the rounding bounds of the untimed operator."""
        return self._A.rounding()

    def row_bounds(self) -> Array | None:
        """Return the row bounds of the untimed operator."""
        return self._A.row_bounds()

    def agent(self, j: int) -> Operator:
        """Return the operator of one agent, without a clock."""
        return self._A.agent(j)

    def dense(self) -> Array:
        """Return the matrices, without advancing the clocks."""
        return self._A.dense()

    @property
    def has_rows(self) -> bool:
        """True if the untimed operator has rows."""
        return self._A.has_rows

    def deflated(self, V: Array) -> TimedOperator:
        """Return the deflated operator, with the same clocks."""
        return TimedOperator(self._A.deflated(V), self._clock)

    def gram(self, V: Array) -> Array:
        """Compute the Gram matrix and advance the clocks."""
        self._clock.compute(self._each * V.shape[-1] / 2.0)
        return self._A.gram(V)


def check_speed(gflops: float) -> float:
    """Return ``gflops`` as a float; raise ParameterError unless it is from 1e-300 to 1e300, or inf."""
    return _SPEED.check("gflops", gflops)


def operations(A: Operator) -> Array:
    """Return the number of floating-point operations of each ``A_j w``, ``(m,)``: two per scalar multiplication."""
    if isinstance(A, MixedOperator):
        return np.concatenate([operations(one) for one in A.operators])
    if isinstance(A, DenseRows):
        return np.array([4.0 * X.shape[0] * A.d for X in A.rows])
    if isinstance(A, SparseRows):
        return np.array([4.0 * X.nnz for X in A.rows])
    return np.full(A.n_local, 2.0 * A.d * A.d)


@dataclass(frozen=True)
class TimedData(LocalData):
    """Local data with operators whose products advance the agents' clocks."""

    clock: SimulatedClock = field(kw_only=True)

    def operator(self, *args: Any, **kwargs: Any) -> Operator:
        """Return the operator, which advances the clocks."""
        return TimedOperator(super().operator(*args, **kwargs), self.clock)
