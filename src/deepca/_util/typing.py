"""Type aliases. Arrays are float64 with shape ``(*B, d, k)`` unless stated otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

if TYPE_CHECKING:
    Csr = sparse.csr_array[np.float64, tuple[int, int]]
else:
    Csr = sparse.csr_array  # older versions of scipy can be subscripted only in their stubs

Array = npt.NDArray[np.float64]
Orthonormalise = Callable[[Array], tuple[Array, Array]]
"""``S ↦ (W, R)`` with ``W R = S`` and ``WᵀW = I``, batched over leading axes."""
Rounds = int | Callable[[int], int] | Literal["auto"]
"""Rounds per iteration, K: a number, a schedule ``t ↦ K``, or "auto" (:mod:`deepca.consensus.pacing` chooses)."""
Seed = int | np.random.Generator | None
"""Seed of a random graph; None for a different graph every time."""


def csr(matrix: Any) -> Csr:
    """Convert a dense or sparse matrix to a float64 CSR array."""
    return cast("Csr", sparse.csr_array(matrix, dtype=np.float64))
