"""Complete a symmetric matrix of which products with some vectors are known, and perhaps the diagonal."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from deepca._util.typing import Array
from deepca.operators.linalg import symmetric_part

__all__ = ["Directions"]

_SMALLEST = 1e-6  # relative length of combinations of columns that is still divided by; shorter ones add only noise
_EXPLAINED = 1e-9  # smallest singular value of the equations for the diagonal, relative to the largest


class Directions:
    """Span of the columns of P, of which products ``A P`` with unknown symmetric matrices A are known.

    Parameters
    ----------
    P : ndarray of shape (d, p)
        The columns, in any number and of any rank.

    Notes
    -----
    Let the columns of Q be an orthonormal basis of the span, so that ``A P`` gives ``Y = A Q``. Of all symmetric A with
    ``A Q = Y``, the one of smallest Frobenius norm is

        A = Y Qᵀ + Q Yᵀ − Q (QᵀY) Qᵀ.

    If the diagonal is known, too, ``N diag(μ) N`` is added, with ``N = I − QQᵀ`` and ``(N ∘ N) μ`` the part of the
    diagonal that is missing: the smallest symmetric matrix with that diagonal that does not change ``A Q``.
    """

    def __init__(self, P: Array) -> None:
        left, sizes, right = np.linalg.svd(P, full_matrices=False)
        kept = sizes > _SMALLEST * sizes.max(initial=0.0)
        self.Q: Array = left[:, kept]
        self._solve: Array = right[kept].T / sizes[kept]

    def complete(self, AP: Array, diagonal: Array) -> Array:
        """Return the symmetric matrix of smallest norm with the product ``A P`` and, as far as possible, the diagonal.

        Parameters
        ----------
        AP : ndarray of shape (d, p)
            Products with P.
        diagonal : ndarray of shape (d,)
            The diagonal.

        Returns
        -------
        ndarray of shape (d, d)
            The matrix.
        """
        Y, Q = AP @ self._solve, self.Q
        half = Y @ Q.T - 0.5 * (Q @ symmetric_part(Q.T @ Y)) @ Q.T
        A = half + half.T
        if Q.shape[1] < len(Q):
            A += (self._outside * (self._explain @ (diagonal - np.diagonal(A)))) @ self._outside
        return np.asarray(A)

    @cached_property
    def _outside(self) -> Array:
        """The projection ``N = I − QQᵀ``."""
        return np.asarray(np.eye(len(self.Q)) - self.Q @ self.Q.T)

    @cached_property
    def _explain(self) -> Array:
        """Pseudoinverse of ``N ∘ N``."""
        return np.asarray(np.linalg.pinv(np.square(self._outside), rcond=_EXPLAINED, hermitian=True))
