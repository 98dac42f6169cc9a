"""Centre sparse rows without filling their zeros and without losing digits.

Centring is part of the products: ``(X − 1μᵀ)W = XW − 1(μᵀW)``. If the mean of a column is far from zero, both terms are
large and cancel, which leaves their rounding errors. But if the mean is ten standard deviations from zero, every zero
is that far from the mean, so at most one entry in a hundred is zero. The reference is therefore subtracted from all
entries of such columns, zeros included, which stores one percent more entries; what remains of the mean is small.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.typing import Array, Csr, csr

__all__ = ["MAX_MEAN_RATIO", "column_squares", "far_columns", "without_reference"]

MAX_MEAN_RATIO = 1e2
"""Ratio of w·mean² to the squares about the mean above which products of an uncentred column lose digits."""


def column_squares(X: Csr, w: Array | None, centre: Array) -> Array:
    """Return ``Σ w (x − centre)²`` per column; entries and zeros are summed separately to avoid cancellation."""
    entries = sparse.coo_array(X)
    of_entry = np.ones(entries.data.size) if w is None else w[entries.row]
    d = int(X.shape[1])
    weight = float(X.shape[0]) if w is None else float(w.sum())
    off = of_entry * np.square(entries.data - centre[entries.col])
    filled = np.bincount(entries.col, weights=of_entry, minlength=d)
    found = np.bincount(entries.col, weights=off, minlength=d)
    return np.asarray(found + np.maximum(weight - filled, 0.0) * np.square(centre))


def far_columns(weight: float, centre: Array, squares: Array) -> npt.NDArray[np.bool_]:
    """Mark columns with a mean so far from zero that products of the uncentred columns would lose digits."""
    return np.asarray(weight * np.square(centre) > MAX_MEAN_RATIO * squares)


def without_reference(X: Csr, far: npt.NDArray[np.bool_], reference: Array) -> Csr:
    """Subtract the reference from all entries of the marked columns, including zeros."""
    columns = np.flatnonzero(far)
    if not columns.size:
        return X
    n, d = X.shape
    moved = X[:, columns].toarray() - reference[columns]
    starts = np.arange(n + 1, dtype=np.int64) * columns.size
    full = sparse.csr_array((moved.ravel(), np.tile(columns, n), starts), shape=(n, d))
    rest = csr(X @ sparse.diags_array(np.where(far, 0.0, 1.0)))
    rest.eliminate_zeros()
    return csr(rest + full)
