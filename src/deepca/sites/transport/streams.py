"""Streams between neighbours: gRPC over mutual TLS 1.3, in an event loop with its own thread.

There is one stream per pair of neighbours, opened by the side that dials, and opened again whenever it ends. An
:class:`Endpoint` provides and consumes the frames. It announces that it has something to send, and is then asked for
one frame at a time, so at most one frame per neighbour is buffered here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence

from deepca.errors import InvalidInput
from deepca.sites.config.addresses import is_loopback
from deepca.sites.protocol.handshake import Credentials
from deepca.sites.transport.channels import FrameMeter, event_loop, grpc_options
from deepca.sites.transport.credentials import CurrentCredentials
from deepca.sites.transport.dialler import Dialler
from deepca.sites.transport.endpoint import Endpoint, Peer, StreamTimes
from deepca.sites.transport.frame_pump import FramePump
from deepca.sites.transport.listener import Listener
from deepca.sites.transport.neighbors import Neighbor, NeighborTable
from deepca.sites.transport.refusals import RefusalReporter
from deepca.sites.transport.sessions import Sessions

__all__ = ["Endpoint", "Peer", "StreamTimes", "Streams"]

_TASK_TIMEOUT = 0.5  # seconds for cancelled tasks to end; some await code that ignores cancellation
_STOP_TIMEOUT = 1.0  # maximum time in seconds that ``stop`` blocks


class Streams:
    """All streams of one site: it listens, dials, and keeps the credentials up to date until it is stopped.

    Parameters
    ----------
    endpoint : Endpoint
        Provides and consumes frames.
    me : Peer
        This site.
    neighbors : sequence of Peer
        Its neighbours.
    listen : str or None
        host:port to listen at, with port 0 for any free one; None for a site that only dials.
    credentials : Credentials or None
        None for no encryption, which is allowed on loopback addresses only.
    timeouts : StreamTimes, optional
        Timeouts and intervals.

    Raises
    ------
    InvalidInput
        If a neighbour cannot be dialled, this site has to listen but has no address, or unencrypted messages would
        leave this machine.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        me: Peer,
        neighbors: Sequence[Peer],
        listen: str | None,
        credentials: Credentials | None,
        *,
        timeouts: StreamTimes | None = None,
    ) -> None:
        _check_addresses(me, neighbors, listen, encrypted=credentials is not None)
        self._me = me
        self._timeouts = timeouts if timeouts is not None else StreamTimes()
        self._neighbors = NeighborTable(neighbors, endpoint)
        self._refusals = RefusalReporter(endpoint, self._timeouts.repeat)
        self._credentials = CurrentCredentials(me.name, credentials, self._neighbors, self._refusals)
        pump = FramePump(me.name, endpoint, self._credentials, self._refusals)
        table, current, refusals = self._neighbors, self._credentials, self._refusals
        sessions = self._sessions = Sessions(me.name, table, current, refusals, pump, self._timeouts.step)
        options = [*grpc_options(self._timeouts).items()]
        self._dialler = Dialler(sessions, self._credentials, self._refusals, options, self._timeouts.redial)
        self._listener = (
            None if listen is None else Listener(sessions, self._credentials, self._refusals, options, listen)
        )
        self._flushing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # in which the event loop runs
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    # ------------------------------------------------------------------------------------------------ from any thread

    def start(self) -> int:
        """Start listening and dialling, and return the port, or 0 if this site does not listen.

        Raises
        ------
        AddressInUse
            If this site cannot listen at its address.
        """
        self._loop = event_loop()
        return asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()

    def wake(self, peer: int) -> None:
        """Announce that the endpoint has something to send to ``peer``."""
        if threading.get_ident() == self._thread:
            self._neighbors[peer].wake()
            return
        self._neighbors[peer].scheduled = True
        # before the start there is nothing to do: a new stream asks for frames by itself
        if not self._flushing and self._loop is not None:
            self._flushing = True  # one call for all neighbours woken together, since each costs a write to a pipe
            self._soon(self._flush)

    @property
    def credentials(self) -> Credentials | None:
        """The credentials in use; None without encryption."""
        return self._credentials.value

    def count_frames(self, meter: FrameMeter) -> None:
        """Call ``meter(name, kind, size)`` for every frame that is written to a stream opened from now on."""
        self._sessions.meter = meter

    def failure(self, peer: int) -> str | None:
        """Return why the stream to ``peer`` is missing; None if one is open, or the reason is unknown."""
        return self._neighbors[peer].failure

    def report_rejected_client(self, where: str, why: str) -> None:
        """Report a failed TLS handshake (see :class:`deepca.sites.transport.grpc_errors.CoreLog`)."""
        self._soon(lambda: self._refusals.report(None, where, why))

    def stop(self) -> None:
        """Close all streams and stop listening and dialling."""
        loop, self._loop = self._loop, None
        if loop is not None:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._end(), loop).result(_STOP_TIMEOUT)

    def _soon(self, action: Callable[[], object]) -> None:
        if (loop := self._loop) is not None:
            loop.call_soon_threadsafe(action)

    # ------------------------------------------------------------------------------------------ the event loop's thread

    def _flush(self) -> None:
        self._flushing = False
        self._neighbors.wake_scheduled()

    async def _begin(self) -> int:
        port, self._ending, self._thread = 0, False, threading.get_ident()
        if self._listener is not None:
            port = await self._listener.start()
        dialled = [neighbor for neighbor in self._neighbors if neighbor.peer.dial]
        self._tasks = [asyncio.create_task(self._keep_dialling(neighbor)) for neighbor in dialled]
        if self._credentials.value is not None:
            self._tasks.append(asyncio.create_task(self._keep_credentials()))
        return port

    async def _end(self) -> None:
        self._ending = True  # code that a task awaits may swallow its cancellation; this flag then ends the task
        self._neighbors.close_all(f"{self._me.name} is stopping")
        for task in self._tasks:
            task.cancel()
        if self._listener is not None:
            await self._listener.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_TASK_TIMEOUT)

    async def _keep_dialling(self, neighbor: Neighbor) -> None:
        """Keep a stream to a neighbour open until the streams are stopped."""
        while not self._ending:
            await self._dialler.dial(neighbor)
            await self._dialler.pause()

    async def _keep_credentials(self) -> None:
        """Reload changed credential files and close streams whose certificate is no longer accepted, until stopped."""
        outdated = False  # whether the server still presents a replaced certificate
        while not self._ending:
            await asyncio.sleep(self._timeouts.recheck)
            renewed = self._credentials.refresh()
            outdated = outdated or renewed
            if outdated and self._listener is not None:
                outdated = not await self._listener.restart()
            self._credentials.check_streams()
            for neighbor in self._neighbors:
                if renewed and neighbor.peer.dial and neighbor.stream is not None:
                    neighbor.close(neighbor.stream, f"{self._me.name} has a new certificate")


def _check_addresses(me: Peer, neighbors: Sequence[Peer], listen: str | None, *, encrypted: bool) -> None:
    """Raise InvalidInput if an address that is needed is missing, or plaintext would leave this machine."""
    for peer in neighbors:
        if peer.dial and peer.address is None:
            raise InvalidInput(
                f"site {peer.name} has no address in network.toml, so {me.name} cannot dial it; give it an address, or "
                f"give {me.name} one and let {peer.name} dial",
                parameter="address",
                agent=peer.index,
            )
    if not encrypted:
        for address in (*(peer.address for peer in neighbors), listen):
            if address is not None and not is_loopback(address.rpartition(":")[0].strip("[]")):
                raise InvalidInput(
                    f"plaintext requires loopback addresses; {address} is not one, so use certificates (deepca init)",
                    parameter="plaintext",
                    value=address,
                )
    if listen is None and any(not peer.dial for peer in neighbors):
        waiting = ", ".join(peer.name for peer in neighbors if not peer.dial)
        raise InvalidInput(
            f"{me.name} has to accept connections from {waiting}, but does not listen; set `listen` in its site.toml",
            parameter="listen",
            agent=me.index,
        )
