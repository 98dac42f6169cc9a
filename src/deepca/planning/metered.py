"""Simulate a network, and count what each agent sends and how long that would take over real links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from deepca._util.typing import Array, Csr
from deepca.network.base import LinearMixer, Pairs, Position
from deepca.network.simulated import SimulatedNetwork
from deepca.planning.links import ValueRange
from deepca.topology.graph import Topology

__all__ = ["CERTIFICATE_PHASES", "Cost", "LinkSpeed", "MeteredNetwork", "Sent", "round_weights"]

CERTIFICATE_PHASES = ("certificate", "axes")
"""Phases of a run that belong to its certificate."""
_LATENCY = ValueRange("seconds from 0 to 1e300, or text such as '30ms'")
_BANDWIDTH = ValueRange("bits per second from 1e-300 to 1e300, or text such as '30Mbit'", positive=True)


@dataclass(frozen=True)
class LinkSpeed:
    """Speed of the connections between agents.

    Parameters
    ----------
    latency : float
        Seconds until a message arrives.
    bandwidth : float
        Bits per second that an agent can send.

    Raises
    ------
    ParameterError
        If the latency is not from 0 to 1e300, or the bandwidth not from 1e-300 to 1e300.
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        """Check the ranges of both numbers."""
        object.__setattr__(self, "latency", _LATENCY.check("latency", self.latency))
        object.__setattr__(self, "bandwidth", _BANDWIDTH.check("bandwidth", self.bandwidth))

    def seconds(self, rounds: float, nbytes: float) -> float:
        """Return the duration of some rounds.

        Parameters
        ----------
        rounds : float
            Number of rounds.
        nbytes : float
            Bytes that the busiest sender of each round sends, summed over the rounds.

        Returns
        -------
        float
            Seconds.
        """
        return rounds * self.latency + nbytes * 8.0 / self.bandwidth


@dataclass(frozen=True)
class Cost:
    """Cost of a part of a run.

    Parameters
    ----------
    rounds : int
        Rounds of gossip, or of sums along a tree.
    control_rounds : int
        Rounds that exchange decisions, such as when to stop, but no vectors.
    bytes_per_agent : float
        Bytes that an agent sends on average.
    busiest_bytes : float
        Bytes that the busiest agent sends.
    seconds : float
        Time on the network.
    """

    rounds: int
    control_rounds: int
    bytes_per_agent: float
    busiest_bytes: float
    seconds: float

    @property
    def all_rounds(self) -> int:
        """Rounds of both kinds."""
        return self.rounds + self.control_rounds


@dataclass(frozen=True)
class Sent:
    """Rounds, bytes sent by each agent ``(m,)``, and seconds so far. Supports addition and scaling."""

    rounds: float
    control_rounds: float
    bytes: Array
    seconds: float

    def __add__(self, other: Sent) -> Sent:
        """Add two totals."""
        return Sent(
            self.rounds + other.rounds,
            self.control_rounds + other.control_rounds,
            self.bytes + other.bytes,
            self.seconds + other.seconds,
        )

    def __mul__(self, factor: float) -> Sent:
        """Scale the totals."""
        return Sent(self.rounds * factor, self.control_rounds * factor, self.bytes * factor, self.seconds * factor)

    def __sub__(self, earlier: Sent) -> Sent:
        """Subtract an earlier total."""
        return self + earlier * -1.0

    def cost(self) -> Cost:
        """Summarize the totals over the agents."""
        return Cost(
            rounds=round(self.rounds),
            control_rounds=round(self.control_rounds),
            bytes_per_agent=float(self.bytes.mean()),
            busiest_bytes=float(self.bytes.max()),
            seconds=float(self.seconds),
        )


