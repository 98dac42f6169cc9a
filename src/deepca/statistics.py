"""Row counts, mean and spread of all rows, agreed by gossip.

What leaves an agent: its number of rows, its weight, its weighted sum of rows and, about the agreed mean, its sum of
squares by column; each averaged with its neighbours' until everyone has the same numbers, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepca._typing import Array
from deepca.averaging import average
from deepca.data.moments import Moments
from deepca.mixing import Chebyshev
from deepca.networks.base import Network

__all__ = ["Totals", "agreed_totals", "exact_average"]

_EPS = float(np.finfo(np.float64).eps)
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Totals:
    """Of all rows together, the same bits at every agent.

    n_rows : number of rows.  weight : their weights together.  mean : ``(d,)``, zero where nothing is centred.
    squares : ``(d,)``, ``Σ w (x − mean)²``.
    """

    n_rows: int
    weight: float
    mean: Array
    squares: Array

    @property
    def n_counted(self) -> int:
        """Rows, each as often as its weight says; where weights are small, at least as many as there are."""
        return max(self.n_rows, int(self.weight))


def agreed_totals(network: Network, local: Sequence[Moments], *, center: bool = True) -> Totals:
    """Counts, mean and squares over all agents from the moments of the local ones.

    The squares are taken about the agreed mean, not about zero: nothing cancels for data far away from zero.
    """
    m, d = network.n_agents, local[0].mean.size
    sums = np.array([[of.n, of.weight, *(of.weight * of.mean)] for of in local]).reshape(*network.batch, d + 2)
    network.begin(network.epoch, 0, "mean")
    found = exact_average(network, sums)
    n_rows, weight = round(float(found[0]) * m), float(found[1]) * m
    if abs(weight - n_rows) <= 1e-12 * n_rows:  # no weights: counts are whole
        weight = float(n_rows)
    mean = found[2:] / found[1] if center else np.zeros(d)
    network.begin(network.epoch, 0, "spread")
    squares = np.array([of.squares_about(mean) for of in local]).reshape(*network.batch, d)
    return Totals(n_rows, weight, mean, exact_average(network, squares) * m)


def exact_average(network: Network, x: Array) -> Array:
    """The mean over all agents of ``x``, shape ``(*B, n)``, to rounding; the same bits at every agent."""
    rounds = Chebyshev().rounds_for(network.topology, _EPS)
    return average(network, x, rounds, lambda found: found.doubt <= _ROUNDING * float(np.linalg.norm(found.mean))).mean
