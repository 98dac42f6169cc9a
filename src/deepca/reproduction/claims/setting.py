"""Setting in which the claims about one data set are judged: data, k, cells and the theorem's constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from deepca.algorithms import theory
from deepca.data.libsvm import DATA_SETS
from deepca.errors import ParameterError
from deepca.reproduction.cells import Cell
from deepca.reproduction.problems import DataSource, operator_of, pooled_of
from deepca.reproduction.studies import PAPER, base_cell

__all__ = ["Setting", "problem_of"]


@dataclass(frozen=True)
class Setting:
    """Data set, k and number of draws of a reproduction; ``max_iterations`` limits the iterations, for quick runs."""

    data: str
    k: int
    draws: int
    source: DataSource
    max_iterations: int | None = None

    def __post_init__(self) -> None:
        """Check k against the number of features."""
        d = DATA_SETS[self.data].n_features
        if not 1 <= self.k < d:
            raise ParameterError("k", self.k, f"{self.data} has {d} features; choose k between 1 and {d - 1}")

    def iterations(self, k: int) -> int:
        """Return slightly more iterations than pooled power iterations need to reach 1e-10.

        The number is at most 1000, and at most ``max_iterations``.
        """
        values = pooled_of(self.source, self.data, PAPER[self.data].agents, PAPER[self.data].rows).values
        most = min(1000, self.max_iterations or 1000)
        if values[k] == 0.0:
            return min(20, most)
        if values[k] >= values[k - 1]:
            return most
        return min(math.ceil(math.log(1e-11) / math.log(values[k] / values[k - 1])) + 10, most)

    @cached_property
    def base(self) -> Cell:
        """Cell of DeEPCA with the largest K of the paper's figure."""
        return base_cell(self.data, self.k, self.iterations(self.k))

    @cached_property
    def other_k(self) -> tuple[int, ...]:
        """Further k for which K = 3 is tried: 1, 2, and the largest from 3 to 12 that needs at most 450 iterations."""
        quick = [k for k in range(3, 13) if self.iterations(k) <= 450]
        return tuple(k for k in dict.fromkeys((1, 2, *quick[-1:])) if k != self.k)

    @property
    def tried_rounds(self) -> tuple[int, ...]:
        """Values of K among which the smallest sufficient one is sought."""
        return tuple(sorted({1, 2, 3, *PAPER[self.data].rounds}))

    def draws_of(self, K: int) -> range:
        """Return the draws for a K; K = 3, which the paper calls insufficient on w8a, has at least four."""
        return range(max(self.draws, 4) if K == 3 else self.draws)


def problem_of(setting: Setting, spread: float = 1.0) -> theory.Problem | None:
    """Return the theorem's constants for the matrices ``Ā + spread · (A_j − Ā)``, or None if λ_k = λ_(k+1)."""
    paper = PAPER[setting.data]
    values = pooled_of(setting.source, setting.data, paper.agents, paper.rows).values
    lambda_k, lambda_k1 = float(values[setting.k - 1]), float(values[setting.k])
    if not lambda_k > lambda_k1:
        return None
    A = operator_of(setting.source, setting.data, paper.agents, paper.rows, "file", spread)
    L = float(np.abs(np.linalg.eigvalsh(A.dense())).max())
    return theory.Problem(setting.k, paper.agents, lambda_k, lambda_k1, L)
