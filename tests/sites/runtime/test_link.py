"""Test that links deliver every message once and in order, and nothing else, despite lost streams and restarts."""

from __future__ import annotations

import heapq
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepca.errors import FrameError, WrongNetwork
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel
from deepca.sites.protocol.reassembly import CHUNK_SIZE, ReceivedMessage
from deepca.sites.runtime.link import BEAT_INTERVAL, SILENT_AFTER, Link
from tests.laws.strategies import quick
from tests.support.errors import raises
from tests.support.seeds import law_seeds

RUN = b"r" * 32
ANNA, BERT = Incarnation(5, 77), Incarnation(9, 33)


class Pair:
    """Two links, a byte channel between them, and a clock."""

    def __init__(self, seed: int = 0, loss: float = 0.0, double: float = 0.0, late: float = 0.0) -> None:
        self.rng = np.random.default_rng(seed)
        self.loss, self.double, self.late = loss, double, late
        self.now = 0.0
        self.links = [self.new(ANNA), self.new(BERT)]
        self.arrived: list[list[ReceivedMessage]] = [[], []]
        self.written: list[bytes] = []  # all frames ever written to the stream
        self.sizes = [0, 0]  # bytes written, by sender
        self._stream = 0
        self._way: list[tuple[float, int, int, int, bytes]] = []
        self._order = count()

    @staticmethod
    def new(me: Incarnation) -> Link:
        link = Link(me, RUN)
        link.message_limit = 64 * CHUNK_SIZE
        return link

    def open(self) -> None:
        self._stream += 1
        for link in self.links:
            link.opened(self.now)

    def close(self) -> None:
        self._stream += 1  # frames in flight are lost
        for link in self.links:
            link.closed()

    def restart(self, side: int, me: Incarnation) -> None:
        self.close()
        self.links[side] = self.new(me)
        self.arrived[side] = []

    def step(self, seconds: float = 0.01) -> None:
        """Advance the clock, deliver the frames that are due, and write the next ones."""
        self.now += seconds
        while self._way and self._way[0][0] <= self.now:
            _, _, stream, side, content = heapq.heappop(self._way)
            if stream == self._stream:
                self.arrived[side] += self.links[side].received(wire.Frame.FromString(content), self.now)
        for side, link in enumerate(self.links):
            link.tick(self.now)
            while (frame := link.next_frame(self.now)) is not None:
                self.write(side, frame)

    def write(self, side: int, frame: wire.Frame) -> None:
        content = frame.SerializeToString()
        self.written.append(content)
        self.sizes[side] += len(content)
        for _ in range(2 if self.rng.random() < self.double else 1):
            if self.rng.random() >= self.loss:
                delay = 0.005 + (0.1 * self.rng.random() if self.rng.random() < self.late else 0.0)
                heapq.heappush(self._way, (self.now + delay, next(self._order), self._stream, 1 - side, content))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = self.now + seconds
        while self.now < end and not until():
            self.step()

    @property
    def quiet(self) -> bool:
        return all(link.up and link.idle for link in self.links)


def _parcel(number: int, size: int = 0) -> Parcel:
    body = np.random.default_rng(number).bytes(size)
    return Parcel(b"%d" % number, (memoryview(body),) if size else ())


def _numbers(arrived: list[ReceivedMessage]) -> list[int]:
    for one in arrived:
        assert one.body == np.random.default_rng(int(one.header)).bytes(len(one.body))
    return [int(one.header) for one in arrived]


def _up(pair: Pair) -> Pair:
    pair.open()
    pair.run(5.0, lambda: pair.quiet)
    assert pair.quiet
    return pair


# -------------------------------------------------------------------------------------------------- once and in order


