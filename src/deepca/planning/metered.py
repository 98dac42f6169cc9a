"""A simulator that also tells who sends how much, and how long it would take over real links."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from deepca._util.typing import Array, Csr
from deepca.errors import InvalidInput
from deepca.network.base import LinearMixer, Moment, Pairs
from deepca.network.simulated import SimulatedNetwork
from deepca.topology.graph import Topology

__all__ = ["PROVING", "Cost", "LinkSpeed", "MeteredNetwork", "Sent", "round_weights"]

PROVING = ("certificate", "axes")  # phases of a run that belong to its proof


@dataclass(frozen=True)
class LinkSpeed:
    """What connects agents: seconds until a message arrives, and bits per second that an agent can send."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency) and self.latency >= 0.0):
            raise InvalidInput(f"latency = {self.latency}: seconds, 0 or more, or a text such as '30ms'")
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0.0):
            raise InvalidInput(f"bandwidth = {self.bandwidth}: bits per second, or a text such as '30Mbit'")

    def seconds(self, rounds: float, nbytes: float) -> float:
        """Of that many rounds in which the busiest senders have ``nbytes`` to send, all rounds together."""
        return rounds * self.latency + nbytes * 8.0 / self.bandwidth


@dataclass(frozen=True)
class Cost:
    """Of a part of a run.

    rounds : of gossip or of sums along a tree.  control_rounds : made only to agree on something.
    bytes_per_agent : sent, on average.  busiest_bytes : sent by the agent that sends most.  seconds : on the network.
    """

    rounds: int
    control_rounds: int
    bytes_per_agent: float
    busiest_bytes: float
    seconds: float

    @property
    def all_rounds(self) -> int:
        return self.rounds + self.control_rounds


@dataclass(frozen=True)
class Sent:
    """What agents have sent: rounds, bytes of each agent ``(m,)``, and seconds. Can be added and scaled."""

    rounds: float
    control_rounds: float
    bytes: Array
    seconds: float

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            self.rounds + other.rounds,
            self.control_rounds + other.control_rounds,
            self.bytes + other.bytes,
            self.seconds + other.seconds,
        )

    def __mul__(self, factor: float) -> Sent:
        return Sent(self.rounds * factor, self.control_rounds * factor, self.bytes * factor, self.seconds * factor)

    def __sub__(self, earlier: Sent) -> Sent:
        return self + earlier * -1.0

    def cost(self) -> Cost:
        return Cost(
            rounds=round(self.rounds),
            control_rounds=round(self.control_rounds),
            bytes_per_agent=float(self.bytes.mean()),
            busiest_bytes=float(self.bytes.max()),
            seconds=float(self.seconds),
        )


