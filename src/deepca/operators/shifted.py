"""``± A_j + σ I``: the other end of a spectrum as its top, and its eigenvalues moved, the eigenvectors as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.errors import InvalidInput
from deepca.operators.base import Operator
from deepca.operators.rounding import Rounding

__all__ = ["Shifted"]


class Shifted(Operator):
    """``sign · A_j + shift · I`` for every local agent; the mean of all is ``sign · A + shift · I``.

    sign : 1, or −1 for the other end of the spectrum.  shift : the same number at every agent.
    """

    def __init__(self, A: Operator, shift: float, sign: int = 1) -> None:
        if sign not in (1, -1):
            raise InvalidInput(f"sign = {sign!r}: 1 for A itself, -1 for its other end")
        if not np.isfinite(shift):
            raise InvalidInput(f"shift = {shift!r}: a finite number is needed")
        self.A, self.shift, self.sign = A, float(shift), sign
        self.batch, self.d, self.form = A.batch, A.d, A.form
        self.bytes_read, self.row_counts = A.bytes_read, A.row_counts

    def __matmul__(self, W: Array) -> Array:
        return self.sign * (self.A @ W) + self.shift * W

    def rounding(self) -> Rounding:
        inner = self.A.rounding()
        return replace(inner, shift=inner.shift + abs(self.shift))

    def agent(self, j: int) -> Shifted:
        return Shifted(self.A.agent(j), self.shift, self.sign)

    def agents(self, which: npt.NDArray[np.int64]) -> Shifted:
        return Shifted(self.A.agents(which), self.shift, self.sign)

    def dense(self) -> Array:
        return self.sign * self.A.dense() + self.shift * np.eye(self.d)

    def original(self, values: npt.ArrayLike) -> Array:
        """Eigenvalues of A from those of ``sign · A + shift · I``."""
        return self.sign * (np.asarray(values, dtype=np.float64) - self.shift)
