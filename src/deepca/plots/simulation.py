"""Plot a simulation. Needs the ``plot`` extra (matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepca._util.units import counted
from deepca.errors import InvalidInput
from deepca.plots.curves import RC_PARAMS, grid, style

if TYPE_CHECKING:
    from deepca.planning.simulation import Simulation

__all__ = ["draw"]

# the Okabe–Ito palette, as in deepca.plots.curves; hatches distinguish the parts in grey
_PARTS = {
    "latency": ("latency", "#56B4E9", ""),
    "transmission": ("transmission", "#0072B2", ""),
    "losses": ("retransmission", "#D55E00", "///"),
    "compute": ("computing", "#009E73", ""),
    "stragglers": ("waiting for stragglers", "#E69F00", "xxx"),
}
_FLOOR, _CEILING = 1e-16, 30.0  # range of the error axis: rounding, and a tangent that is practically infinite


def draw(simulation: Simulation, path: Path) -> None:
    """Plot error against simulated time (left), and the composition of each method's time (right).

    Parameters
    ----------
    simulation : Simulation
        The simulated runs.
    path : Path
        File to write, PNG or SVG by its suffix.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise InvalidInput(
            f"{path}: figures are saved as PNG or SVG; use the suffix .png or .svg",
            parameter="path",
            file=str(path),
            value=path.suffix,
        )
    if not any(run.seconds for run in simulation.runs):
        raise InvalidInput(
            f"{path}: neither links nor agents take any time, so there is nothing to draw; give links a latency",
            parameter="simulation",
            file=str(path),
        )
    with mpl.rc_context(RC_PARAMS):
        figure = Figure(figsize=(11.0, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
        _errors(left, simulation)
        _shares(right, simulation)
        figure.suptitle(
            f"{simulation.network}: {counted(len(simulation.agents), 'agent')}, {counted(simulation.links, 'link')}; "
            f"{simulation.components} components of {simulation.dim:,} columns",
            fontsize=11,
        )
        figure.savefig(path, dpi=150)


def _errors(axes: Axes, simulation: Simulation) -> None:
    """Plot errors against time."""
    floor = max(_FLOOR, 1e-3 * simulation.tol)
    times = [seconds for run in simulation.runs for seconds, _ in (*run.curve, (run.seconds, 0.0)) if seconds]
    earliest = 0.5 * min(times)  # methods that take no time are drawn here
    for i, run in enumerate(simulation.runs):
        seconds, error = np.array(run.curve).reshape(-1, 2).T
        error = np.clip(np.nan_to_num(error, nan=_CEILING, posinf=_CEILING), floor, _CEILING)
        axes.loglog(np.maximum(seconds, earliest), error, label=run.algorithm, **style(i))
        mark, size = ("o", 6.0) if run.certified else ("x", 8.0)
        last = min(max(run.error, floor), _CEILING) if not np.isnan(run.error) else _CEILING
        end, colour = ([max(run.seconds, earliest)], [last]), style(i)["color"]
        axes.plot(*end, mark, color=colour, markersize=size, markeredgewidth=2.0, clip_on=False, zorder=3)
    axes.axhline(simulation.tol, color="#888888", linewidth=0.8, zorder=1)
    at = (0.01, simulation.tol)
    axes.annotate("tolerance", at, (0, 2), xycoords=axes.get_yaxis_transform(), textcoords="offset points", fontsize=8)
    axes.set(
        xlabel="simulated seconds; ● proven, ✕ ended without proof",
        ylabel="largest tan θ of any agent",
        ylim=(floor, _CEILING),
    )
    grid(axes)
    axes.legend(frameon=False, loc="upper right")


def _shares(axes: Axes, simulation: Simulation) -> None:
    """Plot the shares of latency, transmission and other causes as stacked bars."""
    runs = simulation.runs
    at, begin = np.arange(len(runs)), np.zeros(len(runs))
    seconds = np.array([run.seconds for run in runs])
    for part, (label, colour, hatch) in _PARTS.items():
        widths = 100.0 * np.array([run.parts[part] for run in runs]) / np.maximum(seconds, 1e-300)
        if not widths.any():
            continue
        axes.barh(at, widths, left=begin, height=0.6, color=colour, hatch=hatch, edgecolor="white", label=label)
        begin += widths
    for y, total in zip(at, seconds, strict=True):
        axes.annotate(f"{total:.3g} s", (101.5, float(y)), va="center", fontsize=9, annotation_clip=False)
    axes.set_yticks(at, [run.algorithm for run in runs])
    axes.invert_yaxis()
    axes.set(xlabel="time of the last agent to finish, by cause, %", xlim=(0.0, 100.0))
    if begin.any():
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=8.5)
