"""How all figures look, and how they are saved."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from deepca.plots.curves import LOOK

SOFT = "#555555"


def styled() -> AbstractContextManager[None]:
    """Draw with the settings of all figures."""
    return mpl.rc_context(
        {
            **LOOK,
            "axes.titlesize": 10,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "mathtext.fontset": "dejavusans",
        }
    )


def save_figure(figure: Figure, path: Path, title: str) -> None:
    """PNG and SVG next to each other, the same bytes every time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()  # lays it out, once for both
    figure.set_layout_engine("none")
    figure.savefig(path.with_name(path.name + ".png"), dpi=150, metadata={"Title": title})
    figure.savefig(path.with_name(path.name + ".svg"), metadata={"Title": title, "Date": None})
