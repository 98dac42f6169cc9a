"""What is done to running agents, and what has to come of it: one function per kind of fault."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from deepca._typing import Array
from deepca.experiments.faults.doors import CALLERS, LISTENERS, NONE, Attempt, call_with, listen_with
from deepca.experiments.faults.exchanges import GOALS, large_message, round_times
from deepca.experiments.faults.footprint import Footprint, apart, resident, together
from deepca.experiments.faults.hurt import UNFINISHED, Hurt
from deepca.experiments.faults.intruder import deluge, garbage
from deepca.experiments.faults.processes import Fleet, Hung, Setup, Verdict, in_process

__all__ = ["CASES", "Case", "Found", "Scale", "play"]

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
class Found:
    """A row of the table: what was done, how often, and how it ended.

    success : runs that ended as they must.  wrong : with a wrong answer, or two.  hung : not at all.
    """

    case: str
    done: str
    runs: int
    success: int
    wrong: int
    hung: int
    figures: str = ""
    problems: tuple[str, ...] = ()

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


# ---------------------------------------------------------------------------------------------------------------- kills


def kill_and_restart(scale: Scale) -> Found:
    """SIGKILL of one of ten at a random moment; it is started again after a while, and all wait for it."""
    rng = np.random.default_rng(41)
    verdicts, seen, again = [], [], []
    for number in range(scale.choose(10, 3)):
        victim, moment, away = int(rng.integers(10)), rng.uniform(0.0, 4.0), rng.uniform(1.0, 3.0)
        algorithm = ("deepca", "accelerated", "auto")[number % 3]

        def act(fleet: Fleet, victim: int = victim, moment: float = moment, away: float = away) -> None:
            fleet.start()
            fleet.running()
            time.sleep(moment)
            over = not fleet.alive(victim)
            killed = fleet.kill(victim)
            time.sleep(away)
            if not over:
                seen.extend(noticed(fleet, victim, killed))
            fleet.start(victim)
            fleet.wait(LIMIT)
            again.append(repeated(fleet))

        setup = Setup(algorithm=algorithm, seed=number)
        verdicts.append(play(scale.folder / "kill", setup, act, all_finish))
    figures = (
        f"noticed by neighbours after ≤ {max(seen, default=0.0):.2f} s; ≤ {max(again, default=0)} iterations repeated"
    )
    return summed(
        "killed, restarted",
        "SIGKILL of 1 of 10 at random moments, started again after 1–3 s; `wait`",
        verdicts,
        figures,
    )


def kill_and_shrink(scale: Scale) -> Found:
    """SIGKILL of one of ten at a random moment; it never comes back, and the others go on without it."""
    rng = np.random.default_rng(42)
    verdicts, seen, left = [], [], 0
    for number in range(scale.choose(10, 3)):
        victim, moment = int(rng.integers(10)), rng.uniform(0.0, 3.0)
        algorithm = ("deepca", "accelerated", "auto")[number % 3]
        killed: list[float] = []

        def act(fleet: Fleet, victim: int = victim, moment: float = moment, killed: list[float] = killed) -> None:
            fleet.start()
            fleet.running()
            time.sleep(moment)
            if fleet.alive(victim) and not fleet.events(victim, "finished"):
                killed.append(fleet.kill(victim))
            fleet.wait(LIMIT)

        def expect(fleet: Fleet, verdict: Verdict, victim: int = victim, killed: list[float] = killed) -> None:
            if not killed:
                all_finish(fleet, verdict)
                return
            seen.extend(noticed(fleet, victim, killed[0]))
            others = [site for site in range(10) if site != victim]
            _expect_codes(fleet, verdict, dict.fromkeys(others, 0))
            if verdict.members not in (fleet.names, tuple(fleet.names[site] for site in others)):
                verdict.problems.append(f"a result of {verdict.members}")

        setup = Setup(algorithm=algorithm, on_loss="shrink", patience=2.0, seed=100 + number)
        verdicts.append(play(scale.folder / "shrink", setup, act, expect))
        left += len(verdicts[-1].members) == 9
    figures = f"noticed by neighbours after ≤ {max(seen, default=0.0):.2f} s; {left} results of the 9 survivors' rows"
    return summed(
        "killed, left out",
        "SIGKILL of 1 of 10 at random moments, never back; `shrink`, patience 2 s",
        verdicts,
        figures,
    )


def two_killed(scale: Scale) -> Found:
    """Two neighbours killed together, both started again."""
    verdicts = []
    for number in range(scale.choose(3, 1)):

        def act(fleet: Fleet, number: int = number) -> None:
            fleet.start()
            fleet.running()
            time.sleep(0.7 + 0.4 * number)
            pair = (3, 4) if number % 2 == 0 else (2, 7)
            fleet.kill(*pair)
            time.sleep(1.0)
            fleet.start(pair[0])
            time.sleep(0.5)
            fleet.start(pair[1])
            fleet.wait(LIMIT)

        verdicts.append(play(scale.folder / "two", Setup(seed=200 + number), act, all_finish))
    return summed("two killed together", "SIGKILL of 2 of 10, both started again; `wait`", verdicts)


def all_killed(scale: Scale) -> Found:
    """Everybody is killed and started again."""
    verdicts: list[Verdict] = []
    resumed: list[int] = []
    for number in range(scale.choose(3, 1)):

        def act(fleet: Fleet, number: int = number) -> None:
            fleet.start()
            fleet.running()
            fleet.until(lambda: len(fleet.events(0, "step")) > 14 + number, 60.0, "no iterations")
            fleet.kill(*range(10))
            fleet.start()
            fleet.wait(LIMIT)
            resumed.extend(one["resumed_from"] for one in fleet.events(0, "epoch")[1:])

        verdicts.append(play(scale.folder / "all", Setup(seed=300 + number, gap=0.7), act, all_finish))
    figures = f"gone on from iteration {', '.join(map(str, resumed))}"
    return summed("all killed", "SIGKILL of all 10 at once, all started again", verdicts, figures)


# --------------------------------------------------------------------------------------------------- frozen and cut off


def frozen(scale: Scale) -> Found:
    """SIGSTOP for less than patience lasts: nobody is left out."""
    seconds = scale.choose(30, 8)
    seen: list[float] = []
    began: list[float] = []

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.running()
        time.sleep(0.5)
        stopped = time.monotonic()
        began.append(stopped)
        fleet.signal(4, signal.SIGSTOP)
        time.sleep(seconds)
        seen.extend(noticed(fleet, 4, stopped))
        fleet.signal(4, signal.SIGCONT)
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        all_finish(fleet, verdict)
        late = [one for site in range(10) for one in fleet.events(site, "epoch") if not began or one["at"] > began[0]]
        if late:
            verdict.problems.append(f"an epoch began because of it: {late[0]['text']}")

    setup = Setup(on_loss="shrink", patience=60.0, seed=400)
    verdict = play(scale.folder / "frozen", setup, act, expect)
    figures = f"no epoch began because of it; silence noticed by neighbours after ≤ {max(seen, default=0.0):.2f} s"
    done = f"SIGSTOP of 1 of 10 for {seconds} s; `shrink`, patience 60 s"
    return summed(f"frozen {seconds} s", done, [verdict], figures)


def frozen_too_long(scale: Scale) -> Found:
    """SIGSTOP for longer than patience lasts: left out, and taken in again when it is back."""
    patience = 3.0
    counted: list[float] = []

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.running()
        time.sleep(0.5)
        stopped = time.monotonic()
        fleet.signal(4, signal.SIGSTOP)
        others = [site for site in range(10) if site != 4]
        fleet.until(lambda: all(len(fleet.events(site, "epoch")) > 1 for site in others), 60.0, "nobody was left out")
        for other in neighbours(fleet, 4):
            counted.extend(one["at"] - stopped for one in fleet.events(other, "regroup") if "is lost" in one["text"])
        fleet.signal(4, signal.SIGCONT)
        fleet.wait(LIMIT)

    setup = Setup(on_loss="shrink", patience=patience, seed=401, gap=0.85, pause=0.2)
    verdict = play(scale.folder / "rejoin", setup, act, all_finish)
    first = min(counted, default=float("inf"))
    if not first <= patience + 2.0:
        verdict.problems.append(f"frozen neighbour counted as lost only after {first:.1f} s")
    figures = (
        f"counted as lost after {first:.1f} s, which is patience + {first - patience:.1f} s; {verdict.epochs} epochs"
    )
    done = f"SIGSTOP until the others have gone on without it, then SIGCONT; `shrink`, patience {patience:g} s"
    return summed("frozen, left out, back", done, [verdict], figures)


def rejoin(scale: Scale) -> Found:
    """Killed, left out, started again: it takes part in a later epoch."""

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.running()
        time.sleep(0.5)
        fleet.kill(7)
        others = [site for site in range(10) if site != 7]
        fleet.until(lambda: all(len(fleet.events(site, "epoch")) > 1 for site in others), 60.0, "nobody was left out")
        fleet.start(7)
        fleet.wait(LIMIT)

    setup = Setup(on_loss="shrink", patience=2.0, seed=402, gap=0.85, pause=0.2)
    verdict = play(scale.folder / "rejoin", setup, act, all_finish)
    done = "SIGKILL, started again once the others have gone on without it; `shrink`, patience 2 s"
    return summed("killed, left out, back", done, [verdict], f"{verdict.epochs} epochs, the last with all 10")


def partition(scale: Scale) -> Found:
    """Nothing gets through between two halves, or between one and the rest; then it does again."""
    seconds = scale.choose(30, 6)
    verdicts = []
    for number, (inside, closing) in enumerate([((0, 1, 2, 3, 4), False), ((6,), True)]):

        def act(fleet: Fleet, inside: tuple[int, ...] = inside, closing: bool = closing) -> None:
            assert fleet.proxies is not None
            fleet.start()
            fleet.running()
            time.sleep(0.5)
            links = fleet.proxies.between(inside)
            ways = [*links, *((j, i) for i, j in links)]
            fleet.proxies.cut(links) if closing else fleet.proxies.hold(ways)
            time.sleep(seconds)
            fleet.proxies.mend(links) if closing else fleet.proxies.release(ways)
            fleet.wait(LIMIT)

        setup = Setup(proxied=True, seed=500 + number)
        verdicts.append(play(scale.folder / "partition", setup, act, _expect_one_epoch))
    done = f"links between 5 and 5 sites silent for {seconds} s; links of 1 site reset for {seconds} s; `wait`"
    return summed(f"partition {seconds} s", done, verdicts, f"{max(v.epochs for v in verdicts)} epoch")


def one_way(scale: Scale) -> Found:
    """One direction of a link is lost for a while."""
    seconds = scale.choose(30, 6)

    def act(fleet: Fleet) -> None:
        assert fleet.proxies is not None
        fleet.start()
        fleet.running()
        time.sleep(0.5)
        fleet.proxies.hold([(2, 3)])
        time.sleep(seconds)
        fleet.proxies.release([(2, 3)])
        fleet.wait(LIMIT)

    verdict = play(scale.folder / "oneway", Setup(proxied=True, seed=510), act, all_finish)
    done = f"what s2 sends to s3 does not arrive for {seconds} s, the other way it does; `wait`"
    return summed(f"one-way loss {seconds} s", done, [verdict], f"{verdict.epochs} epoch")


def minority(scale: Scale) -> Found:
    """A partition that stays: the larger side goes on, the smaller one never has a result; halves have none at all."""
    verdicts = []
    for number, small in enumerate([(0, 1, 2), (0, 1, 2, 3, 4)][: scale.choose(2, 2)]):
        rest = tuple(site for site in range(10) if site not in small)
        wins = len(rest) > len(small)

        def act(fleet: Fleet, small: tuple[int, ...] = small, wins: bool = wins) -> None:
            assert fleet.proxies is not None
            for site in small if wins else range(10):
                fleet.configure(site, deadline="25s")
            fleet.start()
            fleet.running()
            time.sleep(0.5)
            links = fleet.proxies.between(small)
            fleet.proxies.hold([*links, *((j, i) for i, j in links)])
            fleet.wait(LIMIT)

        def expect(
            fleet: Fleet,
            verdict: Verdict,
            small: tuple[int, ...] = small,
            rest: tuple[int, ...] = rest,
            wins: bool = wins,
        ) -> None:
            codes = {**dict.fromkeys(small, UNFINISHED), **dict.fromkeys(rest, 0 if wins else UNFINISHED)}
            _expect_codes(fleet, verdict, codes)
            if verdict.results != (len(rest) if wins else 0):
                verdict.problems.append(f"{verdict.results} sites have a result")
            if wins and verdict.members != tuple(fleet.names[site] for site in rest):
                verdict.problems.append(f"a result of {verdict.members}")

        setup = Setup(proxied=True, on_loss="shrink", patience=2.0, seed=520 + number)
        verdicts.append(play(scale.folder / "minority", setup, act, expect))
    return summed(
        "minority",
        "partition 3 : 7 and 5 : 5 to the end; `shrink`, patience 2 s, deadline 25 s for those without a majority",
        verdicts,
        "7 sites end with the result of 7, the 3 unfinished; of 5 : 5 all unfinished",
    )


def deadline(scale: Scale) -> Found:
    """A site is gone for good: the others end as unfinished, and go on later from their checkpoints."""
    resumed: list[int] = []

    def act(fleet: Fleet) -> None:
        for site in range(10):
            fleet.configure(site, deadline="20s")
        fleet.start()
        fleet.running()
        fleet.until(lambda: len(fleet.events(0, "step")) > 8, 60.0, "no iterations")
        fleet.kill(5)
        began = time.monotonic()
        fleet.wait(fleet.setup.deadline + 10.0, [site for site in range(10) if site != 5])
        codes = {fleet.processes[site].exitcode for site in range(10) if site != 5}
        if codes != {UNFINISHED}:
            raise Hung(f"exit codes {codes} at the deadline, after {time.monotonic() - began:.0f} s")
        for site in range(10):
            fleet.configure(site, deadline="120s")
        fleet.start()
        fleet.wait(LIMIT)
        resumed.extend(one["resumed_from"] for one in fleet.events(0, "epoch")[1:])

    verdict = play(scale.folder / "deadline", Setup(deadline=20.0, seed=600, gap=0.7), act, all_finish)
    if not resumed or max(resumed) < 1:
        verdict.problems.append(f"gone on from {resumed}")
    done = "1 of 10 killed, deadline 20 s; then all started again"
    figures = f"9 end as unfinished at their deadline; then gone on from iteration {', '.join(map(str, resumed))}"
    return summed("deadline", done, [verdict], figures)


# --------------------------------------------------------------------------------------------------- messages and peers


def noise(scale: Scale) -> Found:
    """Frames that are lost, doubled or late, at all sites."""
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

        verdicts.append(play(scale.folder / "noise", Setup(seed=700 + number), act, _expect_one_epoch))
    figures = f"{counts['lost']} frames lost, {counts['doubled']} doubled, {counts['held']} overtaken by later ones"
    return summed(
        "loss, duplicates, reordering", "1 % lost, 5 % doubled, 5 % late, alone and together", verdicts, figures
    )


def slow_peer(scale: Scale) -> Found:
    """A peer that takes 20 times as long for everything."""
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
    verdicts.append(play(scale.folder / "slow", setup, slow, _expect_one_epoch))
    figures = (
        f"{1e3 * took[0]:.0f} ms per iteration, with the slow one {1e3 * took[-1]:.0f} ms" if len(took) > 1 else ""
    )
    return summed("slow peer", "1 of 10 takes 20 × as long for every frame and iteration", verdicts, figures)


def _seconds_per_step(fleet: Fleet) -> float:
    steps = fleet.events(0, "step")
    return float((steps[-1]["at"] - steps[0]["at"]) / max(len(steps) - 1, 1)) if steps else 0.0


# ---------------------------------------------------------------------------------------------------------------- disks


def disks(scale: Scale) -> Found:
    """No room for checkpoints at one site, or no right to write them; the site is killed and started again, too."""
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
                verdict.problems.append("nothing was said about checkpoints that cannot be written")

        try:
            verdicts.append(play(scale.folder / "disk", Setup(seed=800 + number, gap=0.7), act, expect))
        except _Impossible as why:
            impossible.append(f"not tried here: {kind} ({why})")
    figures = "; ".join([f"said so in {warned} of {len(verdicts)}", *impossible])
    done = "state folder of 1 of 10 on a full disk (16 KB), or read-only; that site killed and started again, too"
    return summed("disk full, read-only", done, verdicts, figures)


class _Impossible(Exception):
    """This machine does not let us."""


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
    made = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if made.returncode:
        raise _Impossible(made.stderr.strip() or "mount failed")
    try:
        if kind == "full":
            (folder / "other").write_bytes(bytes(12 << 10))
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)  # noqa: S603, S607


# ------------------------------------------------------------------------------------------------------------ at random


def schedules(scale: Scale) -> Found:
    """One to three faults at random, on real processes. Everybody who is killed is started again."""
    verdicts = [_schedule(scale.folder / "schedule", seed) for seed in range(scale.choose(20, 5))]
    modes = sum(verdict.epochs for verdict in verdicts)
    figures = f"{modes} epochs in all; {sum(len(v.finished) for v in verdicts)} of {10 * len(verdicts)} sites finished"
    return summed(
        "random schedules", "1–3 faults each: kill of one, two or all, freeze, partition, one way", verdicts, figures
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
        if rng.random() < 0.7:  # else faults come while they gather
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
        fleet.wait(LIMIT + 30.0)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        if on_loss == "wait":
            all_finish(fleet, verdict)
            return
        # who was away for long may come too late for everybody else: unfinished, never wrong
        for site, code in verdict.codes.items():
            if code not in (0, UNFINISHED):
                verdict.problems.append(f"s{site} ended with {code}")
        if 2 * verdict.results <= 10:
            verdict.problems.append(f"only {verdict.results} sites have a result")

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


# ------------------------------------------------------------------------------------------------------------ strangers


def frames(scale: Scale) -> Found:
    """Thousands of random and damaged frames against a running agent, from a neighbour with a kit; and raw garbage."""
    wanted = scale.choose(10_000, 1_000)
    target, guest = 1, 10
    memory: list[float] = []
    sent: dict[str, float] = {}
    began: list[float] = []
    effects: list[int] = []
    answered = 0

    def act(fleet: Fleet) -> None:
        nonlocal answered
        fleet.start(*(site for site in range(11) if site != target))
        fleet.start(target, hurt=Hurt(watch=guest))
        fleet.running()
        fleet.kill(guest)
        fleet.until(lambda: len(fleet.events(target, "epoch")) > 1, 60.0, "the guest was not left out")
        began.append(time.monotonic())
        out = fleet.folder / "sent.json"
        intruder = in_process(deluge, fleet.site(guest) / "site.toml", fleet.names[target], wanted, 1, out)
        while intruder.exitcode is None and fleet.alive(target):
            memory.append(resident(fleet.processes[target].pid))
            time.sleep(0.1)
        if out.exists():
            sent.update(json.loads(out.read_text(encoding="utf-8")))
        elif intruder.exitcode is None and intruder.pid is not None:
            os.kill(intruder.pid, signal.SIGKILL)
        if fleet.alive(target):
            answered = garbage(fleet.listening[target], scale.choose(200, 50), 2)
        fleet.wait(2 * LIMIT, range(10))

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        _expect_codes(fleet, verdict, dict.fromkeys(range(10), 0))
        control, told = sent.get("control", 0.0), fleet.events(target, "effect")
        had = sum(began[0] <= one["at"] < (control or np.inf) for one in told) if began else -1
        if not control or not any(one["at"] >= control for one in told):
            verdict.problems.append("an undamaged message had no effect, either")
        effects.append(had)
        if sent.get("frames", 0) < wanted:
            verdict.problems.append(f"only {sent.get('frames', 0):.0f} frames were sent before the run had ended")
        if had:
            verdict.problems.append(f"{had} frames had an effect")
        if answered:
            verdict.problems.append(f"{answered} connections that sent garbage were answered")

    setup = Setup(
        guest=True, on_loss="shrink", patience=2.0, seed=950, gap=0.7, pause=scale.choose(12, 3) / 10.0, deadline=300.0
    )
    verdict = play(scale.folder / "frames", setup, act, expect)
    # the first tenth fills buffers and caches that stay
    grown = max(memory) - max(memory[: max(len(memory) // 10, 1)]) if memory else 0.0
    if grown > 10.0:
        verdict.problems.append(f"memory grew by {grown:.1f} MB")
    figures = (
        f"{sent.get('frames', 0):.0f} frames over {sent.get('streams', 0):.0f} streams "
        f"in {sent.get('seconds', 0):.0f} s, {max(effects, default=0)} with an effect, "
        f"memory grew by {max(grown, 0.0):.1f} MB"
    )
    done = (
        f"{wanted} random and damaged frames from a neighbour with a genuine kit, and raw garbage, during a run of 10"
    )
    return summed("random and damaged frames", done, [verdict], figures)


def certificates(scale: Scale) -> Found:
    """Everybody whose certificate has a fault is turned away, and that is said."""
    setup = Setup(agents=3, fresh=True, seed=960)
    attempts: list[Attempt] = []
    with Fleet(scale.folder / "callers", setup) as fleet:
        fleet.start(1)
        fleet.until(lambda: bool(fleet.events(1, "started")), 60.0, "s1 did not start")
        control = call_with(fleet, NONE)
        attempts += [call_with(fleet, fault) for fault in CALLERS]
        alive = fleet.alive(1)
    with Fleet(scale.folder / "listeners", setup) as fleet:
        fleet.start(0)
        fleet.until(lambda: bool(fleet.events(0, "started")), 60.0, "s0 did not start")
        attempts += [listen_with(fleet, fault) for fault in LISTENERS]
        alive = alive and fleet.alive(0)
    problems = [f"{one.fault}: {'let in' if not one.refused else 'not logged'}" for one in attempts if not _right(one)]
    if control.refused:
        problems.append("one without a fault is turned away, too")
    if not alive:
        problems.append("the agent has ended")
    done = f"callers with {', '.join(CALLERS)}; listeners with {', '.join(LISTENERS)}"
    right = sum(map(_right, attempts))
    figures = f"{sum(one.refused for one in attempts)} refused, {sum(bool(one.logged) for one in attempts)} logged"
    return Found(
        "certificate faults",
        done,
        len(attempts),
        right if alive and not control.refused else 0,
        0,
        0,
        figures,
        tuple(problems),
    )


def _right(one: Attempt) -> bool:
    return one.refused and bool(one.logged)


# ------------------------------------------------------------------------------------------------------------- measured


def memory(scale: Scale) -> Found:
    """The most that an agent takes, against its data and the size of a message."""
    d, k, agents = scale.choose(400_000, 100_000), scale.choose(16, 10), 3
    rng = np.random.default_rng(970)
    basis = np.linalg.qr(rng.standard_normal((d, k)))[0].T * np.linspace(2.0, 1.0, k)[:, None]
    rows = [rng.standard_normal((12, k)) @ basis + 1e-4 * rng.standard_normal((12, d)) for _ in range(agents)]
    message, data = 8 * d * k / 1e6, rows[0].nbytes / 1e6
    found: list[Footprint] = []

    def act(fleet: Fleet) -> None:
        found.append(apart(fleet, 3 * LIMIT))
        found.append(together([fleet.site(site) / "site.toml" for site in range(agents)], 3 * LIMIT))

    setup = Setup(agents=agents, components=k, d=d, fresh=True, pause=1e-4, tolerance=1e-9, deadline=3 * LIMIT)
    verdict = play(scale.folder / "memory", setup, act, lambda fleet, verdict: None, rows)
    case, done = "memory", f"3 agents with 2 neighbours each, messages of {message:.0f} MB, rows of {data:.0f} MB each"
    if len(found) < 2 or len(verdict.finished) != agents:
        verdict.problems.append(f"exit codes {verdict.codes}")
        return summed(case, done, [verdict])
    real, one = found
    degree = 2
    allowed, above = 100.0 + (degree + 6) * message, real.most - data
    if not above <= allowed:
        verdict.problems.append(f"{above:.0f} MB above its rows, where {allowed:.0f} are allowed")
    share = (one.most - one.before) / agents
    added = (real.most - real.before - share) / message
    figures = (
        f"an agent takes ≤ {above:.0f} MB above its rows, interpreter ({real.before:.0f} MB) included; allowed "
        f"100 + {degree + 6} × {message:.0f} = {allowed:.0f} MB. Of this the algorithm and its certificate take "
        f"{share - data:.0f} MB, as in one process without a network; network and checkpoints add {added:.1f} messages"
    )
    return summed(case, done, [verdict], figures)


def large(scale: Scale) -> Found:
    """A message far above the frame limit."""
    size = scale.choose(500, 100) * 1_000_000
    case, done = "large message", f"two sites send each other {size // 1_000_000} MB; a frame has 4 MB at most"
    try:
        seconds, whole = large_message(scale.folder / "large", size)
    except Hung as error:
        return Found(case, done, 1, 0, 0, 1, "", (str(error),))
    figures = f"{seconds:.1f} s, {2 * size / 1e6 / seconds:.0f} MB/s both ways together"
    return Found(case, done, 1, int(whole), int(not whole), 0, figures)


def rounds(scale: Scale) -> Found:
    """The time of a round against the least that Python can do."""
    case, done = (
        "time of a round",
        "10 processes in a ring over loopback, against bare asyncio over TLS in the same run",
    )
    try:
        found = round_times(scale.folder / "rounds", scale.choose(9, 5))
    except Hung as error:
        return Found(case, done, 2, 0, 0, 1, "", (str(error),))
    said = [
        f"{size // 1000} KB: {1e3 * ours:.1f} ms, bare {1e3 * bare:.1f} ms, ratio {ratio:.2f} (goal {GOALS[size]:g})"
        for size, (bare, ours, ratio) in found.items()
    ]
    late = [f"{size // 1000} KB: {one[2]:.2f} ×" for size, one in found.items() if one[2] > GOALS[size]]
    return Found(case, done, len(found), len(found) - len(late), 0, 0, "; ".join(said), tuple(late))


# --------------------------------------------------------------------------------------------------------- expectations


def _expect_codes(fleet: Fleet, verdict: Verdict, codes: dict[int, int]) -> None:
    for site, code in codes.items():
        if verdict.codes.get(site) != code:
            ends = fleet.events(site, "end")
            said = ends[-1]["text"] if ends else "no word"
            verdict.problems.append(f"s{site} ended with {verdict.codes.get(site)}, not {code}: {said}")


def _expect_one_epoch(fleet: Fleet, verdict: Verdict) -> None:
    all_finish(fleet, verdict)
    if verdict.epochs != 1:
        said = [one for site in range(fleet.setup.sites) for one in fleet.events(site, "regroup")]
        first = min(said, key=lambda one: float(one["at"]), default={"text": "no word"})
        verdict.problems.append(f"{verdict.epochs} epochs: {first['text']}")


CASES: tuple[Case, ...] = (
    Case("killed, restarted", kill_and_restart),
    Case("killed, left out", kill_and_shrink),
    Case("two killed together", two_killed),
    Case("all killed", all_killed),
    Case("frozen", frozen),
    Case("frozen, left out, back", frozen_too_long),
    Case("killed, left out, back", rejoin),
    Case("partition", partition),
    Case("one-way loss", one_way),
    Case("minority", minority),
    Case("deadline", deadline),
    Case("noise", noise),
    Case("slow peer", slow_peer),
    Case("disks", disks),
    Case("random schedules", schedules),
    Case("frames", frames),
    Case("certificates", certificates),
    Case("memory", memory),
    Case("large message", large),
    Case("time of a round", rounds),
)
