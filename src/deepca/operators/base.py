"""What ``A_j`` is: rows of data, a covariance, or anything that multiplies symmetrically.

An :class:`Operator` holds the ``A_j`` of all local agents and multiplies them with ``W`` of shape ``(*B, d, k)``:
``B = (m,)`` for a simulator, ``()`` for one agent. Where ``A_j = X_jᵀX_j``, rows can be kept or turned into a
covariance; which is cheaper follows from n, d, m and memory (:func:`choose_form`) and can be forced.
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
from deepca._util.typing import Array
from deepca.errors import DataError, InvalidInput
from deepca.operators.rounding import Rounding

__all__ = ["Operator", "OperatorLike", "PerAgent"]

_WORTH_SHARING = 4 << 20  # bytes read per product above which a second core pays


class Operator(ABC):
    """``A_j`` of the local agents. ``A @ W`` multiplies agent by agent: ``(*B, d, k) → (*B, d, k)``."""

    batch: tuple[int, ...]
    d: int
    form: str
    bytes_read: int
    """Bytes that one product must read: the floor that timings are compared with."""
    row_counts: npt.NDArray[np.int64] | None = None
    """Rows behind each local ``A_j``, with shape ``batch``; None where unknown."""

    @abstractmethod
    def __matmul__(self, W: Array) -> Array: ...

    def rounding(self) -> Rounding:
        """How far products with the ``A_j`` may be from what their rows define (:mod:`deepca.operators.rounding`).

        It counts how each ``A_j`` was formed and what multiplying with it rounds; nothing where nothing is known.
        """
        return Rounding.none(self.batch)

    @abstractmethod
    def agent(self, j: int) -> Operator:
        """``A_j`` alone, with ``B = ()``."""

    def agents(self, which: npt.NDArray[np.int64]) -> Operator:
        """Those ``A_j`` of a batch, in that order."""
        return PerAgent([self.agent(int(j)) for j in which])

    def dense(self) -> Array:
        """All ``A_j`` as explicit matrices, ``(*B, d, d)``."""
        return self @ np.broadcast_to(np.eye(self.d), (*self.batch, self.d, self.d))

    @property
    def has_rows(self) -> bool:
        """Whether the rows behind ``A_j = c_j Y_jᵀY_j`` are at hand, so that :meth:`without` and :meth:`gram` work."""
        return False

    def without(self, V: Array) -> Operator:
        """Deflate at the rows: ``A_j`` of the rows ``Y_j(I − VVᵀ)``, V orthonormal ``(d, r)``.

        Its error is rounding relative to the rows, not to their squares.
        """
        raise DataError("only products of rows are at hand, not the rows")

    def gram(self, V: Array) -> Array:
        """``VᵀA_jV = c_j (Y_jV)ᵀ(Y_jV)``, ``(*B, k, k)``, good to rounding relative to the lengths of both columns."""
        raise DataError("only products of rows are at hand, not the rows")

    @property
    def n_local(self) -> int:
        """Number of agents held here."""
        return self.batch[0] if self.batch else 1

    def mean(self) -> Array:
        """``A = (1/m) Σ_j A_j`` as an explicit ``d × d`` matrix: the pooled problem, for references and tests."""
        if not self.batch:
            return self.dense()
        total = np.zeros((self.d, self.d))
        for j in range(self.n_local):
            total += self.agent(j).dense()
        return total / self.n_local

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_local} agents, d = {self.d}, form = {self.form!r})"


OperatorLike = Operator | npt.NDArray[Any] | LinearOperator[Any] | Sequence[Any]


class Shared:
    """Splits the agents of a large product over cores (BLAS releases the interpreter lock)."""

    def __init__(self, count: int, nbytes: int, workers: int | None) -> None:
        if workers is not None and workers < 1:
            raise InvalidInput(f"workers = {workers}: at least one core has to work")
        wanted = usable_cores() if workers is None else workers
        wanted = min(wanted, count) if nbytes >= _WORTH_SHARING else 1
        bounds = [count * i // wanted for i in range(wanted + 1)]
        self.parts = [slice(a, b) for a, b in pairwise(bounds)] if wanted > 1 else []
        self._whole = slice(0, count)
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_pool": None}

    def run(self, work: Callable[[slice], object]) -> None:
        if not self.parts:
            work(self._whole)
            return
        if self._pool is None or self._pool[0] != os.getpid():  # threads do not follow into a forked process
            self._pool = os.getpid(), ThreadPoolExecutor(len(self.parts) - 1, thread_name_prefix="deepca")
        others = [self._pool[1].submit(_quietly, work, part) for part in self.parts[1:]]
        work(self.parts[0])
        for other in others:
            other.result()


def _quietly(work: Callable[[slice], object], part: slice) -> None:
    """Overflow is looked for by the caller; error states do not follow into other threads."""
    with np.errstate(over="ignore", invalid="ignore"):
        work(part)


class PerAgent(Operator):
    """Agents whose ``A_j`` differ in kind (dense here, sparse there, a LinearOperator elsewhere)."""

    form = "mixed"

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = tuple(operators)
        self.batch, self.d = (len(operators),), operators[0].d
        self.bytes_read = sum(A.bytes_read for A in operators)
        counts = [A.row_counts for A in operators if A.row_counts is not None]
        self.row_counts = np.array(counts, dtype=np.int64) if len(counts) == len(operators) else None

    def __matmul__(self, W: Array) -> Array:
        return np.stack([A @ W[j] for j, A in enumerate(self.operators)])

    def rounding(self) -> Rounding:
        each = [A.rounding() for A in self.operators]
        rows, products, sums = (
            np.array(of) for of in zip(*((r.rows, r.products, r.growth) for r in each), strict=True)
        )
        return Rounding(rows, products, sums, max(r.shift for r in each))

    def agent(self, j: int) -> Operator:
        return self.operators[j]

    def dense(self) -> Array:
        return np.stack([A.dense() for A in self.operators])

    @property
    def has_rows(self) -> bool:
        return all(A.has_rows for A in self.operators)

    def without(self, V: Array) -> PerAgent:
        return PerAgent([A.without(V) for A in self.operators])

    def gram(self, V: Array) -> Array:
        return np.stack([A.gram(V) for A in self.operators])