class MeteredNetwork(SimulatedNetwork):
    """Counts what a run sends, iterations and proof apart, and how long it takes.

    A round takes one latency, and as long as its busiest sender needs for its messages, one after the other. Receiving
    and computing take no time.

    Parameters
    ----------
    link : of every agent.
    length : what a message of so many bytes counts as, where arrays here are shorter than the real ones. Values that
        ride along are counted as they are.
    reliable : whether averages may rely on every message. None gets lost here either way.

    Attributes
    ----------
    running, proving : what iterations and certificates have sent so far.
    """

    def __init__(
        self, topology: Topology, link: LinkSpeed, length: Callable[[int], int] = int, *, reliable: bool = True
    ) -> None:
        super().__init__(topology)
        self.reliable = reliable
        self.running = self.proving = Sent(0, 0, np.zeros(topology.n_agents), 0.0)
        self._link, self._length, self._proves = link, length, False
        degrees = topology.degrees.astype(np.float64)
        self._all = _Fan(degrees, float(degrees.max()))
        self._some: _Fan | None = None  # of the rounds being made, where not every edge is used
        self._fans: dict[object, tuple[object, _Fan | None]] = {}

    def begin(self, epoch: int, t: int, /, phase: str = "step") -> None:
        super().begin(epoch, t, phase)
        self._proves = phase in PROVING

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        with self._sending(None if weights is None else self._known(id(weights), weights, lambda: _Fan.of([weights]))):
            return super().gossip(x, weights)

    def meet(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        each = np.bincount(pairs.ravel(), minlength=self.n_agents).astype(np.float64)
        with self._sending(_Fan(each, float(each.max()))):
            return super().meet(x, pairs, rounds)

    def mix(self, mixer: LinearMixer, x: Array, K: int, /) -> Array:
        with self._sending(self._known(mixer.key(K), mixer, lambda: _Fan.of(round_weights(mixer, self.topology, K)))):
            return super().mix(mixer, x, K)

    def _count_along(self, rounds: Sequence[Csr], payload: int, *, riding: bool) -> None:
        for weights in rounds:
            with self._sending(self._known(id(weights), weights, lambda: _Fan.of([weights]))):  # noqa: B023
                super()._count_along([weights], payload, riding=riding)

    @contextmanager
    def _sending(self, fan: _Fan | None) -> Iterator[None]:
        before, self._some = self._some, fan
        try:
            yield
        finally:
            self._some = before

    def _known(self, key: object, of: object, make: Callable[[], _Fan | None]) -> _Fan | None:
        if key not in self._fans:
            self._fans[key] = of, make()  # kept as well, so that its id is not given to another
        return self._fans[key][1]

    def _count(
        self, *, rounds: int = 0, control_rounds: int = 0, messages: int = 0, payload: int = 0, control: int = 0
    ) -> None:
        super()._count(
            rounds=rounds, control_rounds=control_rounds, messages=messages, payload=payload, control=control
        )
        made = rounds + control_rounds
        nbytes = self._length(payload) + (self._length(control) if control_rounds else control)
        fan = self._some if self._some is not None else _Fan(self._all.messages * made, self._all.busiest * made)
        time = self._link.seconds(made, fan.busiest * nbytes)
        self._add(Sent(rounds, control_rounds, fan.messages * nbytes, time))

    def _count_riding(self, nbytes: int) -> None:
        super()._count_riding(nbytes)
        fan = self._some if self._some is not None else self._all
        each = nbytes / max(float(fan.messages.sum()), 1.0)
        self._add(Sent(0, 0, fan.messages * each, self._link.seconds(0, fan.busiest * each)))

    def _add(self, sent: Sent) -> None:
        if self._proves:
            self.proving += sent
        else:
            self.running += sent


@dataclass(frozen=True)
class _Fan:
    """Messages that each agent sends ``(m,)``, and those of the busiest in each round; added up over some rounds."""

    messages: Array
    busiest: float

    @classmethod
    def of(cls, rounds: list[Csr]) -> _Fan | None:
        """Of rounds with these weights; None without any: then every edge is used."""
        if not rounds:
            return None
        each = []
        for weights in rounds:
            entries = sparse.coo_array(weights)
            senders = entries.col[(entries.row != entries.col) & (entries.data != 0.0)]
            each.append(np.bincount(senders, minlength=int(weights.shape[0])).astype(np.float64))
        return cls(np.sum(each, axis=0), float(sum(messages.max() for messages in each)))


class _Listener:
    """Stands for a network while a mixer runs, to hear which weights it asks for."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.moment: Moment = (0, 0, 0, 0)
        self.heard: list[Csr] = []

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        if weights is not None:
            self.heard.append(weights)
        return x

    def meet(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        return x

    def total_mean(self, x: Array, /) -> Array:
        return x


def round_weights(mixer: LinearMixer, topology: Topology, K: int) -> list[Csr]:
    """Of every round of a mixer that has its own; none for a polynomial of 𝐋."""
    listener = _Listener(topology)
    mixer.run(listener, np.zeros(1), K)
    return listener.heard
