"""Cases in which an agent with a genuine kit sends false results or numbers (Byzantine faults).

The other agents must refuse what it sends and name it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from studies.faults.faulty_agent import DIFFERS, FAILED, AgentFaults
from studies.faults.fleet import ACCURACY, Fleet, Setup, Verdict
from studies.faults.harness import LIMIT, CaseResult, LieCounts, Scale, expect_codes, run_fleet, summarise
from studies.faults.lies import ARRAYS, LEADER, MODELS, RELAY, TAGS

__all__ = [
    "LEADER_OF_PATH",
    "arrays",
    "expect_liar_named",
    "expect_lie_without_effect",
    "leaders",
    "old_result",
    "results",
]

# on a path of four sites, s2 is a neighbour of s1 and s3, but not of s0, which proposes the result
_LIAR = 2
LEADER_OF_PATH = 1
"""Leader of a path of four sites: s0 and s2 receive its numbers directly, and s3 by way of s2."""
_SETUP = Setup(agents=4, topology="path", algorithm="auto", pause=1e-4, patience=20.0, deadline=60.0, open=True)


def _setup(number: int, topology: str = "path") -> Setup:
    return Setup(**{**vars(_SETUP), "seed": 2000 + number, "topology": topology})


def expect_liar_named(folder: Path, lie: str, liar: int, number: int = 0) -> Verdict:
    """Let an agent lie, and expect all honest sites to name it and to end with exit code 1, without a result."""
    times: list[float] = []  # monotonic times at which the run began and ended

    def act(fleet: Fleet) -> None:
        others = [site for site in range(fleet.setup.sites) if site != liar]
        fleet.start(*others)
        fleet.start(liar, faults=AgentFaults(lie=lie))
        fleet.wait_until_running()
        times.append(time.monotonic())
        fleet.wait(LIMIT, others)
        times.append(time.monotonic())

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        honest = [site for site in range(fleet.setup.sites) if site != liar]
        expect_codes(fleet, verdict, dict.fromkeys(honest, FAILED))
        for site in honest:
            ends = fleet.events(site, "end")
            if not ends or ends[-1].get("blamed") != fleet.names[liar]:
                verdict.unnamed += 1
                verdict.problems.append(f"{fleet.names[site]} does not name {fleet.names[liar]}")
            elif not Path(ends[-1]["report"]).is_file():
                verdict.problems.append(f"{fleet.names[site]} wrote no report")
        if len(times) < 2 or times[1] - times[0] > fleet.setup.patience:
            verdict.problems.append("the honest sites did not end within the patience")
        verdict.accepted = sum((fleet.kit(site) / "model.npz").exists() for site in honest)
        if verdict.accepted:
            verdict.wrong = True
            verdict.problems.append(f"{verdict.accepted} sites wrote a wrong result")
        _expect_no_tracebacks(fleet, verdict)

    return run_fleet(folder, _setup(number), act, expect)


def expect_lie_without_effect(folder: Path, lie: str, number: int = 0) -> Verdict:
    """Let an agent lie, and expect the others to refuse and log the lie and to end with the right result.

    The sites form a ring, so that everything that the liar forwards also arrives by another route.
    """

    def act(fleet: Fleet) -> None:
        if lie == "claim:replayed":
            fleet.start()
            fleet.wait(LIMIT)
            for site in range(fleet.setup.sites):
                (fleet.kit(site) / "model.npz").unlink()
                fleet.rows[site] = fleet.rows[site][:, ::-1].copy()
                np.save(fleet.kit(site) / "rows.npy", fleet.rows[site])
                with (fleet.kit(site) / "network.toml").open("r+", encoding="utf-8") as file:
                    text = file.read()
                    file.seek(0)
                    file.write(f'run = "2"\n{text}')
        honest = [site for site in range(fleet.setup.sites) if site != _LIAR]
        fleet.start(*honest)
        fleet.start(_LIAR, faults=AgentFaults(lie=lie))
        fleet.wait(LIMIT, honest)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        honest = [site for site in range(fleet.setup.sites) if site != _LIAR]
        expect_codes(fleet, verdict, dict.fromkeys(honest, 0))
        name = fleet.names[_LIAR]
        refusals = [one for site in honest for one in fleet.events(site, "refused")]
        if not any(name in (one.get("peer"), one.get("where")) for one in refusals):
            verdict.unnamed += 1
            verdict.problems.append(f"no honest site names {name}")
        if verdict.members != fleet.names:
            verdict.problems.append(f"result computed from {verdict.members}")
        if max(verdict.error, verdict.simulator_error) > ACCURACY:
            verdict.accepted = verdict.results
        _expect_no_tracebacks(fleet, verdict)

    return run_fleet(folder, _setup(number, "ring"), act, expect)


def results(scale: Scale) -> CaseResult:
    """Propose an altered result, or announce a fabricated, forged or replayed one."""
    verdicts = []
    proposed = list(MODELS) if scale.full else ["mean", "counts", "status"]
    lies = [(f"model:{what}", 0) for what in proposed]
    lies += [(f"claim:{what}", _LIAR) for what in ("same epoch", "later epoch", "fewer members")]
    for number, (lie, liar) in enumerate(lies):
        verdicts.append(_with_label(lie, expect_liar_named(scale.folder / "lies", lie, liar, number)))
    for number, what in enumerate(("forged record", "replayed")):
        verdicts.append(
            _with_label(what, expect_lie_without_effect(scale.folder / "lies", f"claim:{what}", 50 + number))
        )
    done = (
        f"1 of 4 agents lies. When it proposes the result, it alters: {', '.join(proposed)}. "
        "When another site proposes it, "
        "it announces a fabricated model for the same epoch, a later epoch or fewer sites, forwards a forged record of "
        "another site, or replays the result of an earlier run with all its signatures"
    )
    return _summarise_lies("fabricated results", done, verdicts)


def arrays(scale: Scale) -> CaseResult:
    """Send arrays that are invalid at their step of the run, or messages with a wrong tag."""
    chosen = [f"array:{what}" for what in ARRAYS] + [f"tag:{what}" for what in TAGS]
    chosen = chosen if scale.full else chosen[::4]
    verdicts = [
        _with_label(lie, expect_liar_named(scale.folder / "lies", lie, _LIAR, 100 + number))
        for number, lie in enumerate(chosen)
    ]
    lies = ", ".join(lie.replace(":", ": ") for lie in chosen)
    done = f"1 of 4 agents sends messages that are invalid at their step of the run: {lies}"
    return _summarise_lies("invalid messages", done, verdicts)


def leaders(scale: Scale) -> CaseResult:
    """Send false numbers as the leader, or forward the leader's numbers altered."""
    computed = list(LEADER) if scale.full else ["next block", "a bound", "eigenvalues"]
    chosen = [(f"leader:{what}", LEADER_OF_PATH) for what in computed]
    chosen += [(f"relay:{what}", _LIAR) for what in (RELAY if scale.full else ["next block"])]
    verdicts = [
        _with_label(lie, expect_liar_named(scale.folder / "lies", lie, liar, 300 + number))
        for number, (lie, liar) in enumerate(chosen)
    ]
    done = (
        f"1 of 4 agents, the leader, sends false numbers: {', '.join(computed)}; another agent alters the leader's "
        "numbers while forwarding them"
    )
    return _summarise_lies("false leader", done, verdicts)


