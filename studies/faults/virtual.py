"""Simulate agents in one process under a virtual clock: hours pass in seconds, and a seed determines the whole run.

Every agent runs in its own thread, but only one thread runs at a time, and time advances only while all threads wait.
Frames travel between the agents' nodes as bytes, over links that can lose, duplicate, delay and reorder them.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.runtime.node import Node

__all__ = ["Deadlock", "Host", "Killed", "LinkFaults", "VirtualClock", "VirtualNetwork"]

_TICK = 0.05  # virtual seconds between two ticks of a node
_REDIAL = 0.3  # mean virtual seconds between two attempts to open a stream
_LATENCY = 0.02  # minimum virtual seconds that a frame takes
_REORDERING = 0.05  # maximum additional virtual seconds that a delayed frame takes


class Killed(BaseException):
    """Raised in the thread of a killed agent to end it."""


class Deadlock(AssertionError):
    """Threads are waiting, but no event within the time limit can wake one of them."""


class _Task:
    """Thread that runs only while the clock gives it the turn."""

    def __init__(self, clock: VirtualClock, work: Callable[[], None], name: str) -> None:
        self.baton = threading.Semaphore(0)
        self.killed = self.done = False
        self.frozen_until = float("-inf")
        self.waiting: _Condition | None = None
        self.waits = 0
        self.notified = False
        self.thread = threading.Thread(target=self._run, args=(clock, work), name=name, daemon=True)

    def _run(self, clock: VirtualClock, work: Callable[[], None]) -> None:
        self.baton.acquire()
        clock.current = self
        try:
            if not self.killed:
                work()
        except Killed:
            pass
        finally:
            self.done = True
            clock.turn.release()


class VirtualClock:
    """Clock whose time advances only while all threads wait; it runs one thread at a time."""

    def __init__(self) -> None:
        self.time = 0.0
        self.turn = threading.Semaphore(0)
        self.current: _Task | None = None
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ready: deque[_Task] = deque()
        self._tasks: list[_Task] = []

    def now(self) -> float:
        """Return the virtual time."""
        return self.time

    def condition(self) -> _Condition:
        """Return a new condition variable whose timeouts are measured by this clock."""
        return _Condition(self)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule an action at a virtual time, or now if that time has passed."""
        heapq.heappush(self._events, (max(time, self.time), next(self._order), action))

    def spawn(self, work: Callable[[], None], name: str) -> _Task:
        """Start a thread that runs ``work`` under this clock."""
        task = _Task(self, work, name)
        self._tasks.append(task)
        task.thread.start()
        self._ready.append(task)
        return task

    def kill(self, task: _Task) -> None:
        """End a task at its current or next wait."""
        task.killed = True
        if task.waiting is not None:
            self.wake(task)

    def wake(self, task: _Task) -> None:
        """Let a waiting task continue."""
        if task.waiting is not None:
            task.waiting = None
            self._ready.append(task)

    def run(self, until: float) -> None:
        """Run until all threads have ended; raise Deadlock if some still wait at virtual time ``until``."""
        while any(not task.done for task in self._tasks):
            while self._ready:
                task = self._ready.popleft()
                if task.frozen_until > self.time and not task.killed:
                    self.at(task.frozen_until, partial(self._ready.append, task))
                    continue
                task.baton.release()
                self.turn.acquire()
                self.current = None
            if all(task.done for task in self._tasks):
                return
            if not self._events or self._events[0][0] > until:
                left = [task.thread.name for task in self._tasks if not task.done]
                raise Deadlock(f"still waiting after {self.time:.1f} s of virtual time: {', '.join(left)}")
            self.time, _, action = heapq.heappop(self._events)
            action()

    def end(self) -> None:
        """End all threads."""
        for task in self._tasks:
            if not task.done:
                task.killed, task.waiting = True, None
                task.baton.release()
                self.turn.acquire()


class _Condition:
    """Condition variable under a virtual clock, with the methods that nodes use."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._waiters: list[_Task] = []

    def __enter__(self) -> _Condition:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        clock = self._clock
        task = clock.current
        if task is None:
            raise AssertionError("only the thread of an agent may wait")
        task.waiting, task.notified = self, False
        task.waits += 1
        waits = task.waits
        self._waiters.append(task)
        if timeout is not None:
            clock.at(clock.time + timeout, lambda: self._over(task, waits))
        clock.turn.release()
        task.baton.acquire()
        clock.current = task
        if task in self._waiters:
            self._waiters.remove(task)
        if task.killed:
            raise Killed
        return task.notified

    def _over(self, task: _Task, waits: int) -> None:
        if task.waits == waits and task.waiting is self:
            self._clock.wake(task)

    def notify_all(self) -> None:
        for task in self._waiters:
            task.notified = True
            self._clock.wake(task)
        self._waiters.clear()


@dataclass
class LinkFaults:
    """Faults of the links between hosts.

    Parameters
    ----------
    loss, duplicate, delay
        Probabilities that a frame is lost, arrives twice, or is delayed so that later frames overtake it.
    cut
        Pairs (sender, receiver) between which all frames are lost.
    slow
        Factor, by site, by which the latency of frames from or to it is multiplied.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    cut: set[tuple[int, int]] = field(default_factory=set)
    slow: dict[int, float] = field(default_factory=dict)


class Host:
    """Machine of a site, on which an agent can be started, frozen, killed and started again."""

    def __init__(self, site: int) -> None:
        self.site = site
        self.node: Node | None = None
        self.task: Any = None
        self.starts = 0
        self.frozen_until = float("-inf")


