"""Cases with lossy links, a slow agent, unusable disks, and random schedules of faults."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from studies.faults.faulty_agent import UNFINISHED, AgentFaults
from studies.faults.fleet import Fleet, Setup, Verdict
from studies.faults.harness import (
    LIMIT,
    CaseResult,
    Scale,
    expect_all_finish,
    expect_one_epoch,
    run_fleet,
    summarise,
)

__all__ = ["disks", "noise", "schedules", "slow_peer"]


def noise(scale: Scale) -> CaseResult:
    """Drop, duplicate and delay frames at all sites."""
    verdicts, counts = [], dict.fromkeys(("lost", "duplicated", "delayed"), 0)
    kinds = [
        AgentFaults(loss=0.01),
        AgentFaults(duplicate=0.05),
        AgentFaults(delay=0.05),
        AgentFaults(loss=0.01, duplicate=0.05, delay=0.05),
    ]
    for number, faults in enumerate(kinds if scale.full else kinds[-1:]):

        def act(fleet: Fleet, faults: AgentFaults = faults) -> None:
            fleet.start(faults=replace(faults, pause=0.01))
            fleet.wait(LIMIT)
            for site in range(10):
                for one in fleet.events(site, "end"):
                    for name in counts:
                        counts[name] += one.get(name, 0)

        verdicts.append(run_fleet(scale.folder / "noise", Setup(seed=700 + number), act, expect_one_epoch))
    figures = f"{counts['lost']} frames lost, {counts['duplicated']} duplicated, {counts['delayed']} delayed"
    return summarise(
        "loss, duplicates, reordering",
        "1% of frames lost, 5% duplicated, 5% delayed, separately and combined",
        verdicts,
        figures,
    )


def slow_peer(scale: Scale) -> CaseResult:
    """Make one agent 20 times slower in every frame and iteration."""
    step_seconds: list[float] = []

    def undisturbed(fleet: Fleet) -> None:
        fleet.start(faults=AgentFaults(pause=1e-4))
        fleet.wait_until_running()
        fleet.wait(LIMIT)
        step_seconds.append(_seconds_per_step(fleet))

    setup = Setup(seed=710, eigenvalue_ratio=0.3)
    verdicts = [run_fleet(scale.folder / "slow", setup, undisturbed, expect_all_finish)]

    def slow(fleet: Fleet) -> None:
        rounds = max(int(one["rounds"]) for one in before) / max(int(one["iterations"]) for one in before)
        each = 20.0 * step_seconds[0] / max(rounds, 1.0) / 4.0  # two frames in and two out in every round
        fleet.start(*(site for site in range(10) if site != 4), faults=AgentFaults(pause=1e-4))
        fleet.start(4, faults=AgentFaults(slow=each, pause=20.0 * step_seconds[0] / max(rounds, 1.0)))
        fleet.wait(2.0 * LIMIT)
        step_seconds.append(_seconds_per_step(fleet))

    with Fleet(scale.folder / "slow", setup) as fleet:
        fleet.start(faults=AgentFaults(pause=1e-4))
        fleet.wait(LIMIT)
        before = [one for site in range(10) for one in fleet.events(site, "end")]
    verdicts.append(run_fleet(scale.folder / "slow", setup, slow, expect_one_epoch))
    figures = (
        f"{1e3 * step_seconds[0]:.0f} ms per iteration, {1e3 * step_seconds[-1]:.0f} ms with the slow agent"
        if len(step_seconds) > 1
        else ""
    )
    return summarise(
        "slow peer", "1 of 10 agents takes 20 times as long for every frame and iteration", verdicts, figures
    )


def _seconds_per_step(fleet: Fleet) -> float:
    steps = fleet.events(0, "step")
    return float((steps[-1]["at"] - steps[0]["at"]) / max(len(steps) - 1, 1)) if steps else 0.0


def disks(scale: Scale) -> CaseResult:
    """Put the state folder of one site on a full or read-only disk, and kill and restart the agent of that site."""
    verdicts, warned, skipped = [], 0, []
    for number, kind in enumerate(("full", "read-only")):

        def act(fleet: Fleet, kind: str = kind) -> None:
            with _unusable_disk(fleet.kit(3) / "state", kind):
                fleet.start()
                fleet.wait_until_running()
                fleet.wait_until(lambda: len(fleet.events(3, "step")) > 12, 60.0, "no iterations")
                fleet.kill(3)
                time.sleep(0.5)
                fleet.start(3)
                fleet.wait(LIMIT)

        def expect(fleet: Fleet, verdict: Verdict) -> None:
            nonlocal warned
            expect_all_finish(fleet, verdict)
            warned += bool(fleet.events(3, "checkpoint"))
            if not fleet.events(3, "checkpoint"):
                verdict.problems.append("no warning that checkpoints cannot be written")

        try:
            verdicts.append(
                run_fleet(scale.folder / "disk", Setup(seed=800 + number, eigenvalue_ratio=0.7), act, expect)
            )
        except _MountFailed as why:
            skipped.append(f"skipped on this machine: {kind} ({why})")
    figures = "; ".join([f"warning logged in {warned} of {len(verdicts)} runs", *skipped])
    done = "state folder of 1 of 10 on a full disk (16 KB) or a read-only one; that site also killed and restarted"
    return summarise("unusable disks", done, verdicts, figures)


class _MountFailed(Exception):
    """A tmpfs could not be mounted, usually for lack of privileges."""


@contextlib.contextmanager
def _unusable_disk(folder: Path, kind: str) -> Iterator[None]:
    """Mount a full or a read-only disk at a folder; without root, make the folder read-only by its permissions."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "read-only" and os.getuid() != 0:
        folder.chmod(0o500)
        try:
            yield
        finally:
            folder.chmod(0o700)
        return
    options = "size=16k" if kind == "full" else "ro"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise _MountFailed(made.stderr.strip() or "mount failed")
    try:
        if kind == "full":
            (folder / "other").write_bytes(bytes(12 << 10))
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def schedules(scale: Scale) -> CaseResult:
    """Inject one to three random faults at random moments; killed agents are restarted."""
    verdicts = [_schedule(scale.folder / "schedule", seed) for seed in range(scale.choose(20, 5))]
    epochs = sum(verdict.epochs for verdict in verdicts)
    figures = (
        f"{epochs} epochs in total; {sum(len(v.finished) for v in verdicts)} of {10 * len(verdicts)} sites finished"
    )
    return summarise(
        "random schedules",
        "1–3 random faults each: one, two or all agents killed, one frozen, partition, one-way loss",
        verdicts,
        figures,
    )


