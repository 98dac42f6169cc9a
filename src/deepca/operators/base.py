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
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from deepca._util.machine import available_memory, usable_cores
from deepca._util.masked import all_unmasked, unmasked
from deepca._util.typing import Array, Csr, csr
from deepca.errors import DataError, InvalidInput
from deepca.operators.linalg import frobenius
from deepca.operators.rounding import EPS, UNIT, Rounding, growth
from deepca.operators.sparse_centring import column_squares, far_columns, without_reference

__all__ = [
    "Covariances",
    "DenseRows",
    "Form",
    "Operator",
    "OperatorLike",
    "PerAgent",
    "Preparation",
    "SparseRows",
    "as_operator",
    "choose_form",
    "from_linear_operators",
    "from_matrices",
    "from_rows",
    "split_rows",
]

Form = Literal["auto", "rows", "covariance"]
_BLOCK = 1_000_000  # rows·d·k of one product: OpenBLAS slows down on larger skinny ones
_SMALL_AGENT = 20_000  # entries of X_j below which a Python step per agent would cost more than its product
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

    @abstractmethod
    def dense(self) -> Array:
        """All ``A_j`` as explicit matrices, ``(*B, d, d)``."""

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
        self._share = _Shared(self.n_local, self.bytes_read, workers)

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


@dataclass(frozen=True, eq=False)
class Preparation:
    """What happens to rows before they are multiplied: ``y = ((x − reference) − shift) / units``, ``weight`` times.

    The mean is subtracted in two parts: rounded to one number, it would be off by eps times its distance from zero.

    centre : reference and shift, each ``(d,)``, or None.  units : ``(d,)`` or None.
    weights : one ``(n_j,)`` per agent, or None.
    formed : what may be wrong with products of the y, one entry per agent; None where multiplying is all that rounds.
    away : orthonormal ``(d, r)``; the part of every row in its span is taken away.
    """

    centre: tuple[Array, Array] | None = None
    units: Array | None = None
    weights: tuple[Array, ...] | None = None
    formed: Rounding | None = None
    away: Array | None = None

    def rows(self, X: npt.NDArray[Any]) -> Array:
        """Some dense rows, prepared; copied only where something has to be done."""
        if self.centre is None:
            Y = np.asarray(X, dtype=np.float64)
        else:
            Y = np.subtract(X, self.centre[0], dtype=np.float64)
            Y -= self.centre[1]
        Y = Y if self.units is None else Y / self.units
        return Y if self.away is None else rows_without(Y, self.away)

    def sparse(self, X: Csr, j: int) -> tuple[Csr, Array | None]:
        """Rows of agent j, and what is left to subtract from them; the reference is, from columns far from zero."""
        left = None
        if self.centre is not None:
            reference, shift = self.centre
            left, w = reference + shift, None if self.weights is None else self.weights[j]
            far = far_columns(float(X.shape[0] if w is None else w.sum()), left, column_squares(X, w, left))
            X, left = without_reference(X, far, reference), np.where(far, shift, left)
        if self.units is not None:
            X, left = csr(X @ sparse.diags_array(1.0 / self.units)), None if left is None else left / self.units
        return X, left

    def agent(self, j: int) -> Preparation:
        weights = None if self.weights is None else self.weights[j : j + 1]
        formed = None if self.formed is None else self.formed.some(np.array([j]))
        return replace(self, weights=weights, formed=formed)


_AS_THEY_ARE = Preparation()


def rows_without(Y: Array, V: Array) -> Array:
    """``Y(I − VVᵀ)`` for orthonormal V; twice, so that what rounding leaves in span V is small beside what is left."""
    for _ in range(2):
        Y = Y - (Y @ V) @ V.T
    return Y


