"""A clock for every agent: when it has what it needs, and what it waited for.

One round over some directions of links ``i → j``, all messages of the same size::

    departure_ij = max(t_i, when the line i → j is free again)
    arrival_ij   = departure_ij + n_ij · patience_ij + 8 · bytes / bandwidth_ij + latency_ij
    t_j          ← max(t_j, max_i arrival_ij)

with n_ij the number of times the message was lost. Sending does not keep an agent busy. Every time ``t_j`` remembers
what it is made of: at each maximum the parts of the one waited for are taken over, so parts sum to the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.planning.links import Links

__all__ = ["PARTS", "Arcs", "Critical", "SimulatedClock"]

PARTS = ("latency", "transmission", "losses", "compute", "stragglers")
"""What a time is made of. stragglers : what slow and stalled agents took longer than others."""
_COMPUTE, _STRAGGLERS = 3, 4


@dataclass(frozen=True, eq=False)
class Arcs:
    """Directions of links that a round uses, by receiver.

    index : where they are in ``Links``.  sender : of each.  place : how many messages of its sender go before it.
    receivers : each once, rising.  starts, counts : of its directions.
    """

    index: npt.NDArray[np.int64]
    sender: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    receivers: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, links: Links, index: npt.NDArray[np.int64]) -> Arcs:
        """``index`` : rising, so that receivers rise as well."""
        sender = links.senders[index]
        receivers, starts, counts = np.unique(links.receivers[index], return_index=True, return_counts=True)
        order = np.argsort(sender, kind="stable")
        first = np.searchsorted(sender[order], sender[order])
        place = np.empty_like(order)
        place[order] = np.arange(order.size) - first
        return cls(index, sender, place, receivers, starts, counts)


class _Waited(NamedTuple):
    """Whose time an event moved, rising; over which directions, None for computing; and by how much."""

    agents: npt.NDArray[np.int64]
    arcs: npt.NDArray[np.int64] | None
    seconds: Array


@dataclass(frozen=True, eq=False)
class Critical:
    """The chain of waits that ends with the last agent: seconds of each direction ``(a,)`` and each agent ``(m,)``."""

    on_links: Array
    at_agents: Array


class SimulatedClock:
    """The time of every agent.

    Parameters
    ----------
    links : with latency, bandwidth, loss and the agents' machines.
    flops : floating-point operations per second of an agent with slowdown 1; inf counts computing as nothing.
    seed : of losses, jitter and stalls; or a generator to draw them from.

    Attributes
    ----------
    now : ``(m,)`` seconds.  parts : ``(m, 5)`` what they are made of, as in PARTS.
    resent : messages sent again.  resent_bytes : in them.
    """

    def __init__(self, links: Links, *, flops: float = np.inf, seed: int | np.random.Generator = 0) -> None:
        m = links.topology.n_agents
        self._links, self._flops = links, flops
        self._rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng((7103, seed))
        self.now, self.parts = np.zeros(m), np.zeros((m, len(PARTS)))
        self.resent, self.resent_bytes = 0, 0
        self._per_byte, self._free = 8.0 / links.bandwidth, np.zeros(links.latency.size)
        self._up_per_byte, self._up_free = 8.0 / links.machines.uplink, np.zeros(m)
        self._shared = bool(np.isfinite(links.machines.uplink).any())
        self._jitters, self._loses = bool(links.jitter.any()), bool(links.loss.any())
        self._stalls = bool((links.machines.stall * links.machines.pause).any())
        self._waits: list[_Waited] = []

    @property
    def elapsed(self) -> float:
        """When the last agent is done."""
        return float(self.now.max())

    def compute(self, operations: Array) -> None:
        """Every agent makes so many floating-point operations, ``(m,)``."""
        machines = self._links.machines
        usual = operations / self._flops
        seconds = usual * machines.slowdown
        if self._stalls:
            seconds = seconds + np.where(self._rng.random(seconds.size) < machines.stall, machines.pause, 0.0)
        if not seconds.any():
            return
        fair = np.minimum(usual, seconds)  # who is faster than others has no straggling
        self.now += seconds
        self.parts[:, _COMPUTE] += fair
        self.parts[:, _STRAGGLERS] += seconds - fair
        self._waits.append(_Waited(np.arange(seconds.size), None, seconds))

    def round(self, arcs: Arcs, nbytes: float, lost: npt.NDArray[np.bool_] | None = None) -> None:
        """One message of so many bytes over each of ``arcs``.

        lost : those that never arrive and are not sent again; their receivers give up waiting after ``patience``.
        Without it, messages that get lost are sent again.
        """
        if not arcs.index.size:
            return
        links, at = self._links, arcs.index
        began = self.now[arcs.sender]
        departure = np.maximum(self._passed_uplink(arcs, began, nbytes), self._free[at])
        missed = np.zeros(at.size)
        if lost is not None:
            missed = np.where(lost, links.patience[at], 0.0)
        elif self._loses:
            times = self._rng.geometric(1.0 - links.loss[at]) - 1
            self.resent += int(times.sum())
            self.resent_bytes += int(times.sum() * nbytes)
            missed = times * links.patience[at]
        delay = links.latency[at]
        if self._jitters:
            delay = delay + links.jitter[at] * self._rng.random(at.size)
        put = nbytes * self._per_byte[at]
        on_line = departure + missed + put
        self._free[at] = on_line if lost is None else departure + put
        self._wait(arcs, began, np.stack([delay, departure - began + put, missed], axis=1), on_line + delay)

    def _passed_uplink(self, arcs: Arcs, began: Array, nbytes: float) -> Array:
        """When messages have left their agents: one after the other where they share a line."""
        if not self._shared:
            return began
        each = nbytes * self._up_per_byte[arcs.sender]
        left = np.asarray(np.maximum(began, self._up_free[arcs.sender]) + (arcs.place + 1) * each)
        np.maximum.at(self._up_free, arcs.sender, left)
        return left

    def _wait(self, arcs: Arcs, began: Array, made_of: Array, arrival: Array) -> None:
        """Every receiver waits for its last message, and takes over what its time was made of.

        made_of : ``(a, 3)``, the first three of PARTS.
        """
        last = np.maximum.reduceat(arrival, arcs.starts)
        is_last = arrival == np.repeat(last, arcs.counts)
        which = np.minimum.reduceat(np.where(is_last, np.arange(arrival.size), arrival.size), arcs.starts)
        later = last > self.now[arcs.receivers]
        who, by = arcs.receivers[later], which[later]
        parts = self.parts[arcs.sender[by]]
        parts[:, :_COMPUTE] += made_of[by]
        self.parts[who], self.now[who] = parts, arrival[by]
        self._waits.append(_Waited(who, arcs.index[by], arrival[by] - began[by]))

    def critical(self) -> Critical:
        """Who and what the last agent has waited for, from the beginning on."""
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
        return Critical(on_links, at_agents)