@pytest.mark.parametrize("seed", law_seeds(6))
def test_messages_are_delivered_once_and_in_order(seed: int) -> None:
    pair = Pair(seed, *[(0.0, 0.0, 0.0), (0.1, 0.1, 0.3), (0.3, 0.3, 0.5)][seed % 3])
    _up(pair)
    sent = [0, 0]
    while sum(sent) < 1500:
        for side in (0, 1):
            for _ in range(int(pair.rng.integers(4))):
                pair.links[side].send(_parcel(sent[side], int(pair.rng.choice([0, 1, 100]))))
                sent[side] += 1
        pair.step()
        if pair.rng.random() < 0.01:
            pair.close()
            pair.run(0.05)
            pair.open()
    pair.run(600.0, lambda: pair.quiet)
    assert [_numbers(pair.arrived[1 - side]) for side in (0, 1)] == [list(range(n)) for n in sent]


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_messages_with_bodies_of_any_size_arrive(loss: float) -> None:
    sizes = [0, 1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE, 5 * CHUNK_SIZE + 3, 0]
    pair = _up(Pair(1, loss, loss, loss))
    for side in (0, 1):
        for number, size in enumerate(sizes):
            pair.links[side].send(_parcel(number, size))
    pair.run(60.0, lambda: pair.quiet)
    for side in (0, 1):
        assert _numbers(pair.arrived[side]) == list(range(len(sizes)))
        assert [len(one.body) for one in pair.arrived[side]] == sizes


@quick(60)
@given(
    st.lists(st.sampled_from(["send 0", "send 1", "step", "wait", "close", "open"]), max_size=60), st.integers(0, 99)
)
def test_streams_may_break_and_return_at_any_moment(actions: list[str], seed: int) -> None:
    pair, sent = _up(Pair(seed, 0.1, 0.1, 0.2)), [0, 0]
    for action in actions:
        if action.startswith("send"):
            side = int(action[-1])
            pair.links[side].send(_parcel(sent[side], 3))
            sent[side] += 1
        elif action == "step":
            pair.step()
        elif action == "wait":
            pair.run(0.5)
        elif action == "close":
            pair.close()
        else:
            pair.open()
    pair.close()
    pair.open()
    pair.run(60.0, lambda: pair.quiet)
    assert [_numbers(pair.arrived[1 - side]) for side in (0, 1)] == [list(range(n)) for n in sent]


def test_messages_sent_before_the_first_contact_need_an_addressee() -> None:
    pair = Pair()
    pair.links[0].send(_parcel(0))
    pair.links[0].send(_parcel(1), BERT)
    _up(pair)
    assert _numbers(pair.arrived[1]) == [1]


def test_a_lost_hello_is_sent_again() -> None:
    for lost in range(4):
        pair = _up(Pair())
        pair.close()
        pair.open()
        written = 0
        for _ in range(400):
            pair.now += 0.01
            for side, link in enumerate(pair.links):
                link.tick(pair.now)
                while (frame := link.next_frame(pair.now)) is not None:
                    written += 1
                    if written - 1 != lost:
                        pair.links[1 - side].received(frame, pair.now)
        assert pair.quiet, f"frame {lost} was lost"


# ----------------------------------------------------------------------------------------------------------- sessions


@pytest.mark.parametrize("later", [Incarnation(10, 1), Incarnation(9, 34)])
def test_a_restart_starts_a_new_session(later: Incarnation) -> None:
    pair = _up(Pair())
    pair.links[0].send(_parcel(0))
    pair.run(1.0)
    pair.close()
    for number in (1, 2):
        pair.links[0].send(_parcel(number))  # to an incarnation that has ended by now
    pair.links[0].send(_parcel(3), later)  # to the one that is about to start
    pair.links[1].send(_parcel(4))
    pair.restart(1, later)
    pair.open()
    pair.run(5.0, lambda: pair.quiet)
    pair.links[0].send(_parcel(5))
    pair.links[1].send(_parcel(6))
    pair.run(5.0, lambda: pair.quiet)
    assert _numbers(pair.arrived[1]) == [3, 5]
    assert _numbers(pair.arrived[0]) == [6]


def test_an_earlier_incarnation_is_ignored_and_informed_of_the_later_one() -> None:
    pair = _up(Pair())
    earlier = Incarnation(8, 1)
    pair.restart(1, earlier)
    pair.open()
    pair.links[1].send(_parcel(0))
    pair.run(1.0)
    assert not pair.links[0].up
    assert pair.arrived[0] == []
    hellos = [frame.hello for frame in map(wire.Frame.FromString, pair.written) if frame.hello.boot == ANNA.boot]
    assert (hellos[-1].known, hellos[-1].known_boot) == (BERT.number, BERT.boot)
    pair.links[1].take_incarnation(earlier.after(BERT))
    pair.run(5.0, lambda: pair.quiet)
    pair.links[1].send(_parcel(1))
    pair.run(5.0, lambda: pair.quiet)
    assert _numbers(pair.arrived[0])[-1:] == [1]


