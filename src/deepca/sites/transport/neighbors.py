"""The neighbours of a site, and the open stream to each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deepca.sites.transport.endpoint import Endpoint, Peer

__all__ = ["Neighbor", "NeighborTable", "OpenStream"]


@dataclass(eq=False)
class OpenStream:
    """A stream both of whose sides are known.

    certificate : of the other side, DER; empty without encryption.  over : why, once the stream has to end.
    their_list : number of the newest list of revoked certificates that the other side has, or was sent.
    last_words : the refusal that the other side is sent after the end; empty for none.
    """

    certificate: bytes
    over: asyncio.Future[str]
    their_list: int = 0
    last_words: str = ""


class Neighbor:
    """State that is kept of a neighbour from stream to stream; changed in the event loop's thread, ``scheduled`` apart.

    stream : the open one, if any.  trouble : why there is none, where that is known.
    woken : set when there may be something to write.  scheduled : a call of wake is under way.
    """

    def __init__(self, peer: Peer, endpoint: Endpoint) -> None:
        self.peer, self._endpoint = peer, endpoint
        self.stream: OpenStream | None = None
        self.trouble: str | None = None
        self.woken = asyncio.Event()
        self.scheduled = False

    def wake(self) -> None:
        """Have the writer of the open stream look for frames."""
        self.scheduled = False
        self.woken.set()

    def open(self, stream: OpenStream) -> None:
        """Make this the open stream, in place of any earlier one."""
        if self.stream is not None:
            self.close(self.stream, f"{self.peer.name} has made a new stream")
        self.stream, self.trouble = stream, None

    def close(self, stream: OpenStream, why: str) -> None:
        """End a stream and tell the endpoint, unless it is no longer the open one."""
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
        return iter(self._by_index.values())

    def __getitem__(self, index: int) -> Neighbor:
        return self._by_index[index]

    def named(self, name: str) -> Neighbor | None:
        """Return the neighbour of this name; None if there is none."""
        return self._by_name.get(name)

    def wake_scheduled(self) -> None:
        """Wake those for which that was asked."""
        for neighbor in self:
            if neighbor.scheduled:
                neighbor.wake()

    def wake_all(self) -> None:
        """Wake everyone."""
        for neighbor in self:
            neighbor.wake()

    def close_all(self, why: str) -> None:
        """End every open stream."""
        for neighbor in self:
            if neighbor.stream is not None:
                neighbor.close(neighbor.stream, why)
