"""Handle an agent's events and provide the blocking calls that its algorithm makes.

Two threads meet here. The event loop (or a simulation) reports events with ``opened``, ``closed``, ``received`` and
``tick``, and asks for the ``next_frame``; it waits only for the lock, which is held while a promise is written to disk.
The algorithm calls ``agree_on_plan``, ``exchange``, ``relay`` and ``agree_on_result``, which block until the network is
ready, but not beyond the deadline.

A run is a sequence of epochs. In each of them all members have entered the same :class:`RunPlan`, and every message
carries its digest: agents that disagree about who takes part never mix their numbers. A wrong guess costs only time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from deepca.errors import FrameError, Regroup, WrongNetwork
from deepca.network.transports.base import Combine, Message, RelayStep, Tag
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import ResultClaim
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import parse_header
from deepca.sites.protocol.reassembly import ReceivedMessage
from deepca.sites.protocol.records import Offer, RunPlan
from deepca.sites.protocol.signatures import NoSignatures, Signatures
from deepca.sites.runtime.assembly import Assembly
from deepca.sites.runtime.clocks import Clock
from deepca.sites.runtime.link import Link
from deepca.sites.runtime.node.abort_reasons import AbortReasons, failure_of
from deepca.sites.runtime.node.context import NodeContext
from deepca.sites.runtime.node.mailbox import Mailbox
from deepca.sites.runtime.node.model_files import ModelFiles
from deepca.sites.runtime.node.neighbors import Neighbors
from deepca.sites.runtime.node.outbox import Outbox, Relay
from deepca.sites.runtime.node.record_receiver import RecordReceiver
from deepca.sites.runtime.node.results import DecidedResult, Results, accept_any
from deepca.sites.runtime.node.settlement import Settlement
from deepca.sites.runtime.node.snapshot import NodeSnapshot, snapshot_of
from deepca.sites.runtime.node.verification import Verification
from deepca.sites.runtime.node_config import NodeConfig, Policy
from deepca.sites.runtime.promise_store import MemoryPromiseStore, PromiseStore

__all__ = ["Node"]

_POLL_INTERVAL = 0.25  # seconds between checks of which sites are present
_EXCHANGE_TIMEOUT = 1.0  # seconds between checks of the deadline while messages are awaited
_FLUSH_TIMEOUT = 2.0  # largest number of seconds for delivering the last records before stopping
_FLUSH_POLL = 0.05  # seconds between checks of whether they have been delivered


class Node:
    """An agent's node in the network, through which its algorithm reaches the other sites.

    Parameters
    ----------
    config, policy, clock, incarnation
        The site's place in the network, its policy, the clock, and this incarnation of the agent.
    wall : callable, optional
        Returns the time in seconds since 1970; used to report clock skew.
    promise_store : PromiseStore, optional
        Storage for the promises of this site; in memory by default.
    signatures : Signatures, optional
        Signs and verifies records; by default nothing is signed.

    Notes
    -----
    Its parts are ``context`` (shared objects), ``links`` (one per neighbour), ``neighbors`` (their presence, and the
    records sent to them), ``assembly`` (which sites take part), ``records``, ``mailbox`` and ``files`` (what arrives),
    ``outbox`` (what is sent), ``settlement`` and ``results`` (signing the result), and ``abort_reasons``. The lock of
    ``changed`` guards all of them.
    """

    def __init__(
        self,
        config: NodeConfig,
        policy: Policy,
        clock: Clock,
        incarnation: Incarnation,
        wall: Callable[[], float] = time.time,
        promise_store: PromiseStore | None = None,
        signatures: Signatures | None = None,
    ) -> None:
        self._policy, self._clock, self._wall = policy, clock, wall
        self._promise_store = promise_store if promise_store is not None else MemoryPromiseStore()
        remembered, began = self._promise_store.load(), clock.now()
        self.changed = clock.condition()
        self.assembly = Assembly(config, policy, incarnation, began, remembered.epoch)
        self.links = {peer: Link(incarnation, config.network_digest) for peer in config.neighbors}
        for link in self.links.values():
            link.message_limit = config.message_limit
        self.context = context = NodeContext(
            config, policy, clock, self.changed, began, signatures or NoSignatures(), self.assembly, self.links
        )
        self.settlement = Settlement(config, policy, self.assembly)
        self.abort_reasons = AbortReasons(context)
        self.neighbors = Neighbors(context)
        self.mailbox, self.outbox = Mailbox(context), Outbox(context)
        verification = Verification(context, self.settlement.claims, self.abort_reasons)
        self.records = RecordReceiver(context, self.neighbors, self.settlement, verification, self.abort_reasons)
        self.files = ModelFiles(context, self.settlement.claims, verification)
        self.results = Results(context, self.neighbors, self.settlement, self.files, self._promise_store)
        self.results.restore(remembered)
        self._entered: RunPlan | None = None  # last plan entered
        self._proposed: RunPlan | None = None  # last plan proposed, even if it was withdrawn since

    def attach(self, wake: Callable[[int], None]) -> None:
        """Set the function ``wake(peer)``, called whenever ``next_frame(peer)`` may return a frame."""
        self.neighbors.wake = wake

    # -------------------------------------------------------------------------------------- events, from the event loop

    def opened(self, peer: int) -> None:
        """Handle a new stream to a neighbour."""
        with self.changed:
            self.links[peer].opened(self._clock.now())
        self.neighbors.wake(peer)

    def closed(self, peer: int, why: str) -> None:
        """Handle the end of the stream to a neighbour."""
        with self.changed:
            if self.links[peer].open:
                self.neighbors.log_disconnected(peer, why)
            self.links[peer].closed()
            self.neighbors.update_presence()
            self.changed.notify_all()

    def refused(self, peer: int | None, where: str, why: str) -> None:
        """Log a connection that was refused; ``peer`` is None if the other side is unknown."""
        self.neighbors.log_refused(peer, where, why)

    def received(self, peer: int, frame: wire.Frame) -> None:
        """Process a frame from a neighbour; raise FrameError if the stream has to be closed because of it."""
        woken: set[int] = set()
        with self.changed:
            link, now = self.links[peer], self._clock.now()
            was_up, before = link.up, link.peer
            try:
                for arrived in link.received(frame, now):
                    self._take(peer, arrived)
            except WrongNetwork:
                self.abort_reasons.note_wrong_network(peer)
                raise
            except FrameError as error:
                if error.intact:  # sending it again will not help, so the call that waits for the message must fail
                    self.mailbox.mark_lost(peer, str(error))
                raise
            if frame.HasField("hello"):
                woken.add(peer)
                self.abort_reasons.note_right_network(peer)
                link.skew = frame.hello.clock - self._wall() if frame.hello.clock else None
                self.records.greeted(peer, frame.hello)
            if link.peer != before:
                self.neighbors.restarted(peer)
                self.files.restarted(peer)
            if link.up != was_up:
                self.neighbors.log_connected(peer)
                self.neighbors.update_presence()
                woken.add(peer)
            if link.ready:  # an acknowledgement may have made room
                woken.add(peer)
            woken |= self.outbox.take_receivers()  # of messages that a relay has sent
        self.neighbors.wake_each(woken)

    def _take(self, peer: int, arrived: ReceivedMessage) -> None:
        """Pass a message to the part that handles its kind."""
        parcel = parse_header(arrived.header)
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
            raise FrameError("a message of an unknown kind", intact=True)

    def next_frame(self, peer: int) -> wire.Frame | None:
        """Return the next frame for a neighbour, or None if there is nothing to send now."""
        with self.changed:
            link, now = self.links[peer], self._clock.now()
            if link.up:
                self.neighbors.send_news(peer)
            frame = link.next_frame(now)
            if frame is not None and frame.HasField("hello"):
                frame.hello.clock = self._wall()
            return frame

    def tick(self) -> None:
        """Handle the passage of time; must be called several times a second."""
        with self.changed:
            now = self._clock.now()
            woken = {peer for peer, link in self.links.items() if link.tick(now)}
            if now - self.neighbors.presence_checked_at >= _POLL_INTERVAL:
                self.neighbors.update_presence()
                self.changed.notify_all()
            woken.update(self.neighbors.with_news())
        self.neighbors.wake_each(woken)

    # --------------------------------------------------------------------------------- blocking calls, by the algorithm

    def agree_on_plan(
        self, offer: Offer, accept: Callable[[bytes, ResultClaim], None] | None = None
    ) -> RunPlan | DecidedResult:
        """Agree with the other sites on a plan, or on the result if it is already known.

        Parameters
        ----------
        offer : Offer
            Checkpoints of this site.
        accept : callable, optional
            Raises an error for a model file, given with its claim, that most sites signed but cannot be the result.

        Returns
        -------
        RunPlan or DecidedResult
            The plan that all members have entered, or the result.

        Raises
        ------
        InvalidInput
            If this site differs from the others in something that must be the same everywhere.
        PeerFault, PeerFailed
            If another site misbehaves, or has given up because of an error that this site does not find.
        Unfinished
            If the deadline has passed.
        """
        with self.changed:
            here = self.assembly
            self.results.accept = accept if accept is not None else accept_any
            self.mailbox.clear()
            here.leave_plan(offer=offer)
            while True:
                self.abort_reasons.check()
                self.neighbors.update_presence()
                here.check_differences()
                here.check_epochs()
                self._proposed = here.proposal or self._proposed
                for known in (self._entered, self._proposed):  # others may have entered it and failed before this site
                    if known is not None:
                        self.abort_reasons.check_members(known)
                found = self.results.concluded(self._entered)
                if found is not None:
                    return found
                if pending := self.settlement.blocking():
                    here.withdraw()
                    for claim in pending:  # sites beyond this one may need the file, to compare it
                        self.files.obtain(claim)
                elif here.update_proposal(self._clock.now()):
                    self._promise_store.store_epoch(here.next_epoch)  # a promise to the others, so on disk first
                    plan = self._entered = here.enter(self._clock.now())
                    self.mailbox.enter(plan)
                    break
                self._wait_for_news()
        self.neighbors.wake_all()
        return plan

    def exchange(
        self, plan: RunPlan, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int]
    ) -> dict[int, Message]:
        """Exchange messages as :meth:`deepca.network.transports.base.Transport.exchange` does, keyed by site index."""
        with self.changed:
            self.abort_reasons.check_undisturbed(plan)
            self.outbox.send(plan, tag, outgoing)
            woken = self.outbox.take_receivers()
        self.neighbors.wake_each(woken)
        with self.changed:
            self._await_messages(plan, lambda: self.mailbox.missing(sources, tag))
            return self.mailbox.take(sources)

    def relay(self, plan: RunPlan, steps: Sequence[RelayStep], message: Message, combine: Combine) -> Message:
        """Relay messages as :meth:`deepca.network.transports.base.Transport.relay` does, keyed by site index.

        ``combine`` is called with the lock held, and in the event loop's thread whenever messages arrive after this
        call has begun to wait.
        """
        with self.changed:
            self.abort_reasons.check_undisturbed(plan)
            relay = self.mailbox.relay = Relay(self.outbox, self.mailbox, plan, steps, message, combine)
            relay.advance_quietly()
            woken = self.outbox.take_receivers()
        self.neighbors.wake_each(woken)
        with self.changed:
            try:
                self._await_messages(plan, relay.advance)
                return relay.message
            finally:  # messages that arrive later wait in the mailbox, or are dropped with the plan
                self.mailbox.relay = None

    def _await_messages(self, plan: RunPlan, missing: Callable[[], list[int]]) -> None:
        """Wait until ``missing`` returns no site; raise the reason to end the run or to leave the plan, if any."""
        while True:
            self.abort_reasons.check_undisturbed(plan)
            if not (sites := missing()):
                return
            self.abort_reasons.check(sites)
            self.changed.wait(_EXCHANGE_TIMEOUT)

    def agree_on_result(
        self, plan: RunPlan, differs: Callable[[bytes], str], proposal: Callable[[], bytes]
    ) -> DecidedResult:
        """Agree on the result of a plan that this site has followed to its end.

        Parameters
        ----------
        plan : RunPlan
            The plan.
        differs : callable
            Describes how a proposed model file differs from what was computed here; the file is signed if the
            description is empty.
        proposal : callable
            Returns this site's model file; called only if this site is the one to propose it.

        Returns
        -------
        DecidedResult
            The result, once it may be written (see :mod:`deepca.sites.runtime.node.settlement`).

        Raises
        ------
        DisputedResult, Regroup
            If the sites do not agree on a result, or the plan can no longer be followed.
        PeerFault, PeerFailed, Unfinished
            As for :meth:`agree_on_plan`.
        """
        with self.changed:
            here = self.assembly
            self.results.announce_computed(plan, differs)
            if plan.proposer == self.context.me and not here.disturbance:
                self.results.propose(plan, proposal())
            while True:
                self.abort_reasons.check()
                found = self.results.concluded(self._entered)
                if found is not None:
                    return found
                for peer in self.links.keys() & set(plan.members):  # messages of other sites do not matter here
                    self.mailbox.check_lost(peer, "result", 0)
                if here.disturbance:
                    self.abort_reasons.check_members(plan)
                    raise Regroup(here.disturbance)
                self._wait_for_news()

    def _wait_for_news(self) -> None:
        self.neighbors.wake_with_news()
        self.changed.wait(_POLL_INTERVAL)

    def await_fault(self, plan: RunPlan, site: int) -> None:
        """Wait for a member to give up, for at most half of the patience, and raise any error that a member reports."""
        end = self._clock.now() + 0.5 * self._policy.patience
        with self.changed:
            while self._clock.now() < end:
                self.abort_reasons.check()
                self.abort_reasons.check_members(plan)
                record = self.assembly.table.get(site)
                if record is None or (record.failure is not None and record.failure.kind != "follows"):
                    return
                self.changed.wait(_POLL_INTERVAL)

    # ---------------------------------------------------------------------------------------------------------- the end

    def announce_finished(self) -> None:
        """Announce to the other sites that the result is on disk."""
        with self.changed:
            self.neighbors.publish(phase="finished")
        self.neighbors.wake_all()

    def announce_failure(self, why: str, error: BaseException | None = None, *, common: bool = False) -> None:
        """Announce to the other sites that this agent gives up; see :func:`.abort_reasons.failure_of`."""
        failure = failure_of(why, error, common=common, sites=self.context.config.sites)
        with self.changed:
            if self.assembly.record.phase != "failed":
                self.neighbors.publish(phase="failed", failure=failure)
        self.neighbors.wake_all()

    def abort(self, error: BaseException) -> None:
        """End the run with an error from another thread of this agent, raised by the call that waits here."""
        with self.changed:
            self.abort_reasons.abort(error)

    def wait_until_all_finished(self, linger: float | None = None) -> tuple[str, ...]:
        """Wait until all sites have finished, for at most ``linger`` seconds, and return those that have not."""
        end = self._clock.now() + (self._policy.linger if linger is None else linger)
        with self.changed:
            while self.assembly.unfinished() and self._clock.now() < end:
                self.changed.wait(_POLL_INTERVAL)
            # a member that gives up must reach a neighbour, or all would wait for it; its links may just have broken
            failed = self.assembly.record.phase == "failed" and self._entered is not None
            end = self._clock.now() + _FLUSH_TIMEOUT
            while self._clock.now() < end and any(
                not (link.idle and not self.neighbors.news_for(peer)) if link.up else failed
                for peer, link in self.links.items()
            ):
                self.changed.wait(_FLUSH_POLL)
            return self.assembly.names(self.assembly.unfinished())

    def snapshot(self) -> NodeSnapshot:
        """Return a snapshot for logs and screens."""
        with self.changed:
            return snapshot_of(self.assembly, self.links, self._clock.now())
