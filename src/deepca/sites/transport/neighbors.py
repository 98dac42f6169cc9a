"""The neighbours of a site, and the open stream to each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deepca.sites.transport.endpoint import Endpoint, Peer

__all__ = ["Neighbor", "NeighborTable", "OpenStream"]


@dataclass(eq=False)
class OpenStream:
    """A stream whose two sides have been authenticated.

    Parameters
    ----------
    certificate : bytes
        Certificate of the other side (DER); empty without encryption.
    over : asyncio.Future
        Its result is the reason why the stream has to end.
    their_revocation_list_number : int
        Number of the newest revocation list that the other side has or was sent.
    final_refusal : str
        Refusal to send to the other side before the stream ends; empty for none.
    """

    certificate: bytes
    over: asyncio.Future[str]
    their_revocation_list_number: int = 0
    final_refusal: str = ""


class Neighbor:
    """State of a neighbour across streams; changed only in the event loop's thread, except for ``scheduled``.

    Attributes
    ----------
    stream : OpenStream or None
        The open stream.
    failure : str or None
        Why the stream is missing, if known.
    woken : asyncio.Event
        Set when there may be something to write.
    scheduled : bool
        Whether a call of ``wake`` is pending.
    """

    def __init__(self, peer: Peer, endpoint: Endpoint) -> None:
        self.peer, self._endpoint = peer, endpoint
        self.stream: OpenStream | None = None
        self.failure: str | None = None
        self.woken = asyncio.Event()
        self.scheduled = False

    def wake(self) -> None:
        """Make the writer of the open stream ask for frames."""
        self.scheduled = False
        self.woken.set()

    def open(self, stream: OpenStream) -> None:
        """Make this the open stream, in place of any earlier one."""
        if self.stream is not None:
            self.close(self.stream, f"{self.peer.name} opened a new stream")
        self.stream, self.failure = stream, None

    def close(self, stream: OpenStream, why: str) -> None:
        """End a stream and notify the endpoint, unless another stream has replaced it."""
        if self.stream is stream:
            self.stream = None
            if not stream.over.done():
                stream.over.set_result(why)
            self._endpoint.closed(self.peer.index, why)


class NeighborTable:
    """All neighbours of a site, by index and by name."""

    def __init__(self, peers: Sequence[Peer], endpoint: Endpoint) -> None:
        self._by_index = {peer.index: Neighbor(peer, endpoint) for peer in peers}
        self._by_name = {peer.name: self._by_index[peer.index] for peer in peers}

    def __iter__(self) -> Iterator[Neighbor]:
        """Iterate over all neighbours."""
        return iter(self._by_index.values())

    def __getitem__(self, index: int) -> Neighbor:
        """Return the neighbour with this index in the list of sites."""
        return self._by_index[index]

    def named(self, name: str) -> Neighbor | None:
        """Return the neighbour with this name, or None."""
        return self._by_name.get(name)

    def wake_scheduled(self) -> None:
        """Wake the neighbours for which a call of ``wake`` is pending."""
        for neighbor in self:
            if neighbor.scheduled:
                neighbor.wake()

    def wake_all(self) -> None:
        """Wake all neighbours."""
        for neighbor in self:
            neighbor.wake()

    def close_all(self, why: str) -> None:
        """End every open stream."""
        for neighbor in self:
            if neighbor.stream is not None:
                neighbor.close(neighbor.stream, why)
