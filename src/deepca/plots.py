"""Figures. Needs the ``plot`` extra (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from deepca._typing import Array

__all__ = ["Curve", "convergence"]

# Okabe–Ito: told apart by colour-blind readers; line styles tell them apart in grey
_STYLES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"))


@dataclass(frozen=True)
class Curve:
    """The error of one method after every iteration, and the rounds sent by then."""

    label: str
    error: Array
    rounds: npt.NDArray[np.int64]


def convergence(curves: Sequence[Curve], path: Path, *, title: str, ylabel: str) -> None:
    """Error against iterations (left) and against rounds of communication (right), saved as PNG or SVG by suffix."""
    with mpl.rc_context(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "deepca"}
    ):
        figure = Figure(figsize=(10.0, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for curve, (colour, line) in zip(curves, _STYLES, strict=False):
            error = np.maximum(curve.error, 1e-17)
            left.semilogy(np.arange(1, error.size + 1), error, line, color=colour, label=curve.label, linewidth=1.8)
            if curve.rounds[-1] > 0:
                right.semilogy(curve.rounds, error, line, color=colour, linewidth=1.8)
        left.set(xlabel="iterations", ylabel=ylabel)
        right.set(xlabel="rounds of communication")
        for axes in (left, right):
            axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
        left.legend(frameon=False)
        figure.suptitle(title, fontsize=11)
        figure.savefig(path, dpi=150)
