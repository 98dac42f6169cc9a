"""Time of one round over real connections: ten processes in a ring, each sends to both neighbours and waits for both.

    python -m benchmarks.streams

Compared with the least that a Python program can do: asyncio streams over mutual TLS, messages with their length in
front. Both run in the same processes, in turn. The streams of deepca are used as agents use them: a thread that
computes (here: waits) beside the event loop's.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import multiprocessing
import os
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from benchmarks.timing import spread
from deepca.sites import wire_pb2 as wire
from deepca.sites.streams import Peer, Streams

GOALS = {12_000: 3.0, 1_000_000: 1.5}
"""Times the bare exchange, by bytes of a message."""


@dataclass(frozen=True)
class Site:
    """What one process needs to know. Ports are bound by the parent beforehand, so nobody has to ask for them."""

    index: int
    agents: int
    folder: Path
    bare_ports: Sequence[int]
    ports: Sequence[int]
    chunk: int
    options: dict[str, int]


def name(index: int) -> str:
    return f"site{index}"


class Kit:
    """Credentials from files."""

    def __init__(self, folder: Path, index: int) -> None:
        self.authority = (folder / "authority.pem").read_bytes()
        self.certificate = (folder / f"{index}.pem").read_bytes()
        self.key = (folder / f"{index}.key").read_bytes()
        loaded = x509.load_pem_x509_certificate(self.certificate)
        self.certificate_der = loaded.public_bytes(serialization.Encoding.DER)
        private = serialization.load_pem_private_key(self.key, None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        self._private = private

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data, ec.ECDSA(hashes.SHA256()))

    def check_peer(self, certificate_der: bytes, expected_site: str) -> None:
        pass

    def verify_signature(self, certificate_der: bytes, signature: bytes, data: bytes) -> bool:
        return True

    def changed(self) -> bool:
        return False

    def reload(self) -> Kit:
        return self


def make_kits(folder: Path, agents: int) -> None:
    """An authority, and a certificate for each site."""
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)

    def sign(subject: str, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey, *more: Any) -> bytes:
        def named(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        builder = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named("authority"))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - day).not_valid_after(now + day)
        for extension in more:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority = ec.generate_private_key(ec.SECP256R1())
    own = sign("authority", authority, authority, x509.BasicConstraints(ca=True, path_length=0))
    (folder / "authority.pem").write_bytes(own)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    for index in range(agents):
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name(index))])
        (folder / f"{index}.pem").write_bytes(sign(name(index), key, authority, names, usage))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{index}.key").write_bytes(private)


# ------------------------------------------------------------------------------------------------------------- the bare


class Bare:
    """asyncio streams and ssl, nothing else; site i dials i + 1."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._loop = asyncio.new_event_loop()
        self._links: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def _context(self, purpose: int) -> ssl.SSLContext:
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self._site.folder / "authority.pem")
        own = self._site.folder / f"{self._site.index}.pem"
        context.load_cert_chain(own, own.with_suffix(".key"))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def connect(self) -> None:
        self._loop.run_until_complete(self._connect())

    async def _connect(self) -> None:
        site, accepted = self._site, asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._links.append((reader, writer))
            accepted.set()

        port = site.bare_ports[site.index]
        limit = 1 << 22
        await asyncio.start_server(accept, "127.0.0.1", port, ssl=self._context(ssl.PROTOCOL_TLS_SERVER), limit=limit)
        following = (site.index + 1) % site.agents
        while True:
            try:
                link = await asyncio.open_connection(
                    "127.0.0.1",
                    site.bare_ports[following],
                    ssl=self._context(ssl.PROTOCOL_TLS_CLIENT),
                    server_hostname=name(following),
                    limit=limit,
                )
                break
            except OSError:
                await asyncio.sleep(0.05)
        self._links.append(link)
        await accepted.wait()

    def rounds(self, count: int, payload: bytes) -> None:
        self._loop.run_until_complete(self._rounds(count, payload))

    async def _rounds(self, count: int, payload: bytes) -> None:
        async def read(reader: asyncio.StreamReader) -> bytes:
            (length,) = struct.unpack("<Q", await reader.readexactly(8))
            return await reader.readexactly(length)

        for _ in range(count):
            for _, writer in self._links:
                writer.write(struct.pack("<Q", len(payload)))
                writer.write(payload)
            reading = [asyncio.ensure_future(read(reader)) for reader, _ in self._links]
            for _, writer in self._links:
                await writer.drain()
            for message in reading:
                assert len(await message) == len(payload)

    def stop(self) -> None:
        for _, writer in self._links:
            writer.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()


# ----------------------------------------------------------------------------------------------------------- of deepca


