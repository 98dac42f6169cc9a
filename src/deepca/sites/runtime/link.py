"""One neighbour: messages that have effect once and in order, over streams that may break, lose, double or reorder.

Nothing here waits or knows a clock: whoever drives a link says what time it is (see :mod:`deepca.sites.runtime.node`).
"""

from __future__ import annotations

import struct
import zlib
from collections import deque

from deepca.errors import FrameError, WrongNetwork
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel
from deepca.sites.runtime.arrival import CHUNK, Arrival, Arrived

__all__ = ["BEAT", "SILENCE", "Link", "checksum", "hello_check"]

BEAT = 0.5
"""Seconds after which a side that has nothing to say shows that it is there."""
SILENCE = 2.0
"""Seconds without a word after which a neighbour counts as silent."""
_DAMAGED = "a damaged frame: its checksum is wrong"
_MOST = 1 << 62  # incarnations stay below
_WINDOW = 8  # messages under way at most
_SOON = 0.02  # an acknowledgement waits so long for a message to travel with
_AGAIN, _AGAIN_AT_MOST = 0.4, 3.0  # seconds without progress after which a message is sent again
_TIMES = 4.0  # but no sooner than after so many times what an acknowledgement takes usually


class Link:
    """Both directions of one neighbourhood.

    A *session* is that of two Identities. Within it messages are numbered from 1, kept until the other side says that
    it has heard them, and sent again from there when a stream is new or nothing moves. A new Identity on either side is
    a new session: what was under way is dropped, since whoever it was meant for is gone, but for what was meant for the
    new one already.
    """

    _out: deque[tuple[int, Parcel, Incarnation | None]]  # not yet heard by the other side
    _arriving: dict[int, Arrival]
    _last: int  # number of the last message given to send
    _heard: int  # messages that have had effect here
    _heard_there: int  # and there
    _parts_there: int  # of the message after them
    _at_seq: int  # what is to be sent next
    _at_part: int
    _said: float
    _moved: float
    _owed: float | None  # when an acknowledgement is due
    _patience: float  # seconds without progress before a message is sent again
    _usual: float | None  # seconds from sending to being heard
    _sent: dict[int, float]  # when, of messages sent once
    _again: tuple[int, int] | None  # message and Part to be sent again, before anything else
    _doubted: int  # messages before this one were sent when one got lost

    def __init__(self, me: Incarnation, run: bytes) -> None:
        self._me, self._run = me, run
        self.peer: Incarnation | None = None
        self.known = Incarnation(0, 0)  # the latest start of the other side heard of
        self._sealed: wire.Sealed | None = None  # its newest record, to be shown to a start that counts as earlier
        self._earlier = False  # whether it has just said hello as one
        self._corrected: Incarnation | None = None  # the one that was told so on this stream
        self.open = False
        self.limit = 0  # bytes that a body may have
        self.last_heard = float("-inf")
        self.skew: float | None = None  # of the other side's clock against ours, seconds
        self.sent_bytes = self.received_bytes = self.again = self.stale = 0
        self._greeted = False  # Hello received on this stream
        self.hello_due = False  # whether a Hello goes out before anything else
        self._reset()

    # ------------------------------------------------------------------------------------------------------- streams

    @property
    def up(self) -> bool:
        """Whether both sides have said hello on the present stream."""
        return self.open and self._greeted

    @property
    def _session(self) -> int:
        return 0 if self.peer is None else self._me.boot ^ self.peer.boot

    @property
    def ready(self) -> bool:
        """Whether there are Parts to send now."""
        return self.up and (
            self._again is not None or self._at_seq - self._heard_there - 1 < min(len(self._out), _WINDOW)
        )

    @property
    def idle(self) -> bool:
        """Whether the other side has heard everything."""
        return not self._out

    def opened(self, now: float) -> None:
        self.open, self._greeted, self.hello_due = True, False, True
        self._corrected = None
        self.last_heard = now
        self._rewind(now)

    def closed(self) -> None:
        self.open = self._greeted = False

    def renamed(self, me: Incarnation) -> None:
        """This agent is known under a later incarnation already; it takes a new one, and new sessions begin."""
        self._me = me
        self._reset()
        self._greeted, self.hello_due = False, self.open

    def heard_of(self, seen: Incarnation, sealed: wire.Sealed | None = None) -> bool:
        """Others know of that start of the other side. Whether a hello is due now, since it may not know itself.

        sealed : its record that says so.
        """
        if seen >= self.known:
            self.known, self._sealed = seen, sealed
        if self.open and self.peer is not None and self.peer < self.known:
            self.hello_due = self._earlier = True
        return self.hello_due

    def silent(self, now: float) -> bool:
        return not self.up or now - self.last_heard > SILENCE

    # ------------------------------------------------------------------------------------------------------- sending

    def send(self, parcel: Parcel, to: Incarnation | None = None) -> None:
        """Send a message in the present session; or in the one with ``to``, which may only be about to begin."""
        self._last += 1
        self._out.append((self._last, parcel, to))

    def next_frame(self, now: float) -> wire.Frame | None:
        """The next frame for the stream, if there is one now."""
        if not self.open:
            return None
        if self.hello_due:
            self.hello_due, self._said = False, now
            hello = wire.Hello(
                incarnation=self._me.incarnation,
                boot=self._me.boot,
                known=self.known.incarnation,
                known_boot=self.known.boot,
                session=self._session,
                greeted=self._greeted,
                heard=self._heard,
                parts=self._in_a_row(),
                run=self._run,
            )
            if self._earlier and self._sealed is not None:
                hello.yours.CopyFrom(self._sealed)
            self._earlier = False
            hello.check = hello_check(hello)
            return wire.Frame(hello=hello)
        if not self._greeted or self.peer is None:
            return None
        frame = self._next_part(now)
        if frame is not None:
            self._said, self._owed = now, None
            return frame
        if (self._owed is not None and now >= self._owed) or now - self._said >= BEAT:
            self._said, self._owed = now, None
            heard, parts, session = self._heard, self._in_a_row(), self._session
            check = checksum(heard, parts, session)
            return wire.Frame(beat=wire.Beat(heard=heard, parts=parts, session=session, check=check))
        return None

    def _next_part(self, now: float) -> wire.Frame | None:
        again = self._again is not None
        at_seq, index = self._again if self._again is not None else (self._at_seq, self._at_part)
        place = at_seq - self._heard_there - 1
        if place >= min(len(self._out), _WINDOW):
            return None
        seq, parcel, _ = self._out[place]
        offset = index * CHUNK
        chunk = parcel.slice(offset, CHUNK)
        header = parcel.header if index == 0 else b""
        frame = wire.Frame()
        part = frame.part  # filled in place: a Part of its own would be copied into the frame
        part.seq, part.session, part.index, part.offset, part.total = seq, self._session, index, offset, parcel.total
        part.parcel, part.chunk, part.heard = header, chunk, self._heard
        part.check = checksum(seq, self._session, index, offset, parcel.total, self._heard, rest=(header, chunk))
        self.sent_bytes += len(chunk) + len(header)
        whole = offset + len(chunk) >= parcel.total
        if again:
            self._again = None if whole else (seq, index + 1)
        else:
            self._at_seq, self._at_part = (seq + 1, 0) if whole else (seq, index + 1)
            if place == 0:  # waiting for it begins now, not when there was nothing to wait for
                self._moved = now
            if whole:
                self._sent[seq] = now
        return frame

    def tick(self, now: float) -> bool:
        """Whether there is something to send now: a sign of life, or Parts that may have been lost."""
        if not self.up:
            if self.open and now - self._said >= BEAT:  # a hello may have been lost, here or there
                self.hello_due = True
            return self.open and self.hello_due
        # only what was sent can have been lost
        if self._out and self._at_seq > self._heard_there + 1 and now - self._moved > self._patience:
            # the first message only: it may just be slow, and copies of all would make it slower still
            self._patience = min(2.0 * self._patience, max(_AGAIN_AT_MOST, 2.0 * _TIMES * (self._usual or 0.0)))
            self._again, self._doubted = (self._heard_there + 1, self._parts_there), self._at_seq
            self._sent.clear()  # of what is acknowledged now, nobody knows which copy was heard
            self.again += 1
            self._moved = now
            return True
        return (self._owed is not None and now >= self._owed) or now - self._said >= BEAT

    def _rewind(self, now: float) -> None:
        """Send again from the first Part that the other side has not."""
        self._at_seq, self._at_part = self._heard_there + 1, self._parts_there
        self._again, self._doubted, self._moved = None, 0, now
        self._sent.clear()

    # ----------------------------------------------------------------------------------------------------- receiving

    def received(self, frame: wire.Frame, now: float) -> list[Arrived]:
        """The messages that a frame completes, in order."""
        kind = frame.WhichOneof("kind")
        if kind == "hello":
            self._hello(frame.hello, now)
            return []
        if not self._greeted:
            if self.hello_due or kind in ("part", "beat"):
                return []  # of a session that has just ended; the other side's hello is under way
            raise FrameError(f"a frame of kind {kind} before hello")
        self.last_heard = now
        if kind == "part":
            return self._part(frame.part, now)
        if kind == "beat":
            if frame.beat.check != checksum(frame.beat.heard, frame.beat.parts, frame.beat.session):
                raise FrameError(_DAMAGED)
            if frame.beat.session != self._session:
                self.stale += 1
                return []
            self._acknowledged(frame.beat.heard, frame.beat.parts, now)
            return []
        raise FrameError(f"a frame of kind {kind!r} within a session")

    def _hello(self, hello: wire.Hello, now: float) -> None:
        if hello.check != hello_check(hello):
            raise FrameError(_DAMAGED)
        if hello.run != self._run:
            raise WrongNetwork("another network, or another list of sites; is network.toml the same at both?")
        if max(hello.incarnation, hello.known) >= _MOST or not hello.boot or not hello.incarnation:
            raise FrameError("a hello that makes no sense")
        peer = Incarnation(hello.incarnation, hello.boot)
        if peer < self.known:
            self.stale += 1
            # an earlier start of the other side, or one that must first learn of its later self: our hello tells it,
            # at once and then as often as any other hello, in case it does not learn
            self._earlier = True
            if peer != self._corrected:
                self._corrected, self.hello_due = peer, True
            return
        self.known = peer
        if peer != self.peer:
            meant = [(parcel, to) for _, parcel, to in self._out if to == peer]
            self._reset()
            self.peer = peer
            for parcel, to in meant:
                self.send(parcel, to)
        self._greeted, self.last_heard = True, now
        known = hello.session == self._session
        self.hello_due = self.hello_due or not hello.greeted
        if known:
            self._parts_there = 0
            self._acknowledged(hello.heard, hello.parts, now)
        self._rewind(now)
        self._said = now

    def _part(self, part: wire.Part, now: float) -> list[Arrived]:
        if part.session != self._session:
            self.stale += 1
            return []
        header, chunk = part.parcel, part.chunk  # each look at them makes a copy
        numbers = part.seq, part.session, part.index, part.offset, part.total, part.heard
        if part.check != checksum(*numbers, rest=(header, chunk)):
            raise FrameError(_DAMAGED)
        self._acknowledged(part.heard, 0, now)
        if self._owed is None:
            self._owed = now + _SOON
        if part.seq <= self._heard or part.seq > self._heard + _WINDOW:
            self.stale += 1
            return []
        if part.total > self.limit:
            found = f"a message of {part.total:,} bytes, where {self.limit:,} are the most that can be meant"
            raise FrameError(found, whole=True)
        if (
            part.index >= max(-(-part.total // CHUNK), 1)
            or part.offset != part.index * CHUNK
            or len(chunk) != min(CHUNK, part.total - part.offset)
        ):
            raise FrameError("a Part that does not fit its message", whole=True)
        arrival = self._arriving.get(part.seq)
        if arrival is None:
            arrival = self._arriving[part.seq] = Arrival(part.total)
        if part.total != arrival.total:
            raise FrameError("two Parts that differ in the size of their message", whole=True)
        arrival.add(part.index, header, chunk)
        self.received_bytes += len(chunk) + len(header)
        whole = []
        while (first := self._arriving.get(self._heard + 1)) is not None and first.complete:
            self._heard += 1
            del self._arriving[self._heard]
            whole.append(Arrived(first.header, first.body))
        return whole

    def _acknowledged(self, heard: int, parts: int, now: float) -> None:
        if heard > self._last:
            raise FrameError("it has heard more than was said")
        if heard < self._heard_there:
            return  # overtaken by a later one
        if heard > self._heard_there or parts > self._parts_there:
            self._moved = now
        if heard > self._heard_there:
            self._parts_there = 0
            sent = self._sent.get(heard)
            if sent is not None:
                took = now - sent
                self._usual = took if self._usual is None else 0.8 * self._usual + 0.2 * took
                self._patience = max(_TIMES * self._usual, _AGAIN)
            self._sent = {seq: at for seq, at in self._sent.items() if seq > heard}
            # of what was sent before a loss, the next one may be lost as well
            self._again = (heard + 1, parts) if heard + 1 < self._doubted else None
        while self._out and self._out[0][0] <= heard:
            self._out.popleft()
        self._heard_there, self._parts_there = heard, max(parts, self._parts_there)
        if not self._out:
            self._moved, self._parts_there = now, 0
        if self._at_seq <= heard:
            self._at_seq, self._at_part = heard + 1, self._parts_there
        elif self._at_seq == heard + 1:  # what is there need not be sent again
            self._at_part = max(self._at_part, self._parts_there)

    def _in_a_row(self) -> int:
        arrival = self._arriving.get(self._heard + 1)
        return arrival.in_a_row if arrival is not None else 0

    def _reset(self) -> None:
        """A new session: nothing was said, nothing was heard."""
        self._out, self._arriving = deque(), {}
        self._last = self._heard = self._heard_there = self._parts_there = 0
        self._at_seq, self._at_part = 1, 0
        self._said = self._moved = float("-inf")
        self._owed, self._patience, self._usual = None, _AGAIN, None
        self._again, self._doubted, self._sent = None, 0, {}


def checksum(*numbers: int, rest: tuple[bytes, ...] = ()) -> int:
    """Compute the CRC-32 of numbers of 64 bits, and of bytes after them."""
    check = zlib.crc32(struct.pack(f"<{len(numbers)}Q", *numbers))
    for part in rest:
        check = zlib.crc32(part, check)
    return check


def hello_check(hello: wire.Hello) -> int:
    """Compute the checksum that a Hello carries over its other fields."""
    who = hello.incarnation, hello.boot, hello.known, hello.known_boot
    rest = hello.run, hello.yours.record
    return checksum(*who, hello.session, hello.heard, hello.parts, int(hello.greeted), rest=rest)
