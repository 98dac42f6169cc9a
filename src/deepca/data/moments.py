"""Compute count, mean and scatter of one agent's rows in one pass, without cancellation.

The rows of a block are shifted by a reference near them and centred on the remainder of their mean before products are
formed. Blocks are combined by the update of Chan, Golub and LeVeque,

    S = S₁ + S₂ + (w₁ w₂ / (w₁ + w₂)) (m₂ − m₁)(m₂ − m₁)ᵀ.

The mean is stored as ``reference + shift``, so its precision depends on the spread of the data, not on their distance
from zero. Data a million standard deviations from zero lose no digits, and a single pass is enough. Bounds on the
rounding errors are accumulated along the way (:mod:`deepca.operators.rounding`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from deepca._util.floats import EPS
from deepca._util.typing import Array, Csr, csr
from deepca.data.sources import Block, Source, at_agent, dense, no_rows_error
from deepca.errors import DataError
from deepca.operators.rounding import UNIT, growth
from deepca.operators.sparse_centring import column_squares, far_columns, without_reference

__all__ = ["Moments", "check_finite", "empty_moments", "moments", "two_product"]

_LARGE, _DOWN = 2.0**900, 2.0**-100  # larger numbers are scaled down before they are split
_SPLITTER = 2.0**27 + 1.0  # separates the upper half of a significand of 53 bits
_DENSE_ABOVE = 0.3  # share of nonzero entries above which a sparse block is processed faster as a dense one


@dataclass(frozen=True)
class Moments:
    """Count, mean and scatter of one agent's rows.

    Parameters
    ----------
    n : int
        Number of rows with a nonzero weight.
    weight : float
        Sum of the weights; n if there are none.
    reference, shift : ndarray of shape (d,)
        Their sum is the mean.
    squares : ndarray of shape (d,)
        ``Σ w (x − mean)²``.
    scatter : ndarray of shape (d, d) or None
        ``Σ w (x − mean)(x − mean)ᵀ``; None unless it was requested.
    rounding : ndarray of shape (d,)
        Bound on the rounding error of the scatter, in the form of :mod:`deepca.operators.rounding`.
    mean_rounding : ndarray of shape (d,)
        Bound on the rounding error of the mean.
    """

    n: int
    weight: float
    reference: Array
    shift: Array
    squares: Array
    scatter: Array | None
    rounding: Array
    mean_rounding: Array

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle; to one of an earlier version, add the rounding bounds of moments about zero."""
        if "rounding" not in state:
            weight, mean = state["weight"], state["reference"] + state["shift"]
            rounding = UNIT * np.sqrt(state["squares"] + weight * np.square(mean))
            state = {**state, "rounding": rounding, "mean_rounding": rounding / np.sqrt(max(weight, 1e-300))}
        self.__dict__.update(state)

    @property
    def mean(self) -> Array:
        """The mean, rounded to one number per column."""
        return self.reference + self.shift

    def mean_minus(self, reference: Array, shift: Array) -> Array:
        """Return ``mean − (reference + shift)``, computed without cancellation."""
        return (self.reference - reference) + (self.shift - shift)

    def squares_about(self, reference: Array, shift: Array) -> Array:
        """Return the sums of squares by column, ``Σ w (x − centre)²`` with ``centre = reference + shift``."""
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks for overflow
            return self.squares + self.weight * np.square(self.mean_minus(reference, shift))

    def scatter_about(self, reference: Array, shift: Array) -> Array:
        """Return the scatter ``Σ w (x − centre)(x − centre)ᵀ`` with ``centre = reference + shift``.

        Raises ValueError if the scatter was not computed.
        """
        if self.scatter is None:
            raise ValueError("the scatter was not computed; request it with scatter=True")
        apart = self.mean_minus(reference, shift)
        return self.scatter + self.weight * np.outer(apart, apart)

    def rounding_about(self, reference: Array, shift: Array) -> Array:
        """Return a bound ``(d,)`` on the rounding error of the scatter about ``centre = reference + shift``."""
        apart = self.mean_minus(reference, shift)
        error = self.mean_rounding + 2.0 * EPS * (np.abs(apart) + np.abs(self.shift) + np.abs(shift))
        sizes = EPS * np.sqrt(self.squares_about(reference, shift))
        return _root_sum_squares(self.rounding, np.sqrt(self.weight) * error, sizes)

    def scaled(self, share: float) -> Moments:
        """Return the moments of the same rows with all weights multiplied by ``share``."""
        return replace(
            self,
            weight=share * self.weight,
            squares=share * self.squares,
            scatter=None if self.scatter is None else share * self.scatter,
            rounding=np.sqrt(share) * _root_sum_squares(self.rounding, EPS * np.sqrt(self.squares)),
        )

    def joined(self, more: Moments, *, reuse: bool = False) -> Moments:
        """Return the moments of these rows and those of ``more`` together.

        The result has a scatter if both moments have one; with ``reuse``, it is computed in the memory of the scatter
        of ``self``. The reference becomes the rounded mean, since the mean may drift far from the first reference.
        """
        both = self.weight + more.weight
        if self.weight == 0.0 or more.weight == 0.0:
            return replace(self if more.weight == 0.0 else more, n=self.n + more.n)
        apart = more.mean_minus(self.reference, self.shift)
        share, part = self.weight * (more.weight / both), more.weight / both
        reference, shift = _two_sum(self.reference, self.shift + apart * part)
        squares = self.squares + more.squares + share * np.square(apart)
        scatter = None
        if self.scatter is not None and more.scatter is not None:
            scatter = np.add(self.scatter, more.scatter, out=self.scatter if reuse else None)
            scatter += np.outer(share * apart, apart)
        moved = 2.0 * EPS * (np.abs(apart) + np.abs(self.shift) + np.abs(more.shift))
        error = self.mean_rounding + more.mean_rounding + moved
        return Moments(
            self.n + more.n,
            both,
            reference,
            shift,
            squares,
            scatter,
            _root_sum_squares(self.rounding, more.rounding, np.sqrt(share) * error, EPS * np.sqrt(squares)),
            self.mean_rounding + part * (more.mean_rounding - self.mean_rounding) + part * moved,
        )