def old_result(scale: Scale) -> CaseResult:
    """Restart two agents of a finished run under the same run name, one of them with a changed value in its data."""

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait(LIMIT)
        (fleet.kit(0) / "rows.npy").touch()
        changed = fleet.rows[1].copy()
        changed[3, 2] += 1e-9
        np.save(fleet.kit(1) / "rows.npy", changed)
        fleet.start(0, 1)
        fleet.wait(LIMIT, (0, 1))

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        expect_codes(fleet, verdict, {0: 0, 1: DIFFERS, 2: 0, 3: 0})
        _expect_no_tracebacks(fleet, verdict)

    verdict = run_fleet(scale.folder / "old", _setup(200), act, expect)
    done = "2 of 4 restarted under the same run name: 1 with its data file touched, 1 with one value changed by 1e-9"
    return summarise(
        "stale result", done, [verdict], "touched: existing result kept; changed: exit code 2, nothing written"
    )


def _expect_no_tracebacks(fleet: Fleet, verdict: Verdict) -> None:
    """Add a problem for every agent that printed a traceback."""
    for site, name in enumerate(fleet.names):
        with contextlib.suppress(FileNotFoundError):
            text = fleet.log(site).with_suffix(".out").read_text(encoding="utf-8", errors="replace")
            if "Traceback" in text:
                verdict.tracebacks += 1
                verdict.problems.append(f"{name} ended with a traceback: {text.strip().splitlines()[-1][:200]}")


def _with_label(lie: str, verdict: Verdict) -> Verdict:
    """Prefix the problems of a run with the lie that was told."""
    verdict.problems = [f"{lie}: {problem}" for problem in verdict.problems]
    return verdict


def _summarise_lies(case: str, done: str, verdicts: Sequence[Verdict]) -> CaseResult:
    """Summarise runs in which an agent lied as a row of the report."""
    lies = LieCounts(
        len(verdicts),
        sum(verdict.accepted for verdict in verdicts),
        sum(verdict.tracebacks for verdict in verdicts),
        sum(not verdict.unnamed for verdict in verdicts),
    )
    figures = (
        f"{lies.accepted} fabricated results accepted, {lies.tracebacks} tracebacks, the liar named in {lies.named} "
        f"of {lies.told} runs; each ended within {max(verdict.seconds for verdict in verdicts):.0f} s"
    )
    return replace(summarise(case, done, verdicts, figures), lies=lies)
