"""The page: how to use it, what is exact and what is not, and what was measured."""

from __future__ import annotations

import numpy as np

from studies.shared.report import Assertion, Section, Table
from studies.streaming.guide import FOLLOWING, KEEPING, USE
from studies.streaming.study import ROUNDS, STEPS, Followed, Results

__all__ = ["SAVING", "sections"]

SAVING = (("deepca", 1e-4), ("deepca", 1e-10))
"""Calls of so many iterations that it matters where they begin."""


def sections(results: Results, figure: str | None) -> list[Section]:
    """``figure`` : where it is, seen from the page."""
    return [
        Section("Rows that come over time", USE, (), ()),
        Section("What is kept, and where it ends", KEEPING, (), ()),
        Section("Tracking: an estimate for fewer rounds", FOLLOWING, (), ()),
        _measured(results, figure),
    ]


def _measured(results: Results, figure: str | None) -> Section:
    drift, tracked, calls = results.drift, results.tracked, results.calls
    old = drift.forgetting / (1.0 - drift.forgetting)
    setting = (
        f"{drift.agents} agents on an Erdős–Rényi graph are given {drift.rows} rows of {drift.d} columns each with "
        f"every batch, and see directions unlike each other. From batch {drift.begins} to {drift.ends} the top "
        f"{drift.k} directions turn towards others, by {drift.turn:g} radians per batch; forgetting is "
        f"{drift.forgetting:g}. Tracking is DeEPCA with FastMix, {ROUNDS} rounds per iteration. Errors are those of "
        "the worst agent. The exact answer is scipy's, for the pooled rows with their weights."
    )
    lag = (
        "The lag is measured in the planes of the turn: by how many batches the subspace found is behind the true one. "
        f"Rows that fade by {drift.forgetting:g} are {old:.0f} batches old on average, and about so far behind is "
        "every method that weighs them so, the exact one as well. What tracking adds is expected to be r^s/(1 − r^s) "
        "batches for s iterations, with the factor r = λ_other/λ_top of a power iteration."
    )
    picture = [] if figure is None else [f"![angles against time, and rounds per batch]({figure})"]
    text = "\n\n".join([*picture, setting, lag])
    saving = [(name, one) for name, one in calls.items() if name in SAVING]
    other = [(name, one) for name, one in calls.items() if name not in SAVING]
    behind = {steps: tracked[steps].lag - results.recomputed.lag for steps in STEPS}
    worst = {steps: float(tracked[steps].exact[drift.begins :].max()) for steps in STEPS}
    assertions = (
        Assertion(
            "`partial_fit` is the exact answer after every batch",
            f"angle at most {results.partial_fit.exact.max():.0e}",
            bool(results.partial_fit.exact.max() < 1e-9),
        ),
        Assertion(
            "tracking stays near the exact answer for as long as directions turn",
            "sine at most " + ", ".join(f"{worst[s]:.1g} ({s})" for s in STEPS),
            all(worst[steps] < bound for steps, bound in zip(STEPS, (0.2, 0.1, 0.01), strict=True)),
        ),
        Assertion(
            "more iterations per batch lag less behind recomputation",
            "batches: " + ", ".join(f"{behind[s]:.3f} ({s})" for s in STEPS),
            bool(behind[1] > 2.0 * behind[3] > 4.0 * behind[10] > 0.0),
        ),
        Assertion(
            "without forgetting, old rows are carried along",
            f"{results.unforgetting.lag:.0f} batches behind, instead of {results.recomputed.lag:.1f}",
            results.unforgetting.lag > 2.0 * results.recomputed.lag,
        ),
        Assertion(
            "power iterations that begin at what is known take fewer iterations and rounds",
            "; ".join(
                f"{name}, {tol:.0e}: {one.warm:.0f} iterations instead of {one.cold:.0f}" for (name, tol), one in saving
            ),
            all(one.warm < one.cold and one.warm_rounds < one.cold_rounds for _, one in saving),
        ),
        Assertion(
            "methods that need few iterations anyway take hardly fewer, and never 5 % more",
            "; ".join(
                f"{name}, {tol:.0e}: {one.warm:.1f} iterations instead of {one.cold:.1f}" for (name, tol), one in other
            ),
            all(one.warm <= 1.05 * one.cold and one.warm_rounds <= 1.05 * one.cold_rounds for _, one in other),
        ),
    )
    return Section("How far behind, and for how many rounds", text, assertions, (_lags(results), _rounds(results)))


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
            "angle to the truth",
            "sine to the exact answer",
            "batches behind",
            "of them behind the exact",
            "expected",
        ),
        tuple(rows),
        f"Means over batches {results.drift.steady[0]} to {results.drift.steady[-1]}, in which what was before the "
        "turn is forgotten.",
    )


def _expected(results: Results, steps: int) -> float:
    """Behind the exact answer, by the factors of power iterations in the planes of the turn."""
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
        ("", "certified to", "iterations", "from nothing", "rounds", "from nothing"),
        tuple(rows),
        "Means over calls in the middle of the turn. Rounds are all there are: counting, spread, iterations, control "
        "rounds, certificate. Much of it is the certificate and does not depend on where iterations begin. What is "
        "known is good to about two digits here: of four digits a warm start saves half of the iterations, of ten a "
        "fifth, and of few iterations none.",
        heads=2,
    )
