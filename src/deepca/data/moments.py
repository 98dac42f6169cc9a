"""Count, mean and scatter of one agent's rows, in one pass and without cancellation.

Blocks are centred on their own mean before products are formed, and joined by the update of Chan, Golub & LeVeque

    S = S₁ + S₂ + (w₁ w₂ / (w₁ + w₂)) (m₂ − m₁)(m₂ − m₁)ᵀ,

so data a million standard deviations away from zero lose nothing, and rows that come only once suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from deepca._typing import Array, Csr, csr
from deepca.data.sources import Block, Source
from deepca.errors import DataError

__all__ = ["Moments", "check_finite", "moments"]

_CANCELS = 1e2  # w·mean² over scatter of a column from which sparse products would lose digits


@dataclass(frozen=True)
class Moments:
    """Of one agent's rows.

    n : rows with a weight.  weight : their weights together (n without weights).  mean : ``(d,)``.
    squares : ``(d,)``, ``Σ w (x − mean)²``.  scatter : ``(d, d)``, ``Σ w (x − mean)(x − mean)ᵀ``, if asked for.
    """

    n: int
    weight: float
    mean: Array
    squares: Array
    scatter: Array | None

    def squares_about(self, centre: Array) -> Array:
        """``Σ w (x − centre)²`` by column."""
        return self.squares + self.weight * np.square(self.mean - centre)

    def scatter_about(self, centre: Array) -> Array:
        """``Σ w (x − centre)(x − centre)ᵀ``."""
        if self.scatter is None:
            raise ValueError("the scatter was not formed")
        apart = self.mean - centre
        return self.scatter + self.weight * np.outer(apart, apart)


def moments(
    source: Source,
    weights: Array | None = None,
    *,
    scatter: bool = True,
    tell: Callable[[int], None] | None = None,
) -> Moments:
    """Read ``source`` once. ``tell`` hears of the rows of every block; what is no finite number is named."""
    n, counted, total = 0, 0, 0.0
    mean, squares = np.zeros(source.d), np.zeros(source.d)
    S = np.zeros((source.d, source.d)) if scatter else None
    for block in source.blocks():
        rows = int(block.shape[0])
        if rows == 0:
            continue
        w = None if weights is None else weights[n : n + rows]
        if w is not None and w.size != rows:
            raise DataError(f"{source.name}: {weights.size if weights is not None else 0} weights for more rows")
        weight = float(rows if w is None else w.sum())
        if weight > 0.0:
            part = _of_block(block, w, weight, scatter)
            if part is None:
                raise _bad_value(source, block, n)
            with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is looked for at the end
                apart, both = part.mean - mean, total + weight
                share = total * weight / both
                squares += part.squares
                if S is not None and part.scatter is not None:
                    S += part.scatter
                if total > 0.0:
                    squares += share * np.square(apart)
                    if S is not None:
                        S += np.outer(share * apart, apart)
                mean, total = mean + apart * (weight / both), both
            counted += rows if w is None else int(np.count_nonzero(w))
        n += rows
        if tell is not None:
            tell(rows)
    if n == 0:
        raise DataError(f"{source.name} has no rows; leave the agent out or give it data")
    if weights is not None and weights.size != n:
        raise DataError(f"{source.name}: {weights.size} weights for {n} rows")
    if not np.isfinite(squares).all():
        raise DataError(f"{source.name}: the squares of its values overflow; scale the data")
    return Moments(counted, total, mean, squares, S)


def _of_block(block: Block, w: Array | None, weight: float, scatter: bool) -> Moments | None:
    """None if some value is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):  # products that overflow are found by the caller
        return _of_values(block, w, weight, scatter)


def _of_values(block: Block, w: Array | None, weight: float, scatter: bool) -> Moments | None:
    n = int(block.shape[0])
    if isinstance(block, np.ndarray):
        sums = block.sum(axis=0, dtype=np.float64) if w is None else w @ block
        if not np.isfinite(sums).all():
            return None
        return _dense(block, w, weight, sums / weight, scatter)
    block = csr(block)  # sums and products in double precision
    sums = np.asarray(block.sum(axis=0) if w is None else w @ block, dtype=np.float64).ravel()
    if not np.isfinite(sums).all():
        return None
    mean = sums / weight
    squares = _sparse_squares(block, w, weight, mean)
    if not scatter:
        return Moments(n, weight, mean, squares, None)
    if (weight * np.square(mean) > _CANCELS * squares).any(where=sums != 0.0):
        return _dense(block.toarray(), w, weight, mean, scatter)
    weighted = block if w is None else sparse.csr_array(block.multiply(w[:, None]))
    products = (block.T @ weighted).toarray()
    return Moments(n, weight, mean, squares, products - np.outer(weight * mean, mean))


def _dense(block: Array, w: Array | None, weight: float, mean: Array, scatter: bool) -> Moments:
    centred = np.subtract(block, mean, dtype=np.float64)
    if w is not None:
        centred *= np.sqrt(w)[:, None]
    if scatter:
        products = centred.T @ centred
        return Moments(len(block), weight, mean, np.diagonal(products).copy(), products)
    return Moments(len(block), weight, mean, np.einsum("ij,ij->j", centred, centred), None)


def _sparse_squares(block: Csr, w: Array | None, weight: float, mean: Array) -> Array:
    """``Σ w (x − mean)²`` by column, entries and zeros apart, so that nothing cancels."""
    entries = sparse.coo_array(block)
    of_entry = np.ones(entries.data.size) if w is None else w[entries.row]
    d = int(block.shape[1])
    off = of_entry * np.square(entries.data - mean[entries.col])
    filled = np.bincount(entries.col, weights=of_entry, minlength=d)
    found = np.bincount(entries.col, weights=off, minlength=d)
    return np.asarray(found + np.maximum(weight - filled, 0.0) * np.square(mean))


def check_finite(source: Source, block: Block, first: int) -> None:
    """An error that names the first value of a block, whose first row has number ``first``, that is no number."""
    values = block if isinstance(block, np.ndarray) else block.data
    if not np.isfinite(values).all():
        raise _bad_value(source, block, first)


def _bad_value(source: Source, block: Block, first: int) -> DataError:
    """Names the first value that is no finite number."""
    dense = block if isinstance(block, np.ndarray) else block.toarray()
    places = np.argwhere(~np.isfinite(dense))
    if not len(places):
        return DataError(f"{source.name}: the sum of its values overflows; scale the data")
    row, column = (int(i) for i in places[0])
    name = repr(source.columns[column]) if source.columns is not None else str(column)
    value = "NaN (missing)" if np.isnan(dense[row, column]) else "infinite"
    more = f" ({len(places):,} such values in its block)" if len(places) > 1 else ""
    return DataError(
        f"{source.name}: row {first + row}, column {name} is {value}{more}; remove the row, or fill the value in first"
    )
