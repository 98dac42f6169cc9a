"""Matrices with steep spectra, and their singular values in extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array

LongArray = npt.NDArray[np.longdouble]

_EPS = np.finfo(np.longdouble).eps


def graded_rows(n: int, sigma: Any, seed: int, *, d: int | None = None) -> Array:
    """Return rows ``(n, d)`` with about these singular values (times √n), in directions not aligned with the axes."""
    rng, sigma = np.random.default_rng(seed), np.asarray(sigma, dtype=np.float64)
    d = sigma.size if d is None else d
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0][: sigma.size]
    return np.asarray((rng.standard_normal((n, sigma.size)) * sigma) @ Q)


def long_svd(X: npt.NDArray[Any]) -> tuple[LongArray, LongArray]:
    """Return singular values, descending, and right vectors as columns, by one-sided Jacobi in extended precision."""
    Y = np.array(X, dtype=np.longdouble)
    d = Y.shape[1]
    V = np.eye(d, dtype=np.longdouble)
    for _ in range(60):
        rotated = False
        for i in range(d - 1):
            for j in range(i + 1, d):
                a, b, c = (Y[:, i] ** 2).sum(), (Y[:, j] ** 2).sum(), (Y[:, i] * Y[:, j]).sum()
                if abs(c) <= 4.0 * _EPS * np.sqrt(a * b) or a == 0.0 or b == 0.0:
                    continue
                rotated = True
                zeta = (b - a) / (2.0 * c)
                t = (1.0 if zeta >= 0.0 else -1.0) / (abs(zeta) + np.sqrt(1.0 + zeta * zeta))
                cosine = 1.0 / np.sqrt(1.0 + t * t)
                turn = np.array([[cosine, cosine * t], [-cosine * t, cosine]], dtype=np.longdouble)
                Y[:, [i, j]], V[:, [i, j]] = Y[:, [i, j]] @ turn, V[:, [i, j]] @ turn
        if not rotated:
            break
    sigma = np.sqrt((Y**2).sum(axis=0))
    order = np.argsort(-sigma, kind="stable")
    return sigma[order], V[:, order]


def tangent_of(U: LongArray, X: npt.NDArray[Any]) -> float:
    """Return the tangent of the largest principal angle between the spans of orthonormal U and X, even if tiny."""
    outside = X.astype(np.longdouble) - U @ (U.T @ X.astype(np.longdouble))
    sine = float(np.linalg.norm(outside.astype(np.float64), 2))
    return sine / np.sqrt(1.0 - sine**2) if sine < 1.0 else np.inf
