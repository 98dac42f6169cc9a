"""Write the section on parity with the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cluster.formatting import GRAPHS, power
from benchmarks.cluster.parity import ALGORITHMS, FIXED, GOAL, TOL, Agreement
from studies.shared.report import Assertion, Section, Table

__all__ = ["point", "section"]

_NAMES = {"deepca": "DeEPCA", "accelerated": "accelerated", "krylov": "block Krylov"}


def point(found: Sequence[Agreement]) -> str:
    """Summarise the section in one sentence."""
    worst = max(max(run.fixed, run.stopped) for run in found)
    most = max(run.ranks for run in found)
    return (
        f"**The same answer.** On up to {most} ranks, no entry of any agent's W differs from the simulator's by more "
        f"than {power(worst)}."
    )


def section(found: Sequence[Agreement]) -> Section:
    """Return the section: assertions and table."""
    fixed, stopped = max(run.fixed for run in found), max(run.stopped for run in found)
    alike = [run for run in found if run.iterations == run.simulated and run.status[0] == run.status[1]]
    assertions = (
        Assertion(
            f"After {FIXED} iterations no entry of any W differs from the simulator's by more than {power(GOAL)}.",
            f"at most {power(fixed)} in {len(found)} runs",
            fixed <= GOAL,
        ),
        Assertion(
            f"The same at the end of a run with `Tolerance({power(TOL)})`, which ends in the same iteration.",
            f"at most {power(stopped)}; {len(alike)} of {len(found)} runs end in the same iteration",
            stopped <= GOAL and len(alike) == len(found),
        ),
    )
    text = (
        "The same problem (d = 60, k = 5, agents with different matrices) on ranks and in the simulator. Shown is the "
        "largest difference between an entry of W on a rank and the same entry in the simulator, over all agents. "
        "Where there are more agents than ranks, each rank holds several. The number of rounds, the momentum and the "
        "end of a run are decided during the run, so iterations can agree only if all these decisions do."
    )
    return Section("Parity with the simulator", text, assertions, (_table(found),))


def _table(found: Sequence[Agreement]) -> Table:
    by_setting: dict[tuple[int, int, str], dict[str, Agreement]] = {}
    for run in found:
        by_setting.setdefault((run.ranks, run.agents, run.graph), {})[run.algorithm] = run
    rows = []
    for (ranks, agents, graph), runs in sorted(by_setting.items()):
        values = [power(value) for name in ALGORITHMS for value in (runs[name].fixed, runs[name].stopped)]
        iterations = ", ".join(str(runs[name].iterations) for name in ALGORITHMS)
        rows.append((str(ranks), str(agents), GRAPHS[graph], *values, iterations))
    heads = tuple(f"{_NAMES[name]}, {when}" for name in ALGORITHMS for when in (f"{FIXED} iterations", "end"))
    header = ("ranks", "agents", "graph", *heads, "iterations")
    note = f"Iterations: number until the end of the run, for {', '.join(_NAMES[name] for name in ALGORITHMS)}."
    return Table("Largest difference of W", header, tuple(rows), note, heads=3)
