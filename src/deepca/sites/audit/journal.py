"""Interface through which a link reports the messages that it sends and receives."""

from __future__ import annotations

from typing import Protocol

from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel

__all__ = ["NO_JOURNAL", "LinkJournal"]


class LinkJournal(Protocol):
    """Records the messages of one link; called with the node's lock held, so it must not wait.

    Within a session, messages are numbered from 1 at both ends.
    """

    def sent(self, session: int, seq: int, parcel: Parcel, /) -> None:
        """Record that the first Part of a message is handed to the stream; what is sent again is not recorded."""
        ...

    def received(self, session: int, seq: int, header: bytes, body: bytes | bytearray, /) -> None:
        """Record that a message has arrived as a whole."""
        ...

    def continued_as(self, incarnation: Incarnation, /) -> None:
        """Record that this agent goes on as another incarnation."""
        ...


class _NoJournal:
    """Record nothing."""

    def sent(self, session: int, seq: int, parcel: Parcel, /) -> None:
        """Ignore a message."""

    def received(self, session: int, seq: int, header: bytes, body: bytes | bytearray, /) -> None:
        """Ignore a message."""

    def continued_as(self, incarnation: Incarnation, /) -> None:
        """Ignore an incarnation."""


NO_JOURNAL: LinkJournal = _NoJournal()
"""The journal of a link that is not recorded."""
