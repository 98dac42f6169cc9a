"""Plot angles against time, and rounds per batch. Needs the ``plot`` extra (matplotlib)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from deepca._util.files import write_atomic
from studies.streaming.study import STEPS, Followed, Results

__all__ = ["draw"]

# Okabe–Ito colours for colour-blind readers; line styles distinguish the curves in greyscale
_TRACKED: dict[int, dict[str, Any]] = {
    1: {"color": "#D55E00", "linestyle": "-", "linewidth": 1.6},
    3: {"color": "#0072B2", "linestyle": "--", "linewidth": 1.6},
    10: {"color": "#009E73", "linestyle": "-.", "linewidth": 1.6},
}
_EXACT: dict[str, Any] = {"color": "#000000", "linestyle": "-", "linewidth": 2.6, "alpha": 0.45}
_UNFORGETTING: dict[str, Any] = {"color": "#999999", "linestyle": ":", "linewidth": 1.8}
_FLOOR = 1e-16  # smallest sine shown


def draw(results: Results, path: Path) -> None:
    """Write the figure as PNG."""
    tracked = {steps: (_label(steps), _TRACKED[steps]) for steps in STEPS}
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10.5, 7.2), layout="constrained")
        panels = figure.subplot_mosaic([["truth", "exact"], ["rounds", "rounds"]], height_ratios=[1.0, 0.52])
        truth, exact, rounds = panels["truth"], panels["exact"], panels["rounds"]
        _lines(truth, results, "truth", results.unforgetting, "partial_fit without forgetting", _UNFORGETTING)
        _lines(truth, results, "truth", results.partial_fit, "partial_fit (exact)", _EXACT)
        _lines(exact, results, "exact", results.partial_fit, "partial_fit (exact)", _EXACT)
        for steps, (name, style) in tracked.items():
            for panel, field in ((truth, "truth"), (exact, "exact")):
                _lines(panel, results, field, results.tracked[steps], name, style)
        truth.set(ylabel="degrees", title="angle to the current true directions")
        truth.set_ylim(0.0, 50.0)
        exact.set(ylabel="sine of the angle", yscale="log", title="angle to the exact answer for all rows so far")
        exact.set_ylim(_FLOOR, 2.0)
        exact.yaxis.set_major_locator(FixedLocator([10.0**power for power in range(-16, 1, 4)]))
        exact.yaxis.set_minor_locator(NullLocator())
        for panel in (truth, exact):
            panel.set(xlabel="batch", xlim=(0, results.drift.batches - 1))
            panel.axvspan(results.drift.begins, results.drift.ends, color="#f0e6d2", zorder=0, linewidth=0)
            panel.grid(visible=True, axis="y", color="#dddddd", linewidth=0.6)
            panel.set_axisbelow(True)
        exact.text(
            (results.drift.begins + results.drift.ends) / 2, 0.03, "directions rotate", ha="center", fontsize=9,
            transform=exact.get_xaxis_transform(), color="#7a6a45",
        )  # fmt: skip
        _bars(rounds, results)
        handles, labels = truth.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, handlelength=3.2)
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=150, format="png", metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())


def _label(steps: int) -> str:
    return f"tracking, {steps} iteration{'s' if steps > 1 else ''} per batch"


def _lines(panel: Axes, results: Results, field: str, followed: Followed, name: str, style: dict[str, Any]) -> None:
    values = getattr(followed, field)
    shown = np.degrees(np.arcsin(np.minimum(values, 1.0))) if field == "truth" else np.maximum(values, _FLOOR)
    panel.plot(np.arange(results.drift.batches), shown, label=name, **style)


def _bars(panel: Axes, results: Results) -> None:
    """Draw the rounds per batch: tracking, and certified answers from a warm and a cold start."""
    rows: list[tuple[str, float, float | None, str]] = [
        (_label(steps), results.tracked[steps].rounds, None, _TRACKED[steps]["color"]) for steps in STEPS
    ]
    for (algorithm, tol), calls in results.calls.items():
        rows.append((f"partial_fit, {algorithm}, {tol:.0e}", calls.warm_rounds, calls.cold_rounds, "#777777"))
    for y, (_, warm, cold, color) in enumerate(rows):
        if cold is not None:
            panel.barh(y, cold, height=0.72, color="none", edgecolor="#777777", linewidth=1.0)
        panel.barh(y, warm, height=0.72, color=color, alpha=0.75)
        panel.text(max(warm, cold or 0.0) + 1.5, y, f"{warm:.0f}" + (f" / {cold:.0f}" if cold else ""), va="center")
    panel.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=9)
    panel.invert_yaxis()
    panel.set_xlim(0.0, 1.1 * max(max(warm, cold or 0.0) for _, warm, cold, _ in rows))  # leave room for the numbers
    panel.set(xlabel="rounds per batch (including control rounds and certificate; outline: cold start)")
    panel.tick_params(axis="y", length=0)
