"""Plot errors by rows per site. Needs the ``plot`` extra (matplotlib)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepca._util.files import write_atomic
from studies.leakage.study import Results

__all__ = ["draw"]

# Okabe–Ito colours for colour-blind readers; markers distinguish them in greyscale
_OPEN: dict[str, Any] = {"c": "#D55E00", "marker": "o"}
_PRIVATE: dict[str, Any] = {"c": "#0072B2", "marker": "s"}
_TOTALS: dict[str, Any] = {"c": "#999999", "marker": "^"}
_APART, _WIDTH = 0.27, 0.1  # distance between the strips of one number of rows, and half their width


def draw(results: Results, path: Path) -> None:
    """Write the figure as PNG."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9.0, 4.2), layout="constrained")
        panels = figure.subplots(1, len(results.plan.networks), sharey=True, squeeze=False)[0]
        for panel, network in zip(panels, results.plan.networks, strict=True):
            _panel(panel, results, network)
        panels[0].set_ylabel("relative error of the covariance")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, markerscale=2.5)
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=150, format="png", metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())


def _panel(panel: Axes, results: Results, network: str) -> None:
    for x, rows in enumerate(results.plan.rows):
        pairs = results.pairs(network, rows)
        for at, errors, style, label in (
            (x - _APART, results.by_parents(network, rows), _OPEN, "open: parent of a leaf"),
            (x, [private for private, _ in pairs], _PRIVATE, "private: any up to all but two"),
            (x + _APART, [totals for _, totals in pairs], _TOTALS, "the same, totals only"),
        ):
            jitter = np.random.default_rng(x).uniform(-_WIDTH, _WIDTH, len(errors))
            heights = np.array([one.covariance for one in errors], dtype=np.float64)
            panel.scatter(at + jitter, heights, s=6.0, linewidths=0, label=label if x == 0 else None, **style)
    panel.set(yscale="log", ylim=(1e-17, 1e2), title=network, xlabel="rows per site")
    panel.set_xticks(range(len(results.plan.rows)), [f"{rows:,}" for rows in results.plan.rows])
    panel.axhline(1e-10, color="#999999", linewidth=0.8, linestyle=":")
    panel.grid(visible=True, axis="y", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
