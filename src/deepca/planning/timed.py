"""The simulator with a clock: the same numbers, and when every agent would have them over given links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from scipy import sparse

from deepca._util.typing import Array, Csr
from deepca.errors import InvalidInput
from deepca.network.base import LinearMixer, Network, Pairs
from deepca.network.simulated import SimulatedNetwork, apart
from deepca.operators.base import Operator, PerAgent
from deepca.operators.dense_rows import DenseRows
from deepca.operators.rounding import Rounding
from deepca.operators.sparse_rows import SparseRows
from deepca.planning.clock import Arcs, SimulatedClock
from deepca.planning.links import Links
from deepca.planning.metered import PROVING, round_weights

__all__ = ["TimedNetwork", "TimedOperator", "check_speed", "operations"]

_PREPARING = ("mean", "remainder", "spread", "columns")  # phases before the iterations


class TimedNetwork(SimulatedNetwork):
    """Arrays, rounds and traffic are those of :class:`SimulatedNetwork`, bit for bit; ``clock`` says how long it takes.

    An agent goes on when it has the messages of its own round, so agents drift apart as far as the graph allows. Lost
    messages are sent again, so losses cost time and no digit. On a network of
    :func:`deepca.topology.time_varying.lossy` they are not: receivers wait, then use their own numbers.

    Parameters
    ----------
    links : of the topology that the run takes place on.
    gflops : what an agent with slowdown 1 computes, in 10⁹ floating-point operations per second; inf for no time.
    seed : of losses, jitter and stalls.

    Attributes
    ----------
    clock : the time of every agent.  phases : seconds of preparation, iterations and proof, until the last agent.
    """

    def __init__(self, links: Links, *, gflops: float = np.inf, seed: int = 0) -> None:
        super().__init__(links.topology)
        check_speed(gflops)
        self.links, self.clock = links, SimulatedClock(links, flops=gflops * 1e9, seed=seed)
        self._all = Arcs.of(links, np.arange(links.latency.size))
        self._arcs: dict[int, tuple[Csr, Arcs]] = {}
        self._using: Sequence[Arcs] = ()  # of the rounds being made, where not every link is used
        self._drawn: list[Csr] = []  # weights of rounds of a network that changes
        self._rides: Sequence[tuple[int, int]] = ()  # bytes, and for how many rounds, of values that ride along
        self._spent = {"preparation": 0.0, "iterations": 0.0, "proof": 0.0}
        self._doing, self._since = "preparation", 0.0

    @property
    def phases(self) -> dict[str, float]:
        return {**self._spent, self._doing: self._spent[self._doing] + self.clock.elapsed - self._since}

    def begin(self, epoch: int, t: int, /, phase: str = "step") -> None:
        super().begin(epoch, t, phase)
        self._spent, self._since = self.phases, self.clock.elapsed
        self._doing = "proof" if phase in PROVING else "preparation" if phase in _PREPARING else "iterations"

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        with self._sending(() if weights is None else [self._used(weights)]):
            return super().gossip(x, weights)

    def mix(self, mixer: LinearMixer, x: Array, K: int, /) -> Array:
        using = [self._used(weights) for weights in round_weights(mixer, self.topology, K)]
        if mixer.spreads and not using and self.n_agents > 1:
            return self.total_mean(x)
        rides = [(p.value.nbytes, len(using) if mixer.spreads else p.rounds_left) for p in self._riding]
        with self._sending(using, rides):
            return super().mix(mixer, x, K)

    total_mean = Network.total_mean  # refused: it would not go over these links

    def _now(self) -> tuple[Array | Csr, int]:
        matrix, messages = super()._now()
        if self.topology.changing:
            self._drawn.append(self.topology.at(self.made - 1))
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

    def _have_met(self, pairs: Pairs, rounds: int, payload: int) -> None:
        self._met += len(pairs)
        super()._count(rounds=rounds, messages=2 * len(pairs), payload=payload)
        for one, other in apart(pairs, self.n_agents):
            index = np.sort(self.links.find(np.r_[one, other], np.r_[other, one]))
            self.clock.round(Arcs.of(self.links, index), payload)

    def _drawn_round(self, weights: Csr, nbytes: int) -> None:
        heard = self._used(weights)
        if getattr(self.topology, "keeps", True):
            self.clock.round(heard, nbytes)
            return
        lost = np.ones(self._all.index.size, dtype=np.bool_)
        lost[heard.index] = False
        self.clock.round(self._all, nbytes, lost)

    def _count_along(self, rounds: Sequence[Csr], payload: int, *, riding: bool) -> None:
        for weights in rounds:
            with self._sending([self._used(weights)]):
                super()._count_along([weights], payload, riding=riding)

    @contextmanager
    def _sending(self, using: Sequence[Arcs], rides: Sequence[tuple[int, int]] = ()) -> Iterator[None]:
        before = self._using, self._rides
        self._using, self._rides = using, rides
        try:
            yield
        finally:
            self._using, self._rides = before

    def _used(self, weights: Csr) -> Arcs:
        """The links over which something is sent in a round with these weights."""
        known = self._arcs.get(id(weights))
        if known is None or known[0] is not weights:
            entries = sparse.coo_array(weights)
            sent = (entries.row != entries.col) & (entries.data != 0.0)
            index = np.sort(self.links.find(entries.row[sent].astype(np.int64), entries.col[sent].astype(np.int64)))
            if len(self._arcs) >= 256:
                self._arcs.clear()
            known = self._arcs[id(weights)] = (weights, Arcs.of(self.links, index))
        return known[1]


class TimedOperator(Operator):
    """``A_j`` whose products take the agents' time."""

    def __init__(self, A: Operator, clock: SimulatedClock) -> None:
        self._A, self._clock, self._each = A, clock, operations(A)
        self.batch, self.d, self.form, self.bytes_read = A.batch, A.d, A.form, A.bytes_read
        self.row_counts = A.row_counts

    def __matmul__(self, W: Array) -> Array:
        self._clock.compute(self._each * W.shape[-1])
        return self._A @ W

    def rounding(self) -> Rounding:
        return self._A.rounding()

    def agent(self, j: int) -> Operator:
        return self._A.agent(j)

    def dense(self) -> Array:
        return self._A.dense()

    @property
    def has_rows(self) -> bool:
        return self._A.has_rows

    def without(self, V: Array) -> TimedOperator:
        return TimedOperator(self._A.without(V), self._clock)

    def gram(self, V: Array) -> Array:
        self._clock.compute(self._each * V.shape[-1] / 2.0)
        return self._A.gram(V)


def check_speed(gflops: float) -> None:
    """Raise InvalidInput unless ``gflops`` is positive."""
    if not gflops > 0.0:
        raise InvalidInput(f"gflops = {gflops}: a number above 0, or inf to count computing as nothing")


def operations(A: Operator) -> Array:
    """Floating-point operations of ``A_j w``, ``(m,)``: two for each number multiplied."""
    if isinstance(A, PerAgent):
        return np.concatenate([operations(one) for one in A.operators])
    if isinstance(A, DenseRows):
        return np.array([4.0 * X.shape[0] * A.d for X in A.rows])
    if isinstance(A, SparseRows):
        return np.array([4.0 * X.nnz for X in A.rows])
    return np.full(A.n_local, 2.0 * A.d * A.d)
