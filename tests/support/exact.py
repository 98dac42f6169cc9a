"""Reference principal components in exact and long-double arithmetic, without BLAS and LAPACK."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

__all__ = ["centred_rows", "exact_covariance", "long_eigh", "true_angle"]

Array = npt.NDArray[np.float64]
LongArray = npt.NDArray[np.longdouble]


def exact_covariance(
    X: npt.ArrayLike, w: npt.ArrayLike | None = None, *, center: bool = True, scale: bool = False
) -> LongArray:
    """Return ``Σ w (x − mean)(x − mean)ᵀ / (Σ w − 1)``, with each entry of the sum rounded once.

    Without ``center`` the mean is not subtracted; with ``scale`` columns are divided by their standard deviations.
    """
    rows = [[Fraction(float(value)) for value in row] for row in np.asarray(X)]
    weights = [Fraction(1)] * len(rows) if w is None else [Fraction(float(value)) for value in np.asarray(w)]
    total, columns = sum(weights, Fraction(0)), list(zip(*rows, strict=True))
    means = [sum(map(Fraction.__mul__, weights, column), Fraction(0)) / total for column in columns]
    centred = [[value - mean for value in column] for column, mean in zip(columns, means, strict=True)]
    used = centred if center else columns
    d = len(columns)
    S = np.empty((d, d), dtype=np.longdouble)
    for a in range(d):
        weighted = list(map(Fraction.__mul__, weights, used[a]))
        for b in range(a, d):
            S[a, b] = S[b, a] = _long(sum(map(Fraction.__mul__, weighted, used[b]), Fraction(0)))
    if scale:
        squares = [sum((c * y * y for c, y in zip(weights, column, strict=True)), Fraction(0)) for column in centred]
        units = np.sqrt(np.array([_long(s / total) for s in squares]))
        S /= units[:, None] * units
    return np.asarray(S / _long(total - 1))


def centred_rows(X: npt.ArrayLike) -> LongArray:
    """Return rows minus their exact mean, with each entry rounded once; squares of the rows would lose small values."""
    columns = [[Fraction(float(value)) for value in column] for column in np.asarray(X).T]
    means = [sum(column, Fraction(0)) / len(column) for column in columns]
    return np.array([[_long(value - mean) for value in column] for column, mean in zip(columns, means, strict=True)]).T


def _long(x: Fraction) -> np.longdouble:
    """Return a fraction as a long double: a double plus the remainder."""
    high = float(x)
    return np.longdouble(high) + np.longdouble(float(x - Fraction(high)))


def long_eigh(A: LongArray) -> tuple[LongArray, LongArray]:
    """Return eigenvalues, descending, and eigenvectors by Jacobi rotations in long doubles."""
    A, V = np.array(A, dtype=np.longdouble), np.eye(len(A), dtype=np.longdouble)
    d = len(A)
    for _ in range(60):
        for p in range(d - 1):
            for q in range(p + 1, d):
                if abs(A[p, q]) <= 1e-30 * min(abs(A[p, p]), abs(A[q, q])):
                    continue
                tau = (A[q, q] - A[p, p]) / (2 * A[p, q])
                t = (1 if tau >= 0 else -1) / (abs(tau) + np.sqrt(1 + tau * tau))
                c = 1 / np.sqrt(1 + t * t)
                s = t * c
                for M in (A, A.T, V.T):  # rows, columns, and columns of V
                    M[p], M[q] = c * M[p] - s * M[q], s * M[p] + c * M[q]
        sizes = np.sqrt(np.abs(np.diagonal(A)))
        if (np.abs(A - np.diag(np.diagonal(A))) <= 1e-22 * np.outer(sizes, sizes)).all():
            break
    order = np.argsort(-np.diagonal(A))
    return np.diagonal(A)[order], V[:, order]


def true_angle(A: LongArray, components: Array) -> float:
    """Return ``tan θ_k`` between the rows of ``components`` and the top k eigenvectors of A."""
    _, V = long_eigh(A)
    k = len(components)
    X = components.T.astype(np.longdouble)
    for _ in range(2):  # orthonormalise in long doubles; only the span matters
        for i in range(k):
            for j in range(i):
                X[:, i] -= X[:, j] * (X[:, j] @ X[:, i])
            X[:, i] /= np.sqrt((X[:, i] ** 2).sum())
    inside, outside = V[:, :k].T @ X, V[:, k:].T @ X
    # scaled, so that tangents far below the rounding of doubles are kept
    size = np.abs(outside).max() if outside.size else np.longdouble(0)
    if size == 0.0:
        return 0.0
    scaled = (outside / size).astype(np.float64)
    return float(size) * float(np.linalg.norm(np.linalg.solve(inside.astype(np.float64).T, scaled.T).T, 2))
