"""Case in which agents use different BLAS kernels, as on different processors, and must agree on one result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepca._util.typing import Array
from studies.faults.fleet import Fleet, Setup, Verdict, available_kernels
from studies.faults.harness import LIMIT, CaseResult, Scale, expect_all_finish, run_fleet, summarise

__all__ = ["PROBLEMS", "Problem", "mixed_processors", "rows_of", "run_with"]


@dataclass(frozen=True)
class Problem:
    """Size, spectrum and required accuracy of a problem.

    Parameters
    ----------
    d, k
        Number of columns and of components.
    decay
        Ratio of consecutive standard deviations.
    tail
        Smallest standard deviation, at which the spectrum becomes flat.
    tolerance
        Tolerance that the certificate must prove.
    accuracy
        Largest error of a correct result.
    """

    d: int
    k: int
    decay: float
    tail: float = 0.0
    tolerance: float = 1e-10
    accuracy: float = 1e-12


PROBLEMS = {
    "d = 300, k = 6": Problem(300, 6, 0.98),
    "d = 120, k = 10": Problem(120, 10, 0.7, 1e-3),
    # the last variances are smaller than the rounding error of the first
    "d = 30, k = 7, steep": Problem(30, 7, 0.04, tolerance=1e-4, accuracy=1e-6),
}


def rows_of(problem: Problem, agents: int = 3) -> list[Array]:
    """Draw the rows of each site, with the spectrum of the problem."""
    d, decay, tail = problem.d, problem.decay, problem.tail
    rng = np.random.default_rng(d)
    scales = np.maximum(decay ** np.arange(d), tail)
    basis, centre = np.linalg.qr(rng.standard_normal((d, d)))[0], rng.standard_normal(d)
    return [(rng.standard_normal((150, d)) * scales) @ basis + centre for _ in range(agents)]


def run_with(folder: Path, problem: Problem, kernels: tuple[str, ...], agents: int = 3) -> Verdict:
    """Run a problem with these BLAS kernels assigned to the agents in turn; all must compare and sign one result."""

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        expect_all_finish(fleet, verdict)
        ends = [one for site in range(agents) for one in fleet.events(site, "end")]
        if (compared := sum(bool(one.get("compared")) for one in ends)) != agents:
            verdict.problems.append(f"only {compared} of {agents} sites compared and signed the result")

    setup = Setup(
        agents=agents,
        algorithm="auto",
        d=problem.d,
        components=problem.k,
        tolerance=problem.tolerance,
        accuracy=problem.accuracy,
        pause=0.0,
        separate_interpreters=True,
        kernels=kernels,
    )
    return run_fleet(folder, setup, act, expect, rows_of(problem, agents))


def mixed_processors(scale: Scale) -> CaseResult:
    """Compare runs in which every agent uses another kernel with runs in which all agents use the same one."""
    kernels = available_kernels()
    agents = max(3, len(kernels))
    verdicts, counts = [], []
    for name, problem in PROBLEMS.items():
        equal = run_with(scale.folder / "processors", problem, kernels[:1], agents)
        mixed = run_with(scale.folder / "processors", problem, kernels, agents)
        if mixed.iterations > 1.5 * equal.iterations:
            mixed.problems.append(f"{mixed.iterations} iterations, but {equal.iterations} with equal kernels")
        verdicts += [equal, mixed]
        counts.append(f"{name}: {mixed.iterations} iterations, {equal.iterations} with equal kernels")
    done = (
        f"{agents} agents with the BLAS kernels of different processors ({', '.join(kernels)}), and with equal "
        f"kernels; {'; '.join(PROBLEMS)}"
    )
    return summarise("mixed processors", done, verdicts, "; ".join([*counts, "each result compared and signed by all"]))
