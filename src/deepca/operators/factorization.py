"""Orthonormal factorizations of tall blocks, batched over leading axes: QR and the polar decomposition."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.errors import NotFiniteError, StartError

__all__ = ["householder", "polar", "qr", "random_orthonormal"]

# One pass through the Gram matrix loses about eps·κ² of orthogonality, with κ the condition number of unit columns.
_MAX_CONDITION_ONE_PASS = 2.0  # largest estimate, relative to its minimum k, for which one pass suffices
_MAX_CONDITION_TWO_PASSES = 1e6  # largest estimate for which two passes suffice; above it, Householder is used
_SAFE_LENGTHS = (1e-140, 1e140)  # lengths of columns between which squares neither overflow nor lose digits
_COMPLETION_SEED = 20210208  # seed of the columns that complete a basis; fixed, so that every machine uses the same


def random_orthonormal(d: int, k: int, *, seed: int | np.random.Generator | None = None) -> Array:
    """Draw a uniformly random matrix with orthonormal columns, the usual W⁰.

    Parameters
    ----------
    d : int
        Number of rows.
    k : int
        Number of columns, from 1 to d.
    seed : int or Generator, optional
        Seed or generator of the random numbers.

    Returns
    -------
    ndarray of shape (d, k)
        Orthonormal columns.

    Raises
    ------
    StartError
        Unless ``1 ≤ k ≤ d``.
    """
    if not 1 <= k <= d:
        raise StartError(f"k = {k} components of d = {d} features: k must lie between 1 and d", parameter="k", value=k)
    W, _ = householder(np.random.default_rng(seed).standard_normal((d, k)))
    return W


def qr(S: Array) -> tuple[Array, Array]:
    """Factorize ``S = W R`` with orthonormal W and upper triangular R with a positive diagonal.

    Parameters
    ----------
    S : ndarray of shape (*B, d, k)
        Matrices with d ≥ k.

    Returns
    -------
    W : ndarray of shape (*B, d, k)
        Orthonormal columns.
    R : ndarray of shape (*B, k, k)
        Upper triangular matrices.

    Raises
    ------
    NotFiniteError
        If S contains NaN or Inf.

    Notes
    -----
    The factors are computed from the Gram matrix, in one or two passes, if its condition permits, and by Householder
    reflections otherwise. Each item of the batch is decided separately, so an agent gets the same result alone and in a
    batch.

    If S has rank below k, linearly dependent columns are replaced by those of a fixed random matrix, the same on every
    machine, orthogonal to the others; their diagonal entry of R is (nearly) zero.

    Examples
    --------
    >>> import numpy as np
    >>> W, R = qr(np.array([[3.0, 0.0], [4.0, 0.0], [0.0, 2.0]]))
    >>> R.round(9).tolist()
    [[5.0, 0.0], [0.0, 2.0]]
    """
    W, R, gram = _gram_qr(S)
    if not gram.any():
        return _stable_qr(S)
    if gram.all():
        return W, R
    W, R = W.copy(), R.copy()
    _check_finite(S)
    W[~gram], R[~gram] = _stable_qr(S[~gram])
    return W, R


def _gram_qr(S: Array) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """Compute ``W R = S`` from the Gram matrix; also return for which items of the batch this is accurate."""
    k = S.shape[-1]
    St = np.swapaxes(S, -1, -2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        G = St @ S
        lengths = np.sqrt(np.einsum("...ii->...i", G))
        G = G / (lengths[..., :, None] * lengths[..., None, :])
    safe = ((lengths > _SAFE_LENGTHS[0]) & (lengths < _SAFE_LENGTHS[1])).all(axis=-1)
    try:
        C = np.linalg.cholesky(G)  # G = C Cᵀ; Cᵀ diag(lengths) is R
    except np.linalg.LinAlgError:
        if S.ndim == 2:
            return S, S, np.asarray(False)
        G, definite = _only_definite(G)
        safe &= definite
        C = np.linalg.cholesky(G)
    inverse = np.linalg.inv(C)
    own = np.einsum("...ii->...i", C) * lengths
    condition = np.sqrt(k) * np.linalg.norm(inverse, axis=(-2, -1))  # at least κ₂; k for orthogonal columns
    full = (own > 4.0 * _rank_tolerance(S) * lengths.max(axis=-1, keepdims=True)).all(axis=-1)
    gram = np.asarray(safe & full & (condition <= _MAX_CONDITION_TWO_PASSES))  # False wherever anything is NaN
    if not gram.any():
        return S, S, gram
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        Wt = (inverse / lengths[..., None, :]) @ St
        R = np.swapaxes(C, -1, -2) * lengths[..., None, :]
        again = np.asarray(gram & (condition > _MAX_CONDITION_ONE_PASS * k))
        if again.any():
            Wt, R = _second_pass(Wt, R, again)
    return np.swapaxes(Wt, -1, -2), R, gram


def polar(S: Array) -> tuple[Array, Array]:
    """Factorize ``S = W H`` with W the orthonormal matrix nearest to S.

    Parameters
    ----------
    S : ndarray of shape (*B, d, k)
        Matrices with d ≥ k.

    Returns
    -------
    W : ndarray of shape (*B, d, k)
        Orthonormal columns.
    H : ndarray of shape (*B, k, k)
        Symmetric positive semidefinite matrices, ``(SᵀS)^{1/2}``.

    Raises
    ------
    NotFiniteError
        If S contains NaN or Inf.
    """
    W, R = qr(S)
    P, sigma, Qt = np.linalg.svd(R)
    X, H = W @ (P @ Qt), np.swapaxes(Qt, -1, -2) @ (sigma[..., None] * Qt)
    rank = np.count_nonzero(sigma > _rank_tolerance(S) * sigma[..., :1], axis=-1)
    for j in map(tuple, np.argwhere(rank < S.shape[-1])):
        X[j] = _polar_completed(W[j] @ P[j], Qt[j], int(rank[j]))
    return X, H


def _polar_completed(V: Array, Qt: Array, rank: int) -> Array:
    """Return V_r Q_rᵀ, completed by the polar factor of a fixed matrix from which V_r and Q_r are projected out."""
    (d, k), V, Q = V.shape, V[:, :rank], Qt[:rank]
    fill = _completion(d, k)
    for _ in range(2):
        fill = fill - V @ (V.T @ fill)
        fill = fill - (fill @ Q.T) @ Q
    left, _, right = np.linalg.svd(fill, full_matrices=False)
    return np.asarray(V @ Q + left[:, : k - rank] @ right[: k - rank], dtype=np.float64)


def _only_definite(G: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Replace items of G that are not positive definite by the identity; also return which items are definite."""
    eye = np.eye(G.shape[-1])
    finite = np.asarray(np.isfinite(G).all(axis=(-2, -1)))
    G = np.where(finite[..., None, None], G, eye)
    definite = finite & (np.linalg.eigvalsh(G)[..., 0] > 1e-13)  # implied by κ ≤ 1e6
    return np.where(definite[..., None, None], G, eye), definite


