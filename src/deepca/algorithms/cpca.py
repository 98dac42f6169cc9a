"""CPCA, the centralized power method on the pooled matrix: the paper's reference."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Orthonormalise
from deepca.algorithms.base import State, local_starts, matching_operator, orthonormal_basis
from deepca.consensus.pacing import Pace
from deepca.network.agent import AgentNetwork
from deepca.operators.base import OperatorLike
from deepca.operators.linalg import check_start
from deepca.topology import generators

__all__ = ["CPCA"]


class CPCA:
    """Power iterations on the pooled matrix A.

    Parameters
    ----------
    A : OperatorLike
        The matrix A, ``(d, d)``; see :mod:`deepca.operators`.
    W0 : array_like of shape (d, k)
        Orthonormal start W⁰.
    orthonormalise : callable, optional
        Function ``S ↦ (W, R)`` with ``W R = S``; the default is that of :class:`~deepca.algorithms.deepca.DeEPCA`.

    Notes
    -----
    The recurrence::

        W^{t+1} = QR(A W^t)

    Arrays have shape ``(d, k)``; the network is a single agent, and nothing is sent.

    Examples
    --------
    >>> import numpy as np
    >>> import deepca
    >>> algorithm = deepca.CPCA(np.diag([9.0, 3.0, 1.0]), np.full((3, 1), 1 / np.sqrt(3)))
    >>> state = algorithm.step(algorithm.init())
    >>> np.abs(state.S[:, 0] / state.S[2, 0]).round(6).tolist()
    [9.0, 3.0, 1.0]
    """

    name = "CPCA"

    def __init__(self, A: OperatorLike, W0: npt.ArrayLike, orthonormalise: Orthonormalise | None = None) -> None:
        self.network = AgentNetwork(generators.complete(1), 0)
        self.A = matching_operator(A, self.network)
        self.W0 = check_start(W0, self.A.d)
        self.orthonormalise = orthonormalise
        self.mix = None

    def init(self, W: npt.ArrayLike | None = None) -> State:
        """Return the state before the first step.

        Parameters
        ----------
        W : array_like of shape (d, k), optional
            Orthonormal start to use instead of W⁰.

        Returns
        -------
        State
            The state at t = 0.
        """
        W = local_starts(self.W0, W, self.network)
        return State(0, W, S=np.zeros_like(W))

    def step(self, state: State) -> State:
        """Take one power iteration.

        Parameters
        ----------
        state : State
            State with W^t.

        Returns
        -------
        State
            State with ``S^{t+1} = A W^t`` and W^{t+1}.
        """
        S = self.A @ state.W
        W, _ = orthonormal_basis(self.orthonormalise, S, state.t)
        return State(state.t + 1, W, S)

    def restart(self, state: State, rounds: int) -> State:
        """Return the state unchanged: a single agent has no network that could change.

        Parameters
        ----------
        state : State
            The state.
        rounds : int
            Not used.

        Returns
        -------
        State
            The same state.
        """
        return state

    def rounds_for(self, accuracy: float) -> int:
        """Return 1: a single agent has nothing to average.

        Parameters
        ----------
        accuracy : float
            Not used.

        Returns
        -------
        int
            One round.
        """
        return 1

    def pace(self, K: int) -> Pace | None:
        """Return None: no rounds are chosen.

        Parameters
        ----------
        K : int
            Not used.

        Returns
        -------
        None
            No policy.
        """
        return None
