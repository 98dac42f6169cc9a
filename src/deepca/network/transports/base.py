"""Define the interface between an agent's network and its transport."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt

from deepca._util.typing import Array

__all__ = ["Combine", "Message", "RelayStep", "Tag", "Transport", "Visibility"]


@dataclass(frozen=True, order=True)
class Tag:
    """Identifier of an exchange, the same at both ends and whenever a step is retried.

    Parameters
    ----------
    epoch : int
        Incarnation of the run.
    phase : str
        Purpose of the exchange ("step", "restart", …); two phases of one iteration never share a tag.
    t : int
        Iteration.
    round : int
        Index of the exchange within the phase, counted from 0.
    """

    epoch: int
    phase: str
    t: int
    round: int


Visibility = Literal["masked", "public", "structural", "open"]
"""Visibility of the numbers in a message to its receiver.

"masked": nothing, since masks hide the numbers; "public": totals and what follows from them, which all agents know;
"structural": largest or smallest values that all agents flood, which must not depend on the rows of a single one;
"open": numbers of its sender.
"""


@dataclass(frozen=True)
class Message:
    """An array and the values that ride along with it.

    Parameters
    ----------
    payload : ndarray or None
        The array: float64, or float32 or float16 if messages are compressed (:mod:`deepca.network.compression`).
    riders : tuple of ndarray
        Values of pending reductions.
    visibility : {"masked", "public", "structural", "open"}, default="open"
        What the payload shows to its receiver. Transports may record it, but do not send it; values that ride along
        with a payload in a private network are structural.
    """

    payload: npt.NDArray[Any] | None
    riders: tuple[Array, ...] = ()
    visibility: Visibility = "open"


@dataclass(frozen=True)
class RelayStep:
    """One exchange of a relay.

    Parameters
    ----------
    tag : Tag
        Identifier of the exchange.
    receivers, sources : tuple of int
        Neighbours to send to and to receive from.
    """

    tag: Tag
    receivers: tuple[int, ...]
    sources: tuple[int, ...]


Combine = Callable[[int, Message, dict[int, Message]], Message]
"""Function of the index of a step, the message sent in it, and the messages received; returns the next message."""


class Transport(Protocol):
    """Interface for moving messages between one agent and its neighbours.

    Classes that derive from it need only ``reliable`` and ``exchange``.
    """

    @property
    def reliable(self) -> bool:
        """True if a message that was sent is certain to arrive."""
        ...

    def exchange(self, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int], /) -> dict[int, Message]:
        """Send messages to neighbours and return one message with the same tag from each source.

        Parameters
        ----------
        tag : Tag
            Identifier of the exchange.
        outgoing : mapping of int to Message
            Messages by receiver.
        sources : collection of int
            Neighbours from which to receive.

        Returns
        -------
        dict of int to Message
            Received messages by source.

        Raises
        ------
        PeerTimeout
            If a source does not answer in time.
        PeerFailed
            If another agent failed.
        EpochChanged
            If the network has entered a new epoch.
        """
        ...

    def relay(self, steps: Sequence[RelayStep], message: Message, combine: Combine, /) -> Message:
        """Run several exchanges, each of which sends what the one before it has led to.

        Parameters
        ----------
        steps : sequence of RelayStep
            The exchanges.
        message : Message
            Message to send in the first of them.
        combine : callable
            Returns the message to send next. It must be short and may not wait: a transport may call it in a thread of
            its own, but never twice at a time, and not after this method has returned.

        Returns
        -------
        Message
            What ``combine`` returned for the last step; `message` without any step.

        Raises
        ------
        Exception
            As :meth:`exchange`, and whatever ``combine`` raises.
        """
        for index, step in enumerate(steps):
            received = self.exchange(step.tag, dict.fromkeys(step.receivers, message), step.sources)
            message = combine(index, message, received)
        return message
