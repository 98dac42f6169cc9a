"""Simulate the clocks of the agents: when each has the messages it needs, and what it waited for.

A round of messages of equal size over some of the directed links ``i → j`` advances the clocks as follows::

    departure_ij = max(t_i, time at which the line i → j is free)
    arrival_ij   = departure_ij + n_ij · timeout_ij + 8 · bytes / bandwidth_ij + latency_ij
    t_j          ← max(t_j, max_i arrival_ij)

where n_ij is the number of times the message was lost, and timeout_ij the ``retransmission_timeout`` of the link.
Sending does not block an agent. Every ``t_j`` is stored as a sum of parts: at each maximum, the parts of the message
that arrived last replace those of the agent, if the agent had to wait for the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.planning.links import Links

__all__ = ["TIME_PARTS", "Arcs", "CriticalPath", "SimulatedClock"]

TIME_PARTS = ("latency", "transmission", "losses", "compute", "stragglers")
"""Causes of simulated time; "stragglers" is the additional computing time of slow and stalled agents."""
_COMPUTE, _STRAGGLERS = TIME_PARTS.index("compute"), TIME_PARTS.index("stragglers")


@dataclass(frozen=True, eq=False)
class Arcs:
    """Directions of the links that a round uses, ordered by receiver.

    Parameters
    ----------
    index : array of int
        Positions in ``Links``.
    sender : array of int
        Sender of each direction.
    place : array of int
        Number of messages that the same sender sends before that of this direction.
    receivers : array of int
        The distinct receivers, ascending.
    starts, counts : array of int
        Position of the first direction, and number of directions, of each receiver.
    """

    index: npt.NDArray[np.int64]
    sender: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    receivers: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, links: Links, index: npt.NDArray[np.int64]) -> Arcs:
        """Select directions by their positions in ``links``, ascending."""
        sender = links.senders[index]
        receivers, starts, counts = np.unique(links.receivers[index], return_index=True, return_counts=True)
        order = np.argsort(sender, kind="stable")
        first = np.searchsorted(sender[order], sender[order])
        place = np.empty_like(order)
        place[order] = np.arange(order.size) - first
        return cls(index, sender, place, receivers, starts, counts)


class _Wait(NamedTuple):
    """Agents that waited, ascending, the direction for whose message each waited, and the seconds.

    ``arcs`` is None if the agents did not wait for messages, but computed.
    """

    agents: npt.NDArray[np.int64]
    arcs: npt.NDArray[np.int64] | None
    seconds: Array


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """Seconds that the critical path to the last agent spends on each direction ``(a,)`` and at each agent ``(m,)``."""

    on_links: Array
    at_agents: Array


class SimulatedClock:
    """Simulated time of every agent.

    Parameters
    ----------
    links : Links
        Latency, bandwidth and loss of the links, and the speed of the agents.
    flops : float
        Floating-point operations per second of an agent with slowdown 1; inf if computing takes no time.
    seed : int or numpy.random.Generator
        Seed of losses, jitter and stalls.

    Attributes
    ----------
    now : array of shape (m,)
        Time of each agent in seconds.
    parts : array of shape (m, 5)
        The same time, divided into `TIME_PARTS`.
    retransmissions : int
        Number of times that a lost message was sent again.
    retransmitted_bytes : int
        Bytes that were sent again.
    """

    def __init__(self, links: Links, *, flops: float = np.inf, seed: int | np.random.Generator = 0) -> None:
        m = links.topology.n_agents
        self._links, self._flops = links, flops
        self._rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng((7103, seed))
        self.now, self.parts = np.zeros(m), np.zeros((m, len(TIME_PARTS)))
        self.retransmissions, self.retransmitted_bytes = 0, 0
        self._per_byte, self._free = 8.0 / links.bandwidth, np.zeros(links.latency.size)
        self._up_per_byte, self._up_free = 8.0 / links.machines.uplink, np.zeros(m)
        self._shared = bool(np.isfinite(links.machines.uplink).any())
        self._jitters, self._loses = bool(links.jitter.any()), bool(links.loss.any())
        self._stalls = bool((links.machines.stall * links.machines.pause).any())
        self._waits: list[_Wait] = []

    @property
    def elapsed(self) -> float:
        """Time at which the last agent finishes."""
        return float(self.now.max())

    def compute(self, operations: Array) -> None:
        """Advance the clocks by ``operations`` floating-point operations of each agent, ``(m,)``."""
        machines = self._links.machines
        usual = operations / self._flops
        seconds = usual * machines.slowdown
        if self._stalls:
            seconds = seconds + np.where(self._rng.random(seconds.size) < machines.stall, machines.pause, 0.0)
        if not seconds.any():
            return
        fair = np.minimum(usual, seconds)  # a slowdown below 1 does not count as straggling
        self.now += seconds
        self.parts[:, _COMPUTE] += fair
        self.parts[:, _STRAGGLERS] += seconds - fair
        self._waits.append(_Wait(np.arange(seconds.size), None, seconds))

    def round(self, arcs: Arcs, nbytes: float, lost: npt.NDArray[np.bool_] | None = None) -> None:
        """Send a message of ``nbytes`` over each of ``arcs``.

        Messages marked in ``lost`` never arrive and are not sent again; their receivers stop waiting after
        ``retransmission_timeout``. Without ``lost``, losses are drawn at random, and lost messages are sent again.
        """
        if not arcs.index.size:
            return
        links, at = self._links, arcs.index
        began = self.now[arcs.sender]
        departure = np.maximum(self._passed_uplink(arcs, began, nbytes), self._free[at])
        missed = np.zeros(at.size)
        if lost is not None:
            missed = np.where(lost, links.retransmission_timeout[at], 0.0)
        elif self._loses:
            times = self._rng.geometric(1.0 - links.loss[at]) - 1
            self.retransmissions += int(times.sum())
            self.retransmitted_bytes += int(times.sum() * nbytes)
            missed = times * links.retransmission_timeout[at]
        delay = links.latency[at]
        if self._jitters:
            delay = delay + links.jitter[at] * self._rng.random(at.size)
        put = nbytes * self._per_byte[at]
        on_line = departure + missed + put
        self._free[at] = on_line if lost is None else departure + put
        self._wait(arcs, began, np.stack([delay, departure - began + put, missed], axis=1), on_line + delay)

    def _passed_uplink(self, arcs: Arcs, began: Array, nbytes: float) -> Array:
        """Return the times at which messages have left their senders, one after another through an uplink."""
        if not self._shared:
            return began
        each = nbytes * self._up_per_byte[arcs.sender]
        left = np.asarray(np.maximum(began, self._up_free[arcs.sender]) + (arcs.place + 1) * each)
        np.maximum.at(self._up_free, arcs.sender, left)
        return left

    def _wait(self, arcs: Arcs, began: Array, made_of: Array, arrival: Array) -> None:
        """Let every receiver wait for its last message, and replace the parts of its time by those of the message.

        ``made_of``, of shape ``(a, 3)``, contains the first three of TIME_PARTS for each message.
        """
        last = np.maximum.reduceat(arrival, arcs.starts)
        is_last = arrival == np.repeat(last, arcs.counts)
        which = np.minimum.reduceat(np.where(is_last, np.arange(arrival.size), arrival.size), arcs.starts)
        later = last > self.now[arcs.receivers]
        waiting, by = arcs.receivers[later], which[later]
        parts = self.parts[arcs.sender[by]]
        parts[:, :_COMPUTE] += made_of[by]
        self.parts[waiting], self.now[waiting] = parts, arrival[by]
        self._waits.append(_Wait(waiting, arcs.index[by], arrival[by] - began[by]))

    def critical_path(self) -> CriticalPath:
        """Trace the critical path from the last agent back to the beginning."""
        on_links, at_agents = np.zeros(self._links.latency.size), np.zeros(self.now.size)
        j = int(self.now.argmax())
        for agents, arcs, seconds in reversed(self._waits):
            place = int(np.searchsorted(agents, j))
            if place == agents.size or agents[place] != j:
                continue
            if arcs is None:
                at_agents[j] += seconds[place]
            else:
                on_links[arcs[place]] += seconds[place]
                j = int(self._links.senders[arcs[place]])
        return CriticalPath(on_links, at_agents)
