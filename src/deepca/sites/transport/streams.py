"""The streams between neighbours: gRPC over mutual TLS 1.3, in an event loop with a thread of its own.

One stream per pair of neighbours, made by the one that dials, and made again whenever it ends. What flows through it is
the business of an :class:`Endpoint`, which is asked for frames when it has said that there are some: never more than
one frame per neighbour waits here.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deepca.errors import DeepcaError, FrameError, InvalidInput
from deepca.sites.config.addresses import is_loopback
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.handshake import Credentials, Handshake
from deepca.sites.transport import tls  # first of all that import grpc
from deepca.sites.transport.channels import (
    FRAME_LIMIT,
    Accepted,
    Channel,
    Dialled,
    StreamEnded,
    event_loop,
    usual_options,
    within,
)

import grpc  # isort: skip
import grpc.aio  # isort: skip

__all__ = ["FRAME_LIMIT", "Credentials", "Endpoint", "Peer", "StreamTimes", "Streams"]

_SERVICE, _METHOD = "deepca.v1.Link", "Talk"
_MOST_CALLS = 64  # under way at a server at once, authenticated or not
_CHANCE = random.SystemRandom()  # not the program's own sequence, which may be seeded
_DAY = 86400.0  # seconds from one reminder to the next
_MOST_TOLD = 500  # different complaints within Pace.repeat: whoever makes more up does not fill the log


@dataclass(frozen=True)
class Peer:
    """A site as its neighbours see it.

    index : place in the list of sites.  address : host:port, or None if it cannot be reached.
    dial : whether this neighbour is dialled from here; otherwise it dials.
    """

    index: int
    name: str
    address: str | None
    dial: bool


@dataclass(frozen=True)
class StreamTimes:
    """Times, all in seconds.

    step : for each step of making a stream.  ping, silence : a neighbour that has not answered a ping, sent after
    ``ping`` without a word, for ``silence`` is gone.  redial : least and most between two attempts.
    recheck : between two looks at the certificates in use.  repeat : the same complaint is not made again for so long.
    """

    step: float = 5.0
    ping: float = 1.0
    silence: float = 1.5
    redial: tuple[float, float] = (0.1, 0.5)
    recheck: float = 1.0
    repeat: float = 60.0


class Endpoint(Protocol):
    """What is on top of the streams. Called from the event loop's thread; must not block."""

    def opened(self, peer: int) -> None:
        """A stream is up, and both sides are who they should be: frames may flow."""

    def closed(self, peer: int, why: str) -> None: ...

    def received(self, peer: int, frame: wire.Frame) -> None:
        """May raise FrameError: the stream is then closed, and the other side told why."""

    def next_frame(self, peer: int) -> wire.Frame | None:
        """The next one to write; None if there is nothing now."""

    def refused(self, peer: int | None, where: str, why: str) -> None:
        """Somebody was turned away, or this site was. ``peer`` : where it is known who. ``where`` : an address."""


