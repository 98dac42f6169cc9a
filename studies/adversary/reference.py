"""Compute reference answers in extended precision, independently of the library.

Eigenvectors are computed by Jacobi rotations in ``numpy.longdouble``, either of a symmetric matrix (two-sided) or of
rows (one-sided, which resolves singular values down to ``eps · σ_1``, where their squares would be lost). LAPACK's
double-precision solution serves only as a starting point: it is orthonormalised and then rotated to convergence.

Every answer comes with a bound on its own error. Where ``longdouble`` has the precision of ``double``, that bound is as
large as the bounds under test, and the affected claims count as undecided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LOSS_FACTOR", "LongArray", "Spectrum", "centred", "exact_mean", "of_matrix", "of_rows", "tangent"]

LongArray = npt.NDArray[np.longdouble]
Array = npt.NDArray[np.float64]

EPS = float(np.finfo(np.longdouble).eps)
LOSS_FACTOR = 1e4
"""An eigenvalue may be reported as lost in rounding only if it is below this multiple of a product's rounding error."""
_SAFETY = 64.0  # generous factor on the unit roundoff for the error of a Jacobi solution of these sizes
_MAX_SWEEPS = 40  # Jacobi converges in about ten


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues and eigenvectors of a symmetric matrix.

    Parameters
    ----------
    values : ndarray of shape (d,)
        Eigenvalues in descending order.
    vectors : ndarray of shape (d, d)
        Eigenvectors as columns.
    error_bound : float
        Bound on the absolute error of the matrix, or of its factor if ``roots``.
    roots : bool
        Whether singular values of a factor were computed, so that errors are relative to σ_1 instead of σ_1².
    rounding : float
        Generous bound on the double-precision rounding error of eigenvalues; an eigenvalue above it must not be
        reported as lost in rounding.
    """

    values: LongArray
    vectors: LongArray
    error_bound: float
    roots: bool = False
    rounding: float = math.inf

    @property
    def d(self) -> int:
        """Dimension of the matrix."""
        return self.values.size

    def top(self, k: int) -> LongArray:
        """Return the first k eigenvectors, of shape ``(d, k)``."""
        return self.vectors[:, :k]

    def gap(self, k: int) -> float:
        """Return ``λ_k − λ_{k+1}``, or infinity for k = d."""
        return float(self.values[k - 1] - self.values[k]) if k < self.d else float("inf")

    def relative_gap(self, k: int) -> float:
        """Return ``(λ_k − λ_{k+1}) / |λ_k|``: 0 if λ_k is 0, otherwise infinity for k = d."""
        return self.gap(k) / float(abs(self.values[k - 1])) if self.values[k - 1] != 0 else 0.0

    def below_rounding(self, k: int) -> bool:
        """Return whether values k and k+1 differ by less than double-precision rounding of the largest value."""
        gap = float(self._root_or_value(k - 1) - self._root_or_value(k)) if k < self.d else np.inf
        return gap <= 16.0 * float(np.finfo(np.float64).eps) * float(
            np.abs(self.values).max() ** (0.5 if self.roots else 1)
        )

    def angle_error_bound(self, k: int) -> float:
        """Bound the error of the top-k eigenvectors, as a tangent; infinite where they are undetermined."""
        if k >= self.d:
            return 0.0
        gap = float(self._root_or_value(k - 1) - self._root_or_value(k))
        sine = self.error_bound / gap if gap > 0.0 else np.inf
        return 2.0 * sine if sine < 0.5 else np.inf

    def value_error_bound(self, i: int) -> float:
        """Bound the error of eigenvalue i."""
        return (
            self.error_bound * (2.0 * float(self._root_or_value(i)) + self.error_bound)
            if self.roots
            else self.error_bound
        )

    def reordered(self, order: npt.NDArray[Any]) -> Spectrum:
        """Return the same spectrum in another order."""
        return replace(self, values=self.values[order], vectors=self.vectors[:, order])

    def _root_or_value(self, i: int) -> np.longdouble:
        value: np.longdouble = self.values[i]
        return np.longdouble(np.sqrt(max(value, np.longdouble(0.0)))) if self.roots else value


def of_matrix(A: npt.NDArray[Any], *, error_bound: float = 0.0) -> Spectrum:
    """Compute the spectrum of a symmetric ``(d, d)`` matrix.

    ``error_bound`` bounds the error of the matrix itself, in addition to rounding.
    """
    B = np.asarray(A, dtype=np.longdouble)
    size = np.abs(B).max(initial=0.0)
    if size == 0.0:
        return Spectrum(np.zeros(len(B), dtype=np.longdouble), np.eye(len(B), dtype=np.longdouble), error_bound)
    B = (B + B.T) / 2 / size
    V = _orthonormal(np.linalg.eigh(B.astype(np.float64))[1][:, ::-1])
    B = V.T @ B @ V
    for _ in range(_MAX_SWEEPS):
        moved = False
        for p, q in _pair_rounds(len(B)):
            b = B[p, q]
            turn = np.abs(b) > EPS
            if not turn.any():
                continue
            moved = True
            p, q = p[turn], q[turn]
            c, s = _rotation(B[p, p], B[q, q], B[p, q])
            for M in (B, V):
                M[:, p], M[:, q] = c * M[:, p] - s * M[:, q], s * M[:, p] + c * M[:, q]
            B[p], B[q] = c[:, None] * B[p] - s[:, None] * B[q], s[:, None] * B[p] + c[:, None] * B[q]
        if not moved:
            break
    values = np.diagonal(B) * size
    order = np.argsort(-values, kind="stable")
    rounding = _SAFETY * EPS * float(np.abs(values).max()) * np.sqrt(len(B))
    return Spectrum(values[order], V[:, order], error_bound + rounding)


def of_rows(Y: npt.NDArray[Any], *, error_bound: float = 0.0) -> Spectrum:
    """Compute the spectrum of ``YᵀY`` from the singular values of Y ``(n, d)``.

    ``error_bound`` bounds the error of Y itself, in addition to rounding.
    """
    Y = np.asarray(Y, dtype=np.longdouble)
    d, size = Y.shape[1], np.abs(Y).max(initial=0.0)
    if size == 0.0:
        return Spectrum(np.zeros(d, dtype=np.longdouble), np.eye(d, dtype=np.longdouble), error_bound, roots=True)
    Y = Y / size
    V = _orthonormal(np.linalg.svd(Y.astype(np.float64), full_matrices=True)[2].T)
    Y = Y @ V
    largest = np.sqrt(np.square(Y).sum(axis=0).max())
    for _ in range(_MAX_SWEEPS):
        moved = False
        for p, q in _pair_rounds(d):
            a, b = np.square(Y[:, p]).sum(axis=0), np.square(Y[:, q]).sum(axis=0)
            g = (Y[:, p] * Y[:, q]).sum(axis=0)
            turn = np.abs(g) > 2 * EPS * largest * np.sqrt(np.maximum(a, b))
            if not turn.any():
                continue
            moved = True
            p, q = p[turn], q[turn]
            c, s = _rotation(a[turn], b[turn], g[turn])
            for M in (Y, V):
                M[:, p], M[:, q] = c * M[:, p] - s * M[:, q], s * M[:, p] + c * M[:, q]
        if not moved:
            break
    values = np.square(Y).sum(axis=0) * size * size
    order = np.argsort(-values, kind="stable")
    rounding = _SAFETY * EPS * float(largest * size) * np.sqrt(d)
    return Spectrum(values[order], V[:, order], error_bound + rounding, roots=True)


def centred(X: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None) -> tuple[LongArray, LongArray]:
    """Return rows minus their (weighted) mean, and the mean.

    Both are computed from differences to the first row, which are exact far from zero.
    """
    X = np.asarray(X, dtype=np.longdouble)
    w = np.ones(len(X), dtype=np.longdouble) if weights is None else np.asarray(weights, dtype=np.longdouble)
    centred_rows = X - X[0]
    for _ in range(2):  # the second pass removes the rounding error of the first
        centred_rows = centred_rows - (w @ centred_rows) / w.sum()
    return centred_rows, X[0] + (w @ (X - X[0])) / w.sum()


def tangent(U: npt.NDArray[Any], V: npt.NDArray[Any], X: npt.NDArray[Any]) -> float:
    """Return the largest ``tan θ_k`` between the span of U and those of X ``(…, d, k)``.

    ``V`` consists of the remaining eigenvectors. The result is infinite if an X is not finite or nearly orthogonal to a
    direction of U. The tangent is the norm of ``Vᵀ X (Uᵀ X)⁻¹``: the first factor is free of
    cancellation, so double precision suffices for the solve.
    """
    worst = 0.0
    for one in np.asarray(X).reshape(-1, *np.asarray(X).shape[-2:]):
        one = one.astype(np.longdouble)
        inside, outside = (U.T @ one).astype(np.float64), (V.T @ one).astype(np.float64)
        if not outside.size:
            continue
        if not (np.isfinite(inside).all() and np.linalg.cond(inside) < 1e12):
            return np.inf
        worst = max(worst, float(np.linalg.norm(np.linalg.solve(inside.T, outside.T), 2)))
    return worst


def exact_mean(x: npt.NDArray[np.float64]) -> list[Fraction]:
    """Return the mean of each column as a fraction."""
    return [sum((Fraction(float(v)) for v in column), Fraction(0)) / len(x) for column in x.T]


def _orthonormal(V: npt.NDArray[Any]) -> LongArray:
    """Refine a double-precision orthonormal matrix to extended precision (Newton–Schulz)."""
    Q = np.asarray(V, dtype=np.longdouble)
    for _ in range(2):
        Q = Q @ (3 * np.eye(Q.shape[1], dtype=np.longdouble) - Q.T @ Q) / 2
    return Q


def _rotation(a: LongArray, b: LongArray, g: LongArray) -> tuple[LongArray, LongArray]:
    """Return cosines and sines of the Jacobi rotations (smaller angle) that diagonalise ``[[a, g], [g, b]]``."""
    zeta = (b - a) / (2 * g)
    sign = np.where(zeta >= 0, np.longdouble(1), np.longdouble(-1))
    t = sign / (np.abs(zeta) + np.hypot(np.longdouble(1), zeta))
    c = 1 / np.hypot(np.longdouble(1), t)
    return c, c * t


@lru_cache(maxsize=64)
def _pair_rounds(d: int) -> tuple[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], ...]:
    """Partition all index pairs below d into rounds of disjoint pairs (round-robin tournament)."""
    n = d + d % 2
    ring, rounds = list(range(1, n)), []
    for _ in range(n - 1):
        table = [0, *ring]
        pairs = [(table[i], table[n - 1 - i]) for i in range(n // 2)]
        kept = np.array([pair for pair in pairs if max(pair) < d], dtype=np.int64).reshape(-1, 2)
        rounds.append((kept.min(axis=1), kept.max(axis=1)))
        ring = ring[1:] + ring[:1]
    return tuple(rounds) if d > 1 else ()
