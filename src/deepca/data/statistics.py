"""Row counts, mean and spread of all rows, agreed among neighbours.

What leaves an agent: its number of rows, its weight, its weighted sum of rows and, about the agreed mean, its sum of
rows (what rounding left out), and of squares by column with what they may be off by; each averaged exactly, the same
bits at every agent (:mod:`deepca.consensus.exact`).
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
    """Of all rows together, the same bits at every agent.

    n_rows : rows with a weight.  weight : their weights together.
    reference, shift : ``(d,)``, whose sum is the mean.
    squares : ``(d,)``, ``Σ w (x − mean)²``.
    rounding : ``(d,)``, what rounding may have done to their roots, as :mod:`deepca.operators.rounding` has it.
    """

    n_rows: int
    weight: float
    reference: Array
    shift: Array
    squares: Array
    rounding: Array

    @property
    def mean(self) -> Array:
        """``(d,)``, rounded to one number each."""
        return self.reference + self.shift

    def squares_about_zero(self) -> Array:
        """Return ``Σ w x²`` by column; a DataError names the first that overflows."""
        with np.errstate(over="ignore"):
            squares = self.squares + self.weight * np.square(self.mean)
        _check_squares(squares)
        return squares

    @property
    def constant(self) -> npt.NDArray[np.bool_]:
        """Which columns have one value only: all that is left of them is rounding.

        Numbers that differ at all differ by a part of eps, and all but one of 1e15 of them may be equal.
        """
        spacing = np.square(EPS**1.5 * self.mean)
        return np.asarray(self.squares <= np.maximum(4.0 * np.square(self.rounding), self.weight * spacing))

    @property
    def unit_rounding(self) -> Array:
        """Relative errors of the columns' standard deviations, ``(d,)``."""
        return np.divide(self.rounding, np.sqrt(self.squares), out=np.zeros_like(self.squares), where=self.squares > 0)

    @property
    def n_counted(self) -> int:
        """Rows, each as often as its weight says; where weights are small, at least as many as there are."""
        return max(self.n_rows, int(self.weight))


def agreed_totals(network: Network, local: Sequence[Moments], *, weighted: bool = True) -> Totals:
    """Counts, mean and squares over all agents from the moments of the local ones.

    weighted : whether rows of any agent may have weights; if not, who says otherwise is named.

    The squares are taken about the agreed mean, not about zero: nothing cancels for data far away from zero.
    """
    m, d, B = network.n_agents, local[0].shift.size, network.batch
    with np.errstate(over="ignore", invalid="ignore"), _overflow(d):  # what does not fit is looked for and named
        sums = np.array([[of.n, *_parts(of.weight), *(of.weight * of.mean)] for of in local]).reshape(*B, d + 3)
        network.begin(network.epoch, 0, "mean")
        weights = Part("weights", 1, True, repeats=not weighted), Part("parts of weights", 1, True, zero=not weighted)
        network.expect(Part("row counts", 1, True, True), *weights, Part("sums of columns", d))
        found = common_average(network, sums)
        n_rows, weight = round(float(found[0]) * m), float(round(float(found[1]) * m)) + float(found[2]) * m
        reference = found[3:] / (weight / m) if weight > 0.0 else np.zeros(d)
        # what rounding left out of the mean: it would enter products of the agents' own means to first order
        left = np.array([of.weight * of.apart(reference, np.zeros(d)) for of in local]).reshape(*B, d)
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
    """Raise PooledDataError unless all of these are finite."""
    if (overflown := np.flatnonzero(~np.isfinite(squares))).size:
        raise _overflow_of(overflown[0])


def _overflow_of(column: int) -> PooledDataError:
    return PooledDataError(f"the squares of column {column} overflow when taken over all agents; scale the data")


def _parts(weight: float) -> tuple[float, float]:
    """The whole part and the rest. Means of whole parts tell their sum exactly, so that whole weights stay whole."""
    whole = math.floor(weight)
    return float(whole), weight - whole


@contextmanager
def _overflow(d: int) -> Iterator[None]:
    """Agents that are apart do not even send what is not finite; in the first message three counts come first."""
    try:
        yield
    except NotFiniteError as error:
        column = max(error.place - 3 * (error.phase == "mean"), 0) % d
        raise _overflow_of(column) from None
