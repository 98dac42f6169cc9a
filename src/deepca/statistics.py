"""Row counts, mean and spread of all rows, agreed among neighbours.

What leaves an agent: its number of rows, its weight, its weighted sum of rows and, about the agreed mean, its sum of
rows (what rounding left out) and of squares by column; each averaged exactly, the same bits at every agent
(:mod:`deepca.exact`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._typing import Array
from deepca.averaging import common_average
from deepca.data.moments import Moments
from deepca.errors import DataError
from deepca.networks.base import Network

__all__ = ["Totals", "agreed_totals"]

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Totals:
    """Of all rows together, the same bits at every agent.

    n_rows : rows with a weight.  weight : their weights together.
    reference, shift : ``(d,)``, whose sum is the mean.
    squares : ``(d,)``, ``Σ w (x − mean)²``.
    """

    n_rows: int
    weight: float
    reference: Array
    shift: Array
    squares: Array

    @property
    def mean(self) -> Array:
        """``(d,)``, rounded to one number each."""
        return self.reference + self.shift

    def squares_about_zero(self) -> Array:
        """``Σ w x²`` by column."""
        return self.squares + self.weight * np.square(self.mean)

    @property
    def constant(self) -> npt.NDArray[np.bool_]:
        """Which columns have one value only: all that is left of them is the rounding of their mean."""
        return np.asarray(self.squares <= max(self.weight, 1.0) * np.square(16.0 * _EPS * self.mean))

    @property
    def n_counted(self) -> int:
        """Rows, each as often as its weight says; where weights are small, at least as many as there are."""
        return max(self.n_rows, int(self.weight))


def agreed_totals(network: Network, local: Sequence[Moments]) -> Totals:
    """Counts, mean and squares over all agents from the moments of the local ones.

    The squares are taken about the agreed mean, not about zero: nothing cancels for data far away from zero.
    """
    m, d, B = network.n_agents, local[0].shift.size, network.batch
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is looked for and named
        sums = np.array([[of.n, of.weight, *(of.weight * of.mean)] for of in local]).reshape(*B, d + 2)
        network.begin(network.epoch, 0, "mean")
        found = common_average(network, sums)
        n_rows, weight = round(float(found[0]) * m), float(found[1]) * m
        if abs(weight - round(weight)) <= 1e-11 * max(weight, 1.0):  # counts and whole weights stay whole
            weight = float(round(weight))
        reference = found[2:] / found[1] if weight > 0.0 else np.zeros(d)
        # what rounding left out of the mean: it would enter products of the agents' own means to first order
        left = np.array([of.weight * of.apart(reference, np.zeros(d)) for of in local]).reshape(*B, d)
        network.begin(network.epoch, 0, "remainder")
        shift = common_average(network, left) / found[1] if weight > 0.0 else np.zeros(d)
        network.begin(network.epoch, 0, "spread")
        squares = np.array([of.squares_about(reference, shift) for of in local]).reshape(*B, d)
        totals = Totals(n_rows, weight, reference, shift, common_average(network, squares) * m)
    if not (np.isfinite(totals.mean).all() and np.isfinite(totals.squares).all()):
        columns = np.flatnonzero(~(np.isfinite(totals.mean) & np.isfinite(totals.squares)))
        raise DataError(f"the squares of column {columns[0]} overflow when taken over all agents; scale the data")
    return totals
