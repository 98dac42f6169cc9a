"""Records of what agents have seen and done in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.decomposition.model import Model
from deepca.network.sums import SumLayout, Words
from deepca.network.sums.masks import partners
from deepca.network.transports.base import Message, Tag
from deepca.planning.leakage.directions import Directions
from deepca.topology.graph import Topology

__all__ = [
    "COLUMNS",
    "COUNTS",
    "MATRICES",
    "PRODUCTS",
    "SQUARES",
    "Exchange",
    "MaskCall",
    "Pair",
    "RecordedRun",
    "RecordedSum",
    "SeenByAgent",
    "Sites",
    "SumPart",
]

Pair = tuple[int, int]
Sites = frozenset[int]

COUNTS, COLUMNS, SQUARES = "row counts", "sums of columns", "sums of squares"
"""Names of the parts of sums with the moments of rows."""
PRODUCTS, MATRICES = "products", "matrices"
"""Names of the parts of sums that are products ``A_j P``, or the upper triangles of the ``A_j``."""
_MISFITS = "counts of numbers in other units"  # name of the part that says how many numbers of the others are repeated


@dataclass(frozen=True)
class Exchange:
    """One call of a transport: the messages sent by receiver, and those received by sender."""

    tag: Tag
    sent: Mapping[int, Message]
    received: Mapping[int, Message]


@dataclass(frozen=True)
class RecordedSum:
    """An exact sum as one agent sees it.

    Parameters
    ----------
    layout : SumLayout
        Layout of its messages.
    own : ndarray of shape (N,)
        What the agent adds, before masking.
    heard : tuple of (frozenset of int, ndarray of shape (N,))
        Every message that the agent received on the way up, and the agents whose numbers it contains.
    total : ndarray of shape (N,)
        The sum over all agents.
    factors : mapping of str to ndarray of shape (d, p)
        For parts that are products ``A_j P``, the common P.
    """

    layout: SumLayout
    own: Words
    heard: tuple[tuple[Sites, Words], ...]
    total: Words
    factors: Mapping[str, Array]


@dataclass(frozen=True)
class SumPart:
    """One part of an exact sum: the index of the sum, the position in it, its name, and P if it is ``A_j P``."""

    sum_index: int
    position: int
    name: str
    factor: Array | None

    def decode(self, layout: SumLayout, words: Words) -> Array:
        """Return the numbers of this part in a message, which must not be masked any more."""
        words = layout.split(words)[self.position + 1]  # the first part counts agents
        return layout.units[self.position + 1].decode(words[:, :-1] if layout.masked else words)[0]


@dataclass(frozen=True)
class MaskCall:
    """A call of :class:`~deepca.network.sums.masks.SumMasks` that changes its state, so that it can be repeated."""

    layout: SumLayout | None = None
    epoch: int | None = None
    public: tuple[bytes | npt.NDArray[np.generic], ...] = ()


@dataclass
class SeenByAgent:
    """Everything that one agent knows after a run, apart from its rows.

    Parameters
    ----------
    agent : int
        Index of the agent.
    secrets : mapping of (int, int) to bytes
        Secrets of the masks that it shares; empty in an open network.
    exchanges : list of Exchange
        All messages that it sent and received.
    sums : list of RecordedSum
        All exact sums.
    mask_calls : list of MaskCall
        History of the masks, the same at all agents.
    """

    agent: int
    secrets: Mapping[Pair, bytes] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    sums: list[RecordedSum] = field(default_factory=list)
    mask_calls: list[MaskCall] = field(default_factory=list)


@dataclass(frozen=True)
class RecordedRun:
    """A recorded run.

    Parameters
    ----------
    topology : Topology
        The network.
    agents : tuple of SeenByAgent
        What each agent knows in the end.
    model : Model
        The result, the same at all agents.
    center : bool
        Whether the mean was subtracted.
    plan : bytes
        Public digest from which masks are derived; empty in an open network.
    """

    topology: Topology
    agents: tuple[SeenByAgent, ...]
    model: Model
    center: bool
    plan: bytes

    @property
    def is_private(self) -> bool:
        """True if sums were masked."""
        return bool(self.plan)

    @cached_property
    def mask_pairs(self) -> frozenset[Pair]:
        """The pairs of agents that mask each other; public."""
        return partners(self.topology.n_agents, self.plan) if self.is_private else frozenset()

    @cached_property
    def parts(self) -> tuple[SumPart, ...]:
        """All parts of all sums, except for those that were repeated in another unit."""
        found = []
        for s, record in enumerate(self.agents[0].sums):
            names, counted = record.layout.names[1:], np.zeros(len(record.layout.names) - 1)
            if names[0] == _MISFITS:
                counted[1:] = record.layout.totals(record.total)[0].value
            found += [SumPart(s, i, name, record.factors.get(name)) for i, name in enumerate(names) if not counted[i]]
        return tuple(found)

    @cached_property
    def moments(self) -> dict[str, SumPart]:
        """The parts of sums with row counts, sums of columns and sums of squares: the first of each name."""
        return {part.name: part for part in reversed(self.parts) if part.name in (COUNTS, COLUMNS, SQUARES)}

    def total(self, name: str) -> Array:
        """Return the total of a part with moments, which all agents know."""
        part = self.moments[name]
        record = self.agents[0].sums[part.sum_index]
        return part.decode(record.layout, record.total)

    @cached_property
    def common_mean(self) -> Array:
        """Mean of the rows of all agents, whether or not it is subtracted."""
        return np.asarray(self.total(COLUMNS) / self.total(COUNTS)[0])

    @cached_property
    def products(self) -> tuple[SumPart, ...]:
        """The parts of sums that are products with the ``A_j``."""
        return tuple(part for part in self.parts if part.factor is not None)

    @cached_property
    def directions(self) -> Directions:
        """All directions in which products were summed; public."""
        blocks = [part.factor for part in self.products if part.factor is not None]
        return Directions(np.hstack([np.empty((self.model.mean.size, 0)), *blocks]))
