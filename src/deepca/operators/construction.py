"""Operators from rows, matrices or linear operators, whichever form is cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from deepca._util.floats import SMALLEST
from deepca._util.machine import available_memory
from deepca._util.masked import all_unmasked, unmasked
from deepca._util.typing import Array, csr
from deepca.errors import DataError, InvalidInput
from deepca.operators.base import Operator, OperatorLike, PerAgent
from deepca.operators.covariances import Covariances
from deepca.operators.dense_rows import DenseRows
from deepca.operators.linear_operators import checked_operator, from_linear_operators, linear_operator
from deepca.operators.preparation import AS_THEY_ARE, gram_of, row_counts, rows_rounding
from deepca.operators.sparse_rows import SparseRows

__all__ = ["Form", "as_operator", "choose_form", "from_matrices", "from_rows", "split_rows"]

Form = Literal["auto", "rows", "covariance"]


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
        stack = np.stack([gram_of(X, c) for X, c in zip(blocks, scales, strict=True)])
        for j, A in enumerate(stack):
            if not np.isfinite(A).all():
                raise DataError(f"agent {j}: the products of its rows overflow; scale the data")
        formed = rows_rounding(blocks, scales, AS_THEY_ARE, (len(blocks),))
        return Covariances(stack, workers=workers, row_counts=row_counts(blocks, (len(blocks),)), formed=formed)
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


def as_operator(A: OperatorLike) -> Operator:
    """An Operator from whatever stands for the ``A_j``: itself, ``(m, d, d)`` or ``(d, d)``, LinearOperator(s)."""
    return operator_from(A, 0)


def operator_from(A: OperatorLike, first: int) -> Operator:
    """The same, where errors call the agent whose ``A_j`` stands alone by its number ``first``."""
    if isinstance(A, Operator):
        return A
    if isinstance(A, LinearOperator) or sparse.issparse(A):
        return checked_operator(linear_operator(A, first), first)
    if isinstance(A, Sequence) and len(A) and all(isinstance(a, LinearOperator) or sparse.issparse(a) for a in A):
        return from_linear_operators([linear_operator(a, j) for j, a in enumerate(A)])
    A = all_unmasked(A)
    if isinstance(A, Sequence):
        shapes = sorted({np.shape(a) for a in A}, key=str)
        if len(shapes) > 1:
            raise DataError(f"the matrices differ in shape: {', '.join(map(str, shapes))}; all agents need the same d")
    given = np.asarray(A)
    return _from_matrices(given, first if given.ndim == 2 else 0)


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
    if gap.max() > 1e-10 * max(np.abs(A).max(), SMALLEST):
        row, column = np.unravel_index(int(gap.argmax()), gap.shape)
        raise DataError(
            f"agent {j}: its matrix is not symmetric, entry ({row}, {column}) is {A[row, column]:.6g} and "
            f"({column}, {row}) is {A[column, row]:.6g}; give (A + Aᵀ)/2 if that is what is meant"
        )
