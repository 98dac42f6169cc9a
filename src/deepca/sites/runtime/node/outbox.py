"""Send the algorithm's messages to neighbours, and relay messages without waking the algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deepca.network.transports.base import Combine, Message, RelayStep, Tag
from deepca.sites.protocol.parcels import Parcel, pack
from deepca.sites.protocol.records import RunPlan
from deepca.sites.runtime.node.context import NodeContext
from deepca.sites.runtime.node.mailbox import Mailbox

__all__ = ["Outbox", "Relay"]


class Outbox:
    """Queues messages of the algorithm on the links to neighbours."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._receivers: set[int] = set()

    def send(self, plan: RunPlan, tag: Tag, outgoing: Mapping[int, Message]) -> None:
        """Queue messages by receiver; a message for several receivers is serialized once."""
        digest = plan.digest
        parcels: dict[int, Parcel] = {}
        for receiver, message in outgoing.items():
            parcel = parcels.get(id(message))
            if parcel is None:
                parcel = parcels[id(message)] = pack(digest, tag, message)
            self._context.links[receiver].send(parcel, plan.incarnations[plan.members.index(receiver)])
        self._receivers.update(outgoing)

    def take_receivers(self) -> set[int]:
        """Return the receivers of messages queued since the last call, which must be woken after the lock is released.

        A neighbour that is woken asks for frames, for which it needs the lock.
        """
        receivers, self._receivers = self._receivers, set()
        return receivers


class Relay:
    """Exchanges that follow from each other; whoever delivers the last message that one of them awaits takes the next.

    Parameters
    ----------
    outbox, mailbox
        Where messages are sent, and where they arrive.
    plan : RunPlan
        Plan that the messages belong to.
    steps, message, combine
        As for :meth:`deepca.network.transports.base.Transport.relay`, with sites in place of agents.

    Attributes
    ----------
    message : Message
        The message that the steps taken so far have led to.
    """

    def __init__(
        self,
        outbox: Outbox,
        mailbox: Mailbox,
        plan: RunPlan,
        steps: Sequence[RelayStep],
        message: Message,
        combine: Combine,
    ) -> None:
        self._outbox, self._mailbox, self._plan = outbox, mailbox, plan
        self._steps, self._combine = steps, combine
        self.message = message
        self._index, self._sent = 0, False  # the current step, and whether its message was sent
        self._error: Exception | None = None

    def advance(self) -> list[int]:
        """Take every step whose messages have arrived; return the sites that are waited for, none at the end.

        Raises
        ------
        BadArray
            As :meth:`.Mailbox.missing`.
        Exception
            Whatever ``combine`` raised, in this call or an earlier one.
        """
        while self._error is None and self._index < len(self._steps):
            step = self._steps[self._index]
            if not self._sent:
                self._outbox.send(self._plan, step.tag, dict.fromkeys(step.receivers, self.message))
                self._sent = True
            if missing := self._mailbox.missing(step.sources, step.tag):
                return missing
            received = self._mailbox.take(step.sources)
            try:
                self.message = self._combine(self._index, self.message, received)
            except Exception as error:  # the messages are gone, so another call could not find it again
                self._error = error
            self._index, self._sent = self._index + 1, False
        if self._error is not None:
            raise self._error
        return []

    def advance_quietly(self) -> bool:
        """Advance outside the algorithm's thread; return whether that thread has to be woken, for the end or an error.

        The algorithm's thread finds the error again, after whatever else may be a reason to abandon the relay.
        """
        try:
            return not self.advance()
        except Exception:
            return True
