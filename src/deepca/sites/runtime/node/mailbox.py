"""Queue incoming messages until the algorithm asks for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from deepca.errors import BadArray, FrameError
from deepca.network.transports.base import Message, Tag
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import tag_of, unpack
from deepca.sites.protocol.records import RunPlan
from deepca.sites.runtime.node.context import NodeContext

__all__ = ["Mailbox"]

_MAX_WAITING = 64  # maximum number of messages queued per neighbour; honest neighbours are never that far ahead
_MAX_EARLY = 16  # maximum number of messages kept per neighbour for an epoch that has not started here


class _Relay(Protocol):
    """The part of a :class:`deepca.sites.runtime.node.outbox.Relay` that is used here."""

    def advance_quietly(self) -> bool: ...


@dataclass(frozen=True)
class _Early:
    """A message for a plan that this agent has not entered yet."""

    plan: bytes
    tag: Tag
    message: Message | FrameError


class Mailbox:
    """Messages that have arrived and that the algorithm has not asked for yet.

    A malformed message is kept in its place as a FrameError. When the algorithm asks for that message, BadArray is
    raised, which accuses the sender.

    Attributes
    ----------
    waiting : dict of int to deque
        Messages of the current plan, by neighbour.
    relay : Relay or None
        The relay that the algorithm waits for, which takes its next steps as soon as messages arrive.
    """

    def __init__(self, context: NodeContext) -> None:
        self._context, peers = context, tuple(context.links)
        self.waiting: dict[int, deque[tuple[Tag, Message | FrameError]]] = {peer: deque() for peer in peers}
        self.relay: _Relay | None = None
        self._awaited: set[int] = set()  # neighbours whose messages the algorithm is waiting for
        self._early: dict[int, list[_Early]] = {peer: [] for peer in peers}
        self._misdirected: dict[int, Tag] = {}  # tags of messages of another plan in the current epoch
        # by neighbour, the incarnation that sent an unreadable or oversized message, and what is wrong with the message
        self._lost: dict[int, tuple[Incarnation | None, str]] = {}

    # --------------------------------------------------------------------------------------------------------- arriving

    def receive(self, peer: int, data: wire.Data, body: bytes | bytearray) -> None:
        """Deliver a message, keep it for its epoch, or count it as stale; raise FrameError if too many are kept."""
        here = self._context.assembly
        tag, message = tag_of(data), _unpacked(data, body)
        if here.plan is not None and data.plan == here.plan.digest:
            self._deliver(peer, tag, message)
        elif tag.epoch > here.record.epoch:
            # earlier epochs are never entered once a member has sent messages of this one
            waiting = [one for one in self._early[peer] if one.tag.epoch >= tag.epoch]
            if len(waiting) >= _MAX_EARLY:
                raise FrameError("too many messages of an epoch that has not started here")
            self._early[peer] = [*waiting, _Early(data.plan, tag, message)]
        else:
            self._context.links[peer].stale += 1
            if here.plan is not None and tag.epoch == here.plan.epoch:
                self._misdirected[peer] = tag

    def mark_lost(self, peer: int, what: str) -> None:
        """Record that a neighbour's message is lost for good, so that waiting for it ends with an error."""
        self._lost[peer] = self._context.links[peer].peer, what
        self._context.changed.notify_all()

    def clear(self) -> None:
        """Drop the messages of the plan that is being left."""
        self.relay = None
        for waiting in self.waiting.values():
            waiting.clear()

    def enter(self, plan: RunPlan) -> None:
        """Deliver messages of members that entered the plan before this one."""
        self._misdirected.clear()
        for peer, waiting in self._early.items():
            for one in waiting:
                if one.plan == plan.digest:
                    self._deliver(peer, one.tag, one.message)
                elif one.tag.epoch == plan.epoch:
                    self._misdirected[peer] = one.tag
            self._early[peer] = [one for one in waiting if one.tag.epoch > plan.epoch]

    def _deliver(self, peer: int, tag: Tag, message: Message | FrameError) -> None:
        waiting = self.waiting[peer]
        if len(waiting) >= _MAX_WAITING:
            raise FrameError("more messages than this site can be waiting for")
        waiting.append((tag, message))
        # wake the algorithm once all awaited messages are here: waking it for each would cost more than receiving it
        self._awaited.discard(peer)
        if not self._awaited and (self.relay is None or self.relay.advance_quietly()):
            self._context.changed.notify_all()

    # ----------------------------------------------------------------------------------------------------------- asking

    def missing(self, sources: Collection[int], tag: Tag) -> list[int]:
        """Return the sources whose next message has not arrived, and mark them as awaited.

        Both sides take the same steps, so the next message must have this tag. Raises BadArray, which accuses the
        neighbour, if the next message is malformed, has another tag or is lost for good.
        """
        missing = [source for source in sources if not self._arrived(source, tag)]
        self._awaited = set(missing)
        return missing

    def take(self, sources: Collection[int]) -> dict[int, Message]:
        """Return and remove the next message of each source; all of them must have arrived."""
        return {source: self._taken(source) for source in sources}

    def check_lost(self, source: int, phase: str, iteration: int) -> None:
        """Raise BadArray if a message of this incarnation of a neighbour is lost for good."""
        sender, what = self._lost.get(source, (None, ""))
        if what and sender == self._context.links[source].peer:
            raise BadArray(self._context.name(source), what, phase=phase, iteration=iteration)

    def _arrived(self, source: int, tag: Tag) -> bool:
        due = f"{tag.phase} {tag.t}, round {tag.round}"
        name = self._context.name(source)
        if not self.waiting[source]:
            if self._is_misdirected(source):
                what = f"a message of a plan that it has not entered, instead of {due}"
                raise BadArray(name, what, phase=tag.phase, iteration=tag.t)
            self.check_lost(source, tag.phase, tag.t)
            return False
        got, message = self.waiting[source][0]
        what = ""
        if got != tag:
            what = f"a message of {got.phase[:40]} {got.t}, round {got.round}, instead of {due}"
        elif isinstance(message, FrameError):
            what = str(message)
        if what:
            raise BadArray(name, what, phase=tag.phase, iteration=tag.t)
        return True

    def _is_misdirected(self, source: int) -> bool:
        """Return whether a neighbour has sent a message of a plan that it has not entered.

        No site enters an epoch twice, so it cannot have entered both plans.
        """
        plan, record = self._context.assembly.plan, self._context.assembly.table.get(source)
        if source not in self._misdirected or plan is None or record is None:
            return False
        return record.phase == "running" and (record.epoch, record.plan) == (plan.epoch, plan.digest)

    def _taken(self, source: int) -> Message:
        _, message = self.waiting[source].popleft()
        assert isinstance(message, Message)
        return message


def _unpacked(data: wire.Data, body: bytes | bytearray) -> Message | FrameError:
    """Return the message, or the error that describes how it is malformed."""
    try:
        return unpack(data, body)
    except FrameError as error:
        return error
    except Exception as error:  # numpy or protobuf may raise anything
        return FrameError(f"a malformed message ({type(error).__name__})")