def _rank_tolerance(S: Array) -> float:
    """Return the relative length below which a direction counts as rounding error."""
    return EPS * float(max(S.shape[-2:]))


def _second_pass(Wt: Array, R: Array, again: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Orthonormalise the items marked in ``again`` once more; the others remain unchanged."""
    batch = again.ndim > 0
    if batch and not again.all():
        Wt, R = Wt.copy(), R.copy()
        Wt[again], R[again] = _second_pass(Wt[again], R[again], np.ones(int(again.sum()), dtype=bool))
        return Wt, R
    C = np.linalg.cholesky(Wt @ np.swapaxes(Wt, -1, -2))
    return np.linalg.inv(C) @ Wt, np.swapaxes(C, -1, -2) @ R


def householder(S: Array) -> tuple[Array, Array]:
    """Compute a QR factorization with LAPACK, with signs such that no diagonal entry of R is negative."""
    Q, R = np.linalg.qr(S)
    signs = np.where(np.einsum("...ii->...i", R) < 0.0, -1.0, 1.0)
    return Q * signs[..., None, :], R * signs[..., :, None]


def _stable_qr(S: Array) -> tuple[Array, Array]:
    """Compute the QR factorization with Householder reflections; complete the columns if the rank is below k."""
    _check_finite(S)
    _, exponent = np.frexp(np.abs(S).max(axis=(-2, -1), keepdims=True))
    S = np.ldexp(S, -exponent)  # exact, and all entries are at most 1
    W, R = householder(S)
    longest = np.linalg.norm(S, axis=-2).max(axis=-1, keepdims=True)
    own = np.abs(np.einsum("...ii->...i", R)) > _rank_tolerance(S) * longest
    if S.ndim == 2:
        W, R = (W, R) if own.all() else _completed_qr(S)
    elif not own.all():
        W, R = W.copy(), R.copy()
        for j in map(tuple, np.argwhere(~own.all(axis=-1))):
            W[j], R[j] = _completed_qr(S[j])
    return W, np.ldexp(R, exponent)


def _check_finite(S: Array) -> None:
    """Raise NotFiniteError, naming agents with NaN or Inf, unless S is finite."""
    bad = ~np.isfinite(S).all(axis=(-2, -1))
    if bad.any():
        agents = np.flatnonzero(bad).tolist() if bad.ndim else []
        where = f" at agent {', '.join(map(str, agents[:5]))}" if agents else ""
        raise NotFiniteError(
            f"S is no longer finite{where}: the products A_j W overflow or the mixing diverges; "
            "divide the data by a large power of ten, or use a mixer that contracts on this network",
            agent=agents[0] if agents else None,
        )


def _completed_qr(S: Array) -> tuple[Array, Array]:
    """Compute ``W R = S`` for one d × k matrix with linearly dependent columns."""
    d, k = S.shape
    W, basis, own = np.empty((d, k)), np.empty((d, 0)), np.zeros(k, dtype=bool)
    smallest = _rank_tolerance(S) * float(np.linalg.norm(S, axis=0).max())
    # the diagonal of R does not reveal the rank: rounding errors determine it from the first dependent column on
    for i in range(k):
        rest = S[:, i]
        for _ in range(2):
            rest = rest - basis @ (basis.T @ rest)
        own[i] = np.linalg.norm(rest) > smallest
        if own[i]:
            basis = np.column_stack([basis, rest / np.linalg.norm(rest)])
    basis = householder(S[:, own])[0] if own.any() else basis
    fill = _completion(d, k)[:, : k - basis.shape[1]]
    for _ in range(2):
        fill = householder(fill - basis @ (basis.T @ fill))[0]
    W[:, own], W[:, ~own] = basis, fill
    return W, W.T @ S


@lru_cache(maxsize=16)
def _completion(d: int, k: int) -> Array:
    """Return the fixed orthonormal columns that complete a basis."""
    fill = random_orthonormal(d, k, seed=_COMPLETION_SEED)
    fill.flags.writeable = False
    return fill
