"""Base class of operators, which represent the matrices ``A_j`` by rows, covariances or any symmetric product.

An :class:`Operator` has the ``A_j`` of all local agents and multiplies them by ``W`` of shape ``(*B, d, k)``:
``B = (m,)`` in a simulator, ``()`` for a single agent. For ``A_j = X_jᵀX_j`` it keeps the rows or forms the covariance;
:func:`~deepca.operators.choose_form` chooses the cheaper form from n, d, m and memory if none is given.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from deepca._util.machine import usable_cores
from deepca._util.renamed import renamed_attributes
from deepca._util.typing import Array
from deepca._util.units import counted
from deepca._util.validation import NONE, Integer, check
from deepca.errors import DataError
from deepca.operators.rounding import Rounding

__all__ = ["MixedOperator", "Operator", "OperatorLike"]

_MIN_SHARED_BYTES = 4 << 20  # smallest number of bytes read per product for which a second core pays off


@renamed_attributes(without="deflated")
class Operator(ABC):
    """The ``A_j`` of the local agents; ``A @ W`` is ``A_j W_j`` for each of them, ``(*B, d, k) → (*B, d, k)``.

    Attributes
    ----------
    batch : tuple of int
        B: ``(m,)`` for m local agents, ``()`` for a single agent.
    d : int
        Number of features.
    form : str
        "rows", "covariance", "operator" or "mixed".
    bytes_read : int
        Bytes that one product must read, as a lower bound on its time.
    row_counts : ndarray of int of shape B or None
        Rows behind each local ``A_j``; None if unknown.
    """

    batch: tuple[int, ...]
    d: int
    form: str
    bytes_read: int
    row_counts: npt.NDArray[np.int64] | None = None

    @abstractmethod
    def __matmul__(self, W: Array) -> Array:
        """Return ``A_j W_j`` for every local agent."""

    def rounding(self) -> Rounding:
        """Bound the error of products with the ``A_j``, relative to what their rows define.

        Returns
        -------
        Rounding
            Errors of forming each ``A_j`` and of multiplying by it (:mod:`deepca.operators.rounding`); zero if unknown.
        """
        return Rounding.none(self.batch)

    def row_bounds(self) -> Array | None:
        """Bound the entries of ``A_j w`` for all w with ‖w‖₂ = 1, up to rounding.

        Returns
        -------
        ndarray of shape (*B, d) or None
            Bounds on the absolute values of the entries; None if none are known. With bounds that are too small, sums
            take more rounds.
        """
        return None

    @abstractmethod
    def agent(self, j: int) -> Operator:
        """Return a single ``A_j``, with ``B = ()``.

        Parameters
        ----------
        j : int
            Index of the agent within the batch.

        Returns
        -------
        Operator
            ``A_j``.
        """

    def agents(self, which: npt.NDArray[np.int64]) -> Operator:
        """Return the ``A_j`` of the given agents, in the given order.

        Parameters
        ----------
        which : ndarray of int
            Indices of the agents within the batch.

        Returns
        -------
        Operator
            Their ``A_j``, with ``B = (len(which),)``.
        """
        return MixedOperator([self.agent(int(j)) for j in which])

    def dense(self) -> Array:
        """Return all ``A_j`` as explicit matrices.

        Returns
        -------
        ndarray of shape (*B, d, d)
            The matrices.
        """
        return self @ np.broadcast_to(np.eye(self.d), (*self.batch, self.d, self.d))

    @property
    def has_rows(self) -> bool:
        """True if the rows behind ``A_j = c_j Y_jᵀY_j`` are available, as :meth:`deflated` and :meth:`gram` require."""
        return False

    def deflated(self, V: Array) -> Operator:
        """Deflate the rows: return the ``A_j`` of ``Y_j(I − VVᵀ)``.

        Parameters
        ----------
        V : ndarray of shape (d, r)
            Orthonormal columns to project out.

        Returns
        -------
        Operator
            The deflated ``A_j``, with rounding errors relative to the rows, not to their squares.

        Raises
        ------
        DataError
            If the rows are not available (:attr:`has_rows`).
        """
        raise _rows_unavailable_error()

    def gram(self, V: Array) -> Array:
        """Return ``VᵀA_jV = c_j (Y_jV)ᵀ(Y_jV)``.

        Parameters
        ----------
        V : ndarray of shape (d, k)
            Columns.

        Returns
        -------
        ndarray of shape (*B, k, k)
            Gram matrices, each entry accurate to rounding relative to the lengths of its two columns.

        Raises
        ------
        DataError
            If the rows are not available (:attr:`has_rows`).
        """
        raise _rows_unavailable_error()

    @property
    def n_local(self) -> int:
        """Number of local agents."""
        return self.batch[0] if self.batch else 1

    def mean(self) -> Array:
        """Return the mean of the local ``A_j``; if all agents are local, the matrix that pooling their data would give.

        Returns
        -------
        ndarray of shape (d, d)
            ``A = (1/m) Σ_j A_j``.
        """
        if not self.batch:
            return self.dense()
        total = np.zeros((self.d, self.d))
        for j in range(self.n_local):
            total += self.agent(j).dense()
        return total / self.n_local

    def __repr__(self) -> str:
        """Name the class, the number of agents, d and the form."""
        return f"{type(self).__name__}({counted(self.n_local, 'agent')}, d = {self.d}, form = {self.form!r})"


OperatorLike = Operator | npt.NDArray[Any] | LinearOperator[Any] | Sequence[Any]


def _rows_unavailable_error() -> DataError:
    return DataError("the rows behind A_j are not available, only products with A_j; give rows instead of matrices")


class AgentPool:
    """Thread pool that splits the agents of a large product over cores (BLAS releases the GIL)."""

    def __init__(self, count: int, nbytes: int, workers: int | None) -> None:
        check("workers", workers, Integer(1), NONE, meaning="cores that share a product")
        wanted = usable_cores() if workers is None else workers
        wanted = min(wanted, count) if nbytes >= _MIN_SHARED_BYTES else 1
        bounds = [count * i // wanted for i in range(wanted + 1)]
        self.parts = [slice(a, b) for a, b in pairwise(bounds)] if wanted > 1 else []
        self._whole = slice(0, count)
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Leave out the thread pool, which cannot be pickled."""
        return {**self.__dict__, "_pool": None}

    def run(self, work: Callable[[slice], object]) -> None:
        """Call ``work`` with slices of the agents, one slice per core."""
        if not self.parts:
            work(self._whole)
            return
        if self._pool is None or self._pool[0] != os.getpid():  # threads do not survive a fork
            self._pool = os.getpid(), ThreadPoolExecutor(len(self.parts) - 1, thread_name_prefix="deepca")
        others = [self._pool[1].submit(_without_warnings, work, part) for part in self.parts[1:]]
        work(self.parts[0])
        for other in others:
            other.result()


