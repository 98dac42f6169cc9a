"""Centre, scale and weight rows before they are multiplied, and bound the rounding errors."""

from __future__ import annotations

from abc import abstractmethod
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
    """Preparation of rows for products: ``y = ((x − reference) − shift) / units``, each with a weight.

    Parameters
    ----------
    centre : tuple of two ndarrays of shape (d,), optional
        Reference and shift. Their sum is the mean, which is subtracted in two parts because a single number would have
        a rounding error of eps times its size.
    units : ndarray of shape (d,), optional
        Divisors of the columns.
    weights : tuple of ndarrays of shape (n_j,), optional
        Weights of the rows, one array per agent.
    formed : Rounding, optional
        Rounding errors of products of the rows y, one entry per agent; by default those of the multiplication only.
    projected_out : ndarray of shape (d, r), optional
        Orthonormal columns whose span is projected out of every row.
    """

    centre: tuple[Array, Array] | None = None
    units: Array | None = None
    weights: tuple[Array, ...] | None = None
    formed: Rounding | None = None
    projected_out: Array | None = None

    def rows(self, X: npt.NDArray[Any]) -> Array:
        """Prepare dense rows.

        Parameters
        ----------
        X : ndarray of shape (n, d)
            Rows.

        Returns
        -------
        ndarray of shape (n, d)
            The rows y, without weights; X itself if it needs no preparation.
        """
        if self.centre is None:
            Y = np.asarray(X, dtype=np.float64)
        else:
            Y = np.subtract(X, self.centre[0], dtype=np.float64)
            Y -= self.centre[1]
        Y = Y if self.units is None else Y / self.units
        return Y if self.projected_out is None else project_out_of_rows(Y, self.projected_out)

    def sparse(self, X: Csr, j: int) -> tuple[Csr, Array | None]:
        """Prepare sparse rows as far as this is possible without filling their zeros.

        Parameters
        ----------
        X : csr_array of shape (n_j, d)
            Rows of agent j.
        j : int
            Index of the agent.

        Returns
        -------
        X : csr_array of shape (n_j, d)
            Rows, with the reference subtracted from columns that are far from zero.
        left : ndarray of shape (d,) or None
            What remains of the mean, which products must subtract from the rows.
        """
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
        """Return the preparation of a single agent.

        Parameters
        ----------
        j : int
            Index of the agent.

        Returns
        -------
        Preparation
            The same preparation, with the weights and errors of agent j only.
        """
        weights = None if self.weights is None else self.weights[j : j + 1]
        formed = None if self.formed is None else self.formed.select(np.array([j]))
        return replace(self, weights=weights, formed=formed)


NO_PREPARATION = Preparation()


def project_out_of_rows(Y: Array, V: Array) -> Array:
    """Return ``Y(I − VVᵀ)`` for orthonormal V, computed twice so that little rounding error remains in span V."""
    for _ in range(2):
        Y = Y - (Y @ V) @ V.T
    return Y


def row_counts(rows: Sequence[Any], batch: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return the number of rows of each agent, with shape ``batch``."""
    return np.array([X.shape[0] for X in rows], dtype=np.int64).reshape(batch)


def rows_rounding(rows: Sequence[Any], scales: Array, prepare: Preparation, batch: tuple[int, ...]) -> Rounding:
    """Bound the errors of products of rows: those that the preparation states, or those of multiplying only."""
    if prepare.formed is not None:
        return prepare.formed if batch else prepare.formed.select(0)
    sizes = np.array([float(frobenius(X if isinstance(X, np.ndarray) else X.data)) for X in rows])
    sums = np.array([growth(max(X.shape)) for X in rows])
    return Rounding(
        (scales * np.square(UNIT * sizes)).reshape(batch),
        np.zeros(batch),
        sums.reshape(batch),
        sizes=(scales * np.square(sizes)).reshape(batch),
    )


class PreparedRows(Operator, Generic[R_]):
    """Base class of operators that keep the rows of their agents: ``A_j = c_j Y_jᵀY_j`` with prepared rows Y_j.

    Parameters
    ----------
    rows : sequence of arrays of shape (n_j, d)
        One array per agent.
    scales : ndarray of shape (m,)
        The factors c_j.
    single : bool
        Whether there is a single agent, with ``B = ()``.
    prepare : Preparation
        Centring, scaling and weighting of the rows.
    """

    form = "rows"

    def __init__(self, rows: Sequence[R_], scales: Array, *, single: bool, prepare: Preparation) -> None:
        self.rows: tuple[R_, ...] = tuple(rows)
        self.scales, self._prepare = scales, prepare
        self.batch, self.d = (() if single else (len(rows),)), int(rows[0].shape[1])
        self.row_counts = row_counts(rows, self.batch)

    def rounding(self) -> Rounding:
        """Bound the errors of preparing and multiplying the rows."""
        return rows_rounding(self.rows, self.scales, self._prepare, self.batch)

    @property
    def has_rows(self) -> bool:
        """True: the rows are available."""
        return True

    def row_bounds(self) -> Array:
        """Return ``√(a_ii tr A_j)``, which bounds ``|e_iᵀA_j w|`` since A_j is positive semidefinite."""
        lengths = np.sqrt(self.scales)[:, None] * self._column_lengths
        bounds = lengths * frobenius(lengths, axis=-1)[:, None]
        return bounds if self.batch else np.asarray(bounds[0])

    @property
    @abstractmethod
    def _column_lengths(self) -> Array:
        """Lengths of the columns of the weighted rows of every agent, ``(m, d)``."""

    def _stack(self, found: Iterable[Array]) -> Array:
        """Stack arrays, one per agent, to shape ``(*B, …)``."""
        stack = np.stack(list(found))
        return stack if self.batch else stack[0]


def gram_of(X: Any, c: float) -> Array:
    """Return ``c XᵀX`` as a dense, exactly symmetric matrix."""
    if not isinstance(X, np.ndarray):
        return np.asarray((X.T @ X).toarray() * c)
    total = np.zeros((X.shape[1], X.shape[1]))
    step = max(1, (8 << 20) // (8 * X.shape[1]))
    for first in range(0, X.shape[0], step):
        block = np.asarray(X[first : first + step], dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks for overflow
            total += block.T @ block
    return total * c
