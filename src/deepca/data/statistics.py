"""Agree on the count, mean and spread of the rows of all agents.

In three exact averages, with the same bits at every agent (:mod:`deepca.consensus.exact`), each agent discloses

1. its number of rows, the sum of its weights, and its weighted sum of rows;
2. its weighted sum of deviations from the agreed mean, which corrects the rounding error of that mean;
3. its sums of squares about the corrected mean, by column, with their error bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.consensus.averaging import common_average
from deepca.data.moments import Moments
from deepca.errors import NotFiniteError, PooledDataError
from deepca.network.arrivals import Part
from deepca.network.base import Network

__all__ = ["Totals", "agreed_totals"]


@dataclass(frozen=True)
class Totals:
    """Statistics of the rows of all agents, with the same bits at every agent.

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

        A column is not constant if a single value out of up to 1e15 differs, by a relative eps.
        """
        spacing = np.square(EPS**1.5 * self.mean)
        return np.asarray(self.squares <= np.maximum(4.0 * np.square(self.rounding), self.weight * spacing))

    @property
    def unit_rounding(self) -> Array:
        """Relative rounding errors ``(d,)`` of the columns' standard deviations."""
        return np.divide(self.rounding, np.sqrt(self.squares), out=np.zeros_like(self.squares), where=self.squares > 0)

    @property
    def n_counted(self) -> int:
        """Number of rows, each counted as many times as its weight, but at least ``n_rows``."""
        return max(self.n_rows, int(self.weight))


def agreed_totals(network: Network, local: Sequence[Moments], *, weighted: bool = True) -> Totals:
    """Compute the totals over all agents from the moments of the local ones.

    Parameters
    ----------
    network : Network
        The network of the agents.
    local : sequence of Moments
        Moments of the local agents.
    weighted : bool, default=True
        Whether rows may have weights; if not, an agent that sends weights is reported as faulty.

    Returns
    -------
    Totals
        The totals, identical at every agent.

    Notes
    -----
    Squares are taken about the agreed mean, not about zero, so that nothing cancels for data far from zero.
    """
    m, d, B = network.n_agents, local[0].shift.size, network.batch
    with np.errstate(over="ignore", invalid="ignore"), _overflow(d):  # overflow is checked below
        sums = np.array([[of.n, *_parts(of.weight), *(of.weight * of.mean)] for of in local]).reshape(*B, d + 3)
        network.begin(network.epoch, 0, "mean")
        weights = Part("weights", 1, True, repeats=not weighted), Part("parts of weights", 1, True, zero=not weighted)
        network.expect(Part("row counts", 1, True, True), *weights, Part("sums of columns", d))
        found = common_average(network, sums)
        n_rows, weight = round(float(found[0]) * m), float(round(float(found[1]) * m)) + float(found[2]) * m
        reference = found[3:] / (weight / m) if weight > 0.0 else np.zeros(d)
        # the rounding error of the mean would enter products with the agents' own means to first order
        left = np.array([of.weight * of.mean_minus(reference, np.zeros(d)) for of in local]).reshape(*B, d)
        network.begin(network.epoch, 0, "remainder")
        network.expect(Part("sums of columns", d))
        shift = common_average(network, left) / (weight / m) if weight > 0.0 else np.zeros(d)
        network.begin(network.epoch, 0, "spread")
        network.expect(Part("sums of squares", 2 * d, True))
        spread = [(of.squares_about(reference, shift), np.square(of.rounding_about(reference, shift))) for of in local]
        squares, rounding = (common_average(network, np.array(spread).reshape(*B, 2 * d)) * m).reshape(2, d)
        totals = Totals(n_rows, weight, reference, shift, squares, np.sqrt(rounding))
    _check_squares(np.where(np.isfinite(totals.mean), totals.squares, np.inf))
    return totals


def _check_squares(squares: Array) -> None:
    """Raise PooledDataError unless all squares are finite."""
    if (overflown := np.flatnonzero(~np.isfinite(squares))).size:
        raise _overflow_of(overflown[0])


def _overflow_of(column: int) -> PooledDataError:
    column = int(column)
    return PooledDataError(
        f"the squares of column {column} overflow when summed over all agents; scale the data", column=column
    )


def _parts(weight: float) -> tuple[float, float]:
    """Split a weight into integer and fractional parts, since sums of integers are exact."""
    whole = math.floor(weight)
    return float(whole), weight - whole


@contextmanager
def _overflow(d: int) -> Iterator[None]:
    """Translate NotFiniteError, raised before sending, into PooledDataError for the column at fault."""
    try:
        yield
    except NotFiniteError as error:
        column = max(error.index - 3 * (error.phase == "mean"), 0) % d  # the first message starts with three counts
        raise _overflow_of(column) from None