def _without_warnings(work: Callable[[slice], object], part: slice) -> None:
    """Ignore overflow, which the caller checks for; every thread has its own error state in numpy."""
    with np.errstate(over="ignore", invalid="ignore"):
        work(part)


class MixedOperator(Operator):
    """Operator of agents whose ``A_j`` differ in kind (dense, sparse, LinearOperator).

    Parameters
    ----------
    operators : sequence of Operator
        One operator per agent, each with ``B = ()`` and the same d.
    """

    form = "mixed"

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = tuple(operators)
        self.batch, self.d = (len(operators),), operators[0].d
        self.bytes_read = sum(A.bytes_read for A in operators)
        counts = [A.row_counts for A in operators if A.row_counts is not None]
        self.row_counts = np.array(counts, dtype=np.int64) if len(counts) == len(operators) else None

    def __matmul__(self, W: Array) -> Array:
        """Return ``A_j W_j`` for every agent."""
        return np.stack([A @ W[j] for j, A in enumerate(self.operators)])

    def rounding(self) -> Rounding:
        """Collect the bounds on the rounding errors of all agents."""
        each = [A.rounding() for A in self.operators]
        rows, products, sums = (
            np.array(of) for of in zip(*((r.rows, r.products, r.growth) for r in each), strict=True)
        )
        sizes = [r.sizes for r in each if r.sizes is not None]
        known = np.array(sizes) if len(sizes) == len(each) else None
        return Rounding(rows, products, sums, max(r.shift for r in each), known)

    def row_bounds(self) -> Array | None:
        """Collect the bounds of all agents; None if one has none."""
        bounds = [A.row_bounds() for A in self.operators]
        return None if any(one is None for one in bounds) else np.array(bounds)

    def agent(self, j: int) -> Operator:
        """Return the operator of agent j."""
        return self.operators[j]

    def dense(self) -> Array:
        """Return all ``A_j`` as explicit matrices."""
        return np.stack([A.dense() for A in self.operators])

    @property
    def has_rows(self) -> bool:
        """True if all agents have their rows."""
        return all(A.has_rows for A in self.operators)

    def deflated(self, V: Array) -> MixedOperator:
        """Deflate the rows of every agent."""
        return MixedOperator([A.deflated(V) for A in self.operators])

    def gram(self, V: Array) -> Array:
        """Return ``VᵀA_jV`` of every agent."""
        return np.stack([A.gram(V) for A in self.operators])
