"""Compress messages to two or four bytes per number, without loss in the limit.

Rounding the values themselves would limit the accuracy of a tracked method, since the mean would move with every
message. Instead, agents send rounded differences, and mix with what their neighbours know rather than with what they
have::

    c_j = round(x_j − D_j)                    to float32 or float16; sent
    D_j ← D_j + c_j                           by agent j and by each of its neighbours, in float64
    y_j = x_j + Σ_i 𝐋_ji (D_i − D_j)          one round; 𝐋 is symmetric, so mean y = mean x whatever the c_j are

D_j is what the neighbours know of x_j. A rounding error becomes part of the next difference, and differences shrink as
the method converges, so the rounding errors shrink too. The sum is recomputed from the copies in every round, since a
running sum would drift.

A message has one more row below its numbers: an exponent E for each column, chosen so that the largest number of the
column lies between 2¹⁴ and 2¹⁵ before rounding, with ``c = number · 2^E``. Columns of any magnitude fit float16 in
this way.

Coded mixing is not linear, and it has a memory, the :class:`Copies`, which belong to the state of an algorithm. Without
copies the first message is float64, so that ``D = x``. This is repeated every 64 iterations, since a lost message
leaves different copies at the two ends, which would move the mean in every later round. The certificate detects how far
the mean has moved by then; a restart of tracking begins without copies.
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
    from deepca.network.base import Network
    from deepca.network.protocols import Moment, Pairs

__all__ = ["REFRESHED", "Code", "CodedAveraging", "Copies", "Messages", "decode", "encode", "graph_of"]

Messages = Literal["float64", "float32", "float16"]
"""Precision of gossip messages; all but "float64" are coded."""
Code = Literal["float32", "float16"]

REFRESHED = 64
"""Iterations after which copies are replaced by a float64 message."""
_SCALED_EXPONENT = 15  # columns are scaled below 2¹⁵, since float16 overflows at 2¹⁶
_MIN_EXPONENT = -1000  # so that 2^−E is a float64 as well


@dataclass(frozen=True)
class Copies:
    """What neighbours know of each other's values.

    A sender and its neighbours perform the same additions, so they have the same bits while every message arrives.

    Parameters
    ----------
    own : ndarray of shape (*B, …)
        ``D_j`` of the local agents.
    others : tuple of ndarray
        ``D_i`` of the neighbours i of a single agent, in the order of its network; empty if one array holds all agents.
    graph : str
        Graph to which the copies belong; see :func:`graph_of`.
    """

    own: Array
    others: tuple[Array, ...] = ()
    graph: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        for array in (self.own, *self.others):
            array.flags.writeable = False

    @classmethod
    def before(cls, x: Array, known: Copies | None, neighbors: int, graph: str) -> Copies:
        """Return the copies with which to mix x: the known ones, or zeros if the shape or the graph changed.

        Shape and graph are the same at all agents, so either all of them start over or none.
        """
        if known is not None and known.own.shape == x.shape and known.graph == graph:
            return known
        nothing = np.zeros_like(x)
        return cls(nothing, (nothing,) * neighbors, graph)


@dataclass
class CodedAveraging:
    """A network whose rounds are coded, as seen by mixers (:class:`deepca.network.protocols.Averaging`).

    Parameters
    ----------
    network : Network
        The network that carries the messages.
    copies : Copies or None
        Copies after the latest round.
    code : {"float32", "float16"}
        Precision of the messages.
    """

    network: Network
    copies: Copies | None
    code: Code

    @property
    def topology(self) -> Topology:
        """Graph and gossip matrix."""
        return self.network.topology

    def gossip(self, x: Array, weights: Csr | None = None, /) -> Array:
        """Make one coded round."""
        if weights is not None:
            raise MixingError(
                f"{self.code} messages need every neighbour in every round, or copies would differ; use "
                'messages="float64" for mixers that set the weights of each round',
                parameter="messages",
                value=self.code,
            )
        y, self.copies = self.network.gossip_coded(x, self.copies, self.code)
        return y

    @property
    def moment(self) -> Moment:
        """Current position in the run."""
        return self.network.moment

    def meet(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Average pairs with uncoded messages."""
        return self.network.meet(x, pairs, rounds)

    def total_mean(self, x: Array, /) -> Array:
        """Compute the mean with the network's collective operation."""
        return self.network.total_mean(x)


def encode(x: Array, code: Messages, batch: int) -> npt.NDArray[Any]:
    """Return the message(s) for x, ``(*B, d + 1, k)``, with exponents in the last row.

    The first ``batch`` axes of x count agents. A vector is one column; with more than two further axes, all but the
    last are rows.
    """
    columns = _as_columns(x, batch)
    peak = np.abs(columns).max(axis=-2, keepdims=True, initial=0.0)
    exponents = np.maximum(np.frexp(np.where(np.isfinite(peak), peak, 0.0))[1], _MIN_EXPONENT) - _SCALED_EXPONENT
    # numbers too small now are sent once the rest is as small; only columns that are not finite overflow
    with np.errstate(under="ignore", over="ignore"):
        numbers = (columns * np.ldexp(1.0, -exponents)).astype(code)
    return np.concatenate([numbers, exponents.astype(code)], axis=-2)


def decode(message: npt.NDArray[Any], shape: tuple[int, ...]) -> Array:
    """Return what the message(s) add to a copy of that shape, with the same bits at sender and receiver."""
    exponents = message[..., -1:, :].astype(np.int64)
    with np.errstate(under="ignore"):
        numbers = message[..., :-1, :].astype(np.float64) * np.ldexp(1.0, exponents)
    return np.asarray(numbers.reshape(shape))


def graph_of(topology: Topology) -> str:
    """Return a digest of the edges: copies can be used on any topology with the same one."""
    links = topology.adjacency.sorted_indices()
    parts = (links.indptr, links.indices)
    return hashlib.sha256(b"|".join(np.asarray(part, dtype="<i8").tobytes() for part in parts)).hexdigest()


def _as_columns(x: Array, batch: int) -> Array:
    own = x.shape[batch:]
    return x if len(own) == 2 else x.reshape(*x.shape[:batch], -1, own[-1] if len(own) > 2 else 1)
