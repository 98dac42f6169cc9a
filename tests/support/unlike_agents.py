"""Compare DeEPCA with the accelerated method, both with default settings, on very heterogeneous agents.

``python -m tests.support.unlike_agents 0 500`` solves 500 problems with both methods, and prints those on which only
DeEPCA converges, and totals.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import deepca
from deepca import AcceleratedDeEPCA, DeEPCA, SimulatedNetwork, Tolerance
from deepca.algorithms import Algorithm
from deepca.operators.linalg import random_orthonormal
from deepca.solver.result import StatusCode
from tests.support.helpers import worst_tangent
from tests.support.problems import heterogeneous_problem

__all__ = ["Comparison", "RunOutcome", "compare", "solve_heterogeneous"]


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of a run: its status, and the tangent of the true angle at the worst agent."""

    code: StatusCode
    tangent: float
    iterations: int
    rounds: int
    tol: float

    @property
    def converged(self) -> bool:
        return self.code == "converged" and self.tangent <= self.tol

    @property
    def wrong(self) -> bool:
        """Whether the status is converged but the answer is not."""
        return self.code == "converged" and not self.converged


@dataclass(frozen=True)
class Comparison:
    """Outcomes of both methods on one problem."""

    about: str
    deepca: RunOutcome
    accelerated: RunOutcome


def solve_heterogeneous(
    seed: int, method: type[DeEPCA] | type[AcceleratedDeEPCA], *, tol: float = 1e-9, max_iter: int = 2000
) -> RunOutcome:
    """Solve one of the problems of :func:`tests.support.problems.heterogeneous_problem` with default settings."""
    problem = heterogeneous_problem(seed)
    W0 = random_orthonormal(problem.stack.shape[-1], problem.k, seed=1)
    algorithm: Algorithm[Any] = method(problem.stack, W0, SimulatedNetwork(problem.place))
    result = deepca.solve(algorithm, max_iter=max_iter, stop=Tolerance(tol))
    tangent = worst_tangent(problem.answer(), result.W)
    return RunOutcome(result.status.code, tangent, result.iterations, result.traffic.rounds, tol)


def compare(seeds: Iterable[int]) -> Iterable[Comparison]:
    """Solve each problem with both methods."""
    for seed in seeds:
        about = heterogeneous_problem(seed).about
        yield Comparison(about, solve_heterogeneous(seed, DeEPCA), solve_heterogeneous(seed, AcceleratedDeEPCA))


if __name__ == "__main__":
    counts: Counter[str] = Counter()
    ratios: list[float] = []
    for found in compare(range(int(sys.argv[1]), int(sys.argv[2]))):
        counts["problems"] += 1
        counts["DeEPCA"] += found.deepca.converged
        counts["accelerated"] += found.accelerated.converged
        counts["wrong"] += found.deepca.wrong + found.accelerated.wrong
        if found.deepca.converged and found.accelerated.converged:
            ratios.append(found.accelerated.rounds / found.deepca.rounds)
        elif found.deepca.converged:
            counts["DeEPCA only"] += 1
            print(found, flush=True)
    ratios.sort()
    print(dict(counts), f"rounds, relative to DeEPCA: median {ratios[len(ratios) // 2]:.2f}, largest {ratios[-1]:.2f}")
