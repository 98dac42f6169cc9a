"""Operators for matrices that are known only through their products: scipy's LinearOperator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from deepca._util.masked import unmasked
from deepca._util.typing import Array, csr
from deepca.errors import DataError
from deepca.operators.base import MixedOperator, Operator

__all__ = ["from_linear_operators"]


class _Wrapped(Operator):
    """Operator of a single agent that multiplies by its scipy LinearOperator."""

    form = "operator"

    def __init__(self, operator: LinearOperator[Any]) -> None:
        self.operator = operator
        self.batch, self.d, self.bytes_read = (), int(operator.shape[0]), 0

    def __matmul__(self, W: Array) -> Array:
        """Multiply by scipy's ``matmat``."""
        return np.asarray(self.operator.matmat(np.ascontiguousarray(W)), dtype=np.float64)

    def agent(self, j: int) -> _Wrapped:
        """Return the operator itself, which has a single agent."""
        return self


def from_linear_operators(operators: Sequence[LinearOperator[Any]]) -> MixedOperator:
    """Construct operators from symmetric scipy LinearOperators.

    Parameters
    ----------
    operators : sequence of LinearOperator
        One square operator per agent, all of the same size.

    Returns
    -------
    MixedOperator
        The ``A_j``.

    Raises
    ------
    DataError
        If the list is empty, the operators differ in size, or one is not square, real, finite and symmetric.
    """
    if not len(operators):
        raise DataError("the list of operators is empty; give one operator per agent", parameter="operators")
    wrapped = [checked_operator(A, j) for j, A in enumerate(operators)]
    for j, A in enumerate(wrapped):
        if A.d != wrapped[0].d:
            raise DataError(
                f"the operator of agent {j} has d = {A.d}, but that of agent 0 has d = {wrapped[0].d}; all agents "
                "need the same d",
                agent=j,
                value=A.d,
            )
    return MixedOperator(wrapped)


def linear_operator(a: Any, j: int) -> LinearOperator[Any]:
    """Convert the array, sparse matrix or LinearOperator of agent j to a LinearOperator."""
    if isinstance(a, LinearOperator):
        return a
    given: Any = a if sparse.issparse(a) else np.asarray(unmasked(a, f"agent {j}"))
    if given.dtype.kind not in "fiub":
        raise DataError(
            f"agent {j}: its matrix has dtype {given.dtype}; real numbers are needed", agent=j, value=given.dtype
        )
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise DataError(f"agent {j}: its matrix has shape {given.shape}; expected (d, d)", agent=j, value=given.shape)
    return aslinearoperator(csr(given) if sparse.issparse(given) else given.astype(np.float64))


def checked_operator(A: LinearOperator[Any], j: int) -> _Wrapped:
    """Return the operator of agent j as an Operator; raise DataError unless it is square, real and symmetric."""
    if not isinstance(A, LinearOperator) or A.shape[0] != A.shape[1]:
        raise DataError(f"agent {j}: expected a square scipy.sparse.linalg.LinearOperator, got {A!r}", agent=j)
    if np.dtype(A.dtype).kind == "c":  # the imaginary part would be dropped
        raise DataError(
            f"agent {j}: its operator has dtype {A.dtype}; real numbers are needed", agent=j, value=np.dtype(A.dtype)
        )
    wrapped = _Wrapped(A)
    probe = np.random.default_rng(0).standard_normal((wrapped.d, 2))
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        image = wrapped @ probe
    if not np.isfinite(image).all():
        raise DataError(
            f"agent {j}: products with its operator contain NaN or infinity; correct the operator, or scale it down",
            agent=j,
        )
    left, right = float(probe[:, 0] @ image[:, 1]), float(probe[:, 1] @ image[:, 0])
    if abs(left - right) > 1e-8 * np.linalg.norm(probe) * np.linalg.norm(image):
        raise DataError(
            f"agent {j}: its operator is not symmetric (xᵀAy = {left:.6g} but yᵀAx = {right:.6g} for random x and y); "
            "give a symmetric one",
            redacted=f"agent {j}: its operator is not symmetric; give a symmetric one",
            agent=j,
        )
    return wrapped
