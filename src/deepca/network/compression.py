"""Compress messages to two or four bytes per number without limiting the accuracy of the result.

Rounding the values themselves would limit the accuracy of a tracked method, since every message would shift the mean.
Instead, agents send rounded differences, and mix the copies that neighbours keep of each other's values::

    c_j = round(x_j − D_j)                    to float32 or float16; sent
    D_j ← D_j + c_j                           by agent j and by each of its neighbours, in float64
    y_j = x_j + Σ_i 𝐋_ji (D_i − D_j)          one round; 𝐋 is symmetric, so mean y = mean x whatever the c_j are

D_j is the copy of x_j that agent j and its neighbours keep. A rounding error becomes part of the next difference, and
differences shrink as the method converges, so the rounding errors shrink too. The sum is recomputed from the copies in
every round, since a running sum would drift.

A message ends with one more row: an exponent E for each column, chosen so that the largest number of the column lies
between 2¹⁴ and 2¹⁵ before rounding, with ``c = number · 2^E``. Columns of any magnitude fit float16 in this way.

Compressed mixing is not linear, and it carries :class:`Copies` from one mix to the next, as part of the State of an
algorithm. Without copies, the first message is sent in float64, so that ``D = x``. The copies are renewed like this
every 64 iterations, since a lost message leaves different copies at the two ends of a link, which would shift the mean
in every later round. The certificate detects how far the mean has shifted by then; a restart of tracking begins without
copies.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array, Csr
from deepca.errors import MixingError
from deepca.topology.graph import Topology

if TYPE_CHECKING:
    from deepca.network.base import Network
    from deepca.network.protocols import Pairs, Position

__all__ = ["REFRESH_INTERVAL", "Code", "CompressedAveraging", "Copies", "Messages", "decode", "encode", "graph_digest"]

Messages = Literal["float64", "float32", "float16"]
"""Precision of gossip messages; all but "float64" are compressed."""
Code = Literal["float32", "float16"]

REFRESH_INTERVAL = 64
"""Number of iterations after which a float64 message renews the copies."""
_SCALED_EXPONENT = 15  # columns are scaled below 2¹⁵, since float16 overflows at 2¹⁶
_MIN_EXPONENT = -1000  # smallest exponent E, so that 2^−E is a float64 as well


@dataclass(frozen=True)
class Copies:
    """Copies that neighbours keep of each other's values.

    A sender and its neighbours perform the same additions, so their copies are bit-identical while every message
    arrives.

    Parameters
    ----------
    own : ndarray of shape (*B, …)
        ``D_j`` of the local agents.
    others : tuple of ndarray
        ``D_i`` of the neighbours i of a single agent, in the order of its network; empty if one array holds all agents.
    graph : str
        Digest of the graph to which the copies belong; see :func:`graph_digest`.
    """

    own: Array
    others: tuple[Array, ...] = ()
    graph: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        for array in (self.own, *self.others):
            array.flags.writeable = False

    @classmethod
    def continued(cls, x: Array, known: Copies | None, neighbors: int, graph: str) -> Copies:
        """Return the copies with which to mix x: the known ones, or zeros if the shape or the graph changed.

        Shape and graph are the same at all agents, so either all agents start over or none does.
        """
        if known is not None and known.own.shape == x.shape and known.graph == graph:
            return known
        nothing = np.zeros_like(x)
        return cls(nothing, (nothing,) * neighbors, graph)


@renamed_attributes(total_mean="allreduce_mean")
@dataclass
class CompressedAveraging:
    """Network with compressed messages, as mixers see it (:class:`deepca.network.protocols.MixerNetwork`).

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
        """Run one round with compressed messages."""
        if weights is not None:
            raise MixingError(
                f"messages = {self.code!r}: compression needs messages to every neighbour in every round, but this "
                'mixer sets the weights of each round; use messages="float64"',
                parameter="messages",
                value=self.code,
            )
        y, self.copies = self.network.gossip_compressed(x, self.copies, self.code)
        return y

    @property
    def position(self) -> Position:
        """Current position in the run."""
        return self.network.position

    def average_pairs(self, x: Array, pairs: Pairs, rounds: int, /) -> Array:
        """Average pairs with uncompressed messages."""
        return self.network.average_pairs(x, pairs, rounds)

    def allreduce_mean(self, x: Array, /) -> Array:
        """Compute the mean with the network's collective operation."""
        return self.network.allreduce_mean(x)


def encode(x: Array, code: Messages, batch: int) -> npt.NDArray[Any]:
    """Return x as messages of shape ``(*B, d + 1, k)``, with exponents in the last row.

    The first ``batch`` axes of x count agents. Of the remaining axes, the last one counts columns and all others count
    rows; a vector is one column.
    """
    columns = _as_columns(x, batch)
    peak = np.abs(columns).max(axis=-2, keepdims=True, initial=0.0)
    exponents = np.maximum(np.frexp(np.where(np.isfinite(peak), peak, 0.0))[1], _MIN_EXPONENT) - _SCALED_EXPONENT
    # numbers that underflow are sent once the others are as small; only columns that are not finite overflow
    with np.errstate(under="ignore", over="ignore"):
        numbers = (columns * np.ldexp(1.0, -exponents)).astype(code)
    return np.concatenate([numbers, exponents.astype(code)], axis=-2)


def decode(message: npt.NDArray[Any], shape: tuple[int, ...]) -> Array:
    """Return what messages add to copies of the given shape, bit-identical at sender and receiver."""
    exponents = message[..., -1:, :].astype(np.int64)
    with np.errstate(under="ignore"):
        numbers = message[..., :-1, :].astype(np.float64) * np.ldexp(1.0, exponents)
    return np.asarray(numbers.reshape(shape))


def graph_digest(topology: Topology) -> str:
    """Return a digest of the edges; copies are valid on any topology with the same digest."""
    links = topology.adjacency.sorted_indices()
    parts = (links.indptr, links.indices)
    return hashlib.sha256(b"|".join(np.asarray(part, dtype="<i8").tobytes() for part in parts)).hexdigest()


def _as_columns(x: Array, batch: int) -> Array:
    own = x.shape[batch:]
    return x if len(own) == 2 else x.reshape(*x.shape[:batch], -1, own[-1] if len(own) > 2 else 1)
