"""Deliver messages exactly once and in order, over streams that may break, lose, duplicate or reorder frames.

Nothing here waits or reads a clock: the caller passes the current time (see :mod:`deepca.sites.runtime.node`).
"""

from __future__ import annotations

import struct
import zlib
from collections import deque

from deepca.errors import FrameError, WrongNetwork
from deepca.sites.audit.journal import NO_JOURNAL
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel
from deepca.sites.protocol.reassembly import CHUNK_SIZE, PartialMessage, ReceivedMessage

__all__ = ["BEAT_INTERVAL", "SILENT_AFTER", "Link", "checksum", "hello_check"]

BEAT_INTERVAL = 0.5
"""Seconds without anything to send after which a side sends a Beat, to show that it is alive."""
SILENT_AFTER = 2.0
"""Seconds without a frame after which a neighbour counts as silent."""
_DAMAGED = "a damaged frame (wrong checksum)"
_INCARNATION_LIMIT = 1 << 62  # leaves room to count up in a signed 64-bit integer
_WINDOW = 8  # maximum number of messages sent but not acknowledged, which bounds what either side has to buffer
_ACK_DELAY = 0.02  # seconds for which an acknowledgement waits to be sent along with a message
# smallest and largest number of seconds without progress before a message is sent again; more on slow links:
_MIN_RETRANSMIT, _MAX_RETRANSMIT = 0.4, 3.0
_MIN_ROUND_TRIPS = 4.0  # smallest such number in usual round trips, so that slow links are not flooded with copies


