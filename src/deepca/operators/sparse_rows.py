"""``A_j`` held as sparse rows, centred without becoming dense."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy import sparse

from deepca._util.machine import available_memory
from deepca._util.typing import Array, Csr, csr
from deepca.operators.base import Operator, Shared
from deepca.operators.dense_rows import DenseRows
from deepca.operators.preparation import AS_THEY_ARE, Preparation, PreparedRows, gram_of
from deepca.operators.rounding import Rounding

__all__ = ["SparseRows"]


class SparseRows(PreparedRows[Csr]):
    """``A_j = c_j Y_jᵀY_j`` with CSR rows kept sparse; all agents in one block-diagonal product per core.

    Centring is carried out in columns far from zero only (:mod:`deepca.operators.sparse_centring`), elsewhere it would
    fill the zeros. With ``Z = X W − 1 μᵀW``, μ what is left of the mean, ``A_j W = XᵀZ − μ 1ᵀZ``.
    """

    def __init__(
        self,
        rows: Sequence[Csr],
        scales: Array,
        *,
        single: bool,
        workers: int | None = None,
        prepare: Preparation = AS_THEY_ARE,
    ) -> None:
        super().__init__(rows, scales, single=single, prepare=prepare)
        ready = [prepare.sparse(X, j) for j, X in enumerate(rows)]
        scaled, left = [X for X, _ in ready], [mean for _, mean in ready if mean is not None]
        counts = [X.shape[0] for X in rows]
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._row_scale = np.repeat(scales, counts)[:, None]
        if prepare.weights is not None:
            self._row_scale = self._row_scale * np.concatenate(prepare.weights)[:, None]
        self._left = np.array(left) if left else None  # of the mean, (m, d): what products subtract
        self.bytes_read = sum(2 * (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) for X in scaled)
        self._share = Shared(self.n_local, self.bytes_read, workers)
        # for every core one block-diagonal matrix, and its transpose: a Python step per core, none per agent
        parts = self._share.parts or [slice(0, len(rows))]
        self._diagonal = [csr(sparse.block_diag(scaled[part], format="csr")) for part in parts]
        self._transposed = [csr(X.T) for X in self._diagonal]

    def __matmul__(self, W: Array) -> Array:
        W3 = W.reshape(-1, *W.shape[-2:])
        out = np.empty(W3.shape)
        self._share.run(lambda part: self._multiply(part, W3, out))
        return out.reshape(W.shape)

    def _multiply(self, part: slice, W: Array, out: Array) -> None:
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
        """``Y_jW_j`` of those agents, one below the other."""
        which = self._share.parts.index(part) if self._share.parts else 0
        Z = np.asarray(self._diagonal[which] @ W[part].reshape(-1, W.shape[-1]))
        if self._left is not None:
            shift = np.swapaxes(W[part], -1, -2) @ self._left[part][..., None]  # μᵀW_j, one row for each agent
            Z -= np.repeat(shift[..., 0], np.diff(self._starts[part.start : part.stop + 1]), axis=0)
        return Z

    def agent(self, j: int) -> SparseRows:
        one = self._prepare.agent(j)
        return SparseRows(self.rows[j : j + 1], self.scales[j : j + 1], single=True, workers=1, prepare=one)

    def dense(self) -> Array:
        if self._prepare is not AS_THEY_ARE:
            return super().dense()
        return self._stack(gram_of(X, c) for X, c in zip(self.rows, self.scales, strict=True))

    def without(self, V: Array) -> Operator:
        """With dense rows where they fit into a quarter of the memory, which multiply the same way every time."""
        if 8 * int(self._starts[-1]) * self.d > available_memory() // 4:
            return Deflated(self, V)
        dense = [np.asarray(X.toarray()) for X in self.rows]
        return DenseRows(dense, self.scales, single=not self.batch, workers=None, prepare=self._prepare).without(V)

    def gram(self, V: Array) -> Array:
        W = np.array(np.broadcast_to(V, (self.n_local, *V.shape)))
        parts = self._share.parts or [slice(0, self.n_local)]
        Z = np.concatenate([self._images(part, W) for part in parts]) * np.sqrt(self._row_scale)
        return self._stack(gram_of(Z[a:b], 1.0) for a, b in pairwise(self._starts))


class Deflated(Operator):
    """``(I − VVᵀ) A_j (I − VVᵀ)``, projected before and after each product with rows that cannot be changed."""

    def __init__(self, A: Operator, V: Array) -> None:
        self._A, self._V = A, V
        self.batch, self.d, self.form = A.batch, A.d, A.form
        self.bytes_read, self.row_counts = A.bytes_read, A.row_counts

    def __matmul__(self, W: Array) -> Array:
        return self._projected(self._A @ self._projected(W))

    def _projected(self, W: Array) -> Array:
        for _ in range(2):
            W = W - self._V @ (self._V.T @ W)
        return W

    def rounding(self) -> Rounding:
        return self._A.rounding()

    def agent(self, j: int) -> Deflated:
        return Deflated(self._A.agent(j), self._V)
