"""The baseline without tracking: DePCA, the decentralized power method."""

from __future__ import annotations

from dataclasses import replace

from deepca.algorithms.base import Decentralized, TrackedState, basis
from deepca.consensus.mixer_state import of_new

__all__ = ["DePCA"]


class DePCA(Decentralized):
    """Local power iterations averaged by multi-consensus (the paper's equation 3.1)::

        S_j^{t+1} = A_j W_j^t
        S^{t+1}   = MultiConsensus(S^{t+1}, K_t)
        W_j^{t+1} = QR(S_j^{t+1})

    What K rounds leave of the disagreement is injected anew in every iteration, so with fixed K the error stalls.
    K may grow with t: ``FastMix(rounds=lambda t: 3 + t // 10)``.

    The paper does not adjust signs here; without it, agents whose columns point opposite ways would cancel each
    other in the average, so the baseline is given the same orthonormalisation as DeEPCA. Parameters: see
    :class:`~deepca.algorithms.base.Decentralized`.
    """

    name = "DePCA"

    def step(self, state: TrackedState) -> TrackedState:
        AW = self.A @ state.W
        before = of_new(state.memory)
        S, memory = self.mix.remember(self.network, AW, before, state.t, state.K)  # MultiConsensus(A_j W_j, K_t)
        W, _ = basis(self.orthonormalise, S, state.t)
        return TrackedState(state.t + 1, W, S, AW, state.K, memory)

    def restart(self, state: TrackedState, rounds: int) -> TrackedState:
        """Of the past only the copies of coded messages are used; they begin again empty."""
        return replace(state, memory=None)
