"""Centre sparse rows without filling their zeros, and without losing digits.

Centring is left to the products: ``(X − 1μᵀ)W = XW − 1(μᵀW)``. In a column far from zero the large numbers of both
terms cancel and leave their rounding. But a column whose mean is ten deviations away from zero has hardly any zeros,
one in a hundred at most, as every zero is itself that far from the mean. So the reference is subtracted from all
entries of such columns, zeros included, at the price of one percent more entries; what is left of the mean is small.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.typing import Array, Csr, csr

__all__ = ["CANCELS", "column_squares", "far_columns", "without_reference"]

CANCELS = 1e2  # w·mean² over the squares about it from which products of a column would lose digits


def column_squares(X: Csr, w: Array | None, centre: Array) -> Array:
    """``Σ w (x − centre)²`` by column, entries and zeros apart, so that nothing cancels."""
    entries = sparse.coo_array(X)
    of_entry = np.ones(entries.data.size) if w is None else w[entries.row]
    d = int(X.shape[1])
    weight = float(X.shape[0]) if w is None else float(w.sum())
    off = of_entry * np.square(entries.data - centre[entries.col])
    filled = np.bincount(entries.col, weights=of_entry, minlength=d)
    found = np.bincount(entries.col, weights=off, minlength=d)
    return np.asarray(found + np.maximum(weight - filled, 0.0) * np.square(centre))


def far_columns(weight: float, centre: Array, squares: Array) -> npt.NDArray[np.bool_]:
    """Which columns are so far from zero that products of them, uncentred, would lose digits."""
    return np.asarray(weight * np.square(centre) > CANCELS * squares)


def without_reference(X: Csr, far: npt.NDArray[np.bool_], reference: Array) -> Csr:
    """X with ``x − reference`` in the columns marked, zeros included, and the others as they are."""
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