def _schedule(folder: Path, seed: int) -> Verdict:
    rng = np.random.default_rng((91, seed))
    on_loss = "wait" if rng.random() < 0.6 else "shrink"
    algorithm = str(rng.choice(["auto", "deepca", "accelerated"]))
    faults = [
        (
            float(rng.uniform(0.0, 3.0)),
            str(rng.choice(["kill", "kill two", "kill all", "freeze", "partition", "one way"])),
        )
        for _ in range(int(rng.integers(1, 4)))
    ]

    def act(fleet: Fleet) -> None:
        assert fleet.proxies is not None
        fleet.start()
        if rng.random() < 0.7:  # otherwise the faults begin while the agents are still gathering
            fleet.wait_until_running()
        began = time.monotonic()
        for at, kind in sorted(faults):
            time.sleep(max(began + at - time.monotonic(), 0.0))
            seconds = float(rng.choice([0.5, 3.0, 6.0]))
            who = [int(j) for j in rng.permutation(10)]
            if kind.startswith("kill"):
                chosen = [site for site in who[: {"kill": 1, "kill two": 2, "kill all": 10}[kind]] if fleet.alive(site)]
                fleet.kill(*chosen)
                time.sleep(seconds)
                for site in chosen:
                    fleet.start(site)
            elif kind == "freeze":
                fleet.signal(who[0], signal.SIGSTOP)
                time.sleep(seconds)
                fleet.signal(who[0], signal.SIGCONT)
            else:
                links = fleet.proxies.between(who[: int(rng.integers(1, 6))])
                back = [(j, i) for i, j in links]
                ways = links[:1] if kind == "one way" else [*links, *back]
                fleet.proxies.hold(ways)
                time.sleep(seconds)
                fleet.proxies.release(ways)
        fleet.wait(
            fleet.setup.deadline + 30.0
        )  # an agent that returns after all others have ended waits for its deadline

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        if on_loss == "wait":
            expect_all_finish(fleet, verdict)
            return
        # an agent that was away for long may return too late and end unfinished, but must not end with a wrong result
        for site, code in verdict.codes.items():
            if code not in (0, UNFINISHED):
                verdict.problems.append(f"s{site} ended with exit code {code}")
        if 2 * verdict.results <= 10:
            verdict.problems.append(f"only {verdict.results} of 10 sites have a result")

    setup = Setup(
        algorithm=algorithm,
        on_loss=on_loss,
        patience=4.0 if on_loss == "shrink" else 60.0,
        proxied=True,
        seed=900 + seed,
    )
    verdict = run_fleet(folder, setup, act, expect)
    if verdict.problems:
        verdict.problems.append(
            f"(seed {seed}, {on_loss}, {algorithm}, {[(round(at, 2), kind) for at, kind in sorted(faults)]})"
        )
    return verdict
