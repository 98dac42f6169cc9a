"""Draw one figure per study and write curves as CSV. Requires the ``plot`` extra (matplotlib)."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from deepca._util.files import write_atomic
from deepca.reproduction.cells import Cell, Outcome
from deepca.reproduction.pages.drawing import NOTE_COLOUR, save_figure, styled
from deepca.reproduction.pages.tables import Rows, by_row_and_column, name_of, row_name
from deepca.reproduction.studies import Study, Value

__all__ = ["draw_study_figure", "write_curves"]


_SERIES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    {"color": "#000000", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#E69F00", "linestyle": (0, (7, 2)), "marker": "P"},
    {"color": "#56B4E9", "linestyle": (0, (1, 1)), "marker": "X"},
)
_WORDS: dict[Value, str] = {
    "iterations": "iterations",
    "rounds": "rounds of communication",
    "converged": "iterations",
}
_SHARE = LinearSegmentedColormap.from_list("share", ["#ffffff", "#a6cee8", "#0072B2", "#00406b"])


def draw_study_figure(study: Study, outcomes: Mapping[Cell, Outcome], path: Path) -> None:
    """Draw the figure of a study to ``path`` + ``.png`` and ``.svg``."""
    rows = by_row_and_column(study, outcomes)
    with styled():
        if study.value == "converged":
            figure = _share_map(study, rows)
        elif study.columns == "draw":
            figure = _draws(study, rows)
        else:
            figure = _curves(study, rows)
        save_figure(figure, path, study.question)


def _title(figure: Figure, study: Study, rows: Rows, line: str, width: int) -> None:
    cell = next(run.cell for row in rows.values() for runs in row.values() for run in runs)
    varied = {name for name, _ in study.axes}
    fixed = [cell.data, str(cell.method)]
    fixed += [f"${name} = {getattr(cell, name)}$" for name in ("k", "K") if name not in varied]
    fixed += [f"{cell.agents} agents"] if "agents" not in varied else []
    fixed += [name_of("graph", cell.graph)] if "graph" not in varied else []
    question = re.sub(r"\b([A-Z])_([a-z])\b", r"$\1_\2$", study.question)  # A_j
    words = "\n".join(textwrap.wrap(question, width))
    small = "\n".join(textwrap.wrap(", ".join(fixed) + ". " + line, int(width * 1.4), break_on_hyphens=False))
    figure.suptitle(words, fontsize=12, x=0.01, ha="left")
    figure.supxlabel(small, fontsize=9, color=NOTE_COLOUR, x=0.01, ha="left")


def _goal(study: Study) -> str:
    """Return ``mean tan θ ≤ 1e-8`` without line breaks."""
    return f"mean $\\tan\\,\\theta$ ≤ {_power(study.accuracy)}".replace(" ", "\N{NO-BREAK SPACE}")


def _power(value: float) -> str:
    """Return a power of ten as mathtext, such as ``10^{-8}``, and any other value as plain text."""
    exponent = np.log10(value)
    return f"$10^{{{exponent:.0f}}}$" if exponent == round(exponent) else f"{value:g}"


def _share_map(study: Study, rows: Rows) -> Figure:
    """Draw a grid of squares with the share of draws that converged, as shade and text, and their median iterations."""
    columns = dict(study.axes)[study.columns]
    width = max(6.2, 2.2 + 1.05 * len(columns))
    figure = Figure(figsize=(width, 1.45 + 0.44 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for y, entries in enumerate(rows.values()):
        for x, column in enumerate(columns):
            values = study.measure(entries[column])
            reached = [value for value in values if value is not None]
            if not values:
                axes.text(x, y, "not run", ha="center", va="center", fontsize=8, color=NOTE_COLOUR)
                continue
            share = len(reached) / len(values)
            axes.fill([x - 0.5, x + 0.5, x + 0.5, x - 0.5], [y - 0.5, y - 0.5, y + 0.5, y + 0.5], color=_SHARE(share))
            text = f"{len(reached)}/{len(values)}" + (f"\n{np.median(reached):.0f} it." if reached else "")
            colour = "white" if share > 0.55 else "black"
            axes.text(x, y, text, ha="center", va="center", fontsize=9, color=colour, linespacing=1.15)
    for x in range(len(columns) + 1):
        axes.axvline(x - 0.5, color="#bbbbbb", linewidth=0.8)
    firsts = [row[:1] for row in rows]
    for y in range(len(rows) + 1):
        group = len(study.row_names) > 1 and 0 < y < len(rows) and firsts[y] != firsts[y - 1]
        axes.axhline(y - 0.5, color="#000000" if group else "#bbbbbb", linewidth=1.6 if group else 0.8)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(columns)), [name_of(study.columns, column) for column in columns])
    axes.set_yticks(range(len(rows)), [row_name(study, row) for row in rows])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    line = f"In each square: the number of draws that reached {_goal(study)} and stayed there, "
    _title(figure, study, rows, line + "and the median of their iterations.", int(width * 11))
    return figure


def _draws(study: Study, rows: Rows) -> Figure:
    """Draw a panel per row with a dot per draw; draws that never converged are crosses at the top."""
    figure = Figure(figsize=(9.0, 1.9 + 1.45 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    draws = dict(study.axes)["draw"]
    measured = {row: {d: study.measure(entries[d]) for d in draws} for row, entries in rows.items()}
    reached = [v for entries in measured.values() for values in entries.values() for v in values if v is not None]
    low, high = (min(reached), max(reached)) if reached else (1.0, 10.0)
    logarithmic = high > 8 * low
    top = high * (high / low) ** 0.25 if logarithmic and high > low else high + 0.25 * (high - low) + 0.05 * high
    for axes, (row, entries) in zip(panels, measured.items(), strict=True):
        dots = [(d, values[0]) for d, values in entries.items() if values and values[0] is not None]
        never = [d for d, values in entries.items() if values and values[0] is None]
        axes.plot(*zip(*dots, strict=True), "o", color="#0072B2", markersize=5) if dots else None
        axes.plot(never, [top] * len(never), "X", color="#D55E00", markersize=8)
        for draw in never:
            axes.axvline(draw, color="#D55E00", linewidth=0.8, linestyle=":", zorder=0)
        ran = len(dots) + len(never)
        axes.set_title(f"{row_name(study, row)}: {len(dots)} of {ran} draws converged", fontsize=10, loc="left")
        axes.set_yscale("log" if logarithmic else "linear")
    panels[0].set_ylim(low * 0.8 if logarithmic else 0, top * 1.06)
    figure.supylabel(_WORDS[study.value], fontsize=10)
    panels[-1].set_xlabel("draw (network and start)")
    panels[-1].set_xticks(draws)
    line = f"Dots: {_WORDS[study.value]} until {_goal(study)} holds permanently. "
    _title(figure, study, rows, line + "Crosses at the top: never.", 100)
    return figure


def _curves(study: Study, rows: Rows) -> Figure:
    """Draw a line per row with the range over the draws, a strip with failed draws, and a panel to compare networks."""
    columns = dict(study.axes)[study.columns]
    numeric = all(isinstance(column, int | float) for column in columns)
    places = np.array(columns if numeric else range(len(columns)), dtype=np.float64)
    wide = numeric and places.min() > 0 and places.max() > 5 * places.min()
    failed = _failures(study, rows)
    graphs = study.row_names == ["graph"] and study.value == "rounds"
    figure = Figure(figsize=(10.5, 5.2) if graphs else (7.6, 5.0), layout="constrained")
    left: list[Any] = ["failed", "curves"] if failed else ["curves"]
    panels = figure.subplot_mosaic(
        [[name, "gap"] if graphs else [name] for name in left],
        height_ratios=(0.055 * (len(failed) + 0.6), 1.0) if failed else None,
        width_ratios=(1.25, 1.0) if graphs else None,
    )
    axes = panels["curves"]
    if failed:
        panels["failed"].sharex(axes)
    measured = {
        row: [[v for v in study.measure(entries[column]) if v is not None] for column in columns]
        for row, entries in rows.items()
    }
    every = [value for entries in measured.values() for values in entries for value in values] or [1]
    steep = max(every) > 5 * min(every)
    step = 0.0 if steep else 0.02 * (np.log(places.max() / places.min()) if wide else np.ptp(places))
    for i, ((row, entries), style) in enumerate(zip(measured.items(), cycle(_SERIES), strict=False)):
        shift = (i - (len(rows) - 1) / 2) * step  # draw ranges side by side where curves are flat
        shifted = places * np.exp(shift) if wide else places + shift
        across, reached = shifted[[bool(values) for values in entries]], [values for values in entries if values]
        thick = 1.0 - i / max(len(rows) - 1, 1) if steep else 0.2  # nest equal curves inside one another
        axes.vlines(across, [min(v) for v in reached], [max(v) for v in reached], color=style["color"], linewidth=1.2)
        axes.plot(
            across,
            [np.median(values) for values in reached],
            label=row_name(study, row),
            linewidth=1.3 + 1.2 * thick,
            markersize=4.5 + 4.5 * thick,
            **style,
        )
    axes.set(ylabel=_WORDS[study.value], yscale="log" if steep else "linear", xscale="log" if wide else "linear")
    axes.set_xlabel(f"${study.columns}$" if len(study.columns) == 1 else study.columns)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(places, [name_of(study.columns, column, bare=True) for column in columns])
    if steep:
        _plain_numbers(axes)
    else:
        axes.set_ylim(0, 1.35 * max(every))
    axes.legend(frameon=False, fontsize=9, handlelength=3.4)
    if failed:
        _draw_failures(panels["failed"], failed, dict(zip(columns, places, strict=True)))
    if graphs:
        _against_the_gap(panels["gap"], study, rows)
    until = f"Until {_goal(study)} holds permanently: median and range over {study.draws} draws."
    cross = " Above: the number of draws that converged; a cross where none did." if failed else ""
    _title(figure, study, rows, until + cross, 115 if graphs else 84)
    return figure


Failures = dict[str, list[tuple[Any, int, int]]]


def _failures(study: Study, rows: Rows) -> Failures:
    """Return, by row name, the columns where not all draws converged, with their counts."""
    failed: Failures = {}
    for row, entries in rows.items():
        for column, runs in entries.items():
            reached = sum(value is not None for value in study.measure(runs))
            if reached < len(runs):
                failed.setdefault(row_name(study, row), []).append((column, reached, len(runs)))
    return failed


def _draw_failures(strip: Axes, failed: Failures, places: Mapping[Any, float]) -> None:
    for y, entries in enumerate(failed.values()):
        for column, reached, of in entries:
            if reached:
                strip.text(places[column], y, f"{reached}/{of}", ha="center", va="center", fontsize=8)
            else:
                strip.plot([places[column]], [y], "x", color="#000000", markersize=5, markeredgewidth=1.5)
    strip.set_ylim(len(failed) - 0.4, -0.6)
    strip.set_yticks(range(len(failed)), list(failed), fontsize=8.5)
    strip.tick_params(length=0, labelbottom=False)
    strip.grid(visible=False, axis="y")
    strip.spines[:].set_visible(False)


def _against_the_gap(axes: Axes, study: Study, rows: Rows) -> None:
    """Draw the fewest rounds of each network, over the columns where all draws converged, against 1/√(1−λ₂)."""
    points = []
    for (row, entries), style in zip(rows.items(), cycle(_SERIES), strict=False):
        best: list[tuple[float, Any]] = []
        for column, runs in entries.items():
            reached = [value for value in study.measure(runs) if value is not None]
            if reached and len(reached) == len(runs):
                best.append((float(np.median(reached)), column))
        if best:
            gap = float(np.median([1.0 - run.lambda2 for runs in entries.values() for run in runs]))
            rounds, column = min(best, key=lambda pair: pair[0])
            name = f"{row_name(study, row)}\n{name_of(study.columns, column)}"
            points.append((float(1.0 / np.sqrt(gap)), rounds, name, style))
    axes.set(xscale="log", yscale="log", xlabel=r"$1/\sqrt{1-\lambda_2}$", ylabel="rounds of communication")
    axes.set_title(f"Fewest rounds over all ${study.columns}$", fontsize=10)
    if not points:
        axes.text(0.5, 0.5, "no network converged", ha="center", va="center", transform=axes.transAxes)
        return
    points.sort(key=lambda point: point[:2])
    x, y = np.array([point[0] for point in points]), np.array([point[1] for point in points])
    ends = np.array([x.min() / 1.8, x.max() * 1.8])
    line = np.exp(np.mean(np.log(y / x)))
    axes.plot(ends, ends * line, color="#888888", linewidth=1.2, linestyle="--", zorder=1, label="in proportion")
    for across, up, name, style in points:
        axes.plot([across], [up], style["marker"], color=style["color"], markersize=8, zorder=3)
        above = up > line * across  # label each point on its own side of the line
        axes.annotate(
            name,
            (across, up),
            xytext=(0, 9 if above else -9),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            fontsize=9,
            linespacing=1.1,
        )
    axes.set_xlim(*ends)
    axes.set_ylim(min(y.min(), line * x.min()) / 2.2, max(y.max(), line * x.max()) * 2.2)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    _plain_numbers(axes, both=True)


def _plain_numbers(axes: Axes, *, both: bool = False) -> None:
    """Label a logarithmic axis that spans few powers of ten with plain numbers such as 100, 200, 500."""
    for axis in (axes.xaxis, axes.yaxis) if both else (axes.yaxis,):
        low, high = axis.get_view_interval()
        if low >= 0.01 and high / low < 200:
            few = (1, 2, 5) if high / low > 6 else (1, 1.5, 2, 3, 4, 5, 6, 8)
            places = [a * 10.0**e for e in range(-2, 8) for a in few if low <= a * 10.0**e <= high]
            axis.set_major_locator(FixedLocator(places))
            axis.set_ticklabels([f"{place:g}" for place in places])
            axis.set_minor_formatter(NullFormatter())


_COLUMNS = (
    "data",
    "method",
    "label",
    "k",
    "K",
    "growth",
    "graph",
    "agents",
    "rows",
    "order",
    "alignment",
    "spread",
    "draw",
)


def write_curves(outcomes: Iterable[Outcome], path: Path) -> None:
    """Write all curves atomically to one CSV file, one line per iteration, floats in full precision."""
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow((*_COLUMNS, "iteration", "rounds", "tan_theta", "S_disagreement", "W_disagreement"))
    for run in outcomes:
        fixed = [getattr(run.cell, name) for name in _COLUMNS]
        curves = (run.rounds, run.tan_theta, run.S_disagreement, run.W_disagreement)
        numbers = zip(*(curve.tolist() for curve in curves), strict=True)
        lines.writerows([*fixed, t, *entry] for t, entry in enumerate(numbers, start=1))
    write_atomic(path, text.getvalue().encode())
