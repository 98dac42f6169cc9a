"""Extreme eigenvalues of gossip matrices and Laplacians: dense for small networks, sparse Lanczos for large ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from deepca._util.machine import one_blas_thread
from deepca._util.portable import eigenvalues as portable_eigenvalues
from deepca._util.typing import Csr, csr

PORTABLE = 128  # agents up to which eigenvalues have the same bits on every processor
_START_SEED = 7  # Lanczos starts from a fixed vector, so that every agent finds the same number


def extreme_eigenvalues(gossip: Csr, dense_up_to: int) -> tuple[float, float]:
    """λ₂ and λ_min of a symmetric matrix with ``𝐋1 = 1`` on a connected graph."""
    m = int(gossip.shape[0])
    if m == 1:
        return 0.0, 1.0
    # I − 𝐋 is a Laplacian
    mu2, mu_max = laplacian_extremes(csr(sparse.eye_array(m, format="csr") - gossip), dense_up_to)
    return 1.0 - mu2, 1.0 - mu_max


def laplacian_extremes(M: Csr, dense_up_to: int) -> tuple[float, float]:
    """λ₂ and λ_max of a (weighted) Laplacian of a connected graph.

    Dense for small ones, up to PORTABLE by arithmetic that gives all agents the same bits. Else by Lanczos (λ₂ on
    ``λ_max I − M`` without the constant vector): quick on graphs that mix well. On long thin graphs (rings, paths,
    grids), where that does not converge, by shift-and-invert, which is cheap just there.
    """
    m = int(M.shape[0])
    if m <= PORTABLE:
        mu2, mu_max = portable_eigenvalues(M.toarray(), 1, -1).tolist()
        return mu2, mu_max
    if m <= dense_up_to:
        with one_blas_thread():
            values = np.linalg.eigvalsh(M.toarray())
        return float(values[1]), float(values[-1])
    bound = float(abs(M).sum(axis=1).max())  # no eigenvalue is larger (Gershgorin)
    with one_blas_thread():
        try:
            mu_max = _lanczos(M, m)
        except ArpackNoConvergence:
            mu_max = float(_inverted(M, m, bound * (1.0 + 1e-3 / m), 1)[-1])
        try:
            mu2 = mu_max - _lanczos(_deflated(M, shift=mu_max), m)
        except ArpackNoConvergence:
            mu2 = float(_inverted(M, m, -1e-3 * bound / m, 2)[1])
    return mu2, mu_max


def _inverted(M: Csr, m: int, shift: float, count: int) -> np.ndarray:
    """The ``count`` eigenvalues nearest to a shift outside the spectrum, ascending."""
    return np.sort(eigsh(M.tocsc(), k=count, sigma=shift, which="LM", v0=_start(m), return_eigenvectors=False))


def _deflated(M: Csr, shift: float) -> LinearOperator[np.float64]:
    """``shift·I − M`` on the vectors with mean zero."""

    def matvec(x: np.ndarray) -> np.ndarray:
        x = x.ravel() - x.mean()
        y = shift * x - M @ x
        return np.asarray(y - y.mean())

    return LinearOperator(M.shape, matvec=matvec, dtype=np.float64)


def _lanczos(operator: Any, m: int) -> float:
    """The largest eigenvalue, or ArpackNoConvergence after a while."""
    values = eigsh(operator, k=1, which="LA", v0=_start(m), ncv=min(m - 1, 60), maxiter=60, return_eigenvectors=False)
    return float(values[0])


def _start(m: int) -> np.ndarray:
    return np.random.default_rng(_START_SEED).standard_normal(m)
