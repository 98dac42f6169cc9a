"""Run a fleet under faults, check the outcome, and summarise it as a row of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepca._util.typing import Array
from studies.faults.fleet import Fleet, Hung, Setup, Verdict

__all__ = [
    "LIMIT",
    "Case",
    "CaseResult",
    "LieCounts",
    "Scale",
    "detection_delays",
    "expect_all_finish",
    "expect_codes",
    "expect_one_epoch",
    "neighbours",
    "repeated_iterations",
    "run_fleet",
    "summarise",
]

LIMIT = 90.0
"""Seconds after which a run that should have ended counts as hung."""


@dataclass(frozen=True)
class Scale:
    """Working folder of the suite, and whether to make all runs at full length or fewer and shorter ones."""

    folder: Path
    full: bool = True

    def choose(self, full: int, quick: int) -> int:
        """Return ``full`` for the full suite and ``quick`` for the quick one."""
        return full if self.full else quick


@dataclass(frozen=True)
class LieCounts:
    """Counts over the runs of a case in which an agent lies.

    Parameters
    ----------
    told
        Lies that were told, one per run.
    accepted
        Sites that wrote a fabricated result.
    tracebacks
        Agents that ended with a traceback.
    named
        Runs in which every honest site that must name the liar did so.
    """

    told: int
    accepted: int
    tracebacks: int
    named: int


@dataclass(frozen=True)
class CaseResult:
    """Outcome of a case: one row of the report.

    Parameters
    ----------
    case, done
        Name of the case, and a description of what was done.
    runs, passed, wrong, hung
        Numbers of runs: in total, that passed, with a wrong result or with results that differ, and that did not end.
    figures
        Measurements, as text.
    problems
        What went wrong, one line each, beginning with the run.
    lies
        Counts of lies, in cases in which an agent lies.
    """

    case: str
    done: str
    runs: int
    passed: int
    wrong: int
    hung: int
    figures: str = ""
    problems: tuple[str, ...] = ()
    lies: LieCounts | None = None

    @property
    def holds(self) -> bool:
        """Whether all runs passed."""
        return self.passed == self.runs and not self.wrong and not self.hung


@dataclass(frozen=True)
class Case:
    """A kind of fault, and the function that injects it."""

    name: str
    inject: Callable[[Scale], CaseResult]

    def run(self, scale: Scale) -> CaseResult:
        """Run the case; if it hangs outside of its runs, return a row that says so."""
        try:
            return self.inject(scale)
        except Hung as error:
            return CaseResult(self.name, "not completed", 1, 0, 0, 1, "", (str(error),))


def run_fleet(
    folder: Path,
    setup: Setup,
    act: Callable[[Fleet], object],
    expect: Callable[[Fleet, Verdict], None],
    rows: Sequence[Array] | None = None,
) -> Verdict:
    """Run a fleet once and return the verdict on its results.

    Parameters
    ----------
    folder
        Where the kits of the fleet are written.
    setup
        Configuration of the fleet.
    act
        Starts the agents, injects faults and waits. If it raises Hung, the verdict records that.
    expect
        Adds to the verdict the problems that are specific to the case.
    rows
        Rows of each site, shape ``(n_j, d)``; random by default.
    """
    with Fleet(folder, setup, rows) as fleet:
        stuck = ""
        try:
            act(fleet)
        except Hung as error:
            stuck = str(error)
        verdict = fleet.verdict()
        if stuck:
            verdict.hung = 1
            verdict.problems.append(stuck)
        expect(fleet, verdict)
        return verdict


def expect_all_finish(fleet: Fleet, verdict: Verdict) -> None:
    """Add a problem unless every site finishes and the result is computed from the rows of all sites."""
    for site in range(fleet.setup.sites):
        if (code := verdict.codes.get(site)) != 0:
            ends = fleet.events(site, "end")
            verdict.problems.append(
                f"s{site} ended with exit code {code}: {ends[-1]['text'] if ends else 'no message'}"
            )
    if verdict.members != fleet.names:
        verdict.problems.append(f"result computed from {len(verdict.members)} sites")


def summarise(case: str, done: str, verdicts: Sequence[Verdict], figures: str = "") -> CaseResult:
    """Summarise the runs of a case as a row of the report."""
    error = max((max(verdict.error, verdict.simulator_error) for verdict in verdicts), default=0.0)
    accuracy = [f"largest error {error:.0e}"] if any(verdict.results for verdict in verdicts) else []
    return CaseResult(
        case,
        done,
        len(verdicts),
        sum(not verdict.problems for verdict in verdicts),
        sum(verdict.wrong for verdict in verdicts),
        sum(verdict.hung for verdict in verdicts),
        "; ".join([*accuracy, *([figures] if figures else [])]),
        tuple(f"run {i}: {one}" for i, verdict in enumerate(verdicts) for one in verdict.problems),
    )


def neighbours(fleet: Fleet, site: int) -> tuple[int, ...]:
    """Return the neighbours of a site."""
    return fleet.network.neighbors(fleet.names[site])


def detection_delays(fleet: Fleet, victim: int, since: float) -> list[float]:
    """Return how many seconds after ``since`` each neighbour of a site detected its failure, if it did."""
    found = []
    for other in neighbours(fleet, victim):
        delays = [
            one["at"] - since
            for one in fleet.events(other, "link_down", "silent", "lost")
            if one.get("site") == fleet.names[victim] and one["at"] >= since
        ]
        found += delays[:1]
    return found


def repeated_iterations(fleet: Fleet) -> int:
    """Return the largest number of iterations that a site repeated at the start of an epoch."""
    most = 0
    for site in range(fleet.setup.sites):
        reached = 0
        for one in fleet.events(site, "step", "epoch"):
            if one["event"] == "step":
                reached = max(reached, int(one["t"]))
            elif one["epoch"] > 1 and one["resumed_from"] >= 0:
                most = max(most, reached - int(one["resumed_from"]))
                reached = int(one["resumed_from"])
    return most


def expect_codes(fleet: Fleet, verdict: Verdict, codes: dict[int, int]) -> None:
    """Add a problem for every site whose agent did not end with the given exit code."""
    for site, code in codes.items():
        if verdict.codes.get(site) != code:
            ends = fleet.events(site, "end")
            text = ends[-1]["text"] if ends else "no message"
            verdict.problems.append(f"s{site} ended with exit code {verdict.codes.get(site)}, not {code}: {text}")


def expect_one_epoch(fleet: Fleet, verdict: Verdict) -> None:
    """Add a problem unless every site finishes in the first epoch."""
    expect_all_finish(fleet, verdict)
    if verdict.epochs != 1:
        regroups = [one for site in range(fleet.setup.sites) for one in fleet.events(site, "regroup")]
        first = min(regroups, key=lambda one: float(one["at"]), default={"text": "no message"})
        verdict.problems.append(f"{verdict.epochs} epochs: {first['text']}")
