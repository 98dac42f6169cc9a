"""The two sides of a gRPC stream as frames, and how gRPC is set up for it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError

from deepca._util.logs import one_line
from deepca.errors import DeepcaError, FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.transport import tls  # noqa: F401 - first of all that import grpc
from deepca.sites.transport.endpoint import StreamTimes
from deepca.sites.transport.grpc_errors import connection_trouble, plain_address

import grpc  # isort: skip
import grpc.aio  # isort: skip

__all__ = [
    "FRAME_LIMIT",
    "METHOD",
    "SERVICE",
    "Accepted",
    "Channel",
    "Dialled",
    "GrpcOptions",
    "StreamEnded",
    "event_loop",
    "usual_options",
    "within",
]

SERVICE, METHOD = "deepca.v1.Link", "Talk"
"""Names by which gRPC knows a stream."""
GrpcOptions = Sequence[tuple[str, int]]
"""Options of a gRPC server or channel."""
FRAME_LIMIT = 4 << 20
"""Bytes that a frame may have."""
_T = TypeVar("_T")


class StreamEnded(Exception):
    """A stream has come to its end. ``refusal`` : whether somebody was turned away."""

    def __init__(self, why: str, *, refusal: bool = False) -> None:
        super().__init__(why)
        self.why, self.refusal = why, refusal


class Channel(Protocol):
    """A stream as one side sees it; read and write raise ``StreamEnded``. ``who``, ``where`` : the other side."""

    who: str
    where: str

    async def read(self) -> wire.Frame: ...

    async def write(self, frame: wire.Frame) -> None: ...

    async def refuse(self, why: str) -> None:
        """Says why, and ends the stream."""


class Dialled:
    """The side that has dialled."""

    def __init__(self, call: Any, name: str, address: str) -> None:
        self._call = call
        self.where, self.who = address, name

    async def read(self) -> wire.Frame:
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._ended(error) from None
        if data is grpc.aio.EOF:
            raise StreamEnded(f"{self.who} has closed the stream")
        return _parse(data, self.who)

    async def write(self, frame: wire.Frame) -> None:
        try:
            await self._call.write(frame.SerializeToString())
        except grpc.aio.AioRpcError as error:
            raise self._ended(error) from None
        except asyncio.InvalidStateError:
            # the call is over; reading tells why
            while True:
                await self.read()

    async def refuse(self, why: str) -> None:
        try:
            await self.write(wire.Frame(refusal=wire.Refusal(why=why[:1000])))
            await self._call.done_writing()
            async with asyncio.timeout(0.3):
                await self._drain()
        except (StreamEnded, DeepcaError, TimeoutError, asyncio.InvalidStateError, grpc.aio.AioRpcError):
            pass

    async def _drain(self) -> None:
        while await self._call.read() is not grpc.aio.EOF:
            pass

    def _ended(self, error: grpc.aio.AioRpcError) -> StreamEnded:
        trouble = connection_trouble(self.who, self.where, error.details() or error.code().name)
        return StreamEnded(trouble.why, refusal=trouble.refusal)


class Accepted:
    """The side that was dialled."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.who = "the other side"
        self.where = plain_address(context.peer())

    async def read(self) -> wire.Frame:
        data = await self._context.read()
        if data is grpc.aio.EOF:
            raise StreamEnded(f"the connection to {self.who} is lost")
        return _parse(data, self.who)

    async def write(self, frame: wire.Frame) -> None:
        try:
            await self._context.write(frame.SerializeToString())
        except (grpc.aio.UsageError, grpc.aio.BaseError, asyncio.InvalidStateError):
            raise StreamEnded(f"the connection to {self.who} is lost") from None

    async def refuse(self, why: str) -> None:
        with contextlib.suppress(StreamEnded, TimeoutError):
            async with asyncio.timeout(0.3):
                await self.write(wire.Frame(refusal=wire.Refusal(why=why[:1000])))


def _parse(data: bytes, who: str) -> wire.Frame:
    try:
        frame: wire.Frame = wire.Frame.FromString(data)
    except DecodeError:
        raise FrameError(f"{who} has sent what is no frame") from None
    if frame.WhichOneof("kind") == "refusal":
        raise StreamEnded(f"{who} refuses: {one_line(frame.refusal.why)}", refusal=True)
    return frame


async def within(seconds: float, step: Coroutine[Any, Any, _T], otherwise: str) -> _T:
    try:
        async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a cancellation
            return await step
    except TimeoutError:
        raise StreamEnded(otherwise) from None


@functools.cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process, in a thread of its own, to the end of the process.

    gRPC has one queue of events per process, which any of its loops empties. An event for a loop that is closed by then
    would stop it for all others; so there is one loop, and it is never closed before the end.
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


def usual_options(pace: StreamTimes) -> dict[str, int]:
    """Of gRPC, for both sides of a connection."""
    step, ping, silence = (round(1000 * seconds) for seconds in (pace.step, pace.ping, pace.silence))
    return {
        "grpc.so_reuseport": 0,  # or two agents share a port without a word
        "grpc.enable_retries": 0,
        "grpc.enable_http_proxy": 0,
        "grpc.service_config_disable_resolution": 1,
        "grpc.use_local_subchannel_pool": 1,  # every dialling is a connection of its own, with the certificate of now
        "grpc.max_receive_message_length": FRAME_LIMIT,
        "grpc.max_send_message_length": FRAME_LIMIT,
        "grpc.max_concurrent_streams": 4,
        "grpc.server_handshake_timeout_ms": step,
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": step,  # also the time that one attempt may take
        "grpc.max_reconnect_backoff_ms": 500,
        "grpc.keepalive_time_ms": ping,
        "grpc.keepalive_timeout_ms": silence,
        "grpc.http2.ping_timeout_ms": silence,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        "grpc.http2.max_ping_strikes": 0,
        "grpc.http2.min_ping_interval_without_data_ms": 100,
        "grpc.http2.lookahead_bytes": FRAME_LIMIT,  # a whole frame may be under way over long distances
    }
