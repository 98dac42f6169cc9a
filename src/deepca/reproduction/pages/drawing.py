"""How all figures look, and how they are saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

SOFT = "#555555"


@contextmanager
def styled() -> Iterator[None]:
    with mpl.rc_context(
        {
            "font.size": 10,
            "axes.titlesize": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "mathtext.fontset": "dejavusans",
            "svg.hashsalt": "deepca",
        }
    ):
        yield


def save_figure(figure: Figure, path: Path, title: str) -> None:
    """PNG and SVG next to each other, the same bytes every time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()  # lays it out, once for both
    figure.set_layout_engine("none")
    figure.savefig(path.with_name(path.name + ".png"), dpi=150, metadata={"Title": title})
    figure.savefig(path.with_name(path.name + ".svg"), metadata={"Title": title, "Date": None})
