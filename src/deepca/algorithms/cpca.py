"""The centralised reference: CPCA, the power method on the pooled matrix."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Orthonormalise
from deepca.algorithms.base import State, basis, matching_operator, spread
from deepca.consensus.pacing import Pace
from deepca.network.agent import AgentNetwork
from deepca.operators.base import OperatorLike
from deepca.operators.linalg import check_start
from deepca.topology import generators

__all__ = ["CPCA"]


class CPCA:
    """Power iterations on ``A`` itself::

        W^{t+1} = QR(A W^t)

    Arrays are ``(d, k)``; the network is a single agent and nothing is sent.
    """

    name = "CPCA"

    def __init__(self, A: OperatorLike, W0: npt.ArrayLike, orthonormalise: Orthonormalise | None = None) -> None:
        self.network = AgentNetwork(generators.complete(1), 0)
        self.A = matching_operator(A, self.network)
        self.W0 = check_start(W0, self.A.d)
        self.orthonormalise = orthonormalise
        self.mix = None

    def init(self, W: npt.ArrayLike | None = None) -> State:
        W = spread(self.W0, W, self.network)
        return State(0, W, S=np.zeros_like(W))

    def step(self, state: State) -> State:
        S = self.A @ state.W
        W, _ = basis(self.orthonormalise, S, state.t)
        return State(state.t + 1, W, S)

    def restart(self, state: State, rounds: int) -> State:
        return state

    def rounds_for(self, accuracy: float) -> int:
        return 1

    def pace(self, K: int) -> Pace | None:
        return None
