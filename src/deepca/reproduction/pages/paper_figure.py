"""Draw the paper's figures with the curves measured here."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from deepca._util.typing import Array
from deepca.errors import InvalidInput
from deepca.reproduction.cells import Cell, Outcome
from deepca.reproduction.pages.drawing import NOTE_COLOUR, save_figure, styled
from deepca.reproduction.studies import PaperSetting

__all__ = ["draw_paper_figure"]

FLOOR = 1e-16  # smaller values are rounding errors
CEILING = 1e3  # larger tangents only mean a right angle
STRETCH = 1.6  # length of the x-axis in rounds, relative to the rounds that DeEPCA needs

# Okabe–Ito colours, which colour-blind readers can distinguish; lines and markers distinguish the curves in greyscale
_CURVES: dict[str, dict[str, Any]] = {
    "DeEPCA": {"color": "#0072B2", "linestyle": "-", "marker": "o", "linewidth": 2.0},
    "DePCA, fixed K": {"color": "#D55E00", "linestyle": "--", "marker": "s", "linewidth": 1.5},
    "DePCA, growing K": {"color": "#009E73", "linestyle": "-.", "marker": "^", "linewidth": 1.5},
    "CPCA": {"color": "#000000", "linestyle": ":", "marker": "x", "linewidth": 1.5},
}


_PANELS = (
    ("S_disagreement", r"$\|S-\bar S\otimes 1\|$"),
    ("W_disagreement", r"$\|W-\bar W\otimes 1\|$"),
    ("tan_theta", r"mean $\tan\,\theta_k(U, W_j)$"),
)


def draw_paper_figure(
    outcomes: Mapping[Cell, Outcome],
    paper: PaperSetting,
    k: int,
    *,
    draw: int,
    against: Literal["iterations", "rounds"],
    path: Path,
) -> None:
    """Draw the paper's 3 × 3 panels, a row per K and a column per curve, to ``path`` + ``.png`` and ``.svg``."""
    lengths = sorted(
        {cell.iterations for cell in outcomes}, reverse=True
    )  # use runs of one length: the longest complete set
    choices = [{K: _paper_runs(outcomes, paper, k, K, draw, length) for K in paper.rounds} for length in lengths]
    runs = max(choices, key=lambda choice: sum(map(len, choice.values())), default={})
    if not any(runs.values()):
        raise InvalidInput(
            f"no outcome of the paper's setting for {paper.data}, k = {k}, draw {draw}; run its cells first",
            parameter="outcomes",
            value=paper.data,
        )
    if against == "rounds":
        runs = {K: {label: run for label, run in row.items() if label != "CPCA"} for K, row in runs.items()}
    with styled():
        figure = Figure(figsize=(10.5, 9.8), layout="constrained")
        panels = figure.subplots(3, 3, sharex="all" if against == "iterations" else "row", sharey="col")
        for i, (K, found) in enumerate(runs.items()):
            end = _visible(found, against)
            for axes, (curve, name) in zip(panels[i], _PANELS, strict=True):
                for label, run in _in_panel(found, curve):
                    _draw_curve(axes, _x(run, against), getattr(run, curve), end, _CURVES[label])
                axes.set(title=f"$K = {K}$", ylabel=name, yscale="log", xlim=(0, end))
                axes.tick_params(labelleft=True)
        for column, (curve, _) in zip(panels.T, _PANELS, strict=True):
            drawn = [getattr(run, curve) for row in runs.values() for _, run in _in_panel(row, curve)]
            column[0].set_ylim(*_y_range(drawn, CEILING if curve == "tan_theta" else np.inf))
            column[0].yaxis.set_major_locator(LogLocator(numticks=9))
            column[0].yaxis.set_minor_locator(NullLocator())
        for axes in panels[-1]:
            axes.set_xlabel("iterations" if against == "iterations" else "rounds of communication")
        shown = [label for label in _CURVES if any(label in row for row in runs.values())]
        handles = [Line2D([], [], label=label, **_marks(_CURVES[label]), **_CURVES[label]) for label in shown]
        any_run = next(run for row in runs.values() for run in row.values())
        gap = f"Erdős–Rényi graph with $1-\\lambda_2 = {1 - any_run.lambda2:.4f}$"
        figure.legend(
            handles=handles,
            title=f"{paper.data}: {paper.agents} agents, {paper.rows} rows each, $k = {k}$, {gap}",
            title_fontsize=12,
            loc="outside upper center",
            ncols=len(handles),
            frameon=False,
            handlelength=3.6,
        )
        if notes := _paper_notes(runs, paper, against):
            figure.supxlabel(notes, fontsize=9, color=NOTE_COLOUR)
        save_figure(figure, path, f"{paper.data}, k = {k}, against {against}")


