"""Plot errors by rows per site. Needs the ``plot`` extra (matplotlib)."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepca._util.files import write_atomic
from studies.leakage.study import Results

__all__ = ["draw"]

# Okabe–Ito colours for colour-blind readers; markers distinguish them in greyscale
_OPEN, _PRIVATE, _TOTALS = "#D55E00", "#0072B2", "#000000"
_WIDTH = 0.13  # of the strip of draws of one number of rows


def draw(results: Results, path: Path) -> None:
    """Write the figure as PNG."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9.0, 4.2), layout="constrained")
        panels = figure.subplots(1, len(results.plan.networks), sharey=True, squeeze=False)[0]
        for panel, network in zip(panels, results.plan.networks, strict=True):
            _panel(panel, results, network)
        panels[0].set_ylabel("relative error of the covariance")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=150, format="png", metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())


def _panel(panel: Axes, results: Results, network: str) -> None:
    rng = np.random.default_rng(0)
    for x, rows in enumerate(results.plan.rows):
        shown = [one.covariance for one in results.by_parents(network, rows)]
        pairs = results.pairs(network, rows)
        for at, values, colour, marker, size, label in (
            (x - 0.2, shown, _OPEN, "o", 8.0, "open: parent of a leaf"),
            (x + 0.2, [one.covariance for one, _ in pairs], _PRIVATE, "o", 14.0, "private: any up to all but two"),
            (x + 0.2, [one.covariance for _, one in pairs], _TOTALS, ".", 2.0, "the same, knowing the totals only"),
        ):
            jitter = (
                np.random.default_rng(x).uniform(-_WIDTH, _WIDTH, len(values))
                if at > x
                else rng.uniform(-_WIDTH, _WIDTH, len(values))
            )
            heights = np.array(values, dtype=np.float64)
            panel.scatter(
                at + jitter, heights, s=size, c=colour, marker=marker, linewidths=0, label=label if x == 0 else None
            )
    panel.set(yscale="log", ylim=(1e-17, 1e2), title=network, xlabel="rows per site")
    panel.set_xticks(range(len(results.plan.rows)), [f"{rows:,}" for rows in results.plan.rows])
    panel.axhline(1e-10, color="#999999", linewidth=0.8, linestyle=":")
    panel.grid(visible=True, axis="y", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
