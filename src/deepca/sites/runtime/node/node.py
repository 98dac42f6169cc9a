"""The node itself: the events that reach it, and the calls that its algorithm waits in.

Two threads meet here. The event loop (or a simulation) says what happened, ``opened``, ``closed``, ``received`` and
``tick``, and asks for the ``next_frame``; all it ever waits for is the lock, while a promise is written to disk. The
algorithm calls ``gather``, ``exchange`` and ``settle``, which return when the network has come so far, and none of
which waits beyond the deadline.

A run is a sequence of epochs. In each, all members have entered the same :class:`RunPlan`,
and every message carries its digest: agents with different ideas of who takes part never mix their numbers. So a wrong
guess about the network can cost time, but not the answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from deepca._util.logs import EventLogger
from deepca.errors import FrameError, Regroup, WrongNetwork
from deepca.network.transports.base import Message, Tag
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import ResultClaim
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel, pack
from deepca.sites.protocol.records import Offer, RunPlan
from deepca.sites.protocol.signatures import NoSeals, Seals
from deepca.sites.runtime.arrival import Arrived
from deepca.sites.runtime.assembly import Assembly, Membership, Policy
from deepca.sites.runtime.clocks import Clock
from deepca.sites.runtime.link import Link
from deepca.sites.runtime.node.context import NodeContext
from deepca.sites.runtime.node.faults import Faults, failure_of
from deepca.sites.runtime.node.mailbox import Mailbox
from deepca.sites.runtime.node.model_files import ModelFiles
from deepca.sites.runtime.node.neighbors import Neighbors
from deepca.sites.runtime.node.record_receiver import RecordReceiver
from deepca.sites.runtime.node.results import Concluded, Results, accept_any
from deepca.sites.runtime.node.verification import Verification
from deepca.sites.runtime.node.view import View, view_of
from deepca.sites.runtime.settlement import Settling
from deepca.sites.runtime.vault import MemoryVault, Vault

__all__ = ["Node"]

_logger = logging.getLogger(__name__)

_LOOK = 0.25  # seconds between two looks at who is there
_FLUSH = 2.0  # seconds to let neighbours hear the last words


class Node:
    """An agent's place in the network; see the module.

    Its parts: ``context``, what they share; ``links``, by neighbour; ``neighbors``, who is there and what it was told;
    ``assembly``, who takes part; ``records``, ``mailbox`` and ``files``, what arrives; ``settling`` and ``results``,
    what all sign; ``faults``, what ends the run. The lock of ``changed`` guards all of them.
    """

    def __init__(
        self,
        membership: Membership,
        policy: Policy,
        clock: Clock,
        identity: Incarnation,
        wall: Callable[[], float] = time.time,
        vault: Vault | None = None,
        seals: Seals | None = None,
    ) -> None:
        self._policy, self._clock, self._wall = policy, clock, wall
        self._vault = vault if vault is not None else MemoryVault()
        remembered, began = self._vault.load(), clock.now()
        self.changed = clock.condition()
        self.assembly = Assembly(membership, policy, identity, began, remembered.epoch)
        self.links = {peer: Link(identity, membership.run) for peer in membership.neighbors}
        for link in self.links.values():
            link.limit = membership.limit
        seals = seals if seals is not None else NoSeals()
        self.context = context = NodeContext(
            membership, policy, clock, self.changed, began, seals, self.assembly, self.links
        )
        self._log = EventLogger(_logger, context.name(context.me))
        self.settling = Settling(membership, policy, self.assembly)
        self.faults = Faults(context)
        self.neighbors = Neighbors(context)
        self.mailbox = Mailbox(context)
        verification = Verification(context, self.settling.claims, self.faults)
        self.records = RecordReceiver(context, self.neighbors, self.settling, verification, self.faults)
        self.files = ModelFiles(context, self.settling.claims, verification)
        self.results = Results(context, self.neighbors, self.settling, self.files, self._vault)
        self.results.restore(remembered)
        self._entered: RunPlan | None = None  # the last one
        self._proposed: RunPlan | None = None  # the last one, though withdrawn since

    def attach(self, wake: Callable[[int], None]) -> None:
        """Set ``wake(peer)``, which is called whenever ``next_frame(peer)`` may have something."""
        self.neighbors.wake = wake

    # -------------------------------------------------------------------------------- what happens, from the event loop

    def opened(self, peer: int) -> None:
        """Begin a stream with a neighbour."""
        with self.changed:
            self.links[peer].opened(self._clock.now())
        self.neighbors.wake(peer)

    def closed(self, peer: int, why: str) -> None:
        """End the stream with a neighbour."""
        with self.changed:
            if self.links[peer].open:
                name = self.context.name(peer)
                self._log.log(
                    self.assembly.gone_level, f"{name}: {why}", event="link_down", facts={"site": name, "why": why}
                )
            self.links[peer].closed()
            self.neighbors.look()
            self.changed.notify_all()

    def refused(self, peer: int | None, where: str, why: str) -> None:
        """Tell people of a connection that was refused. peer : None where it is not known who it was."""
        name = None if peer is None else self.context.name(peer)
        who = where if name is None else f"{name} ({where})"
        self._log.warning(f"{who}: {why}", event="refused", facts={"peer": name, "where": where, "why": why})

    def received(self, peer: int, frame: wire.Frame) -> None:
        """Take a frame of a neighbour; raise FrameError where the stream has to be closed over it."""
        woken: set[int] = set()
        with self.changed:
            link, now = self.links[peer], self._clock.now()
            was_up, before = link.up, link.peer
            try:
                for arrived in link.received(frame, now):
                    self._take(peer, arrived)
            except WrongNetwork:
                self.faults.wrong_network(peer)
                raise
            except FrameError as error:
                if error.whole:  # it will not come again, or not otherwise: whoever waits for it shall know
                    self.mailbox.spoil(peer, str(error))
                raise
            if frame.HasField("hello"):
                woken.add(peer)
                self.faults.right_network(peer)
                link.skew = frame.hello.clock - self._wall() if frame.hello.clock else None
                self.records.greeted(peer, frame.hello)
            if link.peer != before:
                self.neighbors.restarted(peer)
                self.files.restarted(peer)
            if link.up != was_up:
                name = self.context.name(peer)
                self._log.info(f"{name} is there", event="link_up", facts={"site": name})
                self.neighbors.look()
                woken.add(peer)
            if link.ready:  # an acknowledgement may have made room
                woken.add(peer)
        for other in woken:
            self.neighbors.wake(other)

    def _take(self, peer: int, arrived: Arrived) -> None:
        """Pass a message to the part that it is for."""
        parcel = wire.Parcel()
        try:
            parcel.ParseFromString(arrived.header)
        except Exception:  # protobuf's own DecodeError has no stable home
            raise FrameError("a message whose header cannot be read", whole=True) from None
        kind = parcel.WhichOneof("kind")
        if kind == "data":
            self.mailbox.receive(peer, parcel.data, arrived.body)
        elif kind == "records":
            self.records.receive(peer, parcel.records)
        elif kind == "wanted":
            self.files.send(peer, parcel.wanted.outcome)
        elif kind == "outcome":
            self.files.receive(peer, parcel.outcome, arrived.body)
        else:
            raise FrameError("a message of a kind that is not known", whole=True)

    def next_frame(self, peer: int) -> wire.Frame | None:
        """Return the next frame for a neighbour, if there is one now."""
        with self.changed:
            link, now = self.links[peer], self._clock.now()
            if link.up:
                self.neighbors.send_news(peer)
            frame = link.next_frame(now)
            if frame is not None and frame.HasField("hello"):
                frame.hello.clock = self._wall()
            return frame

    def tick(self) -> None:
        """Let time pass; to be called some times per second."""
        with self.changed:
            now = self._clock.now()
            woken = {peer for peer, link in self.links.items() if link.tick(now)}
            if now - self.neighbors.looked >= _LOOK:
                self.neighbors.look()
                self.changed.notify_all()
            woken.update(self.neighbors.with_news())
        for peer in woken:
            self.neighbors.wake(peer)

    # -------------------------------------------------------------------------------------- what the algorithm waits in

    def gather(self, offer: Offer, accept: Callable[[bytes, ResultClaim], None] | None = None) -> RunPlan | Concluded:
        """Come together with the other sites and agree on who takes part and from where; or on the result, if known.

        ``accept`` raises for a model file that cannot be the result of this run, though most sites have signed it.

        Raises InvalidInput if this site differs from the others in what has to be the same, PeerFault where another one
        says what cannot be, Unfinished at the deadline.
        """
        with self.changed:
            here = self.assembly
            self.results.accept = accept if accept is not None else accept_any
            self.mailbox.clear()
            here.gather(offer=offer)
            while True:
                self.faults.check()
                self.neighbors.look()
                here.check_differences()
                here.check_epochs()
                self._proposed = here.proposal or self._proposed
                for known in (self._entered, self._proposed):  # others may have entered it, and failed, before this one
                    if known is not None:
                        self.faults.check_members(known)
                found = self._concluded()
                if found is not None:
                    return found
                if pending := self.settling.pending():
                    here.withdraw()
                    for claim in pending:  # somebody farther away may have to compare it
                        self.files.obtain(claim)
                elif here.agreed(self._clock.now()):
                    self._vault.enter(here.next_epoch)  # a promise: not to be forgotten
                    plan = self._entered = here.enter(self._clock.now())
                    self.mailbox.enter(plan)
                    break
                self._wait_for_news()
        self.neighbors.wake_all()
        return plan

    def exchange(
        self, plan: RunPlan, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int]
    ) -> dict[int, Message]:
        """Exchange messages as :meth:`deepca.network.transports.base.Transport.exchange`, with sites for agents."""
        digest = plan.digest
        parcels: dict[int, Parcel] = {}
        with self.changed:
            self.faults.check_undisturbed(plan)
            for receiver, message in outgoing.items():
                parcel = parcels.get(id(message))
                if parcel is None:
                    parcel = parcels[id(message)] = pack(digest, tag, message)
                self.links[receiver].send(parcel, plan.identities[plan.members.index(receiver)])
        for receiver in outgoing:
            self.neighbors.wake(receiver)
        with self.changed:
            while True:
                self.faults.check_undisturbed(plan)
                missing = self.mailbox.missing(sources, tag)
                if not missing:
                    return self.mailbox.take(sources)
                self.faults.check(missing)
                self.changed.wait(1.0)

    def settle(self, plan: RunPlan, differs: Callable[[bytes], str], proposal: Callable[[], bytes]) -> Concluded:
        """Agree on the result of a plan that this site has followed to its end.

        ``proposal()`` is this site's model file, asked for where it is the one to propose. ``differs(content)`` says
        how what another site proposes differs from what was computed here; it is signed only if it does not.

        Returns when it may be written (see :mod:`deepca.sites.runtime.settlement`). Raises DisputedResult where sites
        do not agree on a result, Regroup if the plan cannot be followed any more.
        """
        with self.changed:
            here = self.assembly
            self.results.computed(plan, differs)
            if plan.proposer == self.context.me and not here.disturbance:
                self.results.propose(plan, proposal())
            while True:
                found = self._concluded()
                if found is not None:
                    return found
                for peer in self.links.keys() & set(plan.members):  # what others send does not matter here
                    self.mailbox.check_spoilt(peer, "result", 0)
                if here.disturbance:
                    self.faults.check_members(plan)
                    raise Regroup(here.disturbance)
                self._wait_for_news()

    def _concluded(self) -> Concluded | None:
        self.faults.check()
        return self.results.concluded(self._entered)

    def _wait_for_news(self) -> None:
        self.neighbors.wake_with_news()
        self.changed.wait(_LOOK)

    def await_fault(self, plan: RunPlan, site: int) -> None:
        """Wait until a member gives up, half of patience at most, and raise what was found by it or anybody else."""
        end = self._clock.now() + 0.5 * self._policy.patience
        with self.changed:
            while self._clock.now() < end:
                self.faults.check()
                self.faults.check_members(plan)
                record = self.assembly.table.get(site)
                if record is None or (record.failure is not None and record.failure.kind != "follows"):
                    return
                self.changed.wait(_LOOK)

    # ---------------------------------------------------------------------------------------------------------- the end

    def finished(self) -> None:
        """Tell the others that the result is on disk."""
        with self.changed:
            self.neighbors.publish(phase="finished")
        self.neighbors.wake_all()

    def failed(self, why: str, error: BaseException | None = None, *, common: bool = False) -> None:
        """Tell the others that this agent gives up.

        error : the reason, whose facts are told where it accuses a site.  common : whether it holds for all alike.
        """
        failure = failure_of(why, error, common=common, sites=self.context.membership.sites)
        with self.changed:
            if self.assembly.record.phase != "failed":
                self.neighbors.publish(phase="failed", failure=failure)
        self.neighbors.wake_all()

    def broken(self, error: BaseException) -> None:
        """Take the error of a thread of this agent that has failed; whoever waits here raises it."""
        with self.changed:
            self.faults.broken(error)

    def farewell(self, linger: float | None = None) -> tuple[str, ...]:
        """Stay until all have finished, at most so long, and neighbours have heard it. Returns who has not finished."""
        end = self._clock.now() + (self._policy.linger if linger is None else linger)
        with self.changed:
            while self.assembly.unfinished() and self._clock.now() < end:
                self.changed.wait(_LOOK)
            # who gives up a plan has to be heard by somebody, or all wait for it: a link may just have broken over it
            failed = self.assembly.record.phase == "failed" and self._entered is not None
            end = self._clock.now() + _FLUSH
            while self._clock.now() < end and any(
                not (link.idle and not self.neighbors.news_for(peer)) if link.up else failed
                for peer, link in self.links.items()
            ):
                self.changed.wait(0.05)
            return self.assembly.names(self.assembly.unfinished())

    def view(self) -> View:
        """Return what is going on, for logs and screens."""
        with self.changed:
            return view_of(self.assembly, self.links, self._clock.now())
