"""Construct operators from rows, matrices or LinearOperators; store rows, or their covariance if cheaper."""

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
from deepca._util.units import counted, plural
from deepca.errors import DataError, ParameterError
from deepca.operators.base import MixedOperator, Operator, OperatorLike
from deepca.operators.covariances import Covariances
from deepca.operators.dense_rows import DenseRows
from deepca.operators.linear_operators import checked_operator, from_linear_operators, linear_operator
from deepca.operators.preparation import NO_PREPARATION, gram_of, row_counts, rows_rounding
from deepca.operators.sparse_rows import SparseRows

__all__ = ["Form", "as_operator", "choose_form", "from_matrices", "from_rows", "split_rows"]

Form = Literal["auto", "rows", "covariance"]


def from_rows(
    rows: Sequence[Any], *, scale: float | Sequence[float] = 1.0, form: Form = "auto", workers: int | None = None
) -> Operator:
    """Construct ``A_j = scale · X_jᵀX_j`` from one block of rows per agent.

    Parameters
    ----------
    rows : sequence of array_like or sparse matrix
        One ``(n_j, d)`` block per agent, dense or sparse in any mixture; row counts may differ.
    scale : float or sequence of float, default=1.0
        One number for all agents, or one per agent (``1 / n_j`` gives second-moment matrices).
    form : {"auto", "rows", "covariance"}, default="auto"
        "rows" keeps the rows, "covariance" multiplies them out once, "auto" chooses the cheaper form.
    workers : int, optional
        Cores that share large products; all usable ones by default.

    Returns
    -------
    Operator
        The ``A_j`` of all agents.

    Raises
    ------
    DataError
        If blocks are missing, malformed or not finite, or a scale is negative or not finite; `agent` is the agent's
        index.
    ParameterError
        If `form` or `workers` is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> A = from_rows([np.eye(2), 2.0 * np.eye(2)])
    >>> A.mean().tolist()
    [[2.5, 0.0], [0.0, 2.5]]
    """
    if form not in ("auto", "rows", "covariance"):
        raise ParameterError("form", form, "choose 'auto', 'rows' or 'covariance'")
    blocks = _checked_blocks(rows)
    d = blocks[0].shape[1]
    scales = _checked_scales(scale, len(blocks))
    is_sparse = [sparse.issparse(X) for X in blocks]
    nnz = sum(int(X.nnz) if s else X.size for X, s in zip(blocks, is_sparse, strict=True))
    chosen = form
    if form == "auto":
        n = sum(X.shape[0] for X in blocks)
        chosen = choose_form(n, d, len(blocks), nnz=nnz if all(is_sparse) else None)
    if chosen == "covariance":
        return _multiplied_out(blocks, scales, workers)
    if all(is_sparse):
        return SparseRows(blocks, scales, single=False, workers=workers)
    if not any(is_sparse):
        return DenseRows(blocks, scales, single=False, workers=workers)
    each = zip(blocks, scales[:, None], is_sparse, strict=True)
    return MixedOperator([_single_rows(X, c, is_sparse=kind) for X, c, kind in each])


def _multiplied_out(blocks: Sequence[Any], scales: Array, workers: int | None) -> Covariances:
    """Return ``scale · X_jᵀX_j`` of each agent, multiplied out; raise DataError if a product overflows."""
    stack = np.stack([gram_of(X, c) for X, c in zip(blocks, scales, strict=True)])
    for j, A in enumerate(stack):
        if not np.isfinite(A).all():
            message = f"agent {j}: the products of its rows overflow; divide the data by a large power of ten"
            raise DataError(message, agent=j)
    formed = rows_rounding(blocks, scales, NO_PREPARATION, (len(blocks),))
    return Covariances(stack, workers=workers, row_counts=row_counts(blocks, (len(blocks),)), formed=formed)


def _single_rows(X: Any, scale: Array, *, is_sparse: bool) -> Operator:
    """Return the operator of a single agent that keeps its rows."""
    if is_sparse:
        return SparseRows([X], scale, single=True)
    return DenseRows([X], scale, single=True, workers=1)


def from_matrices(matrices: npt.ArrayLike, *, workers: int | None = None) -> Covariances:
    """Construct operators from explicit symmetric matrices, which may be indefinite.

    Parameters
    ----------
    matrices : array_like of shape (m, d, d) or (d, d)
        One matrix per agent, or that of a single agent.
    workers : int, optional
        Cores that share large products; all usable ones by default.

    Returns
    -------
    Covariances
        The ``A_j``, with ``B = (m,)`` or ``()``.

    Raises
    ------
    DataError
        If the matrices are malformed, not finite or not symmetric.
    """
    return _from_matrices(matrices, 0, workers)


