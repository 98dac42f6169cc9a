"""Cases that measure the memory of agents and the time of their exchanges."""

from __future__ import annotations

import numpy as np

from studies.faults.fleet import Fleet, Hung, Setup
from studies.faults.footprint import Footprint, measure_in_one_process, measure_separately
from studies.faults.harness import LIMIT, CaseResult, Scale, run_fleet, summarise
from studies.faults.message_timing import GOALS, large_message, round_times

__all__ = ["large", "memory", "rounds"]


def memory(scale: Scale) -> CaseResult:
    """Measure the peak memory of an agent and compare it with the size of its data and of a message."""
    d, k, agents = scale.choose(400_000, 100_000), scale.choose(16, 10), 3
    rng = np.random.default_rng(970)
    basis = np.linalg.qr(rng.standard_normal((d, k)))[0].T * np.linspace(2.0, 1.0, k)[:, None]
    rows = [rng.standard_normal((12, k)) @ basis + 1e-4 * rng.standard_normal((12, d)) for _ in range(agents)]
    message, data = 8 * d * k / 1e6, rows[0].nbytes / 1e6
    found: list[Footprint] = []

    def act(fleet: Fleet) -> None:
        found.append(measure_separately(fleet, 3 * LIMIT))
        sites = [fleet.kit(site) / "site.toml" for site in range(agents)]
        found.append(measure_in_one_process(sites, 3 * LIMIT))

    setup = Setup(
        agents=agents, components=k, d=d, separate_interpreters=True, pause=1e-4, tolerance=1e-9, deadline=3 * LIMIT
    )
    verdict = run_fleet(scale.folder / "memory", setup, act, lambda fleet, verdict: None, rows)
    case, done = "memory", f"3 agents with 2 neighbours each, messages of {message:.0f} MB, rows of {data:.0f} MB each"
    if len(found) < 2 or len(verdict.finished) != agents:
        verdict.problems.append(f"exit codes {verdict.codes}")
        return summarise(case, done, [verdict])
    real, one = found
    degree = 2
    allowed, above = 100.0 + (degree + 6) * message, real.peak - data
    if not above <= allowed:
        verdict.problems.append(f"{above:.0f} MB in addition to the rows, above the limit of {allowed:.0f} MB")
    share = (one.peak - one.before) / agents
    added = (real.peak - real.before - share) / message
    figures = (
        f"at most {above:.0f} MB per agent in addition to its rows, including the interpreter ({real.before:.0f} MB); "
        f"limit 100 + {degree + 6} × {message:.0f} = {allowed:.0f} MB. Of the {above:.0f} MB, the algorithm and its "
        f"certificate take {share - data:.0f} MB (measured in one process without a network); the network and "
        f"checkpoints add {added:.1f} times the size of a message"
    )
    return summarise(case, done, [verdict], figures)


def large(scale: Scale) -> CaseResult:
    """Exchange a message that is far larger than a frame."""
    size = scale.choose(500, 100) * 1_000_000
    case, done = "large message", f"two sites send each other {size // 1_000_000} MB in frames of at most 4 MB"
    try:
        seconds, whole = large_message(scale.folder / "large", size)
    except Hung as error:
        return CaseResult(case, done, 1, 0, 0, 1, "", (str(error),))
    figures = f"{seconds:.1f} s, {2 * size / 1e6 / seconds:.0f} MB/s in both directions combined"
    return CaseResult(case, done, 1, int(whole), int(not whole), 0, figures)


def rounds(scale: Scale) -> CaseResult:
    """Compare the time of a round with that of the same exchange over bare asyncio streams."""
    case, done = (
        "round time",
        "10 processes in a ring over loopback, compared with bare asyncio over TLS in the same run",
    )
    try:
        found = round_times(scale.folder / "rounds", scale.choose(9, 5))
    except Hung as error:
        return CaseResult(case, done, 2, 0, 0, 1, "", (str(error),))
    figures = [
        f"{size // 1000} KB: {1e3 * one.exchange:.1f} ms (ratio {one.exchange_ratio:.2f}), relayed "
        f"{1e3 * one.relayed:.1f} ms ({one.relayed_ratio:.2f}), bare {1e3 * one.bare:.1f} ms, goal {GOALS[size]:g}"
        for size, one in found.items()
    ]
    slow = [
        f"{size // 1000} KB: ratios {one.exchange_ratio:.2f} and {one.relayed_ratio:.2f}"
        for size, one in found.items()
        if max(one.exchange_ratio, one.relayed_ratio) > GOALS[size]
    ]
    return CaseResult(case, done, len(found), len(found) - len(slow), 0, 0, "; ".join(figures), tuple(slow))