class MeteredNetwork(SimulatedNetwork):
    """Simulated network that counts what the iterations and the certificate of a run send, and how long it takes.

    A round takes one latency, plus the time that its busiest sender needs for its messages, one after the other.
    Receiving and computing take no time.

    Parameters
    ----------
    topology : Topology
        The network.
    link : LinkSpeed
        Speed of every agent's connection.
    length : callable
        Maps the size of a message to the size to count, for arrays that are shorter than those of the real run. Values
        that ride along with messages are counted with their actual size.
    reliable : bool
        Whether averages may rely on every message; this network loses none in either case.

    Attributes
    ----------
    running, proving : Sent
        Totals of the iterations and of the certificates so far.
    """

    def __init__(
        self, topology: Topology, link: LinkSpeed, length: Callable[[int], int] = int, *, reliable: bool = True
    ) -> None:
        super().__init__(topology)
        self.reliable = reliable
        self.running = self.proving = Sent(0, 0, np.zeros(topology.n_agents), 0.0)
        self._link, self._length, self._proves = link, length, False
        degrees = topology.degrees.astype(np.float64)
        self._full = _MessageCounts(degrees, float(degrees.max()))
        self._partial: _MessageCounts | None = None  # counts of the current rounds, if they do not use every edge
        self._counts: dict[object, tuple[object, _MessageCounts | None]] = {}

    def begin(self, epoch: int, t: int, /, phase: str = "step") -> None:
        """Begin a phase and count it towards the iterations or the certificate."""
        super().begin(epoch, t, phase)
        self._proves = phase in CERTIFICATE_PHASES

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Count the messages of one round."""
        with self._sending(
            None if weights is None else self._cached(id(weights), weights, lambda: _MessageCounts.of([weights]))
        ):
            return super().gossip(x, weights)

    def average_pairs(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Count the messages of the pairs that meet."""
        each = np.bincount(pairs.ravel(), minlength=self.n_agents).astype(np.float64)
        with self._sending(_MessageCounts(each, float(each.max()))):
            return super().average_pairs(x, pairs, rounds)

    def mix(self, mixer: LinearMixer, x: Array, K: int, /) -> Array:
        """Count the messages of K rounds."""
        with self._sending(
            self._cached(mixer.key(K), mixer, lambda: _MessageCounts.of(round_weights(mixer, self.topology, K)))
        ):
            return super().mix(mixer, x, K)

    def _count_along(self, rounds: Sequence[Csr], payload: int, *, with_pending: bool) -> None:
        for weights in rounds:
            with self._sending(self._cached(id(weights), weights, lambda: _MessageCounts.of([weights]))):  # noqa: B023
                super()._count_along([weights], payload, with_pending=with_pending)

    @contextmanager
    def _sending(self, counts: _MessageCounts | None) -> Iterator[None]:
        """Use these message counts for the rounds of a ``with`` block; None if they use every edge."""
        before, self._partial = self._partial, counts
        try:
            yield
        finally:
            self._partial = before

    def _cached(self, key: object, of: object, make: Callable[[], _MessageCounts | None]) -> _MessageCounts | None:
        """Return the counts for ``key``, which are computed only once."""
        if key not in self._counts:
            self._counts[key] = of, make()  # keep the object alive, so that its id is not reused
        return self._counts[key][1]

    def _count(
        self, *, rounds: int = 0, control_rounds: int = 0, messages: int = 0, payload: int = 0, control: int = 0
    ) -> None:
        super()._count(
            rounds=rounds, control_rounds=control_rounds, messages=messages, payload=payload, control=control
        )
        made = rounds + control_rounds
        nbytes = self._length(payload) + (self._length(control) if control_rounds else control)
        counts = (
            self._partial
            if self._partial is not None
            else _MessageCounts(self._full.messages * made, self._full.busiest * made)
        )
        time = self._link.seconds(made, counts.busiest * nbytes)
        self._add(Sent(rounds, control_rounds, counts.messages * nbytes, time))

    def _count_piggybacked(self, nbytes: int) -> None:
        super()._count_piggybacked(nbytes)
        counts = self._partial if self._partial is not None else self._full
        each = nbytes / max(float(counts.messages.sum()), 1.0)
        self._add(Sent(0, 0, counts.messages * each, self._link.seconds(0, counts.busiest * each)))

    def _add(self, sent: Sent) -> None:
        if self._proves:
            self.proving += sent
        else:
            self.running += sent


@dataclass(frozen=True)
class _MessageCounts:
    """Messages sent by each agent ``(m,)`` and by the busiest agent of each round, both summed over rounds."""

    messages: Array
    busiest: float

    @classmethod
    def of(cls, rounds: list[Csr]) -> _MessageCounts | None:
        """Count the messages of rounds with these weights; return None for no weights, when every edge is used."""
        if not rounds:
            return None
        each = []
        for weights in rounds:
            entries = sparse.coo_array(weights)
            senders = entries.col[(entries.row != entries.col) & (entries.data != 0.0)]
            each.append(np.bincount(senders, minlength=int(weights.shape[0])).astype(np.float64))
        return cls(np.sum(each, axis=0), float(sum(messages.max() for messages in each)))


class _Recorder:
    """Network that records the weights with which a mixer gossips."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.position: Position = (0, 0, 0, 0)
        self.recorded: list[Csr] = []

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Record the weights and return x unchanged."""
        if weights is not None:
            self.recorded.append(weights)
        return x

    def average_pairs(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Do nothing."""
        return x

    def allreduce_mean(self, x: Array, /) -> Array:
        """Do nothing."""
        return x


def round_weights(mixer: LinearMixer, topology: Topology, K: int) -> list[Csr]:
    """Return the weights of every round of a mixer; an empty list if the mixer is a polynomial of 𝐋."""
    recorder = _Recorder(topology)
    mixer.run(recorder, np.zeros(1), K)
    return recorder.recorded
