"""Algorithm 1 of the paper: DeEPCA."""

from __future__ import annotations

from deepca.algorithms.base import Decentralized, TrackedState, basis

__all__ = ["DeEPCA"]


class DeEPCA(Decentralized):
    """Decentralized Exact PCA: power iterations with subspace tracking (Algorithm 1)::

        S_j⁰ = W⁰,  W_j⁰ = W⁰,  A_j W_j^{−1} := W⁰
        for t = 0 … T:
            S_j^{t+1} = S_j^t + A_j W_j^t − A_j W_j^{t−1}           subspace tracking
            S^{t+1}   = FastMix(S^{t+1}, K)                         K rounds with neighbours
            W_j^{t+1} = SignAdjust(QR(S_j^{t+1}), W⁰)               or another W with W R = S

    The mixer keeps the mean, so ``mean_j S_j^{t+1} = mean_j A_j W_j^t`` for every t: what agents track is exact,
    however few rounds K they mix. K depends on network and data, not on the accuracy wanted.

    The recursion starts from ``S_j = 0, A_j W_j^{−1} := 0`` here. S_j¹ is the same, without forming
    ``(W⁰ + A_j W⁰) − W⁰``, which would lose all digits where ‖A_j‖ is tiny.

    The paper's ``SignAdjust(QR(S), W⁰)`` is ``orthonormalise=QRSignAdjust(W0)``. The default is another, since signs
    that flip can break convergence and bases that turn inside close eigenvalues slow it down
    (:func:`~deepca.algorithms.base.basis`).

    The ``A_j`` may change from one iteration to the next. A State carries the product that S contains, so with
    ``A_j^t`` in iteration t (:meth:`with_operator`, :func:`deepca.decomposition.streaming.follow`)::

        S_j^{t+1} = S_j^t + A_j^t W_j^t − A_j^{t−1} W_j^{t−1},    mean_j S_j^{t+1} = mean_j A_j^t W_j^t

    and nothing of what came before is left in the mean.

    Parameters: see :class:`~deepca.algorithms.base.Decentralized`.
    """

    name = "DeEPCA"

    def step(self, state: TrackedState) -> TrackedState:
        AW = self.A @ state.W
        S = state.S + AW - state.AW  # S_j^t + A_j W_j^t − A_j W_j^{t−1}
        S, memory = self.mix.remember(self.network, S, state.memory, state.t, state.K)  # FastMix(S, K)
        W, _ = basis(self.orthonormalise, S, state.t)  # W R = S
        return TrackedState(state.t + 1, W, S, AW, state.K, memory)

    def restart(self, state: TrackedState, rounds: int) -> TrackedState:
        """Tracking begins again at the current W: ``S_j = Mix(A_j W_j)``, so mean S = mean A W by definition.

        Copies begin again empty.
        """
        AW = self.A @ state.W
        S, memory = self.mix.with_rounds(rounds).remember(self.network, AW, None, state.t)
        return TrackedState(state.t, state.W, S, AW, state.K, memory)
