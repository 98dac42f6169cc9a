"""Time messages between processes: rounds, compared with bare asyncio over TLS, and one very large message.

A round of gossip is an exchange that the algorithm's thread waits for. The rounds of an exact sum are relayed: that
thread waits only for the last of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import secrets
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deepca._util.typing import Array
from deepca.network.transports.base import Message, RelayStep, Tag
from studies.faults.fleet import Fleet, Hung, Process, Setup, free_ports, start_process

__all__ = ["GOALS", "RoundTimes", "large_message", "round_times", "time_rounds"]

GOALS = {12_000: 3.0, 1_000_000: 1.5}
"""Largest allowed ratio of the time of a round to that of a bare exchange, by message size in bytes."""
_ROUNDS = ((12_000, 60), (1_000_000, 6))  # sizes of messages, and rounds per repetition
_KINDS = 3  # a bare exchange, one through Node, one of a relay through Node
_LENGTH = struct.Struct("<Q")  # precedes each message of the bare exchange


# ------------------------------------------------------------------------------------------------ exchange through Node


class _NodeExchange:
    """Exchange of messages through a node and its streams, as between agents."""

    def __init__(self, site: Path, limit: int) -> None:
        from deepca.sites.config.site_file import read_site
        from deepca.sites.pki.identity import Identity
        from deepca.sites.protocol.fingerprints import network_digest
        from deepca.sites.protocol.incarnation import Incarnation
        from deepca.sites.protocol.records import Offer, RunPlan
        from deepca.sites.runtime.clocks import RealClock
        from deepca.sites.runtime.node import Node, NodeConfig, Policy
        from deepca.sites.transport.streams import Peer, Streams

        file = read_site(site)
        network, me = file.network, file.index
        names = tuple(entry.name for entry in network.sites)
        config = NodeConfig(names, me, network.links, network_digest(network), {"measured": b"yes"}, limit)
        incarnation = Incarnation(time.time_ns(), secrets.randbits(63) | 1)
        self._node = Node(config, Policy(deadline=300.0), RealClock(), incarnation)
        self._peers = config.neighbors
        here, *others = (
            Peer(j, names[j], network.sites[j].address, j != me and network.dials(me, j)) for j in (me, *self._peers)
        )
        self._streams = Streams(self._node, here, others, file.listen, Identity.load(file))
        self._node.attach(self._streams.wake)
        self._streams.start()
        self._stopped = threading.Event()
        self._ticking = threading.Thread(target=self._tick, daemon=True)
        self._ticking.start()
        plan = self._node.agree_on_plan(Offer())
        assert isinstance(plan, RunPlan)
        self._plan, self._count = plan, 0

    def _tick(self) -> None:
        while not self._stopped.wait(0.05):
            self._node.tick()

    def exchange(self, payload: Array) -> dict[int, Message]:
        """Send the same message to all neighbours and return the messages received from them."""
        self._count += 1
        tag = Tag(self._plan.epoch, "measured", 0, self._count)
        message = Message(payload, ())
        return self._node.exchange(self._plan, tag, dict.fromkeys(self._peers, message), self._peers)

    def rounds(self, count: int, payload: Array) -> None:
        """Exchange a payload ``count`` times and check the sizes of what is received."""
        for _ in range(count):
            for message in self.exchange(payload).values():
                assert message.payload is not None
                assert message.payload.nbytes == payload.nbytes

    def relayed_rounds(self, count: int, payload: Array) -> None:
        """Relay a payload in ``count`` rounds, in each of which it is sent to all neighbours."""
        first, self._count = self._count + 1, self._count + count
        tags = [Tag(self._plan.epoch, "measured", 0, first + n) for n in range(count)]
        steps = [RelayStep(tag, self._peers, self._peers) for tag in tags]

        def check(_: int, sent: Message, received: dict[int, Message]) -> Message:
            for message in received.values():
                assert message.payload is not None
                assert message.payload.nbytes == payload.nbytes
            return sent

        self._node.relay(self._plan, steps, Message(payload, ()), check)

    def stop(self) -> None:
        """Leave the network and stop all threads."""
        self._node.wait_until_all_finished(0.0)
        self._stopped.set()
        self._ticking.join()
        self._streams.stop()


# -------------------------------------------------------------------------------------------------------- bare exchange


class _BareExchange:
    """Exchange of length-prefixed messages over asyncio streams with mutual TLS 1.3, in a ring."""

    def __init__(self, index: int, kits: Sequence[Path], ports: Sequence[int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._loop.run_until_complete(self._connect(index, kits, ports))

    async def _connect(self, index: int, kits: Sequence[Path], ports: Sequence[int]) -> None:
        def context(purpose: int) -> ssl.SSLContext:
            made = ssl.SSLContext(purpose)
            made.minimum_version = ssl.TLSVersion.TLSv1_3
            made.load_verify_locations(kits[index] / "authority.pem")
            made.load_cert_chain(kits[index] / "site.pem", kits[index] / "site.key")
            made.verify_mode = ssl.CERT_REQUIRED
            return made

        accepted = asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._links.append((reader, writer))
            accepted.set()

        limit, following = 1 << 22, (index + 1) % len(kits)
        self._server = await asyncio.start_server(
            accept, "127.0.0.1", ports[index], ssl=context(ssl.PROTOCOL_TLS_SERVER), limit=limit
        )
        while True:
            try:
                link = await asyncio.open_connection(
                    "127.0.0.1",
                    ports[following],
                    ssl=context(ssl.PROTOCOL_TLS_CLIENT),
                    server_hostname=kits[following].name,
                    limit=limit,
                )
                break
            except OSError:
                await asyncio.sleep(0.05)
        self._links.append(link)
        await accepted.wait()

    def rounds(self, count: int, payload: Array) -> None:
        """Exchange a payload ``count`` times and check the sizes of what is received."""
        self._loop.run_until_complete(self._rounds(count, payload.tobytes()))

    async def _rounds(self, count: int, payload: bytes) -> None:
        async def read(reader: asyncio.StreamReader) -> bytes:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            return await reader.readexactly(length)

        for _ in range(count):
            for _, writer in self._links:
                writer.write(_LENGTH.pack(len(payload)))
                writer.write(payload)
            reading = [asyncio.ensure_future(read(reader)) for reader, _ in self._links]
            for _, writer in self._links:
                await writer.drain()
            for message in reading:
                assert len(await message) == len(payload)

    def stop(self) -> None:
        """Close all connections."""
        for _, writer in self._links:
            writer.transport.abort()
        self._server.close()
        self._loop.run_until_complete(asyncio.sleep(0.01))


# --------------------------------------------------------------------------------------------------------- measurements


class RoundTimes(NamedTuple):
    """Median seconds of a round, and median ratios to a bare exchange in the same repetition."""

    bare: float
    exchange: float
    relayed: float
    exchange_ratio: float
    relayed_ratio: float


def round_times(folder: Path, repetitions: int, agents: int = 10) -> dict[int, RoundTimes]:
    """Return, by message size, how long a bare exchange takes, a round through Node, and a round relayed by it."""
    found = {}
    for size, (bare, exchange, relayed) in time_rounds(folder, repetitions, agents).items():
        numbers = (bare, exchange, relayed, exchange / bare, relayed / bare)
        found[size] = RoundTimes(*(float(np.median(one)) for one in numbers))
    return found


def time_rounds(
    folder: Path, repetitions: int, agents: int, plan: Sequence[tuple[int, int]] = _ROUNDS
) -> dict[int, Array]:
    """Return, by message size, the seconds of a round in every repetition: bare, through Node and relayed, ``(3, r)``.

    ``plan`` has the sizes of messages, and the number of rounds in a repetition. The three take turns.
    """
    with Fleet(folder, Setup(agents=agents)) as fleet:
        barrier = multiprocessing.get_context("forkserver").Barrier(agents)
        kits, ports = [fleet.kit(j) for j in range(agents)], free_ports(agents)
        work = (kits, ports, plan, repetitions, barrier)
        taken = np.mean([np.asarray(one) for one in _run_processes(_time_rounds, agents, work, 240.0)], axis=0)
    return {size: seconds for (size, _), seconds in zip(plan, taken, strict=True)}


def _time_rounds(
    index: int,
    results: Connection,
    kits: Sequence[Path],
    ports: Sequence[int],
    plan: Sequence[tuple[int, int]],
    repetitions: int,
    barrier: Any,
) -> None:
    bare, node = _BareExchange(index, kits, ports), _NodeExchange(kits[index] / "site.toml", 1 << 24)
    kinds = (bare.rounds, node.rounds, node.relayed_rounds)
    taken = np.zeros((len(plan), _KINDS, repetitions))
    for at, (size, count) in enumerate(plan):
        payload = np.zeros(size // 8)
        for repetition in range(-1, repetitions):
            for kind in np.roll(range(_KINDS), repetition):
                barrier.wait(120)
                begun = time.perf_counter()
                kinds[kind](count if repetition >= 0 else max(count // 5, 1), payload)
                if repetition >= 0:
                    taken[at, kind, repetition] = (time.perf_counter() - begun) / count
    barrier.wait(120)
    results.send(taken.tolist())
    bare.stop()
    node.stop()


def large_message(folder: Path, size: int) -> tuple[float, bool]:
    """Send ``size`` bytes in both directions between two sites; return the seconds, and whether both arrived intact."""
    with Fleet(folder, Setup(agents=2, topology="path")) as fleet:
        sites = [fleet.kit(j) / "site.toml" for j in range(2)]
        found = _run_processes(_send_large, 2, (sites, size), 240.0)
    return max(one[0] for one in found), found[0][1] == found[1][2] and found[1][1] == found[0][2]


def _send_large(index: int, results: Connection, sites: Sequence[Path], size: int) -> None:
    exchange = _NodeExchange(sites[index], size)
    payload = np.random.default_rng(index).standard_normal(size // 8)
    began = time.perf_counter()
    (message,) = exchange.exchange(payload).values()
    seconds = time.perf_counter() - began
    assert message.payload is not None
    digests = [hashlib.sha256(np.ascontiguousarray(one).data).hexdigest() for one in (payload, message.payload)]
    exchange.stop()
    results.send((seconds, *digests))


def _run_processes(work: Callable[..., None], count: int, arguments: tuple[object, ...], limit: float) -> list[Any]:
    """Run ``work`` in ``count`` processes and return what each of them sends back within ``limit`` seconds."""
    context = multiprocessing.get_context("forkserver")
    processes: list[Process] = []
    pipes: list[Connection] = []
    try:
        for index in range(count):
            here, there = context.Pipe(duplex=False)
            processes.append(start_process(work, index, there, *arguments))
            pipes.append(here)
            there.close()
        found, end = [], time.monotonic() + limit
        for pipe in pipes:
            if not pipe.poll(max(end - time.monotonic(), 0.0)):
                raise Hung(f"no measurement within {limit:g} s")
            found.append(pipe.recv())
        return found
    finally:
        _stop(processes)


def _stop(processes: Sequence[Process]) -> None:
    """Wait a few seconds for processes to end, then kill the rest."""
    end = time.monotonic() + 5.0
    for process in processes:
        while process.exitcode is None and time.monotonic() < end:
            time.sleep(0.02)
        if process.exitcode is None and process.pid is not None:
            os.kill(process.pid, 9)
