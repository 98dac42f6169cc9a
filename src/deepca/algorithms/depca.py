"""DePCA, the decentralized power method without tracking: the paper's baseline."""

from __future__ import annotations

from dataclasses import replace

from deepca.algorithms.base import Decentralized, TrackedState, orthonormal_basis
from deepca.consensus.mixer_state import for_new_values

__all__ = ["DePCA"]


class DePCA(Decentralized):
    """Local power iterations averaged by multi-consensus (equation 3.1 of [1]_).

    Parameters
    ----------
    A : OperatorLike
        The ``A_j`` of the local agents, each ``(d, d)``; see :mod:`deepca.operators`.
    W0 : array_like of shape (d, k)
        Orthonormal start W⁰, the same at every agent.
    network : Network
        Network of the m agents. Arrays have shape ``(*B, d, k)`` with ``B = network.batch``.
    mix : Mixer, optional
        Mixer, such as ``FastMix(rounds=5)``; the default is that of :class:`~deepca.algorithms.deepca.DeEPCA`.
    orthonormalise : callable, optional
        Function ``S ↦ (W, R)`` with ``W R = S``; the default is that of :class:`~deepca.algorithms.deepca.DeEPCA`.

    Notes
    -----
    The recurrence::

        S_j^{t+1} = A_j W_j^t
        S^{t+1}   = MultiConsensus(S^{t+1}, K_t)
        W_j^{t+1} = QR(S_j^{t+1})

    The disagreement that K rounds leave is injected again in every iteration, so with fixed K the error stalls. K may
    grow with t: ``FastMix(rounds=lambda t: 3 + t // 10)``.

    The paper does not adjust signs here. Without sign adjustment, agents whose columns point in opposite directions
    would cancel each other in the average, so the baseline uses the same orthonormalisation as DeEPCA.

    References
    ----------
    .. [1] H. Ye and T. Zhang, "DeEPCA: Decentralized Exact PCA with Linear Convergence Rate", Journal of Machine
       Learning Research 22 (2021).
    """

    name = "DePCA"

    def step(self, state: TrackedState) -> TrackedState:
        """Take one iteration of equation 3.1.

        Parameters
        ----------
        state : TrackedState
            State with the ``W_j^t`` of the local agents.

        Returns
        -------
        TrackedState
            State with ``S_j^{t+1}`` and ``W_j^{t+1}``.
        """
        AW = self.A @ state.W
        before = for_new_values(state.memory)
        S, memory = self.mix.mix(self.network, AW, before, state.t, state.K)  # MultiConsensus(A_j W_j, K_t)
        W, _ = orthonormal_basis(self.orthonormalise, S, state.t)
        return TrackedState(state.t + 1, W, S, AW, state.K, memory)

    def restart(self, state: TrackedState, rounds: int) -> TrackedState:
        """Discard the copies of compressed messages, which are all that a step uses from earlier steps.

        Parameters
        ----------
        state : TrackedState
            State before the network changed.
        rounds : int
            Not used: nothing is averaged again.

        Returns
        -------
        TrackedState
            The same state without the mixer's memory.
        """
        return replace(state, memory=None)
