"""Plot how much longer private runs take than open ones. Needs the ``plot`` extra (matplotlib)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepca._util.files import write_atomic
from studies.private_sums.comparison import WALL_GOAL, Comparison

__all__ = ["draw"]

# Okabe–Ito colours for colour-blind readers; markers distinguish them in greyscale
_STYLES: tuple[dict[str, Any], ...] = ({"color": "#0072B2", "marker": "o"}, {"color": "#D55E00", "marker": "s"})
_SHIFT = 0.15  # between the two ratios of a case


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Write the figure as PNG: ratios of every pair, medians and quartiles."""
    sites = sorted({one.case.m for one in comparisons})
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9.0, 4.2), layout="constrained")
        panels = figure.subplots(1, len(sites), sharey=True, squeeze=False)[0]
        for panel, m in zip(panels, sites, strict=True):
            _panel(panel, [one for one in comparisons if one.case.m == m])
            panel.set(title=f"{m} sites", xlabel="columns d")
        panels[0].set(ylabel="private / open")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=150, format="png", metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())


def _panel(panel: Axes, comparisons: Sequence[Comparison]) -> None:
    panel.axhline(1.0, color="#999999", linewidth=0.8, zorder=0)
    panel.axhline(WALL_GOAL, color="#000000", linewidth=1.0, linestyle=":", label=f"goal for wall time, {WALL_GOAL:g}")
    for kind, (name, style) in enumerate(zip(("wall time", "processor time of all sites"), _STYLES, strict=True)):
        at = np.arange(len(comparisons)) + (2 * kind - 1) * _SHIFT
        found = [one.cpu if kind else one.wall for one in comparisons]
        for x, one in zip(at, comparisons, strict=True):
            ratios = [a.cpu / b.cpu if kind else a.seconds / b.seconds for a, b in one.pairs]
            panel.plot(np.full(len(ratios), x), ratios, linestyle="none", alpha=0.25, markersize=4, **style)
        medians = [one.median for one in found]
        spread = [[one.median - one.lower for one in found], [one.upper - one.median for one in found]]
        panel.errorbar(at, medians, yerr=spread, linestyle="none", markersize=7, capsize=4, label=name, **style)
    panel.set_xticks(range(len(comparisons)), [f"{one.case.d:,}" for one in comparisons])
    panel.set_xlim(-0.5, len(comparisons) - 0.5)
    panel.grid(visible=True, axis="y", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
