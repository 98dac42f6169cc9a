"""One run of real agents to which something is done: played, watched, and judged."""

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
    """How much is done. full : everything, as long as it was asked for; otherwise fewer and shorter."""

    folder: Path
    full: bool = True

    def choose(self, full: int, quick: int) -> int:
        return full if self.full else quick


@dataclass(frozen=True)
class Lies:
    """What became of so many lies: accepted by how many sites, tracebacks, and runs where the liar was named by all."""

    told: int
    accepted: int
    tracebacks: int
    named: int


@dataclass(frozen=True)
class Found:
    """A row of the table: what was done, how often, and how it ended.

    success : runs that ended as they must.  wrong : with a wrong answer, or two.  hung : not at all.
    lies : what became of agents that lie, where some did.
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
        return self.success == self.runs and not self.wrong and not self.hung


@dataclass(frozen=True)
class Case:
    """A kind of fault, and the function that tries it."""

    name: str
    try_: Callable[[Scale], Found]

    def run(self, scale: Scale) -> Found:
        """Whatever happens, there is a row for it."""
        try:
            return self.try_(scale)
        except Hung as error:
            return Found(self.name, "did not get as far", 1, 0, 0, 1, "", (str(error),))


def play(
    folder: Path,
    setup: Setup,
    act: Callable[[Fleet], object],
    expect: Callable[[Fleet, Verdict], None],
    rows: Sequence[Array] | None = None,
) -> Verdict:
    """One run: start, do something, and judge. Nothing waits beyond a limit."""
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
    """Everybody has a result of everybody's rows."""
    for site in range(fleet.setup.sites):
        if (code := verdict.codes.get(site)) != 0:
            ends = fleet.events(site, "end")
            verdict.problems.append(f"s{site} ended with {code}: {ends[-1]['text'] if ends else 'no word'}")
    if verdict.members != fleet.names:
        verdict.problems.append(f"a result of {len(verdict.members)} sites")


def summed(case: str, done: str, verdicts: Sequence[Verdict], figures: str = "") -> Found:
    wrong = sum(any("wrong" in one or "differ" in one for one in verdict.problems) for verdict in verdicts)
    error = max((max(verdict.error, verdict.simulated) for verdict in verdicts), default=0.0)
    said = [f"largest error {error:.0e}"] if any(verdict.results for verdict in verdicts) else []
    return Found(
        case,
        done,
        len(verdicts),
        sum(not verdict.problems for verdict in verdicts),
        wrong,
        sum(verdict.hung for verdict in verdicts),
        "; ".join([*said, *([figures] if figures else [])]),
        tuple(f"run {i}: {one}" for i, verdict in enumerate(verdicts) for one in verdict.problems),
    )


def neighbours(fleet: Fleet, site: int) -> tuple[int, ...]:
    return fleet.network.neighbors(fleet.names[site])


def noticed(fleet: Fleet, victim: int, since: float) -> list[float]:
    """Seconds after which each neighbour of a site has noticed that something is wrong with it."""
    found = []
    for other in neighbours(fleet, victim):
        told = [
            one["at"] - since
            for one in fleet.events(other, "link_down", "silent", "lost")
            if one.get("site") == fleet.names[victim] and one["at"] >= since
        ]
        found += told[:1]
    return found


def repeated(fleet: Fleet) -> int:
    """Iterations that were made again because of a restart, at most over sites and epochs."""
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
    for site, code in codes.items():
        if verdict.codes.get(site) != code:
            ends = fleet.events(site, "end")
            said = ends[-1]["text"] if ends else "no word"
            verdict.problems.append(f"s{site} ended with {verdict.codes.get(site)}, not {code}: {said}")


def expect_one_epoch(fleet: Fleet, verdict: Verdict) -> None:
    all_finish(fleet, verdict)
    if verdict.epochs != 1:
        said = [one for site in range(fleet.setup.sites) for one in fleet.events(site, "regroup")]
        first = min(said, key=lambda one: float(one["at"]), default={"text": "no word"})
        verdict.problems.append(f"{verdict.epochs} epochs: {first['text']}")
