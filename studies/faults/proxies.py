"""TCP proxies, one per link, that can block, delay or reset connections. TLS passes through them end to end.

Blocking loses no data: the data held back arrive once the direction is released, if the receiver still exists. To a
program, a temporary loss of packets looks the same, since TCP retransmits them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

__all__ = ["Direction", "Proxies"]

Direction = tuple[int, int]
"""Sending site and receiving site."""
_READ_SIZE = 1 << 16  # bytes forwarded at a time


class Proxies:
    """Proxies for the links of a network, run by one thread; a link is a pair (dialling site, listening site).

    Parameters
    ----------
    targets
        Port at which the listening site of each link listens.

    Attributes
    ----------
    ports
        Port at which the proxy of each link listens.
    """

    def __init__(self, targets: Mapping[Direction, int]) -> None:
        self._targets = dict(targets)
        self._gates: dict[Direction, asyncio.Event] = {}
        self._delay: dict[Direction, float] = {}
        self._writers: dict[Direction, set[asyncio.StreamWriter]] = {link: set() for link in targets}
        self._refusing: set[Direction] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self.ports: dict[Direction, int] = self._do(self._begin())

    def hold(self, directions: Iterable[Direction]) -> None:
        """Stop forwarding in these directions, without closing connections."""
        self._do(self._set(directions, open_=False))

    def release(self, directions: Iterable[Direction]) -> None:
        """Forward in these directions again, beginning with the data held back by :meth:`hold`."""
        self._do(self._set(directions, open_=True))

    def slow(self, directions: Iterable[Direction], seconds: float) -> None:
        """Delay every block of data in these directions by ``seconds``."""
        self._do(self._slow(directions, seconds))

    def cut(self, links: Iterable[Direction]) -> None:
        """Reset the connections of these links and refuse new ones."""
        self._do(self._cut(set(links)))

    def restore(self, links: Iterable[Direction]) -> None:
        """Accept connections again after :meth:`cut`."""
        self._do(self._restore(set(links)))

    def between(self, inside: Collection[int]) -> list[Direction]:
        """Return the links between a group of sites and the other sites."""
        return [link for link in self._targets if (link[0] in inside) != (link[1] in inside)]

    def close(self) -> None:
        """Close all connections and stop the thread."""
        with contextlib.suppress(TimeoutError):
            self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()

    # ----------------------------------------------------------------------------------- run in the event loop's thread

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    async def _begin(self) -> dict[Direction, int]:
        ports = {}
        for link in self._targets:
            for way in (link, (link[1], link[0])):
                self._gates[way] = asyncio.Event()
                self._gates[way].set()
            server = await asyncio.start_server(partial(self._accept, link), "127.0.0.1", 0)
            self._servers.append(server)
            ports[link] = int(server.sockets[0].getsockname()[1])
        return ports

    async def _set(self, directions: Iterable[Direction], *, open_: bool) -> None:
        for way in directions:
            self._gates[way].set() if open_ else self._gates[way].clear()

    async def _slow(self, directions: Iterable[Direction], seconds: float) -> None:
        for way in directions:
            self._delay[way] = seconds

    async def _cut(self, links: set[Direction]) -> None:
        self._refusing |= links
        for link in links:
            for writer in self._writers[link]:
                writer.transport.abort()

    async def _restore(self, links: set[Direction]) -> None:
        self._refusing -= links

    async def _accept(self, link: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        self._writers[link].add(writer)
        try:
            if link not in self._refusing:
                await self._gates[link].wait()
                there, back = await asyncio.open_connection("127.0.0.1", self._targets[link])
                writers.append(back)
                self._writers[link].add(back)
                for one in writers:
                    one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await asyncio.wait(
                    {
                        asyncio.create_task(self._pump(link, reader, back)),
                        asyncio.create_task(self._pump((link[1], link[0]), there, writer)),
                    }
                )
        except (OSError, asyncio.CancelledError):  # the target is not listening, or the proxies are being closed
            pass
        finally:
            self._writers[link] -= set(writers)
            for one in writers:
                one.transport.abort()

    async def _pump(self, way: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_READ_SIZE):
                await self._gates[way].wait()
                if delay := self._delay.get(way, 0.0):
                    await asyncio.sleep(delay)
                writer.write(data)
                await writer.drain()
            await self._gates[way].wait()
            writer.write_eof()
        except (OSError, RuntimeError):  # one side is gone: reset the other side once this direction is released
            await self._gates[way].wait()
            writer.transport.abort()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)
        for writer in [writer for writers in self._writers.values() for writer in writers]:
            writer.transport.abort()
        await asyncio.sleep(0.05)
