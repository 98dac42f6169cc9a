"""An agent's place in the network: its links, what it knows of all sites, and the calls that its algorithm waits in.

Two threads meet here. The event loop (or a simulation) says what happened, ``opened``, ``closed``, ``received`` and
``tick``, and asks for the ``next_frame``; all it ever waits for is the lock, while a promise is written to disk. The
algorithm calls ``gather``, ``exchange`` and ``settle``, which return when the network has come so far, and none of
which waits beyond the deadline.

A run is a sequence of epochs. In each, all members have entered the same :class:`RunPlan`,
and every message carries its digest: agents with different ideas of who takes part never mix their numbers. So a wrong
guess about the network can cost time, but not the answer.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from deepca.errors import (
    BadArray,
    DisputedResult,
    FrameError,
    InvalidInput,
    PeerFailed,
    PeerFault,
    Regroup,
    Unfinished,
    WrongNetwork,
)
from deepca.network.transports.base import Message, Tag
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel, pack, tag_of, unpack
from deepca.sites.protocol.records import Failure, Offer, Record, RunPlan
from deepca.sites.protocol.signatures import NoSeals, Seals
from deepca.sites.runtime.arrival import Arrived
from deepca.sites.runtime.assembly import Assembly, Membership, Policy
from deepca.sites.runtime.clocks import Clock
from deepca.sites.runtime.link import Link
from deepca.sites.runtime.settlement import Settling
from deepca.sites.runtime.vault import MemoryVault, Vault

__all__ = ["Concluded", "LinkView", "Membership", "Node", "Policy", "View"]

_LOOK = 0.25  # seconds between two looks at who is there
_MOST_MAIL = 64  # messages of one neighbour that were not asked for yet
_MOST_NAMES = 5  # as which an agent was known before it finds that it is not alone
_MOST_EARLY = 16  # messages of an epoch that this agent has not entered yet, from one neighbour
_ASK, _AGAIN = 0.5, 5.0  # seconds until a result is asked for, or sent, once more
_FLUSH = 2.0  # seconds to let neighbours hear the last words
_MOST_REFUSED = 64  # kinds of refusals that people are told of


@dataclass(frozen=True)
class _Early:
    """A message of a plan that was not entered here yet."""

    plan: bytes
    tag: Tag
    message: Message | FrameError


@dataclass(frozen=True)
class _Computed:
    """What this start of the agent has computed: ``differs(content)`` says how a model file differs from it, if so."""

    plan: RunPlan
    differs: Callable[[bytes], str]


@dataclass(frozen=True)
class Concluded:
    """A model file, and what is claimed of it. compared : whether this site has compared it with its own numbers."""

    content: bytes
    claim: ResultClaim
    compared: bool


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
        identity: Incarnation,
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
        self._sealed: dict[int, tuple[tuple[Incarnation, int], wire.Sealed]] = {}
        self._vault = vault if vault is not None else MemoryVault()
        remembered = self._vault.load()
        self._assembly = Assembly(membership, policy, identity, tell, self._began, remembered.epoch)
        self._links = {peer: Link(identity, membership.run) for peer in membership.neighbors}
        for link in self._links.values():
            link.limit = membership.limit
        self._told: dict[int, dict[int, tuple[Incarnation, int]]] = {peer: {} for peer in self._links}
        self._news_told = dict.fromkeys(self._links, 0)
        self._mail: dict[int, deque[tuple[Tag, Message | FrameError]]] = {peer: deque() for peer in self._links}
        self._awaited: set[int] = set()
        self._early: dict[int, list[_Early]] = {peer: [] for peer in self._links}
        self._astray: dict[int, Tag] = {}  # of another plan, in the epoch that was entered here
        self._spoilt: dict[int, tuple[Incarnation | None, str]] = {}  # messages that cannot be read, or are not taken
        self._gave_up: dict[tuple[int, bytes], float] = {}  # since when sites say that nobody can follow a plan
        self._settling = Settling(membership, policy, self._assembly)
        self._computed: _Computed | None = None
        self._entered: RunPlan | None = None  # the last one
        self._proposed: RunPlan | None = None  # the last one, though withdrawn since
        self._outcomes: dict[bytes, bytes] = {}
        if remembered.outcome is not None and remembered.claim is not None:
            self._outcomes[remembered.claim.outcome] = remembered.outcome
            self._settling.claims.extend(remembered.endorsements)
            own = next((one for one in remembered.endorsements if one.site == self._me), None)
            proposed = self._proposal(remembered.claim)
            if own is not None and (proposed is not None or own.claim.proposer == self._me):
                self._assembly.publish(endorsement=own, proposed=proposed)
        self._accept: Callable[[bytes, ResultClaim], None] = _anything
        self._renamed, self._fault = 0, ""
        self._broken: BaseException | None = None
        self._culprit: PeerFault | None = None  # a site that has sealed what makes no sense
        self._strangers: set[int] = set()
        self._refused: set[tuple[int, str]] = set()
        self._asked: dict[tuple[int, bytes], float] = {}
        self._handed: dict[tuple[int, bytes], float] = {}
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
                for arrived in link.received(frame, now):
                    self._take(peer, arrived)
            except WrongNetwork:
                self._stranger(peer)
                raise
            except FrameError as error:
                if error.whole:  # it will not come again, or not otherwise: whoever waits for it shall know
                    self._spoilt[peer] = link.peer, str(error)
                    self._changed.notify_all()
                raise
            if frame.HasField("hello"):
                woken.add(peer)
                self._strangers.discard(peer)
                link.skew = frame.hello.clock - self._wall() if frame.hello.clock else None
                self._greeted(peer, frame.hello)
            if link.peer != before:
                self._told[peer], self._news_told[peer] = {}, 0
                for known in (self._asked, self._handed):
                    for key in [key for key in known if key[0] == peer]:
                        del known[key]
            if link.up != was_up:
                self._tell("link_up", f"{self._name(peer)} is there", site=self._name(peer))
                self._look()
                woken.add(peer)
            if link.ready:  # an acknowledgement may have made room
                woken.add(peer)
        for other in woken:
            self._wake(other)

    def _greeted(self, peer: int, hello: wire.Hello) -> None:
        """A neighbour may know of a later start of this agent; with certificates, only its own record shows that."""
        if not self._seals.binding:
            self._learn_of_myself(Incarnation(hello.known, hello.known_boot))
        elif hello.HasField("yours"):
            record = self._unsealed(peer, hello.yours)
            if record is not None and record.site == self._me:
                self._learn_of_myself(record.identity)

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

    def gather(self, offer: Offer, accept: Callable[[bytes, ResultClaim], None] | None = None) -> RunPlan | Concluded:
        """Come together with the other sites and agree on who takes part and from where; or on the result, if known.

        ``accept`` raises for a model file that cannot be the result of this run, though most sites have signed it.

        Raises InvalidInput if this site differs from the others in what has to be the same, PeerFault where another one
        says what cannot be, Unfinished at the deadline.
        """
        with self._changed:
            here = self._assembly
            self._accept = accept if accept is not None else _anything
            for mail in self._mail.values():
                mail.clear()
            here.gather(offer=offer)
            while True:
                self._check_deadline()
                self._look()
                here.check_differences()
                here.check_epochs()
                self._proposed = here.proposal or self._proposed
                for known in (self._entered, self._proposed):  # others may have entered it, and failed, before this one
                    if known is not None:
                        self._check_faults(known)
                found = self._concluded()
                if found is not None:
                    return found
                if pending := self._settling.pending():
                    here.withdraw()
                    for claim in pending:  # somebody farther away may have to compare it
                        self._obtained(claim)
                elif here.agreed(self._clock.now()):
                    self._vault.enter(here.next_epoch)  # a promise: not to be forgotten
                    plan = self._entered = here.enter(self._clock.now())
                    self._take_early(plan)
                    break
                self._wait_for_news()
        self._wake_all()
        return plan

    def _take_early(self, plan: RunPlan) -> None:
        """What members said that entered the plan before this one."""
        self._astray.clear()
        for peer, waiting in self._early.items():
            for one in waiting:
                if one.plan == plan.digest:
                    self._deliver(peer, one.tag, one.message)
                elif one.tag.epoch == plan.epoch:
                    self._astray[peer] = one.tag
            self._early[peer] = [one for one in waiting if one.tag.epoch > plan.epoch]

    def exchange(
        self, plan: RunPlan, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int]
    ) -> dict[int, Message]:
        """As :meth:`deepca.network.transports.base.Transport.exchange`, with sites for agents."""
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
                missing = [source for source in sources if not self._arrived(source, tag)]
                self._awaited = set(missing)
                if not missing:
                    return {source: self._taken(source) for source in sources}
                self._check_deadline(missing)
                self._changed.wait(1.0)

    def settle(self, plan: RunPlan, differs: Callable[[bytes], str], proposal: Callable[[], bytes]) -> Concluded:
        """Agree on the result of a plan that this site has followed to its end.

        ``proposal()`` is this site's model file, asked for where it is the one to propose. ``differs(content)`` says
        how what another site proposes differs from what was computed here; it is signed only if it does not.

        Returns when it may be written (see :mod:`deepca.sites.runtime.settlement`). Raises DisputedResult where sites
        do not agree on a result, Regroup if the plan cannot be followed any more.
        """
        with self._changed:
            here = self._assembly
            self._computed = _Computed(plan, differs)
            self._publish(computed=plan.digest)
            if plan.proposer == self._me and not here.disturbance:
                content = proposal()
                outcome = hashlib.sha256(content).digest()
                self._outcomes[outcome] = content
                self._endorse(ResultClaim(plan.epoch, plan.digest, plan.members, outcome))
            while True:
                found = self._concluded()
                if found is not None:
                    return found
                for peer in self._links.keys() & set(plan.members):  # what others send does not matter here
                    self._check_spoilt(peer, "result", 0)
                if here.disturbance:
                    self._check_faults(plan)
                    raise Regroup(here.disturbance)
                self._wait_for_news()

    def await_fault(self, plan: RunPlan, site: int) -> None:
        """Wait until a member gives up, half of patience at most, and raise what was found by it or anybody else."""
        end = self._clock.now() + 0.5 * self._policy.patience
        with self._changed:
            while self._clock.now() < end:
                self._check_deadline()
                self._check_faults(plan)
                record = self._assembly.table.get(site)
                if record is None or (record.failure is not None and record.failure.kind != "follows"):
                    return
                self._changed.wait(_LOOK)

    def finished(self) -> None:
        """The result is on disk."""
        with self._changed:
            self._publish(phase="finished")
        self._wake_all()

    def failed(self, why: str, error: BaseException | None = None, *, common: bool = False) -> None:
        """This agent gives up; the others shall know.

        error : the reason, whose facts are told where it accuses a site.  common : whether it holds for all alike.
        """
        failure = Failure("common" if common else "site", why)
        if isinstance(error, PeerFault) and error.site in self._at.sites:
            accused = self._at.sites.index(error.site)
            if error.by is not None:
                failure = Failure("follows", why, accused)
            elif isinstance(error, BadArray):
                failure = Failure("array", str(error), accused, error.what, error.phase, error.iteration)
            else:
                failure = Failure("contradiction", str(error), accused, error.what)
        with self._changed:
            if self._assembly.record.phase != "failed":
                self._publish(phase="failed", failure=failure)
        self._wake_all()

    def broken(self, error: BaseException) -> None:
        """A thread of this agent has failed; whoever waits here raises its error."""
        with self._changed:
            self._broken = error
            self._changed.notify_all()

    def farewell(self, linger: float | None = None) -> tuple[str, ...]:
        """Stay until all have finished, at most so long, and neighbours have heard it. Returns who has not finished."""
        end = self._clock.now() + (self._policy.linger if linger is None else linger)
        with self._changed:
            while self._assembly.unfinished() and self._clock.now() < end:
                self._changed.wait(_LOOK)
            # who gives up a plan has to be heard by somebody, or all wait for it: a link may just have broken over it
            failed = self._assembly.record.phase == "failed" and self._entered is not None
            end = self._clock.now() + _FLUSH
            while self._clock.now() < end and any(
                not (link.idle and not self._news_for(peer)) if link.up else failed
                for peer, link in self._links.items()
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

    def _concluded(self) -> Concluded | None:
        """The result, once it may be written; whatever is proposed meanwhile is compared, and signed."""
        self._check_deadline()
        settling, computed, now = self._settling, self._computed, self._clock.now()
        settling.check(self._entered)
        if computed is not None:
            claim = settling.to_compare(computed.plan)
            if claim is not None and self._obtained(claim):
                self._compare(computed, claim)
        own = b"" if computed is None else computed.plan.digest
        for claim in settling.claims:
            if settling.final(claim, own, now) and self._obtained(claim):
                content, compared = self._outcomes[claim.outcome], self._me in settling.claims.signers(claim)
                if not compared:
                    self._accept(content, claim)
                self._vault.hold(content, claim, settling.claims.endorsements(claim), decided=True)
                return Concluded(content, claim, compared)
        return None

    def _compare(self, computed: _Computed, claim: ResultClaim) -> None:
        """Sign what is as it was computed here; raise DisputedResult for what is not."""
        proposer = self._name(computed.plan.proposer)
        difference = computed.differs(self._outcomes[claim.outcome])
        if difference:
            raise DisputedResult(
                proposer, f"proposes a result that {self._name(self._me)} did not compute: {difference}"
            )
        self._endorse(claim)

    def _endorse(self, claim: ResultClaim) -> None:
        """Sign a claim; on disk first, since others rely on it."""
        own = self._seals.endorse(self._me, claim)
        claims = self._settling.claims
        claims.add(own)
        self._vault.hold(self._outcomes[claim.outcome], claim, claims.endorsements(claim))
        self._publish(endorsement=own, proposed=self._proposal(claim))

    def _proposal(self, claim: ResultClaim) -> Endorsement | None:
        """What this site's signature under a claim rests on; None where it proposes itself."""
        return None if claim.proposer == self._me else self._settling.claims.proposal(claim)

    def _wait_for_news(self) -> None:
        self._wake_soon()
        self._changed.wait(_LOOK)

    def _obtained(self, claim: ResultClaim) -> bool:
        """Whether the bytes of a claim are here; if not, neighbours are asked for them."""
        digest, now = claim.outcome, self._clock.now()
        if digest in self._outcomes:
            return True
        self._forget()
        for peer, link in self._links.items():
            if link.up and now - self._asked.get((peer, digest), float("-inf")) > _ASK:
                self._asked[peer, digest] = now
                link.send(Parcel(wire.Parcel(wanted=wire.Wanted(outcome=digest)).SerializeToString()))
        return False

    def _forget(self) -> None:
        """Keep nothing about results that no claim is about any more: of every site, the claims of a few are known."""
        current = {claim.outcome for claim in self._settling.claims}
        self._outcomes = {digest: content for digest, content in self._outcomes.items() if digest in current}
        self._asked = {key: when for key, when in self._asked.items() if key[1] in current}
        self._handed = {key: when for key, when in self._handed.items() if key[1] in current}

    def _hand_over(self, peer: int, digest: bytes) -> None:
        """Send the bytes of a claim, and all that is known to be signed; not again while they may be under way."""
        content, now = self._outcomes.get(digest), self._clock.now()
        if content is None or now - self._handed.get((peer, digest), float("-inf")) < _AGAIN:
            return
        self._handed[peer, digest] = now
        known = [one.to_wire() for one in self._settling.claims.about(digest)]
        header = wire.Parcel(outcome=wire.Outcome(outcome=digest, endorsements=known))
        self._links[peer].send(Parcel(header.SerializeToString(), (memoryview(content),)))

    # --------------------------------------------------------------------------------------------------------- messages

    def _take(self, peer: int, arrived: Arrived) -> None:
        parcel = wire.Parcel()
        try:
            parcel.ParseFromString(arrived.header)
        except Exception:  # protobuf's own DecodeError has no stable home
            raise FrameError("a message whose header cannot be read", whole=True) from None
        kind = parcel.WhichOneof("kind")
        if kind == "data":
            self._data(peer, parcel.data, arrived.body)
        elif kind == "records":
            self._records(peer, parcel.records)
        elif kind == "wanted":
            self._hand_over(peer, parcel.wanted.outcome)
        elif kind == "outcome":
            self._outcome(peer, parcel.outcome, arrived.body)
        else:
            raise FrameError("a message of a kind that is not known", whole=True)

    def _outcome(self, peer: int, outcome: wire.Outcome, body: bytes | bytearray) -> None:
        if (peer, outcome.outcome) not in self._asked:  # or anybody could fill this site's memory
            self._links[peer].stale += 1
            return
        digest = hashlib.sha256(body).digest()
        for said in outcome.endorsements:
            one = Endorsement.from_wire(said, len(self._at.sites))
            if one.claim.outcome == digest and self._genuine(peer, one):
                self._settling.claims.add(one)
        if digest != outcome.outcome or not self._settling.claims.about(digest):
            raise FrameError("a result that nobody has announced")
        self._outcomes[digest] = bytes(body)
        self._changed.notify_all()

    def _genuine(self, peer: int, endorsement: Endorsement) -> bool:
        """Whether an endorsement is signed by its site, for this run."""
        if endorsement in self._settling.claims:  # only what was verified gets there
            return True
        fault = self._seals.endorsement_fault(endorsement)
        if fault:
            self._refuse(peer, endorsement.site, f"it signs a result of another run, or not at all ({fault})")
            return False
        return True

    def _data(self, peer: int, data: wire.Data, body: bytes | bytearray) -> None:
        plan = self._assembly.plan
        tag, message = tag_of(data), _unpacked(data, body)
        if plan is not None and data.plan == plan.digest:
            self._deliver(peer, tag, message)
        elif tag.epoch > self._assembly.record.epoch:
            waiting = [one for one in self._early[peer] if one.tag.epoch >= tag.epoch]  # earlier ones will never begin
            if len(waiting) >= _MOST_EARLY:
                raise FrameError("too many messages of an epoch that has not begun here")
            self._early[peer] = [*waiting, _Early(data.plan, tag, message)]
        else:
            self._links[peer].stale += 1
            if plan is not None and tag.epoch == plan.epoch:
                self._astray[peer] = tag

    def _deliver(self, peer: int, tag: Tag, message: Message | FrameError) -> None:
        waiting = self._mail[peer]
        if len(waiting) >= _MOST_MAIL:
            raise FrameError("more messages than anybody can be waiting for")
        waiting.append((tag, message))
        # waking the algorithm for every one of several messages would cost more than carrying them
        self._awaited.discard(peer)
        if not self._awaited:
            self._changed.notify_all()

    def _arrived(self, source: int, tag: Tag) -> bool:
        """Whether the next message of a neighbour is there. Both sides take the same steps, so it has that tag."""
        due = f"{tag.phase} {tag.t}, round {tag.round}"
        if not self._mail[source]:
            if self._strays(source):
                what = f"a message of another plan than it has entered where {due} was due"
                raise BadArray(self._name(source), what, phase=tag.phase, iteration=tag.t)
            self._check_spoilt(source, tag.phase, tag.t)
            return False
        got, message = self._mail[source][0]
        what = ""
        if got != tag:
            what = f"a message of {got.phase[:40]} {got.t}, round {got.round} where {due} was due"
        elif isinstance(message, FrameError):
            what = str(message)
        if what:
            raise BadArray(self._name(source), what, phase=tag.phase, iteration=tag.t)
        return True

    def _check_spoilt(self, source: int, phase: str, iteration: int) -> None:
        sender, what = self._spoilt.get(source, (None, ""))
        if what and sender == self._links[source].peer:
            raise BadArray(self._name(source), what, phase=phase, iteration=iteration)

    def _strays(self, source: int) -> bool:
        """Whether a neighbour has sent what is not of the plan that it has entered: nobody enters an epoch twice."""
        plan, record = self._assembly.plan, self._assembly.table.get(source)
        if source not in self._astray or plan is None or record is None:
            return False
        return record.phase == "running" and (record.epoch, record.plan) == (plan.epoch, plan.digest)

    def _taken(self, source: int) -> Message:
        _, message = self._mail[source].popleft()
        assert isinstance(message, Message)
        return message

    def _records(self, peer: int, records: wire.Records) -> None:
        news = False
        for sealed in records.sealed:
            record = self._unsealed(peer, sealed)
            if record is None:
                continue
            if record.site == self._me:
                self._learn_of_myself(record.identity)
                continue
            told = self._told[peer].get(record.site)
            if told is None or told < record.age:
                self._told[peer][record.site] = record.age  # it knows this one
            if record.fingerprint != self._at.fingerprint:  # of another run; its site is told apart by what differs
                record = replace(record, endorsement=None, proposed=None)
            self._endorsed(peer, record)
            if self._assembly.learn(record):
                self._sealed[record.site] = record.age, sealed
                news = True
                link = self._links.get(record.site)
                if link is not None and link.heard_of(record.identity, sealed):
                    self._wake(record.site)
        if news:
            self._look()
            self._wake_soon()
            self._changed.notify_all()

    def _unsealed(self, peer: int, sealed: wire.Sealed) -> Record | None:
        """The record that a site has sealed; None, and people are told, where it has not."""
        said = wire.Record()
        try:
            said.ParseFromString(sealed.record)
        except Exception:  # as above
            raise FrameError("a record that cannot be read") from None
        if said.site >= len(self._at.sites):
            raise FrameError("a record of a site that is not in the list")
        fault = self._seals.fault(said.site, sealed)
        if fault:  # not the fault of who hands it on, perhaps
            self._links[peer].stale += 1
            self._refuse(peer, said.site, fault)
            return None
        try:
            return Record.from_wire(said, len(self._at.sites))
        except FrameError as error:
            name = self._name(said.site)
            if said.site == peer or (self._seals.binding and said.site != self._me):
                self._culprit = PeerFault(name, f"says of itself what no site can say: {error}")
                self._changed.notify_all()
            raise FrameError(f"{error}, of {name}") from None

    def _endorsed(self, peer: int, record: Record) -> None:
        """Take the signature in a record, and the proposal that it has to rest on."""
        signed, proposed = record.endorsement, record.proposed
        if signed is None or not self._genuine(peer, signed):
            return
        if proposed is None or self._genuine(record.site, proposed):
            self._settling.signed(signed, proposed)
        elif self._seals.forged(proposed):
            self._settling.signed(signed, None)
        else:  # the proposer's certificate has ended since; who relied on it before is not to blame
            self._settling.claims.add(signed)

    def _refuse(self, peer: int, site: int, fault: str) -> None:
        if (site, fault) not in self._refused and len(self._refused) < _MOST_REFUSED:
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

    def _learn_of_myself(self, seen: Incarnation) -> None:
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

    def _check_undisturbed(self, plan: RunPlan) -> None:
        if self._assembly.plan is not plan:
            raise Regroup("another epoch has begun")
        if self._assembly.disturbance and not self._check_faults(plan):
            raise Regroup(self._assembly.disturbance)

    def _check_faults(self, plan: RunPlan) -> bool:
        """Give up for a reason that another member has found, and that holds here as well.

        Returns whether a member says that nobody can follow the plan. It is not believed, but what it has sent before
        may be all that it takes to see for oneself, for which there is half of patience.
        """
        failed = {
            record.site: record.failure
            for record in self._assembly.table
            if record.phase == "failed" and record.failure is not None and record.plan == plan.digest
        }
        for site, failure in sorted(failed.items()):
            who, accused = self._name(site), self._name(failure.accused)
            if failure.kind == "contradiction":
                raise DisputedResult(accused, failure.what, by=who)
            # who has not been sent anything by a site cannot accuse it
            if failure.kind == "array" and (min(site, failure.accused), max(site, failure.accused)) in plan.edges:
                raise BadArray(accused, failure.what, phase=failure.phase, iteration=failure.iteration, by=who)
        common = {site: failure.why for site, failure in sorted(failed.items()) if failure.kind == "common"}
        now = self._clock.now()
        for site, why in common.items():
            if now - self._gave_up.setdefault((site, plan.digest), now) >= 0.5 * self._policy.patience:
                raise PeerFailed(
                    f"{self._name(site)} has given up and says why: {why!r}. That is not seen here; look at that site, "
                    "then start all agents again"
                )
        return bool(common)

    def _check_deadline(self, waiting_for: Collection[int] = ()) -> None:
        if self._broken is not None:
            raise self._broken
        if self._culprit is not None:
            raise self._culprit
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


def _unpacked(data: wire.Data, body: bytes | bytearray) -> Message | FrameError:
    """What is malformed is the fault of its sender, which is named by whoever waits for it."""
    try:
        return unpack(data, body)
    except FrameError as error:
        return error
    except Exception as error:  # whatever else numpy or protobuf make of it
        return FrameError(f"a message that cannot be read ({type(error).__name__})")


def _anything(content: bytes, claim: ResultClaim) -> None:
    """Accept every result."""
