"""Messages between threads of one process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping

from deepca.errors import EpochChanged, PeerFailed, PeerTimeout
from deepca.network.transports.base import Message, Tag

__all__ = ["MemoryHub", "MemoryTransport"]


class _Mailbox:
    """What has arrived at one agent and was not yet asked for."""

    def __init__(self) -> None:
        self.arrived = threading.Condition()
        self.messages: dict[tuple[int, Tag], deque[Message]] = {}

    def take(self, sender: int, tag: Tag) -> Message:
        """The first message with that tag; the caller knows that there is one."""
        waiting = self.messages[sender, tag]
        message = waiting.popleft()
        if not waiting:
            del self.messages[sender, tag]
        return message


class MemoryHub:
    """The common ground of the agents of one process: a mailbox for each, the epoch, and who has failed."""

    def __init__(self, n_agents: int, *, timeout: float = 60.0) -> None:
        self.timeout = timeout
        self._boxes = [_Mailbox() for _ in range(n_agents)]
        self._epoch = 0
        self._failed: tuple[int, BaseException] | None = None
        self._left: set[int] = set()

    def transport(self, agent: int) -> MemoryTransport:
        return MemoryTransport(self, agent)

    def announce_epoch(self, epoch: int) -> None:
        """Every exchange of an older epoch ends with EpochChanged, also those that wait now."""
        self._epoch = max(self._epoch, epoch)
        self._wake()

    def fail(self, agent: int, error: BaseException) -> None:
        """Agent has given up: everyone who waits for a message learns it at once."""
        if self._failed is None:
            self._failed = (agent, error)
        self._wake()

    def leave(self, agent: int) -> None:
        """Agent has finished: who still waits for it learns that nothing will come."""
        self._left.add(agent)
        self._wake()

    def _wake(self) -> None:
        for box in self._boxes:
            with box.arrived:
                box.arrived.notify_all()

    def _post(self, sender: int, receiver: int, tag: Tag, message: Message) -> None:
        box = self._boxes[receiver]
        with box.arrived:
            box.messages.setdefault((sender, tag), deque()).append(message)
            box.arrived.notify_all()

    def _collect(self, receiver: int, tag: Tag, sources: Collection[int]) -> dict[int, Message]:
        box, deadline = self._boxes[receiver], time.monotonic() + self.timeout
        with box.arrived:
            while True:
                if self._epoch > tag.epoch:
                    box.messages = {key: kept for key, kept in box.messages.items() if key[1].epoch >= self._epoch}
                    raise EpochChanged(self._epoch)
                if self._failed is not None:
                    agent, error = self._failed
                    who = f"agent {agent} gave up" if agent >= 0 else "the run was interrupted"
                    raise PeerFailed(f"agent {receiver}: {who} ({type(error).__name__}: {error})")
                missing = [source for source in sources if (source, tag) not in box.messages]
                if not missing:
                    return {source: box.take(source, tag) for source in sources}
                if gone := self._left.intersection(missing):
                    raise PeerFailed(
                        f"agent {receiver} waits in iteration {tag.t} for agent {min(gone)}, which has finished; "
                        "do all agents have the same stop rule and max_iter?"
                    )
                left = deadline - time.monotonic()
                if left <= 0:
                    raise PeerTimeout(
                        f"agent {receiver} has waited {self.timeout:g} s in iteration {tag.t}, round {tag.round} for "
                        f"agent{'s' if len(missing) > 1 else ''} {', '.join(map(str, sorted(missing)))}"
                    )
                box.arrived.wait(left)


class MemoryTransport:
    """One agent's end of a MemoryHub."""

    reliable = True

    def __init__(self, hub: MemoryHub, agent: int) -> None:
        self._hub, self._agent = hub, agent

    def exchange(self, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int], /) -> dict[int, Message]:
        for receiver, message in outgoing.items():
            self._hub._post(self._agent, receiver, tag, message)
        return self._hub._collect(self._agent, tag, sources)
