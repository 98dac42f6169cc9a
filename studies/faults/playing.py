"""Run real agents under faults, judge the outcome, and summarize it as a row of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepca._util.typing import Array
from studies.faults.processes import Fleet, Hung, Setup, Verdict

__all__ = [
    "LIMIT",
    "Case",
    "Found",
    "Lies",
    "Scale",
    "all_finish",
    "expect_codes",
    "expect_one_epoch",
    "neighbours",
    "noticed",
    "play",
    "repeated",
    "summed",
]

LIMIT = 90.0
"""Seconds after which a run that should have ended counts as hung."""


@dataclass(frozen=True)
class Scale:
    """Folder and size of a suite: all runs at full length, or fewer and shorter ones."""

    folder: Path
    full: bool = True

    def choose(self, full: int, quick: int) -> int:
        """Return the number for this size."""
        return full if self.full else quick


@dataclass(frozen=True)
class Lies:
    """Numbers of lies told, results accepted, tracebacks, and runs in which all honest sites named the liar."""

    told: int
    accepted: int
    tracebacks: int
    named: int


@dataclass(frozen=True)
class Found:
    """Outcome of a case, a row of the report.

    Parameters
    ----------
    case, done
        Name of the case, and what was done.
    runs, success, wrong, hung
        Numbers of runs: all, those that passed, those with a wrong result or differing ones, those that did not end.
    figures
        Measurements, as text.
    problems
        What went wrong, by run.
    lies
        What became of lies, in cases that tell some.
    """

    case: str
    done: str
    runs: int
    success: int
    wrong: int
    hung: int
    figures: str = ""
    problems: tuple[str, ...] = ()
    lies: Lies | None = None

    @property
    def holds(self) -> bool:
        """Whether all runs passed."""
        return self.success == self.runs and not self.wrong and not self.hung


@dataclass(frozen=True)
class Case:
    """A kind of fault, and the function that injects it."""

    name: str
    inject: Callable[[Scale], Found]

    def run(self, scale: Scale) -> Found:
        """Run the case; a hang outside of its runs gives a row, too."""
        try:
            return self.inject(scale)
        except Hung as error:
            return Found(self.name, "not completed", 1, 0, 0, 1, "", (str(error),))


def play(
    folder: Path,
    setup: Setup,
    act: Callable[[Fleet], object],
    expect: Callable[[Fleet, Verdict], None],
    rows: Sequence[Array] | None = None,
) -> Verdict:
    """Run a fleet once and judge it.

    Parameters
    ----------
    act
        Starts agents, injects faults and waits; Hung is noted in the verdict.
    expect
        Adds problems that are specific to the case.
    rows
        Rows of each site, shape ``(n_j, d)``; generated if not given.
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


def all_finish(fleet: Fleet, verdict: Verdict) -> None:
    """Expect every site to finish with a result of all sites' rows."""
    for site in range(fleet.setup.sites):
        if (code := verdict.codes.get(site)) != 0:
            ends = fleet.events(site, "end")
            verdict.problems.append(
                f"s{site} ended with exit code {code}: {ends[-1]['text'] if ends else 'no message'}"
            )
    if verdict.members != fleet.names:
        verdict.problems.append(f"result computed from {len(verdict.members)} sites")


def summed(case: str, done: str, verdicts: Sequence[Verdict], figures: str = "") -> Found:
    """Summarize runs as a row of the report."""
    error = max((max(verdict.error, verdict.simulated) for verdict in verdicts), default=0.0)
    accuracy = [f"largest error {error:.0e}"] if any(verdict.results for verdict in verdicts) else []
    return Found(
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


def noticed(fleet: Fleet, victim: int, since: float) -> list[float]:
    """Return the seconds after which each neighbour of a site detected its failure."""
    found = []
    for other in neighbours(fleet, victim):
        delays = [
            one["at"] - since
            for one in fleet.events(other, "link_down", "silent", "lost")
            if one.get("site") == fleet.names[victim] and one["at"] >= since
        ]
        found += delays[:1]
    return found


def repeated(fleet: Fleet) -> int:
    """Return the largest number of iterations repeated after a restart, over sites and epochs."""
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
    """Expect exit codes, by site."""
    for site, code in codes.items():
        if verdict.codes.get(site) != code:
            ends = fleet.events(site, "end")
            text = ends[-1]["text"] if ends else "no message"
            verdict.problems.append(f"s{site} ended with exit code {verdict.codes.get(site)}, not {code}: {text}")


def expect_one_epoch(fleet: Fleet, verdict: Verdict) -> None:
    """Expect every site to finish in the first epoch."""
    all_finish(fleet, verdict)
    if verdict.epochs != 1:
        regroups = [one for site in range(fleet.setup.sites) for one in fleet.events(site, "regroup")]
        first = min(regroups, key=lambda one: float(one["at"]), default={"text": "no message"})
        verdict.problems.append(f"{verdict.epochs} epochs: {first['text']}")
