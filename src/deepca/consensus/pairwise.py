"""Random pairwise gossip: one link is active at a time, and its two ends replace their values by the mean.

This is the asynchronous model of Boyd et al. (2006), with links that are activated uniformly at random. The pairs
follow from a common seed and the current position in the run (epoch, phase, iteration, pairs so far), which all agents
know. So agents need not negotiate the pairs, every mix uses different ones, and a retried step gives the same result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import sparse

from deepca._util.typing import Array, csr
from deepca._util.validation import Integer, check
from deepca.consensus.mixers import Mixer
from deepca.errors import MixingError
from deepca.network.base import MixerNetwork, Pairs, Position
from deepca.topology.graph import MAX_DENSE_AGENTS, Topology
from deepca.topology.spectra import laplacian_extremes

__all__ = ["Pairwise", "pairs_in_rounds"]

_STREAM = 64  # separates the random pairs from other uses of the same seed
_CACHE_SIZE = 16  # maximum number of graphs whose rate is cached


@dataclass(frozen=True)
class Pairwise(Mixer):
    """Random pairwise gossip: every mix draws new pairs of neighbours, which average.

    Parameters
    ----------
    rounds : int, callable or "auto", default="auto"
        K, a schedule ``t ↦ K``, or "auto" to choose K while running; K rounds are ``⌈K m / 2⌉`` pairs.
    messages : {"float64"}, default="float64"
        Precision of messages; compression is not possible.
    seed : int, default=0
        Seed of the pairs, the same at all agents.

    Notes
    -----
    One pair after another averages::

        (i, j) ∈ E at random,    x_i, x_j ← (x_i + x_j) / 2

    In K rounds, every agent sends K messages on average. One pair applies the projection ``W_ij = I − (e_i − e_j)(e_i −
    e_j)ᵀ/2``, which preserves the sum. Since ``W_ijᵀ W_ij = W_ij``, the deviation from the mean obeys

        ``E ‖x⁺ − x̄‖² = (x − x̄)ᵀ E[W] (x − x̄) ≤ λ₂(E[W]) ‖x − x̄‖²,    E[W] = I − M / (2 |E|)``,

    with M the graph Laplacian [1]_. So n pairs leave ``λ₂(E[W])^{n/2}`` of a disagreement in root mean square. K is
    chosen from this contraction. A single mix may leave more, which tracking tolerates.

    Values to agree on cannot be piggybacked on these messages, since each pair reaches only two agents. They are
    flooded instead, in control rounds.

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
        check("seed", self.seed, Integer(0), meaning="the same at all agents")
        if self.messages != "float64":
            raise MixingError(
                f"Pairwise with messages = {self.messages!r}: compression requires messages from every neighbour in "
                'every round; leave messages="float64", or use deepca.FastMix',
                parameter="messages",
                value=self.messages,
            )

    def check(self, topology: Topology) -> None:
        """Raise MixingError unless the graph is static and undirected."""
        if not topology.static_undirected:
            why = "time-varying" if topology.time_varying else "directed"
            raise MixingError(
                "Pairwise needs a static undirected graph, since two agents exchange their values, but "
                f"{topology.name} is {why}; use deepca.Gossip",
                parameter="mix",
                value="Pairwise",
            )

    def key(self, K: int) -> object:
        """Return None: every mix applies a different matrix."""
        return None

    def run(self, network: MixerNetwork, x: Array, K: int, /) -> Array:
        """Average the random pairs of this mix, one after another."""
        return network.average_pairs(x, self.pairs(network.topology, K, network.position), K)

    def pairs(self, topology: Topology, K: int, moment: Position) -> Pairs:
        """Return the random pairs of a mix.

        Parameters
        ----------
        topology : Topology
            The graph.
        K : int
            Rounds of the mix.
        moment : Position
            Position in the run: epoch, phase, iteration, and pairs so far.

        Returns
        -------
        ndarray of shape (n, 2)
            Pairs of agents, in order.
        """
        epoch, phase, t, met = moment
        # t is −1 before agents have agreed on the iteration of a restart
        rng = np.random.default_rng((_STREAM, int(self.seed), epoch, phase, t + 1, met))
        n = pairs_in_rounds(K, topology.n_agents)
        return topology.edges[rng.integers(len(topology.edges), size=n)] if n else np.zeros((0, 2), dtype=np.int64)

    def contraction(self, topology: Topology, K: int) -> float:
        """Return the contraction in root mean square, ``λ₂(E[W])^{n/2}``."""
        self.check(topology)
        if topology.n_agents == 1:
            return 0.0
        return float(_rate(topology) ** (pairs_in_rounds(K, topology.n_agents) / 2.0))

    def factors(self, topology: Topology, K: int) -> Array:
        """Return :meth:`contraction` for every mode, since pairwise averaging couples the modes."""
        return np.full(topology.n_agents - 1, self.contraction(topology, K))


def pairs_in_rounds(K: int, m: int) -> int:
    """Return the number of pairs that count as K rounds of m agents: every agent is in K of them on average."""
    return math.ceil(K * m / 2) if m > 1 else 0


@lru_cache(maxsize=_CACHE_SIZE)
def _rate(topology: Topology) -> float:
    """Return ``λ₂(E[W])``, the expected factor by which one pair shrinks a squared disagreement."""
    M = csr(sparse.diags_array(topology.degrees.astype(np.float64)) - topology.adjacency)
    return max(1.0 - laplacian_extremes(M, MAX_DENSE_AGENTS)[0] / (2.0 * topology.n_edges), 0.0)