def _in_panel(runs: Mapping[str, Outcome], curve: str) -> list[tuple[str, Outcome]]:
    """Return the runs shown in a panel; CPCA has no agents, and so no disagreement."""
    return [(label, run) for label, run in runs.items() if label != "CPCA" or curve == "tan_theta"]


def _paper_runs(
    outcomes: Mapping[Cell, Outcome], paper: PaperSetting, k: int, K: int, draw: int, iterations: int
) -> dict[str, Outcome]:
    """Return the runs for one K, by the labels of their curves."""
    base = Cell(paper.data, "DeEPCA", k, K, paper.agents, paper.rows, iterations, draw=draw)
    wanted = {
        "DePCA, fixed K": base.with_fields(method="DePCA"),
        "DePCA, growing K": base.with_fields(method="DePCA", growth=paper.growth),
        "DeEPCA": base,
        "CPCA": base.with_fields(method="CPCA", K=0),
    }
    return {label: outcomes[cell] for label, cell in wanted.items() if cell in outcomes}


def _x(run: Outcome, against: Literal["iterations", "rounds"]) -> Array:
    return np.arange(1.0, run.tan_theta.size + 1) if against == "iterations" else run.rounds.astype(np.float64)


def _visible(runs: Mapping[str, Outcome], against: Literal["iterations", "rounds"]) -> float:
    """Return the end of the x-axis: the length of the longest run, or a multiple of the rounds that DeEPCA needs."""
    end = max((_x(run, against)[-1] for run in runs.values()), default=1.0)
    if against == "iterations" or "DeEPCA" not in runs:
        return float(end)
    run = runs["DeEPCA"]
    needed = run.rounds_to(max(3.0 * run.plateau, 10.0 * FLOOR)) or int(run.rounds[-1])
    return float(min(end, STRETCH * needed))


def _draw_curve(axes: Axes, x: Array, y: Array, end: float, style: Mapping[str, Any]) -> None:
    # markers of equal curves are drawn side by side
    start = {"o": 0.0, "s": 0.25, "^": 0.5, "x": 0.75}[style["marker"]]
    places = np.searchsorted(x, end * (np.arange(7) + start + 0.15) / 7)
    axes.plot(
        x,
        np.clip(y, FLOOR, None),
        markevery=sorted({int(place) for place in places if place < x.size}),
        zorder=4 if style["marker"] == "x" else 3,
        **_marks(style),
        **style,
    )


def _marks(style: Mapping[str, Any]) -> dict[str, Any]:
    return {"markersize": 4.5, "markerfacecolor": style["color"] if style["marker"] == "o" else "white"}


def _y_range(curves: Iterable[Array], ceiling: float) -> tuple[float, float]:
    values = np.concatenate([curve[np.isfinite(curve)] for curve in curves])
    if not values.size:
        return FLOOR, 1.0
    low, high = np.clip((values.min(), values.max()), FLOOR, ceiling)
    return float(low / 3), float(high * 3)


def _paper_notes(
    runs: Mapping[int, Mapping[str, Outcome]], paper: PaperSetting, against: Literal["iterations", "rounds"]
) -> str:
    growing = [row["DePCA, growing K"] for row in runs.values() if "DePCA, growing K" in row]
    notes = []
    if growing:
        notes.append(f"Growing K: one more round every {paper.growth} iterations.")
    if against == "rounds":
        notes.append(
            f"Each row ends at {STRETCH:g} times the rounds that DeEPCA needs to settle{';' if growing else '.'}"
        )
        if growing:
            last = max(int(run.rounds[-1]) for run in growing)
            notes.append(f"the runs with growing K continued to {last} rounds.")
        notes.append("CPCA sends nothing and is not shown.")
    return "\n".join(textwrap.wrap(" ".join(notes), 130))
