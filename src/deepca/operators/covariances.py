"""``A_j`` held as matrices: ``(*B, d, d)``."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.operators.base import Operator, Shared
from deepca.operators.linalg import frobenius
from deepca.operators.rounding import Rounding, growth

__all__ = ["Covariances"]


class RowsAgain(Protocol):
    """Rows behind explicit matrices, to be read once more where their products do not tell enough."""

    def scatters(self, V: Array) -> Array:
        """``A_j`` of the rows without their part in span V: ``(agents, d, d)``."""
        ...

    def grams(self, V: Array) -> Array:
        """``VᵀA_jV`` through the rows: ``(agents, k, k)``."""
        ...


class Covariances(Operator):
    """Explicit symmetric matrices, ``(m, d, d)`` or ``(d, d)``.

    formed : how far they may be from what their rows define; not at all by default.
    rows : that they were made from, if still at hand.
    """

    form = "covariance"

    def __init__(
        self,
        stack: Array,
        *,
        workers: int | None = None,
        row_counts: npt.NDArray[np.int64] | None = None,
        formed: Rounding | None = None,
        rows: RowsAgain | None = None,
    ) -> None:
        self.stack, self.row_counts = np.ascontiguousarray(stack, dtype=np.float64), row_counts
        self._formed, self._rows = formed, rows
        self.batch, self.d = self.stack.shape[:-2], self.stack.shape[-1]
        self.bytes_read = self.stack.nbytes
        self._share = Shared(self.n_local, self.bytes_read, workers)

    def __matmul__(self, W: Array) -> Array:
        # A_j is symmetric, so (A_j W_j)ᵀ = W_jᵀ A_j: the same product with the long side where BLAS is fast
        Wt = np.swapaxes(W, -1, -2)
        if not self._share.parts:
            return np.swapaxes(np.matmul(Wt, self.stack), -1, -2)
        out = np.empty(Wt.shape)
        self._share.run(lambda part: np.matmul(Wt[part], self.stack[part], out=out[part]))
        return np.swapaxes(out, -1, -2)

    def rounding(self) -> Rounding:
        formed = Rounding.none(self.batch) if self._formed is None else self._formed
        sizes = np.array([float(frobenius(A)) for A in self.stack.reshape(-1, self.d, self.d)]).reshape(self.batch)
        return replace(formed, products=EPS * sizes, growth=np.maximum(formed.growth, growth(self.d)))

    def agent(self, j: int) -> Covariances:
        return self._some(j) if self.batch else self

    def agents(self, which: npt.NDArray[np.int64]) -> Covariances:
        return self._some(which)

    def _some(self, which: int | npt.NDArray[np.int64]) -> Covariances:
        counts = None if self.row_counts is None else np.asarray(self.row_counts[which])
        formed = None if self._formed is None else self._formed.some(which)
        return Covariances(self.stack[which], row_counts=counts, formed=formed)

    def dense(self) -> Array:
        return self.stack

    @property
    def has_rows(self) -> bool:
        return self._rows is not None

    def without(self, V: Array) -> Operator:
        if self._rows is None:
            return super().without(V)
        scatters = self._rows.scatters(V).reshape(self.stack.shape)
        return Covariances(scatters, row_counts=self.row_counts, formed=self._formed)

    def gram(self, V: Array) -> Array:
        if self._rows is None:
            return super().gram(V)
        return self._rows.grams(V).reshape(*self.batch, V.shape[1], V.shape[1])