def test_an_earlier_incarnation_is_shown_its_own_record_at_a_limited_rate() -> None:
    pair = _up(Pair())
    record = wire.Sealed(record=b"of the later incarnation", signature=b"its own")
    pair.links[0].learn_incarnation(BERT, record)
    pair.restart(1, Incarnation(8, 1))
    before = len(pair.written)
    pair.open()
    pair.run(10.0)
    frames = [wire.Frame.FromString(content) for content in pair.written[before:]]
    shown = [frame.hello.yours for frame in frames if frame.hello.boot == ANNA.boot and frame.hello.HasField("yours")]
    assert record in shown
    assert len(shown) <= 10.0 / BEAT_INTERVAL + 2  # as often as any other hello


@pytest.mark.parametrize("seed", law_seeds(20))
def test_a_new_incarnation_on_an_open_stream_loses_no_later_message(seed: int) -> None:
    """Frames of the old session are still in flight, and may be overtaken by frames of the new one."""
    pair = Pair(seed, 0.05, 0.2, 0.6)
    pair.open()
    for number in range(30):
        pair.links[number % 2].send(_parcel(number))
        pair.step()
    pair.links[0].take_incarnation(ANNA.after(Incarnation(6, 1)))
    before = len(pair.arrived[1])
    for number in range(100, 130):
        pair.links[0].send(_parcel(number))
        pair.step()
    for _ in range(3):  # a FrameError may close the stream, but only for a while
        try:
            pair.run(30.0, lambda: pair.quiet)
        except FrameError:
            pair.close()
            pair.open()
    assert pair.quiet
    got = _numbers(pair.arrived[1])
    assert [number for number in got[before:] if number >= 100] == list(range(100, 130))


def test_the_incarnation_after_another_is_later_and_deterministic() -> None:
    seen = Incarnation(2**40, 3)
    after = Incarnation(7, 9).after(seen)
    assert after > seen
    assert after == Incarnation(7, 9).after(seen)
    assert after != Incarnation(7, 10).after(seen)


# ---------------------------------------------------------------------------------------------- replay, damage, limits


def test_replayed_frames_have_no_effect() -> None:
    pair = _up(Pair(3, 0.1, 0.1, 0.1))
    for number in range(40):
        pair.links[number % 2].send(_parcel(number, 10))
        pair.step()
    pair.run(20.0, lambda: pair.quiet)
    old = list(pair.written)
    pair.restart(1, Incarnation(10, 4))  # a new session
    pair.open()
    pair.run(5.0, lambda: pair.quiet)
    for number in range(100, 110):
        pair.links[number % 2].send(_parcel(number, 10))
    pair.run(5.0, lambda: pair.quiet)
    counts = [len(one) for one in pair.arrived]
    for content in [*old, *list(pair.written)]:
        for side, link in enumerate(pair.links):
            try:
                pair.arrived[side] += link.received(wire.Frame.FromString(content), pair.now)
            except FrameError:
                pair.close()
                pair.open()
            pair.run(0.02)
    assert [len(one) for one in pair.arrived] == counts


def _part_of(pair: Pair, size: int = 0) -> wire.Frame:
    pair.links[0].send(_parcel(1, size))
    frame = pair.links[0].next_frame(pair.now)
    assert frame is not None
    assert frame.HasField("part")
    return frame


def test_every_flipped_bit_of_a_part_is_detected() -> None:
    pair = _up(Pair())
    content = _part_of(pair, 24).SerializeToString()
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        try:
            frame = wire.Frame.FromString(bytes(damaged))
        except Exception:  # not a frame
            continue
        try:
            got = pair.links[1].received(frame, pair.now)
        except FrameError:
            got = []
        assert got == [], f"bit {place}"
    assert _numbers(pair.links[1].received(wire.Frame.FromString(content), pair.now)) == [1]


