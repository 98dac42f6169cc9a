"""Cases with lossy links, a slow peer, unusable disks, and random schedules of faults."""

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

from studies.faults.hurt import UNFINISHED, Hurt
from studies.faults.playing import (
    LIMIT,
    Found,
    Scale,
    all_finish,
    expect_one_epoch,
    play,
    summed,
)
from studies.faults.processes import Fleet, Setup, Verdict

__all__ = ["disks", "noise", "schedules", "slow_peer"]


def noise(scale: Scale) -> Found:
    """Lose, duplicate and delay frames at all sites."""
    verdicts, counts = [], dict.fromkeys(("lost", "doubled", "held"), 0)
    every = [Hurt(loss=0.01), Hurt(double=0.05), Hurt(late=0.05), Hurt(loss=0.01, double=0.05, late=0.05)]
    for number, hurt in enumerate(every if scale.full else every[-1:]):

        def act(fleet: Fleet, hurt: Hurt = hurt) -> None:
            fleet.start(hurt=replace(hurt, pause=0.01))
            fleet.wait(LIMIT)
            for site in range(10):
                for one in fleet.events(site, "end"):
                    for name in counts:
                        counts[name] += one.get(name, 0)

        verdicts.append(play(scale.folder / "noise", Setup(seed=700 + number), act, expect_one_epoch))
    figures = f"{counts['lost']} frames lost, {counts['doubled']} duplicated, {counts['held']} delayed"
    return summed(
        "loss, duplicates, reordering",
        "1% of frames lost, 5% duplicated, 5% delayed, separately and combined",
        verdicts,
        figures,
    )


def slow_peer(scale: Scale) -> Found:
    """Make one peer 20 times slower in everything."""
    took: list[float] = []

    def clean(fleet: Fleet) -> None:
        fleet.start(hurt=Hurt(pause=1e-4))
        fleet.running()
        fleet.wait(LIMIT)
        took.append(_seconds_per_step(fleet))

    setup = Setup(seed=710, gap=0.3)
    verdicts = [play(scale.folder / "slow", setup, clean, all_finish)]

    def slow(fleet: Fleet) -> None:
        rounds = max(int(one["rounds"]) for one in before) / max(int(one["iterations"]) for one in before)
        each = 20.0 * took[0] / max(rounds, 1.0) / 4.0  # two frames in and two out in every round
        fleet.start(*(site for site in range(10) if site != 4), hurt=Hurt(pause=1e-4))
        fleet.start(4, hurt=Hurt(slow=each, pause=20.0 * took[0] / max(rounds, 1.0)))
        fleet.wait(2.0 * LIMIT)
        took.append(_seconds_per_step(fleet))

    with Fleet(scale.folder / "slow", setup) as fleet:
        fleet.start(hurt=Hurt(pause=1e-4))
        fleet.wait(LIMIT)
        before = [one for site in range(10) for one in fleet.events(site, "end")]
    verdicts.append(play(scale.folder / "slow", setup, slow, expect_one_epoch))
    figures = (
        f"{1e3 * took[0]:.0f} ms per iteration, {1e3 * took[-1]:.0f} ms with the slow peer" if len(took) > 1 else ""
    )
    return summed("slow peer", "1 of 10 agents is 20 times slower in every frame and iteration", verdicts, figures)


def _seconds_per_step(fleet: Fleet) -> float:
    steps = fleet.events(0, "step")
    return float((steps[-1]["at"] - steps[0]["at"]) / max(len(steps) - 1, 1)) if steps else 0.0


def disks(scale: Scale) -> Found:
    """Put one site's state folder on a full or read-only disk, and kill and restart that site."""
    verdicts, warned, impossible = [], 0, []
    for number, kind in enumerate(("full", "read-only")):

        def act(fleet: Fleet, kind: str = kind) -> None:
            with _bad_folder(fleet.site(3) / "state", kind):
                fleet.start()
                fleet.running()
                fleet.until(lambda: len(fleet.events(3, "step")) > 12, 60.0, "no iterations")
                fleet.kill(3)
                time.sleep(0.5)
                fleet.start(3)
                fleet.wait(LIMIT)

        def expect(fleet: Fleet, verdict: Verdict) -> None:
            nonlocal warned
            all_finish(fleet, verdict)
            warned += bool(fleet.events(3, "checkpoint"))
            if not fleet.events(3, "checkpoint"):
                verdict.problems.append("no warning that checkpoints cannot be written")

        try:
            verdicts.append(play(scale.folder / "disk", Setup(seed=800 + number, gap=0.7), act, expect))
        except _MountFailed as why:
            impossible.append(f"skipped on this machine: {kind} ({why})")
    figures = "; ".join([f"warning logged in {warned} of {len(verdicts)} runs", *impossible])
    done = "state folder of 1 of 10 on a full disk (16 KB) or a read-only one; that site also killed and restarted"
    return summed("unusable disks", done, verdicts, figures)


class _MountFailed(Exception):
    """A tmpfs could not be mounted, usually for lack of privileges."""


@contextlib.contextmanager
def _bad_folder(folder: Path, kind: str) -> Iterator[None]:
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


def schedules(scale: Scale) -> Found:
    """Inject one to three random faults into real processes; killed agents are restarted."""
    verdicts = [_schedule(scale.folder / "schedule", seed) for seed in range(scale.choose(20, 5))]
    epochs = sum(verdict.epochs for verdict in verdicts)
    figures = (
        f"{epochs} epochs in total; {sum(len(v.finished) for v in verdicts)} of {10 * len(verdicts)} sites finished"
    )
    return summed(
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
        if rng.random() < 0.7:  # otherwise faults hit while agents gather
            fleet.running()
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
        fleet.wait(fleet.setup.deadline + 30.0)  # an agent that returns after all others left ends at its own deadline

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        if on_loss == "wait":
            all_finish(fleet, verdict)
            return
        # an agent that was away for long may return too late and end unfinished, but never with a wrong result
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
    verdict = play(folder, setup, act, expect)
    if verdict.problems:
        verdict.problems.append(
            f"(seed {seed}, {on_loss}, {algorithm}, {[(round(at, 2), kind) for at, kind in sorted(faults)]})"
        )
    return verdict
