"""Cases in which agents are killed, frozen or disconnected, and then return or are left out of the run."""

from __future__ import annotations

import signal
import time

import numpy as np

from studies.faults.faulty_agent import UNFINISHED
from studies.faults.fleet import Fleet, Hung, Setup, Verdict
from studies.faults.harness import (
    LIMIT,
    CaseResult,
    Scale,
    detection_delays,
    expect_all_finish,
    expect_codes,
    expect_one_epoch,
    neighbours,
    repeated_iterations,
    run_fleet,
    summarise,
)

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


def kill_and_restart(scale: Scale) -> CaseResult:
    """Kill one of ten agents at a random moment and restart it while the others wait."""
    rng = np.random.default_rng(41)
    verdicts, delays, repeated = [], [], []
    for number in range(scale.choose(10, 3)):
        victim, moment, away = int(rng.integers(10)), rng.uniform(0.0, 4.0), rng.uniform(1.0, 3.0)
        algorithm = ("deepca", "accelerated", "auto")[number % 3]

        def act(fleet: Fleet, victim: int = victim, moment: float = moment, away: float = away) -> None:
            fleet.start()
            fleet.wait_until_running()
            time.sleep(moment)
            ended = not fleet.alive(victim)
            killed = fleet.kill(victim)
            time.sleep(away)
            if not ended:
                delays.extend(detection_delays(fleet, victim, killed))
            fleet.start(victim)
            fleet.wait(LIMIT)
            repeated.append(repeated_iterations(fleet))

        setup = Setup(algorithm=algorithm, seed=number)
        verdicts.append(run_fleet(scale.folder / "kill", setup, act, expect_all_finish))
    figures = (
        f"detected by neighbours within {max(delays, default=0.0):.2f} s; "
        f"≤ {max(repeated, default=0)} iterations repeated"
    )
    return summarise(
        "killed and restarted",
        "SIGKILL of 1 of 10 at a random moment, restarted after 1–3 s; `wait`",
        verdicts,
        figures,
    )


def kill_and_shrink(scale: Scale) -> CaseResult:
    """Kill one of ten agents at a random moment and do not restart it; the others continue without it."""
    rng = np.random.default_rng(42)
    verdicts, delays, left = [], [], 0
    for number in range(scale.choose(10, 3)):
        victim, moment = int(rng.integers(10)), rng.uniform(0.0, 3.0)
        algorithm = ("deepca", "accelerated", "auto")[number % 3]
        killed: list[float] = []

        def act(fleet: Fleet, victim: int = victim, moment: float = moment, killed: list[float] = killed) -> None:
            fleet.start()
            fleet.wait_until_running()
            time.sleep(moment)
            if fleet.alive(victim) and not fleet.events(victim, "finished"):
                killed.append(fleet.kill(victim))
            fleet.wait(LIMIT)

        def expect(fleet: Fleet, verdict: Verdict, victim: int = victim, killed: list[float] = killed) -> None:
            if not killed:
                expect_all_finish(fleet, verdict)
                return
            delays.extend(detection_delays(fleet, victim, killed[0]))
            others = [site for site in range(10) if site != victim]
            expect_codes(fleet, verdict, dict.fromkeys(others, 0))
            if verdict.members not in (fleet.names, tuple(fleet.names[site] for site in others)):
                verdict.problems.append(f"result computed from {verdict.members}")

        setup = Setup(algorithm=algorithm, on_loss="shrink", patience=2.0, seed=100 + number)
        verdicts.append(run_fleet(scale.folder / "shrink", setup, act, expect))
        left += len(verdicts[-1].members) == 9
    figures = (
        f"detected by neighbours within {max(delays, default=0.0):.2f} s; {left} results from the 9 survivors' rows"
    )
    return summarise(
        "killed and left out",
        "SIGKILL of 1 of 10 at a random moment, never restarted; `shrink`, patience 2 s",
        verdicts,
        figures,
    )


def two_killed(scale: Scale) -> CaseResult:
    """Kill two agents at once, which may be neighbours, and restart both."""
    verdicts = []
    for number in range(scale.choose(3, 1)):

        def act(fleet: Fleet, number: int = number) -> None:
            fleet.start()
            fleet.wait_until_running()
            time.sleep(0.7 + 0.4 * number)
            pair = (3, 4) if number % 2 == 0 else (2, 7)
            fleet.kill(*pair)
            time.sleep(1.0)
            fleet.start(pair[0])
            time.sleep(0.5)
            fleet.start(pair[1])
            fleet.wait(LIMIT)

        verdicts.append(run_fleet(scale.folder / "two", Setup(seed=200 + number), act, expect_all_finish))
    return summarise("two killed together", "SIGKILL of 2 of 10, both restarted; `wait`", verdicts)


