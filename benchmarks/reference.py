"""Algorithm 1 of the paper as a plain loop over agents and neighbours, to compare the simulator with.

It is deliberately simple and must not be optimised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepca._util.typing import Array
from deepca.consensus.mixers import fastmix_eta
from deepca.topology import Topology

__all__ = ["run"]


def run(A: Sequence[Array], W0: Array, topology: Topology, K: int, iterations: int) -> list[Array]:
    """Return the ``W_j`` of every agent after a number of iterations of DeEPCA with FastMix."""
    m, eta = topology.n_agents, fastmix_eta(topology.lambda2)
    L = topology.gossip_matrix
    neighbors = [topology.neighbors(j) for j in range(m)]
    W = [W0.copy() for _ in range(m)]
    S = [W0.copy() for _ in range(m)]
    AW_previous = [W0.copy() for _ in range(m)]
    for _ in range(iterations):
        for j in range(m):
            AW = A[j] @ W[j]
            S[j] = S[j] + AW - AW_previous[j]
            AW_previous[j] = AW
        S = _fastmix(S, L, neighbors, eta, K)
        for j in range(m):
            Q, _ = np.linalg.qr(S[j])
            W[j] = _sign_adjust(Q, W0)
    return W


def _fastmix(x: list[Array], L: Array, neighbors: Sequence[Sequence[int]], eta: float, K: int) -> list[Array]:
    x_previous = x
    for _ in range(K):
        x_next = []
        for j in range(len(x)):
            mixed = L[j, j] * x[j]
            for i in neighbors[j]:
                mixed = mixed + L[j, i] * x[i]
            x_next.append((1.0 + eta) * mixed - eta * x_previous[j])
        x, x_previous = x_next, x
    return x


def _sign_adjust(W: Array, W0: Array) -> Array:
    W = W.copy()
    for i in range(W.shape[1]):
        if W[:, i] @ W0[:, i] < 0.0:
            W[:, i] = -W[:, i]
    return W
