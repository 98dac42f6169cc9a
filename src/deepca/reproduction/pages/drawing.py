"""Style and save the figures of a reproduction."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from deepca.plots.curves import RC_PARAMS

NOTE_COLOUR = "#555555"  # colour of notes


def styled() -> AbstractContextManager[None]:
    """Return a context that applies the style of all figures."""
    return mpl.rc_context(
        {
            **RC_PARAMS,
            "axes.titlesize": 10,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "mathtext.fontset": "dejavusans",
        }
    )


def save_figure(figure: Figure, path: Path, title: str) -> None:
    """Save a figure as PNG and SVG; equal figures give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()  # compute the layout once for both formats
    figure.set_layout_engine("none")
    figure.savefig(path.with_name(path.name + ".png"), dpi=150, metadata={"Title": title})
    figure.savefig(path.with_name(path.name + ".svg"), metadata={"Title": title, "Date": None})
