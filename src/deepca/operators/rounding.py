"""Bound how far rounding takes the computed ``A_j`` from the matrices that their rows define.

With Y_j the centred rows of agent j, every step from its rows to ``A_j = c Y_jᵀY_j`` is rounded, and the result is that
of rows ``Y_j + Δ_j``. Each agent bounds the norm of every column a of Δ_j by a number ``e_a``:

=================================== ==================================================================================
rows of one block                   ``x − reference``, then ``− shift``, is rounded relative to ``x − reference``, whose
                                    squares sum to ``q_a²``:  ``e_a = u q_a``
joined blocks or calls              ``e² = e₁² + e₂² + h δ² + (ε s)²``, with ``h = w₁w₂/(w₁+w₂)``, s the size of the
(``S₁ + S₂ + h a aᵀ``)              column, and δ a bound on the error of ``a``, the difference of two means
forgetting earlier rows             S and ``e²`` shrink by the same factor
moving to the agreed mean           as for joined blocks, with ``w`` times the difference. An error c of the agreed mean
                                    only adds ``w_j c cᵀ``: terms of first order cancel in the mean over agents
dividing columns by units           e is divided as well; a relative error η of a unit adds ``η s``
products of kept rows               the error of ``Yᵀ(YW)`` is that of ``e = u s``
implicitly centred sparse rows      products have x in place of ``x − mean``:  ``e = u √(Σ w x²)``
=================================== ==================================================================================

The stacked and scaled rows of all agents have the norm ``√λ₁``, where λ₁ is the norm of the mean ``A``. So with
``E² = mean_j c ‖e_j‖²``, to which every agent contributes,

    ‖Ã − A‖₂ ≤ 2 √λ₁ E + E² + P + g λ₁.

P is the mean of the rounding errors ``ε ‖A_j‖_F`` of products with explicit matrices, and ``g = ε √n / 2`` accounts for
long sums of numbers of one sign, which lose more digits than other sums: n is the length of the longest. ``u = 4ε``.
Rounding errors are assumed to be independent (Higham and Mary, 2019), so that sums of n numbers are off by √n and not n
units; nothing else is assumed.

The longest sum of all agents is that of a single one. Agents that only know totals replace ``g λ₁`` by the smaller of

    √(Σ_j g_j²) λ₁    and    √(λ₁ · mean_j g_j² ‖A_j‖₂).

The first is larger than ``g λ₁`` since ``max_j g_j ≤ √(Σ_j g_j²)``. For the second, let Δ_j be the error of ``A_j`` due
to long sums, ‖x‖₂ = 1, and ``s_j = xᵀA_jx``, so that ``|xᵀΔ_jx| ≤ g_j s_j``, ``s_j ≤ ‖A_j‖₂`` and ``mean s_j ≤ λ₁``.
Then ``|mean xᵀΔ_jx| ≤ mean g_j s_j ≤ √(mean s_j · mean g_j² s_j)`` by the inequality of Cauchy and Schwarz. It is at
least ``λ₁ min_j g_j``, and thus ``g λ₁`` where the longest sums of all agents are equally long.

References
----------
N. J. Higham and T. Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM Journal on Scientific
Computing 41 (2019).
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
"""Relative error u of a few consecutive operations."""


def growth(n: int) -> float:
    """Estimate the relative rounding error of a sum of n numbers of the same sign."""
    return 0.5 * EPS * math.sqrt(n)


@dataclass(frozen=True)
class Rounding:
    """Bounds on the rounding errors of the ``A_j`` of the local agents.

    Parameters
    ----------
    rows : ndarray of shape B
        ``c ‖e_j‖²``, the squared norm of the error of the rows.
    products : ndarray of shape B
        Errors of products with explicit matrices, for ``‖W‖₂ = 1``.
    growth : ndarray of shape B
        Relative error of the longest sum, :func:`growth`.
    shift : float, default=0.0
        Amount by which the norm of the mean of ``c Y_jᵀY_j`` may exceed that of the mean of the ``A_j``.
    sizes : ndarray of shape B, optional
        Bounds on ``‖c Y_jᵀY_j‖₂``; None if unknown.
    """

    rows: Array
    products: Array
    growth: Array
    shift: float = 0.0
    sizes: Array | None = None

    @classmethod
    def none(cls, batch: tuple[int, ...]) -> Rounding:
        """Return bounds of zero, for operators without known errors."""
        return cls(np.zeros(batch), np.zeros(batch), np.zeros(batch))

    def select(self, which: int | npt.NDArray[np.int64]) -> Rounding:
        """Return the bounds of the given agents of a batch."""
        rows, products, sums = (np.asarray(of[which]) for of in (self.rows, self.products, self.growth))
        sizes = None if self.sizes is None else np.asarray(self.sizes[which])
        return replace(self, rows=rows, products=products, growth=sums, sizes=sizes)

    def bound(self, largest: float, rows: float, products: float, growth: float, spread: float = math.inf) -> float:
        """Bound ``‖Ã − A‖₂``, given λ₁ and what the agents agree on.

        Parameters
        ----------
        largest : float
            The eigenvalue λ₁.
        rows, products : float
            Means over all agents.
        growth : float
            Upper bound on the growth of all agents.
        spread : float, default=inf
            ``mean_j g_j² ‖A_j‖₂``, with g_j the growth of agent j; inf if unknown.

        Returns
        -------
        float
            The bound.
        """
        largest += self.shift
        sums = min(growth * largest, math.sqrt(largest) * math.sqrt(spread))
        return 2.0 * math.sqrt(largest) * math.sqrt(rows) + rows + products + sums