class Streams:
    """All streams of one site."""

    def __init__(
        self,
        endpoint: Endpoint,
        me: Peer,
        neighbours: Sequence[Peer],
        listen: str | None,
        credentials: Credentials | None,
        *,
        pace: StreamTimes | None = None,
        options: Mapping[str, int] | None = None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``listen`` : host:port, port 0 for any; None for a site that only dials.

        ``credentials`` : None for no encryption at all, which is allowed on loopback addresses alone.
        ``options`` : of gRPC, in place of the usual ones; for measurements.
        ``notice`` : told about lists of revoked certificates: that one came, and that one will expire.
        """
        self._endpoint, self._me, self._listen = endpoint, me, listen
        self._credentials = credentials
        self._pace = pace if pace is not None else StreamTimes()
        self._lines = {peer.index: _Line(peer) for peer in neighbours}
        self._by_name = {peer.name: self._lines[peer.index] for peer in neighbours}
        for peer in neighbours:
            if peer.dial and peer.address is None:
                raise InvalidInput(f"site {peer.name} has no address, so it cannot be dialled; let it dial {me.name}")
        if credentials is None:
            addresses = [peer.address for peer in neighbours if peer.address is not None]
            for address in [*addresses, *([listen] if listen is not None else [])]:
                if not _loopback(address):
                    raise InvalidInput(
                        f"plaintext is for loopback addresses alone, and {address} is none; use certificates"
                    )
        if listen is None and any(not peer.dial for peer in neighbours):
            waiting = ", ".join(peer.name for peer in neighbours if not peer.dial)
            raise InvalidInput(f"{me.name} must listen somewhere: it is dialled by {waiting}")
        self._options = [*({**usual_options(self._pace), **(options or {})}).items()]
        self._notice, self._reminded = notice, -math.inf
        self._told: dict[tuple[int | None, str, str], float] = {}
        self._flushing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    # ------------------------------------------------------------------------------------------------ from any thread

    def start(self) -> int:
        """Binds and begins to dial; the port that is listened at, 0 if none."""
        self._loop = event_loop()
        return asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()

    def wake(self, peer: int) -> None:
        """The endpoint has something to send to ``peer``."""
        self._lines[peer].scheduled = True
        if not self._flushing and self._loop is not None:  # before the start nothing is lost: a new stream asks first
            self._flushing = True  # one call for all that are woken at a time: each costs a write to a pipe
            self._soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        for line in self._lines.values():
            if line.scheduled:
                line.wake()

    @property
    def credentials(self) -> Credentials | None:
        """Those in use now."""
        return self._credentials

    def trouble(self, peer: int) -> str | None:
        """Why there is no stream to ``peer``, in plain words; None while there is one, or where nothing is known."""
        return self._lines[peer].trouble

    def turned_away(self, where: str, why: str) -> None:
        """Somebody did not get through the handshake of TLS (:class:`deepca.sites.transport.grpc_errors.CoreLog`)."""
        self._soon(lambda: self._tell(None, where, why))

    def stop(self) -> None:
        """Closes everything."""
        loop, self._loop = self._loop, None
        if loop is not None:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._end(), loop).result(1.0)

    def _soon(self, action: Callable[[], object]) -> None:
        if (loop := self._loop) is not None:
            loop.call_soon_threadsafe(action)

    # ------------------------------------------------------------------------------------------ the event loop's thread

    async def _begin(self) -> int:
        port, self._ending = 0, False
        if self._listen is not None:
            self._server, port = await self._serve(self._listen)
            self._listen = f"{self._listen.rpartition(':')[0]}:{port}"  # to be found there again
        self._tasks = [asyncio.create_task(self._dial(line)) for line in self._lines.values() if line.peer.dial]
        if self._credentials is not None:
            self._tasks.append(asyncio.create_task(self._recheck()))
        return port

    async def _end(self) -> None:
        self._ending = True  # a task may lose its cancellation to whatever it awaits; then it ends by itself
        for line in self._lines.values():
            if line.stream is not None:
                self._close(line, line.stream, f"{self._me.name} stops")
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            await self._server.stop(0.2)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.5)

    async def _serve(self, listen: str) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(options=self._options, maximum_concurrent_rpcs=_MOST_CALLS)
        handler = grpc.stream_stream_rpc_method_handler(self._accept)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        try:
            if self._credentials is None:
                port = server.add_insecure_port(listen)
            else:
                port = server.add_secure_port(listen, tls.server_credentials(self._current()))
        except RuntimeError:
            await server.stop(None)
            raise InvalidInput(
                f"site {self._me.name} cannot listen at {listen}: the port is in use, or the address is not one of this"
                " machine; stop the other program, or change `listen` in site.toml"
            ) from None
        await server.start()
        return server, port

    async def _serve_again(self, listen: str) -> bool:
        """A server with the present credentials in place of the one there is; streams that it carried are made anew."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(0.2)
        try:
            self._server, _ = await self._serve(listen)
        except InvalidInput as error:  # somebody else was faster; again in a moment
            self._tell(None, "own certificate", str(error))
        return self._server is not None

    def _current(self) -> Credentials:
        assert self._credentials is not None
        return self._credentials

    # ---------------------------------------------------------------------------------------------------- two ways in

    async def _dial(self, line: _Line) -> None:
        """Keeps a stream to a neighbour, until the end."""
        peer = line.peer
        assert peer.address is not None
        while not self._ending:
            channel = self._channel(peer)
            call = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")()
            try:
                await self._converse(Dialled(call, peer.name, peer.address), line, None)
            except Exception as error:  # a fault of ours must not end the dialling
                line.trouble = f"a fault within {self._me.name}: {error!r}"
                self._tell(line, peer.address, line.trouble)
            finally:
                call.cancel()
                await channel.close()
            await asyncio.sleep(_CHANCE.uniform(*self._pace.redial))

    def _channel(self, peer: Peer) -> grpc.aio.Channel:
        options: list[tuple[str, Any]] = [*self._options]
        if self._credentials is None:
            return grpc.aio.insecure_channel(peer.address, options=options)
        options.append(("grpc.ssl_target_name_override", peer.name))
        return grpc.aio.secure_channel(peer.address, tls.channel_credentials(self._credentials), options=options)

    async def _accept(self, _requests: object, context: Any) -> None:
        """A call from outside."""
        channel = Accepted(context)
        transport = None
        if self._credentials is not None:
            try:
                transport = tls.peer_of(context.auth_context())
            except FrameError as error:
                self._tell(None, channel.where, str(error))
                await channel.refuse(str(error))
                return
        await self._converse(channel, None, transport)

    # ------------------------------------------------------------------------------------------------------ one stream

    async def _converse(self, channel: Channel, line: _Line | None, transport: bytes | None) -> None:
        """A stream from its first frame to its end. Only being cancelled gets out of here.

        ``line`` : of the neighbour that was dialled; None if somebody dialled us.  ``transport`` : see Handshake.check.
        """
        handshake = Handshake(self._me.name, self._credentials)
        try:
            stream = await self._meet(channel, handshake, line, transport)
        except StreamEnded as end:
            known = line if line is not None else self._by_name.get(handshake.peer)
            if line is not None:
                line.trouble = end.why
            if end.refusal:
                self._tell(known, channel.where, end.why)
        except DeepcaError as error:
            known = line if line is not None else self._by_name.get(handshake.peer)
            if line is not None:
                line.trouble = str(error)
            self._tell(known, channel.where, str(error))
            await channel.refuse(str(error))
        else:
            await self._carry(channel, self._by_name[handshake.peer], stream)

    async def _meet(
        self, channel: Channel, handshake: Handshake, line: _Line | None, transport: bytes | None
    ) -> _Stream:
        """Challenge and Proof; a list of revoked certificates that comes with them counts at once."""
        step = self._pace.step
        await within(step, channel.write(handshake.challenge()), f"no connection to {channel.who} within {step:g} s")
        late = f"{channel.who} has not answered within {step:g} s"
        proof = handshake.proof(await within(step, channel.read(), late))
        name = handshake.peer
        if line is not None and name != line.peer.name:
            raise FrameError(f"the site at {channel.where} calls itself {name[:80]!r}, not {line.peer.name}")
        if line is None:
            known = self._by_name.get(name)
            if known is None:
                raise FrameError(f"{name[:80]!r} is no neighbour of {self._me.name}; is network.toml the same at both?")
            if known.peer.dial:
                raise FrameError(
                    f"{name} dials {self._me.name}, where {self._me.name} should dial {name};"
                    " is network.toml the same at both?"
                )
            if transport is not None and handshake.their_list <= self._current().list_number:
                self._current().check_peer(transport, name)  # otherwise once the newer list is here
        channel.who = name
        newest = max(handshake.their_list, handshake.own_list)
        await within(step, channel.write(proof), late)
        answer = await within(step, channel.read(), late)
        self._adopt(answer.proof.revocations, name)
        certificate = handshake.check(answer, transport, self._credentials)
        return _Stream(certificate, asyncio.get_running_loop().create_future(), newest)

    async def _carry(self, channel: Channel, line: _Line, stream: _Stream) -> None:
        """Frames both ways until something ends it."""
        if line.stream is not None:
            self._close(line, line.stream, f"{line.peer.name} has made a new stream")
        line.stream, line.trouble = stream, None
        self._forget(line)
        self._endpoint.opened(line.peer.index)
        reader = asyncio.create_task(self._read(channel, line, stream))
        writer = asyncio.create_task(self._write(channel, line, stream))
        why = f"the connection to {line.peer.name} is lost"
        refused = ""
        try:
            ends: set[asyncio.Future[Any]] = {reader, writer, stream.over}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if stream.over in done:
                why = stream.over.result()
            else:
                failure = next(task.exception() for task in (reader, writer) if task in done)
                match failure:
                    case StreamEnded():
                        why = failure.why
                        if failure.refusal:
                            self._tell(line, channel.where, why)
                    case DeepcaError():
                        why = refused = str(failure)
                        self._tell(line, channel.where, why)
                    case _:
                        why = f"a fault within {self._me.name}: {failure!r}"
                        refused = f"a fault within {self._me.name}; its log says more"
                        self._tell(line, channel.where, why)
        finally:
            self._close(line, stream, why)
            if line.stream is None:
                line.trouble = why
            reader.cancel()
            if refused and not writer.done():
                stream.last_words = refused
                line.wake()
                await asyncio.wait({writer}, timeout=0.5)
            writer.cancel()
            await asyncio.wait({reader, writer}, timeout=0.5)
            for task in (reader, writer):
                if task.done() and not task.cancelled():
                    task.exception()

    async def _read(self, channel: Channel, line: _Line, stream: _Stream) -> None:
        index, received = line.peer.index, self._endpoint.received
        while True:
            frame = await channel.read()
            if line.stream is not stream:
                return
            if frame.WhichOneof("kind") == "revocations":
                self._adopt(frame.revocations.list, line.peer.name, stream)
            else:
                received(index, frame)

    async def _write(self, channel: Channel, line: _Line, stream: _Stream) -> None:
        index, next_frame, woken = line.peer.index, self._endpoint.next_frame, line.woken
        while True:
            woken.clear()
            if line.stream is not stream:
                if stream.last_words:
                    await channel.refuse(stream.last_words)
                return
            frame = self._newer_list(stream) or next_frame(index)
            if frame is None:
                await woken.wait()
            else:
                await channel.write(frame)

    def _close(self, line: _Line, stream: _Stream, why: str) -> None:
        if line.stream is stream:
            line.stream = None
            if not stream.over.done():
                stream.over.set_result(why)
            self._endpoint.closed(line.peer.index, why)

    # ---------------------------------------------------------------------------------------------------- certificates

    async def _recheck(self) -> None:
        """Takes replaced files, and closes streams whose certificate no longer holds."""
        renewing = False
        while not self._ending:
            await asyncio.sleep(self._pace.recheck)
            before = self._current()
            try:
                if before.changed():
                    self._credentials = before.reload()
            except Exception as error:  # whatever it is, looking must go on
                self._tell(None, "own certificate", f"the files have changed and cannot be used: {error}")
            now = self._current()
            self._remind(now)
            if now.list_number > before.list_number:
                self._pass_on()
            renewed = (before.certificate, before.key, before.authority) != (now.certificate, now.key, now.authority)
            renewing = renewing or renewed
            if renewing and self._listen is not None:
                renewing = not await self._serve_again(self._listen)
            self._check_all()
            for line in self._lines.values():
                if renewed and line.peer.dial and line.stream is not None:
                    self._close(line, line.stream, f"{self._me.name} has a new certificate")

    def _check_all(self) -> None:
        """Close streams whose certificate no longer holds."""
        for line in self._lines.values():
            if line.stream is None:
                continue
            try:
                self._current().check_peer(line.stream.certificate, line.peer.name)
            except Exception as error:  # what cannot be checked is not accepted
                self._tell(line, line.peer.address or line.peer.name, str(error))
                self._close(line, line.stream, str(error))

    # ------------------------------------------------------------------------------ lists of revoked certificates

    def _list_number(self) -> int:
        return 0 if self._credentials is None else self._credentials.list_number

    def _adopt(self, der: bytes, source: str, stream: _Stream | None = None) -> None:
        """Take over a newer list of revoked certificates, act on it, and pass it on.

        ``stream`` : by which it came during a stream, and need not go back.
        """
        if not der or self._credentials is None:
            return
        before = self._credentials
        self._credentials = before.adopt(der)
        number = self._list_number()
        if stream is not None:
            stream.their_list = max(stream.their_list, number)
        if self._credentials is before:
            return
        self._notice(f"list {number} of revoked certificates came from {source}, in place of {before.list_number}")
        try:
            self._current().check_peer(before.certificate_der, self._me.name)
        except DeepcaError as error:
            self._notice(f"this site can no longer take part: {error}")
        self._check_all()
        self._pass_on()

    def _pass_on(self) -> None:
        """Have every stream look whether the other side knows of the newest list."""
        for line in self._lines.values():
            line.wake()

    def _newer_list(self, stream: _Stream) -> wire.Frame | None:
        """The list of revoked certificates, if the other side of a stream has not got it yet."""
        if self._credentials is None or self._credentials.list_number <= stream.their_list:
            return None
        stream.their_list = self._credentials.list_number
        der = self._credentials.list_der
        return wire.Frame(revocations=wire.Revocations(list=der)) if der else None

    def _remind(self, now: Credentials) -> None:
        """Once a day, say what will have to be done soon."""
        if time.monotonic() - self._reminded >= _DAY and (text := now.warning()):
            self._reminded = time.monotonic()
            self._notice(text)

    # --------------------------------------------------------------------------------------------------------- telling

    def _tell(self, line: _Line | None, where: str, why: str) -> None:
        """To the endpoint, unless it was told the same a short while ago."""
        peer = line.peer.index if line is not None else None
        host = where.rpartition(":")[0] if line is None or not line.peer.dial else where  # ports of clients vary
        now = time.monotonic()
        self._told = {key: at for key, at in self._told.items() if now - at < self._pace.repeat}
        if (peer, host, why) not in self._told and len(self._told) < _MOST_TOLD:
            self._told[peer, host, why] = now
            self._endpoint.refused(peer, where, why)

    def _forget(self, line: _Line) -> None:
        """A stream is up: the next complaint about this neighbour is news."""
        self._told = {key: at for key, at in self._told.items() if key[0] != line.peer.index}


class _Line:
    """What is kept of a neighbour from stream to stream."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.stream: _Stream | None = None
        self.trouble: str | None = None
        self.woken = asyncio.Event()
        self.scheduled = False  # a call of wake is under way

    def wake(self) -> None:
        self.scheduled = False
        self.woken.set()


class _Stream:
    """What is known of one stream. ``certificate`` : DER, of the other side. ``over`` : why, once it has to end.

    ``their_list`` : number of the newest list of revoked certificates that the other side has, or was sent.
    """

    def __init__(self, certificate: bytes, over: asyncio.Future[str], their_list: int = 0) -> None:
        self.certificate, self.over, self.their_list = certificate, over, their_list
        self.last_words = ""


def _loopback(address: str) -> bool:
    return is_loopback(address.rpartition(":")[0].strip("[]"))
