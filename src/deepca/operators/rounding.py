"""Bound how far the ``A_j`` that agents multiply with may be from those that their rows define.

Every number that leads from rows to ``A_j = c Y_jᵀY_j`` is rounded, Y_j the centred rows. What comes out is as if the
rows were ``Y_j + Δ_j``. Each agent bounds the columns of Δ_j, by one number ``e_a`` per column a:

=================================== ==================================================================================
rows of one block                   ``x − reference``, then ``− shift``, is rounded relative to ``x − reference``, whose
                                    squares sum to ``q_a²``:  ``e_a = u q_a``
blocks, or calls, joined            ``e² = e₁² + e₂² + h δ² + (ε s)²``, with ``h = w₁w₂/(w₁+w₂)``, s the size of the
(``S₁ + S₂ + h a aᵀ``)              column, and δ a bound on the error of ``a``, the difference of two means
earlier rows forgotten              S and ``e²`` shrink by the same factor
another centre (the agreed mean)    as joined, with ``w`` times the difference. An error c of the agreed mean itself
                                    adds ``w_j c cᵀ`` and no more: terms of first order cancel in the mean over agents
columns divided by units            e is, too; a relative error η of a unit adds ``η s``
products made from rows             ``Yᵀ(YW)`` is off by as much as with ``e = u s``
sparse rows, centred implicitly     products with x in place of ``x − mean``:  ``e = u √(Σ w x²)``
=================================== ==================================================================================

Put below each other, the rows of all agents have the norm ``√λ₁``, λ₁ that of the mean ``A``. So with
``E² = mean_j c ‖e_j‖²``, to which every agent adds its part,

    ‖Ã − A‖₂ ≤ 2 √λ₁ E + E² + P + g λ₁.

P is the mean of what products with explicit matrices round, ``ε ‖A_j‖_F``, and ``g = ε √n / 2`` stands for long sums
of numbers of one sign, which lose more than others. ``u = 4ε``. Rounding errors are taken as independent (Higham &
Mary 2019) in that sums of n numbers are off by √n and not n units; nothing else is assumed of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.typing import Array

__all__ = ["UNIT", "Rounding", "growth"]

UNIT = 4.0 * EPS
"""What a few operations in a row may do to a number, relative to it."""


def growth(n: int) -> float:
    """Relative to the sum of n numbers of one sign, what it may be off by."""
    return 0.5 * EPS * math.sqrt(n)


@dataclass(frozen=True)
class Rounding:
    """What may be wrong with the ``A_j`` of the local agents; arrays of shape ``batch``.

    rows : ``c ‖e_j‖²``, the squared length of what may be wrong with the rows.  products : what may be wrong with
    products, for ``‖W‖₂ = 1``.  growth : that of the longest sum.  shift : by how much the norm of the mean of
    ``c Y_jᵀY_j`` may exceed that of the mean of the A_j.
    """

    rows: Array
    products: Array
    growth: Array
    shift: float = 0.0

    @classmethod
    def none(cls, batch: tuple[int, ...]) -> Rounding:
        return cls(np.zeros(batch), np.zeros(batch), np.zeros(batch))

    def some(self, which: int | npt.NDArray[np.int64]) -> Rounding:
        """Of some agents of a batch."""
        rows, products, sums = (np.asarray(of[which]) for of in (self.rows, self.products, self.growth))
        return replace(self, rows=rows, products=products, growth=sums)

    def bound(self, largest: float, rows: float, products: float, growth: float) -> float:
        """``‖Ã − A‖₂`` at most, from λ₁ and what all agents agree on: two means, and the largest growth."""
        largest += self.shift
        return 2.0 * math.sqrt(largest) * math.sqrt(rows) + rows + products + growth * largest
