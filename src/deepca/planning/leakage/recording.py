"""Run a fit with one thread per agent, and record everything that each agent sends, receives and knows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.typing import Array
from deepca.data.local_data import LocalData
from deepca.decomposition.fit import fit
from deepca.decomposition.model import Model
from deepca.decomposition.settings import Settings
from deepca.network.agent import AgentNetwork
from deepca.network.sums import Addend, SumLayout, SumTree, Total, Words
from deepca.network.sums.masks import EphemeralKey, SumMasks, common_plan, partners
from deepca.network.threads import run_agents
from deepca.network.transports.base import Message, Tag, Transport
from deepca.network.transports.memory import MemoryHub
from deepca.operators.base import Operator
from deepca.operators.rounding import Rounding
from deepca.planning.leakage.records import (
    MATRICES,
    PRODUCTS,
    Exchange,
    MaskCall,
    Pair,
    RecordedRun,
    RecordedSum,
    SeenByAgent,
    Sites,
)
from deepca.solver.observers import Observer
from deepca.topology.graph import Topology

__all__ = ["record_run"]

_PATIENCE = 600.0  # seconds that an agent waits for another, which may be computing on a busy machine


def record_run(
    rows: Sequence[LocalData],
    topology: Topology,
    settings: Settings,
    *,
    private: bool,
    observers: Sequence[Observer] = (),
) -> RecordedRun:
    """Fit a model with one thread per agent, and record what each of them sees.

    Parameters
    ----------
    rows : sequence of LocalData
        Data of each agent.
    topology : Topology
        The network.
    settings : Settings
        Settings of the fit.
    private : bool
        Whether to mask sums.
    observers : sequence of Observer
        Notified of every iteration of the first agent.

    Returns
    -------
    RecordedRun
        The recording.
    """
    m = topology.n_agents
    plan, secrets = _exchange_keys(m) if private else (b"", [{} for _ in range(m)])
    seen = tuple(SeenByAgent(j, secrets[j]) for j in range(m))

    def work(bare: AgentNetwork) -> Model:
        j = bare.agent
        network = _WatchedNetwork(topology, seen[j], _Tap(_transport(bare), seen[j].exchanges))
        if private:
            network.use_masks(_WatchedMasks(seen[j], plan))
        watched = _WatchedData(**{**vars(rows[j]), "watch": network.watch_product})
        return fit(watched, network, settings, observers=observers if j == 0 else ()).model

    models = run_agents(topology, work, timeout=_PATIENCE, hub=MemoryHub(m, timeout=_PATIENCE))
    return RecordedRun(topology, seen, models[0], settings.center, plan)


def _transport(network: AgentNetwork) -> Transport:
    """Return the transport of an agent, which has one in every network of at least two agents."""
    if network.transport is None:
        raise ValueError("an agent without neighbours sends nothing that could be recorded")
    return network.transport


def _exchange_keys(m: int) -> tuple[bytes, list[dict[Pair, bytes]]]:
    """Return the plan, and the secrets that each agent derives from its own key and the public keys of the others."""
    keys = [EphemeralKey() for _ in range(m)]
    public = [key.public for key in keys]
    plan = common_plan(public)
    secrets: list[dict[Pair, bytes]] = [{} for _ in range(m)]
    for i, j in partners(m, plan):
        secrets[i][i, j] = keys[i].shared_secret(public[j])
        secrets[j][i, j] = keys[j].shared_secret(public[i])
    return plan, secrets


class _Tap(Transport):
    """Transport that records every message before passing it on."""

    reliable = True

    def __init__(self, inner: Transport, exchanges: list[Exchange]) -> None:
        self._inner, self.exchanges = inner, exchanges

    def exchange(self, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int], /) -> dict[int, Message]:
        """Exchange messages and record them."""
        received = self._inner.exchange(tag, outgoing, sources)
        self.exchanges.append(Exchange(tag, dict(outgoing), received))
        return received


class _WatchedNetwork(AgentNetwork):
    """Network of one agent that records the meaning of the messages of exact sums."""

    def __init__(self, topology: Topology, seen: SeenByAgent, tap: _Tap) -> None:
        super().__init__(topology, seen.agent, tap)
        self._seen, self._tap = seen, tap
        self._product: tuple[Array, Array] | None = None
        self._factors: dict[str, Array] = {}

    def watch_product(self, P: Array, Y: Array) -> None:
        """Remember the latest product of the agent, ``Y = A_j P``."""
        self._product = P, Y

    def totals_and_derive(
        self,
        addends: Sequence[Addend],
        derive: Callable[[list[Total]], Array],
        size: int,
        /,
        tree: SumTree | None = None,
    ) -> tuple[list[Total], Array]:
        """Compute exact sums; if there are products among them, record the common factor."""
        outer, self._factors = self._factors, {}  # sums that have to be repeated call this method again
        for addend in addends:
            if self._product is not None and addend.name in (PRODUCTS, MATRICES):
                P, Y = self._product
                whole = Y if addend.name == PRODUCTS else Y[np.triu_indices(len(Y))]
                if np.array_equal(addend.x, whole.ravel()):  # others are products of rows freed of known components
                    self._factors[addend.name] = np.array(P)
        try:
            return super().totals_and_derive(addends, derive, size, tree)
        finally:
            self._factors = outer

    def _sum_words(
        self, own: Words, layout: SumLayout, derive: Callable[[Words], Words], size: int, tree: SumTree, /
    ) -> tuple[Words, Words]:
        first, first_round = len(self._tap.exchanges), self._round
        plain = self._masks.plain if isinstance(self._masks, _WatchedMasks) else own
        total, derived = super()._sum_words(own, layout, derive, size, tree)
        contained = _contained(tree, self.n_agents)
        heard = tuple(
            (contained[level][sender], np.asarray(message.payload, dtype=np.uint64))
            for exchange in self._tap.exchanges[first:]
            if (level := exchange.tag.round - first_round) < len(tree.up)  # later rounds bring the total
            for sender, message in exchange.received.items()
        )
        self._seen.sums.append(RecordedSum(layout, plain.copy(), heard, total.copy(), dict(self._factors)))
        return total, derived


def _contained(tree: SumTree, m: int) -> list[list[Sites]]:
    """Return, for every round up, the agents whose numbers each agent has added up before it."""
    sets = [frozenset([j]) for j in range(m)]
    found = []
    for weights in tree.up:
        found.append(sets)
        entries = sparse.coo_array(weights)
        merged = [frozenset[int]()] * m
        for receiver, sender in zip(entries.row.tolist(), entries.col.tolist(), strict=True):
            merged[receiver] |= sets[sender]
        sets = [merged[j] | sets[j] for j in range(m)]
    return found


class _WatchedMasks(SumMasks):
    """Masks of one agent that record their history, and what the agent adds to sums before masking."""

    def __init__(self, seen: SeenByAgent, plan: bytes) -> None:
        self._seen = seen
        self.plain: Words = np.empty(0, dtype=np.uint64)
        super().__init__(seen.secrets, (seen.agent,), plan)

    def enter(self, epoch: int) -> None:
        """Begin an epoch and record it."""
        super().enter(epoch)
        if epoch:  # masks begin with epoch 0
            self._seen.mask_calls.append(MaskCall(epoch=epoch))

    def hide(self, messages: Words, layout: SumLayout) -> Words:
        """Mask messages and record what they were."""
        self.plain = messages.reshape(-1).copy()
        self._seen.mask_calls.append(MaskCall(layout))
        return super().hide(messages, layout)

    def record(self, *public: bytes | npt.NDArray[np.generic]) -> None:
        """Add public numbers to the history and record them."""
        kept = tuple(part if isinstance(part, bytes) else part.copy() for part in public)
        self._seen.mask_calls.append(MaskCall(public=kept))
        super().record(*public)


@dataclass(frozen=True)
class _WatchedData(LocalData):
    """Data of one agent whose operator reports its products."""

    watch: Callable[[Array, Array], None] = lambda P, Y: None

    def operator(
        self,
        batch: tuple[int, ...],
        reference: Array,
        shift: Array,
        units: Array | None,
        scale: float,
        unit_rounding: Array | None = None,
    ) -> Operator:
        """Build the operator."""
        return _WatchedOperator(
            super().operator(batch, reference, shift, units, scale, unit_rounding=unit_rounding), self.watch
        )


class _WatchedOperator(Operator):
    """Operator of one agent that reports its products."""

    def __init__(self, A: Operator, watch: Callable[[Array, Array], None]) -> None:
        self._A, self._watch = A, watch
        self.batch, self.d, self.form, self.bytes_read, self.row_counts = (
            A.batch,
            A.d,
            A.form,
            A.bytes_read,
            A.row_counts,
        )

    def __matmul__(self, W: Array) -> Array:
        """Multiply, and report factor and product."""
        Y = self._A @ W
        self._watch(W, Y)
        return Y

    def rounding(self) -> Rounding:
        """Return the rounding errors of the operator."""
        return self._A.rounding()

    def row_bounds(self) -> Array | None:
        """Return the bounds of the operator."""
        return self._A.row_bounds()

    def agent(self, j: int) -> Operator:
        """Return the operator of the only agent."""
        return self

    @property
    def has_rows(self) -> bool:
        """Return whether the rows are available."""
        return self._A.has_rows

    def deflated(self, V: Array) -> Operator:
        """Deflate the rows."""
        return self._A.deflated(V)

    def gram(self, V: Array) -> Array:
        """Return ``VᵀA_jV``."""
        return self._A.gram(V)
