"""Operators that keep dense rows and multiply without forming the matrices ``A_j``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.operators.base import AgentPool
from deepca.operators.linalg import frobenius
from deepca.operators.preparation import NO_PREPARATION, Preparation, PreparedRows, gram_of

__all__ = ["DenseRows"]

_MAX_BLOCK_WORK = 1_000_000  # largest rows·d·k of one product; OpenBLAS slows down on larger skinny products
_MAX_STACKED_ENTRIES = 20_000  # largest X_j whose product costs less than the Python step for one agent


class DenseRows(PreparedRows[npt.NDArray[Any]]):
    """``A_j = c_j Y_jᵀY_j`` with Y_j the prepared dense rows of agent j, multiplied in cache-sized blocks.

    Parameters
    ----------
    rows : sequence of ndarray of shape (n_j, d)
        One array per agent. Large ones are not copied and may be memory-mapped: they are centred block by block.
    scales : ndarray of shape (m,)
        The factors c_j.
    single : bool
        Whether there is a single agent, with ``B = ()``.
    workers : int or None
        Cores that share large products; all usable ones if None.
    prepare : Preparation, optional
        Centring, scaling and weighting of the rows; none by default.
    """

    def __init__(
        self,
        rows: Sequence[npt.NDArray[Any]],
        scales: Array,
        *,
        single: bool,
        workers: int | None,
        prepare: Preparation = NO_PREPARATION,
    ) -> None:
        super().__init__(rows, scales, single=single, prepare=prepare)
        self.bytes_read = sum(X.nbytes for X in rows)
        # an agent's products must not depend on the other agents, so its rows alone decide how they are computed
        padded = [_padded(X.shape[0]) if X.size <= _MAX_STACKED_ENTRIES else 0 for X in rows]
        self._stacks = [self._stack_of(n, np.flatnonzero(np.array(padded) == n)) for n in sorted({*padded} - {0})]
        self._large = np.flatnonzero(np.array(padded) == 0)
        self._share = AgentPool(len(self._large), sum(rows[j].nbytes for j in self._large.tolist()), workers)

    def _stack_of(self, n: int, agents: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Array]:
        """Return agents and their weighted rows, padded with zero rows to n, which do not change products."""
        stack = np.zeros((len(agents), n, self.d))
        for own, j in zip(stack, agents.tolist(), strict=True):
            own[: self.rows[j].shape[0]] = self._weighted_rows(j)
        return agents, stack

    def __matmul__(self, W: Array) -> Array:
        """Return ``A_j W_j`` for every agent: in one product for those with few rows, block by block for the others."""
        Wt = np.swapaxes(W, -1, -2).reshape(-1, W.shape[-1], self.d)
        out = np.zeros(Wt.shape)
        for agents, Y in self._stacks:
            some = slice(None) if len(agents) == len(self.rows) else agents
            out[some] = np.matmul(np.matmul(Wt[some], np.swapaxes(Y, -1, -2)), Y) * self.scales[agents, None, None]
        if len(self._large):
            self._share.run(lambda part: self._accumulate_part(part, Wt, out))
        return np.swapaxes(out, -1, -2) if self.batch else out[0].T

    def _accumulate_part(self, part: slice, Wt: Array, out: Array) -> None:
        for j in self._large[part].tolist():
            self._accumulate(j, Wt[j], out[j])

    def _accumulate(self, j: int, Wt: Array, out: Array) -> None:
        """Add ``(A_j W_j)ᵀ`` to ``out``, block by block."""
        X = self.rows[j]
        step = max(1, _MAX_BLOCK_WORK // max(1, Wt.size))
        for first in range(0, X.shape[0], step):
            block = self._prepare.rows(X[first : first + step])
            inner = Wt @ block.T
            if self._prepare.weights is not None:
                inner *= self._prepare.weights[j][first : first + step]
            out += inner @ block
        out *= self.scales[j]

    def _weighted_rows(self, j: int) -> Array:
        """Return the prepared rows of agent j, each multiplied by the root of its weight."""
        Y = self._prepare.rows(self.rows[j])
        return Y if self._prepare.weights is None else Y * np.sqrt(self._prepare.weights[j])[:, None]

    @cached_property
    def _column_lengths(self) -> Array:
        return np.array([self._lengths_of(j) for j in range(len(self.rows))])

    def _lengths_of(self, j: int) -> Array:
        """Return the lengths of the columns of the weighted rows of agent j, block by block."""
        X, step = self.rows[j], max(1, _MAX_BLOCK_WORK // max(1, self.d))
        lengths = np.zeros(self.d)
        for first in range(0, X.shape[0], step):
            block = self._prepare.rows(X[first : first + step])
            if self._prepare.weights is not None:
                block = block * np.sqrt(self._prepare.weights[j][first : first + step])[:, None]
            lengths = np.hypot(lengths, frobenius(block, axis=0))
        return lengths

    def agent(self, j: int) -> DenseRows:
        """Return the operator of agent j."""
        one = self._prepare.agent(j)
        return DenseRows(self.rows[j : j + 1], self.scales[j : j + 1], single=True, workers=1, prepare=one)

    def dense(self) -> Array:
        """Return all ``A_j`` as explicit matrices."""
        return self._stack(gram_of(self._weighted_rows(j), c) for j, c in enumerate(self.scales))

    def deflated(self, V: Array) -> DenseRows:
        """Deflate the rows as part of their preparation."""
        return DenseRows(
            self.rows, self.scales, single=not self.batch, workers=None, prepare=replace(self._prepare, projected_out=V)
        )

    def gram(self, V: Array) -> Array:
        """Return ``VᵀA_jV`` from ``Y_jV``."""
        return self._stack(gram_of(self._product(j, V), c) for j, c in enumerate(self.scales))

    def _product(self, j: int, V: Array) -> Array:
        """Return ``Y_jV``, each row multiplied by the root of its weight."""
        X, step = self.rows[j], max(1, _MAX_BLOCK_WORK // max(1, V.size))
        Z = np.concatenate([self._prepare.rows(X[i : i + step]) @ V for i in range(0, X.shape[0], step)])
        return Z if self._prepare.weights is None else Z * np.sqrt(self._prepare.weights[j])[:, None]


def _padded(n: int) -> int:
    """Return a number of rows of at least n, of which there are few, so that many agents have the same."""
    step = 1 << max(n.bit_length() - 3, 0)
    return -(-n // step) * step