def moments(
    source: Source,
    weights: Array | None = None,
    *,
    scatter: bool = True,
    on_rows: Callable[[int], None] | None = None,
) -> Moments:
    """Read ``source`` once and return its moments.

    Parameters
    ----------
    source : Source
        The rows.
    weights : ndarray of shape (n,), optional
        Weights of the rows.
    scatter : bool, default=True
        Whether to compute the ``(d, d)`` scatter.
    on_rows : callable, optional
        Called after every block with its number of rows.

    Returns
    -------
    Moments
        Moments of all rows.

    Raises
    ------
    DataError
        If the source has no rows or cannot be read, a value is not finite, the squares of a column overflow, or the
        number of weights differs from the number of rows.
    """
    with at_agent(source.agent):
        return _moments(source, weights, scatter=scatter, on_rows=on_rows)


def _moments(source: Source, weights: Array | None, *, scatter: bool, on_rows: Callable[[int], None] | None) -> Moments:
    n, found = 0, empty_moments(source.d, scatter=scatter)
    for block in source.blocks():
        rows = int(block.shape[0])
        if rows == 0:
            continue
        w = None if weights is None else weights[n : n + rows]
        if w is not None and w.size != rows:
            given = 0 if weights is None else weights.size
            raise DataError(
                f"{source.name} has {given} weights and at least {n + rows} rows; give one weight per row",
                parameter="sample_weight",
                file=source.file,
                value=given,
            )
        with np.errstate(over="ignore", invalid="ignore"):  # overflow is checked at the end
            weight = float(rows if w is None else w.sum())
            sums = _sums(block, w)
            if not np.isfinite(sums).all():
                raise _not_finite_error(source, block, n)
            if weight > 0.0:
                found = found.joined(_block_moments(block, w, weight, sums / weight, scatter), reuse=True)
        n += rows
        if on_rows is not None:
            on_rows(rows)
    if n == 0:
        raise no_rows_error(source.name, "the agent", file=source.file)
    if weights is not None and weights.size != n:
        raise DataError(
            f"{source.name} has {weights.size} weights and {n} rows; give one weight per row",
            parameter="sample_weight",
            file=source.file,
            value=weights.size,
        )
    if not np.isfinite(found.squares).all():
        column = int(np.flatnonzero(~np.isfinite(found.squares))[0])
        name = column if source.columns is None else source.columns[column]
        raise DataError(
            f"{source.name}: the squares of column {name!r} overflow; divide the data by a large power of ten",
            file=source.file,
            column=name,
        )
    return found


def empty_moments(d: int, *, scatter: bool = True) -> Moments:
    """Return the moments of an agent without rows."""
    zeros = np.zeros(d)
    return Moments(0, 0.0, zeros, zeros, zeros, np.zeros((d, d)) if scatter else None, zeros, zeros)


