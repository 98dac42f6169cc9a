"""Find the principal axes within a subspace that all agents share, accurate to rounding.

A tracked subspace is only as accurate as the tolerance requires. Within it, individual components and variances can be
determined to rounding: average ``XᵀA_jX``, and rotate X by the eigenvectors of the mean. Over a spanning tree, messages
up contain k² numbers, and messages down k more for the eigenvalues and d·k for the rotated X.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dgeqrf, dormqr

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.consensus.averaging import common_average_and_derive
from deepca.consensus.broadcasts import (
    SEMIORTHOGONALITY_TOLERANCE,
    check_basis,
    check_small,
    for_local_agents,
    packed,
    unpacked,
)
from deepca.network.base import Network
from deepca.network.sums import Addend
from deepca.operators.base import Operator
from deepca.operators.linalg import flip_signs, frobenius, symmetric_part
from deepca.solver.certificate.bounds import Certificate

__all__ = ["complete_null_columns", "completed", "principal_axes"]


def principal_axes(A: Operator, X: Array, network: Network) -> tuple[Array, Array, float]:
    """Rotate X to its principal axes: return ``X Q`` and θ with ``Q θ Qᵀ = Xᵀ A X``, and a bound on the error.

    Every agent computes its ``A_j X``, and only averages of ``XᵀA_jX`` are sent. All agents take the leader's
    eigenvectors, since two machines may round them differently, and so have the same bits.

    Parameters
    ----------
    A : Operator
        The A_j of the local agents.
    X : ndarray of shape (d, k)
        Orthonormal columns, the same at every agent.
    network : Network
        Network over which to average.

    Returns
    -------
    axes : ndarray of shape (d, k)
        Principal axes within the span of X.
    theta : ndarray of shape (k,)
        Their eigenvalues, descending.
    error : float
        Bound on the error of ``XᵀAX`` due to averaging, beyond the rounding of products; 0 for averages over a tree.
    """
    (d, k), B = X.shape, network.batch
    network.begin(network.epoch, 0, "axes")
    H = X.T @ (A @ for_local_agents(X, network))

    def rotated(mean: Array) -> Array:
        theta, Q = np.linalg.eigh(symmetric_part(mean.reshape(k, k)))
        return packed(theta[::-1], flip_signs(X @ Q[:, ::-1]))

    average, derived = common_average_and_derive(
        network, [Addend("projections", H.reshape(*B, k * k))], rotated, k + d * k
    )
    mean, error = average.mean, 0.0
    if average.rounds:
        error = average.error_bound(float(network.reduce(np.asarray(frobenius(H, axis=(-2, -1)))[..., None], "max")[0]))
    theta, axes = unpacked(derived, (k,), (d, k))
    if not network.is_leader_local:
        inside = X.T @ axes
        residual = symmetric_part(mean.reshape(k, k)) @ inside - inside * theta
        check_basis(network, "principal axes", axes, contains=X, beyond=SEMIORTHOGONALITY_TOLERANCE)
        check_small(
            network, "principal axes", float(frobenius(residual)), SEMIORTHOGONALITY_TOLERANCE * float(frobenius(mean))
        )
    return axes, theta, error


def complete_null_columns(X: Array, proof: Certificate, network: Network) -> Array:
    """Return X with its columns of zero variance replaced by ones that depend only on the other columns.

    A column counts as one of zero variance if θ_i does not exceed rounding and the certificate states no bound for it.
    Any completion of the basis would do; this one is the same from every start and for every partition of the rows. All
    agents take the new columns from the leader. X and its certificate have the same bits at every agent already.
    """
    d, k = X.shape
    theta = np.array(proof.eigenvalues)
    r = max(int(np.count_nonzero(theta > 4.0 * d * EPS * theta[0])), proof.n_bounded)
    if proof.parts or not 0 < r < k:
        return X
    rest = completed(X[:, :r], k)[:, r:] if network.is_leader_local else np.zeros((d, k - r))
    network.begin(network.epoch, 1, "axes")
    rest = network.from_leader(rest)
    check_basis(network, "columns beyond the rank", rest, X[:, :r])
    return np.hstack([X[:, :r], rest])


def completed(X: Array, k: int) -> Array:
    """Extend orthonormal X ``(d, r)`` to k orthonormal columns, which depend only on X."""
    d, r = X.shape
    if r == k:
        return X
    rest = np.zeros((d, k - r))
    rest[r:k] = np.eye(k - r)
    reflectors, tau, *_ = dgeqrf(X)
    rest, *_ = dormqr("L", "N", reflectors, tau, rest, lwork=64 * (k - r))
    return np.hstack([X, flip_signs(rest)])