def all_killed(scale: Scale) -> CaseResult:
    """Kill all agents at once and restart them."""
    verdicts: list[Verdict] = []
    resumed: list[int] = []
    for number in range(scale.choose(3, 1)):

        def act(fleet: Fleet, number: int = number) -> None:
            fleet.start()
            fleet.wait_until_running()
            fleet.wait_until(lambda: len(fleet.events(0, "step")) > 14 + number, 60.0, "no iterations")
            fleet.kill(*range(10))
            fleet.start()
            fleet.wait(LIMIT)
            resumed.extend(one["resumed_from"] for one in fleet.events(0, "epoch")[1:])

        verdicts.append(
            run_fleet(scale.folder / "all", Setup(seed=300 + number, eigenvalue_ratio=0.7), act, expect_all_finish)
        )
    figures = f"resumed from iteration {', '.join(map(str, resumed))}"
    return summarise("all killed", "SIGKILL of all 10 at once, all restarted", verdicts, figures)


def frozen(scale: Scale) -> CaseResult:
    """Freeze an agent for less than ``patience``; it must not be left out."""
    seconds = scale.choose(30, 8)
    delays: list[float] = []
    began: list[float] = []

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait_until_running()
        time.sleep(0.5)
        stopped = time.monotonic()
        began.append(stopped)
        fleet.signal(4, signal.SIGSTOP)
        time.sleep(seconds)
        delays.extend(detection_delays(fleet, 4, stopped))
        fleet.signal(4, signal.SIGCONT)
        fleet.wait(LIMIT)

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        expect_all_finish(fleet, verdict)
        late = [one for site in range(10) for one in fleet.events(site, "epoch") if not began or one["at"] > began[0]]
        if late:
            verdict.problems.append(f"a new epoch began during the freeze: {late[0]['text']}")

    setup = Setup(on_loss="shrink", patience=60.0, seed=400)
    verdict = run_fleet(scale.folder / "frozen", setup, act, expect)
    figures = f"no new epoch; silence detected by neighbours within {max(delays, default=0.0):.2f} s"
    done = f"SIGSTOP of 1 of 10 for {seconds} s; `shrink`, patience 60 s"
    return summarise(f"frozen for {seconds} s", done, [verdict], figures)


def frozen_too_long(scale: Scale) -> CaseResult:
    """Freeze an agent for longer than ``patience``; it must be left out, and rejoin once it continues."""
    patience = 3.0
    counted: list[float] = []

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait_until_running()
        time.sleep(0.5)
        stopped = time.monotonic()
        fleet.signal(4, signal.SIGSTOP)
        fleet.wait_until_left_out(4)
        for other in neighbours(fleet, 4):
            # only a regroup event that ends an epoch has its number, and here only the loss can end an epoch
            counted.extend(
                one["at"] - stopped for one in fleet.events(other, "regroup") if "epoch" in one and one["at"] >= stopped
            )
        fleet.signal(4, signal.SIGCONT)
        fleet.wait(LIMIT)

    setup = Setup(on_loss="shrink", patience=patience, seed=401, eigenvalue_ratio=0.85, pause=0.2)
    verdict = run_fleet(scale.folder / "rejoin", setup, act, expect_all_finish)
    first = min(counted, default=float("inf"))
    if not first <= patience + 2.0:
        verdict.problems.append(f"frozen neighbour declared lost only after {first:.1f} s")
    figures = f"declared lost after {first:.1f} s (patience + {first - patience:.1f} s); {verdict.epochs} epochs"
    done = f"SIGSTOP of 1 of 10 until the others continue without it, then SIGCONT; `shrink`, patience {patience:g} s"
    return summarise("frozen, left out, returned", done, [verdict], figures)


def rejoin(scale: Scale) -> CaseResult:
    """Kill an agent and restart it after it was left out; it must rejoin in a later epoch."""

    def act(fleet: Fleet) -> None:
        fleet.start()
        fleet.wait_until_running()
        time.sleep(0.5)
        fleet.kill(7)
        fleet.wait_until_left_out(7)
        fleet.start(7)
        fleet.wait(LIMIT)

    setup = Setup(on_loss="shrink", patience=2.0, seed=402, eigenvalue_ratio=0.85, pause=0.2)
    verdict = run_fleet(scale.folder / "rejoin", setup, act, expect_all_finish)
    done = "SIGKILL of 1 of 10, restarted once the others continue without it; `shrink`, patience 2 s"
    return summarise("killed, left out, returned", done, [verdict], f"{verdict.epochs} epochs, the last with all 10")


