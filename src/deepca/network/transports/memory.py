"""Move messages between threads of one process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping

from deepca._util.units import plural
from deepca.errors import EpochChanged, PeerFailed, PeerTimeout
from deepca.network.transports.base import Message, Tag, Transport

__all__ = ["MemoryHub", "MemoryTransport"]


class _Mailbox:
    """Messages that have arrived at one agent and are still unread."""

    def __init__(self) -> None:
        self.arrived = threading.Condition()
        self.messages: dict[tuple[int, Tag], deque[Message]] = {}

    def take(self, sender: int, tag: Tag) -> Message:
        """Remove and return the first message with that tag, which must exist."""
        waiting = self.messages[sender, tag]
        message = waiting.popleft()
        if not waiting:
            del self.messages[sender, tag]
        return message


class MemoryHub:
    """Shared state of agents in one process: a mailbox for each, the epoch, and failures.

    Parameters
    ----------
    n_agents : int
        Number of agents.
    timeout : float, default=60.0
        Longest wait for a message, in seconds.
    """

    def __init__(self, n_agents: int, *, timeout: float = 60.0) -> None:
        self.timeout = timeout
        self._boxes = [_Mailbox() for _ in range(n_agents)]
        self._epoch = 0
        self._failed: tuple[int, BaseException] | None = None
        self._left: set[int] = set()

    def transport(self, agent: int) -> MemoryTransport:
        """Return the transport of one agent.

        Parameters
        ----------
        agent : int
            Index of the agent.

        Returns
        -------
        MemoryTransport
            Its connection to this hub.
        """
        return MemoryTransport(self, agent)

    def announce_epoch(self, epoch: int) -> None:
        """Make every exchange of an older epoch raise EpochChanged, including those already waiting.

        Parameters
        ----------
        epoch : int
            The new epoch.
        """
        self._epoch = max(self._epoch, epoch)
        self._wake()

    def fail(self, agent: int, error: BaseException) -> None:
        """Record that an agent failed, so that every waiting agent raises PeerFailed at once.

        Parameters
        ----------
        agent : int
            Index of the agent; −1 if the whole run was interrupted.
        error : BaseException
            The exception that it raised, or that interrupted the run.
        """
        if self._failed is None:
            self._failed = (agent, error)
        self._wake()

    def leave(self, agent: int) -> None:
        """Record that an agent finished, so that agents still waiting for it raise PeerFailed.

        Parameters
        ----------
        agent : int
            Index of the agent.
        """
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
                    what = f"agent {agent} failed" if agent >= 0 else "the run was interrupted"
                    raise PeerFailed(
                        f"agent {receiver} stopped: {what} ({type(error).__name__}: {error})",
                        agent=agent if agent >= 0 else None,
                    )
                missing = [source for source in sources if (source, tag) not in box.messages]
                if not missing:
                    return {source: box.take(source, tag) for source in sources}
                if gone := self._left.intersection(missing):
                    raise PeerFailed(
                        f"agent {receiver} is waiting in iteration {tag.t} for agent {min(gone)}, which has finished; "
                        "check that all agents have the same stop rule and max_iter",
                        agent=min(gone),
                    )
                left = deadline - time.monotonic()
                if left <= 0:
                    raise PeerTimeout(
                        f"agent {receiver} waited {self.timeout:g} s in iteration {tag.t}, round {tag.round} for "
                        f"agent{plural(len(missing))} {', '.join(map(str, sorted(missing)))}; check that "
                        "all agents make the same calls, or increase `timeout`",
                        agent=receiver,
                        awaited=tuple(sorted(missing)),
                        iteration=tag.t,
                        round_number=tag.round,
                    )
                box.arrived.wait(left)


class MemoryTransport(Transport):
    """One agent's connection to a :class:`MemoryHub`.

    Parameters
    ----------
    hub : MemoryHub
        The hub.
    agent : int
        Index of the agent.
    """

    reliable = True

    def __init__(self, hub: MemoryHub, agent: int) -> None:
        self._hub, self._agent = hub, agent

    def exchange(self, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int], /) -> dict[int, Message]:
        """Post messages to the mailboxes of the receivers and wait for the messages of the sources.

        Parameters
        ----------
        tag : Tag
            Identifier of the exchange.
        outgoing : mapping of int to Message
            Messages by receiver.
        sources : collection of int
            Neighbours from which to receive.

        Returns
        -------
        dict of int to Message
            Received messages by source.
        """
        for receiver, message in outgoing.items():
            self._hub._post(self._agent, receiver, tag, message)
        return self._hub._collect(self._agent, tag, sources)
