"""Count, mean and scatter of one agent's rows, in one pass and without cancellation.

The rows of a block are first shifted by a reference near them, and centred on what is left of their mean before
products are formed; blocks are joined by the update of Chan, Golub & LeVeque

    S = S₁ + S₂ + (w₁ w₂ / (w₁ + w₂)) (m₂ − m₁)(m₂ − m₁)ᵀ.

The mean is kept as ``reference + shift``: the sum of the two has the precision of the spread of the data, not of their
distance from zero. So data a million standard deviations away lose nothing, and rows that come only once suffice. What
rounding may have done to all of this is counted along (:mod:`deepca.operators.rounding`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from deepca._util.floats import EPS
from deepca._util.typing import Array, Csr, csr
from deepca.data.sources import Block, Source, dense, without_rows
from deepca.errors import DataError
from deepca.operators.rounding import UNIT, growth
from deepca.operators.sparse_centring import column_squares, far_columns, without_reference

__all__ = ["Moments", "check_finite", "moments", "no_rows"]

_FULL = 0.3  # share of entries from which a sparse block is handled faster as a dense one


@dataclass(frozen=True)
class Moments:
    """Of one agent's rows.

    n : rows with a weight.  weight : their weights together (n without weights).
    reference, shift : ``(d,)``, whose sum is the mean.  squares : ``(d,)``, ``Σ w (x − mean)²``.
    scatter : ``(d, d)``, ``Σ w (x − mean)(x − mean)ᵀ``, if asked for.
    rounding : ``(d,)``, what rounding may have done to the scatter, as :mod:`deepca.operators.rounding` has it.
    mean_rounding : ``(d,)``, what it may have done to the mean.
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
        """Estimators stored before roundings were counted have rows about as far from the reference as from zero."""
        if "rounding" not in state:
            weight, mean = state["weight"], state["reference"] + state["shift"]
            rounding = UNIT * np.sqrt(state["squares"] + weight * np.square(mean))
            state = {**state, "rounding": rounding, "mean_rounding": rounding / np.sqrt(max(weight, 1e-300))}
        self.__dict__.update(state)

    @property
    def mean(self) -> Array:
        """Rounded to one number each."""
        return self.reference + self.shift

    def apart(self, reference: Array, shift: Array) -> Array:
        """``mean − (reference + shift)``, with the precision of the difference."""
        return (self.reference - reference) + (self.shift - shift)

    def squares_about(self, reference: Array, shift: Array) -> Array:
        """``Σ w (x − centre)²`` by column, ``centre = reference + shift``."""
        with np.errstate(over="ignore", invalid="ignore"):  # the caller looks for what does not fit
            return self.squares + self.weight * np.square(self.apart(reference, shift))

    def scatter_about(self, reference: Array, shift: Array) -> Array:
        """``Σ w (x − centre)(x − centre)ᵀ``, ``centre = reference + shift``."""
        if self.scatter is None:
            raise ValueError("the scatter was not formed")
        apart = self.apart(reference, shift)
        return self.scatter + self.weight * np.outer(apart, apart)

    def rounding_about(self, reference: Array, shift: Array) -> Array:
        """What rounding may have done to the scatter about ``centre = reference + shift``, ``(d,)``."""
        apart = self.apart(reference, shift)
        error = self.mean_rounding + 2.0 * EPS * (np.abs(apart) + np.abs(self.shift) + np.abs(shift))
        sizes = EPS * np.sqrt(self.squares_about(reference, shift))
        return _together(self.rounding, np.sqrt(self.weight) * error, sizes)

    def faded(self, share: float) -> Moments:
        """Of the same rows, each with ``share`` of the weight that it had."""
        return replace(
            self,
            weight=share * self.weight,
            squares=share * self.squares,
            scatter=None if self.scatter is None else share * self.scatter,
            rounding=np.sqrt(share) * _together(self.rounding, EPS * np.sqrt(self.squares)),
        )

    def joined(self, more: Moments, *, reuse: bool = False) -> Moments:
        """Of these rows and ``more`` together; with a scatter if both have one, which may ``reuse`` this one's memory.

        The mean is split anew into what it rounds to and the rest, so that it may wander far from the first reference.
        """
        both = self.weight + more.weight
        if self.weight == 0.0 or more.weight == 0.0:
            return replace(self if more.weight == 0.0 else more, n=self.n + more.n)
        apart = more.apart(self.reference, self.shift)
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
            _together(self.rounding, more.rounding, np.sqrt(share) * error, EPS * np.sqrt(squares)),
            self.mean_rounding + part * (more.mean_rounding - self.mean_rounding) + part * moved,
        )


