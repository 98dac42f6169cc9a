"""Describe the speed and loss of links, and the speed of agents.

A link from agent i to agent j carries one message after another: it takes ``8 · bytes / bandwidth`` seconds to put a
message on the line, then ``latency`` (plus up to ``jitter``, uniformly distributed) until the message arrives. Links do
not affect each other, unless an agent has an ``uplink`` that all its messages pass first. A message is lost with
probability ``loss`` and is sent again ``retransmission_timeout`` seconds later, as often as necessary.
:mod:`deepca.planning.timed` runs algorithms over such links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array
from deepca._util.units import counted
from deepca.errors import InvalidInput, ParameterError
from deepca.topology.graph import Topology

__all__ = ["MAX_MAGNITUDE", "MIN_RETRANSMISSION_TIMEOUT", "Links", "Machines", "ValueRange"]

MAX_MAGNITUDE = 1e300
"""Largest number that describes a speed or a time; its reciprocal is the smallest positive one.

Larger numbers are mistakes, and sums over a long run could overflow.
"""

MIN_RETRANSMISSION_TIMEOUT = 0.2
"""Minimum time in seconds after which a lost message is sent again: the minimum of TCP on Linux."""


@dataclass(frozen=True)
class ValueRange:
    """Range of a number that describes a link or an agent: by default, from 0 to `MAX_MAGNITUDE`.

    Parameters
    ----------
    expected : str
        Description of the accepted values, for messages.
    positive : bool, default=False
        Whether the range begins at ``1 / MAX_MAGNITUDE`` instead of 0.
    below, at_most : float
        Exclusive and inclusive upper limit.
    infinite : bool, default=False
        Whether inf is accepted as well.
    """

    expected: str
    positive: bool = False
    below: float = np.inf
    at_most: float = MAX_MAGNITUDE
    infinite: bool = False

    def accepts(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return for each value whether it is accepted.

        Parameters
        ----------
        values : array_like
            The values.

        Returns
        -------
        array of bool
            Mask of the accepted values.
        """
        given = np.asarray(values, dtype=np.float64)
        finite = (given >= (1.0 / MAX_MAGNITUDE if self.positive else 0.0)) & (given <= self.at_most)
        return np.asarray((finite & (given < self.below)) | (self.infinite & (given == np.inf)))

    def check(self, name: str, value: object) -> float:
        """Return a number as a float after checking it.

        Parameters
        ----------
        name : str
            Name of the parameter, for messages.
        value : object
            Its value.

        Returns
        -------
        float
            The number.

        Raises
        ------
        ParameterError
            If the value is not a number in this range.
        """
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):  # OverflowError: an int that no float can represent
            raise ParameterError(name, value, f"give {self.expected}") from None
        if not self.accepts(number):
            raise ParameterError(name, value, f"give {self.expected}")
        return number


_RATE = ValueRange("bits per second from 1e-300 to 1e300, or inf", positive=True, infinite=True)
_SECONDS = ValueRange("seconds from 0 to 1e300")
_LINK_RANGES = {
    "latency": _SECONDS,
    "bandwidth": _RATE,
    "loss": ValueRange("a probability, 0 or more and below 1", below=1.0),
    "jitter": _SECONDS,
}
_AGENT_RANGES = {
    "slowdown": ValueRange("a number from 1e-300 to 1e300, such as 3 for three times as slow", positive=True),
    "stall": ValueRange("a probability, 0 or more and at most 1", at_most=1.0),
    "pause": _SECONDS,
    "uplink": _RATE,
}


@dataclass(frozen=True, eq=False)
class Machines:
    """Speed of the agents' machines, one number per agent.

    Parameters
    ----------
    slowdown : array of shape (m,)
        Factor by which computing takes an agent longer than usual.
    stall : array of shape (m,)
        Probability that the agent pauses when it multiplies, as on a busy machine.
    pause : array of shape (m,)
        Duration of such a pause in seconds.
    uplink : array of shape (m,)
        Bits per second of a line through which all messages of an agent pass, one after another; inf without one.

    Raises
    ------
    ParameterError
        If a number is outside its range.
    """

    slowdown: Array
    stall: Array
    pause: Array
    uplink: Array

    def __post_init__(self) -> None:
        """Check the ranges of all numbers."""
        _check(self, _AGENT_RANGES)

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
        """Create the machines of m agents from one number for all, or one per agent.

        Parameters
        ----------
        m : int
            Number of agents.
        slowdown, stall, pause, uplink : float or array of shape (m,)
            As for :class:`Machines`.

        Returns
        -------
        Machines
            The machines.
        """
        return cls(
            slowdown=_full(slowdown, m, "slowdown"),
            stall=_full(stall, m, "stall"),
            pause=_full(pause, m, "pause"),
            uplink=_full(uplink, m, "uplink"),
        )


