"""Compute extreme eigenvalues of gossip matrices and Laplacians: dense for small networks, Lanczos for large ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh

from deepca._util.machine import one_blas_thread
from deepca._util.portable import eigenvalues as portable_eigenvalues
from deepca._util.typing import Csr, csr

MAX_PORTABLE_AGENTS = 128  # largest number of agents for which eigenvalues have the same bits on every processor
_START_SEED = 7  # seed of the Lanczos start vector; fixed, so that every agent gets the same result


def extreme_eigenvalues(gossip: Csr, dense_up_to: int) -> tuple[float, float]:
    """Return λ₂ and λ_min of a symmetric matrix with ``𝐋1 = 1`` on a connected graph."""
    m = int(gossip.shape[0])
    if m == 1:
        return 0.0, 1.0
    # I − 𝐋 is a Laplacian
    mu2, mu_max = laplacian_extremes(csr(sparse.eye_array(m, format="csr") - gossip), dense_up_to)
    return 1.0 - mu2, 1.0 - mu_max


def laplacian_extremes(M: Csr, dense_up_to: int) -> tuple[float, float]:
    """Return λ₂ and λ_max of a (weighted) Laplacian of a connected graph.

    Up to `MAX_PORTABLE_AGENTS`, portable arithmetic gives bit-identical results on every processor; up to `dense_up_to`
    agents, a dense solver is used. Larger graphs that mix well suit Lanczos, which finds λ₂ on ``λ_max I − M`` with the
    constant vector deflated. On long thin graphs (rings, paths, grids) Lanczos does not converge, but shift-and-invert
    is cheap.
    """
    m = int(M.shape[0])
    if m <= MAX_PORTABLE_AGENTS:
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
            mu_max = float(_shift_invert(M, m, bound * (1.0 + 1e-3 / m), 1)[-1])
        try:
            mu2 = mu_max - _lanczos(_deflated(M, shift=mu_max), m)
        except ArpackNoConvergence:
            mu2 = float(_shift_invert(M, m, -1e-3 * bound / m, 2)[1])
    return mu2, mu_max


def second_largest_modulus(weights: Csr, dense_up_to: int) -> float:
    """Return the second largest modulus among the eigenvalues of a column-stochastic matrix (at least two rows)."""
    m = int(weights.shape[0])
    values = np.linalg.eigvals(weights.toarray()) if m <= dense_up_to else _largest_eigenvalues(weights, m)
    second = float(np.sort(np.abs(values))[-2])
    return 0.0 if second < 1e-14 else second


def _largest_eigenvalues(weights: Csr, m: int) -> npt.NDArray[np.complex128]:
    """Return two or three eigenvalues, among them the two of largest modulus."""
    try:
        return np.asarray(eigs(weights, k=2, which="LM", v0=np.ones(m), maxiter=500, return_eigenvectors=False))
    except ArpackNoConvergence:
        # on long thin graphs, many eigenvalues have nearly the same modulus; the largest are near 1
        found = eigs(weights.tocsc(), k=3, sigma=1.0 + 1e-3 / m, v0=np.ones(m), return_eigenvectors=False)
        return np.asarray(found)


def _shift_invert(M: Csr, m: int, shift: float, count: int) -> np.ndarray:
    """Return the ``count`` eigenvalues nearest to a shift outside the spectrum, in ascending order."""
    return np.sort(eigsh(M.tocsc(), k=count, sigma=shift, which="LM", v0=_start_vector(m), return_eigenvectors=False))


def _deflated(M: Csr, shift: float) -> LinearOperator[np.float64]:
    """Return ``shift·I − M`` restricted to vectors with mean zero."""

    def matvec(x: np.ndarray) -> np.ndarray:
        x = x.ravel() - x.mean()
        y = shift * x - M @ x
        return np.asarray(y - y.mean())

    return LinearOperator(M.shape, matvec=matvec, dtype=np.float64)


def _lanczos(operator: Any, m: int) -> float:
    """Return the largest eigenvalue; raise ArpackNoConvergence after 60 restarts."""
    values = eigsh(
        operator, k=1, which="LA", v0=_start_vector(m), ncv=min(m - 1, 60), maxiter=60, return_eigenvectors=False
    )
    return float(values[0])


def _start_vector(m: int) -> np.ndarray:
    return np.random.default_rng(_START_SEED).standard_normal(m)
