"""Random pairwise gossip: one link is active at a time, and its two ends take their mean.

This is the asynchronous model of Boyd et al. (2006), with links that are activated uniformly at random. The pairs
follow from a common seed and the current moment (epoch, iteration, meetings so far), which all agents know. So agents
need not negotiate them, no two mixes are alike, and a retried step gives the same result.
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

_STREAM = 64  # separates these random numbers from other uses of the same seed
_CACHE_SIZE = 16  # graphs whose rate is cached


@dataclass(frozen=True)
class Pairwise(Mixer):
    """Random meetings of two neighbours, with fresh pairs in every mix.

    Parameters
    ----------
    rounds : int, callable or "auto", default="auto"
        K, a schedule ``t ↦ K``, or "auto" to choose K while running; K rounds are ``⌈K m / 2⌉`` meetings.
    messages : {"float64"}, default="float64"
        Precision of messages; compression is not possible.
    seed : int, default=0
        Seed of the pairs, the same at all agents.

    Notes
    -----
    Each meeting::

        (i, j) ∈ E at random,    x_i, x_j ← (x_i + x_j) / 2

    so that in K rounds every agent sends K messages on average. One meeting applies the projection ``W_ij = I − (e_i −
    e_j)(e_i − e_j)ᵀ/2``, which preserves the sum. Since ``W_ijᵀ W_ij = W_ij``, the deviation from the mean obeys

        ``E ‖x⁺ − x̄‖² = (x − x̄)ᵀ E[W] (x − x̄) ≤ λ₂(E[W]) ‖x − x̄‖²,    E[W] = I − M / (2 |E|)``,

    with M the graph Laplacian [1]_. So n meetings leave ``λ₂(E[W])^{n/2}`` of a disagreement in root mean square. This
    is the contraction that rounds are chosen by. A single mix may leave more, which tracking tolerates.

    Agreed values are not piggybacked on meetings, since each meeting reaches only two agents. They are flooded instead,
    and count as control rounds.

    References
    ----------
    .. [1] S. Boyd, A. Ghosh, B. Prabhakar and D. Shah, "Randomized gossip algorithms", IEEE Transactions on
       Information Theory 52 (2006).
    """

    seed: int = 0
    memoryless = True

    def __post_init__(self) -> None:
        """Check the parameters."""
        super().__post_init__()
        check("seed", self.seed, Whole(0), meaning="the same at all agents")
        if self.messages != "float64":
            raise MixingError(
                f"Pairwise with messages = {self.messages!r}: compression requires messages from every neighbour in "
                'every round; leave messages="float64", or use deepca.FastMix',
                parameter="messages",
                value=self.messages,
            )

    def check(self, topology: Topology) -> None:
        """Raise MixingError unless the graph is undirected and stays the same."""
        if not topology.stays:
            why = "changes from round to round" if topology.changing else "has messages that go one way"
            raise MixingError(
                f"Pairwise needs links that stay up and go both ways, since two agents exchange their values, but "
                f"{topology.name} {why}. Use deepca.Gossip",
                parameter="mix",
                value="Pairwise",
            )

    def key(self, K: int) -> object:
        """Return None: every mix applies another matrix."""
        return None

    def run(self, network: Averaging, x: Array, K: int, /) -> Array:
        """Let the pairs of this moment meet."""
        return network.meet(x, self.pairs(network.topology, K, network.moment), K)

    def pairs(self, topology: Topology, K: int, moment: Moment) -> Pairs:
        """Return the pairs that meet in a mix.

        Parameters
        ----------
        topology : Topology
            The graph.
        K : int
            Rounds of the mix.
        moment : Moment
            Epoch, phase, iteration, and meetings so far.

        Returns
        -------
        ndarray of shape (n, 2)
            Pairs of agents, in order.
        """
        epoch, phase, t, met = moment
        # t is −1 before a restart is agreed
        rng = np.random.default_rng((_STREAM, int(self.seed), epoch, phase, t + 1, met))
        n = meetings_in(K, topology.n_agents)
        return topology.edges[rng.integers(len(topology.edges), size=n)] if n else np.zeros((0, 2), dtype=np.int64)

    def contraction(self, topology: Topology, K: int) -> float:
        """Return the contraction in root mean square, ``λ₂(E[W])^{n/2}``."""
        self.check(topology)
        if topology.n_agents == 1:
            return 0.0
        return float(_rate(topology) ** (meetings_in(K, topology.n_agents) / 2.0))

    def factors(self, topology: Topology, K: int) -> Array:
        """Return the contraction for every mode, since meetings mix the modes."""
        return np.full(topology.n_agents - 1, self.contraction(topology, K))


def meetings_in(K: int, m: int) -> int:
    """Return the meetings that count as K rounds of m agents: every agent takes part in K of them on average."""
    return math.ceil(K * m / 2) if m > 1 else 0


@lru_cache(maxsize=_CACHE_SIZE)
def _rate(topology: Topology) -> float:
    """Return ``λ₂(E[W])``, the expected factor by which one meeting shrinks the square of a disagreement."""
    M = csr(sparse.diags_array(topology.degrees.astype(np.float64)) - topology.adjacency)
    return max(1.0 - laplacian_extremes(M, SMALL)[0] / (2.0 * topology.n_edges), 0.0)
