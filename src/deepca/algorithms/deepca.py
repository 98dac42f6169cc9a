"""DeEPCA, Algorithm 1 of the paper."""

from __future__ import annotations

from deepca.algorithms.base import Decentralized, TrackedState, orthonormal_basis

__all__ = ["DeEPCA"]


class DeEPCA(Decentralized):
    """Decentralized Exact PCA: power iterations with subspace tracking (Algorithm 1 of [1]_).

    Parameters
    ----------
    A : OperatorLike
        The ``A_j`` of the local agents, each ``(d, d)``; see :mod:`deepca.operators`.
    W0 : array_like of shape (d, k)
        Orthonormal start W⁰, the same at every agent.
    network : Network
        Network of the m agents. Arrays have shape ``(*B, d, k)`` with ``B = network.batch``.
    mix : Mixer, optional
        Mixer, such as ``FastMix(rounds=5)``. By default FastMix (Chebyshev if 𝐋 has negative eigenvalues, Gossip if
        the graph is directed or time-varying), with the number of rounds K chosen while running.
    orthonormalise : callable, optional
        Function ``S ↦ (W, R)`` with ``W R = S``, such as ``linalg.qr``, ``linalg.polar`` or the paper's
        ``QRSignAdjust(W0)``. By default QR in the first two iterations and the polar factor afterwards.

    Notes
    -----
    The recurrence of Algorithm 1::

        S_j⁰ = W⁰,  W_j⁰ = W⁰,  A_j W_j^{−1} := W⁰
        for t = 0 … T:
            S_j^{t+1} = S_j^t + A_j W_j^t − A_j W_j^{t−1}           subspace tracking
            S^{t+1}   = FastMix(S^{t+1}, K)                         K rounds with neighbours
            W_j^{t+1} = SignAdjust(QR(S_j^{t+1}), W⁰)               or another W with W R = S

    The mixer preserves the mean, so ``mean_j S_j^{t+1} = mean_j A_j W_j^t`` for every t: the tracked mean is exact,
    however few rounds K the agents mix. K depends on the network and the data, not on the target accuracy.

    This implementation starts from ``S_j⁰ = 0`` and ``A_j W_j^{−1} := 0``. The resulting S_j¹ is the same, without
    forming ``(W⁰ + A_j W⁰) − W⁰``, which would lose all digits if ‖A_j‖ is tiny.

    The paper's ``SignAdjust(QR(S), W⁰)`` is ``orthonormalise=QRSignAdjust(W0)``. The default differs because signs
    that flip can break convergence, and bases that rotate within close eigenvalues slow it down.

    The ``A_j`` may change from one iteration to the next. A state carries the product that S contains, so with
    ``A_j^t`` in iteration t (``with_operator``, :func:`deepca.decomposition.streaming.follow`)::

        S_j^{t+1} = S_j^t + A_j^t W_j^t − A_j^{t−1} W_j^{t−1},    mean_j S_j^{t+1} = mean_j A_j^t W_j^t

    and the mean contains nothing of earlier iterations.

    References
    ----------
    .. [1] H. Ye and T. Zhang, "DeEPCA: Decentralized Exact PCA with Linear Convergence Rate", Journal of Machine
       Learning Research 22 (2021).

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> rng = np.random.default_rng(0)
    >>> A = deepca.operators.from_rows([rng.standard_normal((50, 4)) * [9.0, 3.0, 1.0, 1.0] for _ in range(6)])
    >>> network = deepca.SimulatedNetwork(deepca.topology.ring(6))
    >>> algorithm = deepca.DeEPCA(A, np.eye(4)[:, :2], network, deepca.FastMix(rounds=8))
    >>> state = algorithm.init()
    >>> for _ in range(30):
    ...     state = algorithm.step(state)
    >>> U = np.linalg.eigh(A.mean())[1][:, -2:]
    >>> bool(deepca.operators.linalg.tan_theta(U, state.W[0]) < 1e-10)
    True
    """

    name = "DeEPCA"

    def step(self, state: TrackedState) -> TrackedState:
        """Take one iteration of Algorithm 1.

        Parameters
        ----------
        state : TrackedState
            ``W_j^t``, ``S_j^t`` and ``A_j W_j^{t−1}`` of the local agents.

        Returns
        -------
        TrackedState
            The same quantities for t + 1.
        """
        AW = self.A @ state.W
        S = state.S + AW - state.AW  # S_j^t + A_j W_j^t − A_j W_j^{t−1}
        S, memory = self.mix.mix(self.network, S, state.memory, state.t, state.K)  # FastMix(S, K)
        W, _ = orthonormal_basis(self.orthonormalise, S, state.t)  # W R = S
        return TrackedState(state.t + 1, W, S, AW, state.K, memory)

    def restart(self, state: TrackedState, rounds: int) -> TrackedState:
        """Restart tracking at the current W: ``S_j = Mix(A_j W_j)``, so ``mean S = mean A W`` by definition.

        Parameters
        ----------
        state : TrackedState
            State before the network changed; only t, W and K are used.
        rounds : int
            Rounds of this mix.

        Returns
        -------
        TrackedState
            State with the same t and W; copies of compressed messages start empty.
        """
        AW = self.A @ state.W
        S, memory = self.mix.with_rounds(rounds).mix(self.network, AW, None, state.t)
        return TrackedState(state.t, state.W, S, AW, state.K, memory)
