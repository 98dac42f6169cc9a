"""Linear algebra of tall blocks: orthonormal bases, signs, ranks and angles, batched over leading axes.

Functions take arrays of shape ``(*B, d, k)``: ``B = (m,)`` for all agents of a simulator, ``()`` for a single agent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from deepca._util.floats import EPS, SMALLEST
from deepca._util.typing import Array
from deepca.errors import InvalidInput, ParameterError, StartError
from deepca.operators.factorization import householder, polar, qr, random_orthonormal

__all__ = [
    "check_start",
    "flip_signs",
    "frobenius",
    "numerical_rank",
    "orthonormal_part",
    "polar",
    "project_out",
    "qr",
    "random_orthonormal",
    "rank_of",
    "sign_adjust",
    "signs_towards",
    "starting_block",
    "symmetric_part",
    "tan_theta",
    "top_eigenvectors",
]


def starting_block(d: int, k: int, known: Array | None, seed: int | None) -> Array:
    """Build a starting point W⁰ from approximate components, completed by random columns.

    Parameters
    ----------
    d : int
        Number of features.
    k : int
        Number of components.
    known : ndarray of shape (k', d), optional
        Approximate components as rows; the first k are used.
    seed : int, optional
        Seed of the random columns.

    Returns
    -------
    ndarray of shape (d, k)
        Orthonormal columns.

    Raises
    ------
    StartError
        If ``known`` is not a finite real matrix with d columns.
    """
    if known is None or not len(known):
        return random_orthonormal(d, k, seed=seed)
    rows = np.asarray(known)
    if rows.dtype.kind not in "fiub" or rows.ndim != 2 or rows.shape[1] != d or not np.isfinite(rows).all():
        raise StartError(
            f"the start has shape {rows.shape} and dtype {rows.dtype}; expected finite rows with d = {d} columns",
            parameter="known",
            value=rows.shape,
        )
    columns = rows[:k].astype(np.float64).T
    more = np.random.default_rng(seed).standard_normal((d, k - columns.shape[1]))
    return householder(np.hstack([columns, more]))[0]


def check_start(W0: npt.ArrayLike, d: int) -> Array:
    """Check that W⁰ can be used as a starting point, and return it as an array.

    Parameters
    ----------
    W0 : array_like of shape (d, k)
        The starting point.
    d : int
        Number of features of the operators.

    Returns
    -------
    ndarray of shape (d, k)
        W⁰ in double precision.

    Raises
    ------
    StartError
        Unless W⁰ is a finite real matrix with d rows, 1 to d columns, and orthonormal to 1e-8.
    """
    given = np.asarray(W0)
    if given.dtype.kind not in "fiub":
        raise StartError(f"W0 has dtype {given.dtype}; expected real numbers", parameter="W0", value=given.dtype)
    W = given.astype(np.float64)
    if W.ndim != 2:
        why = f"W0 has shape {W.shape}; it must be one d × k matrix, the same for every agent"
        raise StartError(why, parameter="W0", value=W.shape)
    rows, k = W.shape
    if k < 1:
        raise StartError("W0 has no columns: k must be at least 1", parameter="W0", value=W.shape)
    if k > rows:
        why = f"W0 has k = {k} columns and only d = {rows} rows: k must not exceed d"
        raise StartError(why, parameter="W0", value=W.shape)
    if rows != d:
        raise StartError(f"W0 has {rows} rows, but the operators have d = {d}", parameter="W0", value=W.shape)
    if not np.isfinite(W).all():
        row, column = map(int, np.argwhere(~np.isfinite(W))[0])
        raise StartError(
            f"W0 contains NaN or Inf in row {row}, column {column}; choose a finite start",
            parameter="W0",
            row=row,
            column=column,
        )
    departure = float(np.abs(W.T @ W - np.eye(k)).max())
    if departure > 1e-8:
        raise StartError(
            f"W0 is not orthonormal (W0ᵀW0 differs from I by {departure:.1e}); "
            "use deepca.operators.linalg.random_orthonormal(d, k, seed=…) or the Q of numpy.linalg.qr(W0)",
            parameter="W0",
            value=departure,
        )
    return W


def top_eigenvectors(A: npt.ArrayLike, k: int) -> tuple[Array, Array]:
    """Compute the top-k eigenpairs of a symmetric matrix: the answer that pooling all data would give.

    Parameters
    ----------
    A : array_like of shape (d, d)
        Symmetric matrix.
    k : int
        Number of eigenpairs, from 1 to d.

    Returns
    -------
    values : ndarray of shape (k,)
        Largest eigenvalues, in descending order.
    vectors : ndarray of shape (d, k)
        Orthonormal eigenvectors.

    Raises
    ------
    ParameterError
        Unless ``1 ≤ k ≤ d``.

    Examples
    --------
    >>> import numpy as np
    >>> values, vectors = top_eigenvectors(np.diag([1.0, 3.0, 2.0]), 2)
    >>> values.round(9).tolist()
    [3.0, 2.0]
    """
    matrix = np.asarray(A, dtype=np.float64)
    d = matrix.shape[-1]
    if not 1 <= k <= d:
        raise ParameterError("k", k, f"expected 1 to d = {d} eigenvectors")
    _, exponent = np.frexp(np.abs(matrix).max(initial=0.0))  # LAPACK loses digits of some eigenvalues of tiny matrices
    values, vectors = scipy.linalg.eigh(np.ldexp(matrix, -exponent), subset_by_index=(d - k, d - 1))
    return np.ldexp(values[::-1], exponent), vectors[:, ::-1].copy()


def tan_theta(U: npt.ArrayLike, X: npt.ArrayLike) -> Array:
    """Compute ``tan θ_k(U, X)``, the tangent of the largest principal angle between two subspaces.

    Parameters
    ----------
    U : array_like of shape (d, k)
        Orthonormal columns.
    X : array_like of shape (*B, d, k)
        Linearly independent columns.

    Returns
    -------
    ndarray of shape B
        ``‖(I − UUᵀ) X (UᵀX)⁻¹‖₂``; infinite if some direction of X is orthogonal to U, or X is not finite.

    Raises
    ------
    InvalidInput
        If U and X differ in d or k.

    Notes
    -----
    With V an orthonormal basis of the complement of U, this is the paper's ``‖VᵀX (UᵀX)⁻¹‖₂``.

    Examples
    --------
    >>> import numpy as np
    >>> float(tan_theta(np.array([[1.0], [0.0]]), np.array([[2.0], [1.0]])).round(9))
    0.5
    """
    u, x = np.asarray(U, dtype=np.float64), np.asarray(X, dtype=np.float64)
    if u.ndim < 2 or x.ndim < 2 or u.shape[-2:] != x.shape[-2:]:
        raise InvalidInput(
            f"U has shape {u.shape} and X has shape {x.shape}; both need the same d and k", parameter="X", value=x.shape
        )
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
    # the Gram matrix is accurate enough for a norm
    largest = np.linalg.eigvalsh(np.swapaxes(ratio, -1, -2) @ ratio)[..., -1]
    norm = np.sqrt(np.maximum(largest, 0.0)) * scale[..., 0, 0]
    return np.asarray(np.where(finite, norm, np.inf))


def _inverse(C: Array) -> Array:
    """Return ``C⁻¹``, batched, up to an orthogonal factor on the right, which norms ignore; inf if C is singular."""
    try:
        inverse = np.linalg.inv(C)
        if (np.abs(inverse).max(axis=(-2, -1)) * np.abs(C).max(axis=(-2, -1)) < 1e8).all():
            return np.asarray(inverse, dtype=np.float64)
    except np.linalg.LinAlgError:
        pass
    _, sigma, Qt = np.linalg.svd(C)  # C = P σ Qᵀ; P does not change a norm
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.swapaxes(Qt, -1, -2) / sigma[..., None, :]
    return np.where(np.isnan(inverse), np.inf, inverse)


def frobenius(X: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Compute the Frobenius norm without overflow or underflow.

    Parameters
    ----------
    X : ndarray
        Array of any shape.
    axis : int or tuple of int, optional
        Axes to sum over; all by default.

    Returns
    -------
    ndarray
        The norms. Scaling X by a power of two scales them exactly.
    """
    _, exponent = np.frexp(np.abs(X).max(axis=axis, keepdims=True, initial=0.0))
    unit = np.ldexp(1.0, exponent - 1)
    return np.asarray(np.squeeze(np.sqrt(np.square(X / unit).sum(axis=axis, keepdims=True)) * unit, axis=axis))


def symmetric_part(M: Array) -> Array:
    """Return the symmetric part of matrices.

    Parameters
    ----------
    M : ndarray of shape (*B, n, n)
        Square matrices.

    Returns
    -------
    ndarray of shape (*B, n, n)
        ``(M + Mᵀ)/2``.
    """
    return (M + np.swapaxes(M, -1, -2)) / 2.0


def project_out(Y: Array, X: Array) -> Array:
    """Project out the columns of an orthonormal matrix.

    Parameters
    ----------
    Y : ndarray of shape (d, n)
        Columns to project.
    X : ndarray of shape (d, r)
        Orthonormal columns.

    Returns
    -------
    ndarray of shape (d, n)
        ``(I − XXᵀ) Y``, computed twice for orthogonality to rounding.
    """
    for _ in range(2):
        Y = Y - X @ (X.T @ Y)
    return Y


def orthonormal_part(Y: Array, below: float) -> Array:
    """Return an orthonormal basis of the dominant directions of Y.

    Parameters
    ----------
    Y : ndarray of shape (d, n)
        Columns.
    below : float
        Largest singular value whose direction is dropped.

    Returns
    -------
    ndarray of shape (d, r)
        Left singular vectors with singular values above ``below``.
    """
    U, sigma, _ = np.linalg.svd(Y, full_matrices=False)
    return np.asarray(U[:, sigma > below])


def flip_signs(X: Array) -> Array:
    """Flip columns such that the entry of largest absolute value of each is positive, as scikit-learn does.

    Parameters
    ----------
    X : ndarray of shape (*B, d, k)
        Columns.

    Returns
    -------
    ndarray of shape (*B, d, k)
        The columns, flipped where necessary.
    """
    largest = np.take_along_axis(X, np.abs(X).argmax(axis=-2)[..., None, :], axis=-2)
    return X * np.where(largest < 0.0, -1.0, 1.0)


def signs_towards(W: Array, W0: Array) -> Array:
    """Return the signs by which SignAdjust multiplies the columns of W.

    Parameters
    ----------
    W : ndarray of shape (*B, d, k)
        Columns.
    W0 : ndarray of shape (d, k)
        Reference columns.

    Returns
    -------
    ndarray of shape (*B, k)
        −1 for columns with ``⟨W(:,i), W0(:,i)⟩ < 0``, else +1.
    """
    return np.where(np.vecdot(np.swapaxes(W, -1, -2), np.swapaxes(W0, -1, -2)) < 0.0, -1.0, 1.0)


def sign_adjust(W: Array, W0: Array) -> Array:
    """Adjust the signs of columns (SignAdjust, Algorithm 2 of the paper).

    Parameters
    ----------
    W : ndarray of shape (*B, d, k)
        Columns.
    W0 : ndarray of shape (d, k)
        Reference columns.

    Returns
    -------
    ndarray of shape (*B, d, k)
        W with column i flipped if ``⟨W(:,i), W0(:,i)⟩ < 0``.
    """
    return W * signs_towards(W, W0)[..., None, :]


def numerical_rank(W: Array, S: Array) -> npt.NDArray[np.int64]:
    """Return the numerical rank of S.

    Parameters
    ----------
    W : ndarray of shape (*B, d, k)
        Orthonormal basis of S.
    S : ndarray of shape (*B, d, k)
        Matrices.

    Returns
    -------
    ndarray of int of shape B
        Number of singular values of ``WᵀS`` larger than ``eps · max(d, k)`` times the largest.
    """
    return rank_of(np.linalg.svd(np.swapaxes(W, -1, -2) @ S, compute_uv=False), S.shape[-2])


def rank_of(sigma: npt.NDArray[Any], d: int) -> npt.NDArray[np.int64]:
    """Return the numerical rank of a matrix, given its singular values.

    Parameters
    ----------
    sigma : ndarray of shape (*B, k)
        Singular values of a d × k matrix, in descending order.
    d : int
        Number of rows of the matrix.

    Returns
    -------
    ndarray of int of shape B
        Number of values larger than ``eps · max(d, k)`` times the largest.
    """
    return np.asarray(np.count_nonzero(sigma > EPS * max(d, sigma.shape[-1]) * sigma[..., :1], axis=-1))
