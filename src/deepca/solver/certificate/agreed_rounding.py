"""Agree on the sizes of the products ``A_j X``, and on how far rounding takes them from what the rows define.

Where sums are exact, agents add up what depends on their rows, and nobody learns the number of a single agent.
Elsewhere they agree on the largest one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from deepca._util.typing import Array
from deepca.network.base import Network
from deepca.network.sums import Addend, Unit
from deepca.operators.linalg import frobenius
from deepca.operators.rounding import Rounding

__all__ = ["SIZES_UNIT", "AgreedRounding", "rounding_addend"]

SIZES_UNIT = Unit(-240, 6)
"""Unit to try first for sizes of products, which may be large, and for squares of rounding errors, which are tiny."""


@dataclass(frozen=True)
class AgreedRounding:
    """Numbers about the ``A_j`` of all agents that bound rounding errors, the same at every agent.

    Parameters
    ----------
    size : float
        Size of products to which the rounding of their mean is relative: the mean of ``‖A_jX‖_F``, since the error of
        an exact mean is at most the mean of the errors; the largest ``‖A_jX‖_F`` where mixing adds errors of its own.
    rows, products : float
        Means of the numbers of :class:`~deepca.operators.rounding.Rounding`, or bounds on them.
    growth : float
        Upper bound on the growth of all agents: ``√(Σ_j g_j²)``, or the largest.
    spread : float, default=inf
        ``mean_j g_j² ‖A_j‖₂``; inf if unknown.
    """

    size: float
    rows: float
    products: float
    growth: float
    spread: float = math.inf

    @classmethod
    def from_means(cls, means: Array, n_agents: int) -> Self:
        """Return the numbers, given exact means of those in :func:`rounding_addend`, ``(6,)``."""
        unknown, size, rows, products, squares, spread = map(float, means)
        return cls(size, rows, products, math.sqrt(n_agents * squares), math.inf if unknown else spread)

    @classmethod
    def of_largest(cls, network: Network, AX: Array, rounding: Rounding) -> Self:
        """Agree on the largest numbers of any agent, by flooding; bounds of means need no more."""
        local = np.stack([frobenius(AX, axis=(-2, -1)), rounding.rows, rounding.products, rounding.growth], axis=-1)
        return cls(*map(float, network.reduce(local, "max")))

    @classmethod
    def of_products(cls, network: Network, AX: Array, rounding: Rounding) -> Self:
        """Agree on the numbers by an exact sum of their own if the network is reliable, else by flooding."""
        if not network.reliable:
            return cls.of_largest(network, AX, rounding)
        [total] = network.totals(rounding_addend(AX, rounding))
        return cls.from_means(total.value / network.n_agents, network.n_agents)

    def bound(self, rounding: Rounding, largest: float) -> float:
        """Bound ``‖Ã − A‖₂``, given λ₁ and an agent's own bounds, of which only the shift matters."""
        return rounding.bound(largest, self.rows, self.products, self.growth, self.spread)


def rounding_addend(AX: Array, rounding: Rounding) -> Addend:
    """Return the six numbers of each local agent for :class:`AgreedRounding`, given their ``A_j X``, ``(*B, d, k)``."""
    batch, sizes = AX.shape[:-2], rounding.sizes
    spread = np.zeros(batch) if sizes is None else np.square(rounding.growth) * sizes
    unknown, size = np.full(batch, float(sizes is None)), np.asarray(frobenius(AX, axis=(-2, -1)))
    numbers = [unknown, size, rounding.rows, rounding.products, np.square(rounding.growth), spread]
    return Addend("sizes and rounding errors", np.stack(numbers, axis=-1), guess=SIZES_UNIT, nonnegative=True)
