"""Operators that store the matrices ``A_j`` explicitly."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from deepca._util.floats import EPS
from deepca._util.typing import Array
from deepca.operators.base import AgentPool, Operator
from deepca.operators.linalg import frobenius
from deepca.operators.rounding import Rounding, growth

__all__ = ["Covariances"]


class RereadableRows(Protocol):
    """Rows behind explicit matrices, to be read again where products with the matrices are not accurate enough."""

    def scatters(self, V: Array) -> Array:
        """Return the ``A_j``, ``(agents, d, d)``, of the rows without their components in the span of V."""
        ...

    def grams(self, V: Array) -> Array:
        """Return ``VᵀA_jV``, computed from the rows, of shape ``(agents, k, k)``."""
        ...


class Covariances(Operator):
    """Explicit symmetric matrices ``A_j``.

    Parameters
    ----------
    stack : ndarray of shape (m, d, d) or (d, d)
        The matrices of m agents, or of a single one.
    workers : int, optional
        Cores that share large products; all usable ones by default.
    row_counts : ndarray of int of shape B, optional
        Rows behind each matrix.
    formed : Rounding, optional
        Errors of the matrices relative to what their rows define; none by default.
    rows : RereadableRows, optional
        The rows behind the matrices, if they can be read again.
    """

    form = "covariance"

    def __init__(
        self,
        stack: Array,
        *,
        workers: int | None = None,
        row_counts: npt.NDArray[np.int64] | None = None,
        formed: Rounding | None = None,
        rows: RereadableRows | None = None,
    ) -> None:
        self.stack, self.row_counts = np.ascontiguousarray(stack, dtype=np.float64), row_counts
        self._formed, self._rows = formed, rows
        self.batch, self.d = self.stack.shape[:-2], self.stack.shape[-1]
        self.bytes_read = self.stack.nbytes
        self._share = AgentPool(self.n_local, self.bytes_read, workers)

    def __matmul__(self, W: Array) -> Array:
        """Return ``A_j W_j`` for every agent, on several cores if that pays off."""
        # A_j is symmetric, so (A_j W_j)ᵀ = W_jᵀ A_j; BLAS is faster with the long side last
        Wt = np.swapaxes(W, -1, -2)
        if not self._share.parts:
            return np.swapaxes(np.matmul(Wt, self.stack), -1, -2)
        out = np.empty(Wt.shape)
        self._share.run(lambda part: np.matmul(Wt[part], self.stack[part], out=out[part]))
        return np.swapaxes(out, -1, -2)

    def rounding(self) -> Rounding:
        """Bound the errors of forming the matrices, and those of products with them by ``ε ‖A_j‖_F``."""
        formed = Rounding.none(self.batch) if self._formed is None else self._formed
        sizes = np.array([float(frobenius(A)) for A in self.stack.reshape(-1, self.d, self.d)]).reshape(self.batch)
        return replace(formed, products=EPS * sizes, growth=np.maximum(formed.growth, growth(self.d)), sizes=sizes)

    def row_bounds(self) -> Array:
        """Return the lengths of the rows and columns of the matrices, which may differ by rounding."""
        return np.maximum(frobenius(self.stack, axis=-1), frobenius(self.stack, axis=-2))

    def agent(self, j: int) -> Covariances:
        """Return the matrix of agent j, without its rows."""
        return self._selected(j) if self.batch else self

    def agents(self, which: npt.NDArray[np.int64]) -> Covariances:
        """Return the matrices of the given agents, without their rows."""
        return self._selected(which)

    def _selected(self, which: int | npt.NDArray[np.int64]) -> Covariances:
        counts = None if self.row_counts is None else np.asarray(self.row_counts[which])
        formed = None if self._formed is None else self._formed.select(which)
        return Covariances(self.stack[which], row_counts=counts, formed=formed)

    def dense(self) -> Array:
        """Return the matrices themselves."""
        return self.stack

    @property
    def has_rows(self) -> bool:
        """True if the rows can be read again."""
        return self._rows is not None

    def deflated(self, V: Array) -> Operator:
        """Read the rows again, deflate them, and form their matrices."""
        if self._rows is None:
            return super().deflated(V)
        scatters = self._rows.scatters(V).reshape(self.stack.shape)
        return Covariances(scatters, row_counts=self.row_counts, formed=self._formed)

    def gram(self, V: Array) -> Array:
        """Read the rows again and compute ``VᵀA_jV`` from them."""
        if self._rows is None:
            return super().gram(V)
        return self._rows.grams(V).reshape(*self.batch, V.shape[1], V.shape[1])