def _from_matrices(matrices: npt.ArrayLike, first: int, workers: int | None = None) -> Covariances:
    try:
        given = np.asarray(all_unmasked(matrices))
    except ValueError:
        raise DataError("the matrices differ in shape; all agents need the same d", parameter="matrices") from None
    if given.dtype.kind not in "fiub":
        raise DataError(
            f"matrices have dtype {given.dtype}; real numbers are needed", parameter="matrices", value=given.dtype
        )
    stack = given.astype(np.float64, copy=False)
    if stack.ndim not in (2, 3) or stack.shape[-1] != stack.shape[-2] or 0 in stack.shape:
        raise DataError(
            f"matrices have shape {stack.shape}; expected (m, d, d), or (d, d) for one agent",
            parameter="matrices",
            value=stack.shape,
        )
    for j, A in enumerate(stack if stack.ndim == 3 else stack[None], first):
        _check_symmetric_matrix(A, j)
    return Covariances(stack, workers=workers)


def as_operator(A: OperatorLike) -> Operator:
    """Return an Operator for ``A_j`` that are given as matrices, LinearOperators or an Operator.

    Parameters
    ----------
    A : Operator, array_like, sparse matrix, LinearOperator, or a sequence of these
        The ``A_j``: an Operator, an array of shape (m, d, d) or (d, d), or one matrix or LinearOperator per agent.

    Returns
    -------
    Operator
        A itself if it is an Operator.

    Raises
    ------
    DataError
        If A is malformed, not finite or not symmetric.
    """
    return operator_from(A, 0)


def operator_from(A: OperatorLike, first: int) -> Operator:
    """Return what :func:`as_operator` returns; errors about a single ``A_j`` name agent ``first``.

    Raises DataError if A is malformed, not finite or not symmetric, or if the ``A_j`` differ in shape.
    """
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
            raise DataError(
                f"the matrices differ in shape: {', '.join(map(str, shapes))}; all agents need the same d",
                parameter="A",
                value=shapes,
            )
    given = np.asarray(A)
    return _from_matrices(given, first if given.ndim == 2 else 0)


