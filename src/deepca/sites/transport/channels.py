"""Read and write frames at either side of a gRPC stream, and set the gRPC options for it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError

from deepca._util.logs import one_line
from deepca.errors import DeepcaError, FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.transport import tls  # noqa: F401 - must come before any import of grpc
from deepca.sites.transport.endpoint import StreamTimes
from deepca.sites.transport.grpc_errors import describe_connection_failure, plain_address

import grpc  # isort: skip
import grpc.aio  # isort: skip

__all__ = [
    "FRAME_LIMIT",
    "METHOD",
    "SERVICE",
    "Channel",
    "ClientChannel",
    "FrameMeter",
    "GrpcOptions",
    "ServerChannel",
    "StreamEnded",
    "event_loop",
    "grpc_options",
    "ignore_frame",
    "with_timeout",
]

SERVICE, METHOD = "deepca.v1.Link", "Talk"
"""gRPC names of the stream."""
GrpcOptions = Sequence[tuple[str, int]]
"""Options of a gRPC server or channel."""
FRAME_LIMIT = 4 << 20
"""Maximum size of a frame, in bytes."""
FrameMeter = Callable[[str, str, int], None]
"""Function of the receiver of a frame that is written, its kind and its size in bytes."""
_T = TypeVar("_T")
_MAX_REFUSAL_CHARACTERS = 1000  # longer refusals are cut, since they would only fill the other side's log
_REFUSAL_TIMEOUT = 0.3  # seconds to deliver a refusal before the stream is closed


class StreamEnded(Exception):
    """A stream has ended.

    Parameters
    ----------
    why : str
        The reason.
    refusal : bool, optional
        Whether one side refused the other.
    """

    def __init__(self, why: str, *, refusal: bool = False) -> None:
        super().__init__(why)
        self.why, self.refusal = why, refusal


def ignore_frame(receiver: str, kind: str, size: int) -> None:
    """Count nothing."""


class Channel(Protocol):
    """One side of a stream; ``who`` and ``where`` are the name and address of the other side."""

    who: str
    where: str

    async def read(self) -> wire.Frame:
        """Return the next frame; raise StreamEnded at the end of the stream, FrameError for malformed data."""
        ...

    async def write(self, frame: wire.Frame) -> None:
        """Write a frame; raise StreamEnded if the stream has ended."""

    async def refuse(self, why: str) -> None:
        """Send the other side the reason why it is refused, and end the stream."""


class ClientChannel:
    """The channel at the side that dialled, the client of gRPC."""

    def __init__(self, call: Any, name: str, address: str, meter: FrameMeter = ignore_frame) -> None:
        self._call, self._meter = call, meter
        self.where, self.who = address, name

    async def read(self) -> wire.Frame:
        """Return the next frame; raise StreamEnded at the end of the stream, FrameError for malformed data."""
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._stream_ended(error) from None
        if data is grpc.aio.EOF:
            raise StreamEnded(f"{self.who} closed the stream")
        return _parse(data, self.who)

    async def write(self, frame: wire.Frame) -> None:
        """Write a frame."""
        content = _counted(frame, self.who, self._meter)
        try:
            await self._call.write(content)
        except grpc.aio.AioRpcError as error:
            raise self._stream_ended(error) from None
        except asyncio.InvalidStateError:
            # the call is over; reading raises the reason
            while True:
                await self.read()

    async def refuse(self, why: str) -> None:
        """Send a refusal and wait briefly for it to be delivered."""
        try:
            await self.write(wire.Frame(refusal=wire.Refusal(why=why[:_MAX_REFUSAL_CHARACTERS])))
            await self._call.done_writing()
            async with asyncio.timeout(_REFUSAL_TIMEOUT):
                await self._drain()
        except (StreamEnded, DeepcaError, TimeoutError, asyncio.InvalidStateError, grpc.aio.AioRpcError):
            pass

    async def _drain(self) -> None:
        while await self._call.read() is not grpc.aio.EOF:
            pass

    def _stream_ended(self, error: grpc.aio.AioRpcError) -> StreamEnded:
        failure = describe_connection_failure(self.who, self.where, error.details() or error.code().name)
        return StreamEnded(failure.why, refusal=failure.refusal)


class ServerChannel:
    """The channel at the side that was dialled, the server of gRPC."""

    def __init__(self, context: Any, meter: FrameMeter = ignore_frame) -> None:
        self._context, self._meter = context, meter
        self.who = "the other side"
        self.where = plain_address(context.peer())

    async def read(self) -> wire.Frame:
        """Return the next frame; raise StreamEnded at the end of the stream, FrameError for malformed data."""
        data = await self._context.read()
        if data is grpc.aio.EOF:
            raise StreamEnded(f"the connection to {self.who} was lost")
        return _parse(data, self.who)

    async def write(self, frame: wire.Frame) -> None:
        """Write a frame."""
        content = _counted(frame, self.who, self._meter)
        try:
            await self._context.write(content)
        except (grpc.aio.UsageError, grpc.aio.BaseError, asyncio.InvalidStateError):
            raise StreamEnded(f"the connection to {self.who} was lost") from None

    async def refuse(self, why: str) -> None:
        """Send a refusal; gRPC ends the stream when the call returns."""
        with contextlib.suppress(StreamEnded, TimeoutError):
            async with asyncio.timeout(_REFUSAL_TIMEOUT):
                await self.write(wire.Frame(refusal=wire.Refusal(why=why[:_MAX_REFUSAL_CHARACTERS])))


def _counted(frame: wire.Frame, receiver: str, meter: FrameMeter) -> bytes:
    """Return a serialized frame, and count it."""
    content: bytes = frame.SerializeToString()
    meter(receiver, frame.WhichOneof("kind") or "", len(content))
    return content


def _parse(data: bytes, who: str) -> wire.Frame:
    try:
        frame: wire.Frame = wire.Frame.FromString(data)
    except DecodeError:
        raise FrameError(f"{who} sent a malformed frame") from None
    if frame.WhichOneof("kind") == "refusal":
        raise StreamEnded(f"{who} refuses the connection: {one_line(frame.refusal.why)}", refusal=True)
    return frame


async def with_timeout(seconds: float, step: Coroutine[Any, Any, _T], otherwise: str) -> _T:
    """Return the result of ``step``; raise StreamEnded with the reason ``otherwise`` if it takes too long."""
    try:
        async with asyncio.timeout(seconds):  # asyncio.wait_for in Python 3.11 may swallow a cancellation
            return await step
    except TimeoutError:
        raise StreamEnded(otherwise) from None


@functools.cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process, which runs in a thread until the process ends.

    gRPC has one event queue per process, which any loop may drain. An event for a closed loop would stop the queue for
    all other loops, so there is a single loop, and it is closed only at exit.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="streams", daemon=True)
    thread.start()

    def end() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(1.0)
        if not thread.is_alive():
            loop.close()

    atexit.register(end)
    return loop


def grpc_options(timeouts: StreamTimes) -> dict[str, int]:
    """Return the gRPC options for both sides of a connection."""
    step, ping, silence = (round(1000 * seconds) for seconds in (timeouts.step, timeouts.ping, timeouts.silence))
    return {
        "grpc.so_reuseport": 0,  # otherwise two agents would silently share a port
        "grpc.enable_retries": 0,
        "grpc.enable_http_proxy": 0,
        "grpc.service_config_disable_resolution": 1,
        "grpc.use_local_subchannel_pool": 1,  # a new connection per attempt, with the current certificate
        "grpc.max_receive_message_length": FRAME_LIMIT,
        "grpc.max_send_message_length": FRAME_LIMIT,
        "grpc.max_concurrent_streams": 4,
        "grpc.server_handshake_timeout_ms": step,
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": step,  # also limits the time of one attempt
        "grpc.max_reconnect_backoff_ms": 500,
        "grpc.keepalive_time_ms": ping,
        "grpc.keepalive_timeout_ms": silence,
        "grpc.http2.ping_timeout_ms": silence,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        "grpc.http2.max_ping_strikes": 0,
        "grpc.http2.min_ping_interval_without_data_ms": 100,
        "grpc.http2.lookahead_bytes": FRAME_LIMIT,  # a whole frame may be in flight over long distances
    }
