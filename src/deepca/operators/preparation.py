"""How rows are centred and scaled before they enter a product, and what that rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.typing import Array, Csr, csr
from deepca.operators.base import Operator
from deepca.operators.linalg import frobenius
from deepca.operators.rounding import UNIT, Rounding, growth
from deepca.operators.sparse_centring import column_squares, far_columns, without_reference

__all__ = ["Preparation", "PreparedRows"]

R_ = TypeVar("R_", npt.NDArray[Any], Csr)


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


AS_THEY_ARE = Preparation()


def rows_without(Y: Array, V: Array) -> Array:
    """``Y(I − VVᵀ)`` for orthonormal V; twice, so that what rounding leaves in span V is small beside what is left."""
    for _ in range(2):
        Y = Y - (Y @ V) @ V.T
    return Y


def row_counts(rows: Sequence[Any], batch: tuple[int, ...]) -> npt.NDArray[np.int64]:
    return np.array([X.shape[0] for X in rows], dtype=np.int64).reshape(batch)


def rows_rounding(rows: Sequence[Any], scales: Array, prepare: Preparation, batch: tuple[int, ...]) -> Rounding:
    """What may be wrong with products of these rows, as whoever prepared them says; or as they are."""
    if prepare.formed is not None:
        return prepare.formed if batch else prepare.formed.some(0)
    sizes = np.array([float(frobenius(X if isinstance(X, np.ndarray) else X.data)) for X in rows])
    sums = np.array([growth(max(X.shape)) for X in rows])
    return Rounding((scales * np.square(UNIT * sizes)).reshape(batch), np.zeros(batch), sums.reshape(batch))


class PreparedRows(Operator, Generic[R_]):
    """What operators share that hold the rows of their agents: ``A_j = c_j Y_jᵀY_j``, Y_j after their preparation.

    rows : one array per agent.  scales : c, one number per agent.  single : one agent alone, ``B = ()``.
    """

    form = "rows"

    def __init__(self, rows: Sequence[R_], scales: Array, *, single: bool, prepare: Preparation) -> None:
        self.rows: tuple[R_, ...] = tuple(rows)
        self.scales, self._prepare = scales, prepare
        self.batch, self.d = (() if single else (len(rows),)), int(rows[0].shape[1])
        self.row_counts = row_counts(rows, self.batch)

    def rounding(self) -> Rounding:
        return rows_rounding(self.rows, self.scales, self._prepare, self.batch)

    @property
    def has_rows(self) -> bool:
        return True

    def _stack(self, found: Iterable[Array]) -> Array:
        """One array per agent, as ``(*B, …)``."""
        stack = np.stack(list(found))
        return stack if self.batch else stack[0]


def gram_of(X: Any, c: float) -> Array:
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