FIELDS: dict[str, dict[str, int | bytes]] = {
    "seq": {"seq": 2},
    "far seq": {"seq": 2**63},
    "session": {"session": 1},
    "index": {"index": 1},
    "offset": {"offset": CHUNK_SIZE},
    "total": {"total": 25},
    "parcel": {"parcel": b"2"},
    "chunk": {"chunk": b"x" * 24},
    "check": {"check": 1},
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_part_is_checked(field: str) -> None:
    pair = _up(Pair())
    frame = _part_of(pair, 24)
    for name, value in FIELDS[field].items():
        setattr(frame.part, name, value)
    with suppress(FrameError):
        assert pair.links[1].received(frame, pair.now) == []
    pair.run(20.0, lambda: pair.quiet)
    assert _numbers(pair.arrived[1]) == [1]  # the genuine Part is still accepted


@pytest.mark.parametrize("kind", ["part", "beat", "hello"])
def test_a_damaged_acknowledgement_loses_no_message(kind: str) -> None:
    """A flipped bit of ``heard`` must not acknowledge a message that was never received."""
    pair = _up(Pair())
    pair.links[1].send(_parcel(9))
    pair.run(2.0)
    frames = [wire.Frame.FromString(content) for content in pair.written]
    own = [one for one in frames if one.HasField("hello") and one.hello.boot == BERT.boot]
    others = [one for one in frames if one.WhichOneof("kind") == kind and getattr(one, kind).heard == 0]
    frame = (own if kind == "hello" else others)[-1]
    pair.links[0].send(_parcel(1))
    getattr(frame, kind).heard = 1  # although no message was received
    with suppress(FrameError):
        pair.links[0].received(frame, pair.now)
    pair.run(20.0, lambda: pair.quiet)
    assert _numbers(pair.arrived[1]) == [1]


def _checksummed(pair: Pair, **fields: int | bytes) -> wire.Frame:
    """Return a Part with changed fields and a correct checksum."""
    frame = _part_of(pair, 24)
    for name, value in fields.items():
        setattr(frame.part, name, value)
    part = frame.part
    numbers = struct.pack("<6Q", part.seq, part.session, part.index, part.offset, part.total, part.heard)
    part.check = zlib.crc32(numbers + part.parcel + part.chunk)
    return frame


@pytest.mark.parametrize(
    "fields",
    [
        {"total": 2**63, "chunk": b"x" * CHUNK_SIZE},
        {"total": 65 * CHUNK_SIZE, "chunk": b"x" * CHUNK_SIZE},
        {"index": 1, "offset": CHUNK_SIZE, "chunk": b""},
        {"total": CHUNK_SIZE, "index": 1, "offset": CHUNK_SIZE, "chunk": b"", "parcel": b""},
        {"index": 2**31, "offset": 2**31 * CHUNK_SIZE},
        {"offset": 1},
        {"chunk": b"x" * 23},
        {"chunk": b"x" * 25},
        {"heard": 2**40},
    ],
)
def test_an_impossible_part_is_refused_before_memory_is_allocated(fields: dict[str, int | bytes]) -> None:
    pair = _up(Pair())
    frame = _checksummed(pair, **fields)
    tracemalloc.start()
    with raises(FrameError, intact="heard" not in fields):
        pair.links[1].received(frame, pair.now)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * CHUNK_SIZE


def test_parts_that_disagree_about_the_size_of_their_message_are_refused() -> None:
    pair = _up(Pair())
    first, second = (_checksummed(pair, seq=2, total=total, chunk=b"x" * total) for total in (24, 25))
    assert pair.links[1].received(first, pair.now) == []
    with raises(FrameError, intact=True):
        pair.links[1].received(second, pair.now)


def _hello_checksum(hello: wire.Hello) -> int:
    who = (hello.incarnation, hello.boot, hello.known, hello.known_boot)
    numbers = struct.pack("<8Q", *who, hello.session, hello.heard, hello.parts, int(hello.greeted))
    return zlib.crc32(numbers + hello.run)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"run": b"q" * 32}, WrongNetwork),
        ({"run": b""}, WrongNetwork),
        ({"incarnation": 2**64 - 1}, FrameError),
        ({"known": 2**64 - 1}, FrameError),
        ({"boot": 0}, FrameError),
        ({"incarnation": 0}, FrameError),
    ],
)
def test_an_invalid_hello_is_refused(fields: dict[str, int | bytes], error: type[FrameError]) -> None:
    pair = Pair()
    pair.open()
    frame = pair.links[0].next_frame(0.0)
    assert frame is not None
    assert frame.hello.check == _hello_checksum(frame.hello)
    for name, value in fields.items():
        setattr(frame.hello, name, value)
    frame.hello.check = _hello_checksum(frame.hello)  # so it is not refused as damaged
    with pytest.raises(FrameError) as caught:
        pair.links[1].received(frame, 0.0)
    assert type(caught.value) is error
    assert not pair.links[1].up


