"""Agree on the count, mean and spread of the rows of all agents.

In two exact sums, with the same bits at every agent (:mod:`deepca.network.sums.totals`), each agent discloses

1. its number of rows, the sum of its weights, and its weighted sum of rows;
2. its sums of squares about the mean, by column, with their error bounds.

Where exact sums are not possible, they are averages. Another one, of the weighted deviations from the agreed mean,
corrects the rounding error of that mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.portable import total as sum_of
from deepca._util.typing import Array
from deepca.consensus.averaging import common_totals
from deepca.data.columns import named_columns
from deepca.data.moments import Moments, two_product
from deepca.data.sources import Source
from deepca.errors import NotFiniteError, PooledDataError
from deepca.network.base import Network
from deepca.network.sums import COUNT, Addend, Total, Unit
from deepca.solver.verdict import UNDERFLOW

__all__ = ["PooledStatistics", "agree_on_statistics", "column_units", "total_variance"]

_SUMS_UNIT = Unit(-192, 5)  # sums keep the digits of a product of two numbers
_ROUNDING_UNIT = Unit(-240, 5)  # rounding errors are 1e-16 times the data, and squared
_SMALLEST_SAFE_MEAN = math.sqrt(UNDERFLOW) / EPS  # below it, differences may be so small that their squares underflow


@dataclass(frozen=True)
class PooledStatistics:
    """Count, mean and spread of the rows of all agents, with the same bits at every agent.

    Parameters
    ----------
    n_rows : int
        Number of rows with a nonzero weight.
    weight : float
        Sum of the weights.
    reference, shift : ndarray of shape (d,)
        Their sum is the mean.
    squares : ndarray of shape (d,)
        ``Σ w (x − mean)²``.
    rounding : ndarray of shape (d,)
        Bound on the rounding error of ``√squares``, in the form of :mod:`deepca.operators.rounding`.
    """

    n_rows: int
    weight: float
    reference: Array
    shift: Array
    squares: Array
    rounding: Array

    @property
    def mean(self) -> Array:
        """The mean ``(d,)``, rounded to one number per column."""
        return self.reference + self.shift

    def squares_about_zero(self) -> Array:
        """Return ``Σ w x²`` by column, or raise PooledDataError for the first column that overflows."""
        with np.errstate(over="ignore"):
            squares = self.squares + self.weight * np.square(self.mean)
        _check_squares(squares)
        return squares

    @property
    def constant(self) -> npt.NDArray[np.bool_]:
        """Mask of the columns in which all values are equal, so that ``squares`` consists of rounding errors.

        A column with up to 1e15 values counts as not constant even if only one of them differs, by a relative eps.
        """
        spacing = np.square(EPS**1.5 * self.mean)
        return np.asarray(self.squares <= np.maximum(4.0 * np.square(self.rounding), self.weight * spacing))

    @property
    def unit_rounding(self) -> Array:
        """Relative rounding errors ``(d,)`` of the standard deviations of the columns."""
        return np.divide(self.rounding, np.sqrt(self.squares), out=np.zeros_like(self.squares), where=self.squares > 0)

    @property
    def weighted_n_rows(self) -> int:
        """Number of rows, each counted as many times as its weight, but at least ``n_rows``."""
        return max(self.n_rows, int(self.weight))


def agree_on_statistics(network: Network, local: Sequence[Moments], *, weighted: bool = True) -> PooledStatistics:
    """Compute the statistics of the rows of all agents from the moments of the local agents.

    Parameters
    ----------
    network : Network
        The network of the agents.
    local : sequence of Moments
        Moments of the local agents.
    weighted : bool, default=True
        Whether rows may have weights; if they may not, an agent that sends weights is reported as faulty.

    Returns
    -------
    PooledStatistics
        The statistics, with the same bits at every agent.

    Raises
    ------
    PooledDataError
        If the squares of a column overflow.

    Notes
    -----
    Squares are taken about the agreed mean, not about zero, so that nothing cancels for data far from zero.
    """
    d, B = local[0].shift.size, network.batch
    with np.errstate(over="ignore", invalid="ignore"), _overflow(d):  # overflow is checked below
        n, w = (_stacked([getattr(of, name) for of in local], B, 1) for name in ("n", "weight"))
        means = [_stacked([getattr(of, name) for of in local], B, d) for name in ("reference", "shift")]
        network.begin(network.epoch, 0, "mean")
        rows = Addend("row counts", n, unit=COUNT, nonnegative=True)
        weights = [Addend("weights", w, nonnegative=True)] if weighted else []
        first, *more = (term for part in means for term in two_product(w, part))
        sums = Addend("sums of columns", first, tuple(more), guess=_SUMS_UNIT, digits=106)
        counts, *weighed, columns = common_totals(network, rows, *weights, sums)
        weights_total = weighed[0] if weighed else counts
        n_rows, weight = round(float(counts.value[0])), float(weights_total.value[0])
        reference, shift = _mean(columns, weights_total)
        if not network.adds_exactly and weight > 0.0:
            # the rounding error of the mean would enter products with the agents' own means to first order
            left = _stacked([of.weight * of.mean_minus(reference, shift) for of in local], B, d)
            network.begin(network.epoch, 0, "remainder")
            shift = shift + common_totals(network, Addend("sums of columns", left))[0].value / weight
        network.begin(network.epoch, 0, "spread")
        squares, rounding = common_totals(network, *_spread(local, reference, shift, B))
        pooled = PooledStatistics(n_rows, weight, reference, shift, squares.value, np.sqrt(rounding.value))
    _check_squares(np.where(np.isfinite(pooled.mean), pooled.squares, np.inf))
    return pooled


def total_variance(squares: Array, units: Array | None, weight: float) -> float:
    """Return the sum of the variances of all columns; raise PooledDataError if it underflows."""
    total = sum_of(squares / (1.0 if units is None else np.square(units))) / (weight - 1.0)
    if total < UNDERFLOW:
        raise PooledDataError(
            f"the squares of the values underflow: the sum of the variances of all columns is {total:.1e}, and "
            f"products below {UNDERFLOW:.0e} lose digits; multiply the data by a large power of ten",
            value=total,
        )
    return total


def column_units(totals: PooledStatistics, source: Source) -> Array:
    """Return the standard deviations of the columns (ddof 0, as in StandardScaler); raise for a constant column."""
    units, mean = np.sqrt(totals.squares / totals.weight), np.abs(totals.mean)
    # squares below UNDERFLOW lose digits; values of larger magnitude that differ at all differ by enough
    tiny = (np.square(units) < UNDERFLOW) & (mean < _SMALLEST_SAFE_MEAN) & ((mean > 0.0) | (units > 0.0))
    if tiny.any():
        raise PooledDataError(
            f"{_columns(tiny, source)}: values too small to square (standard deviation "
            f"below {math.sqrt(UNDERFLOW):.0e}), which cannot be scaled; multiply them by a large power of ten, "
            "exclude the column, or omit scale=True",
            parameter="scale",
            column=_first_column(tiny, source),
        )
    if totals.constant.any():
        raise PooledDataError(
            f"{_columns(totals.constant, source)}: the same value in all {totals.n_rows} rows of all agents, "
            "which cannot be scaled; exclude the column, or omit scale=True",
            parameter="scale",
            column=_first_column(totals.constant, source),
        )
    return units


def _check_squares(squares: Array) -> None:
    """Raise PooledDataError unless all squares are finite."""
    if (overflown := np.flatnonzero(~np.isfinite(squares))).size:
        raise _overflow_error(overflown[0])


def _overflow_error(column: int) -> PooledDataError:
    """Return the error for a column whose sum of squares overflows."""
    column = int(column)
    return PooledDataError(
        f"the squares of column {column} overflow when summed over all agents; divide the data by a large power of ten",
        column=column,
    )


def _stacked(values: Sequence[Array | float], batch: tuple[int, ...], n: int) -> Array:
    """Return the values of the local agents as an array ``(*B, n)``."""
    return np.array(values, dtype=np.float64).reshape(*batch, n)


def _spread(local: Sequence[Moments], reference: Array, shift: Array, batch: tuple[int, ...]) -> tuple[Addend, Addend]:
    """Return the sums of squares about the mean, by column, and the squares of their rounding errors."""
    squares = _stacked([of.squares_about(reference, shift) for of in local], batch, shift.size)
    rounding = _stacked([of.rounding_about(reference, shift) for of in local], batch, shift.size)
    return (
        Addend("sums of squares", squares, nonnegative=True),
        Addend("squared rounding errors", np.square(rounding), guess=_ROUNDING_UNIT, nonnegative=True),
    )


def _mean(sums: Total, weight: Total) -> tuple[Array, Array]:
    """Return ``sums / weight`` as a rounded mean and a remainder."""
    if weight.value[0] <= 0.0:
        return np.zeros_like(sums.value), np.zeros_like(sums.value)
    mean = sums.value / weight.value
    rounded, error = two_product(weight.value, mean)
    return mean, ((((sums.value - rounded) - error) - mean * weight.rest) + sums.rest) / weight.value


@contextmanager
def _overflow(d: int) -> Iterator[None]:
    """Translate NotFiniteError, raised before sending, into PooledDataError for the column at fault."""
    try:
        yield
    except NotFiniteError as error:
        raise _overflow_error(max(error.index, 0) % d) from None


def _first_column(which: npt.NDArray[np.bool_], source: Source) -> int | str:
    first = int(np.argmax(which))
    return first if source.columns is None else source.columns[first]


def _columns(which: npt.NDArray[np.bool_], source: Source) -> str:
    return named_columns([c if source.columns is None else source.columns[c] for c in np.flatnonzero(which).tolist()])
