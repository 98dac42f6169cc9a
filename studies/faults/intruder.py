"""An intruder that uses the kit of a neighbour to send thousands of random and damaged frames.

It completes the TLS handshake and the exchange of Challenge and Proof, since agents read no other frames before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Sent", "send_bad_frames", "send_random_bytes"]


@dataclass
class Sent:
    """What the intruder has sent.

    Parameters
    ----------
    frames, streams, refusals
        Numbers of frames sent, of streams opened, and of streams that the agent ended.
    seconds
        Duration of the sending.
    control
        Monotonic time at which a valid message was sent as a control, which must have an effect; 0 if none was sent.
    """

    frames: int = 0
    streams: int = 0
    refusals: int = 0
    seconds: float = 0.0
    control: float = 0.0


def send_bad_frames(site: Path, target: str, frames: int, seed: int, out: Path) -> None:
    """Send bad frames to the site ``target`` with the kit of ``site.toml``; write :class:`Sent` to ``out`` as JSON."""
    from deepca.sites.config.site_file import read_site
    from deepca.sites.pki.identity import Identity
    from deepca.sites.protocol.fingerprints import network_digest

    file = read_site(site)
    index = file.network.index(target)
    address = str(file.network.sites[index].address)
    run = network_digest(file.network)
    sent = asyncio.run(_send_bad_frames(Identity.load(file), file.site, file.index, target, address, frames, seed, run))
    out.write_text(json.dumps(vars(sent)), encoding="utf-8")


async def _send_bad_frames(
    credentials: Any, me: str, place: int, target: str, address: str, frames: int, seed: int, run: bytes
) -> Sent:
    from deepca.sites.transport import tls  # isort: skip  # before anything that imports grpc
    import grpc.aio

    sent, rng, began = Sent(), np.random.default_rng(seed), time.monotonic()
    options = [("grpc.ssl_target_name_override", target), ("grpc.use_local_subchannel_pool", 1)]

    def connect() -> Any:
        return grpc.aio.secure_channel(address, tls.channel_credentials(credentials), options=options)

    while sent.frames < frames and time.monotonic() - began < 600.0:
        async with connect() as channel:
            # a connection stalls after many of its streams were aborted, so it is replaced after a few
            for _ in range(20):
                call = channel.stream_stream("/deepca.v1.Link/Talk")()
                try:
                    await asyncio.wait_for(_stream(call, credentials, me, rng, run, sent), 2.0)
                except Exception as error:  # the stream was refused, which shows as many types of exceptions
                    sent.refusals += 1
                    if isinstance(error, TimeoutError):
                        break
                finally:
                    call.cancel()
    sent.seconds = time.monotonic() - began
    for _ in range(20):  # control: a valid message must have an effect
        async with connect() as channel:
            call = channel.stream_stream("/deepca.v1.Link/Talk")()
            try:
                if await asyncio.wait_for(_send_control(call, credentials, me, place, run, sent), 5.0):
                    break
            except Exception:
                await asyncio.sleep(0.2)
            finally:
                call.cancel()
    return sent


async def _authenticate(call: Any, credentials: Any, me: str, run: bytes) -> tuple[Any, Any]:
    """Authenticate as a neighbour; return the Hello received from the agent, and a valid Hello to send."""
    from deepca.sites.protocol import wire_pb2 as wire
    from deepca.sites.protocol.handshake import Handshake
    from deepca.sites.runtime.link import hello_check

    handshake = Handshake(me, credentials)
    await call.write(handshake.challenge().SerializeToString())
    proof = handshake.proof(wire.Frame.FromString(await call.read()))
    await call.write(proof.SerializeToString())
    await call.read()  # the Proof of the agent
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


async def _send_control(call: Any, credentials: Any, me: str, place: int, run: bytes, sent: Sent) -> bool:
    """Send one valid message, a record of the intruder's site, and return whether it was acknowledged."""
    from deepca.sites.protocol import wire_pb2 as wire
    from deepca.sites.protocol.signatures import RECORD_LABEL

    hello, mine = await _authenticate(call, credentials, me, run)
    await call.write(wire.Frame(hello=mine).SerializeToString())
    record = wire.Record(
        site=place, incarnation=mine.incarnation, boot=mine.boot, version=1 << 40, phase="failed", reached=-1
    )
    part = wire.Part(seq=hello.heard + 1, session=mine.session)
    content = record.SerializeToString()
    signed_record = wire.Sealed(
        record=content,
        certificate=credentials.certificate_der,
        signature=credentials.sign(RECORD_LABEL + run + content),
    )
    part.parcel = wire.Parcel(records=wire.Records(sealed=[signed_record])).SerializeToString()
    sent.control = time.monotonic()
    await call.write(wire.Frame(part=_with_checksum(part)).SerializeToString())
    for _ in range(20):
        frame = wire.Frame.FromString(await call.read())
        if max(frame.beat.heard, frame.part.heard) > hello.heard:
            return True
    return False


