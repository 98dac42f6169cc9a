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
    Csr = sparse.csr_array  # subscripts exist only in the stubs of older scipy

Array = npt.NDArray[np.float64]
Orthonormalise = Callable[[Array], tuple[Array, Array]]
"""``S ↦ (W, R)`` with ``W R = S`` and ``WᵀW = I``, batched over leading axes."""
Rounds = int | Callable[[int], int] | Literal["auto"]
"""K: a number, a schedule ``t ↦ K``, or "auto", chosen during the run (:mod:`deepca.consensus.pacing`)."""
Seed = int | np.random.Generator | None
"""Seed of a random graph; None draws a fresh one."""


def csr(matrix: Any) -> Csr:
    """Convert a dense or sparse matrix to a float64 CSR array."""
    return cast("Csr", sparse.csr_array(matrix, dtype=np.float64))
