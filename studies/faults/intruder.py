"""Somebody who holds the kit of a neighbour and means no good: thousands of random and damaged frames.

It gets through TLS, Challenge and Proof as any neighbour does, since only then anybody listens to its frames at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Sent", "deluge", "garbage"]


@dataclass
class Sent:
    """What was sent, and how many streams and refusals that took.

    control : when, by the clock of the machine, one message was sent that has to have an effect; 0 if none.
    """

    frames: int = 0
    streams: int = 0
    refusals: int = 0
    seconds: float = 0.0
    control: float = 0.0


def deluge(site: Path, target: str, frames: int, seed: int, out: Path) -> None:
    """Sends so many frames with the kit beside ``site``, its ``site.toml``, to the site called ``target``."""
    from deepca.sites.config.site_file import read_site
    from deepca.sites.pki.identity import Identity

    file = read_site(site)
    index = file.network.index(target)
    address = str(file.network.sites[index].address)
    sent = asyncio.run(_deluge(Identity.load(file), file.site, file.index, target, address, frames, seed, _run(file)))
    out.write_text(json.dumps(vars(sent)), encoding="utf-8")


def _run(file: Any) -> bytes:
    from deepca.sites.protocol.fingerprints import run_of

    return run_of(file.network)


async def _deluge(
    credentials: Any, me: str, place: int, target: str, address: str, frames: int, seed: int, run: bytes
) -> Sent:
    from deepca.sites.transport import tls  # isort: skip  # first of all that import grpc
    import grpc.aio

    sent, rng, began = Sent(), np.random.default_rng(seed), time.monotonic()
    options = [("grpc.ssl_target_name_override", target), ("grpc.use_local_subchannel_pool", 1)]

    def connect() -> Any:
        return grpc.aio.secure_channel(address, tls.channel_credentials(credentials), options=options)

    while sent.frames < frames and time.monotonic() - began < 600.0:
        async with connect() as channel:
            # a connection on which many streams were cut off lets no more through after a while; agents make a new one
            # for every stream
            for _ in range(20):
                call = channel.stream_stream("/deepca.v1.Link/Talk")()
                try:
                    await asyncio.wait_for(_stream(call, credentials, me, rng, run, sent), 2.0)
                except Exception as error:  # thrown out, in one of the many ways in which a stream can end; comes again
                    sent.refusals += 1
                    if isinstance(error, TimeoutError):
                        break
                finally:
                    call.cancel()
    sent.seconds = time.monotonic() - began
    for _ in range(20):  # what does nothing proves nothing, unless something else does
        async with connect() as channel:
            call = channel.stream_stream("/deepca.v1.Link/Talk")()
            try:
                if await asyncio.wait_for(_control(call, credentials, me, place, run, sent), 5.0):
                    break
            except Exception:
                await asyncio.sleep(0.2)
            finally:
                call.cancel()
    return sent


async def _enter(call: Any, credentials: Any, me: str, run: bytes) -> tuple[Any, Any]:
    """Gets in as a neighbour does: the other side's Hello, and ours, which is not sent yet."""
    from deepca.sites.protocol import wire_pb2 as wire
    from deepca.sites.protocol.handshake import Handshake
    from deepca.sites.runtime.link import hello_check

    handshake = Handshake(me, credentials)
    await call.write(handshake.challenge().SerializeToString())
    proof = handshake.proof(wire.Frame.FromString(await call.read()))
    await call.write(proof.SerializeToString())
    await call.read()  # its Proof
    hello = wire.Frame.FromString(await call.read()).hello
    mine = wire.Hello(
        incarnation=max(hello.known, 1),
        boot=hello.known_boot or 7,
        known=hello.incarnation,
        known_boot=hello.boot,
        session=hello.boot ^ (hello.known_boot or 7),
        greeted=True,
        run=run,
    )
    mine.check = hello_check(mine)
    if hello.session != mine.session:
        hello.heard = 0
    return hello, mine


async def _control(call: Any, credentials: Any, me: str, place: int, run: bytes, sent: Sent) -> bool:
    """One message that is as it should be, news of this site itself; whether it was heard."""
    from deepca.sites.protocol import wire_pb2 as wire
    from deepca.sites.protocol.signatures import RECORD_LABEL

    hello, mine = await _enter(call, credentials, me, run)
    await call.write(wire.Frame(hello=mine).SerializeToString())
    record = wire.Record(
        site=place, incarnation=mine.incarnation, boot=mine.boot, version=1 << 40, phase="failed", reached=-1
    )
    part = wire.Part(seq=hello.heard + 1, session=mine.session)
    said = record.SerializeToString()
    sealed = wire.Sealed(
        record=said,
        certificate=credentials.certificate_der,
        signature=credentials.sign(RECORD_LABEL + run + said),
    )
    part.parcel = wire.Parcel(records=wire.Records(sealed=[sealed])).SerializeToString()
    sent.control = time.monotonic()
    await call.write(wire.Frame(part=_checked(part)).SerializeToString())
    for _ in range(20):
        frame = wire.Frame.FromString(await call.read())
        if max(frame.beat.heard, frame.part.heard) > hello.heard:
            return True
    return False


async def _stream(call: Any, credentials: Any, me: str, rng: np.random.Generator, run: bytes, sent: Sent) -> None:
    """Gets in, and then misbehaves until it is thrown out."""
    from deepca.sites.protocol import wire_pb2 as wire

    hello, mine = await _enter(call, credentials, me, run)
    sent.streams += 1
    if rng.random() < 0.8:
        await call.write(wire.Frame(hello=mine).SerializeToString())
    reading = asyncio.ensure_future(_drain(call))
    try:
        for _ in range(8):
            if reading.done():
                break
            content = _frame(rng, hello, mine)
            await call.write(content)
            sent.frames += 1
            await asyncio.sleep(0.001)
        await asyncio.wait({reading}, timeout=0.02)
        sent.refusals += reading.done()
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await reading


