"""Plot convergence and explained variance. Needs the ``plot`` extra (matplotlib)."""

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

__all__ = ["RC_PARAMS", "Curve", "convergence", "grid", "scree", "style"]

RC_PARAMS: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "deepca",
}
"""matplotlib settings of all figures; matplotlib types their keys as literals, hence Any."""

# the Okabe–Ito palette, which colour-blind readers can distinguish; line styles distinguish curves in grey
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_FLOOR = 1e-17  # zeros are drawn here, since a logarithmic axis has none
_MAX_CURVES_WITH_INNER_LEGEND = 6  # with more, the legend would cover curves, so it is placed beside the axes


@dataclass(frozen=True)
class Curve:
    """The error of a method by iterations and rounds.

    Parameters
    ----------
    label : str
        Name of the method in the legend.
    error : ndarray of shape (iterations,)
        Error after every iteration.
    rounds : ndarray of shape (iterations,)
        Number of communication rounds up to every iteration.
    """

    label: str
    error: Array
    rounds: npt.NDArray[np.int64]


def style(i: int) -> dict[str, Any]:
    """Return the colour and line style of the i-th curve of a figure; they repeat after 28 curves.

    Parameters
    ----------
    i : int
        Index of the curve.

    Returns
    -------
    dict
        Keyword arguments of matplotlib's plot functions.
    """
    return {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _LINES[i % len(_LINES)], "linewidth": 1.8}


def grid(axes: Axes, axis: Literal["both", "y"] = "both") -> None:
    """Draw a faint grid behind the curves."""
    axes.grid(visible=True, which="major", axis=axis, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def convergence(curves: Sequence[Curve], path: Path, *, title: str, ylabel: str) -> None:
    """Plot error against iterations (left) and communication rounds (right).

    Parameters
    ----------
    curves : sequence of Curve
        The methods.
    path : Path
        File to write, PNG or SVG by its suffix.
    title : str
        Title of the figure.
    ylabel : str
        Label of the error axis.

    Notes
    -----
    Every curve is drawn: zeros at the lower end of the axis, infinite and NaN errors at the upper end. On the right, a
    method that sends nothing is drawn at zero rounds.
    """
    finite = [float(value) for curve in curves for value in curve.error if np.isfinite(value)]
    highest = max([_FLOOR, *finite])
    with mpl.rc_context(RC_PARAMS):
        figure = Figure(figsize=(10.0, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for i, curve in enumerate(curves):
            error = np.clip(np.nan_to_num(curve.error, nan=highest, posinf=highest), _FLOOR, None)
            marker = "o" if error.size == 1 else None  # a line through a single point is invisible
            left.semilogy(np.arange(1, error.size + 1), error, label=curve.label, marker=marker, **style(i))
            right.semilogy(curve.rounds, error, marker=marker, clip_on=bool(curve.rounds.any()), **style(i))
        left.set(xlabel="iterations", ylabel=ylabel)
        right.set(xlabel="rounds of communication")
        for axes in (left, right):
            grid(axes)
        if len(curves) > _MAX_CURVES_WITH_INNER_LEGEND:
            figure.legend(frameon=False, loc="outside right upper", fontsize=8)
        elif curves:
            left.legend(frameon=False)
        figure.suptitle(title, fontsize=11)
        figure.savefig(path, dpi=150)


def scree(shares: npt.NDArray[Any], path: Path, *, title: str) -> None:
    """Plot the share of variance by component (left) and its cumulative sum (right).

    Parameters
    ----------
    shares : ndarray of shape (n_components,)
        Share of the variance explained by each component.
    path : Path
        File to write, PNG or SVG by its suffix.
    title : str
        Title of the figure.
    """
    values = 100.0 * np.asarray(shares, dtype=np.float64)
    numbers = np.arange(1, values.size + 1)
    few = values.size <= 12
    with mpl.rc_context(RC_PARAMS):
        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.bar(numbers, values, color="#0072B2", width=0.7 if few else 0.85)
        left.set(ylabel="share of variance, %", ylim=(0.0, 1.12 * values.max()))
        cumulative = np.cumsum(values)
        right.plot(
            numbers, cumulative, "o-" if values.size <= 60 else "-", color="#D55E00", linewidth=1.8, markersize=4
        )
        right.set(ylabel="cumulative share, %", ylim=(0.0, 104.0))
        for axes, heights in ((left, values), (right, cumulative)):
            axes.set(xlabel="component", xlim=(0.4, values.size + 0.6))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
            grid(axes, "y")
            for number, height in zip(numbers, heights, strict=True) if few else ():
                axes.annotate(
                    f"{height:.1f}", (number, height), (0, 5), textcoords="offset points", ha="center", fontsize=8
                )
        figure.suptitle(title, fontsize=11)
        figure.savefig(path, dpi=150)
