"""What lies between neighbours and can break: a TCP proxy per link. TLS goes through it from end to end.

A direction that is held loses nothing, as TCP would send it again: it arrives when the hold ends, if anybody is left to
hear it. That is what a network looks like from above TCP when packets are lost for a while.
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
"""From which site to which."""
_BLOCK = 1 << 16


class Proxies:
    """Proxies for links, in a thread of their own. ``ports`` : where each listens, by (dials, is dialled).

    targets : ports of the sites that are dialled.
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
        """Nothing gets through any more; nobody is told."""
        self._do(self._set(directions, open_=False))

    def release(self, directions: Iterable[Direction]) -> None:
        self._do(self._set(directions, open_=True))

    def slow(self, directions: Iterable[Direction], seconds: float) -> None:
        """What goes this way is late by so much, block by block."""
        self._do(self._slow(directions, seconds))

    def cut(self, links: Iterable[Direction]) -> None:
        """Connections of these links, given as (dials, is dialled), are reset, and new ones too."""
        self._do(self._cut(set(links)))

    def mend(self, links: Iterable[Direction]) -> None:
        self._do(self._mend(set(links)))

    def between(self, inside: Collection[int]) -> list[Direction]:
        """The links, as (dials, is dialled), that lead out of a group of sites."""
        return [link for link in self._targets if (link[0] in inside) != (link[1] in inside)]

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()

    # ------------------------------------------------------------------------------------------ the event loop's thread

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

    async def _mend(self, links: set[Direction]) -> None:
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
        except (OSError, asyncio.CancelledError):  # nobody listens there; or all is over
            pass
        finally:
            self._writers[link] -= set(writers)
            for one in writers:
                one.transport.abort()

    async def _pump(self, way: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_BLOCK):
                await self._gates[way].wait()
                if delay := self._delay.get(way, 0.0):
                    await asyncio.sleep(delay)
                writer.write(data)
                await writer.drain()
            await self._gates[way].wait()
            writer.write_eof()
        except (OSError, RuntimeError):  # one side is gone; the other must hear of it, when it can hear at all
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
