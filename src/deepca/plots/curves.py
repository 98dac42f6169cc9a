"""Figures. Needs the ``plot`` extra (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from deepca._util.typing import Array

__all__ = ["LOOK", "Curve", "convergence", "grid", "scree", "style"]

LOOK: dict[Any, Any] = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "deepca"}
"""Settings of matplotlib for all pictures; its keys are a type of its own there."""

# Okabe–Ito: told apart by colour-blind readers; line styles tell them apart in grey
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_FLOOR = 1e-17  # zero has no place on a logarithmic axis
_BESIDE = 6  # curves beyond which the legend would cover them


@dataclass(frozen=True)
class Curve:
    """The error of one method after every iteration, and the rounds sent by then."""

    label: str
    error: Array
    rounds: npt.NDArray[np.int64]


def style(i: int) -> dict[str, Any]:
    """Colour and line of the i-th curve of a picture: 28 different ones, then the same again."""
    return {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _LINES[i % len(_LINES)], "linewidth": 1.8}


def grid(axes: Axes, axis: Literal["both", "y"] = "both") -> None:
    """Draw faint lines behind the curves."""
    axes.grid(visible=True, which="major", axis=axis, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def convergence(curves: Sequence[Curve], path: Path, *, title: str, ylabel: str) -> None:
    """Error against iterations (left) and against rounds of communication (right), saved as PNG or SVG by suffix.

    Every curve is drawn: zeros at the lower end of the axis, and infinite errors, or none at all, at the upper one. On
    the right, a method that sends nothing stands at zero rounds.
    """
    finite = [float(value) for curve in curves for value in curve.error if np.isfinite(value)]
    highest = max([_FLOOR, *finite])
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(10.0, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for i, curve in enumerate(curves):
            error = np.clip(np.nan_to_num(curve.error, nan=highest, posinf=highest), _FLOOR, None)
            alone = "o" if error.size == 1 else None  # a point is no line
            left.semilogy(np.arange(1, error.size + 1), error, label=curve.label, marker=alone, **style(i))
            right.semilogy(curve.rounds, error, marker=alone, clip_on=bool(curve.rounds.any()), **style(i))
        left.set(xlabel="iterations", ylabel=ylabel)
        right.set(xlabel="rounds of communication")
        for axes in (left, right):
            grid(axes)
        if len(curves) > _BESIDE:
            figure.legend(frameon=False, loc="outside right upper", fontsize=8)
        elif curves:
            left.legend(frameon=False)
        figure.suptitle(title, fontsize=11)
        figure.savefig(path, dpi=150)


def scree(shares: npt.NDArray[Any], path: Path, *, title: str) -> None:
    """Share of variance by component (left) and of the first ones together (right); PNG or SVG by suffix."""
    values = 100.0 * np.asarray(shares, dtype=np.float64)
    numbers = np.arange(1, values.size + 1)
    few = values.size <= 12
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.bar(numbers, values, color="#0072B2", width=0.7 if few else 0.85)
        left.set(ylabel="share of variance, %", ylim=(0.0, 1.12 * values.max()))
        together = np.cumsum(values)
        right.plot(numbers, together, "o-" if values.size <= 60 else "-", color="#D55E00", linewidth=1.8, markersize=4)
        right.set(ylabel="together, %", ylim=(0.0, 104.0))
        for axes, heights in ((left, values), (right, together)):
            axes.set(xlabel="component", xlim=(0.4, values.size + 0.6))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
            grid(axes, "y")
            for number, height in zip(numbers, heights, strict=True) if few else ():
                axes.annotate(
                    f"{height:.1f}", (number, height), (0, 5), textcoords="offset points", ha="center", fontsize=8
                )
        figure.suptitle(title, fontsize=11)
        figure.savefig(path, dpi=150)
