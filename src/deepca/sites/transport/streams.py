"""The streams between neighbours: gRPC over mutual TLS 1.3, in an event loop with a thread of its own.

One stream per pair of neighbours, made by the one that dials, and made again whenever it ends. What flows through it is
the business of an :class:`Endpoint`, which is asked for frames when it has said that there are some: never more than
one frame per neighbour waits here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from deepca.errors import InvalidInput
from deepca.sites.config.addresses import is_loopback
from deepca.sites.protocol.handshake import Credentials
from deepca.sites.transport.channels import event_loop, usual_options
from deepca.sites.transport.credentials import CurrentCredentials
from deepca.sites.transport.dialler import Dialler
from deepca.sites.transport.endpoint import Endpoint, Peer, StreamTimes
from deepca.sites.transport.frame_pump import FramePump
from deepca.sites.transport.listener import Listener
from deepca.sites.transport.neighbors import Neighbor, NeighborTable
from deepca.sites.transport.refusals import RefusalReporter
from deepca.sites.transport.sessions import Sessions

__all__ = ["Endpoint", "Peer", "StreamTimes", "Streams"]


class Streams:
    """All streams of one site: listens, dials, and keeps the credentials in use up to date until it is stopped."""

    def __init__(
        self,
        endpoint: Endpoint,
        me: Peer,
        neighbors: Sequence[Peer],
        listen: str | None,
        credentials: Credentials | None,
        *,
        pace: StreamTimes | None = None,
    ) -> None:
        """``listen`` : host:port, port 0 for any; None for a site that only dials.

        ``credentials`` : None for no encryption at all, which is allowed on loopback addresses alone.
        """
        _check_addresses(me, neighbors, listen, encrypted=credentials is not None)
        self._me = me
        self._pace = pace if pace is not None else StreamTimes()
        self._neighbors = NeighborTable(neighbors, endpoint)
        self._refusals = RefusalReporter(endpoint, self._pace.repeat)
        self._credentials = CurrentCredentials(me.name, credentials, self._neighbors, self._refusals)
        pump = FramePump(me.name, endpoint, self._credentials, self._refusals)
        sessions = Sessions(me.name, self._neighbors, self._credentials, self._refusals, pump, self._pace.step)
        options = [*usual_options(self._pace).items()]
        self._dialler = Dialler(sessions, self._credentials, self._refusals, options, self._pace.redial)
        self._listener = (
            None if listen is None else Listener(sessions, self._credentials, self._refusals, options, listen)
        )
        self._flushing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    # ------------------------------------------------------------------------------------------------ from any thread

    def start(self) -> int:
        """Bind and begin to dial; return the port that is listened at, 0 if none."""
        self._loop = event_loop()
        return asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()

    def wake(self, peer: int) -> None:
        """Say that the endpoint has something to send to ``peer``."""
        self._neighbors[peer].scheduled = True
        if not self._flushing and self._loop is not None:  # before the start nothing is lost: a new stream asks first
            self._flushing = True  # one call for all that are woken at a time: each costs a write to a pipe
            self._soon(self._flush)

    @property
    def credentials(self) -> Credentials | None:
        """Credentials in use now."""
        return self._credentials.value

    def trouble(self, peer: int) -> str | None:
        """Say why there is no stream to ``peer``; None while there is one, or where nothing is known."""
        return self._neighbors[peer].trouble

    def turned_away(self, where: str, why: str) -> None:
        """Report a failed handshake of TLS (see :class:`deepca.sites.transport.grpc_errors.CoreLog`)."""
        self._soon(lambda: self._refusals.report(None, where, why))

    def stop(self) -> None:
        """Close everything."""
        loop, self._loop = self._loop, None
        if loop is not None:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._end(), loop).result(1.0)

    def _soon(self, action: Callable[[], object]) -> None:
        if (loop := self._loop) is not None:
            loop.call_soon_threadsafe(action)

    # ------------------------------------------------------------------------------------------ the event loop's thread

    def _flush(self) -> None:
        self._flushing = False
        self._neighbors.wake_scheduled()

    async def _begin(self) -> int:
        port, self._ending = 0, False
        if self._listener is not None:
            port = await self._listener.start()
        dialled = [neighbor for neighbor in self._neighbors if neighbor.peer.dial]
        self._tasks = [asyncio.create_task(self._keep_dialling(neighbor)) for neighbor in dialled]
        if self._credentials.value is not None:
            self._tasks.append(asyncio.create_task(self._keep_credentials()))
        return port

    async def _end(self) -> None:
        self._ending = True  # a task may lose its cancellation to whatever it awaits; then it ends by itself
        self._neighbors.close_all(f"{self._me.name} stops")
        for task in self._tasks:
            task.cancel()
        if self._listener is not None:
            await self._listener.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.5)

    async def _keep_dialling(self, neighbor: Neighbor) -> None:
        """Keep a stream to a neighbour, until the end."""
        while not self._ending:
            await self._dialler.dial(neighbor)
            await self._dialler.pause()

    async def _keep_credentials(self) -> None:
        """Take replaced files, and close streams whose certificate no longer holds, until the end."""
        outdated = False  # whether the server shows a certificate that was replaced
        while not self._ending:
            await asyncio.sleep(self._pace.recheck)
            renewed = self._credentials.refresh()
            outdated = outdated or renewed
            if outdated and self._listener is not None:
                outdated = not await self._listener.restart()
            self._credentials.check_streams()
            for neighbor in self._neighbors:
                if renewed and neighbor.peer.dial and neighbor.stream is not None:
                    neighbor.close(neighbor.stream, f"{self._me.name} has a new certificate")


def _check_addresses(me: Peer, neighbors: Sequence[Peer], listen: str | None, *, encrypted: bool) -> None:
    """Raise InvalidInput unless everyone can be dialled by whoever should, and plaintext stays on this machine."""
    for peer in neighbors:
        if peer.dial and peer.address is None:
            raise InvalidInput(f"site {peer.name} has no address, so it cannot be dialled; let it dial {me.name}")
    if not encrypted:
        for address in (*(peer.address for peer in neighbors), listen):
            if address is not None and not is_loopback(address.rpartition(":")[0].strip("[]")):
                raise InvalidInput(
                    f"plaintext is for loopback addresses alone, and {address} is none; use certificates"
                )
    if listen is None and any(not peer.dial for peer in neighbors):
        waiting = ", ".join(peer.name for peer in neighbors if not peer.dial)
        raise InvalidInput(f"{me.name} must listen somewhere: it is dialled by {waiting}")