@renamed_attributes(patience="retransmission_timeout")
@dataclass(frozen=True, eq=False)
class Links:
    """Links of a topology, with one entry per direction, in the order of ``receivers`` and ``senders``.

    Parameters
    ----------
    topology : Topology
        The network.
    latency : array of shape (a,)
        Seconds until a message arrives.
    bandwidth : array of shape (a,)
        Bits per second, or inf.
    loss : array of shape (a,)
        Probability that a message is lost.
    jitter : array of shape (a,)
        Largest additional latency in seconds.
    names : tuple of str
        Names of the agents, for display.
    machines : Machines
        Speed of the agents.

    Raises
    ------
    InvalidInput
        If a number is outside its range, or an array or ``names`` has the wrong length.

    Examples
    --------
    >>> import deepca
    >>> links = deepca.Links.of(deepca.topology.ring(4), latency=0.03, bandwidth=30e6)
    >>> links.senders.size
    8
    """

    topology: Topology
    latency: Array
    bandwidth: Array
    loss: Array
    jitter: Array
    names: tuple[str, ...]
    machines: Machines

    def __post_init__(self) -> None:
        """Check lengths and ranges of all arrays."""
        m, arcs = self.topology.n_agents, self.senders.size
        for name in _LINK_RANGES:
            if getattr(self, name).shape != (arcs,):
                shape = getattr(self, name).shape
                raise InvalidInput(
                    f"{name} has shape {shape}; give one number per direction, ({arcs},)", parameter=name, value=shape
                )
        _check(self, _LINK_RANGES)
        for name, count in (("names", len(self.names)), ("machines", self.machines.slowdown.size)):
            if count != m:
                raise InvalidInput(
                    f"got {count} {name} for {counted(m, 'agent')}; give one per agent", parameter=name, value=count
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
        """Create the links of a topology from one number for all, or one per direction.

        Parameters
        ----------
        topology : Topology
            The network.
        latency, bandwidth, loss, jitter : float or array of shape (a,)
            As for :class:`Links`.
        names : tuple of str, optional
            Names of the agents; their indices by default.
        machines : Machines, optional
            Speed of the agents; equal by default.

        Returns
        -------
        Links
            The links.
        """
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
        """Receiver of each direction, ascending."""
        links = self.topology.adjacency
        return np.repeat(np.arange(self.topology.n_agents), np.diff(links.indptr))

    @cached_property
    def senders(self) -> npt.NDArray[np.int64]:
        """Sender of each direction, ascending for each receiver."""
        links = self.topology.adjacency.copy()
        links.sort_indices()
        return links.indices.astype(np.int64)

    def find(self, receivers: npt.NDArray[np.int64], senders: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the positions of directions in the arrays of this object.

        Parameters
        ----------
        receivers, senders : array of int
            The two ends of each direction, which must be linked.

        Returns
        -------
        array of int
            Position of each direction.
        """
        return np.searchsorted(self._keys, receivers * self.topology.n_agents + senders)

    @cached_property
    def retransmission_timeout(self) -> Array:
        """Seconds until a lost message is sent again: twice the round-trip time, but at least 0.2 s."""
        back = np.minimum(self.find(self.senders, self.receivers), self.latency.size - 1)
        # without a link in the opposite direction, assume the same latency
        both = self._keys[back] == self.senders * self.topology.n_agents + self.receivers
        there = self.latency + np.where(both, self.latency[back], self.latency)
        return np.maximum(MIN_RETRANSMISSION_TIMEOUT, 2.0 * there)

    @cached_property
    def _keys(self) -> npt.NDArray[np.int64]:
        return self.receivers * self.topology.n_agents + self.senders


def _full(given: npt.ArrayLike, size: int, name: str) -> Array:
    """Return one number, or ``size`` numbers, as a read-only array of ``size`` entries.

    Raises ParameterError if the values are not numbers, and InvalidInput if they have any other shape.
    """
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:  # OverflowError: an int that no float can represent
        expected = {**_LINK_RANGES, **_AGENT_RANGES}[name].expected
        raise ParameterError(name, given, f"give {expected} ({error})") from None
    if values.shape not in ((), (size,)):
        raise InvalidInput(
            f"{name} has shape {values.shape}; give one number, or {size} numbers", parameter=name, value=values.shape
        )
    values = np.array(np.broadcast_to(values, (size,)))
    values.flags.writeable = False
    return values


def _check(instance: Links | Machines, ranges: Mapping[str, ValueRange]) -> None:
    """Raise ParameterError unless every number is in its range."""
    for name, accepted in ranges.items():
        values = getattr(instance, name)
        fits = accepted.accepts(values)
        if not fits.all():
            raise ParameterError(name, float(values[int(np.argmin(fits))]), f"give {accepted.expected}")
