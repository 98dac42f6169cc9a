"""Independent answers in extended precision.

Eigenvectors by Jacobi rotations in ``numpy.longdouble``, of a symmetric matrix (two-sided) or of rows (one-sided, which
keeps small singular values to ``eps · σ_1`` where their squares would be lost). LAPACK's answer in double precision
only shortens the way: it is orthonormalised and rotated on until nothing is left.

Every answer says how far it may be off itself. Where ``longdouble`` is no longer than ``double``, that is as much as
the bounds under test, and such cases count as undecided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LOST", "Long", "Spectrum", "centred", "exact_mean", "of_matrix", "of_rows", "tangent"]

Long = npt.NDArray[np.longdouble]
Array = npt.NDArray[np.float64]

EPS = float(np.finfo(np.longdouble).eps)
LOST = 1e4
"""Roundings of the largest numbers in a product below which a hundredth of an eigenvalue may be called lost."""
_SAFETY = 64.0  # times the unit roundoff: how far a Jacobi solution of these sizes may be off, generously
_SWEEPS = 40


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues ``(d,)``, descending, and eigenvectors ``(d, d)`` of a symmetric matrix.

    doubt : absolute error of the matrix behind it; of its factor where ``roots``.
    roots : whether the singular values of a factor were computed, so that errors are relative to σ_1, not to σ_1².
    rounding : what double precision may take from the eigenvalues, generously; nothing above may be called lost in it.
    """

    values: Long
    vectors: Long
    doubt: float
    roots: bool = False
    rounding: float = math.inf

    @property
    def d(self) -> int:
        return self.values.size

    def top(self, k: int) -> Long:
        return self.vectors[:, :k]

    def gap(self, k: int) -> float:
        """``λ_k − λ_{k+1}``; infinite where nothing lies beyond."""
        return float(self.values[k - 1] - self.values[k]) if k < self.d else float("inf")

    def relative_gap(self, k: int) -> float:
        """``1 − λ_{k+1}/λ_k``."""
        return self.gap(k) / float(abs(self.values[k - 1])) if self.values[k - 1] != 0 else 0.0

    def below_rounding(self, k: int) -> bool:
        """Whether the k-th value and the next one differ by less than double precision can hold beside the largest."""
        apart = float(self._measured(k - 1) - self._measured(k)) if k < self.d else np.inf
        return apart <= 16.0 * float(np.finfo(np.float64).eps) * float(
            np.abs(self.values).max() ** (0.5 if self.roots else 1)
        )

    def angle_doubt(self, k: int) -> float:
        """How far the top-k eigenvectors given here may be off, as a tangent; infinite where they are not known."""
        if k >= self.d:
            return 0.0
        apart = float(self._measured(k - 1) - self._measured(k))
        sine = self.doubt / apart if apart > 0.0 else np.inf
        return 2.0 * sine if sine < 0.5 else np.inf

    def value_doubt(self, i: int) -> float:
        """How far eigenvalue i may be off."""
        return self.doubt * (2.0 * float(self._measured(i)) + self.doubt) if self.roots else self.doubt

    def reordered(self, order: npt.NDArray[Any]) -> Spectrum:
        return replace(self, values=self.values[order], vectors=self.vectors[:, order])

    def _measured(self, i: int) -> np.longdouble:
        value: np.longdouble = self.values[i]
        return np.longdouble(np.sqrt(max(value, np.longdouble(0.0)))) if self.roots else value


def of_matrix(A: npt.NDArray[Any], *, doubt: float = 0.0) -> Spectrum:
    """Of a symmetric ``(d, d)`` matrix; ``doubt`` : what is not known of its entries, besides rounding."""
    B = np.asarray(A, dtype=np.longdouble)
    size = np.abs(B).max(initial=0.0)
    if size == 0.0:
        return Spectrum(np.zeros(len(B), dtype=np.longdouble), np.eye(len(B), dtype=np.longdouble), doubt)
    B = (B + B.T) / 2 / size
    V = _orthonormal(np.linalg.eigh(B.astype(np.float64))[1][:, ::-1])
    B = V.T @ B @ V
    for _ in range(_SWEEPS):
        moved = False
        for p, q in _rounds(len(B)):
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
    return Spectrum(values[order], V[:, order], doubt + rounding)


