"""The contract between an agent's network and what moves its messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from deepca._util.typing import Array

__all__ = ["Message", "Tag", "Transport"]


@dataclass(frozen=True, order=True)
class Tag:
    """Which exchange a message belongs to. The same on both sides, and the same again when a step is retried.

    phase : what the exchange is for ("step", "restart", …); two phases of one iteration never share a tag.
    """

    epoch: int
    phase: str
    t: int
    round: int


@dataclass(frozen=True)
class Message:
    """An array (or none), and the values that ride along to agreement.

    The payload is float64, or float32 or float16 where messages are coded (:mod:`deepca.network.compression`), and
    travels as it is.
    """

    payload: npt.NDArray[Any] | None
    riders: tuple[Array, ...] = ()


class Transport(Protocol):
    """Moves messages between one agent and its neighbours.

    reliable : whether a message that was sent is sure to arrive.
    """

    @property
    def reliable(self) -> bool: ...

    def exchange(self, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int], /) -> dict[int, Message]:
        """Send ``outgoing`` (by receiver) and return one message with the same tag from each of ``sources``.

        Raises PeerTimeout naming who did not answer, PeerFailed if another agent gave up, EpochChanged if the
        network has moved on to a new epoch.
        """
        ...
