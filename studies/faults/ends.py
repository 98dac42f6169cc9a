"""Agents that are killed, frozen or cut off, and have to come back, or be done without."""

from __future__ import annotations

import signal
import time

import numpy as np

from studies.faults.hurt import UNFINISHED
from studies.faults.playing import (
    LIMIT,
    Found,
    Scale,
    all_finish,
    expect_codes,
    expect_one_epoch,
    neighbours,
    noticed,
    play,
    repeated,
    summed,
)
from studies.faults.processes import Fleet, Hung, Setup, Verdict

__all__ = [
    "all_killed",
    "deadline",
    "frozen",
    "frozen_too_long",
    "kill_and_restart",
    "kill_and_shrink",
    "minority",
    "one_way",
    "partition",
    "rejoin",
    "two_killed",
]


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
            expect_codes(fleet, verdict, dict.fromkeys(others, 0))
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
        fleet.until_left_out(4)
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
        fleet.until_left_out(7)
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
        verdicts.append(play(scale.folder / "partition", setup, act, expect_one_epoch))
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
            expect_codes(fleet, verdict, codes)
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
