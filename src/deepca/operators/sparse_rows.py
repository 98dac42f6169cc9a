"""Operators that keep sparse rows and centre them without making them dense."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy import sparse

from deepca._util.machine import available_memory
from deepca._util.typing import Array, Csr, csr
from deepca.operators.base import AgentPool, Operator
from deepca.operators.dense_rows import DenseRows
from deepca.operators.preparation import NO_PREPARATION, Preparation, PreparedRows, gram_of
from deepca.operators.rounding import Rounding
from deepca.operators.sparse_centring import column_squares

__all__ = ["SparseRows"]


class SparseRows(PreparedRows[Csr]):
    """``A_j = c_j Y_jᵀY_j`` with sparse rows, multiplied for all agents as one block-diagonal product per core.

    Parameters
    ----------
    rows : sequence of csr_array of shape (n_j, d)
        One block per agent.
    scales : ndarray of shape (m,)
        The factors c_j.
    single : bool
        Whether there is a single agent, with ``B = ()``.
    workers : int, optional
        Cores that share large products; all usable ones by default.
    prepare : Preparation, optional
        Centring, scaling and weighting of the rows; none by default.

    Notes
    -----
    Only columns whose mean is far from zero are centred explicitly (:mod:`deepca.operators.sparse_centring`), since
    centring destroys sparsity. With ``Z = X W − 1 μᵀW``, ``A_j W = XᵀZ − μ 1ᵀZ``, where μ is the remaining mean.
    """

    def __init__(
        self,
        rows: Sequence[Csr],
        scales: Array,
        *,
        single: bool,
        workers: int | None = None,
        prepare: Preparation = NO_PREPARATION,
    ) -> None:
        super().__init__(rows, scales, single=single, prepare=prepare)
        ready = [prepare.sparse(X, j) for j, X in enumerate(rows)]
        scaled, left = [X for X, _ in ready], [mean for _, mean in ready if mean is not None]
        counts = [X.shape[0] for X in rows]
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._row_scale = np.repeat(scales, counts)[:, None]
        if prepare.weights is not None:
            self._row_scale = self._row_scale * np.concatenate(prepare.weights)[:, None]
        self._left = np.array(left) if left else None  # (m, d), what remains of the mean; products subtract it
        self.bytes_read = sum(2 * (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) for X in scaled)
        self._share = AgentPool(self.n_local, self.bytes_read, workers)
        # one block-diagonal matrix and its transpose per core, so Python makes one step per core instead of per agent
        parts = self._share.parts or [slice(0, len(rows))]
        self._diagonal = [csr(sparse.block_diag(scaled[part], format="csr")) for part in parts]
        self._transposed = [csr(X.T) for X in self._diagonal]

    def __matmul__(self, W: Array) -> Array:
        """Return ``A_j W_j`` for every agent, from one block-diagonal product per core."""
        W3 = W.reshape(-1, *W.shape[-2:])
        out = np.empty(W3.shape)
        self._share.run(lambda part: self._multiply(part, W3, out))
        return out.reshape(W.shape)

    def _multiply(self, part: slice, W: Array, out: Array) -> None:
        """Write ``A_j W_j`` of the agents in one part to ``out``."""
        which = self._share.parts.index(part) if self._share.parts else 0
        k = W.shape[-1]
        first, last = self._starts[part.start], self._starts[part.stop]
        Z = self._images(part, W)
        Z *= self._row_scale[first:last]
        product = np.asarray(self._transposed[which] @ Z).reshape(-1, self.d, k)
        if self._left is not None:
            sums = np.add.reduceat(Z, self._starts[part] - first, axis=0)
            product -= self._left[part][..., None] * sums[:, None, :]
        out[part] = product

    def _images(self, part: slice, W: Array) -> Array:
        """Return ``Y_jW_j`` of the agents in one part, stacked."""
        which = self._share.parts.index(part) if self._share.parts else 0
        Z = np.asarray(self._diagonal[which] @ W[part].reshape(-1, W.shape[-1]))
        if self._left is not None:
            # μᵀW_j, one row per agent; BLAS may round it by the alignment in memory, which differs between engines
            shift = np.einsum("jdk,jd->jk", W[part], self._left[part])
            Z -= np.repeat(shift, np.diff(self._starts[part.start : part.stop + 1]), axis=0)
        return Z

    @cached_property
    def _column_lengths(self) -> Array:
        lengths = np.empty((len(self.rows), self.d))
        for j, X in enumerate(self.rows):
            X, left = self._prepare.sparse(X, j)
            w = None if self._prepare.weights is None else self._prepare.weights[j]
            lengths[j] = np.sqrt(column_squares(X, w, np.zeros(self.d) if left is None else left))
        return lengths

    def agent(self, j: int) -> SparseRows:
        """Return the operator of agent j."""
        one = self._prepare.agent(j)
        return SparseRows(self.rows[j : j + 1], self.scales[j : j + 1], single=True, workers=1, prepare=one)

    def dense(self) -> Array:
        """Return all ``A_j`` as explicit matrices."""
        if self._prepare is not NO_PREPARATION:
            return super().dense()
        return self._stack(gram_of(X, c) for X, c in zip(self.rows, self.scales, strict=True))

    def deflated(self, V: Array) -> Operator:
        """Deflate dense copies of the rows; project around each product if they exceed a quarter of the free memory."""
        if 8 * int(self._starts[-1]) * self.d > available_memory() // 4:
            return Deflated(self, V)
        dense = [np.asarray(X.toarray()) for X in self.rows]
        return DenseRows(dense, self.scales, single=not self.batch, workers=None, prepare=self._prepare).deflated(V)

    def gram(self, V: Array) -> Array:
        """Return ``VᵀA_jV`` from ``Y_jV``."""
        W = np.array(np.broadcast_to(V, (self.n_local, *V.shape)))
        parts = self._share.parts or [slice(0, self.n_local)]
        Z = np.concatenate([self._images(part, W) for part in parts]) * np.sqrt(self._row_scale)
        return self._stack(gram_of(Z[a:b], 1.0) for a, b in pairwise(self._starts))


class Deflated(Operator):
    """``(I − VVᵀ) A_j (I − VVᵀ)`` for rows that cannot be changed: vectors are projected around each product."""

    def __init__(self, A: Operator, V: Array) -> None:
        self._A, self._V = A, V
        self.batch, self.d, self.form = A.batch, A.d, A.form
        self.bytes_read, self.row_counts = A.bytes_read, A.row_counts

    def __matmul__(self, W: Array) -> Array:
        """Project, multiply, and project again."""
        return self._projected(self._A @ self._projected(W))

    def _projected(self, W: Array) -> Array:
        for _ in range(2):
            W = W - self._V @ (self._V.T @ W)
        return W

    def rounding(self) -> Rounding:
        """Return the bounds of the original operator."""
        return self._A.rounding()

    def agent(self, j: int) -> Deflated:
        """Return the deflated operator of agent j."""
        return Deflated(self._A.agent(j), self._V)