def choose_form(n: int, d: int, m: int, *, nnz: int | None = None, memory: int | None = None) -> Form:
    """Choose the cheaper form of ``A_j = X_jᵀX_j``.

    Parameters
    ----------
    n : int
        Rows of all agents together.
    d : int
        Number of features.
    m : int
        Number of agents.
    nnz : int, optional
        Stored entries of all rows, if they are sparse.
    memory : int, optional
        Bytes of memory; by default those that are available.

    Returns
    -------
    {"rows", "covariance"}
        The form.

    Notes
    -----
    The cost is the number of multiplications in a run of 200 iterations with k = 8. A sparse multiplication counts as
    4.5 dense ones, and a dense one in the large products that form the covariance as a third. The covariances must fit
    into a quarter of the memory.
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
    """Split X into m blocks of consecutive rows.

    Parameters
    ----------
    X : ndarray or sparse matrix of shape (n, d)
        Rows.
    m : int
        Number of blocks.
    rows_per_agent : int, optional
        Number of rows in each block, taken from the first ``m · rows_per_agent`` rows as in the paper; by default all
        rows are split into nearly equal blocks.

    Returns
    -------
    list of ndarray or sparse matrix
        The blocks.

    Raises
    ------
    DataError
        If `m` or `rows_per_agent` is below 1, or there are too few rows.
    """
    n = int(X.shape[0])
    if m < 1:
        raise DataError(f"m = {m}: rows must be split over at least one agent", parameter="m", value=m)
    if n == 0:
        raise DataError("X has no rows; every agent needs at least one", parameter="X", value=X.shape)
    if m > n:
        raise DataError(
            f"there {'are' if n != 1 else 'is'} only {n} row{plural(n)} for {counted(m, 'agent')}; use at most {n} "
            f"agent{plural(n)}, so that each has a row",
            parameter="m",
            value=m,
        )
    if rows_per_agent is not None and rows_per_agent < 1:
        raise DataError(
            f"rows_per_agent = {rows_per_agent}: every agent needs at least one row; give 1 to {n // m}",
            parameter="rows_per_agent",
            value=rows_per_agent,
        )
    if rows_per_agent is not None and rows_per_agent * m > n:
        raise DataError(
            f"{m} agents with {rows_per_agent} rows each need {rows_per_agent * m} rows, but X has only {n}; use at "
            f"most {n // m} rows per agent, or fewer agents",
            parameter="rows_per_agent",
            value=rows_per_agent,
        )
    bounds = [n * j // m if rows_per_agent is None else rows_per_agent * j for j in range(m + 1)]
    return [X[a:b] for a, b in pairwise(bounds)]


def _checked_blocks(rows: Sequence[Any]) -> list[Any]:
    """Return the blocks of all agents, after checking each of them and that all have the same number of columns.

    Raises DataError if a check fails, if blocks are missing, or if ``rows`` is a single matrix.
    """
    if sparse.issparse(rows) or (isinstance(rows, np.ndarray) and rows.ndim == 2):
        raise DataError(
            "rows is a single matrix; give a list with one block per agent, such as split_rows(X, m)", parameter="rows"
        )
    blocks = [_checked_rows(X, j) for j, X in enumerate(rows)]
    if not blocks:
        raise DataError("the list of rows is empty; give one block of rows per agent", parameter="rows")
    d = blocks[0].shape[1]
    for j, X in enumerate(blocks):
        if X.shape[1] != d:
            raise DataError(
                f"agent {j} has {X.shape[1]} columns, but agent 0 has {d}; all agents need the same columns", agent=j
            )
    return blocks


def _checked_scales(scale: Any, m: int) -> Array:
    given = np.asarray(scale)
    if given.dtype.kind not in "fiub" or given.shape not in ((), (m,)):
        raise DataError(f"scale = {scale!r}: expected one number, or one per agent ({m})", parameter="scale")
    scales = np.array(np.broadcast_to(given.astype(np.float64), (m,)))
    if not np.isfinite(scales).all():
        j = int(np.flatnonzero(~np.isfinite(scales))[0])
        raise DataError(f"the scale of agent {j} is not finite; give a finite number", parameter="scale", agent=j)
    if (scales < 0.0).any():
        j = int(np.flatnonzero(scales < 0.0)[0])
        raise DataError(f"the scale of agent {j} is negative; give a number of at least 0", parameter="scale", agent=j)
    return scales


def _checked_rows(X: Any, j: int) -> Any:
    """Return the rows of agent j as a CSR array, or as floating-point numbers.

    Raises DataError unless they are a nonempty matrix of finite real numbers.
    """
    values: Any
    if sparse.issparse(X):
        if (kind := np.dtype(getattr(X, "dtype", None))).kind not in "fiub":
            raise DataError(f"agent {j}: rows have dtype {kind}; real numbers are needed", agent=j, value=kind)
        X = csr(X)
        values = X.data
    else:
        X = np.asanyarray(unmasked(X, f"agent {j}"))
        if X.dtype.kind not in "fiub":
            raise DataError(f"agent {j}: rows have dtype {X.dtype}; real numbers are needed", agent=j, value=X.dtype)
        values = X if X.dtype.kind == "f" else X.astype(np.float64)
        X = values if X.dtype in (np.float32, np.float64) else values.astype(np.float64)
    if X.ndim != 2:
        raise DataError(f"agent {j}: rows have shape {X.shape}; expected (n_j, d)", agent=j, value=X.shape)
    if X.shape[0] == 0:
        raise DataError(f"agent {j} has no rows; leave the agent out or give it data", agent=j, value=X.shape)
    if X.shape[1] == 0:
        raise DataError(f"agent {j} has no columns; give it rows with at least one feature", agent=j, value=X.shape)
    if not np.isfinite(values).all():
        row, column = map(int, np.argwhere(~np.isfinite(X if isinstance(X, np.ndarray) else X.toarray()))[0])
        raise DataError.at_entry(
            f"agent {j}",
            "NaN or infinity",
            "remove the row or impute the value",
            redacted="not a finite number",
            agent=j,
            row=row,
            column=column,
        )
    return X


def _check_symmetric_matrix(A: Array, j: int) -> None:
    if not np.isfinite(A).all():
        row, column = map(int, np.argwhere(~np.isfinite(A))[0])
        raise DataError.at_entry(
            f"matrix of agent {j}",
            "NaN or infinity",
            "give a finite matrix",
            redacted="not a finite number",
            agent=j,
            row=row,
            column=column,
        )
    gap = np.abs(A - A.T)
    if gap.max() > 1e-10 * max(np.abs(A).max(), SMALLEST):
        row, column = map(int, np.unravel_index(int(gap.argmax()), gap.shape))
        raise DataError(
            f"agent {j}: its matrix is not symmetric, entry ({row}, {column}) is {A[row, column]:.6g} and "
            f"({column}, {row}) is {A[column, row]:.6g}; give (A + Aᵀ)/2 if that is what you mean",
            redacted=f"agent {j}: its matrix is not symmetric at entry ({row}, {column}); give (A + Aᵀ)/2 if that is "
            "what you mean",
            agent=j,
            row=row,
            column=column,
        )
