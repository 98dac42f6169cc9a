"""Cases in which an agent lies about results or numbers, and has to be named without being believed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from studies.faults.hurt import DIFFERS, FAILED, Hurt
from studies.faults.liars import ARRAYS, LEADER, MODELS, RELAY, TAGS
from studies.faults.playing import LIMIT, Found, Lies, Scale, expect_codes, play, summed
from studies.faults.processes import CLOSE, Fleet, Setup, Verdict

__all__ = [
    "LEADER_OF_PATH",
    "arrays",
    "leaders",
    "named_and_nothing_written",
    "old_result",
    "refused_and_right",
    "results",
]

_LIAR = 2  # in a path of four: a neighbour of s1 and s3, but not of s0, which proposes the result
LEADER_OF_PATH = 1
"""Site whose numbers all others use: s0 and s2 receive them from it, s3 from s2."""
_SETUP = Setup(agents=4, topology="path", algorithm="auto", pause=1e-4, patience=20.0, deadline=60.0)


def _setup(number: int, topology: str = "path") -> Setup:
    return Setup(**{**vars(_SETUP), "seed": 2000 + number, "topology": topology})


def named_and_nothing_written(folder: Path, lie: str, liar: int, number: int = 0) -> Verdict:
    """Tell a lie after which all honest sites must name the liar and end with exit code 1, without a result."""
    took: list[float] = []

    def act(fleet: Fleet) -> None:
        others = [site for site in range(fleet.setup.sites) if site != liar]
        fleet.start(*others)
        fleet.start(liar, hurt=Hurt(lie=lie))
        fleet.running()
        took.append(-time.monotonic())
        fleet.wait(LIMIT, others)
        took.append(time.monotonic())

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
        if len(took) < 2 or sum(took) > fleet.setup.patience:
            verdict.problems.append("did not end within patience")
        verdict.accepted = sum((fleet.site(site) / "model.npz").exists() for site in honest)
        if verdict.accepted:
            verdict.wrong = True
            verdict.problems.append(f"{verdict.accepted} sites wrote a wrong result")
        _look_for_tracebacks(fleet, verdict)

    return play(folder, _setup(number), act, expect)


def refused_and_right(folder: Path, lie: str, number: int = 0) -> Verdict:
    """Tell a lie that must be refused and logged, and after which all honest sites still get the right result.

    The sites form a ring, so that whatever the liar forwards also arrives by another way.
    """

    def act(fleet: Fleet) -> None:
        if lie == "claim:replayed":
            fleet.start()
            fleet.wait(LIMIT)
            for site in range(fleet.setup.sites):
                (fleet.site(site) / "model.npz").unlink()
                fleet.rows[site] = fleet.rows[site][:, ::-1].copy()
                np.save(fleet.site(site) / "rows.npy", fleet.rows[site])
                with (fleet.site(site) / "network.toml").open("r+", encoding="utf-8") as file:
                    text = file.read()
                    file.seek(0)
                    file.write(f'run = "2"\n{text}')
        honest = [site for site in range(fleet.setup.sites) if site != _LIAR]
        fleet.start(*honest)
        fleet.start(_LIAR, hurt=Hurt(lie=lie))
        fleet.wait(LIMIT, honest)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        honest = [site for site in range(fleet.setup.sites) if site != _LIAR]
        expect_codes(fleet, verdict, dict.fromkeys(honest, 0))
        name = fleet.names[_LIAR]
        refusals = [one for site in honest for one in fleet.events(site, "refused")]
        if not any(name in (one.get("peer"), one.get("where")) for one in refusals):
            verdict.unnamed += 1
            verdict.problems.append(f"no site names {name}")
        if verdict.members != fleet.names:
            verdict.problems.append(f"result computed from {verdict.members}")
        if max(verdict.error, verdict.simulated) > CLOSE:
            verdict.accepted = verdict.results
        _look_for_tracebacks(fleet, verdict)

    return play(folder, _setup(number, "ring"), act, expect)


def results(scale: Scale) -> Found:
    """Propose altered results, and announce fabricated, forged and replayed ones."""
    verdicts = []
    proposed = list(MODELS) if scale.full else ["mean", "counts", "status"]
    ends = [(f"model:{what}", 0) for what in proposed]
    ends += [(f"claim:{what}", _LIAR) for what in ("same epoch", "later epoch", "fewer members")]
    for number, (lie, liar) in enumerate(ends):
        verdicts.append(_labelled(lie, named_and_nothing_written(scale.folder / "lies", lie, liar, number)))
    for number, what in enumerate(("forged record", "replayed")):
        verdicts.append(_labelled(what, refused_and_right(scale.folder / "lies", f"claim:{what}", 50 + number)))
    done = (
        f"1 of 4 agents lies. When it proposes the result, it alters: {', '.join(proposed)}. "
        "When another site proposes it, "
        "it announces a fabricated model for the same epoch, a later epoch or fewer sites, forwards a forged record of "
        "another site, or replays the result of an earlier run with all its signatures"
    )
    return _summed("fabricated results", done, verdicts)


def arrays(scale: Scale) -> Found:
    """Send arrays that are invalid in their step, and messages with a wrong tag."""
    chosen = [f"array:{what}" for what in ARRAYS] + [f"tag:{what}" for what in TAGS]
    chosen = chosen if scale.full else chosen[::4]
    verdicts = [
        _labelled(lie, named_and_nothing_written(scale.folder / "lies", lie, _LIAR, 100 + number))
        for number, lie in enumerate(chosen)
    ]
    lies = ", ".join(lie.replace(":", ": ") for lie in chosen)
    done = f"1 of 4 agents sends messages that are invalid in their step: {lies}"
    return _summed("invalid messages", done, verdicts)


def leaders(scale: Scale) -> Found:
    """Send false numbers as the leader, or alter the leader's numbers while forwarding them."""
    computed = list(LEADER) if scale.full else ["next block", "a bound", "eigenvalues"]
    chosen = [(f"leader:{what}", LEADER_OF_PATH) for what in computed]
    chosen += [(f"relay:{what}", _LIAR) for what in (RELAY if scale.full else ["next block"])]
    verdicts = [
        _labelled(lie, named_and_nothing_written(scale.folder / "lies", lie, liar, 300 + number))
        for number, (lie, liar) in enumerate(chosen)
    ]
    done = (
        f"1 of 4 agents, the leader, sends false numbers: {', '.join(computed)}; another agent alters the leader's "
        "numbers while forwarding them"
    )
    return _summed("false leader", done, verdicts)