class DenseRows(Operator):
    """``A_j = c_j Y_jᵀY_j``, Y_j the dense rows of agent j after their preparation; in cache-sized blocks.

    Rows stay where they are, memory-mapped ones too: the mean is subtracted block by block before products are formed.
    """

    form = "rows"

    def __init__(
        self,
        rows: Sequence[npt.NDArray[Any]],
        scales: Array,
        *,
        single: bool,
        workers: int | None,
        prepare: Preparation = _AS_THEY_ARE,
    ) -> None:
        self.rows, self.scales, self._prepare = tuple(rows), scales, prepare
        self.batch, self.d = (() if single else (len(rows),)), rows[0].shape[1]
        self.row_counts = _counts(rows, self.batch)
        self.bytes_read = sum(X.nbytes for X in rows)
        self._share = _Shared(self.n_local, self.bytes_read, workers)
        sizes = [X.shape[0] for X in rows]
        self._stacked: Array | None = None
        if self.batch and max(sizes) * self.d <= _SMALL_AGENT and max(sizes) * len(sizes) <= 2 * sum(sizes) + 64:
            self._stacked = np.zeros((len(rows), max(sizes), self.d))  # zero rows change nothing
            for j, padded in enumerate(self._stacked):
                padded[: sizes[j]] = self._whole(j)

    def __matmul__(self, W: Array) -> Array:
        Wt = np.swapaxes(W, -1, -2)
        if self._stacked is not None:
            product = np.matmul(np.matmul(Wt, np.swapaxes(self._stacked, -1, -2)), self._stacked)
            return np.swapaxes(product * self.scales[:, None, None], -1, -2)
        out = np.zeros(Wt.shape)
        if not self.batch:
            self._accumulate(0, Wt, out)
        else:
            self._share.run(lambda part: self._accumulate_part(part, Wt, out))
        return np.swapaxes(out, -1, -2)

    def _accumulate_part(self, part: slice, Wt: Array, out: Array) -> None:
        for j in range(part.start, part.stop):
            self._accumulate(j, Wt[j], out[j])

    def _accumulate(self, j: int, Wt: Array, out: Array) -> None:
        X = self.rows[j]
        step = max(1, _BLOCK // max(1, Wt.size))
        for first in range(0, X.shape[0], step):
            block = self._prepare.rows(X[first : first + step])
            inner = Wt @ block.T
            if self._prepare.weights is not None:
                inner *= self._prepare.weights[j][first : first + step]
            out += inner @ block
        out *= self.scales[j]

    def rounding(self) -> Rounding:
        return _rows_rounding(self.rows, self.scales, self._prepare, self.batch)

    def _whole(self, j: int) -> Array:
        """The rows of agent j, prepared, each multiplied by the root of its weight."""
        Y = self._prepare.rows(self.rows[j])
        return Y if self._prepare.weights is None else Y * np.sqrt(self._prepare.weights[j])[:, None]

    def agent(self, j: int) -> DenseRows:
        one = self._prepare.agent(j)
        return DenseRows(self.rows[j : j + 1], self.scales[j : j + 1], single=True, workers=1, prepare=one)

    def dense(self) -> Array:
        stack = np.stack([_gram(self._whole(j), c) for j, c in enumerate(self.scales)])
        return stack if self.batch else stack[0]

    @property
    def has_rows(self) -> bool:
        return True

    def without(self, V: Array) -> DenseRows:
        return DenseRows(
            self.rows, self.scales, single=not self.batch, workers=None, prepare=replace(self._prepare, away=V)
        )

    def gram(self, V: Array) -> Array:
        found = np.stack([_gram(self._product(j, V), c) for j, c in enumerate(self.scales)])
        return found if self.batch else found[0]

    def _product(self, j: int, V: Array) -> Array:
        """``Y_jV``, each row multiplied by the root of its weight."""
        X, step = self.rows[j], max(1, _BLOCK // max(1, V.size))
        Z = np.concatenate([self._prepare.rows(X[i : i + step]) @ V for i in range(0, X.shape[0], step)])
        return Z if self._prepare.weights is None else Z * np.sqrt(self._prepare.weights[j])[:, None]


class SparseRows(Operator):
    """``A_j = c_j Y_jᵀY_j`` with CSR rows kept sparse; all agents in one block-diagonal product per core.

    Centring is carried out in columns far from zero only (:mod:`deepca.operators.sparse_centring`), elsewhere it would
    fill the zeros. With ``Z = X W − 1 μᵀW``, μ what is left of the mean, ``A_j W = XᵀZ − μ 1ᵀZ``.
    """

    form = "rows"

    def __init__(
        self,
        rows: Sequence[Csr],
        scales: Array,
        *,
        single: bool,
        workers: int | None = None,
        prepare: Preparation = _AS_THEY_ARE,
    ) -> None:
        self.rows, self.scales, self._prepare = tuple(rows), scales, prepare
        self.batch, self.d = (() if single else (len(rows),)), int(rows[0].shape[1])
        self.row_counts = _counts(rows, self.batch)
        ready = [prepare.sparse(X, j) for j, X in enumerate(rows)]
        scaled, left = [X for X, _ in ready], [mean for _, mean in ready if mean is not None]
        counts = [X.shape[0] for X in rows]
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._row_scale = np.repeat(scales, counts)[:, None]
        if prepare.weights is not None:
            self._row_scale = self._row_scale * np.concatenate(prepare.weights)[:, None]
        self._left = np.array(left) if left else None  # of the mean, (m, d): what products subtract
        self.bytes_read = sum(2 * (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) for X in scaled)
        self._share = _Shared(self.n_local, self.bytes_read, workers)
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

    def rounding(self) -> Rounding:
        return _rows_rounding(self.rows, self.scales, self._prepare, self.batch)

    def agent(self, j: int) -> SparseRows:
        one = self._prepare.agent(j)
        return SparseRows(self.rows[j : j + 1], self.scales[j : j + 1], single=True, workers=1, prepare=one)

    def dense(self) -> Array:
        if self._prepare is not _AS_THEY_ARE:
            return self @ np.broadcast_to(np.eye(self.d), (*self.batch, self.d, self.d))
        stack = np.stack([_gram(X, c) for X, c in zip(self.rows, self.scales, strict=True)])
        return stack if self.batch else stack[0]

    @property
    def has_rows(self) -> bool:
        return True

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
        found = np.stack([_gram(Z[a:b], 1.0) for a, b in pairwise(self._starts)])
        return found if self.batch else found[0]


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

    def dense(self) -> Array:
        return self @ np.broadcast_to(np.eye(self.d), (*self.batch, self.d, self.d))


class _Wrapped(Operator):
    """One agent's scipy LinearOperator."""

    form = "operator"

    def __init__(self, operator: LinearOperator[Any]) -> None:
        self.operator = operator
        self.batch, self.d, self.bytes_read = (), int(operator.shape[0]), 0

    def __matmul__(self, W: Array) -> Array:
        return np.asarray(self.operator.matmat(np.ascontiguousarray(W)), dtype=np.float64)

    def agent(self, j: int) -> _Wrapped:
        return self

    def dense(self) -> Array:
        return self @ np.eye(self.d)


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


class _Shared:
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


# -------------------------------------------------------------------------------------------------- constructors


def from_rows(
    rows: Sequence[Any], *, scale: float | Sequence[float] = 1.0, form: Form = "auto", workers: int | None = None
) -> Operator:
    """``A_j = scale · X_jᵀX_j`` from one block of rows per agent, dense or scipy.sparse, in any mixture.

    Parameters
    ----------
    rows : one ``(n_j, d)`` array or sparse matrix per agent; row counts may differ.
    scale : one number, or one per agent (``1 / n_j`` gives second-moment matrices).
    form : ``"rows"`` keeps them, ``"covariance"`` multiplies them out once, ``"auto"`` takes the cheaper.
    workers : cores that share large products; all usable ones by default.
    """
    if form not in ("auto", "rows", "covariance"):
        raise InvalidInput(f"form = {form!r}: choose 'auto', 'rows' or 'covariance'")
    if sparse.issparse(rows) or (isinstance(rows, np.ndarray) and rows.ndim == 2):
        raise DataError("from_rows needs a list with one block of rows per agent; split_rows(X, m) makes one")
    blocks = [_checked_rows(X, j) for j, X in enumerate(rows)]
    if not blocks:
        raise DataError("no agents: from_rows needs one block of rows per agent")
    d = blocks[0].shape[1]
    for j, X in enumerate(blocks):
        if X.shape[1] != d:
            raise DataError(f"agent {j} has {X.shape[1]} columns, agent 0 has {d}; all agents need the same columns")
    scales = _checked_scales(scale, len(blocks))
    is_sparse = [sparse.issparse(X) for X in blocks]
    nnz = sum(int(X.nnz) if s else X.size for X, s in zip(blocks, is_sparse, strict=True))
    chosen = form
    if form == "auto":
        n = sum(X.shape[0] for X in blocks)
        chosen = choose_form(n, d, len(blocks), nnz=nnz if all(is_sparse) else None)
    if chosen == "covariance":
        stack = np.stack([_gram(X, c) for X, c in zip(blocks, scales, strict=True)])
        for j, A in enumerate(stack):
            if not np.isfinite(A).all():
                raise DataError(f"agent {j}: the products of its rows overflow; scale the data")
        formed = _rows_rounding(blocks, scales, _AS_THEY_ARE, (len(blocks),))
        return Covariances(stack, workers=workers, row_counts=_counts(blocks, (len(blocks),)), formed=formed)
    if all(is_sparse):
        return SparseRows(blocks, scales, single=False, workers=workers)
    if not any(is_sparse):
        return DenseRows(blocks, scales, single=False, workers=workers)
    return PerAgent(
        [
            SparseRows([X], scales[j : j + 1], single=True)
            if is_sparse[j]
            else DenseRows([X], scales[j : j + 1], single=True, workers=1)
            for j, X in enumerate(blocks)
        ]
    )


def from_matrices(matrices: npt.ArrayLike, *, workers: int | None = None) -> Covariances:
    """``A_j`` given as explicit symmetric matrices: ``(m, d, d)``, or ``(d, d)`` for one agent. May be indefinite."""
    return _from_matrices(matrices, 0, workers)


def _from_matrices(matrices: npt.ArrayLike, first: int, workers: int | None = None) -> Covariances:
    try:
        given = np.asarray(all_unmasked(matrices))
    except ValueError:
        raise DataError("the matrices differ in shape; all agents need the same d") from None
    if given.dtype.kind not in "fiub":
        raise DataError(f"matrices have dtype {given.dtype}; real numbers are needed")
    stack = given.astype(np.float64, copy=False)
    if stack.ndim not in (2, 3) or stack.shape[-1] != stack.shape[-2] or 0 in stack.shape:
        raise DataError(f"matrices have shape {stack.shape}; expected (m, d, d), or (d, d) for one agent")
    for j, A in enumerate(stack if stack.ndim == 3 else stack[None], first):
        _check_symmetric_matrix(A, j)
    return Covariances(stack, workers=workers)


def from_linear_operators(operators: Sequence[LinearOperator[Any]]) -> PerAgent:
    """``A_j`` given as symmetric scipy LinearOperators, one per agent."""
    if not len(operators):
        raise DataError("no agents: from_linear_operators needs one operator per agent")
    wrapped = [_checked_operator(A, j) for j, A in enumerate(operators)]
    for j, A in enumerate(wrapped):
        if A.d != wrapped[0].d:
            raise DataError(f"the operator of agent {j} has d = {A.d}, that of agent 0 has d = {wrapped[0].d}")
    return PerAgent(wrapped)


def as_operator(A: OperatorLike) -> Operator:
    """An Operator from whatever stands for the ``A_j``: itself, ``(m, d, d)`` or ``(d, d)``, LinearOperator(s)."""
    return operator_from(A, 0)


def operator_from(A: OperatorLike, first: int) -> Operator:
    """The same, where errors call the agent whose ``A_j`` stands alone by its number ``first``."""
    if isinstance(A, Operator):
        return A
    if isinstance(A, LinearOperator) or sparse.issparse(A):
        return _checked_operator(linear_operator(A, first), first)
    if isinstance(A, Sequence) and len(A) and all(isinstance(a, LinearOperator) or sparse.issparse(a) for a in A):
        return from_linear_operators([linear_operator(a, j) for j, a in enumerate(A)])
    A = all_unmasked(A)
    if isinstance(A, Sequence):
        shapes = sorted({np.shape(a) for a in A}, key=str)
        if len(shapes) > 1:
            raise DataError(f"the matrices differ in shape: {', '.join(map(str, shapes))}; all agents need the same d")
    given = np.asarray(A)
    return _from_matrices(given, first if given.ndim == 2 else 0)


def linear_operator(a: Any, j: int) -> LinearOperator[Any]:
    """What agent j gave, an array, a sparse matrix or a LinearOperator, as the last of these."""
    if isinstance(a, LinearOperator):
        return a
    given: Any = a if sparse.issparse(a) else np.asarray(unmasked(a, f"agent {j}"))
    if given.dtype.kind not in "fiub":
        raise DataError(f"agent {j}: its matrix has dtype {given.dtype}; real numbers are needed")
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise DataError(f"agent {j}: its matrix has shape {given.shape}; expected (d, d)")
    return aslinearoperator(csr(given) if sparse.issparse(given) else given.astype(np.float64))


def choose_form(n: int, d: int, m: int, *, nnz: int | None = None, memory: int | None = None) -> Form:
    """Rows or covariance, from n rows in all, d features, m agents, entries if sparse, and bytes of memory.

    Counted in multiplications of a run of 200 iterations with k = 8 (a sparse one costs about 4.5 dense ones; in
    forming the covariance, with its large products, a dense one costs a third). The covariances must fit into a
    quarter of the available memory.
    """
    if m * d * d * 8 > (available_memory() if memory is None else memory) // 4:
        return "rows"
    run = 200 * 8
    if nnz is None:
        forming, as_rows = 0.33 * n * d * d, run * 2.0 * n * d
    else:
        forming, as_rows = 4.5 * nnz * (nnz / max(n, 1)), run * 2.0 * nnz * 4.5
    return "covariance" if forming + run * m * d * d < as_rows else "rows"


def split_rows(X: Any, m: int, *, rows_per_agent: int | None = None) -> list[Any]:
    """X cut into m blocks in row order: equal ones, or the first ``m · rows_per_agent`` rows as in the paper."""
    n = int(X.shape[0])
    if m < 1 or m > n:
        raise DataError(f"{n} rows cannot be split over {m} agents: every agent needs at least one row")
    if rows_per_agent is not None and rows_per_agent < 1:
        raise DataError(f"rows_per_agent = {rows_per_agent}: every agent needs at least one row")
    if rows_per_agent is not None and rows_per_agent * m > n:
        raise DataError(f"{m} agents with {rows_per_agent} rows each need {rows_per_agent * m} rows, there are {n}")
    bounds = [n * j // m if rows_per_agent is None else rows_per_agent * j for j in range(m + 1)]
    return [X[a:b] for a, b in pairwise(bounds)]


# --------------------------------------------------------------------------------------------------------- checks


def _counts(rows: Sequence[Any], batch: tuple[int, ...]) -> npt.NDArray[np.int64]:
    return np.array([X.shape[0] for X in rows], dtype=np.int64).reshape(batch)


def _rows_rounding(rows: Sequence[Any], scales: Array, prepare: Preparation, batch: tuple[int, ...]) -> Rounding:
    """What may be wrong with products of these rows, as whoever prepared them says; or as they are."""
    if prepare.formed is not None:
        return prepare.formed if batch else prepare.formed.some(0)
    sizes = np.array([float(frobenius(X if isinstance(X, np.ndarray) else X.data)) for X in rows])
    sums = np.array([growth(max(X.shape)) for X in rows])
    return Rounding((scales * np.square(UNIT * sizes)).reshape(batch), np.zeros(batch), sums.reshape(batch))


def _checked_scales(scale: Any, m: int) -> Array:
    given = np.asarray(scale)
    if given.dtype.kind not in "fiub" or given.shape not in ((), (m,)):
        raise DataError(f"scale must be one number, or one per agent ({m}); got {scale!r}")
    scales = np.array(np.broadcast_to(given.astype(np.float64), (m,)))
    if not np.isfinite(scales).all():
        raise DataError(f"scale of agent {int(np.flatnonzero(~np.isfinite(scales))[0])} is not finite")
    if (scales < 0.0).any():
        raise DataError(f"scale of agent {int(np.flatnonzero(scales < 0.0)[0])} is negative; A_j would be too")
    return scales


def _gram(X: Any, c: float) -> Array:
    """``c XᵀX`` as a dense matrix, exactly symmetric."""
    if not isinstance(X, np.ndarray):
        return np.asarray((X.T @ X).toarray() * c)
    total = np.zeros((X.shape[1], X.shape[1]))
    step = max(1, (8 << 20) // (8 * X.shape[1]))
    for first in range(0, X.shape[0], step):
        block = np.asarray(X[first : first + step], dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # the caller looks
            total += block.T @ block
    return total * c


def _checked_rows(X: Any, j: int) -> Any:
    values: Any
    if sparse.issparse(X):
        if (kind := np.dtype(getattr(X, "dtype", None))).kind not in "fiub":
            raise DataError(f"agent {j}: rows have dtype {kind}; real numbers are needed")
        X = csr(X)
        values = X.data
    else:
        X = np.asanyarray(unmasked(X, f"agent {j}"))
        if X.dtype.kind not in "fiub":
            raise DataError(f"agent {j}: rows have dtype {X.dtype}; numbers are needed")
        values = X if X.dtype.kind == "f" else X.astype(np.float64)
        X = values if X.dtype in (np.float32, np.float64) else values.astype(np.float64)
    if X.ndim != 2:
        raise DataError(f"agent {j}: rows have shape {X.shape}; expected (n_j, d)")
    if X.shape[0] == 0:
        raise DataError(f"agent {j} has no rows; leave the agent out or give it data")
    if X.shape[1] == 0:
        raise DataError(f"agent {j} has no columns")
    if not np.isfinite(values).all():
        place = np.argwhere(~np.isfinite(X if isinstance(X, np.ndarray) else X.toarray()))[0]
        raise DataError(f"agent {j}: NaN or Inf in row {place[0]}, column {place[1]}; remove or impute it")
    return X


def _check_symmetric_matrix(A: Array, j: int) -> None:
    if not np.isfinite(A).all():
        row, column = np.argwhere(~np.isfinite(A))[0]
        raise DataError(f"agent {j}: NaN or Inf in row {row}, column {column} of its matrix")
    gap = np.abs(A - A.T)
    if gap.max() > 1e-10 * max(np.abs(A).max(), np.finfo(np.float64).tiny):
        row, column = np.unravel_index(int(gap.argmax()), gap.shape)
        raise DataError(
            f"agent {j}: its matrix is not symmetric, entry ({row}, {column}) is {A[row, column]:.6g} and "
            f"({column}, {row}) is {A[column, row]:.6g}; give (A + Aᵀ)/2 if that is what is meant"
        )


def _checked_operator(A: LinearOperator[Any], j: int) -> _Wrapped:
    if not isinstance(A, LinearOperator) or A.shape[0] != A.shape[1]:
        raise DataError(f"agent {j}: expected a square scipy.sparse.linalg.LinearOperator, got {A!r}")
    if np.dtype(A.dtype).kind == "c":  # its imaginary part would be lost on the way
        raise DataError(f"agent {j}: its operator has dtype {A.dtype}; real numbers are needed")
    wrapped = _Wrapped(A)
    probe = np.random.default_rng(0).standard_normal((wrapped.d, 2))
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is named below
        image = wrapped @ probe
    if not np.isfinite(image).all():
        raise DataError(f"agent {j}: its operator gives NaN or Inf")
    left, right = float(probe[:, 0] @ image[:, 1]), float(probe[:, 1] @ image[:, 0])
    if abs(left - right) > 1e-8 * np.linalg.norm(probe) * np.linalg.norm(image):
        raise DataError(f"agent {j}: its operator is not symmetric (xᵀAy = {left:.6g}, yᵀAx = {right:.6g})")
    return wrapped
