"""Read rows again where the stored covariances are not precise enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from deepca._util.machine import one_blas_thread, usable_cores
from deepca._util.typing import Array
from deepca.data.moments import Moments
from deepca.data.sources import Source, dense
from deepca.operators.preparation import project_out_of_rows

__all__ = ["Rereading", "can_be_read_again", "map_sources"]

T_ = TypeVar("T_")


def map_sources(function: Callable[[int], T_], n_sources: int) -> tuple[T_, ...]:
    """Call a function with the index of every source, in parallel on one core each, and return the results in order."""
    cores = min(usable_cores(), n_sources)
    with one_blas_thread() if cores > 1 else nullcontext(), ThreadPoolExecutor(cores, "deepca-read") as pool:
        return tuple(pool.map(function, range(n_sources)))


@dataclass(frozen=True)
class Rereading:
    """Rows of the local agents, prepared as ``y = √(scale·w) (x − reference − shift) / units`` while they are read.

    Implements :class:`deepca.operators.RereadableRows`; every method call reads every source once.
    """

    sources: tuple[Source, ...]
    weights: tuple[Array, ...] | None
    reference: Array
    shift: Array
    units: Array | None
    scale: float

    def scatters(self, V: Array) -> Array:
        """Return ``Σ z zᵀ`` for every agent, ``(agents, d, d)``; z is y without its component in the span of V."""
        d = self.shift.size

        def one(j: int) -> Array:
            total = np.zeros((d, d))
            for Y in self._blocks(j):
                rest = project_out_of_rows(Y, V)
                total += rest.T @ rest
            return total

        return np.stack(map_sources(one, len(self.sources)))

    def grams(self, V: Array) -> Array:
        """Return ``Vᵀ (Σ y yᵀ) V`` for every agent, ``(agents, k, k)``."""

        def one(j: int) -> Array:
            total = np.zeros((V.shape[1], V.shape[1]))
            for Y in self._blocks(j):
                Z = Y @ V
                total += Z.T @ Z
            return total

        return np.stack(map_sources(one, len(self.sources)))

    def _blocks(self, j: int) -> Iterator[Array]:
        first, weights = 0, None if self.weights is None else self.weights[j]
        for block in self.sources[j].blocks():
            Y = np.subtract(dense(block), self.reference, dtype=np.float64) - self.shift
            if self.units is not None:
                Y /= self.units
            w = self.scale if weights is None else self.scale * weights[first : first + len(Y), None]
            first += len(Y)
            yield Y * np.sqrt(w)


def can_be_read_again(sources: Sequence[Source], moments: Sequence[Moments]) -> bool:
    """Return whether the rows from which the moments were computed can be read from the sources again."""
    return all(
        not source.single_pass and (of.n == 0 or source.n != 0) for source, of in zip(sources, moments, strict=True)
    )