class VirtualNetwork:
    """Hosts, and the links that carry frames between their nodes."""

    def __init__(
        self, clock: VirtualClock, hosts: Collection[Host], edges: Collection[tuple[int, int]], seed: int
    ) -> None:
        self.clock, self.link_faults = clock, LinkFaults()
        self.hosts = {host.site: host for host in hosts}
        self._edges = [(min(edge), max(edge)) for edge in edges]
        self._rng = np.random.default_rng(seed)
        self._streams: dict[tuple[int, int], int] = {}  # number of the open stream of each edge
        self._numbers = count(1)
        self._pumping: set[tuple[int, int]] = set()
        for edge in self._edges:
            self._dial(edge)

    # ---------------------------------------------------------------------------------------------------------- agents

    def start(self, site: int, node: Node, work: Callable[[], None]) -> None:
        """Start an agent on the host of a site: its node, and its main function ``work``."""
        host = self.hosts[site]
        host.node, host.starts = node, host.starts + 1
        node.attach(lambda peer: self._pump_soon(site, peer, node))
        host.task = self.clock.spawn(work, f"site {site}, start {host.starts}")
        self._tick(host, node)

    def kill(self, site: int) -> None:
        """Kill the agent of a site as SIGKILL does: it does nothing more, and its neighbours see their streams end."""
        host = self.hosts[site]
        if host.node is None:
            return
        host.node = None
        self.clock.kill(host.task)
        for edge in self._edges:
            if site in edge:
                self._close(edge, "the connection was reset", self._streams.get(edge, 0))

    def freeze(self, site: int, seconds: float) -> None:
        """Freeze the agent of a site for some seconds, as SIGSTOP and SIGCONT do."""
        host = self.hosts[site]
        host.frozen_until = self.clock.time + seconds
        if host.task is not None:
            host.task.frozen_until = host.frozen_until

    def leave(self, site: int, node: Node) -> None:
        """Remove an agent whose process has ended."""
        if self.hosts[site].node is node:
            self.hosts[site].node = None
            for edge in self._edges:
                if site in edge:
                    self._close(edge, "the connection was closed", self._streams.get(edge, 0))

    def _tick(self, host: Host, node: Node) -> None:
        if host.node is not node:
            return
        if host.frozen_until <= self.clock.time:
            node.tick()
        self.clock.at(max(self.clock.time + _TICK, host.frozen_until), lambda: self._tick(host, node))

    # --------------------------------------------------------------------------------------------------------- streams

    def _dial(self, edge: tuple[int, int]) -> None:
        """Try to open a stream over an edge, and schedule the next attempt; do nothing else if the stream is open."""
        self.clock.at(self.clock.time + _REDIAL * (0.5 + self._rng.random()), lambda: self._dial(edge))
        if edge in self._streams or self._blocked(*edge) or self._blocked(*reversed(edge)):
            return
        ends = [self.hosts[site] for site in edge]
        if any(end.node is None or end.frozen_until > self.clock.time for end in ends):
            return
        self._streams[edge] = next(self._numbers)
        for end, other in zip(ends, reversed(edge), strict=True):
            if end.node is not None:
                end.node.opened(other)

    def _blocked(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) in self.link_faults.cut

    def _close(self, edge: tuple[int, int], why: str, stream: int) -> None:
        if self._streams.get(edge) != stream or stream == 0:
            return
        del self._streams[edge]
        for site, other in (edge, tuple(reversed(edge))):
            node = self.hosts[site].node
            if node is not None:
                node.closed(other, why)

    def _pump_soon(self, site: int, peer: int, node: Node) -> None:
        if (site, peer) not in self._pumping:
            self._pumping.add((site, peer))
            self.clock.at(max(self.clock.time, self.hosts[site].frozen_until), lambda: self._pump(site, peer, node))

    def _pump(self, site: int, peer: int, node: Node) -> None:
        self._pumping.discard((site, peer))
        edge = (min(site, peer), max(site, peer))
        stream = self._streams.get(edge)
        if self.hosts[site].node is not node or stream is None:
            return
        if self.hosts[site].frozen_until > self.clock.time:
            self._pump_soon(site, peer, node)
            return
        link_faults, rng = self.link_faults, self._rng
        while (frame := node.next_frame(peer)) is not None:
            content = frame.SerializeToString()
            for _ in range(2 if rng.random() < link_faults.duplicate else 1):
                if rng.random() < link_faults.loss or self._blocked(site, peer):
                    continue
                delay = (
                    _LATENCY
                    * (1.0 + 0.2 * rng.random())
                    * max(link_faults.slow.get(site, 1.0), link_faults.slow.get(peer, 1.0))
                )
                if rng.random() < link_faults.delay:
                    delay += _REORDERING * rng.random()
                self.clock.at(self.clock.time + delay, partial(self._arrive, site, peer, stream, content))

    def _arrive(self, site: int, peer: int, stream: int, content: bytes) -> None:
        edge, host = (min(site, peer), max(site, peer)), self.hosts[peer]
        if self._streams.get(edge) != stream or host.node is None:
            return
        if host.frozen_until > self.clock.time:
            self.clock.at(host.frozen_until, lambda: self._arrive(site, peer, stream, content))
            return
        try:
            host.node.received(site, wire.Frame.FromString(content))
        except FrameError as error:
            self._close(edge, str(error), stream)
