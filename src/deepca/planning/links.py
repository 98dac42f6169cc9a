"""What a network is made of: how fast each link is, what it loses, and how fast each agent computes.

A link from agent i to agent j carries one message after the other: ``8 · bytes / bandwidth`` seconds to put it on the
line, then ``latency`` (and up to ``jitter``, drawn uniformly) until it arrives. Links do not disturb each other, unless
an agent has an ``uplink`` that all its messages pass first. A message is lost with probability ``loss`` and sent again
``patience`` seconds later, as often as it takes. :mod:`deepca.planning.timed` runs algorithms over such links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.errors import InvalidInput
from deepca.topology.graph import Topology

__all__ = ["SHORTEST_PATIENCE", "Links", "Machines", "Quantity"]

SHORTEST_PATIENCE = 0.2
"""Seconds after which a lost message is sent again, at least; TCP's shortest timeout on Linux."""


@dataclass(frozen=True)
class Quantity:
    """What a number that describes a link or an agent may be: 0 or more and finite, unless said.

    wanted : in words.  positive : whether 0 is too small.  below, most : limits.  infinite : whether inf is allowed.
    """

    wanted: str
    positive: bool = False
    below: float = np.inf
    most: float = np.inf
    infinite: bool = False

    def accepts(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell for each value whether it may be."""
        given = np.asarray(values, dtype=np.float64)
        low = given > 0.0 if self.positive else given >= 0.0
        return np.asarray(low & (given <= self.most) & ((given < self.below) | (self.infinite & (given == np.inf))))


_RATE = Quantity("bits per second above 0, or inf", positive=True, infinite=True)
_SECONDS = Quantity("seconds, 0 or more")
_OF_A_LINK = {
    "latency": _SECONDS,
    "bandwidth": _RATE,
    "loss": Quantity("a probability, 0 or more and below 1", below=1.0),
    "jitter": _SECONDS,
}
_OF_AN_AGENT = {
    "slowdown": Quantity("a number above 0, such as 3 for three times as slow", positive=True),
    "stall": Quantity("a probability, 0 or more and at most 1", most=1.0),
    "pause": _SECONDS,
    "uplink": _RATE,
}


@dataclass(frozen=True, eq=False)
class Machines:
    """How agents compute and send; one number per agent, ``(m,)``.

    slowdown : how many times as long as the others an agent computes.
    stall, pause : with probability ``stall`` a product waits ``pause`` seconds more: a busy machine.
    uplink : bits per second of the line that all messages of an agent leave by, one after the other; inf for none.
    """

    slowdown: Array
    stall: Array
    pause: Array
    uplink: Array

    def __post_init__(self) -> None:
        _check(self, _OF_AN_AGENT)

    @classmethod
    def of(
        cls,
        m: int,
        *,
        slowdown: npt.ArrayLike = 1.0,
        stall: npt.ArrayLike = 0.0,
        pause: npt.ArrayLike = 0.0,
        uplink: npt.ArrayLike = np.inf,
    ) -> Machines:
        """m agents; a single number is that of all of them."""
        return cls(
            slowdown=_full(slowdown, m, "slowdown"),
            stall=_full(stall, m, "stall"),
            pause=_full(pause, m, "pause"),
            uplink=_full(uplink, m, "uplink"),
        )


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a topology, one entry for each direction, ``(a,)``, in the order of ``receivers`` and ``senders``.

    latency, jitter : seconds.  bandwidth : bits per second, or inf.  loss : probability that a message is lost.
    names : of the agents, for people.  machines : what the agents are.
    """

    topology: Topology
    latency: Array
    bandwidth: Array
    loss: Array
    jitter: Array
    names: tuple[str, ...]
    machines: Machines

    def __post_init__(self) -> None:
        m, arcs = self.topology.n_agents, self.senders.size
        for name in _OF_A_LINK:
            if getattr(self, name).shape != (arcs,):
                raise InvalidInput(
                    f"{name} has shape {getattr(self, name).shape}; expected ({arcs},), one per direction"
                )
        _check(self, _OF_A_LINK)
        if len(self.names) != m or self.machines.slowdown.size != m:
            raise InvalidInput(
                f"{len(self.names)} names and {self.machines.slowdown.size} machines for {m} agents; give one of each"
            )

    @classmethod
    def of(
        cls,
        topology: Topology,
        *,
        latency: npt.ArrayLike = 0.0,
        bandwidth: npt.ArrayLike = np.inf,
        loss: npt.ArrayLike = 0.0,
        jitter: npt.ArrayLike = 0.0,
        names: tuple[str, ...] | None = None,
        machines: Machines | None = None,
    ) -> Links:
        """All links of a topology; a single number is that of all of them."""
        m, arcs = topology.n_agents, int(topology.adjacency.nnz)
        return cls(
            topology,
            latency=_full(latency, arcs, "latency"),
            bandwidth=_full(bandwidth, arcs, "bandwidth"),
            loss=_full(loss, arcs, "loss"),
            jitter=_full(jitter, arcs, "jitter"),
            names=tuple(map(str, range(m))) if names is None else names,
            machines=Machines.of(m) if machines is None else machines,
        )

    @cached_property
    def receivers(self) -> npt.NDArray[np.int64]:
        """Who hears each direction of a link; rising."""
        links = self.topology.adjacency
        return np.repeat(np.arange(self.topology.n_agents), np.diff(links.indptr))

    @cached_property
    def senders(self) -> npt.NDArray[np.int64]:
        """Who sends over it; rising for each receiver."""
        links = self.topology.adjacency.copy()
        links.sort_indices()
        return links.indices.astype(np.int64)

    def find(self, receivers: npt.NDArray[np.int64], senders: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where the directions ``senders → receivers`` are found; all of them must be links."""
        return np.searchsorted(self._keys, receivers * self.topology.n_agents + senders)

    @cached_property
    def patience(self) -> Array:
        """Seconds from a message that is lost to the next attempt: twice there and back, at least 0.2 s."""
        back = np.minimum(self.find(self.senders, self.receivers), self.latency.size - 1)
        both = self._keys[back] == self.senders * self.topology.n_agents + self.receivers  # a digraph has no way back
        there = self.latency + np.where(both, self.latency[back], self.latency)
        return np.maximum(SHORTEST_PATIENCE, 2.0 * there)

    @cached_property
    def _keys(self) -> npt.NDArray[np.int64]:
        return self.receivers * self.topology.n_agents + self.senders


def _full(given: npt.ArrayLike, size: int, name: str) -> Array:
    values = np.asarray(given, dtype=np.float64)
    if values.shape not in ((), (size,)):
        raise InvalidInput(f"{name} has shape {values.shape}; give one number, or {size}")
    values = np.array(np.broadcast_to(values, (size,)))
    values.flags.writeable = False
    return values


def _check(held: Links | Machines, quantities: Mapping[str, Quantity]) -> None:
    """Raise InvalidInput unless every number is what it may be."""
    for name, quantity in quantities.items():
        values = getattr(held, name)
        fits = quantity.accepts(values)
        if not fits.all():
            raise InvalidInput(f"{name} = {values[int(np.argmin(fits))]:g}: {quantity.wanted}")
