"""Array types used throughout. Arrays are float64 with shape ``(*B, d, k)`` unless said otherwise."""

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
"""K: a number, a schedule ``t ↦ K``, or "auto": chosen while running (:mod:`deepca.consensus.pacing`)."""


def csr(matrix: Any) -> Csr:
    """Any matrix, dense or sparse, as a float64 CSR array."""
    return cast("Csr", sparse.csr_array(matrix, dtype=np.float64))
