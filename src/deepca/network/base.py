"""What every network offers to algorithms and mixers, and how its traffic is counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from deepca._util.floats import LARGEST
from deepca._util.typing import Array, Csr
from deepca.errors import EpochChanged, MixingError, TopologyError
from deepca.network.arrivals import Part
from deepca.network.compression import Code, Copies, graph_of
from deepca.network.reductions import Op, Pending, neutral
from deepca.network.sweeps import Tree, check_weights, sweeps
from deepca.network.traffic import Traffic
from deepca.topology.graph import Topology

__all__ = ["Averaging", "LinearMixer", "Moment", "Network", "Pairs"]

_ROUNDS = 1 << 32  # more than are made in an epoch

Moment = tuple[int, int, int, int]
"""Epoch, phase (as a number), iteration, and pairs that have met since it began: the same at all agents."""
Pairs = npt.NDArray[np.int64]
"""Who meets whom, ``(n, 2)``, one pair after the other."""


class Averaging(Protocol):
    """The part of a network that a mixer uses."""

    @property
    def topology(self) -> Topology: ...
    @property
    def moment(self) -> Moment: ...
    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array: ...
    def meet(self, x: Array, pairs: Pairs, rounds: int, /) -> Array: ...
    def total_mean(self, x: Array, /) -> Array: ...


class LinearMixer(Protocol):
    """What a network needs to know of a mixer in order to run it; see :mod:`deepca.consensus.mixers`."""

    @property
    def fixed(self) -> bool: ...
    @property
    def spreads(self) -> bool:
        """Whether after one run everyone has heard from everyone."""
        ...

    def run(self, network: Averaging, x: Array, K: int, /) -> Array: ...
    def key(self, K: int, /) -> object:
        """Equal for mixers that apply the same matrix with K rounds; None where no two runs do."""
        ...


class Network(ABC):
    """Blocking calls over which algorithms and mixers are written, the same on every engine.

    ``x`` has shape ``(*B, …)``: ``B = (m,)`` where one process holds all agents, ``()`` where it holds one.

    Attributes
    ----------
    topology : the graph and its gossip matrix 𝐋.
    batch : ``B``, the leading axes of arrays here.
    epoch : which incarnation of the run this is; it grows when tracking has to begin again.
    local : numbers of the agents held here, with shape ``batch``.
    reliable : whether every message is sure to arrive, so that averages may rely on each of them.
    collective : whether exact averages are left to the machine (:meth:`total_mean`) instead of a tree of messages.
    full_rounds : rounds so far that used every edge.  sweeps : exact averages so far. Both carry values along.
    """

    local: npt.NDArray[np.int64]
    reliable: bool = False
    collective: bool = False

    def __init__(self, topology: Topology, batch: tuple[int, ...]) -> None:
        self._topology, self.batch = topology, batch
        self.epoch = 0
        self._phase, self._t, self._round, self._met = "step", 0, 0, 0
        self._announced = 0
        self.full_rounds = 0
        self.sweeps = 0
        self._sweeping = False
        self._riding: list[Pending] = []
        self._parts: tuple[Part, ...] = ()
        self._followed: Array | None = None
        self._followed_at = 0
        self._agents = batch[0] if batch else 1
        self.made = 0  # rounds so far, of all kinds, by which agents know what a network that changes is like now
        self._sent = [0] * 5  # as in Traffic: rounds, control rounds, messages, bytes, control bytes
        self._weights: dict[int, tuple[Csr, Any]] = {}

    @property
    def topology(self) -> Topology:
        return self._topology

    def take_spectrum(self, spectrum: Array) -> None:
        """Use these eigenvalues of 𝐋 from now on (:attr:`deepca.topology.Topology.spectrum`)."""
        self._topology = self._topology.with_spectrum(spectrum)

    @property
    def traffic(self) -> Traffic:
        rounds, control_rounds, messages, sent, control = self._sent
        return Traffic(rounds, control_rounds, messages, sent, control, self._agents)

    @property
    def n_agents(self) -> int:
        return self.topology.n_agents

    @property
    def moment(self) -> Moment:
        """When it is, by what all agents know: a step that is retried comes by the same moments again."""
        return self.epoch, crc32(self._phase.encode()), self._t, self._met

    @property
    def at(self) -> tuple[str, int]:
        """The phase and the iteration that began last."""
        return self._phase, self._t

    @cached_property
    def leader(self) -> int:
        """The agent whose numbers all others take: the root of the tree where all know one, else the first."""
        return self.topology.middle if self.topology.whole and not self.topology.changing else 0

    @property
    def leads(self) -> bool:
        """Whether the leader is held here; where it is not, its numbers are received, and should be checked."""
        return bool((self.local == self.leader).any())

    @cached_property
    def beside(self) -> npt.NDArray[np.int64]:
        """Numbers of the neighbours ``(*B, slots)`` in the order of :meth:`collect`; −1 where an agent has fewer."""
        if not self.topology.stays:
            raise TopologyError(
                f"neighbours' values are collected one by one on graphs that stay and go both ways, but "
                f"{self.topology.name} {'has messages that go one way' if self.topology.directed else 'changes'}"
            )
        rows = [self.topology.neighbors(int(j)) for j in self.local.ravel()]
        slots = max((len(row) for row in rows), default=0)
        filled = [(*row, *(-1,) * (slots - len(row))) for row in rows]
        return np.array(filled, dtype=np.int64).reshape(*self.batch, slots)

    def begin(self, epoch: int, t: int, /, phase: str = "step") -> None:
        """Called before step t: rounds start again at 0, so a step that is retried sends the same tags.

        ``phase`` keeps apart what else is exchanged in an iteration (a restart, the agreement on a mean, …).
        """
        if epoch != self.epoch:
            self._riding.clear()
            self.made = epoch * _ROUNDS  # agents may have been caught in different rounds
        self.epoch, self._phase, self._t, self._round, self._met = epoch, phase, t, 0, 0
        self._parts = ()
        self._announced = max(self._announced, epoch)

    def expect(self, *parts: Part) -> None:
        """Say what the numbers of this step's exact averages are, until the next ``begin``.

        Where agents are apart, what arrives is checked against it, and a neighbour that sent something else is named.
        """
        self._parts = parts

    @contextmanager
    def following(self, known: Array, at: int, /) -> Iterator[None]:
        """Within, entry ``at`` of each agent's array in an exact average is a number that all know, ``(m,)``.

        Every agent can tell what becomes of it from round to round, so that a neighbour that alters sums is named.
        """
        self._followed, self._followed_at = known, at
        try:
            yield
        finally:
            self._followed = None

    def forget(self) -> None:
        """Stop carrying values that nobody waits for any more; called by solve before and after a run."""
        self._riding.clear()

    def announce_epoch(self, epoch: int, /) -> None:
        """Ask for a restart: the next round raises EpochChanged until ``begin(epoch, …)`` is called."""
        self._announced = max(self._announced, epoch)

    @abstractmethod
    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """One round: ``x_j ← Σ_i 𝐋_ji x_i`` over the neighbours and itself.

        ``weights`` replaces 𝐋 in this round: an m × m sparse array with entries on edges and the diagonal only,
        known to all; where an entry is zero nothing is sent. Values under way to agreement ride along in rounds with
        the default weights, where every edge is used, and in those of an exact average.
        """

    @abstractmethod
    def meet(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Pairs of neighbours take their mean, one pair after the other: ``x_i, x_j ← (x_i + x_j)/2``.

        Everyone knows who is to meet whom; all others sleep, and send nothing. Both ends send one message, and all
        meetings together are counted as that many ``rounds``. Nothing rides along: few hear of few.
        """

    @abstractmethod
    def collect(self, x: Array, /) -> Array:
        """One round in which nothing is added up: the neighbours' x, one by one, ``(*B, slots, …)``.

        They come in the order of :attr:`beside`, zeros where an agent has fewer neighbours than others held here.
        Values under way to agreement ride along. Needs a graph that stays and goes both ways.
        """

    @abstractmethod
    def gossip_coded(self, x: Array, copies: Copies | None, code: Code, /) -> tuple[Array, Copies]:
        """One round with messages of fewer digits: ``x_j + Σ_i 𝐋_ji (D_i − D_j)``, and the copies D after it.

        ``copies`` are those after the round before, None for a beginning; where x has another shape now, or the graph
        other edges, they begin anew as well, with a float64 message. Values under way to agreement ride along. See
        :mod:`deepca.network.compression`.
        """

    @abstractmethod
    def reduce(self, x: Array, op: Op, /) -> Array:
        """Minimum or maximum over all agents, the same everywhere, by flooding now: a diameter of control rounds.

        Where agents are apart the infinity that would decide, +∞ for a maximum, is refused and its sender named.
        """

    @abstractmethod
    def reduce_later(self, x: Array, op: Op, /) -> Pending:
        """As ``reduce``, but the value rides along with the next gossip rounds and costs none of its own."""

    def broadcast(self, x: Array, /) -> Array:
        """The leader's x, of ``(*B, …)``, at every agent: the same bits everywhere.

        Down the tree, m − 1 messages, where every message is sure to arrive; by flooding elsewhere. What others give as
        x counts for nothing but its shape.
        """
        if self.reliable and self.topology.whole:
            return self._down(np.where(self._is(self.leader, x), x, 0.0), sweeps(self.topology)[1])
        return _endless(self.flood(np.clip(x, -LARGEST, LARGEST), self.leader) + 0.0)  # infinity is not sent

    def from_leader(self, x: Array, /) -> Array:
        """Broadcast an x of ``(…)`` that the local agents have in common; agents apart may have other bits."""
        return self.broadcast(np.broadcast_to(x, (*self.batch, *x.shape)))

    def flood(self, x: Array, source: int, /) -> Array:
        """The x of agent ``source``, of ``(*B, …)``, at every agent, on networks of every kind: see :meth:`reduce`."""
        return self.reduce(np.where(self._is(source, x), x, neutral("max")), "max")

    def common(self, x: Array, /) -> Array:
        """The one array behind an x of ``(*B, …)`` that is the same for all local agents."""
        return np.asarray(x[(0,) * len(self.batch)])

    def _is(self, agent: int, x: Array) -> npt.NDArray[np.bool_]:
        """Where in x, of ``(*B, …)``, that agent's numbers are."""
        return np.reshape(self.local == agent, (*self.batch, *(1,) * (x.ndim - len(self.batch))))

    def sweep(self, x: Array, derive: Callable[[Array], Array], size: int, /) -> tuple[Array, Array]:
        """The mean over all agents of ``x``, ``(*B, n)``, and what the leader derives from it, ``size`` numbers.

        Sums go up the tree; the way down carries the mean and ``derive(mean)``, so both are the same bits at every
        agent, whatever their processors. Values under way to agreement ride along, and have arrived after it.
        """
        if self.collective:
            mean = self.common(self.total_mean(x))
            both = self.from_leader(np.concatenate([mean, derive(mean) if self.leads else np.zeros(size)]))
            self._swept(list(self._riding))
            return both[: mean.size], both[mean.size :]
        riding, self._sweeping = list(self._riding), True
        try:
            found = self.sum_along(sweeps(self.topology), self.leader, x, derive, size)
        finally:
            self._sweeping = False
        self._swept(riding)
        return found

    def sum_along(
        self, tree: Tree, root: int, x: Array, derive: Callable[[Array], Array], size: int, /
    ) -> tuple[Array, Array]:
        """Add up x, ``(*B, n)``, by rounds up a tree; bring the sum, and what its root derives from it, down again."""
        up, down = tree
        for weights in up:
            x = self.gossip(x, weights)
        n = x.shape[-1]
        both = np.zeros((*self.batch, n + size))
        for at in map(tuple, np.argwhere(self.local == root)):
            both[(*at, slice(n))] = x[at]
            both[(*at, slice(n, None))] = derive(x[at])
        both = self._down(both, down)
        return both[:n], both[n:]

    def _down(self, x: Array, rounds: tuple[Csr, ...]) -> Array:
        """The x of the agent at the root of a tree, by rounds with those weights; others give zeros."""
        # no negative zero, whose sign another zero might take, and no infinity, which a weight of zero makes NaN
        x = np.clip(x + 0.0, -LARGEST, LARGEST)
        if self._followed is not None:  # along the leader's tree: sums over other trees are not followed
            self._followed = np.where(np.arange(self.n_agents) == self.leader, self._followed, 0.0)
        for weights in rounds:
            x = self.gossip(x, weights)
        return _endless(self.common(x))

    def total_mean(self, x: Array, /) -> Array:
        """The mean over all agents at every local one, by an operation of the machine in which all take part at once.

        Only engines of one machine or cluster have one; between sites there is nobody to carry it out.
        """
        raise MixingError(
            f"{type(self).__name__} has no operation over all agents at once: they talk to their neighbours only; "
            "use deepca.consensus.exact.TreeSweep for exact averages"
        )

    def mix(self, mixer: LinearMixer, x: Array, K: int, /) -> Array:
        """Run a mixer. An engine that sees the whole graph may apply the same linear map in one go."""
        if not mixer.spreads:
            return mixer.run(self, x, K)
        riding, self._sweeping = list(self._riding), True
        try:
            x = mixer.run(self, x, K)
        finally:
            self._sweeping = False
        self._swept(riding)
        return x

    # ------------------------------------------------------------------------------------------ for subclasses

    @cached_property
    def _graph(self) -> str:
        """By which copies are known to belong to this graph."""
        return graph_of(self.topology)

    def _check_epoch(self) -> None:
        if self._announced > self.epoch:
            raise EpochChanged(self._announced)

    def _count(
        self, *, rounds: int = 0, control_rounds: int = 0, messages: int = 0, payload: int = 0, control: int = 0
    ) -> None:
        """Add rounds, and ``messages`` of ``payload`` array bytes and ``control`` bytes of agreed values each."""
        sent = self._sent
        sent[0] += rounds
        sent[1] += control_rounds
        sent[2] += messages
        sent[3] += messages * (payload + control)
        sent[4] += messages * control

    def _have_met(self, pairs: Pairs, rounds: int, payload: int) -> None:
        """Count what was sent in these meetings, with messages of ``payload`` bytes."""
        self._met += len(pairs)
        self._count(rounds=rounds, messages=int(np.isin(pairs, self.local).sum()), payload=payload)

    def _flood_rounds(self) -> int:
        """Rounds in which everyone hears of everyone, from now on."""
        return self.topology.flood_from(self.made)

    def _count_riding(self, nbytes: int) -> None:
        """Add bytes of agreed values that travelled on messages counted elsewhere."""
        self._sent[3] += nbytes
        self._sent[4] += nbytes

    def _ride(self, rounds: int) -> None:
        """That many rounds used every edge, and values under way have travelled along."""
        self.full_rounds += rounds
        for pending in self._riding:
            pending.rounds_left -= rounds
        self._riding = [pending for pending in self._riding if not pending.ready]

    def _swept(self, riding: list[Pending]) -> None:
        """An exact average is made, and values that were under way before it have arrived."""
        self.sweeps += 1
        for pending in riding:
            pending.rounds_left = 0
        self._riding = [pending for pending in self._riding if not pending.ready]

    def _prepared(self, weights: Csr, prepare: Callable[[Csr], Any]) -> Any:
        """What ``prepare`` makes of a weight matrix, checked against the graph once and remembered."""
        known = self._weights.get(id(weights))
        if known is None or known[0] is not weights:
            check_weights(weights, self.topology)
            if len(self._weights) >= 256:
                self._weights.clear()
            for part in (weights.data, weights.indices, weights.indptr):
                part.flags.writeable = False  # what was prepared would not follow a change
            known = self._weights[id(weights)] = (weights, prepare(weights))
        return known[1]


def _endless(found: Array) -> Array:
    """What was infinite before it was sent is so again."""
    return np.asarray(np.where(np.abs(found) == LARGEST, np.copysign(np.inf, found), found))