async def _stream(call: Any, credentials: Any, me: str, rng: np.random.Generator, run: bytes, sent: Sent) -> None:
    """Authenticate and then send bad frames until the agent ends the stream."""
    from deepca.sites.protocol import wire_pb2 as wire

    hello, mine = await _authenticate(call, credentials, me, run)
    sent.streams += 1
    if rng.random() < 0.8:
        await call.write(wire.Frame(hello=mine).SerializeToString())
    reading = asyncio.ensure_future(_drain(call))
    try:
        for _ in range(8):
            if reading.done():
                break
            content = _bad_frame(rng, hello, mine)
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


def _bad_frame(rng: np.random.Generator, theirs: Any, mine: Any) -> bytes:
    """Return a random frame that must have no effect."""
    kind = rng.random()
    if kind < 0.2:
        return rng.bytes(int(rng.integers(1, 2000)))
    if kind < 0.6:
        return _damaged(rng, _part(rng, theirs, mine, _parcel(rng), valid=True).SerializeToString())
    if kind < 0.75:  # well-formed, of the right session and in order, but with meaningless content
        content = bytes(_part(rng, theirs, mine, _parcel(rng), valid=True).SerializeToString())
        theirs.heard += 1
        return content
    if kind < 0.95:
        return bytes(_part(rng, theirs, mine, _parcel(rng), valid=False).SerializeToString())
    return _misplaced_frame(rng, mine)


def _damaged(rng: np.random.Generator, content: bytes) -> bytes:
    """Return ``content`` with flipped bits, truncated, or with random bytes inserted."""
    changed = bytearray(content)
    match int(rng.integers(3)):
        case 0:
            for _ in range(int(rng.integers(1, 9))):
                changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
        case 1:
            del changed[int(rng.integers(len(changed))) :]
        case _:
            at = int(rng.integers(len(changed)))
            changed[at:at] = rng.bytes(int(rng.integers(1, 40)))
    return bytes(changed)


def _parcel(rng: np.random.Generator) -> Any:
    """Return a well-formed but useless message: data of an unknown plan, a bogus record, or an unknown result."""
    from deepca.sites.protocol import wire_pb2 as wire

    match int(rng.integers(4)):
        case 0:
            array = wire.Array(dtype="f8", shape=[4, 3])
            return wire.Parcel(data=wire.Data(plan=rng.bytes(32), epoch=1, phase="mix", iteration=3, payload=array))
        case 1:
            record = wire.Record(site=int(rng.integers(99, 200)), phase="running", incarnation=5, boot=5, version=9)
            signed_record = wire.Sealed(
                record=record.SerializeToString(), certificate=rng.bytes(80), signature=rng.bytes(70)
            )
            return wire.Parcel(records=wire.Records(sealed=[signed_record]))
        case 2:
            return wire.Parcel(outcome=wire.Outcome(outcome=rng.bytes(32)))
        case _:
            return wire.Parcel(wanted=wire.Wanted(outcome=rng.bytes(32)))


def _part(rng: np.random.Generator, theirs: Any, mine: Any, parcel: Any, *, valid: bool) -> Any:
    """Return a frame with a Part of the right session and a correct checksum; unless ``valid``, one field is wrong."""
    from deepca.sites.protocol import wire_pb2 as wire

    body = rng.bytes(96)
    part = wire.Part(seq=theirs.heard + 1, session=mine.session, total=len(body), chunk=body)
    part.parcel = parcel.SerializeToString()
    if not valid:
        match int(rng.integers(7)):
            case 0:
                part.total = 1 << int(rng.integers(35, 62))  # the agent must not allocate this
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
    return wire.Frame(part=_with_checksum(part))


def _with_checksum(part: Any) -> Any:
    """Set the right checksum, so that the agent's later checks are reached."""
    from deepca.sites.runtime.link import checksum

    numbers = part.seq, part.session, part.index, part.offset, part.total, part.heard
    part.check = checksum(*numbers, rest=(part.parcel, part.chunk))
    return part


def _misplaced_frame(rng: np.random.Generator, mine: Any) -> bytes:
    """Return an altered Hello, or a frame that does not belong within a session."""
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


def send_random_bytes(port: int, connections: int, seed: int) -> int:
    """Send random bytes instead of a TLS handshake; return how many connections were answered by more than an alert."""
    rng, answered = random.Random(seed), 0
    for _ in range(connections):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2.0) as connection:
            connection.sendall(rng.randbytes(rng.randrange(1, 3000)))
            connection.settimeout(0.5)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while data := connection.recv(4096):
                answer += data
            answered += len(answer) > 64
    return answered
