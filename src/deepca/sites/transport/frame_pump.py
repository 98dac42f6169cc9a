"""Carry frames over an open stream, both ways, until something ends it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from deepca.errors import DeepcaError
from deepca.sites.transport.channels import Channel, StreamEnded
from deepca.sites.transport.credentials import CurrentCredentials
from deepca.sites.transport.endpoint import Endpoint
from deepca.sites.transport.neighbors import Neighbor, OpenStream
from deepca.sites.transport.refusals import RefusalReporter

__all__ = ["FramePump"]

_FAREWELL = 0.5  # seconds at most for a refusal to be written, and for the tasks of a stream to end


@dataclass(frozen=True)
class _Ending:
    """The end of a stream: why, whether the endpoint hears of a refusal, and which refusal the other side is sent."""

    why: str
    report: bool = False
    last_words: str = ""


class FramePump:
    """Moves frames between channels and the endpoint, and newer lists of revoked certificates beside them.

    Used in the event loop's thread. Never more than one frame per neighbour waits here.
    """

    def __init__(
        self, site: str, endpoint: Endpoint, credentials: CurrentCredentials, refusals: RefusalReporter
    ) -> None:
        """``site`` : name of this one."""
        self._site, self._endpoint = site, endpoint
        self._credentials, self._refusals = credentials, refusals

    async def run(self, channel: Channel, neighbor: Neighbor, stream: OpenStream) -> None:
        """Carry frames until the stream ends, and say why it did."""
        neighbor.open(stream)
        self._refusals.forget(neighbor)
        self._endpoint.opened(neighbor.peer.index)
        reader = asyncio.create_task(self._read(channel, neighbor, stream))
        writer = asyncio.create_task(self._write(channel, neighbor, stream))
        ending = _Ending(f"the connection to {neighbor.peer.name} is lost")
        try:
            ends: set[asyncio.Future[Any]] = {reader, writer, stream.over}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if stream.over in done:
                ending = _Ending(stream.over.result())
            else:
                ending = self._ending(next(task.exception() for task in (reader, writer) if task in done))
            if ending.report:
                self._refusals.report(neighbor, channel.where, ending.why)
        finally:
            neighbor.close(stream, ending.why)
            if neighbor.stream is None:
                neighbor.trouble = ending.why
            reader.cancel()
            if ending.last_words and not writer.done():
                stream.last_words = ending.last_words
                neighbor.wake()
                await asyncio.wait({writer}, timeout=_FAREWELL)
            writer.cancel()
            await asyncio.wait({reader, writer}, timeout=_FAREWELL)
            for task in (reader, writer):
                if task.done() and not task.cancelled():
                    task.exception()  # or asyncio logs it as never retrieved

    def _ending(self, failure: BaseException | None) -> _Ending:
        """Return what a failure of the reader or the writer means for the stream."""
        match failure:
            case StreamEnded():
                return _Ending(failure.why, report=failure.refusal)
            case DeepcaError():
                return _Ending(str(failure), report=True, last_words=str(failure))
            case _:
                fault = f"a fault within {self._site}"
                return _Ending(f"{fault}: {failure!r}", report=True, last_words=f"{fault}; its log says more")

    async def _read(self, channel: Channel, neighbor: Neighbor, stream: OpenStream) -> None:
        index, received = neighbor.peer.index, self._endpoint.received
        while True:
            frame = await channel.read()
            if neighbor.stream is not stream:
                return
            if frame.WhichOneof("kind") == "revocations":
                self._credentials.adopt(frame.revocations.list, neighbor.peer.name, stream)
            else:
                received(index, frame)

    async def _write(self, channel: Channel, neighbor: Neighbor, stream: OpenStream) -> None:
        index, next_frame, woken = neighbor.peer.index, self._endpoint.next_frame, neighbor.woken
        newer_list = self._credentials.newer_list
        while True:
            woken.clear()
            if neighbor.stream is not stream:
                if stream.last_words:
                    await channel.refuse(stream.last_words)
                return
            frame = newer_list(stream) or next_frame(index)
            if frame is None:
                await woken.wait()
            else:
                await channel.write(frame)
