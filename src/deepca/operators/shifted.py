"""Operators ``± A_j + σ I``: flip and shift the spectrum while keeping the eigenvectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.errors import ParameterError
from deepca.operators.base import Operator
from deepca.operators.rounding import Rounding

__all__ = ["Shifted"]


class Shifted(Operator):
    """``sign · A_j + shift · I`` for every local agent; the mean is ``sign · A + shift · I``.

    Parameters
    ----------
    A : Operator
        The ``A_j``.
    shift : float
        Shift σ of the eigenvalues, the same at every agent.
    sign : {1, -1}, default=1
        −1 turns the smallest eigenvalues into the largest.

    Raises
    ------
    ParameterError
        If ``sign`` is not ±1, or ``shift`` is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from deepca.operators import as_operator
    >>> A = Shifted(as_operator(np.diag([3.0, 1.0])), 4.0, sign=-1)
    >>> A.dense().tolist()
    [[1.0, 0.0], [0.0, 3.0]]
    >>> A.original([3.0, 1.0]).tolist()
    [1.0, 3.0]
    """

    def __init__(self, A: Operator, shift: float, sign: int = 1) -> None:
        if sign not in (1, -1):
            raise ParameterError("sign", sign, "expected 1 for A itself, or -1 for the other end of its spectrum")
        if not np.isfinite(shift):
            raise ParameterError("shift", shift, "expected a finite number")
        self.A, self.shift, self.sign = A, float(shift), sign
        self.batch, self.d, self.form = A.batch, A.d, A.form
        self.bytes_read, self.row_counts = A.bytes_read, A.row_counts

    def __matmul__(self, W: Array) -> Array:
        """Return ``sign · A_j W_j + shift · W_j``."""
        return self.sign * (self.A @ W) + self.shift * W

    def rounding(self) -> Rounding:
        """Return the bounds of A, allowing for the shift between the norm of its rows and that of the operator."""
        inner = self.A.rounding()
        return replace(inner, shift=inner.shift + abs(self.shift))

    def row_bounds(self) -> Array | None:
        """Return the bounds of A plus the size of the shift."""
        bounds = self.A.row_bounds()
        return None if bounds is None else bounds + abs(self.shift)

    def agent(self, j: int) -> Shifted:
        """Return the shifted operator of agent j."""
        return Shifted(self.A.agent(j), self.shift, self.sign)

    def agents(self, which: npt.NDArray[np.int64]) -> Shifted:
        """Return the shifted operators of the given agents."""
        return Shifted(self.A.agents(which), self.shift, self.sign)

    def dense(self) -> Array:
        """Return the shifted matrices."""
        return self.sign * self.A.dense() + self.shift * np.eye(self.d)

    def original(self, values: npt.ArrayLike) -> Array:
        """Convert eigenvalues of ``sign · A + shift · I`` into eigenvalues of A.

        Parameters
        ----------
        values : array_like
            Eigenvalues of the shifted matrix.

        Returns
        -------
        ndarray
            Eigenvalues of A, in the same order.
        """
        return self.sign * (np.asarray(values, dtype=np.float64) - self.shift)
