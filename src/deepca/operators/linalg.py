"""Orthonormal bases, signs and angles, batched over leading axes.

Every function takes arrays of shape ``(*B, d, k)``: ``B = (m,)`` for all agents of a simulator, ``()`` for one agent.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from deepca._util.floats import EPS, SMALLEST
from deepca._util.typing import Array
from deepca.errors import InvalidInput, NotFiniteError, StartError

__all__ = [
    "check_start",
    "first_columns",
    "frobenius",
    "largest_positive",
    "numerical_rank",
    "orthonormal_part",
    "polar",
    "qr",
    "random_orthonormal",
    "rank_of",
    "sign_adjust",
    "signs_towards",
    "symmetric_part",
    "tan_theta",
    "top_eigenvectors",
    "without",
]

# Orthogonality lost by one Gram pass is about eps·κ², κ the condition number after columns are scaled to length one.
_ONE_PASS = 2.0  # κ (as a multiple of its minimum, k) up to which one pass is as good as Householder
_TWO_PASSES = 1e6  # κ up to which two passes are; beyond, Householder
_SQUARES = (1e-140, 1e140)  # lengths whose squares neither overflow nor lose digits
_COMPLETION_SEED = 20210208


def random_orthonormal(d: int, k: int, *, seed: int | np.random.Generator | None = None) -> Array:
    """A uniformly random ``d × k`` matrix with orthonormal columns; the usual W⁰."""
    if not 1 <= k <= d:
        raise StartError(f"k = {k} components of d = {d} features: k must lie between 1 and d")
    W, _ = _householder(np.random.default_rng(seed).standard_normal((d, k)))
    return W


def first_columns(d: int, k: int, known: Array | None, seed: int | None) -> Array:
    """W⁰ ``(d, k)`` from what is known, given as rows ``(k', d)``: as many as fit, random columns after them."""
    if known is None or not len(known):
        return random_orthonormal(d, k, seed=seed)
    rows = np.asarray(known)
    if rows.dtype.kind not in "fiub" or rows.ndim != 2 or rows.shape[1] != d or not np.isfinite(rows).all():
        raise StartError(f"a start of shape {rows.shape} and dtype {rows.dtype}: finite rows of d = {d} are needed")
    columns = rows[:k].astype(np.float64).T
    more = np.random.default_rng(seed).standard_normal((d, k - columns.shape[1]))
    return _householder(np.hstack([columns, more]))[0]


def check_start(W0: npt.ArrayLike, d: int) -> Array:
    """``W0`` as an array, or a StartError that says why it cannot be a start."""
    given = np.asarray(W0)
    if given.dtype.kind not in "fiub":
        raise StartError(f"W0 has dtype {given.dtype}; real numbers are needed")
    W = given.astype(np.float64)
    if W.ndim != 2:
        raise StartError(f"W0 has shape {W.shape}; it must be one d × k matrix, the same for every agent")
    rows, k = W.shape
    if k < 1:
        raise StartError("W0 has no columns: k must be at least 1")
    if k > rows:
        raise StartError(f"W0 has k = {k} columns and only d = {rows} rows: k must not exceed d")
    if rows != d:
        raise StartError(f"W0 has {rows} rows, the operators have d = {d}")
    if not np.isfinite(W).all():
        raise StartError("W0 contains NaN or Inf")
    departure = float(np.abs(W.T @ W - np.eye(k)).max())
    if departure > 1e-8:
        raise StartError(
            f"W0 is not orthonormal (W0ᵀW0 departs from I by {departure:.1e}); "
            "use deepca.operators.linalg.random_orthonormal(d, k, seed=…) or the Q of numpy.linalg.qr(W0)"
        )
    return W


def top_eigenvectors(A: npt.ArrayLike, k: int) -> tuple[Array, Array]:
    """Top-k eigenvalues (descending) and eigenvectors of a symmetric matrix: the answer that pooling would give."""
    matrix = np.asarray(A, dtype=np.float64)
    d = matrix.shape[-1]
    if not 1 <= k <= d:
        raise InvalidInput(f"k = {k} eigenvectors of a matrix with d = {d}: k must lie between 1 and d")
    _, exponent = np.frexp(np.abs(matrix).max(initial=0.0))  # LAPACK loses digits of a part of tiny matrices
    values, vectors = scipy.linalg.eigh(np.ldexp(matrix, -exponent), subset_by_index=(d - k, d - 1))
    return np.ldexp(values[::-1], exponent), vectors[:, ::-1].copy()


def tan_theta(U: npt.ArrayLike, X: npt.ArrayLike) -> Array:
    """``tan θ_k(U, X) = ‖(I − UUᵀ) X (UᵀX)⁻¹‖₂``, the largest principal angle between two subspaces.

    ``U`` is ``(d, k)`` with orthonormal columns, ``X`` is ``(*B, d, k)`` with independent columns; the result has
    shape ``B``. It is ``inf`` where some direction of X is orthogonal to U.
    """
    u, x = np.asarray(U, dtype=np.float64), np.asarray(X, dtype=np.float64)
    if u.ndim < 2 or x.ndim < 2 or u.shape[-2:] != x.shape[-2:]:
        raise InvalidInput(f"U has shape {u.shape} and X has shape {x.shape}; both need the same d and k")
    usable = np.asarray(np.isfinite(x).all(axis=(-1, -2)))
    x = np.where(usable[..., None, None], x, 0.0)
    inside = np.swapaxes(u, -1, -2) @ x
    outside = x - u @ inside
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = outside @ _inverse(inside)
    finite = np.asarray(np.isfinite(ratio).all(axis=(-1, -2)) & usable)
    ratio = np.where(finite[..., None, None], ratio, 0.0)
    scale = np.maximum(np.abs(ratio).max(axis=(-2, -1), keepdims=True), SMALLEST)
    ratio = ratio / scale
    largest = np.linalg.eigvalsh(np.swapaxes(ratio, -1, -2) @ ratio)[..., -1]  # a norm is safe through the Gram matrix
    norm = np.sqrt(np.maximum(largest, 0.0)) * scale[..., 0, 0]
    return np.asarray(np.where(finite, norm, np.inf))


def _inverse(C: Array) -> Array:
    """``C⁻¹``, batched, up to a rotation on its right; with inf where C is singular."""
    try:
        inverse = np.linalg.inv(C)
        if (np.abs(inverse).max(axis=(-2, -1)) * np.abs(C).max(axis=(-2, -1)) < 1e8).all():
            return np.asarray(inverse, dtype=np.float64)
    except np.linalg.LinAlgError:
        pass
    _, sigma, Qt = np.linalg.svd(C)  # C = P σ Qᵀ, and P does not change a norm
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.swapaxes(Qt, -1, -2) / sigma[..., None, :]
    return np.where(np.isnan(inverse), np.inf, inverse)


def frobenius(X: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Root of the sum of squares, also of entries whose squares do not fit; exact under scaling by a power of two."""
    _, exponent = np.frexp(np.abs(X).max(axis=axis, keepdims=True, initial=0.0))
    unit = np.ldexp(1.0, exponent - 1)
    return np.asarray(np.squeeze(np.sqrt(np.square(X / unit).sum(axis=axis, keepdims=True)) * unit, axis=axis))


def symmetric_part(M: Array) -> Array:
    """``(M + Mᵀ)/2``, batched."""
    return (M + np.swapaxes(M, -1, -2)) / 2.0


def without(Y: Array, X: Array) -> Array:
    """``(I − XXᵀ) Y`` for orthonormal X, twice for orthogonality to rounding."""
    for _ in range(2):
        Y = Y - X @ (X.T @ Y)
    return Y


def orthonormal_part(Y: Array, below: float) -> Array:
    """An orthonormal basis of the columns of Y, without directions shorter than ``below``."""
    U, sigma, _ = np.linalg.svd(Y, full_matrices=False)
    return np.asarray(U[:, sigma > below])


def largest_positive(X: Array) -> Array:
    """The columns of X with signs such that the largest entry of each is positive, as in scikit-learn; batched."""
    largest = np.take_along_axis(X, np.abs(X).argmax(axis=-2)[..., None, :], axis=-2)
    return X * np.where(largest < 0.0, -1.0, 1.0)


def signs_towards(W: Array, W0: Array) -> Array:
    """``−1`` for every column of W whose inner product with that column of W0 is negative, else ``+1``: ``(*B, k)``."""
    return np.where(np.vecdot(np.swapaxes(W, -1, -2), np.swapaxes(W0, -1, -2)) < 0.0, -1.0, 1.0)


def sign_adjust(W: Array, W0: Array) -> Array:
    """SignAdjust (Algorithm 2): flip column i of W if ``⟨W(:,i), W0(:,i)⟩ < 0``."""
    return W * signs_towards(W, W0)[..., None, :]


def numerical_rank(W: Array, S: Array) -> npt.NDArray[np.int64]:
    """Rank of S, orthonormalised to W, above rounding: shape ``B``.

    The number of singular values of ``WᵀS`` larger than ``eps · max(d, k)`` times the largest.
    """
    return rank_of(np.linalg.svd(np.swapaxes(W, -1, -2) @ S, compute_uv=False), S.shape[-2])


def rank_of(sigma: npt.NDArray[Any], d: int) -> npt.NDArray[np.int64]:
    """How many of the singular values ``(*B, k)`` of a d × k matrix are above rounding: shape ``B``."""
    return np.asarray(np.count_nonzero(sigma > EPS * max(d, sigma.shape[-1]) * sigma[..., :1], axis=-1))


def qr(S: Array) -> tuple[Array, Array]:
    """``W R = S`` with orthonormal W and upper triangular R whose diagonal is positive.

    Through the Gram matrix (one or two passes) where its condition allows, by Householder reflections elsewhere;
    which one is decided for each item of the batch alone, so one agent gets what it gets in a batch.

    Where S has lower rank than k, the columns without a direction of their own are filled from a fixed random
    matrix, the same on every machine, made orthogonal to the others; their diagonal entry of R is (nearly) zero.
    """
    k = S.shape[-1]
    St = np.swapaxes(S, -1, -2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        G = St @ S
        lengths = np.sqrt(np.einsum("...ii->...i", G))
        G = G / (lengths[..., :, None] * lengths[..., None, :])
    safe = ((lengths > _SQUARES[0]) & (lengths < _SQUARES[1])).all(axis=-1)
    try:
        C = np.linalg.cholesky(G)  # G = C Cᵀ; Cᵀ diag(lengths) is R
    except np.linalg.LinAlgError:
        if S.ndim == 2:
            return _careful(S)
        G, definite = _only_definite(G)
        safe &= definite
        C = np.linalg.cholesky(G)
    inverse = np.linalg.inv(C)
    own = np.einsum("...ii->...i", C) * lengths
    condition = np.sqrt(k) * np.linalg.norm(inverse, axis=(-2, -1))  # ≥ κ₂, = k for orthogonal columns
    full = (own > 4.0 * _rank_tolerance(S) * lengths.max(axis=-1, keepdims=True)).all(axis=-1)
    gram = safe & full & (condition <= _TWO_PASSES)  # False wherever anything is NaN
    if not gram.any():
        return _careful(S)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        Wt = (inverse / lengths[..., None, :]) @ St
        R = np.swapaxes(C, -1, -2) * lengths[..., None, :]
        if (gram & (condition > _ONE_PASS * k)).any():
            again = gram & (condition > _ONE_PASS * k)
            Wt, R = _second_pass(Wt, R, again)
    W = np.swapaxes(Wt, -1, -2)
    if gram.all():
        return W, R
    W, R = W.copy(), R.copy()
    _check_finite(S)
    W[~gram], R[~gram] = _careful(S[~gram])
    return W, R


def polar(S: Array) -> tuple[Array, Array]:
    """``W H = S``: W the orthonormal matrix nearest to S, H symmetric positive semi-definite (``(SᵀS)^{1/2}``)."""
    W, R = qr(S)
    P, sigma, Qt = np.linalg.svd(R)
    X, H = W @ (P @ Qt), np.swapaxes(Qt, -1, -2) @ (sigma[..., None] * Qt)
    rank = np.count_nonzero(sigma > _rank_tolerance(S) * sigma[..., :1], axis=-1)
    for j in map(tuple, np.argwhere(rank < S.shape[-1])):
        X[j] = _polar_completed(W[j] @ P[j], Qt[j], int(rank[j]))
    return X, H


def _polar_completed(V: Array, Qt: Array, rank: int) -> Array:
    """V_r Q_rᵀ, and what is missing from the polar factor of a fixed matrix without those directions."""
    (d, k), V, Q = V.shape, V[:, :rank], Qt[:rank]
    fill = _completion(d, k)
    for _ in range(2):
        fill = fill - V @ (V.T @ fill)
        fill = fill - (fill @ Q.T) @ Q
    left, _, right = np.linalg.svd(fill, full_matrices=False)
    return np.asarray(V @ Q + left[:, : k - rank] @ right[: k - rank], dtype=np.float64)


def _only_definite(G: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """G with the identity in place of items that are not positive definite, and which are."""
    eye = np.eye(G.shape[-1])
    finite = np.asarray(np.isfinite(G).all(axis=(-2, -1)))
    G = np.where(finite[..., None, None], G, eye)
    definite = finite & (np.linalg.eigvalsh(G)[..., 0] > 1e-13)  # κ ≤ 1e6 means more than that
    return np.where(definite[..., None, None], G, eye), definite


def _rank_tolerance(S: Array) -> float:
    return EPS * float(max(S.shape[-2:]))


def _second_pass(Wt: Array, R: Array, again: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Orthonormalise once more the items marked in ``again``; the rest stay as they are."""
    batch = again.ndim > 0
    if batch and not again.all():
        Wt, R = Wt.copy(), R.copy()
        Wt[again], R[again] = _second_pass(Wt[again], R[again], np.ones(int(again.sum()), dtype=bool))
        return Wt, R
    C = np.linalg.cholesky(Wt @ np.swapaxes(Wt, -1, -2))
    return np.linalg.inv(C) @ Wt, np.swapaxes(C, -1, -2) @ R


def _householder(S: Array) -> tuple[Array, Array]:
    """LAPACK's QR with the signs of R's diagonal made positive."""
    Q, R = np.linalg.qr(S)
    signs = np.where(np.einsum("...ii->...i", R) < 0.0, -1.0, 1.0)
    return Q * signs[..., None, :], R * signs[..., :, None]


def _careful(S: Array) -> tuple[Array, Array]:
    """Householder QR, with columns completed where the rank is lower than k."""
    _check_finite(S)
    _, exponent = np.frexp(np.abs(S).max(axis=(-2, -1), keepdims=True))
    S = np.ldexp(S, -exponent)  # entries of at most 1, without rounding
    W, R = _householder(S)
    longest = np.linalg.norm(S, axis=-2).max(axis=-1, keepdims=True)
    own = np.abs(np.einsum("...ii->...i", R)) > _rank_tolerance(S) * longest
    if S.ndim == 2:
        W, R = (W, R) if own.all() else _completed(S)
    elif not own.all():
        W, R = W.copy(), R.copy()
        for j in map(tuple, np.argwhere(~own.all(axis=-1))):
            W[j], R[j] = _completed(S[j])
    return W, np.ldexp(R, exponent)


def _check_finite(S: Array) -> None:
    bad = ~np.isfinite(S).all(axis=(-2, -1))
    if bad.any():
        where = f" at agent {', '.join(map(str, np.flatnonzero(bad)[:5]))}" if bad.ndim else ""
        raise NotFiniteError(
            f"S is no longer finite{where}: the products A_j W overflow or the mixing expands; "
            "scale the data, or use a mixer that contracts on this network"
        )


def _completed(S: Array) -> tuple[Array, Array]:
    """``W R = S`` for one d × k matrix some of whose columns have no direction of their own."""
    d, k = S.shape
    W, basis, own = np.empty((d, k)), np.empty((d, 0)), np.zeros(k, dtype=bool)
    smallest = _rank_tolerance(S) * float(np.linalg.norm(S, axis=0).max())
    for i in range(k):  # R's diagonal alone does not tell: after a column without direction it depends on rounding
        rest = S[:, i]
        for _ in range(2):
            rest = rest - basis @ (basis.T @ rest)
        own[i] = np.linalg.norm(rest) > smallest
        if own[i]:
            basis = np.column_stack([basis, rest / np.linalg.norm(rest)])
    basis = _householder(S[:, own])[0] if own.any() else basis
    fill = _completion(d, k)[:, : k - basis.shape[1]]
    for _ in range(2):
        fill = _householder(fill - basis @ (basis.T @ fill))[0]
    W[:, own], W[:, ~own] = basis, fill
    return W, W.T @ S


@lru_cache(maxsize=16)
def _completion(d: int, k: int) -> Array:
    fill = random_orthonormal(d, k, seed=_COMPLETION_SEED)
    fill.flags.writeable = False
    return fill