def _root_sum_squares(*roundings: Array) -> Array:
    return np.sqrt(sum(np.square(one) for one in roundings))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum ``a + b``, and its exact rounding error (Knuth's TwoSum)."""
    rounded = a + b
    of_b = rounded - a
    return rounded, (a - (rounded - of_b)) + (b - of_b)


def two_product(a: Array | float, b: Array) -> tuple[Array, Array]:
    """Return the rounded product ``a b``, and its rounding error, which is exact without underflow (Dekker)."""
    scale = np.where(np.abs(b) > _LARGE, _DOWN, 1.0)  # splitting multiplies by 2^27
    rounded = np.multiply(a, b * scale)
    (high, low), (upper, lower) = _halves(a), _halves(b * scale)
    error = ((high * upper - rounded) + high * lower + low * upper) + low * lower
    return rounded / scale, error / scale


def _halves(a: Array | float) -> tuple[Array, Array]:
    """Split numbers into two of at most 26 bits each."""
    scaled = np.multiply(_SPLITTER, a)
    high = scaled - (scaled - a)
    return high, a - high


def _sums(block: Block, w: Array | None) -> Array:
    if isinstance(block, np.ndarray):
        return block.sum(axis=0, dtype=np.float64) if w is None else w @ block
    given = csr(block)  # sums in double precision
    return np.asarray(given.sum(axis=0) if w is None else w @ given, dtype=np.float64).ravel()


def _block_moments(block: Block, w: Array | None, weight: float, mean: Array, scatter: bool) -> Moments:
    """Return the moments of a block; sparse columns whose mean is near zero keep zero as their reference."""
    if isinstance(block, np.ndarray):
        return _dense_moments(block, w, weight, mean, scatter)
    block = csr(block)
    far = far_columns(weight, mean, column_squares(block, w, mean))
    if block.nnz + int(far.sum()) * block.shape[0] > _DENSE_ABOVE * block.shape[0] * block.shape[1]:
        return _dense_moments(block.toarray(), w, weight, mean, scatter)
    reference = np.where(far, mean, 0.0)
    return _sparse_moments(without_reference(block, far, reference), w, weight, reference, scatter)


def _dense_moments(block: Array, w: Array | None, weight: float, reference: Array, scatter: bool) -> Moments:
    centred = np.subtract(block, reference, dtype=np.float64)
    shift = _mean(centred, w, weight)
    centred -= shift
    squares, moved = _squares(centred, w), np.abs(shift)
    if (weight * np.square(shift) > 4.0 * squares).any():  # the sum lost digits: centre once more
        reference, shift = _two_sum(reference, shift)
        centred = np.subtract(block, reference, dtype=np.float64) - shift
        more = _mean(centred, w, weight)
        centred -= more
        moved = np.abs(shift) + np.abs(more)  # they may cancel
        shift, squares = shift + more, _squares(centred, w)
    products = None
    if scatter:
        if w is not None:
            centred *= np.sqrt(w)[:, None]
        products = centred.T @ centred
        squares = np.diagonal(products).copy()
    rounding = UNIT * np.sqrt(squares + weight * np.square(moved))
    error = rounding / np.sqrt(weight) + growth(len(block)) * moved
    n = len(block) if w is None else int(np.count_nonzero(w))
    return Moments(n, weight, reference, shift, squares, products, rounding, error)


def _mean(centred: Array, w: Array | None, weight: float) -> Array:
    return np.asarray((centred.sum(axis=0) if w is None else w @ centred) / weight)


def _squares(centred: Array, w: Array | None) -> Array:
    if w is None:
        return np.asarray(np.einsum("ij,ij->j", centred, centred))
    return np.asarray(np.einsum("ij,ij->j", centred * w[:, None], centred))


def _sparse_moments(block: Csr, w: Array | None, weight: float, reference: Array, scatter: bool) -> Moments:
    """Return the moments of a sparse block from which ``reference`` has been subtracted.

    Products of uncentred entries have rounding errors of ``u q_a q_b`` with ``q² = Σ w x²``.
    """
    shift = _sums(block, w) / weight
    squares, products = column_squares(block, w, shift), None
    q = np.sqrt(squares + weight * np.square(shift))
    if scatter:
        weighted = block if w is None else sparse.csr_array(block.multiply(w[:, None]))
        products = (block.T @ weighted).toarray() - np.outer(weight * shift, shift)
    larger = np.divide(q, np.sqrt(squares), out=np.ones_like(q), where=squares > 0.0)
    n = int(block.shape[0]) if w is None else int(np.count_nonzero(w))
    error = UNIT * q / np.sqrt(weight) + growth(int(block.shape[0])) * np.abs(shift)
    return Moments(n, weight, reference, shift, squares, products, UNIT * larger * q, error)


def check_finite(source: Source, block: Block, first: int) -> None:
    """Raise DataError for the first value of a block that is not finite; ``first`` is the index of its first row."""
    values = block if isinstance(block, np.ndarray) else block.data
    if not np.isfinite(values).all():
        raise _not_finite_error(source, block, first)


def _not_finite_error(source: Source, block: Block, first: int) -> DataError:
    """Return the error for the first value of a block that is not finite, or for an overflow if all are finite."""
    values = dense(block)
    places = np.argwhere(~np.isfinite(values))
    if not len(places):
        return DataError(
            f"{source.name}: the sum of its values, or of its weights, is not finite; divide the data or the weights "
            "by a large power of ten",
            agent=source.agent,
            file=source.file,
        )
    row, place = (int(i) for i in places[0])
    column = place if source.columns is None else source.columns[place]
    file, line = source.locate(first + row)
    found = "NaN (missing)" if np.isnan(values[row, place]) else "infinite"
    more = f" ({len(places):,} such values in this block)" if len(places) > 1 else ""
    return DataError.at_entry(
        source.name,
        f"{found}{more}",
        "remove the row, or impute the value",
        redacted=f"not a finite number{more}",
        agent=source.agent,
        file=file,
        line=line,
        row=first + row,
        column=column,
        value=float(values[row, place]),
    )
