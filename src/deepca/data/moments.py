"""Count, mean and scatter of one agent's rows, in one pass and without cancellation.

Rows are first shifted by a reference near them, and blocks centred on their own mean before products are formed; blocks
are joined by the update of Chan, Golub & LeVeque

    S = S₁ + S₂ + (w₁ w₂ / (w₁ + w₂)) (m₂ − m₁)(m₂ − m₁)ᵀ.

The mean is kept as ``reference + shift``: the sum of the two has the precision of the spread of the data, not of their
distance from zero. So data a million standard deviations away lose nothing, and rows that come only once suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from deepca._typing import Array, Csr, csr
from deepca.data.sources import Block, Source
from deepca.errors import DataError

__all__ = ["Moments", "cancels", "check_finite", "moments", "no_rows"]

_CANCELS = 1e2  # w·mean² over scatter of a column from which sparse products would lose digits


@dataclass(frozen=True)
class Moments:
    """Of one agent's rows.

    n : rows with a weight.  weight : their weights together (n without weights).
    reference, shift : ``(d,)``, whose sum is the mean.  squares : ``(d,)``, ``Σ w (x − mean)²``.
    scatter : ``(d, d)``, ``Σ w (x − mean)(x − mean)ᵀ``, if asked for.
    """

    n: int
    weight: float
    reference: Array
    shift: Array
    squares: Array
    scatter: Array | None

    @property
    def mean(self) -> Array:
        """Rounded to one number each."""
        return self.reference + self.shift

    def apart(self, reference: Array, shift: Array) -> Array:
        """``mean − (reference + shift)``, with the precision of the difference."""
        return (self.reference - reference) + (self.shift - shift)

    def squares_about(self, reference: Array, shift: Array) -> Array:
        """``Σ w (x − centre)²`` by column, ``centre = reference + shift``."""
        return self.squares + self.weight * np.square(self.apart(reference, shift))

    def scatter_about(self, reference: Array, shift: Array) -> Array:
        """``Σ w (x − centre)(x − centre)ᵀ``, ``centre = reference + shift``."""
        if self.scatter is None:
            raise ValueError("the scatter was not formed")
        apart = self.apart(reference, shift)
        return self.scatter + self.weight * np.outer(apart, apart)

    def faded(self, share: float) -> Moments:
        """Of the same rows, each with ``share`` of the weight that it had."""
        scatter = None if self.scatter is None else share * self.scatter
        return replace(self, weight=share * self.weight, squares=share * self.squares, scatter=scatter)

    def joined(self, more: Moments) -> Moments:
        """Of these rows and ``more`` together; with a scatter if both have one."""
        both = self.weight + more.weight
        if self.weight == 0.0 or more.weight == 0.0:
            return replace(self if more.weight == 0.0 else more, n=self.n + more.n)
        apart = more.apart(self.reference, self.shift)
        share = self.weight * more.weight / both
        # the mean anew as what it rounds to and the rest, so that it may wander far from the first reference
        reference, shift = _two_sum(self.reference, self.shift + apart * (more.weight / both))
        squares = self.squares + more.squares + share * np.square(apart)
        scatter = None
        if self.scatter is not None and more.scatter is not None:
            scatter = self.scatter + more.scatter
            scatter += np.outer(share * apart, apart)
        return Moments(self.n + more.n, both, reference, shift, squares, scatter)


@dataclass(frozen=True)
class _Part:
    """Of one block: mean and scatter of ``x − reference``."""

    reference: Array
    mean: Array
    squares: Array
    scatter: Array | None


def moments(
    source: Source,
    weights: Array | None = None,
    *,
    scatter: bool = True,
    tell: Callable[[int], None] | None = None,
) -> Moments:
    """Read ``source`` once. ``tell`` hears of the rows of every block; what is no finite number is named."""
    n, counted, total = 0, 0, 0.0
    reference: Array | None = None
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
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is looked for at the end
            sums = _sums(block, w)
            if not np.isfinite(sums).all():
                raise _bad_value(source, block, n)
            if weight > 0.0:
                part = _of_block(block, w, weight, sums, reference, scatter)
                reference = part.reference
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
    return Moments(counted, total, np.zeros(source.d) if reference is None else reference, mean, squares, S)


def no_rows(d: int) -> Moments:
    """Of an agent that has none yet."""
    zeros = np.zeros(d)
    return Moments(0, 0.0, zeros, zeros, zeros, np.zeros((d, d)))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """``a + b`` rounded, and what rounding left out, exactly (Knuth)."""
    rounded = a + b
    of_b = rounded - a
    return rounded, (a - (rounded - of_b)) + (b - of_b)


def cancels(weight: float, mean: Array, squares: Array) -> bool:
    """Whether some column is so far from zero that products of it, uncentred, would lose digits."""
    varies = squares > weight * np.square(16.0 * np.finfo(np.float64).eps * mean)
    return bool((weight * np.square(mean) > _CANCELS * squares).any(where=varies))


def _sums(block: Block, w: Array | None) -> Array:
    if isinstance(block, np.ndarray):
        return block.sum(axis=0, dtype=np.float64) if w is None else w @ block
    given = csr(block)  # in double precision
    return np.asarray(given.sum(axis=0) if w is None else w @ given, dtype=np.float64).ravel()


def _of_block(
    block: Block, w: Array | None, weight: float, sums: Array, reference: Array | None, scatter: bool
) -> _Part:
    """The first block chooses the reference: its mean, or zero where it is sparse and near enough to it."""
    mean = sums / weight
    if isinstance(block, np.ndarray):
        return _dense(block, w, weight, mean if reference is None else reference, scatter)
    block = csr(block)
    squares = _sparse_squares(block, w, weight, mean)
    far = cancels(weight, mean, squares)
    if reference is None:
        reference = mean if far else np.zeros_like(mean)
    if far or reference.any():
        return _dense(block.toarray(), w, weight, reference, scatter)
    if not scatter:
        return _Part(reference, mean, squares, None)
    weighted = block if w is None else sparse.csr_array(block.multiply(w[:, None]))
    products = (block.T @ weighted).toarray()
    return _Part(reference, mean, squares, products - np.outer(weight * mean, mean))


def _dense(block: Array, w: Array | None, weight: float, reference: Array, scatter: bool) -> _Part:
    centred = np.subtract(block, reference, dtype=np.float64)
    mean = (centred.sum(axis=0) if w is None else w @ centred) / weight
    centred -= mean
    if w is not None:
        centred *= np.sqrt(w)[:, None]
    if not scatter:
        return _Part(reference, mean, np.einsum("ij,ij->j", centred, centred), None)
    products = centred.T @ centred
    return _Part(reference, mean, np.diagonal(products).copy(), products)


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
