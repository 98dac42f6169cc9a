"""Connect a single agent to its neighbours through a transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.typing import Array, Csr
from deepca.errors import BadArray, NotFiniteError, TopologyError
from deepca.network.arrivals import SAME_SETTINGS, describe_fault, is_finite
from deepca.network.base import Network, Pairs
from deepca.network.compression import Code, Copies, decode, encode
from deepca.network.reductions import Op, PendingReduction, neutral, reducer
from deepca.network.sums import SumLayout, SumTree, Words
from deepca.network.sums.rounds import SumRound
from deepca.network.transports.base import Message, RelayStep, Tag, Transport, Visibility
from deepca.topology.graph import Topology

__all__ = ["AgentNetwork"]

Number = TypeVar("Number", np.float64, np.uint64)
_BOTH_INFINITIES = (-np.inf, np.inf)
_Links = tuple[float, dict[int, float], tuple[int, ...]]  # own weight, weight by source, receivers


class AgentNetwork(Network):
    """The network as one agent sees it: the agent knows its own row of 𝐋, and arrays are ``(d, k)``.

    Parameters
    ----------
    topology : Topology
        The whole graph, or the agent's :class:`~deepca.topology.Neighbourhood`.
    agent : int
        Index of the agent.
    transport : Transport, optional
        Transport for messages; required if the agent has neighbours.

    Raises
    ------
    TopologyError
        If the agent has neighbours but no transport.
    """

    def __init__(self, topology: Topology, agent: int, transport: Transport | None = None) -> None:
        super().__init__(topology, ())
        self.agent, self.transport = agent, transport
        self.local = np.array(agent)
        self.reliable = (transport is None or transport.reliable) and topology.fully_known and not topology.time_varying
        neighbors = topology.neighbors(agent)
        if neighbors and transport is None:
            raise TopologyError(
                f"agent {agent} has neighbours {neighbors} but no transport to reach them; pass `transport`",
                parameter="transport",
                agent=agent,
            )
        self._links = _links_of(topology.gossip_sparse, agent)

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Exchange x with the neighbours and average."""
        self._check_open()
        links = self._now() if weights is None else self._prepared(weights, lambda w: _links_of(w, self.agent))
        own, incoming, _ = links
        y = own * x
        with_pending = weights is None or self._sweeping
        received = self._exchange_array(_frozen_copy(x), links, with_pending=with_pending)
        for source, payload in received.items():
            y += incoming[source] * payload
        if weights is None:
            self._advance_pending(1)
        return y

    def _sum_words(
        self, own: Words, layout: SumLayout, derive: Callable[[Words], Words], size: int, tree: SumTree, /
    ) -> tuple[Words, Words]:
        """Add up messages along a tree or in a hypercube, checking what the neighbours send."""
        n_words = layout.n_words
        up = [self._sum_round(weights, n_words, tree, level) for level, weights in enumerate(tree.up)]
        down = [self._sum_round(weights, n_words + size, tree) for weights in tree.down]
        if self.agent == tree.root:
            own = self._relay_words(own, layout, up)
            both = self._relay_words(np.concatenate([own, derive(own)]), layout, down)
        else:
            both = self._relay_words(own, layout, up + down)
        return both[:n_words], both[n_words:]

    def _sum_round(self, weights: Csr, n_words: int, tree: SumTree, level: int | None = None) -> SumRound:
        """Return this agent's part in a round up to the root (at a level), or down from it (without a level)."""
        _, incoming, receivers = self._prepared(weights, lambda w: _links_of(w, self.agent))
        counts = None if level is None or tree.counts is None else tree.counts[level]
        expected = [tree.n_agents if level is None else None if counts is None else int(counts[i]) for i in incoming]
        return SumRound(receivers, dict(zip(incoming, expected, strict=True)), n_words, adds=level is not None)

    def _relay_words(self, own: Words, layout: SumLayout, rounds: Sequence[SumRound]) -> Words:
        """Take part in several rounds of a sum, and return the words that this agent has at the end.

        The transport runs all rounds at once, so that this agent waits only for the last of them. Pending values ride
        along.
        """
        self._check_epoch()
        first, carried = self._round, list(self._pending)
        self._round += len(rounds)
        riders, ops = tuple(pending.value for pending in carried), tuple(pending.op for pending in carried)
        # rounds in which this agent does nothing are left out, but numbered: tags are the same at both ends
        mine = [(n, one) for n, one in enumerate(rounds, first) if one.receivers or one.expected]
        steps = [
            RelayStep(Tag(self.epoch, self._phase, self._t, n), one.receivers, tuple(one.expected)) for n, one in mine
        ]
        if any(step.receivers for step in steps):
            self._check_own(riders, ops)

        def combine(index: int, sent: Message, received: Mapping[int, Message]) -> Message:
            return self._combine_words(mine[index][1], layout, ops, sent, received)

        end = Message(_frozen_copy(own), riders, self._sum_visibility(going_up=not rounds or rounds[0].adds))
        if self.transport is not None:
            end = self.transport.relay(steps, end, combine)
        control = sum(rider.nbytes for rider in riders)
        for one in rounds:
            self._count(rounds=1, messages=len(one.receivers), payload=one.n_words * own.itemsize, control=control)
        for pending, value in zip(carried, end.riders, strict=True):
            pending.value = value
        assert end.payload is not None
        return end.payload

    def _combine_words(
        self, part: SumRound, layout: SumLayout, ops: tuple[Op, ...], own: Message, received: Mapping[int, Message]
    ) -> Message:
        """Return the message after a round of a sum, checking what the neighbours sent."""
        assert own.payload is not None
        words, riders = own.payload, own.riders
        if words.size < part.n_words:  # a partial sum, which the root's sum and what it derived are about to replace
            words = np.concatenate([words, np.zeros(part.n_words - words.size, dtype=np.uint64)])
        for source, message in received.items():
            if fault := describe_fault(message.payload, words):
                self._blame(source, fault)
            self._check_riders(source, message, riders, ops)
        for source, message in received.items():
            assert message.payload is not None
            self._check_words(source, message.payload, layout, part.expected[source])
            words = layout.add(words, message.payload) if part.adds else message.payload
            if part.adds:
                self._check_words(source, words, layout, None)  # its numbers may be too large to add
            riders = tuple(
                reducer(op)(*both) for op, both in zip(ops, zip(riders, message.riders, strict=True), strict=True)
            )
        return Message(words, riders, self._sum_visibility(going_up=part.adds))

    def _sum_visibility(self, *, going_up: bool) -> Visibility:
        """Return what the messages of an exact sum show: partial sums on the way up to the root, the total after it."""
        if not self.private:
            return "open"
        return "masked" if going_up else "public"

    def _check_words(self, source: int, words: Words, layout: SumLayout, agents: int | None) -> None:
        """Raise BadArray if a neighbour sent impossible sums; where messages get lost, it is not to blame."""
        n_words = layout.n_words
        summed, derived = words[:n_words], words[n_words:]
        if self.reliable and (fault := layout.describe_fault(summed, agents)):
            self._blame(source, fault)
        if np.isnan(derived.view(np.float64)).any():
            self._blame(source, "NaN in the numbers that follow from sums")

    def average_pairs(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Exchange values in the pairs that include this agent, and skip all other pairs."""
        self._check_open()
        self._check_epoch()
        first, y = self._round, x
        for n in np.flatnonzero((pairs == self.agent).any(axis=1)):
            other = int(pairs[n].sum()) - self.agent
            self._round = first + int(n)  # the same tag at both ends, whatever pairs came before
            links = (0.5, {other: 0.5}, (other,))
            [payload] = self._exchange_array(_frozen_copy(y), links, with_pending=False, counted=False).values()
            y = (y + payload) * 0.5
        self._round = first + len(pairs)
        self._count_pairs(pairs, rounds, x.nbytes)
        return y

    def collect(self, x: Array, /) -> Array:
        """Return the values of the neighbours, which may be infinite."""
        self._check_open()
        beside = self.neighbors
        received = self._exchange_array(_frozen_copy(x), self._links, with_pending=True, infinities=_BOTH_INFINITIES)
        self._advance_pending(1)
        return np.array([received[int(i)] for i in beside]).reshape(*beside.shape, *x.shape)

    def gossip_compressed(self, x: Array, copies: Copies | None, code: Code, /) -> tuple[Array, Copies]:
        """Send the compressed difference and update the copies of this agent's and its neighbours' values."""
        self._check_open()
        _, incoming, _ = self._links
        before = Copies.continued(x, copies, len(incoming), self._graph)
        message = encode(x - before.own, code if before is copies else "float64", 0)
        message.flags.writeable = False
        received = self._exchange_array(message, self._links, with_pending=True)
        self._advance_pending(1)
        own = before.own + decode(message, x.shape)
        others = tuple(
            known + decode(received[source], x.shape) for source, known in zip(incoming, before.others, strict=True)
        )
        change = np.zeros_like(x)
        for weight, other in zip(incoming.values(), others, strict=True):
            change += weight * (other - own)
        return x + change, Copies(own, others, self._graph)

    def reduce(self, x: Array, op: Op, /) -> Array:
        """Exchange values with the neighbours until all agents have the result, checking what they send."""
        combine, value = reducer(op), np.array(x, dtype=np.float64)
        visibility: Visibility = "structural" if self.private else "open"
        self._check_epoch()
        for _ in range(self._flood_rounds()):
            _, incoming, receivers = self._now()
            if receivers:
                self._check_own((value,), (op,))
            received = self.exchange(Message(None, (value,), visibility), receivers, tuple(incoming))
            self._count(control_rounds=1, messages=len(receivers), control=value.nbytes)
            for source, message in received.items():
                self._check_riders(source, message, (value,), (op,))
                if message.payload is not None:
                    self._blame(source, "an array where only values to agree on were expected")
            for message in received.values():
                value = combine(value, message.riders[0])
        if self._masks is not None:
            self._masks.record(value)
        return value

    def reduce_later(self, x: Array, op: Op, /) -> PendingReduction:
        """Attach the value to the next gossip messages."""
        reducer(op)
        pending = PendingReduction(np.array(x, dtype=np.float64), op, self._flood_rounds())
        if not pending.ready:
            self._pending.append(pending)
        return pending

    def _now(self) -> _Links:
        """Return the links of the next round and advance the round counter of a time-varying network."""
        if not self.topology.time_varying:
            return self._links
        self.next_round += 1
        return _links_of(self.topology.at(self.next_round - 1), self.agent)

    def _exchange_array(
        self,
        payload: npt.NDArray[Any],
        links: _Links,
        *,
        with_pending: bool,
        counted: bool = True,
        infinities: tuple[float, ...] = (),
    ) -> dict[int, npt.NDArray[Any]]:
        """Exchange one array along the links and return the arrays of the neighbours.

        Parameters
        ----------
        payload : ndarray
            The array to send.
        links : tuple
            Own weight, weight by source, receivers.
        with_pending : bool
            Whether pending values ride along.
        counted : bool
            Whether to count the exchange as a round of traffic.
        infinities : tuple of float
            Infinities that the arrays may contain.
        """
        _, incoming, receivers = links
        carried = list(self._pending) if with_pending else []
        riders, ops = tuple(pending.value for pending in carried), tuple(pending.op for pending in carried)
        if receivers and not infinities and not is_finite(payload):
            raise self._overflow_error(payload)
        if receivers:
            self._check_own(riders, ops)
        visibility: Visibility = "public" if self.private and self._public else "open"
        received = self.exchange(Message(payload, riders, visibility), receivers, tuple(incoming))
        if counted:
            control = sum(rider.nbytes for rider in riders)
            self._count(rounds=1, messages=len(receivers), payload=payload.nbytes, control=control)
        arrays: dict[int, npt.NDArray[Any]] = {}
        for source, message in received.items():
            if fault := describe_fault(message.payload, payload, infinities=infinities):
                self._blame(source, fault)
            self._check_riders(source, message, riders, ops)
            if message.payload is not None:
                arrays[source] = message.payload
        for message in received.values():
            for pending, value in zip(carried, message.riders, strict=True):
                pending.value = reducer(pending.op)(pending.value, value)
        return arrays

    def _check_riders(self, source: int, message: Message, riders: tuple[Array, ...], ops: tuple[Op, ...]) -> None:
        """Raise BadArray unless a message carries pending values of the same number, shapes and dtypes as here."""
        if len(message.riders) != len(riders):
            self._blame(source, f"{len(message.riders)} values to agree on instead of {len(riders)}{SAME_SETTINGS}")
        for value, own, op in zip(message.riders, riders, ops, strict=True):
            if fault := _describe_pending_fault(value, own, op):
                self._blame(source, fault)

    def _blame(self, source: int, what: str) -> NoReturn:
        raise BadArray(f"agent {source}", what, phase=self._phase, iteration=self._t, agent=source)

    def _overflow_error(self, payload: npt.NDArray[Any]) -> NotFiniteError:
        """Return the error for an array that is not finite; sending it would make its receiver blame this agent."""
        return NotFiniteError(
            f"numbers are no longer finite at agent {self.agent} in iteration {self._t} ({self._phase}): products or "
            "sums overflow, or the mixer diverges; divide the data by a large power of ten, or use a mixer that "
            "contracts on this network",
            agent=self.agent,
            index=int(np.flatnonzero(~np.isfinite(payload.ravel()))[0]),
            phase=self._phase,
        )

    def _check_own(self, riders: tuple[Array, ...], ops: tuple[Op, ...]) -> None:
        """Raise NotFiniteError if a local pending value is not finite; only the neutral infinity may be sent."""
        for rider, op in zip(riders, ops, strict=True):
            if _describe_pending_fault(rider, rider, op):
                raise self._overflow_error(np.where(rider == neutral(op), 0.0, rider))

    def exchange(self, message: Message, receivers: tuple[int, ...], sources: tuple[int, ...]) -> dict[int, Message]:
        """Send one message to every receiver and return one from every source.

        All communication of this agent but exact sums passes through this method, which tags each message with its
        round.

        Parameters
        ----------
        message : Message
            The message to send.
        receivers, sources : tuple of int
            Neighbours to send to and to receive from.

        Returns
        -------
        dict of int to Message
            The received messages by source.
        """
        self._check_epoch()
        tag = Tag(self.epoch, self._phase, self._t, self._round)
        self._round += 1
        if self.transport is None:
            return {}
        return self.transport.exchange(tag, dict.fromkeys(receivers, message), sources)


def _frozen_copy(x: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return a read-only copy, which later changes to x do not affect."""
    copy = np.array(x, order="C")  # also converts scalars, which numpy returns for products of 0-d arrays
    copy.flags.writeable = False
    return copy


def _describe_pending_fault(value: Array, own: Array, op: Op) -> str:
    """Describe what is wrong with a pending value; the only infinity allowed is the neutral one."""
    return describe_fault(value, own, "values to agree on", infinities=(neutral(op),))


def _links_of(weights: Csr, agent: int) -> _Links:
    """Return an agent's own weight, the weight of every source, and its receivers."""
    row = sparse.coo_array(weights[[agent], :])
    incoming = {int(i): float(w) for i, w in zip(row.col, row.data, strict=True) if w != 0.0}
    column = sparse.coo_array(weights[:, [agent]])
    receivers = tuple(int(j) for j, w in zip(column.row, column.data, strict=True) if w != 0.0 and j != agent)
    own = incoming.pop(agent, 0.0)
    return own, incoming, receivers