def partition(scale: Scale) -> CaseResult:
    """Block all links between two halves of the sites, or between one site and the rest, and restore them."""
    seconds = scale.choose(30, 6)
    verdicts = []
    for number, (inside, reset) in enumerate([((0, 1, 2, 3, 4), False), ((6,), True)]):

        def act(fleet: Fleet, inside: tuple[int, ...] = inside, reset: bool = reset) -> None:
            assert fleet.proxies is not None
            fleet.start()
            fleet.wait_until_running()
            time.sleep(0.5)
            links = fleet.proxies.between(inside)
            ways = [*links, *((j, i) for i, j in links)]
            fleet.proxies.cut(links) if reset else fleet.proxies.hold(ways)
            time.sleep(seconds)
            fleet.proxies.restore(links) if reset else fleet.proxies.release(ways)
            fleet.wait(LIMIT)

        setup = Setup(proxied=True, seed=500 + number)
        verdicts.append(run_fleet(scale.folder / "partition", setup, act, expect_one_epoch))
    done = f"links between two halves of 5 blocked for {seconds} s; links of 1 site reset for {seconds} s; `wait`"
    return summarise(f"partition of {seconds} s", done, verdicts, f"epochs: {max(v.epochs for v in verdicts)}")


def one_way(scale: Scale) -> CaseResult:
    """Block one direction of a link and restore it."""
    seconds = scale.choose(30, 6)

    def act(fleet: Fleet) -> None:
        assert fleet.proxies is not None
        fleet.start()
        fleet.wait_until_running()
        time.sleep(0.5)
        fleet.proxies.hold([(2, 3)])
        time.sleep(seconds)
        fleet.proxies.release([(2, 3)])
        fleet.wait(LIMIT)

    verdict = run_fleet(scale.folder / "oneway", Setup(proxied=True, seed=510), act, expect_all_finish)
    done = f"link from s2 to s3 blocked for {seconds} s, the reverse direction open; `wait`"
    return summarise(f"one-way loss of {seconds} s", done, [verdict], f"epochs: {verdict.epochs}")


def minority(scale: Scale) -> CaseResult:
    """Partition the network permanently; only a side with a majority of the sites may get a result."""
    verdicts = []
    for number, small in enumerate([(0, 1, 2), (0, 1, 2, 3, 4)][: scale.choose(2, 2)]):
        rest = tuple(site for site in range(10) if site not in small)
        wins = len(rest) > len(small)

        def act(fleet: Fleet, small: tuple[int, ...] = small, wins: bool = wins) -> None:
            assert fleet.proxies is not None
            for site in small if wins else range(10):
                fleet.configure(site, deadline="25s")
            fleet.start()
            fleet.wait_until_running()
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
                verdict.problems.append(f"result computed from {verdict.members}")

        setup = Setup(proxied=True, on_loss="shrink", patience=2.0, seed=520 + number)
        verdicts.append(run_fleet(scale.folder / "minority", setup, act, expect))
    return summarise(
        "minority",
        "permanent partitions 3 : 7 and 5 : 5; `shrink`, patience 2 s, deadline 25 s for sites without a majority",
        verdicts,
        "3 : 7 gives 7 sites a result of their rows and leaves 3 unfinished; 5 : 5 leaves all unfinished",
    )


def deadline(scale: Scale) -> CaseResult:
    """Kill one agent; the others must end unfinished at their deadline and resume from checkpoints when restarted."""
    resumed: list[int] = []

    def act(fleet: Fleet) -> None:
        for site in range(10):
            fleet.configure(site, deadline="20s")
        fleet.start()
        fleet.wait_until_running()
        fleet.wait_until(lambda: len(fleet.events(0, "step")) > 8, 60.0, "no iterations")
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

    verdict = run_fleet(
        scale.folder / "deadline", Setup(deadline=20.0, seed=600, eigenvalue_ratio=0.7), act, expect_all_finish
    )
    if not resumed or max(resumed) < 1:
        verdict.problems.append(f"resumed from iterations {resumed}")
    done = "1 of 10 killed, deadline 20 s; then all restarted"
    figures = f"9 end unfinished at their deadline; then resumed from iteration {', '.join(map(str, resumed))}"
    return summarise("deadline", done, [verdict], figures)
