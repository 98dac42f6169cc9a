"""Compute what the root of a tree derives from sums, to orthonormalise and rotate columns with partitioned rows."""

from __future__ import annotations

import numpy as np

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.consensus.broadcasts import packed
from deepca.operators.linalg import symmetric_part

__all__ = ["correction", "ritz_vectors"]

_MAX_CONDITION_ONE_PASS = 1e4  # largest condition of the scaled Gram matrix that one pass orthonormalises to rounding
_MAX_CONDITION_REUSED = 16.0  # largest condition of that matrix with which products are recombined, not recomputed


def ritz_vectors(value: float, last: bool, sums: list[Array]) -> Array:
    """Solve the eigenvalue problem ``H C = G C Θ`` of one Rayleigh–Ritz pass, or only orthonormalise.

    Return as one vector: whether no further pass is needed, whether M X must be recomputed, the number of columns kept,
    C padded to w columns, and the diagonal of Θ, padded as well. If another pass is needed, C only makes the columns
    nearly orthonormal, and Θ is zero. If a column is zero or not finite, C and Θ are zero.
    """
    P, G, H = sums
    w = len(G)
    G, H = G - P.T @ P, symmetric_part(H - value * (P.T @ P))
    lengths = np.sqrt(np.maximum(np.diag(G), 0.0))
    C, theta = np.zeros((w, w)), np.zeros(w)
    if not (np.isfinite(H).all() and (lengths > 0.0).all()):
        return packed(1.0, 0.0, 0.0, C, theta)
    sigma, U = np.linalg.eigh(G / np.outer(lengths, lengths))
    kept = sigma > 64.0 * w * EPS * sigma[-1]
    basis = (U[:, kept] / np.sqrt(sigma[kept])) / lengths[:, None]
    done = last or bool(kept.all() and sigma[-1] <= _MAX_CONDITION_ONE_PASS * sigma[0])
    recompute, n = bool(sigma[-1] > _MAX_CONDITION_REUSED * sigma[kept][0]), basis.shape[1]
    if done:
        values, Y = np.linalg.eigh(symmetric_part(basis.T @ H @ basis))
        basis, theta[:n] = basis @ Y[:, ::-1], values[::-1]
    C[:, :n] = basis
    return packed(done, recompute, n, C, theta)


def correction(sums: list[Array]) -> Array:
    """Return ``G^{−1/2}`` to first order in ``G − I``, which corrects columns that are orthonormal up to rounding."""
    P, G, _ = sums
    return packed(np.eye(len(G)) - (G - P.T @ P - np.eye(len(G))) / 2.0)