async def _drain(call: Any) -> None:
    import grpc.aio

    while await call.read() is not grpc.aio.EOF:
        pass


def _frame(rng: np.random.Generator, theirs: Any, mine: Any) -> bytes:
    """One that must have no effect."""
    kind = rng.random()
    if kind < 0.2:
        return rng.bytes(int(rng.integers(1, 2000)))
    if kind < 0.6:
        return _damaged(rng, _part(rng, theirs, mine, _parcel(rng), valid=True).SerializeToString())
    if kind < 0.75:  # well-formed, of the right session, next in order: only what it says is nonsense
        content = bytes(_part(rng, theirs, mine, _parcel(rng), valid=True).SerializeToString())
        theirs.heard += 1
        return content
    if kind < 0.95:
        return bytes(_part(rng, theirs, mine, _parcel(rng), valid=False).SerializeToString())
    return _other(rng, mine)


def _damaged(rng: np.random.Generator, content: bytes) -> bytes:
    changed = bytearray(content)
    match int(rng.integers(3)):
        case 0:  # a bit here and there
            for _ in range(int(rng.integers(1, 9))):
                changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
        case 1:
            del changed[int(rng.integers(len(changed))) :]
        case _:
            at = int(rng.integers(len(changed)))
            changed[at:at] = rng.bytes(int(rng.integers(1, 40)))
    return bytes(changed)


def _parcel(rng: np.random.Generator) -> Any:
    """A message as agents send them: of an epoch that is not, a record of nonsense, a result that nobody has."""
    from deepca.sites.protocol import wire_pb2 as wire

    match int(rng.integers(4)):
        case 0:
            array = wire.Array(dtype="f8", shape=[4, 3])
            return wire.Parcel(data=wire.Data(plan=rng.bytes(32), epoch=1, phase="mix", iteration=3, payload=array))
        case 1:
            record = wire.Record(site=int(rng.integers(99, 200)), phase="running", incarnation=5, boot=5, version=9)
            sealed = wire.Sealed(record=record.SerializeToString(), certificate=rng.bytes(80), signature=rng.bytes(70))
            return wire.Parcel(records=wire.Records(sealed=[sealed]))
        case 2:
            return wire.Parcel(outcome=wire.Outcome(outcome=rng.bytes(32)))
        case _:
            return wire.Parcel(wanted=wire.Wanted(outcome=rng.bytes(32)))


def _part(rng: np.random.Generator, theirs: Any, mine: Any, parcel: Any, *, valid: bool) -> Any:
    """A Part of the right session. valid : with the right checksum, to be damaged; else one that lies about itself."""
    from deepca.sites.protocol import wire_pb2 as wire

    body = rng.bytes(96)
    part = wire.Part(seq=theirs.heard + 1, session=mine.session, total=len(body), chunk=body)
    part.parcel = parcel.SerializeToString()
    if not valid:
        match int(rng.integers(7)):
            case 0:
                part.total = 1 << int(rng.integers(35, 62))  # never to be allocated
            case 1:
                part.offset = int(rng.integers(1, 1 << 40))
            case 2:
                part.index = int(rng.integers(1, 1 << 20))
            case 3:
                part.seq = int(rng.integers(50, 1 << 60))
            case 4:
                part.session = int(rng.integers(1, 1 << 62))
            case 5:
                part.parcel = rng.bytes(50)
            case _:
                part.heard = int(rng.integers(1 << 30, 1 << 60))
    return wire.Frame(part=_checked(part))


def _checked(part: Any) -> Any:
    """With the right checksum, so that what is behind it is reached."""
    from deepca.sites.runtime.link import checksum

    numbers = part.seq, part.session, part.index, part.offset, part.total, part.heard
    part.check = checksum(*numbers, rest=(part.parcel, part.chunk))
    return part


def _other(rng: np.random.Generator, mine: Any) -> bytes:
    """Hellos and what does not belong within a session."""
    from deepca.sites.protocol import wire_pb2 as wire
    from deepca.sites.runtime.link import hello_check

    match int(rng.integers(5)):
        case 0:
            changed = wire.Hello()
            changed.CopyFrom(mine)
            changed.run = rng.bytes(32)
            changed.check = hello_check(changed)
            return bytes(wire.Frame(hello=changed).SerializeToString())
        case 1:
            return bytes(wire.Frame(challenge=wire.Challenge(protocol=1, nonce=rng.bytes(32))).SerializeToString())
        case 2:
            return bytes(wire.Frame(proof=wire.Proof(signature=rng.bytes(70))).SerializeToString())
        case 3:
            return bytes(wire.Frame(beat=wire.Beat(heard=int(rng.integers(1 << 30, 1 << 60)))).SerializeToString())
        case _:
            return _damaged(rng, bytes(wire.Frame(hello=mine).SerializeToString()))


def garbage(port: int, connections: int, seed: int) -> int:
    """So many connections that send random bytes for a handshake; how many were answered by more than an alert."""
    rng, answered = random.Random(seed), 0
    for _ in range(connections):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2.0) as plug:
            plug.sendall(rng.randbytes(rng.randrange(1, 3000)))
            plug.settimeout(0.5)
            plug.shutdown(socket.SHUT_WR)
            said = b""
            while data := plug.recv(4096):
                said += data
            answered += len(said) > 64
    return answered


if __name__ == "__main__":
    sys.exit("see studies.faults.cases")
