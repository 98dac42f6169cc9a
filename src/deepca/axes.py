"""The principal axes within a subspace that all agents share, to rounding.

What is tracked, and what a certificate averages, is as exact as the tolerance asks for. Single components and variances
can be had to rounding at the price of k² numbers per message: average ``XᵀA_jX``, and turn X by its eigenvectors.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dgeqrf, dormqr

from deepca._typing import Array
from deepca.averaging import common_average
from deepca.linalg import largest_positive, symmetric_part
from deepca.networks.base import Network
from deepca.operators import Operator
from deepca.probing import everywhere

__all__ = ["filled_up", "principal_axes"]

_EPS = float(np.finfo(np.float64).eps)


def principal_axes(A: Operator, X: Array, network: Network) -> tuple[Array, Array]:
    """``(X Q, θ)`` with ``Q θ Qᵀ = Xᵀ A X``, θ descending; the same bits at every agent.

    X : orthonormal ``(d, k)``, the same everywhere. Every agent multiplies its own ``A_j X`` and shows only averages of
    ``XᵀA_jX``. The eigenvectors are agent 0's, since two machines may round them differently.
    """
    k = X.shape[1]
    network.begin(network.epoch, 0, "axes")
    H = X.T @ (A @ everywhere(X, network))
    mean = symmetric_part(common_average(network, H.reshape(*network.batch, k * k)).reshape(k, k))
    theta, Q = np.linalg.eigh(mean)
    found = np.concatenate([theta[::-1][None, :], largest_positive(X @ Q[:, ::-1])])
    first = (network.local == 0)[..., None, None]
    found = network.reduce(np.where(first, found, -np.inf), "max")
    return found[1:], found[0]


def filled_up(X: Array, theta: Array) -> Array:
    """X, but where the data do not vary (θ_i = 0 but for rounding) with columns that depend on the others only.

    Any would do there; these are the same from every start and for every distribution of the rows.
    """
    d, k = X.shape
    r = int((theta > 4.0 * d * _EPS * theta[0]).sum())
    if not 0 < r < k:
        return X
    rest = np.zeros((d, k - r))
    rest[r:k] = np.eye(k - r)
    reflectors, tau, *_ = dgeqrf(X[:, :r])
    rest, *_ = dormqr("L", "N", reflectors, tau, rest, lwork=64 * (k - r))
    return np.hstack([X[:, :r], largest_positive(rest)])
