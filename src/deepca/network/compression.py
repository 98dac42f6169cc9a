"""Messages of two or four bytes per number, with nothing lost in the long run.

Rounding what is sent would stop a tracked method at the rounding: the mean moves with every message. So an agent sends
differences, and mixes with what its neighbours know instead of what it has::

    c_j = round(x_j − D_j)                    to float32 or float16; sent
    D_j ← D_j + c_j                           by agent j and by each of its neighbours, in float64
    y_j = x_j + Σ_i 𝐋_ji (D_i − D_j)          one round; 𝐋 is symmetric, so mean y = mean x whatever the c_j are

D_j is what the neighbours know of x_j. What rounding left out is part of the next difference, and differences shrink as
the method converges: so does their rounding. The sum is taken anew from the copies in every round, since one that is
carried along would drift.

A message holds, below its numbers, one row more: an exponent E for each column, so that the largest number in it
lies between 2¹⁴ and 2¹⁵ before it is rounded, and ``c = number · 2^E``. Columns of any size fit float16 that way.

Coded mixing is not linear, and it has a memory, the :class:`Copies`; they belong to the State of an algorithm. Where
there are none yet, the first message is float64: then ``D = x``. The same is done every 64 iterations, since a message
that is lost leaves two ends with different copies, which move the mean in every round from then on. What the mean has
moved by then is for the certificate to find; a restart of tracking begins without copies.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array, Csr
from deepca.errors import MixingError
from deepca.topology.graph import Topology

if TYPE_CHECKING:
    from deepca.network.base import Moment, Network, Pairs

__all__ = ["REFRESHED", "Code", "CodedAveraging", "Copies", "Messages", "decode", "encode", "graph_of"]

Messages = Literal["float64", "float32", "float16"]
"""What a number takes in a message; all but "float64" are coded."""
Code = Literal["float32", "float16"]

REFRESHED = 64
"""Copies are made anew in every iteration that this number divides."""
_TOP = 15  # float16 ends just below 2¹⁶
_LEAST = -1000  # 2^−E must be a float64, too


@dataclass(frozen=True)
class Copies:
    """What neighbours know of each other's values: ``D_j`` of the local agents, and of the neighbours of a lone one.

    A sender and its neighbours make the same additions, so they hold the same bits while every message arrives.
    """

    own: Array
    """``D_j``, shape ``(*B, …)``."""
    others: tuple[Array, ...] = ()
    """``D_i`` of the neighbours i of one agent alone, in the order of its network; none where one array holds all."""
    graph: str = field(default="", repr=False)
    """Whose neighbours: see :func:`graph_of`."""

    def __post_init__(self) -> None:
        for array in (self.own, *self.others):
            array.flags.writeable = False

    @classmethod
    def before(cls, x: Array, known: Copies | None, neighbors: int, graph: str) -> Copies:
        """The copies to go on from when x is mixed: those known, or zeros where x or the graph has changed.

        Shape and graph are common to all agents, so all of them begin anew, or none.
        """
        if known is not None and known.own.shape == x.shape and known.graph == graph:
            return known
        nothing = np.zeros_like(x)
        return cls(nothing, (nothing,) * neighbors, graph)


@dataclass
class CodedAveraging:
    """A network as mixers see it (:class:`deepca.network.base.Averaging`), whose rounds are coded.

    ``copies`` are those after the latest round.
    """

    network: Network
    copies: Copies | None
    code: Code

    @property
    def topology(self) -> Topology:
        return self.network.topology

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        if weights is not None:
            raise MixingError(
                f"{self.code} messages need every neighbour in every round, or copies would differ; "
                'a mixer with weights of its own in each round takes messages="float64"'
            )
        y, self.copies = self.network.gossip_coded(x, self.copies, self.code)
        return y

    @property
    def moment(self) -> Moment:
        return self.network.moment

    def meet(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        return self.network.meet(x, pairs, rounds)

    def total_mean(self, x: Array, /) -> Array:
        return self.network.total_mean(x)


def encode(x: Array, code: Messages, batch: int) -> npt.NDArray[Any]:
    """The message(s) for x, whose first ``batch`` axes count agents: ``(*B, d + 1, k)``, exponents in the last row.

    A vector is one column, and of more than two axes all but the last are rows.
    """
    columns = _as_columns(x, batch)
    peak = np.abs(columns).max(axis=-2, keepdims=True, initial=0.0)
    exponents = np.maximum(np.frexp(np.where(np.isfinite(peak), peak, 0.0))[1], _LEAST) - _TOP
    # what is too small now is sent when the rest has become as small; only columns that are not finite overflow
    with np.errstate(under="ignore", over="ignore"):
        numbers = (columns * np.ldexp(1.0, -exponents)).astype(code)
    return np.concatenate([numbers, exponents.astype(code)], axis=-2)


def decode(message: npt.NDArray[Any], shape: tuple[int, ...]) -> Array:
    """What the message(s) add to a copy of that shape; the same bits at sender and receiver."""
    exponents = message[..., -1:, :].astype(np.int64)
    with np.errstate(under="ignore"):
        numbers = message[..., :-1, :].astype(np.float64) * np.ldexp(1.0, exponents)
    return np.asarray(numbers.reshape(shape))


def graph_of(topology: Topology) -> str:
    """Equal for topologies with the same edges: copies made on one are of use on the other."""
    links = topology.adjacency.sorted_indices()
    parts = (links.indptr, links.indices)
    return hashlib.sha256(b"|".join(np.asarray(part, dtype="<i8").tobytes() for part in parts)).hexdigest()


def _as_columns(x: Array, batch: int) -> Array:
    own = x.shape[batch:]
    return x if len(own) == 2 else x.reshape(*x.shape[:batch], -1, own[-1] if len(own) > 2 else 1)
