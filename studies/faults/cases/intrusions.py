"""Cases in which agents must refuse malformed frames and faulty certificates."""

from __future__ import annotations

import json
import os
import signal
import time

import numpy as np

from studies.faults.certificate_faults import CALLERS, LISTENERS, NO_FAULT, Attempt, call_with, listen_with
from studies.faults.faulty_agent import AgentFaults
from studies.faults.fleet import Fleet, Setup, Verdict, start_process
from studies.faults.footprint import memory_of
from studies.faults.harness import (
    LIMIT,
    CaseResult,
    Scale,
    expect_codes,
    run_fleet,
    summarise,
)
from studies.faults.intruder import send_bad_frames, send_random_bytes

__all__ = ["certificates", "frames"]


def frames(scale: Scale) -> CaseResult:
    """Send a running agent random and damaged frames from a neighbour, and random bytes from strangers."""
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
        fleet.start(target, faults=AgentFaults(watch=guest))
        fleet.wait_until_running()
        fleet.kill(guest)
        fleet.wait_until_left_out(guest, target)
        began.append(time.monotonic())
        out = fleet.folder / "sent.json"
        intruder = start_process(send_bad_frames, fleet.kit(guest) / "site.toml", fleet.names[target], wanted, 1, out)
        while intruder.exitcode is None and fleet.alive(target):
            memory.append(memory_of(fleet.processes[target].pid))
            time.sleep(0.1)
        if out.exists():
            sent.update(json.loads(out.read_text(encoding="utf-8")))
        elif intruder.exitcode is None and intruder.pid is not None:
            os.kill(intruder.pid, signal.SIGKILL)
        if fleet.alive(target):
            answered = send_random_bytes(fleet.listening[target], scale.choose(200, 50), 2)
        fleet.wait(2 * LIMIT, range(10))

    def expect(fleet: Fleet, verdict: Verdict) -> None:
        expect_codes(fleet, verdict, dict.fromkeys(range(10), 0))
        control, logged = sent.get("control", 0.0), fleet.events(target, "effect")
        count = sum(began[0] <= one["at"] < (control or np.inf) for one in logged) if began else -1
        if not control or not any(one["at"] >= control for one in logged):
            verdict.problems.append("the valid control message had no effect")
        effects.append(count)
        if sent.get("frames", 0) < wanted:
            verdict.problems.append(f"only {sent.get('frames', 0):.0f} frames were sent before the run ended")
        if count:
            verdict.problems.append(f"{count} frames had an effect")
        if answered:
            verdict.problems.append(f"{answered} connections that sent random bytes got an answer")

    setup = Setup(
        guest=True,
        on_loss="shrink",
        patience=2.0,
        seed=950,
        eigenvalue_ratio=0.7,
        pause=scale.choose(12, 3) / 10.0,
        deadline=300.0,
    )
    verdict = run_fleet(scale.folder / "frames", setup, act, expect)
    # during the first tenth, buffers and caches fill up
    grown = max(memory) - max(memory[: max(len(memory) // 10, 1)]) if memory else 0.0
    if grown > 10.0:
        verdict.problems.append(f"memory grew by {grown:.1f} MB")
    figures = (
        f"{sent.get('frames', 0):.0f} frames over {sent.get('streams', 0):.0f} streams "
        f"in {sent.get('seconds', 0):.0f} s, {max(effects, default=0)} with an effect, "
        f"memory grew by {max(grown, 0.0):.1f} MB"
    )
    done = (
        f"{wanted} random and damaged frames from a neighbour with a genuine kit, and random bytes from strangers, "
        "during a run of 10 agents"
    )
    return summarise("malformed frames", done, [verdict], figures)


def certificates(scale: Scale) -> CaseResult:
    """Check that agents refuse every faulty certificate and log the refusal."""
    setup = Setup(agents=3, separate_interpreters=True, seed=960)
    attempts: list[Attempt] = []
    with Fleet(scale.folder / "callers", setup) as fleet:
        fleet.start(1)
        fleet.wait_until(lambda: bool(fleet.events(1, "started")), 60.0, "s1 did not start")
        control = call_with(fleet, NO_FAULT)
        attempts += [call_with(fleet, fault) for fault in CALLERS]
        alive = fleet.alive(1)
    with Fleet(scale.folder / "listeners", setup) as fleet:
        fleet.start(0)
        fleet.wait_until(lambda: bool(fleet.events(0, "started")), 60.0, "s0 did not start")
        attempts += [listen_with(fleet, fault) for fault in LISTENERS]
        alive = alive and fleet.alive(0)
    problems = [
        f"{one.fault}: {'accepted' if not one.refused else 'not logged'}"
        for one in attempts
        if not _refused_and_logged(one)
    ]
    if control.refused:
        problems.append("a certificate without a fault was refused")
    if not alive:
        problems.append("the agent ended")
    done = f"clients: {', '.join(CALLERS)}; servers: {', '.join(LISTENERS)}"
    right = sum(map(_refused_and_logged, attempts))
    figures = f"{sum(one.refused for one in attempts)} refused, {sum(bool(one.logged) for one in attempts)} logged"
    return CaseResult(
        "certificate faults",
        done,
        len(attempts),
        right if alive and not control.refused else 0,
        0,
        0,
        figures,
        tuple(problems),
    )


def _refused_and_logged(one: Attempt) -> bool:
    return one.refused and bool(one.logged)
