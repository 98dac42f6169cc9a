"""Write the page: usage, guarantees and measurements."""

from __future__ import annotations

import numpy as np

from studies.shared.report import Assertion, Section, Table
from studies.streaming.guide import FOLLOW_GUIDE, LIMITATIONS_GUIDE, PARTIAL_FIT_GUIDE
from studies.streaming.study import ROUNDS, STEPS, Followed, Results

__all__ = ["SAVING", "sections"]

SAVING = (("deepca", 1e-4), ("deepca", 1e-10))
"""Calls that take enough iterations to benefit from a warm start."""


def sections(results: Results, figure: str | None) -> list[Section]:
    """Return all sections of the page; ``figure`` is the path of the figure relative to the page."""
    return [
        Section("Rows that arrive over time", PARTIAL_FIT_GUIDE, (), ()),
        Section("What is stored, and limitations", LIMITATIONS_GUIDE, (), ()),
        Section("Tracking: an estimate in fewer rounds", FOLLOW_GUIDE, (), ()),
        _measured(results, figure),
    ]


def _measured(results: Results, figure: str | None) -> Section:
    drift, tracked, calls = results.drift, results.tracked, results.calls
    old = drift.forgetting / (1.0 - drift.forgetting)
    setting = (
        f"{drift.agents} agents on an Erdős–Rényi graph each receive {drift.rows} rows of {drift.d} columns per batch; "
        f"their distributions differ. From batch {drift.begins} to {drift.ends} the top {drift.k} directions rotate "
        f"towards others, by {drift.turn:g} radians per batch; forgetting is {drift.forgetting:g}. Tracking is DeEPCA "
        f"with FastMix and {ROUNDS} rounds per iteration. Errors are those of the worst agent. The exact answer is "
        "scipy's for the pooled, weighted rows."
    )
    lag = (
        "The lag is the number of batches by which the computed subspace is behind the true one, measured in the "
        f"planes of the rotation. With forgetting {drift.forgetting:g}, rows are {old:.0f} batches old on average, and "
        "every method with these weights lags by about as much, including the exact one. The additional lag of "
        "tracking is expected to be r^s/(1 − r^s) batches for s iterations, where r = λ_other/λ_top is the convergence "
        "factor of a power iteration."
    )
    picture = [] if figure is None else [f"![Angles against time, and rounds per batch]({figure})"]
    text = "\n\n".join([*picture, setting, lag])
    saving = [(name, one) for name, one in calls.items() if name in SAVING]
    other = [(name, one) for name, one in calls.items() if name not in SAVING]
    behind = {steps: tracked[steps].lag - results.recomputed.lag for steps in STEPS}
    worst = {steps: float(tracked[steps].exact[drift.begins :].max()) for steps in STEPS}
    assertions = (
        Assertion(
            "`partial_fit` gives the exact answer after every batch.",
            f"angle at most {results.partial_fit.exact.max():.0e}",
            bool(results.partial_fit.exact.max() < 1e-9),
        ),
        Assertion(
            "Tracking stays near the exact answer while directions rotate.",
            "sine at most " + ", ".join(f"{worst[s]:.1g} ({s})" for s in STEPS),
            all(worst[steps] < bound for steps, bound in zip(STEPS, (0.2, 0.1, 0.01), strict=True)),
        ),
        Assertion(
            "More iterations per batch reduce the lag behind recomputation.",
            "batches: " + ", ".join(f"{behind[s]:.3f} ({s})" for s in STEPS),
            bool(behind[1] > 2.0 * behind[3] > 4.0 * behind[10] > 0.0),
        ),
        Assertion(
            "Without forgetting, old rows increase the lag.",
            f"{results.unforgetting.lag:.0f} batches behind, instead of {results.recomputed.lag:.1f}",
            results.unforgetting.lag > 2.0 * results.recomputed.lag,
        ),
        Assertion(
            "Power iterations with a warm start take fewer iterations and rounds.",
            "; ".join(
                f"{name}, {tol:.0e}: {one.warm:.0f} iterations instead of {one.cold:.0f}" for (name, tol), one in saving
            ),
            all(one.warm < one.cold and one.warm_rounds < one.cold_rounds for _, one in saving),
        ),
        Assertion(
            "Methods that need few iterations gain little from it, and never take 5 % more.",
            "; ".join(
                f"{name}, {tol:.0e}: {one.warm:.1f} iterations instead of {one.cold:.1f}" for (name, tol), one in other
            ),
            all(one.warm <= 1.05 * one.cold and one.warm_rounds <= 1.05 * one.cold_rounds for _, one in other),
        ),
    )
    return Section("Lag and rounds", text, assertions, (_lags(results), _rounds(results)))


def _lags(results: Results) -> Table:
    def row(name: str, followed: Followed, expected: str) -> tuple[str, ...]:
        steady = list(results.drift.steady)
        behind = followed.lag - results.recomputed.lag
        degrees = np.degrees(np.arcsin(followed.truth[steady])).mean()
        sines = followed.exact[steady].mean()
        return (
            name,
            f"{degrees:.1f}°",
            f"{sines:.1g}",
            f"{followed.lag:.2f}",
            f"{behind:.3f}".replace("-0.000", "0.000"),
            expected,
        )

    rows = [row("recomputed by scipy", results.recomputed, "0"), row("partial_fit", results.partial_fit, "0")]
    for steps in STEPS:
        name = f"tracking, {steps} iteration{'s' if steps > 1 else ''} per batch"
        rows.append(row(name, results.tracked[steps], f"{_expected(results, steps):.3f}"))
    rows.append(row("partial_fit, forgetting = 1", results.unforgetting, ""))
    return Table(
        "Lag",
        (
            "",
            "angle to the true directions",
            "sine to the exact answer",
            "batches behind",
            "of which behind the exact answer",
            "expected",
        ),
        tuple(rows),
        f"Means over batches {results.drift.steady[0]} to {results.drift.steady[-1]}, by which the start of the "
        "rotation is forgotten.",
    )


def _expected(results: Results, steps: int) -> float:
    """Return the expected lag behind the exact answer, from the convergence factors of power iterations."""
    values, k = results.drift.eigenvalues, results.drift.k
    r = (values[k : 2 * k] / values[:k]) ** steps
    return float((r / (1.0 - r)).mean())


def _rounds(results: Results) -> Table:
    rows = [
        (f"tracking, {steps} per batch", "none", str(steps), "", f"{results.tracked[steps].rounds:.0f}", "")
        for steps in STEPS
    ]
    for (algorithm, tol), one in results.calls.items():
        numbers = (f"{one.warm:.1f}", f"{one.cold:.1f}", f"{one.warm_rounds:.0f}", f"{one.cold_rounds:.0f}")
        rows.append((f"partial_fit, {algorithm}", f"{tol:.0e}", *numbers))
    return Table(
        "Rounds per batch",
        ("", "certified to", "iterations", "cold start", "rounds", "cold start"),
        tuple(rows),
        "Means over calls in the middle of the rotation. Rounds include everything: counts and column statistics, "
        "iterations, control rounds and the certificate, which accounts for many of them and does not depend on the "
        "start. The previous answer is accurate to about two digits here: for four digits a warm start saves half of "
        "the iterations, for ten digits a fifth, and for methods with few iterations none.",
        heads=2,
    )