def old_result(scale: Scale) -> Found:
    """Repeat a finished run under the same name, with a touched data file and with a changed one."""

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait(LIMIT)
        (fleet.site(0) / "rows.npy").touch()
        changed = fleet.rows[1].copy()
        changed[3, 2] += 1e-9
        np.save(fleet.site(1) / "rows.npy", changed)
        fleet.start(0, 1)
        fleet.wait(LIMIT, (0, 1))

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        expect_codes(fleet, verdict, {0: 0, 1: DIFFERS, 2: 0, 3: 0})
        _look_for_tracebacks(fleet, verdict)

    verdict = play(scale.folder / "old", _setup(200), act, expect)
    done = "2 of 4 restarted under the same run name: 1 with its data file touched, 1 with one value changed by 1e-9"
    return summed(
        "stale result", done, [verdict], "touched: existing result kept; changed: exit code 2, nothing written"
    )


def _look_for_tracebacks(fleet: Fleet, verdict: Verdict) -> None:
    """Add a problem for every agent that printed a traceback."""
    for site, name in enumerate(fleet.names):
        with contextlib.suppress(FileNotFoundError):
            text = fleet.log(site).with_suffix(".out").read_text(encoding="utf-8", errors="replace")
            if "Traceback" in text:
                verdict.tracebacks += 1
                verdict.problems.append(f"{name} ended with a traceback: {text.strip().splitlines()[-1][:200]}")


def _labelled(lie: str, verdict: Verdict) -> Verdict:
    """Prefix the problems of a run with its lie."""
    verdict.problems = [f"{lie}: {problem}" for problem in verdict.problems]
    return verdict


def _summed(case: str, done: str, verdicts: Sequence[Verdict]) -> Found:
    """Summarize runs with lies as a row of the report."""
    lies = Lies(
        len(verdicts),
        sum(verdict.accepted for verdict in verdicts),
        sum(verdict.tracebacks for verdict in verdicts),
        sum(not verdict.unnamed for verdict in verdicts),
    )
    figures = (
        f"{lies.accepted} fabricated results accepted, {lies.tracebacks} tracebacks, the liar named in {lies.named} "
        f"of {lies.told} runs; each ended within {max(verdict.seconds for verdict in verdicts):.0f} s"
    )
    return replace(summed(case, done, verdicts, figures), lies=lies)
