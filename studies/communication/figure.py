"""Plot tan θ against rounds and against bytes for one draw. Needs the ``plot`` extra (matplotlib)."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from deepca._util.files import write_atomic
from deepca._util.units import format_bytes
from studies.communication.cells import LIMITS, SENDING, Case, Method, Outcome
from studies.communication.report import DATA, GRAPHS, METHODS
from studies.communication.results import Results

__all__ = ["choose_case", "draw"]

# Okabe–Ito colours for colour-blind readers; line styles distinguish the curves in greyscale
_STYLES: Mapping[Method, dict[str, Any]] = {
    "DeEPCA": {"color": "#000000", "linestyle": "-", "linewidth": 1.8},
    "DePCA": {"color": "#777777", "linestyle": ":", "linewidth": 1.8},
    "accelerated": {"color": "#0072B2", "linestyle": "-", "linewidth": 2.4},
    "accelerated, float32": {"color": "#56B4E9", "linestyle": "--", "linewidth": 2.0},
    "covariance averaging": {"color": "#D55E00", "linestyle": "-.", "linewidth": 1.8},
    "block Krylov": {"color": "#009E73", "linestyle": (0, (5, 1, 1, 1)), "linewidth": 1.8},
}
_CEILING = 30.0  # larger tangents all belong to nearly right angles
_FLOOR = 1e-11  # smallest tangent shown


def choose_case(results: Results) -> Case | None:
    """Choose a case on the paper's graph for the figure: w8a with k = 5, else a9a with k = 5, else the first one."""
    cases = [case for case in results.scope.cases if case.graph == "paper"]
    wanted = [Case("w8a", 5, "paper"), Case("a9a", 5, "paper"), *cases]
    return next((case for case in wanted if case in cases), None)


def draw(results: Results, case: Case, path: Path) -> None:
    """Write the figure as PNG."""
    curves = _curves(results, case)
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10.5, 4.9), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for method, outcome in curves.items():
            _line(left, outcome, 0, _STYLES[method])
            _line(right, outcome, 1, _STYLES[method])
        left.set(xlabel="rounds of messages", ylabel=r"mean $\tan\,\theta_k(U, W_j)$", yscale="log")
        left.set_ylim(_FLOOR, _CEILING)
        left.yaxis.set_major_locator(FixedLocator([10.0**power for power in range(-10, 2, 2)]))
        left.yaxis.set_minor_locator(NullLocator())
        right.set(xlabel="bytes sent per agent")
        for axes, formatter in ((left, _count), (right, _size)):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(formatter))
            axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
            for limit in LIMITS:
                axes.axhline(limit, color="#999999", linewidth=0.9, zorder=1)
        labels = {method: _label(results, case, method) for method in curves}
        figure.legend(
            handles=[Line2D([], [], label=labels[method], **_STYLES[method]) for method in curves],
            title=f"{DATA[case.data]}, k = {case.k}, 50 agents, {GRAPHS[case.graph]} graph",
            title_fontsize=11,
            loc="outside upper center",
            ncols=3,
            frameon=False,
            handlelength=3.4,
        )
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=150, format="png", metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())


def _curves(results: Results, case: Case) -> dict[Method, Outcome]:
    """Return the first draw of every method that communicates."""
    paper = results.paper(case, min(LIMITS))
    groups = {method: results.group(case, method).outcomes for method in SENDING}
    found = {"DeEPCA": paper.outcomes if paper is not None else (), **groups}
    return {method: outcomes[0] for method, outcomes in found.items() if outcomes and outcomes[0].curve}


def _label(results: Results, case: Case, method: Method) -> str:
    return f"DeEPCA, K = {results.best(case, min(LIMITS))}" if method == "DeEPCA" else METHODS[method]


def _line(axes: Axes, outcome: Outcome, column: int, style: Mapping[str, Any]) -> None:
    x, y = (np.array(outcome.curve)[:, i] for i in (column, 2))
    if y[0] < _FLOOR:  # converged in one step: start the line at the top
        x, y = np.insert(x, 0, x[0]), np.insert(y, 0, 10.0 * _CEILING)
    axes.plot(x, y, **style)
    for mark in outcome.marks:
        if mark is not None:
            place = mark.rounds if column == 0 else mark.bytes
            reached = max(float(y[np.searchsorted(x, place, side="right") - 1]), 1.3 * _FLOOR)
            axes.plot([place], [reached], "o", color=style["color"], markersize=5, zorder=5)


def _count(value: float, _: object) -> str:
    return f"{value:,.0f}"


def _size(value: float, _: object) -> str:
    return format_bytes(value)
