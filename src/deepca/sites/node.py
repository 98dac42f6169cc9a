"""An agent's place in the network: its links, what it knows of all sites, and the calls that its algorithm waits in.

Two threads meet here. The event loop (or a simulation) says what happened, ``opened``, ``closed``, ``received`` and
``tick``, and asks for the ``next_frame``; all it ever waits for is the lock, while a promise is written to disk. The
algorithm calls ``gather``, ``exchange`` and ``settle``, which return when the network has come so far, and none of
which waits beyond the deadline.

A run is a sequence of epochs. In each, all members have entered the same :class:`~deepca.sites.records.Plan`, and every
message carries its digest: agents with different ideas of who takes part never mix their numbers. So a wrong guess
about the network can cost time, but not the answer.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from deepca.errors import FrameError, InvalidInput, Regroup, Unfinished, WrongNetwork
from deepca.sites import wire_pb2 as wire
from deepca.sites.assembly import Assembly, Membership, Policy
from deepca.sites.clocks import Clock
from deepca.sites.link import Arrived, Identity, Link
from deepca.sites.parcels import Parcel, pack, unpack
from deepca.sites.records import Offer, Plan, Record
from deepca.sites.seals import NoSeals, Seals
from deepca.sites.vault import MemoryVault, Vault
from deepca.transports.base import Message, Tag

__all__ = ["LinkView", "Membership", "Node", "Policy", "View"]

_LOOK = 0.25  # seconds between two looks at who is there
_MOST_MAIL = 64  # messages of one neighbour that were not asked for yet
_MOST_NAMES = 5  # as which an agent was known before it finds that it is not alone
_MOST_EARLY = 16  # messages of an epoch that this agent has not entered yet, from one neighbour
_FLUSH = 2.0  # seconds to let neighbours hear the last words


@dataclass(frozen=True)
class _Early:
    """A message of a plan that was not entered here yet."""

    plan: bytes
    tag: Tag
    message: Message


@dataclass(frozen=True)
class LinkView:
    """A link as people see it. silent_for : seconds since the last word; None where there was none."""

    site: str
    state: Literal["up", "silent", "down"]
    silent_for: float | None
    sent_bytes: int
    received_bytes: int
    sent_again: int
    skew: float | None


@dataclass(frozen=True)
class View:
    """What is going on, for logs and screens. missing : sites that cannot be reached; busy : that are not ready yet."""

    phase: str
    epoch: int
    members: tuple[str, ...]
    links: tuple[LinkView, ...]
    missing: tuple[str, ...]
    busy: tuple[str, ...]
    differing: tuple[tuple[str, tuple[str, ...]], ...]


class Node:
    """See the module. ``tell(event, text, **facts)`` gets what people want to know, as it happens."""

    def __init__(
        self,
        membership: Membership,
        policy: Policy,
        clock: Clock,
        identity: Identity,
        tell: Callable[..., None] = lambda *_, **__: None,
        wall: Callable[[], float] = time.time,
        vault: Vault | None = None,
        seals: Seals | None = None,
    ) -> None:
        self._at, self._policy, self._clock, self._tell, self._wall = membership, policy, clock, tell, wall
        self._me, self._identity = membership.me, identity
        self._changed = clock.condition()
        self._wake: Callable[[int], None] = lambda peer: None
        self._began = clock.now()
        self._seals = seals if seals is not None else NoSeals()
        self._sealed: dict[int, tuple[tuple[Identity, int], wire.Sealed]] = {}
        self._vault = vault if vault is not None else MemoryVault()
        remembered = self._vault.load()
        self._assembly = Assembly(membership, policy, identity, tell, self._began, remembered.epoch)
        self._links = {peer: Link(identity, membership.run) for peer in membership.neighbors}
        for link in self._links.values():
            link.limit = membership.limit
        self._told: dict[int, dict[int, tuple[Identity, int]]] = {peer: {} for peer in self._links}
        self._news_told = dict.fromkeys(self._links, 0)
        self._mail: dict[tuple[int, Tag], deque[Message]] = {}
        self._awaited: set[tuple[int, Tag]] = set()
        self._early: dict[int, list[_Early]] = {peer: [] for peer in self._links}
        self._outcomes: dict[bytes, bytes] = {}
        if remembered.outcome is not None:
            digest = hashlib.sha256(remembered.outcome).digest()
            self._outcomes[digest] = remembered.outcome
            self._assembly.publish(outcome=digest, outcome_epoch=remembered.outcome_epoch)
        self._accept: Callable[[bytes], None] = _anything
        self._renamed, self._fault = 0, ""
        self._strangers: set[int] = set()
        self._refused: set[tuple[int, str]] = set()
        self._asked: dict[tuple[int, bytes], float] = {}
        self._looked = float("-inf")

    def attach(self, wake: Callable[[int], None]) -> None:
        """``wake(peer)`` is called whenever ``next_frame(peer)`` may have something."""
        self._wake = wake

    # -------------------------------------------------------------------------------- what happens, from the event loop

    def opened(self, peer: int) -> None:
        with self._changed:
            self._links[peer].opened(self._clock.now())
        self._wake(peer)

    def closed(self, peer: int, why: str) -> None:
        with self._changed:
            if self._links[peer].open:
                self._tell("link_down", f"{self._name(peer)}: {why}", site=self._name(peer), why=why)
            self._links[peer].closed()
            self._look()
            self._changed.notify_all()

    def refused(self, peer: int | None, where: str, why: str) -> None:
        who = where if peer is None else f"{self._name(peer)} ({where})"
        self._tell("refused", f"{who}: {why}", peer=None if peer is None else self._name(peer), where=where, why=why)

    def received(self, peer: int, frame: wire.Frame) -> None:
        woken: set[int] = set()
        with self._changed:
            link, now = self._links[peer], self._clock.now()
            was_up, before = link.up, link.peer
            try:
                whole = link.received(frame, now)
            except WrongNetwork:
                self._stranger(peer)
                raise
            for arrived in whole:
                self._take(peer, arrived)
            if frame.HasField("hello"):
                woken.add(peer)
                self._strangers.discard(peer)
                link.skew = frame.hello.clock - self._wall() if frame.hello.clock else None
                self._learn_of_myself(Identity(frame.hello.known, frame.hello.known_boot))
            if link.peer != before:
                self._told[peer], self._news_told[peer] = {}, 0
            if link.up != was_up:
                self._tell("link_up", f"{self._name(peer)} is there", site=self._name(peer))
                self._look()
                woken.add(peer)
            if link.ready:  # an acknowledgement may have made room
                woken.add(peer)
        for other in woken:
            self._wake(other)

    def _stranger(self, peer: int) -> None:
        """Where all neighbours are of another network, it is this site that is wrong, or one cannot tell."""
        self._strangers.add(peer)
        if self._strangers.issuperset(self._links) and self._assembly.plan is None:
            names = ", ".join(self._assembly.names(self._links))
            self._fault = (
                f"{names}: another network, or another list of sites, than here; give all sites the same network.toml "
                "(names and order of [[sites]] count)"
            )
            self._changed.notify_all()

    def next_frame(self, peer: int) -> wire.Frame | None:
        with self._changed:
            link, now = self._links[peer], self._clock.now()
            if link.up:
                for record in self._news_for(peer):  # one by one: together they might not fit into a frame
                    records = wire.Records(sealed=[self._sealed_record(record)])
                    link.send(Parcel(wire.Parcel(records=records).SerializeToString()))
                    self._told[peer][record.site] = record.age
                self._news_told[peer] = self._assembly.news
            frame = link.next_frame(now)
            if frame is not None and frame.HasField("hello"):
                frame.hello.clock = self._wall()
            return frame

    def tick(self) -> None:
        """To be called some times per second."""
        with self._changed:
            now = self._clock.now()
            woken = {peer for peer, link in self._links.items() if link.tick(now)}
            if now - self._looked >= _LOOK:
                self._look()
                self._changed.notify_all()
            woken.update(self._with_news())
        for peer in woken:
            self._wake(peer)

    # ------------------------------------------------------------------------------------- what the algorithm waits in

    def gather(self, offer: Offer, accept: Callable[[bytes], None] | None = None) -> Plan | bytes:
        """Come together with the other sites and agree on who takes part and from where; or on the result, if known.

        ``accept`` raises for a result that cannot be that of this run.

        Raises InvalidInput if this site differs from the others in what has to be the same, Unfinished at the deadline.
        """
        with self._changed:
            here = self._assembly
            self._accept = accept if accept is not None else _anything
            self._mail.clear()
            here.gather(offer=offer)
            while True:
                self._check_deadline()
                self._look()
                here.check_differences()
                if here.disturbance:  # of an epoch that only was to hand on a result
                    here.gather(offer=offer)
                if here.decided() is not None or here.preferred() is not None:
                    here.withdraw()
                    found = self._settled()
                    if found is not None:
                        return found
                if here.plan is None and here.agreed(self._clock.now()):
                    self._vault.enter(here.next_epoch)  # a promise: not to be forgotten
                    plan = here.enter(self._clock.now())
                    self._take_early(plan)
                    if plan.outcome is None:
                        break
                    self._take_over(plan.epoch, plan.outcome[1])
                    continue
                self._wake_soon()
                self._changed.wait(_LOOK)
        self._wake_all()
        return plan

    def _take_over(self, epoch: int, digest: bytes) -> None:
        """A result that a member held before the epoch began is that of the epoch."""
        if digest in self._outcomes:
            self._hold(epoch, digest, self._outcomes[digest])

    def _take_early(self, plan: Plan) -> None:
        """What members said that entered the plan before this one."""
        for peer, waiting in self._early.items():
            for one in waiting:
                if one.plan == plan.digest:
                    self._deliver(peer, one.tag, one.message)
            self._early[peer] = [one for one in waiting if one.tag.epoch > plan.epoch]

    def exchange(
        self, plan: Plan, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int]
    ) -> dict[int, Message]:
        """As :meth:`deepca.transports.base.Transport.exchange`, with sites for agents."""
        digest = plan.digest
        parcels: dict[int, Parcel] = {}
        with self._changed:
            self._check_undisturbed(plan)
            for receiver, message in outgoing.items():
                parcel = parcels.get(id(message))
                if parcel is None:
                    parcel = parcels[id(message)] = pack(digest, tag, message)
                self._links[receiver].send(parcel, plan.identities[plan.members.index(receiver)])
        for receiver in outgoing:
            self._wake(receiver)
        with self._changed:
            while True:
                self._check_undisturbed(plan)
                missing = [source for source in sources if (source, tag) not in self._mail]
                self._awaited = {(source, tag) for source in missing}
                if not missing:
                    return {source: self._taken(source, tag) for source in sources}
                self._check_deadline(missing)
                self._changed.wait(1.0)

    def settle(self, epoch: int, outcome: bytes | None = None, accept: Callable[[bytes], None] | None = None) -> bytes:
        """Agree on the result: this site's, where it is the one to make it, or the one that others have.

        ``accept`` raises for a result that contradicts what this site found itself; such a one is never held.

        Returns when most sites hold it, so that nobody can come to another one. Raises Regroup if there is none any
        more, and the sites have gathered anew.
        """
        with self._changed:
            here = self._assembly
            self._accept = accept if accept is not None else _anything
            if outcome is not None and not here.disturbance:
                self._hold(epoch, hashlib.sha256(outcome).digest(), outcome)
            found = None
            while found is None:
                found = self._settled()
                if found is None:
                    if here.disturbance:
                        raise Regroup(here.disturbance)
                    self._wait_for_news()
            return found

    def finished(self) -> None:
        """The result is on disk."""
        with self._changed:
            self._publish(phase="finished")
        self._wake_all()

    def failed(self, why: str, *, common: bool = False) -> None:
        """This agent gives up; the others shall know. common : whether the reason holds for all sites alike."""
        with self._changed:
            if self._assembly.record.phase != "failed":
                self._publish(phase="failed", why=why, common=common)
        self._wake_all()

    def farewell(self, linger: float | None = None) -> tuple[str, ...]:
        """Stay until all have finished, at most so long, and neighbours have heard it. Returns who has not finished."""
        end = self._clock.now() + (self._policy.linger if linger is None else linger)
        with self._changed:
            while self._assembly.unfinished() and self._clock.now() < end:
                self._changed.wait(_LOOK)
            end = self._clock.now() + _FLUSH
            while self._clock.now() < end and any(
                link.up and not (link.idle and not self._news_for(peer)) for peer, link in self._links.items()
            ):
                self._changed.wait(0.05)
            return self._assembly.names(self._assembly.unfinished())

    def view(self) -> View:
        with self._changed:
            now = self._clock.now()
            links = tuple(
                LinkView(
                    self._name(peer),
                    "down" if not link.up else "silent" if link.silent(now) else "up",
                    now - link.last_heard if link.last_heard > float("-inf") else None,
                    link.sent_bytes,
                    link.received_bytes,
                    link.again,
                    link.skew,
                )
                for peer, link in self._links.items()
            )
            here = self._assembly
            busy = [site for site in here.present if here.table[site].phase != "gathering"]
            return View(
                here.record.phase,
                here.record.epoch,
                here.names(here.plan.members) if here.plan is not None else (),
                links,
                here.names(here.everyone - here.present),
                here.names(busy) if here.record.phase == "gathering" else (),
                tuple((self._name(one.site), one.names) for one in here.table.differences()),
            )

    # ------------------------------------------------------------------------------------------------------- the result

    def _settled(self) -> bytes | None:
        """The result that is decided, in the end; None while there is nothing to be held."""
        here = self._assembly
        while True:
            self._check_deadline()
            decided, preferred = here.decided(), here.preferred()
            if decided is not None and decided in self._outcomes:
                epoch = next(one[0] for one in here.holders() if one[1] == decided)
                self._hold(epoch, decided, self._outcomes[decided], decided=True)
                return self._outcomes[decided]
            if decided is None and preferred is None:
                return None
            if decided is not None:
                self._obtain(decided)
            elif preferred is not None and preferred[1] in self._outcomes:
                self._hold(*preferred, self._outcomes[preferred[1]])
            elif preferred is not None:
                self._obtain(preferred[1])
            self._wait_for_news()

    def _hold(self, epoch: int, digest: bytes, outcome: bytes, *, decided: bool = False) -> None:
        """Say to hold a result; on disk first, since others rely on it."""
        self._outcomes[digest] = outcome
        record = self._assembly.record
        if record.outcome != digest:
            self._accept(outcome)
        if (record.outcome, record.outcome_epoch) != (digest, epoch) or decided:
            self._vault.hold(outcome, epoch, decided=decided)
        if (record.outcome, record.outcome_epoch) != (digest, epoch):
            self._publish(outcome=digest, outcome_epoch=epoch)

    def _wait_for_news(self) -> None:
        self._wake_soon()
        self._changed.wait(_LOOK)

    def _obtain(self, digest: bytes) -> None:
        now = self._clock.now()
        for peer, link in self._links.items():
            record = self._assembly.table.get(peer)
            asked = self._asked.get((peer, digest), float("-inf"))
            if link.up and record is not None and record.outcome == digest and now - asked > 2.0:
                self._asked[peer, digest] = now
                link.send(Parcel(wire.Parcel(wanted=wire.Wanted(outcome=digest)).SerializeToString()))

    # --------------------------------------------------------------------------------------------------------- messages

    def _take(self, peer: int, arrived: Arrived) -> None:
        parcel = wire.Parcel()
        try:
            parcel.ParseFromString(arrived.header)
        except Exception:  # protobuf's own DecodeError has no stable home
            raise FrameError("a message whose header cannot be read") from None
        kind = parcel.WhichOneof("kind")
        if kind == "data":
            self._data(peer, parcel.data, arrived.body)
        elif kind == "records":
            self._records(peer, parcel.records)
        elif kind == "wanted":
            body = self._outcomes.get(parcel.wanted.outcome)
            if body is not None:
                header = wire.Parcel(outcome=wire.Outcome(outcome=parcel.wanted.outcome))
                self._links[peer].send(Parcel(header.SerializeToString(), (memoryview(body),)))
        elif kind == "outcome":
            body = bytes(arrived.body)
            digest = hashlib.sha256(body).digest()
            if digest != parcel.outcome.outcome or all(digest != known for _, known in self._assembly.holders()):
                raise FrameError("a result that nobody has announced")
            self._outcomes[digest] = body
            self._changed.notify_all()
        else:
            raise FrameError(f"a message of kind {kind!r}")

    def _data(self, peer: int, data: wire.Data, body: bytes | bytearray) -> None:
        plan = self._assembly.plan
        tag, message = unpack(data, body)
        if plan is not None and data.plan == plan.digest:
            self._deliver(peer, tag, message)
        elif tag.epoch > self._assembly.record.epoch:
            waiting = [one for one in self._early[peer] if one.tag.epoch >= tag.epoch]  # earlier ones will never begin
            if len(waiting) >= _MOST_EARLY:
                raise FrameError("too many messages of an epoch that has not begun here")
            self._early[peer] = [*waiting, _Early(data.plan, tag, message)]
        else:
            self._links[peer].stale += 1

    def _deliver(self, peer: int, tag: Tag, message: Message) -> None:
        waiting = self._mail.setdefault((peer, tag), deque())
        if len(self._mail) > _MOST_MAIL * len(self._links) or len(waiting) >= 2:
            raise FrameError("more messages than anybody can be waiting for")
        waiting.append(message)
        # waking the algorithm for every one of several messages would cost more than carrying them
        self._awaited.discard((peer, tag))
        if not self._awaited:
            self._changed.notify_all()

    def _taken(self, source: int, tag: Tag) -> Message:
        waiting = self._mail[source, tag]
        message = waiting.popleft()
        if not waiting:
            del self._mail[source, tag]
        return message

    def _records(self, peer: int, records: wire.Records) -> None:
        news = False
        for sealed in records.sealed:
            one = wire.Record()
            try:
                one.ParseFromString(sealed.record)
            except Exception:  # as above
                raise FrameError("a record that cannot be read") from None
            record = Record.from_wire(one, len(self._at.sites))
            fault = self._seals.fault(record.site, sealed)
            if fault:  # not the fault of who hands it on, perhaps
                self._links[peer].stale += 1
                self._refuse(peer, record.site, fault)
                continue
            if record.site == self._me:
                self._learn_of_myself(record.identity)
                continue
            told = self._told[peer].get(record.site)
            if told is None or told < record.age:
                self._told[peer][record.site] = record.age  # it knows this one
            if self._assembly.learn(record):
                self._sealed[record.site] = record.age, sealed
                news = True
                link = self._links.get(record.site)
                if link is not None and link.heard_of(record.identity):
                    self._wake(record.site)
        if news:
            self._look()
            self._wake_soon()
            self._changed.notify_all()

    def _refuse(self, peer: int, site: int, fault: str) -> None:
        if (site, fault) not in self._refused:
            self._refused.add((site, fault))
            text = f"a record of {self._name(site)}, handed on by {self._name(peer)}, is not accepted: {fault}"
            self._tell("refused", text, peer=self._name(site), where=self._name(peer), why=fault)

    def _sealed_record(self, record: Record) -> wire.Sealed:
        """As its site has sealed it; that of this one is sealed anew when it has changed."""
        known = self._sealed.get(record.site)
        if known is None or known[0] != record.age:
            content = record.to_wire().SerializeToString(deterministic=True)
            known = self._sealed[record.site] = record.age, self._seals.seal(content)
        return known[1]

    def _learn_of_myself(self, seen: Identity) -> None:
        """Others know of a start of this agent that is not this one; if it counts as later, become later still."""
        if seen.incarnation == 0 or seen == self._identity or seen < self._identity:
            return
        self._identity = self._identity.after(seen)
        self._renamed += 1
        alive = min(self._clock.now() - self._began, 60.0)
        if self._renamed > _MOST_NAMES + alive / 4.0:  # whoever was here first shall stay
            self._fault = f"another agent runs as {self._name(self._me)}; there can be one only"
            self._changed.notify_all()
            return
        for link in self._links.values():
            link.renamed(self._identity)
        for peer, told in self._told.items():
            told.clear()
            self._news_told[peer] = 0
        if self._assembly.plan is not None:
            self._assembly.disturbance = "this agent was known under a later start"
        self._publish(identity=self._identity)

    # ---------------------------------------------------------------------------------------------------- what is known

    def _publish(self, **changes: Any) -> None:
        self._assembly.publish(**changes)
        self._changed.notify_all()
        self._wake_soon()

    def _wake_soon(self) -> None:
        """Called with the lock held: wakers only set a flag, or schedule."""
        for peer in self._with_news():
            self._wake(peer)

    def _wake_all(self) -> None:
        for peer in self._links:
            self._wake(peer)

    def _news_for(self, peer: int) -> list[Record]:
        if self._news_told[peer] == self._assembly.news:
            return []
        told = self._told[peer]
        return [
            record for record in self._assembly.table if record.site != peer and told.get(record.site) != record.age
        ]

    def _with_news(self) -> list[int]:
        return [peer for peer, link in self._links.items() if link.ready or (link.up and self._news_for(peer))]

    def _look(self) -> None:
        """Who is there now, and does that disturb the plan?"""
        now = self._looked = self._clock.now()
        reached = frozenset(peer for peer, link in self._links.items() if not link.silent(now))
        news, undisturbed = self._assembly.news, not self._assembly.disturbance
        self._assembly.look(now, reached, {peer: link.last_heard for peer, link in self._links.items()})
        if self._assembly.news != news:
            self._wake_soon()
        if undisturbed and self._assembly.disturbance:
            self._changed.notify_all()

    def _check_undisturbed(self, plan: Plan) -> None:
        if self._assembly.plan is not plan:
            raise Regroup("another epoch has begun")
        if self._assembly.disturbance:
            self._check_common()
            raise Regroup(self._assembly.disturbance)

    def _check_common(self) -> None:
        """A reason to give up that one site has found, and that this one would find as well."""
        for record in self._assembly.table:
            if record.phase == "failed" and record.common and record.epoch == self._assembly.record.epoch:
                raise InvalidInput(f"{self._name(record.site)}: {record.why}")

    def _check_deadline(self, waiting_for: Collection[int] = ()) -> None:
        if self._fault:
            raise InvalidInput(self._fault)
        if self._clock.now() - self._began < self._policy.deadline:
            return
        here = self._assembly
        names = ", ".join(here.names(here.everyone - here.present or waiting_for))
        raise Unfinished(
            f"the deadline of {self._policy.deadline:g} s has passed"
            + (f" while waiting for {names}" if names else "")
            + "; the run is unfinished, and goes on from its checkpoints when all agents are started again"
        )

    def _name(self, site: int) -> str:
        return self._at.sites[site]


def _anything(outcome: bytes) -> None:
    """Of a site that has found nothing itself."""