class Link:
    """Both directions of the connection to one neighbour.

    Parameters
    ----------
    me : Incarnation
        Incarnation of this agent.
    network_digest : bytes
        Digest of the network, which is the same at all its sites.

    Notes
    -----
    A *session* is specific to one pair of incarnations. Within it, messages are numbered from 1, kept until the other
    side acknowledges them, and sent again from the first unacknowledged one on a new stream, or when progress stops. A
    new incarnation on either side starts a new session: messages in flight are dropped, since their recipient is gone,
    except messages that are already addressed to the new incarnation.
    """

    _outgoing: deque[tuple[int, Parcel, Incarnation | None]]  # not yet acknowledged
    _arriving: dict[int, PartialMessage]
    _last_seq: int  # number of the last message queued
    _heard: int  # number of the last message delivered here
    _heard_by_peer: int  # number of the last message that the other side has acknowledged
    _parts_at_peer: int  # number of Parts of the next message that the other side already has
    _next_seq: int  # number of the message to be sent next
    _next_index: int  # index of its Part to be sent next
    _last_sent: float
    _last_progress: float
    _ack_due: float | None  # when an acknowledgement has to be sent
    _retransmit_after: float  # seconds without progress before a message is sent again
    _round_trip: float | None  # usual seconds from sending to acknowledgement
    _sent_at: dict[int, float]  # times of messages that were sent only once
    _retransmit: tuple[int, int] | None  # message and Part to be sent again, before anything else
    _last_recorded: int  # number of the last message in the journal
    _suspect_before: int  # messages below this number were in flight when one was lost

    def __init__(self, me: Incarnation, network_digest: bytes) -> None:
        self._me, self._network_digest, self.journal = me, network_digest, NO_JOURNAL
        self.peer: Incarnation | None = None
        self.known = Incarnation(0, 0)  # latest known incarnation of the other side
        self._peer_record: wire.Sealed | None = None  # its record, which proves ``known`` to an earlier incarnation
        self._peer_outdated = False  # whether the other side's last hello was from an earlier incarnation
        self._corrected: Incarnation | None = None  # earlier incarnation that was sent that record on this stream
        self.open = False
        self.message_limit = 0  # largest message body to accept, in bytes
        self.last_heard = float("-inf")
        self.skew: float | None = None  # seconds by which the other side's clock is ahead
        self.sent_bytes = self.received_bytes = self.retransmissions = self.stale = 0
        self._greeted = False  # Hello received on this stream
        self.hello_due = False  # whether a Hello goes out before anything else
        self._reset()

    # ------------------------------------------------------------------------------------------------------- streams

    @property
    def up(self) -> bool:
        """True if both sides have said hello on the current stream."""
        return self.open and self._greeted

    @property
    def _session(self) -> int:
        return 0 if self.peer is None else self._me.boot ^ self.peer.boot

    @property
    def ready(self) -> bool:
        """True if there are Parts to send now."""
        return self.up and (
            self._retransmit is not None or self._next_seq - self._heard_by_peer - 1 < min(len(self._outgoing), _WINDOW)
        )

    @property
    def idle(self) -> bool:
        """True if the other side has acknowledged everything."""
        return not self._outgoing

    def opened(self, now: float) -> None:
        """Handle a new stream: say hello and continue from what was acknowledged."""
        self.open, self._greeted, self.hello_due = True, False, True
        self._corrected = None
        self.last_heard = now
        self._rewind(now)

    def closed(self) -> None:
        """Handle the end of the stream."""
        self.open = self._greeted = False

    def take_incarnation(self, me: Incarnation) -> None:
        """Start a new session as another incarnation, because neighbours know a later one of this agent."""
        self._me = me
        self.journal.continued_as(me)
        self._reset()
        self._greeted, self.hello_due = False, self.open

    def learn_incarnation(self, seen: Incarnation, signed_record: wire.Sealed | None = None) -> bool:
        """Record an incarnation of the other side that is known elsewhere, and return whether a hello is due.

        A hello is due if the other side may not know of its later incarnation; ``signed_record`` is the record of the
        other side that proves it.
        """
        if seen >= self.known:
            self.known, self._peer_record = seen, signed_record
        if self.open and self.peer is not None and self.peer < self.known:
            self.hello_due = self._peer_outdated = True
        return self.hello_due

    def silent(self, now: float) -> bool:
        """Return whether the link is down, or nothing has arrived for ``SILENT_AFTER`` seconds."""
        return not self.up or now - self.last_heard > SILENT_AFTER

    # ------------------------------------------------------------------------------------------------------- sending

    def send(self, parcel: Parcel, to: Incarnation | None = None) -> None:
        """Queue a message for the current session, or for one with incarnation ``to``, which may not have started."""
        self._last_seq += 1
        self._outgoing.append((self._last_seq, parcel, to))

    def next_frame(self, now: float) -> wire.Frame | None:
        """Return the next frame for the stream, or None if there is nothing to send now."""
        if not self.open:
            return None
        if self.hello_due:
            self.hello_due, self._last_sent = False, now
            hello = wire.Hello(
                incarnation=self._me.number,
                boot=self._me.boot,
                known=self.known.number,
                known_boot=self.known.boot,
                session=self._session,
                greeted=self._greeted,
                heard=self._heard,
                parts=self._in_a_row(),
                run=self._network_digest,
            )
            if self._peer_outdated and self._peer_record is not None:
                hello.yours.CopyFrom(self._peer_record)
            self._peer_outdated = False
            hello.check = hello_check(hello)
            return wire.Frame(hello=hello)
        if not self._greeted or self.peer is None:
            return None
        frame = self._next_part(now)
        if frame is not None:
            self._last_sent, self._ack_due = now, None
            return frame
        if (self._ack_due is not None and now >= self._ack_due) or now - self._last_sent >= BEAT_INTERVAL:
            self._last_sent, self._ack_due = now, None
            heard, parts, session = self._heard, self._in_a_row(), self._session
            check = checksum(heard, parts, session)
            return wire.Frame(beat=wire.Beat(heard=heard, parts=parts, session=session, check=check))
        return None

    def _next_part(self, now: float) -> wire.Frame | None:
        again = self._retransmit is not None
        at_seq, index = self._retransmit if self._retransmit is not None else (self._next_seq, self._next_index)
        place = at_seq - self._heard_by_peer - 1
        if place >= min(len(self._outgoing), _WINDOW):
            return None
        seq, parcel, _ = self._outgoing[place]
        offset = index * CHUNK_SIZE
        chunk = parcel.slice(offset, CHUNK_SIZE)
        header = parcel.header if index == 0 else b""
        if index == 0 and seq > self._last_recorded:
            self._last_recorded = seq
            self.journal.sent(self._session, seq, parcel)
        frame = wire.Frame()
        part = frame.part  # filled in place: assigning a separate Part would copy it
        part.seq, part.session, part.index, part.offset, part.total = seq, self._session, index, offset, parcel.total
        part.parcel, part.chunk, part.heard = header, chunk, self._heard
        part.check = checksum(seq, self._session, index, offset, parcel.total, self._heard, rest=(header, chunk))
        self.sent_bytes += len(chunk) + len(header)
        whole = offset + len(chunk) >= parcel.total
        if again:
            self._retransmit = None if whole else (seq, index + 1)
        else:
            self._next_seq, self._next_index = (seq + 1, 0) if whole else (seq, index + 1)
            if place == 0:  # the wait for its acknowledgement starts now
                self._last_progress = now
            if whole:
                self._sent_at[seq] = now
        return frame

    def tick(self, now: float) -> bool:
        """Schedule a due hello or retransmission and return whether there is something to send now."""
        if not self.up:
            if self.open and now - self._last_sent >= BEAT_INTERVAL:  # a hello may have been lost in either direction
                self.hello_due = True
            return self.open and self.hello_due
        # only messages that were sent can have been lost
        if (
            self._outgoing
            and self._next_seq > self._heard_by_peer + 1
            and now - self._last_progress > self._retransmit_after
        ):
            # only the first message: it may just be slow, and copies of all would slow it down further
            self._retransmit_after = min(
                2.0 * self._retransmit_after, max(_MAX_RETRANSMIT, 2.0 * _MIN_ROUND_TRIPS * (self._round_trip or 0.0))
            )
            self._retransmit, self._suspect_before = (self._heard_by_peer + 1, self._parts_at_peer), self._next_seq
            self._sent_at.clear()  # from here on it is unknown which copy an acknowledgement is for
            self.retransmissions += 1
            self._last_progress = now
            return True
        return (self._ack_due is not None and now >= self._ack_due) or now - self._last_sent >= BEAT_INTERVAL

    def _rewind(self, now: float) -> None:
        """Continue with the first Part that the other side does not have."""
        self._next_seq, self._next_index = self._heard_by_peer + 1, self._parts_at_peer
        self._retransmit, self._suspect_before, self._last_progress = None, 0, now
        self._sent_at.clear()

    # ----------------------------------------------------------------------------------------------------- receiving

    def received(self, frame: wire.Frame, now: float) -> list[ReceivedMessage]:
        """Process a frame and return the messages that it completes, in order; raise FrameError if it is invalid."""
        kind = frame.WhichOneof("kind")
        if kind == "hello":
            self._hello(frame.hello, now)
            return []
        if not self._greeted:
            if self.hello_due or kind in ("part", "beat"):
                return []  # from a session that has just ended; the other side's hello is on its way
            raise FrameError(f"a frame of kind {kind!r} before the hello")
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
        raise FrameError(f"an unexpected frame of kind {kind!r} within a session")

    def _hello(self, hello: wire.Hello, now: float) -> None:
        if hello.check != hello_check(hello):
            raise FrameError(_DAMAGED)
        if hello.run != self._network_digest:
            raise WrongNetwork(
                "a hello from another network, or with a different list of sites; "
                "both operators should check that they use the same network.toml and deepca version"
            )
        if max(hello.incarnation, hello.known) >= _INCARNATION_LIMIT or not hello.boot or not hello.incarnation:
            raise FrameError("an invalid hello")
        peer = Incarnation(hello.incarnation, hello.boot)
        if peer < self.known:
            self.stale += 1
            # an earlier incarnation, or one that does not yet know of a later one: the next hello proves the later one,
            # at once and then as often as any other hello, in case the first one is lost
            self._peer_outdated = True
            if peer != self._corrected:
                self._corrected, self.hello_due = peer, True
            return
        self.known = peer
        if peer != self.peer:
            addressed = [(parcel, to) for _, parcel, to in self._outgoing if to == peer]
            self._reset()
            self.peer = peer
            for parcel, to in addressed:
                self.send(parcel, to)
        self._greeted, self.last_heard = True, now
        known = hello.session == self._session
        self.hello_due = self.hello_due or not hello.greeted
        if known:
            self._parts_at_peer = 0
            self._acknowledged(hello.heard, hello.parts, now)
        self._rewind(now)
        self._last_sent = now

    def _part(self, part: wire.Part, now: float) -> list[ReceivedMessage]:
        if part.session != self._session:
            self.stale += 1
            return []
        header, chunk = part.parcel, part.chunk  # every access makes a copy
        numbers = part.seq, part.session, part.index, part.offset, part.total, part.heard
        if part.check != checksum(*numbers, rest=(header, chunk)):
            raise FrameError(_DAMAGED)
        self._acknowledged(part.heard, 0, now)
        if self._ack_due is None:
            self._ack_due = now + _ACK_DELAY
        if part.seq <= self._heard or part.seq > self._heard + _WINDOW:
            self.stale += 1
            return []
        if part.total > self.message_limit:
            raise FrameError(
                f"a message of {part.total:,} bytes, above the limit of {self.message_limit:,}", intact=True
            )
        if (
            part.index >= max(-(-part.total // CHUNK_SIZE), 1)
            or part.offset != part.index * CHUNK_SIZE
            or len(chunk) != min(CHUNK_SIZE, part.total - part.offset)
        ):
            raise FrameError("a Part that does not fit into its message", intact=True)
        arrival = self._arriving.get(part.seq)
        if arrival is None:
            arrival = self._arriving[part.seq] = PartialMessage(part.total)
        if part.total != arrival.total:
            raise FrameError("two Parts of one message that state different sizes for it", intact=True)
        arrival.add(part.index, header, chunk)
        self.received_bytes += len(chunk) + len(header)
        whole = []
        while (first := self._arriving.get(self._heard + 1)) is not None and first.complete:
            self._heard += 1
            del self._arriving[self._heard]
            whole.append(ReceivedMessage(first.header, first.body))
            self.journal.received(self._session, self._heard, first.header, first.body)
        return whole

    def _acknowledged(self, heard: int, parts: int, now: float) -> None:
        if heard > self._last_seq:
            raise FrameError("an acknowledgement of messages that were never sent")
        if heard < self._heard_by_peer:
            return  # overtaken by a later acknowledgement
        if heard > self._heard_by_peer or parts > self._parts_at_peer:
            self._last_progress = now
        if heard > self._heard_by_peer:
            self._parts_at_peer = 0
            sent = self._sent_at.get(heard)
            if sent is not None:
                took = now - sent
                self._round_trip = took if self._round_trip is None else 0.8 * self._round_trip + 0.2 * took
                self._retransmit_after = max(_MIN_ROUND_TRIPS * self._round_trip, _MIN_RETRANSMIT)
            self._sent_at = {seq: at for seq, at in self._sent_at.items() if seq > heard}
            # of the messages sent before a loss, the next one may be lost as well
            self._retransmit = (heard + 1, parts) if heard + 1 < self._suspect_before else None
        while self._outgoing and self._outgoing[0][0] <= heard:
            self._outgoing.popleft()
        self._heard_by_peer, self._parts_at_peer = heard, max(parts, self._parts_at_peer)
        if not self._outgoing:
            self._last_progress, self._parts_at_peer = now, 0
        if self._next_seq <= heard:
            self._next_seq, self._next_index = heard + 1, self._parts_at_peer
        elif self._next_seq == heard + 1:  # Parts that have arrived need not be sent again
            self._next_index = max(self._next_index, self._parts_at_peer)

    def _in_a_row(self) -> int:
        arrival = self._arriving.get(self._heard + 1)
        return arrival.in_a_row if arrival is not None else 0

    def _reset(self) -> None:
        """Start a new session, with nothing sent or received yet."""
        self._outgoing, self._arriving = deque(), {}
        self._last_seq = self._heard = self._heard_by_peer = self._parts_at_peer = self._last_recorded = 0
        self._next_seq, self._next_index = 1, 0
        self._last_sent = self._last_progress = float("-inf")
        self._ack_due, self._retransmit_after, self._round_trip = None, _MIN_RETRANSMIT, None
        self._retransmit, self._suspect_before, self._sent_at = None, 0, {}


def checksum(*numbers: int, rest: tuple[bytes, ...] = ()) -> int:
    """Return the CRC-32 of 64-bit numbers, followed by bytes."""
    check = zlib.crc32(struct.pack(f"<{len(numbers)}Q", *numbers))
    for part in rest:
        check = zlib.crc32(part, check)
    return check


def hello_check(hello: wire.Hello) -> int:
    """Return the checksum of a Hello; it covers all fields but ``check``, ``clock`` and the signature on ``yours``."""
    who = hello.incarnation, hello.boot, hello.known, hello.known_boot
    rest = hello.run, hello.yours.record
    return checksum(*who, hello.session, hello.heard, hello.parts, int(hello.greeted), rest=rest)