@quick(300)
@given(st.binary(max_size=80), st.booleans())
def test_random_frames_are_never_delivered(content: bytes, greeted: bool) -> None:
    pair = _up(Pair()) if greeted else Pair()
    if not greeted:
        pair.open()
    kinds = [content, b"\x22" + bytes([len(content)]) + content, b"\x2a" + bytes([len(content)]) + content]
    for one in [*kinds, b"\x32" + bytes([len(content)]) + content]:
        try:
            frame = wire.Frame.FromString(one)
        except Exception:  # not a frame: the stream refuses it
            continue
        with suppress(FrameError):
            assert pair.links[1].received(frame, pair.now) == []
    assert pair.links[1].peer in (None, BERT, ANNA)


# -------------------------------------------------------------------------------------------------- memory and speed


def test_at_most_one_window_of_messages_is_in_flight() -> None:
    pair = _up(Pair())
    for number in range(100):
        pair.links[0].send(_parcel(number))
    frames = 0
    while pair.links[0].next_frame(pair.now) is not None:
        frames += 1
    assert frames <= 10


def test_acknowledged_messages_are_freed() -> None:
    pair = _up(Pair())
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(20):
        body = bytes(3 * CHUNK_SIZE)
        pair.links[0].send(Parcel(b"%d" % number, (memoryview(body),)))
        del body
        pair.run(5.0, lambda: pair.quiet)
        pair.arrived[1].clear()
        pair.written.clear()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < CHUNK_SIZE


def _over_a_slow_link(pair: Pair, seconds_per_part: float, breaks: float = 1e9) -> int:
    """Send one message of ten Parts, and return how many Parts were written before it arrived."""
    pair.links[0].send(_parcel(1, 10 * CHUNK_SIZE))
    parts, sender, receiver = 0, *pair.links
    busy_until, in_flight = pair.now, None
    broken = pair.now
    while not pair.arrived[1]:
        pair.now += 0.05
        assert pair.now < 2000.0, "no progress"
        if pair.now - broken > breaks:
            broken, in_flight, busy_until = pair.now, None, pair.now
            for link in pair.links:
                link.closed()
                link.opened(pair.now)
        sender.tick(pair.now)
        receiver.tick(pair.now)
        while (back := receiver.next_frame(pair.now)) is not None:
            sender.received(back, pair.now)
        while pair.now >= busy_until:
            if in_flight is not None:
                pair.arrived[1] += receiver.received(in_flight, pair.now)
            in_flight = sender.next_frame(pair.now)
            if in_flight is None:
                break
            if in_flight.HasField("part"):
                parts += 1
                busy_until = pair.now + seconds_per_part
    return parts


@pytest.mark.parametrize("seconds", [0.1, 1.0, 5.0])
def test_a_large_message_over_a_slow_link_is_not_restarted(seconds: float) -> None:
    pair = _up(Pair())
    assert _over_a_slow_link(pair, seconds) <= 30
    assert _numbers(pair.arrived[1]) == [1]


def test_a_large_message_arrives_over_streams_that_break_before_it_is_complete() -> None:
    """Each stream carries two or three Parts, and continues where the previous one ended."""
    pair = _up(Pair())
    assert _over_a_slow_link(pair, 1.0, breaks=3.5) <= 40
    assert _numbers(pair.arrived[1]) == [1]


def test_a_neighbour_counts_as_silent_only_if_no_beats_arrive() -> None:
    pair = _up(Pair())
    pair.run(10.0)
    assert not any(link.silent(pair.now) for link in pair.links)
    beats = sum(wire.Frame.FromString(content).HasField("beat") for content in pair.written)
    assert beats <= 2 * (10.0 / BEAT_INTERVAL + 2)
    pair.loss = 1.0
    pair.run(SILENT_AFTER + 0.2)
    assert all(link.silent(pair.now) for link in pair.links)
    pair.loss = 0.0
    pair.run(2.0)
    assert not any(link.silent(pair.now) for link in pair.links)


@pytest.mark.parametrize("size", [3, 5 * CHUNK_SIZE])
def test_a_pause_between_messages_causes_no_retransmission(size: int) -> None:
    """The time before a message is sent must not count as waiting for its acknowledgement."""
    pair = _up(Pair())
    for number in range(5):
        pair.run(7.0)
        before = pair.sizes[0]
        pair.links[0].send(_parcel(number, size))
        pair.run(1.0)
        assert pair.sizes[0] - before <= size + 4096
    assert _numbers(pair.arrived[1]) == list(range(5))
    assert pair.links[0].retransmissions == 0