class Ours:
    """The streams of deepca, with the simplest endpoint that a waiting thread can use."""

    def __init__(self, site: Site) -> None:
        self._chunk = site.chunk
        self._moved = threading.Condition()
        before, after = (site.index - 1) % site.agents, (site.index + 1) % site.agents
        address = [f"127.0.0.1:{port}" for port in site.ports]
        peers = [
            Peer(before, name(before), address[before], dial=False),
            Peer(after, name(after), address[after], True),
        ]
        me = Peer(site.index, name(site.index), address[site.index], dial=False)
        self._streams = Streams(self, me, peers, me.address, Kit(site.folder, site.index), options=site.options)
        self._peers = [before, after]
        self._up: set[int] = set()
        self._out: dict[int, deque[wire.Frame]] = {peer: deque() for peer in self._peers}
        self._body = {peer: bytearray() for peer in self._peers}
        self._whole: dict[int, deque[bytearray]] = {peer: deque() for peer in self._peers}

    def connect(self) -> None:
        self._streams.start()
        with self._moved:
            assert self._moved.wait_for(lambda: len(self._up) == 2, 30.0)

    def rounds(self, count: int, payload: bytes) -> None:
        for number in range(count):
            for peer in self._peers:
                for offset in range(0, len(payload), self._chunk):
                    part = wire.Part(seq=number, offset=offset, total=len(payload))
                    part.chunk = payload[offset : offset + self._chunk]
                    self._out[peer].append(wire.Frame(part=part))
                self._streams.wake(peer)
            with self._moved:
                assert self._moved.wait_for(lambda: all(self._whole.values()), 60.0)
                for peer in self._peers:
                    assert len(self._whole[peer].popleft()) == len(payload)

    def stop(self) -> None:
        self._streams.stop()

    def opened(self, peer: int) -> None:
        with self._moved:
            self._up.add(peer)
            self._moved.notify()

    def closed(self, peer: int, why: str) -> None:
        self._up.discard(peer)

    def refused(self, peer: int | None, where: str, why: str) -> None:
        print("refused", peer, where, why)

    def next_frame(self, peer: int) -> wire.Frame | None:
        waiting = self._out[peer]
        return waiting.popleft() if waiting else None

    def received(self, peer: int, frame: wire.Frame) -> None:
        part = frame.part
        if part.offset == 0:
            self._body[peer] = bytearray(part.total)
        body = self._body[peer]
        body[part.offset : part.offset + len(part.chunk)] = part.chunk
        if part.offset + len(part.chunk) == part.total:
            with self._moved:
                self._whole[peer].append(body)
                if all(self._whole.values()):
                    self._moved.notify()


# ------------------------------------------------------------------------------------------------------------ measuring


def run_site(site: Site, plan: Sequence[tuple[int, int]], repetitions: int, barrier: Any, results: Connection) -> None:
    """One process. ``plan`` : bytes and rounds; results are seconds per round, by clock, size, kind and repetition."""
    exchanges: list[Bare | Ours] = [Bare(site), Ours(site)]
    for exchange in exchanges:
        exchange.connect()
    taken = np.zeros((2, len(plan), 2, repetitions))
    for at, (size, count) in enumerate(plan):
        payload = bytes(size)
        for repetition in range(-1, repetitions):
            for kind in (0, 1) if repetition % 2 else (1, 0):
                barrier.wait(60)
                begun = np.array([time.perf_counter(), time.process_time()])
                exchanges[kind].rounds(count if repetition >= 0 else max(count // 5, 1), payload)
                if repetition >= 0:
                    taken[:, at, kind, repetition] = (time.perf_counter(), time.process_time()) - begun
                    taken[:, at, kind, repetition] /= count
    barrier.wait(60)
    results.send(taken)
    for exchange in exchanges:
        exchange.stop()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def measure(
    agents: int, plan: Sequence[tuple[int, int]], repetitions: int, chunk: int, options: dict[str, int]
) -> npt.NDArray[np.float64]:
    """Seconds per round, (elapsed or of the processor, size, bare or ours, repetition); the mean over processes."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        make_kits(Path(folder), agents)
        ports = free_ports(2 * agents)
        barrier = spawn.Barrier(agents)
        pipes, processes = [], []
        for index in range(agents):
            here, there = spawn.Pipe(duplex=False)
            site = Site(index, agents, Path(folder), ports[:agents], ports[agents:], chunk, options)
            process = spawn.Process(target=run_site, args=(site, plan, repetitions, barrier, there))
            process.start()
            pipes.append(here)
            processes.append(process)
            there.close()
        try:
            taken = [pipe.recv() for pipe in pipes]
        finally:
            for process in processes:
                process.join(5)
                process.kill()
    return np.asarray(np.mean(taken, axis=0), dtype=np.float64)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streams", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--chunk", type=int, default=1 << 20, help="bytes of a message in one frame")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of gRPC; for trials")
    chosen = parser.parse_args()
    options = {key: int(value) for key, _, value in (one.partition("=") for one in chosen.option)}
    plan = [(12_000, 60), (1_000_000, 6)]
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"{busy:.1f} other programs run: elapsed times say little, and favour whoever has more threads")
    elapsed, processor = measure(chosen.agents, plan, chosen.repetitions, chosen.chunk, options)
    print(f"{chosen.agents} processes in a ring; milliseconds per round, median (quartiles) of {chosen.repetitions}")
    print(f"{'message':>12} {'asyncio TLS':>12} {'deepca':>8} {'ratio':>18} {'goal':>5} {'of processor time':>20}")
    for at, (size, _) in enumerate(plan):
        (bare, ours), (bare_processor, ours_processor) = elapsed[at], processor[at]
        print(
            f"{size:>12,} {np.median(bare) * 1e3:>12.2f} {np.median(ours) * 1e3:>8.2f} {spread(ours / bare)!s:>18}"
            f" {GOALS[size]:>5.1f} {spread(ours_processor / bare_processor)!s:>20}"
        )


if __name__ == "__main__":
    main()
