"""Transfer frames over an open stream, in both directions, until it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from deepca.errors import DeepcaError, FrameError
from deepca.sites.transport.channels import Channel, StreamEnded
from deepca.sites.transport.credentials import CurrentCredentials
from deepca.sites.transport.endpoint import Endpoint
from deepca.sites.transport.neighbors import Neighbor, OpenStream
from deepca.sites.transport.refusals import RefusalReporter

__all__ = ["FramePump"]

_CLOSE_TIMEOUT = 0.5  # seconds allowed for writing a refusal, and again for the tasks of a stream to end


@dataclass(frozen=True)
class _Ending:
    """Reason why a stream ended, and whom to tell about it."""

    why: str  # reason
    report: bool = False  # whether to report it to the endpoint as a refusal
    final_refusal: str = ""  # refusal to send to the other side


class FramePump:
    """Transfer frames between channels and the endpoint, and newer revocation lists between sites.

    Used in the event loop's thread only. At most one frame per neighbour is buffered here. ``site`` is the name of this
    site.
    """

    def __init__(
        self, site: str, endpoint: Endpoint, credentials: CurrentCredentials, refusals: RefusalReporter
    ) -> None:
        self._site, self._endpoint = site, endpoint
        self._credentials, self._refusals = credentials, refusals

    async def run(self, channel: Channel, neighbor: Neighbor, stream: OpenStream) -> None:
        """Transfer frames until the stream ends, and record why it ended."""
        neighbor.open(stream)
        self._refusals.forget(neighbor)
        self._endpoint.opened(neighbor.peer.index)
        reader = asyncio.create_task(self._read(channel, neighbor, stream))
        writer = asyncio.create_task(self._write(channel, neighbor, stream))
        ending = _Ending(f"the connection to {neighbor.peer.name} was lost")
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
                neighbor.failure = ending.why
            reader.cancel()
            if ending.final_refusal and not writer.done():
                stream.final_refusal = ending.final_refusal
                neighbor.wake()
                await asyncio.wait({writer}, timeout=_CLOSE_TIMEOUT)
            writer.cancel()
            await asyncio.wait({reader, writer}, timeout=_CLOSE_TIMEOUT)
            for task in (reader, writer):
                if task.done() and not task.cancelled():
                    task.exception()  # otherwise asyncio logs it as never retrieved

    def _ending(self, failure: BaseException | None) -> _Ending:
        """Return how a failure of the reader or the writer ends the stream."""
        match failure:
            case StreamEnded():
                return _Ending(failure.why, report=failure.refusal)
            case DeepcaError():
                return _Ending(str(failure), report=True, final_refusal=str(failure))
            case _:
                fault = f"internal error at {self._site}"
                return _Ending(f"{fault}: {failure!r}", report=True, final_refusal=f"{fault}; see the log there")

    async def _read(self, channel: Channel, neighbor: Neighbor, stream: OpenStream) -> None:
        index, received = neighbor.peer.index, self._endpoint.received
        while True:
            frame = await channel.read()
            if neighbor.stream is not stream:
                return
            if frame.WhichOneof("kind") == "revocations":
                self._credentials.adopt(frame.revocations.list, neighbor.peer.name, stream)
            else:
                try:
                    received(index, frame)
                except FrameError as error:
                    raise FrameError(f"{neighbor.peer.name} sent {error}", intact=error.intact) from error

    async def _write(self, channel: Channel, neighbor: Neighbor, stream: OpenStream) -> None:
        index, next_frame, woken = neighbor.peer.index, self._endpoint.next_frame, neighbor.woken
        newer_revocation_list = self._credentials.newer_revocation_list
        while True:
            woken.clear()
            if neighbor.stream is not stream:
                if stream.final_refusal:
                    await channel.refuse(stream.final_refusal)
                return
            frame = newer_revocation_list(stream) or next_frame(index)
            if frame is None:
                await woken.wait()
            else:
                await channel.write(frame)
