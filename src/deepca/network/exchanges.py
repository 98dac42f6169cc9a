"""Define the exchanges between agents that every engine implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array, Csr
from deepca.errors import EpochChanged, MixingError, TopologyError
from deepca.network.compression import Code, Copies, graph_digest
from deepca.network.protocols import Pairs, Position
from deepca.network.reductions import Op, PendingReduction
from deepca.network.sums.rounds import check_weights
from deepca.network.traffic import Accounting
from deepca.topology.graph import Topology

if TYPE_CHECKING:
    from deepca.network.sums.masks import SumMasks

__all__ = ["Exchanges"]

_ROUNDS_PER_EPOCH = 1 << 32  # more rounds than any epoch has, so that round numbers of different epochs do not overlap
_CACHED_WEIGHTS = 256  # maximum number of cached weight matrices that replace 𝐋 in single rounds


class Exchanges(Accounting, ABC):
    """State of a run, and the exchanges that each engine implements; see :class:`deepca.network.Network`."""

    reliable: bool = False
    collective: bool = False
    has_one_owner: bool = False
    _masks: SumMasks | None = None
    _public = False

    def __init__(self, topology: Topology, batch: tuple[int, ...]) -> None:
        super().__init__(batch[0] if batch else 1)
        self._topology, self.batch = topology, batch
        self.epoch = 0
        self._phase, self._t, self._round = "step", 0, 0
        self._announced = 0
        self._sweeping = False
        self._weights: dict[int, tuple[Csr, Any]] = {}

    @property
    def topology(self) -> Topology:
        """Graph and gossip matrix 𝐋."""
        return self._topology

    def take_spectrum(self, spectrum: Array) -> None:
        """Replace the eigenvalues of 𝐋 by those computed on another processor.

        Parameters
        ----------
        spectrum : ndarray
            Value of :attr:`deepca.topology.Topology.spectrum` on that processor.
        """
        self._topology = self._topology.with_spectrum(spectrum)

    @property
    def private(self) -> bool:
        """True if the numbers of single agents are masked: only sums over all agents can be read."""
        return self._masks is not None

    @property
    def plan(self) -> bytes | None:
        """Digest of the plan of a private network; None in an open one."""
        return None if self._masks is None else self._masks.plan

    @property
    def history(self) -> bytes:
        """Digest of all totals and broadcasts of a private network so far; empty in an open one."""
        return b"" if self._masks is None else self._masks.history

    def use_masks(self, masks: SumMasks) -> None:
        """Mask what local agents add to exact sums from now on, and refuse to gossip.

        Parameters
        ----------
        masks : SumMasks
            Masks that all agents have agreed on; see :func:`deepca.network.make_private`.
        """
        self._masks = masks

    @contextmanager
    def public_numbers(self) -> Iterator[None]:
        """Let a private network gossip numbers that follow from totals alone."""
        before, self._public = self._public, True
        try:
            yield
        finally:
            self._public = before

    def _check_open(self) -> None:
        """Raise MixingError in a private network: gossip shows neighbours the numbers of an agent."""
        if self._masks is not None and not self._public:
            raise MixingError(
                "gossip shows an agent's own numbers to its neighbours, so a private network only adds up; use "
                'algorithm "krylov" or "covariance", or an open network (privacy = "open")',
                parameter="privacy",
                value="private",
            )

    @property
    def n_agents(self) -> int:
        """Number of agents, m."""
        return self.topology.n_agents

    @property
    def position(self) -> Position:
        """Current position in the run, equal at all agents and the same again when a step is retried."""
        return self.epoch, crc32(self._phase.encode()), self._t, self._pairs_averaged

    @property
    def phase_and_iteration(self) -> tuple[str, int]:
        """Phase and iteration of the latest :meth:`begin`."""
        return self._phase, self._t

    @cached_property
    def leader(self) -> int:
        """Index of the agent whose numbers all agents use: the root of the spanning tree if they know it, else 0."""
        return self.topology.center if self.topology.fully_known and not self.topology.time_varying else 0

    @property
    def is_leader_local(self) -> bool:
        """True if the leader is local; if not, its numbers are received and should be checked."""
        return bool((self.local == self.leader).any())

    @cached_property
    def neighbors(self) -> npt.NDArray[np.int64]:
        """Indices of the neighbours, ``(*B, slots)``, in the order of :meth:`collect`; −1 in unused slots."""
        if not self.topology.static_undirected:
            raise TopologyError(
                f"{self.topology.name} is {'directed' if self.topology.directed else 'time-varying'}; collecting the "
                "values of neighbours requires a static undirected graph"
            )
        rows = [self.topology.neighbors(int(j)) for j in self.local.ravel()]
        slots = max((len(row) for row in rows), default=0)
        filled = [(*row, *(-1,) * (slots - len(row))) for row in rows]
        return np.array(filled, dtype=np.int64).reshape(*self.batch, slots)

    def begin(self, epoch: int, t: int, /, phase: str = "step") -> None:
        """Start iteration t; rounds are numbered from 0 again, so a retried step sends the same tags.

        Parameters
        ----------
        epoch : int
            Incarnation of the run.
        t : int
            Iteration.
        phase : str, default="step"
            Purpose of the exchanges (a step, a restart, a mean, …), to distinguish those of one iteration.
        """
        if epoch != self.epoch:
            self._pending.clear()
            self.next_round = epoch * _ROUNDS_PER_EPOCH  # agents may have been interrupted in different rounds
            if self._masks is not None:
                self._masks.enter(epoch)
        self.epoch, self._phase, self._t, self._round, self._pairs_averaged = epoch, phase, t, 0, 0
        self._announced = max(self._announced, epoch)

    def announce_epoch(self, epoch: int, /) -> None:
        """Request a restart: rounds raise EpochChanged until ``begin(epoch, …)`` is called.

        Parameters
        ----------
        epoch : int
            The new epoch.
        """
        self._announced = max(self._announced, epoch)

    @abstractmethod
    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Run one round of weighted averaging: ``x_j ← Σ_i 𝐋_ji x_i`` over the neighbours and the agent itself.

        Pending values ride along in rounds with the default weights, which use every edge, and in exact averages.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Local values.
        weights : csr_array of shape (m, m), optional
            Weights that replace 𝐋 in this round, the same at all agents. Only entries on edges and the diagonal may be
            nonzero; nothing is sent where an entry is zero.

        Returns
        -------
        ndarray of shape (*B, …)
            The averages.

        Raises
        ------
        EpochChanged
            If a new epoch was announced.
        TopologyError
            If `weights` have the wrong shape, or a nonzero entry that is neither on an edge nor on the diagonal.
        """

    @abstractmethod
    def average_pairs(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Average pairs of neighbours, one pair after another: ``x_i, x_j ← (x_i + x_j)/2``.

        Both agents of a pair send one message; all others send nothing. Pending values do not ride along.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Local values.
        pairs : ndarray of shape (n, 2)
            Pairs of agents, in order; the same at all agents.
        rounds : int
            Number of rounds to count for all pairs together.

        Returns
        -------
        ndarray of shape (*B, …)
            Values after all pairs have averaged.
        """

    @abstractmethod
    def collect(self, x: Array, /) -> Array:
        """Return the values of the neighbours individually, in one round.

        Requires a static undirected graph. Pending values ride along.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Local values.

        Returns
        -------
        ndarray of shape (*B, slots, …)
            In the order of :attr:`neighbors`, with zeros in unused slots.

        Raises
        ------
        TopologyError
            If the graph is directed or time-varying.
        """

    @abstractmethod
    def gossip_compressed(self, x: Array, copies: Copies | None, code: Code, /) -> tuple[Array, Copies]:
        """Run one round with compressed messages: ``x_j + Σ_i 𝐋_ji (D_i − D_j)``.

        Pending values ride along. See :mod:`deepca.network.compression`.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Local values.
        copies : Copies or None
            Copies D after the previous round. If None, or if the shape of x or the edges changed, new copies start
            with a float64 message.
        code : {"float32", "float16"}
            Precision of the messages.

        Returns
        -------
        x : ndarray of shape (*B, …)
            The averages.
        copies : Copies
            Copies after this round.
        """

    @abstractmethod
    def reduce(self, x: Array, op: Op, /) -> Array:
        """Compute the minimum or maximum over all agents immediately, by flooding in control rounds of its own.

        Between separate processes, the infinity that would decide the result (+∞ for a maximum) is rejected: BadArray
        is raised with the index of its sender.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Local values.
        op : {"min", "max"}
            The reduction.

        Returns
        -------
        ndarray of shape (…)
            The result, identical at all agents.

        Raises
        ------
        ParameterError
            If `op` is neither "min" nor "max".
        """

    @abstractmethod
    def reduce_later(self, x: Array, op: Op, /) -> PendingReduction:
        """Start a reduction whose values ride along with the next gossip rounds, without extra rounds.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Local values.
        op : {"min", "max"}
            The reduction.

        Returns
        -------
        PendingReduction
            The value, which is final once it is ready.

        Raises
        ------
        ParameterError
            If `op` is neither "min" nor "max".
        """

    def allreduce_mean(self, x: Array, /) -> Array:
        """Compute the mean over all agents with one collective operation of the machine.

        Only engines on one machine or cluster provide it; separate sites cannot.

        Parameters
        ----------
        x : ndarray of shape (*B, …)
            Local values.

        Returns
        -------
        ndarray of shape (*B, …)
            The mean, at every local agent.

        Raises
        ------
        MixingError
            If the engine has no collective operation.
        """
        raise MixingError(
            f"{type(self).__name__} has no collective operation: its agents exchange messages with neighbours only; "
            "use deepca.consensus.exact.TreeSweep for exact averages"
        )

    @cached_property
    def _graph(self) -> str:
        """Digest that identifies the graph to which copies belong."""
        return graph_digest(self.topology)

    def _check_epoch(self) -> None:
        if self._announced > self.epoch:
            raise EpochChanged(self._announced)

    def _flood_rounds(self) -> int:
        """Return the number of rounds that flooding takes if it starts with the next round."""
        return self.topology.flood_rounds_from(self.next_round)

    def _prepared(self, weights: Csr, prepare: Callable[[Csr], Any]) -> Any:
        """Return ``prepare(weights)``, cached; the weights are checked against the graph the first time."""
        known = self._weights.get(id(weights))
        if known is None or known[0] is not weights:
            check_weights(weights, self.topology)
            if len(self._weights) >= _CACHED_WEIGHTS:
                self._weights.clear()
            for part in (weights.data, weights.indices, weights.indptr):
                part.flags.writeable = False  # a change would make the cached value stale
            known = self._weights[id(weights)] = (weights, prepare(weights))
        return known[1]