def of_rows(Y: npt.NDArray[Any], *, doubt: float = 0.0) -> Spectrum:
    """Of ``YᵀY``, through the singular values of Y ``(n, d)``; ``doubt`` : what is not known of Y, besides rounding."""
    Y = np.asarray(Y, dtype=np.longdouble)
    d, size = Y.shape[1], np.abs(Y).max(initial=0.0)
    if size == 0.0:
        return Spectrum(np.zeros(d, dtype=np.longdouble), np.eye(d, dtype=np.longdouble), doubt, roots=True)
    Y = Y / size
    V = _orthonormal(np.linalg.svd(Y.astype(np.float64), full_matrices=True)[2].T)
    Y = Y @ V
    largest = np.sqrt(np.square(Y).sum(axis=0).max())
    for _ in range(_SWEEPS):
        moved = False
        for p, q in _rounds(d):
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
    return Spectrum(values[order], V[:, order], doubt + rounding, roots=True)


def centred(X: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None) -> tuple[Long, Long]:
    """Rows minus their (weighted) mean, and that mean; by differences from one row, which are exact far from zero."""
    X = np.asarray(X, dtype=np.longdouble)
    w = np.ones(len(X), dtype=np.longdouble) if weights is None else np.asarray(weights, dtype=np.longdouble)
    apart = X - X[0]
    for _ in range(2):  # the second time takes off what rounding left of the mean
        apart = apart - (w @ apart) / w.sum()
    return apart, X[0] + (w @ (X - X[0])) / w.sum()


def tangent(U: npt.NDArray[Any], V: npt.NDArray[Any], X: npt.NDArray[Any]) -> float:
    """Largest ``tan θ_k`` between the span of U and those of X ``(…, d, k)``; V : the other eigenvectors.

    ``Vᵀ X (Uᵀ X)⁻¹``: small entries of the first factor come without cancellation, so that double precision is enough
    for the rest.
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
    """Of each column, as a fraction."""
    return [sum((Fraction(float(v)) for v in column), Fraction(0)) / len(x) for column in x.T]


def _orthonormal(V: npt.NDArray[Any]) -> Long:
    """Orthonormal to extended precision, from what is so in double precision (Newton and Schulz)."""
    Q = np.asarray(V, dtype=np.longdouble)
    for _ in range(2):
        Q = Q @ (3 * np.eye(Q.shape[1], dtype=np.longdouble) - Q.T @ Q) / 2
    return Q


def _rotation(a: Long, b: Long, g: Long) -> tuple[Long, Long]:
    """Cosines and sines that turn ``[[a, g], [g, b]]`` to its axes, by the smaller angle."""
    zeta = (b - a) / (2 * g)
    sign = np.where(zeta >= 0, np.longdouble(1), np.longdouble(-1))
    t = sign / (np.abs(zeta) + np.hypot(np.longdouble(1), zeta))
    c = 1 / np.hypot(np.longdouble(1), t)
    return c, c * t


@lru_cache(maxsize=64)
def _rounds(d: int) -> tuple[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], ...]:
    """All pairs below d, in rounds of disjoint ones (everybody plays everybody)."""
    n = d + d % 2
    ring, rounds = list(range(1, n)), []
    for _ in range(n - 1):
        table = [0, *ring]
        pairs = [(table[i], table[n - 1 - i]) for i in range(n // 2)]
        kept = np.array([pair for pair in pairs if max(pair) < d], dtype=np.int64).reshape(-1, 2)
        rounds.append((kept.min(axis=1), kept.max(axis=1)))
        ring = ring[1:] + ring[:1]
    return tuple(rounds) if d > 1 else ()