def moments(
    source: Source,
    weights: Array | None = None,
    *,
    scatter: bool = True,
    tell: Callable[[int], None] | None = None,
) -> Moments:
    """Read ``source`` once. ``tell`` hears of the rows of every block; what is no finite number is named."""
    n, found = 0, no_rows(source.d, scatter=scatter)
    for block in source.blocks():
        rows = int(block.shape[0])
        if rows == 0:
            continue
        w = None if weights is None else weights[n : n + rows]
        if w is not None and w.size != rows:
            raise DataError(f"{source.name}: {weights.size if weights is not None else 0} weights for more rows")
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is looked for at the end
            weight = float(rows if w is None else w.sum())
            sums = _sums(block, w)
            if not np.isfinite(sums).all():
                raise _bad_value(source, block, n)
            if weight > 0.0:
                found = found.joined(_of_block(block, w, weight, sums / weight, scatter), reuse=True)
        n += rows
        if tell is not None:
            tell(rows)
    if n == 0:
        raise without_rows(source.name, "the agent")
    if weights is not None and weights.size != n:
        raise DataError(f"{source.name}: {weights.size} weights for {n} rows")
    if not np.isfinite(found.squares).all():
        raise DataError(f"{source.name}: the squares of its values overflow; scale the data")
    return found


def no_rows(d: int, *, scatter: bool = True) -> Moments:
    """Of an agent that has none yet."""
    zeros = np.zeros(d)
    return Moments(0, 0.0, zeros, zeros, zeros, np.zeros((d, d)) if scatter else None, zeros, zeros)


def _together(*roundings: Array) -> Array:
    return np.sqrt(sum(np.square(one) for one in roundings))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """``a + b`` rounded, and what rounding left out, exactly (Knuth)."""
    rounded = a + b
    of_b = rounded - a
    return rounded, (a - (rounded - of_b)) + (b - of_b)


def _sums(block: Block, w: Array | None) -> Array:
    if isinstance(block, np.ndarray):
        return block.sum(axis=0, dtype=np.float64) if w is None else w @ block
    given = csr(block)  # in double precision
    return np.asarray(given.sum(axis=0) if w is None else w @ given, dtype=np.float64).ravel()


def _of_block(block: Block, w: Array | None, weight: float, mean: Array, scatter: bool) -> Moments:
    """About the block's own mean; a sparse one about zero in columns that are near enough to it."""
    if isinstance(block, np.ndarray):
        return _dense(block, w, weight, mean, scatter)
    block = csr(block)
    far = far_columns(weight, mean, column_squares(block, w, mean))
    if block.nnz + int(far.sum()) * block.shape[0] > _FULL * block.shape[0] * block.shape[1]:
        return _dense(block.toarray(), w, weight, mean, scatter)
    reference = np.where(far, mean, 0.0)
    return _sparse(without_reference(block, far, reference), w, weight, reference, scatter)


def _dense(block: Array, w: Array | None, weight: float, reference: Array, scatter: bool) -> Moments:
    centred = np.subtract(block, reference, dtype=np.float64)
    shift = _mean(centred, w, weight)
    centred -= shift
    squares = _squares(centred, w)
    if (weight * np.square(shift) > 4.0 * squares).any():  # a sum of large numbers, or few with any weight: once more
        reference, shift = _two_sum(reference, shift)
        centred = np.subtract(block, reference, dtype=np.float64) - shift
        more = _mean(centred, w, weight)
        centred -= more
        shift, squares = shift + more, _squares(centred, w)
    products = None
    if scatter:
        if w is not None:
            centred *= np.sqrt(w)[:, None]
        products = centred.T @ centred
        squares = np.diagonal(products).copy()
    rounding = UNIT * np.sqrt(squares + weight * np.square(shift))
    error = rounding / np.sqrt(weight) + growth(len(block)) * np.abs(shift)
    n = len(block) if w is None else int(np.count_nonzero(w))
    return Moments(n, weight, reference, shift, squares, products, rounding, error)


def _mean(centred: Array, w: Array | None, weight: float) -> Array:
    return np.asarray((centred.sum(axis=0) if w is None else w @ centred) / weight)


def _squares(centred: Array, w: Array | None) -> Array:
    if w is None:
        return np.asarray(np.einsum("ij,ij->j", centred, centred))
    return np.asarray(np.einsum("ij,ij->j", centred * w[:, None], centred))


def _sparse(block: Csr, w: Array | None, weight: float, reference: Array, scatter: bool) -> Moments:
    """Of ``x − reference`` as given. Products of uncentred entries are off by ``u q_a q_b``, ``q² = Σ w x²``."""
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
    """An error that names the first value of a block, whose first row has number ``first``, that is no number."""
    values = block if isinstance(block, np.ndarray) else block.data
    if not np.isfinite(values).all():
        raise _bad_value(source, block, first)


def _bad_value(source: Source, block: Block, first: int) -> DataError:
    """Names the first value that is no finite number."""
    values = dense(block)
    places = np.argwhere(~np.isfinite(values))
    if not len(places):
        return DataError(f"{source.name}: the sum of its values, or of their weights, overflows; scale the data")
    row, column = (int(i) for i in places[0])
    name = repr(source.columns[column]) if source.columns is not None else str(column)
    value = "NaN (missing)" if np.isnan(values[row, column]) else "infinite"
    more = f" ({len(places):,} such values in its block)" if len(places) > 1 else ""
    return DataError(
        f"{source.name}: row {first + row}, column {name} is {value}{more}; remove the row, or fill the value in first"
    )
