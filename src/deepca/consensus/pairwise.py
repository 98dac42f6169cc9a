"""Random pairwise gossip: one link wakes at a time, its two ends take their mean, and everyone else sleeps.

This is the asynchronous model of Boyd, Ghosh, Prabhakar & Shah (2006), with links that wake at random, all alike. Who
meets whom follows from a common seed and from the moment (epoch, iteration, meetings so far), which all agents know.
So there is no need to talk about it, no two mixes are alike, and a step that is retried is the same again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import sparse

from deepca._util.typing import Array, csr
from deepca._util.validation import Whole, check
from deepca.consensus.mixers import Mixer
from deepca.errors import MixingError
from deepca.network.base import Averaging, Moment, Pairs
from deepca.topology.graph import SMALL, Topology
from deepca.topology.spectra import laplacian_extremes

__all__ = ["Pairwise", "meetings_in"]

_STREAM = 64  # apart from other uses of the same seed
_KEPT = 16  # graphs whose rate is remembered


@dataclass(frozen=True)
class Pairwise(Mixer):
    """Meetings of two neighbours, drawn anew in every mix; K rounds are ``⌈K m / 2⌉`` of them::

        (i, j) ∈ E at random,    x_i, x_j ← (x_i + x_j) / 2

    so that in K rounds every agent sends K messages on average. One meeting applies the projection ``W_ij = I − (e_i −
    e_j)(e_i − e_j)ᵀ/2``, which keeps the sum. Since ``W_ijᵀ W_ij = W_ij``, what differs from the mean obeys

        ``E ‖x⁺ − x̄‖² = (x − x̄)ᵀ E[W] (x − x̄) ≤ λ₂(E[W]) ‖x − x̄‖²,    E[W] = I − M / (2 |E|)``,

    M the graph Laplacian. So n meetings leave ``λ₂(E[W])^{n/2}`` of a disagreement in root mean square: that is the
    contraction here, and what rounds are chosen by. A single mix may leave more, which tracking bears.

    Values under way to agreement do not ride along, as few hear of few; they are flooded, and count as control rounds.

    seed : of who meets whom; the same at all agents.
    """

    seed: int = 0
    memoryless = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check("seed", self.seed, Whole(0), meaning="the same at all agents")
        if self.messages != "float64":
            raise MixingError(
                f"Pairwise with messages = {self.messages!r}: copies of what others hold are kept for neighbours that "
                'are heard in every round; leave messages="float64", or use deepca.FastMix'
            )

    def check(self, topology: Topology) -> None:
        if not topology.stays:
            why = "changes from round to round" if topology.changing else "has messages that go one way"
            raise MixingError(
                f"Pairwise needs links that stay and go both ways, since two agents exchange what they hold, but "
                f"{topology.name} {why}. Use deepca.Gossip"
            )

    def key(self, K: int) -> object:
        return None

    def run(self, network: Averaging, x: Array, K: int, /) -> Array:
        return network.meet(x, self.pairs(network.topology, K, network.moment), K)

    def pairs(self, topology: Topology, K: int, moment: Moment) -> Pairs:
        """Who meets whom in a mix of K rounds that begins at that moment, ``(n, 2)``."""
        epoch, phase, t, met = moment
        # t is −1 before a restart is agreed on
        rng = np.random.default_rng((_STREAM, int(self.seed), epoch, phase, t + 1, met))
        n = meetings_in(K, topology.n_agents)
        return topology.edges[rng.integers(len(topology.edges), size=n)] if n else np.zeros((0, 2), dtype=np.int64)

    def contraction(self, topology: Topology, K: int) -> float:
        """In root mean square; see above."""
        self.check(topology)
        if topology.n_agents == 1:
            return 0.0
        return float(_rate(topology) ** (meetings_in(K, topology.n_agents) / 2.0))

    def factors(self, topology: Topology, K: int) -> Array:
        """The contraction for all modes alike, since meetings mix them."""
        return np.full(topology.n_agents - 1, self.contraction(topology, K))


def meetings_in(K: int, m: int) -> int:
    """Meetings that count as K rounds of m agents: every agent takes part in K of them on average."""
    return math.ceil(K * m / 2) if m > 1 else 0


@lru_cache(maxsize=_KEPT)
def _rate(topology: Topology) -> float:
    """``λ₂(E[W])``, by what one meeting shrinks the square of a disagreement in expectation."""
    M = csr(sparse.diags_array(topology.degrees.astype(np.float64)) - topology.adjacency)
    return max(1.0 - laplacian_extremes(M, SMALL)[0] / (2.0 * topology.n_edges), 0.0)
