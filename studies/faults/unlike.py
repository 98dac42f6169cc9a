"""Agents whose processors are unlike: other BLAS kernels, other bits of every product, and one answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepca._util.typing import Array
from studies.faults.playing import LIMIT, Found, Scale, all_finish, play, summed
from studies.faults.processes import Fleet, Setup, Verdict, kernels_here

__all__ = ["PROBLEMS", "Problem", "rows_of", "run_with", "unlike_processors"]


@dataclass(frozen=True)
class Problem:
    """Columns, components, and the spectrum: by what standard deviations fall, and where they are flat.

    tolerance : what is to be proven.  close : how far a result may be from that of the pooled rows.
    """

    d: int
    k: int
    decay: float
    tail: float = 0.0
    tolerance: float = 1e-10
    close: float = 1e-12


PROBLEMS = {
    "d = 300, k = 6": Problem(300, 6, 0.98),
    "d = 120, k = 10": Problem(120, 10, 0.7, 1e-3),
    # the last variances lie below the rounding of the first
    "d = 30, k = 7, steep": Problem(30, 7, 0.04, tolerance=1e-4, close=1e-6),
}


def rows_of(problem: Problem, agents: int = 3) -> list[Array]:
    """Rows of each site, with a spectrum that falls and then is flat."""
    d, decay, tail = problem.d, problem.decay, problem.tail
    rng = np.random.default_rng(d)
    scales = np.maximum(decay ** np.arange(d), tail)
    basis, centre = np.linalg.qr(rng.standard_normal((d, d)))[0], rng.standard_normal(d)
    return [(rng.standard_normal((150, d)) * scales) @ basis + centre for _ in range(agents)]


def run_with(folder: Path, problem: Problem, kernels: tuple[str, ...], agents: int = 3) -> Verdict:
    """Run one problem with agents that have these kernels in turn: one file that all have compared and signed."""

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        all_finish(fleet, verdict)
        ends = [one for site in range(agents) for one in fleet.events(site, "end")]
        if (own := sum(bool(one.get("own")) for one in ends)) != agents:
            verdict.problems.append(f"{own} of {agents} have compared and signed the result")

    setup = Setup(
        agents=agents,
        algorithm="auto",
        d=problem.d,
        components=problem.k,
        tolerance=problem.tolerance,
        close=problem.close,
        pause=0.0,
        fresh=True,
        kernels=kernels,
    )
    return play(folder, setup, act, expect, rows_of(problem, agents))


def unlike_processors(scale: Scale) -> Found:
    """All kernels that this processor can run, one per agent, against one kind of them everywhere."""
    kernels = kernels_here()
    agents = max(3, len(kernels))
    verdicts, counts = [], []
    for name, problem in PROBLEMS.items():
        alike = run_with(scale.folder / "unlike", problem, kernels[:1], agents)
        unlike = run_with(scale.folder / "unlike", problem, kernels, agents)
        if abs(unlike.iterations - alike.iterations) > 1:
            unlike.problems.append(f"{unlike.iterations} iterations, with equal kernels {alike.iterations}")
        verdicts += [alike, unlike]
        counts.append(f"{name}: {unlike.iterations} iterations, with equal kernels {alike.iterations}")
    done = (
        f"{agents} agents with the BLAS kernels of unlike processors ({', '.join(kernels)}), and with equal ones; "
        f"{'; '.join(PROBLEMS)}"
    )
    return summed("unlike processors", done, verdicts, "; ".join([*counts, "one file, compared and signed by all"]))
