"""Drawings of networks. Needs the ``plot`` extra (matplotlib)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import networkx as nx
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from scipy.spatial import cKDTree

from deepca._util.machine import one_blas_thread
from deepca._util.typing import Array, Csr
from deepca.errors import InvalidInput
from deepca.plots.curves import LOOK
from deepca.topology.graph import Topology, links_of

__all__ = ["draw", "layout"]

_SUFFIXES = (".png", ".svg")
_MOST, _MOST_LINKS, _MOST_ARROWS = 1000, 100_000, 3000
_NUMBERED = 60
_STRAIGHT = 12  # a longer path is folded
_SPRINGS = 256  # a spring between every two agents is slow for more
_AGENT, _LINK, _AROUND = "#0072B2", "#4d4d4d", "#D55E00"
_PAGE, _MARGIN, _TITLE, _HEAD = 7.0, 0.4, 0.5, 0.25  # inches
_STUB = 0.55  # of the distance between rows


def draw(topology: Topology, path: Path) -> None:
    """Agents and links, saved as PNG or SVG by suffix; up to 60 agents are numbered.

    Arrows show where messages go one way only. Of a network that changes, some rounds are drawn side by side.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidInput(f"{path}: a drawing is saved as PNG or SVG; let the name end in .png or .svg")
    m = topology.n_agents
    if m > _MOST or topology.n_edges > _MOST_LINKS:
        raise InvalidInput(
            f"a drawing of {m:,} agents with {topology.n_edges:,} links would be a blot; "
            f"draw at most {_MOST:,} agents and {_MOST_LINKS:,} links"
        )
    with mpl.rc_context(LOOK):
        figure = _rounds(topology) if topology.changing and m > 1 else _whole(topology)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _whole(topology: Topology) -> Figure:
    """One drawing of all links."""
    page = _Page.of(topology, _PAGE)
    figure = Figure(figsize=(_PAGE, page.tall + _TITLE))
    axes = figure.add_axes((0.0, 0.0, 1.0, page.tall / (page.tall + _TITLE)))
    page.frame(axes)
    page.links(axes, topology.adjacency)
    page.agents(axes)
    _head(figure, topology, page, page.tall + _TITLE)
    return figure


def _rounds(topology: Topology) -> Figure:
    """The first rounds, each over all links that there ever are."""
    page = _Page.of(topology, _PAGE / 2)
    tall = page.tall + _HEAD
    figure = Figure(figsize=(_PAGE, 2 * tall + _TITLE))
    for r in range(4):
        row, column = divmod(r, 2)
        high = 1.0 - (_TITLE + row * tall + _HEAD) / (2 * tall + _TITLE)
        low = high - page.tall / (2 * tall + _TITLE)
        axes = figure.add_axes((0.5 * column, low, 0.5, high - low))
        page.frame(axes)
        page.links(axes, topology.adjacency, faint=True)
        page.links(axes, links_of(topology.at(r)))
        page.agents(axes)
        name = f"round {r + 1}: {topology.messages_at(r)} messages"
        figure.text(0.5 * column + 0.25, high + 0.08 / (2 * tall + _TITLE), name, ha="center", size=9)
    _head(figure, topology, page, 2 * tall + _TITLE)
    return figure


def _head(figure: Figure, topology: Topology, page: _Page, tall: float) -> None:
    figure.text(0.5, 1.0 - 0.3 / tall, _title(topology), ha="center", size=11)
    if page.around.any():
        note = "dashed links go around to the opposite side"
        figure.text(0.5, 1.0 - 0.5 / tall, note, ha="center", size=9, color=_AROUND)


@dataclass(frozen=True)
class _Page:
    """Where agents are drawn, ``at (m, 2)``, and how large: in a frame of ``wide`` × ``tall`` inches.

    low, high : corners of what is seen.  inch : per unit of ``at``.  radius : of an agent, in points.
    ends : the links, ``(n, 2)``; those ``around`` join opposite sides, and are drawn as ``stubs``.
    """

    at: Array
    wide: float
    tall: float
    low: Array
    high: Array
    inch: float
    radius: float
    ends: npt.NDArray[np.int64]
    around: npt.NDArray[np.bool_]
    stubs: Array

    @classmethod
    def of(cls, topology: Topology, wide: float) -> _Page:
        at, ends, m = layout(topology), topology.edges, topology.n_agents
        around = _goes_around(topology, at, ends)
        stubs = _stubs(at, ends[around])
        seen = np.concatenate([at, stubs.reshape(-1, 2)])
        low, high = seen.min(axis=0), seen.max(axis=0)
        inch = (wide - 2 * _MARGIN) / max(float((high - low).max()), 1e-9)
        tall = float(high[1] - low[1]) * inch + 2 * _MARGIN
        points = 72.0 * inch * _spacing(at) if m > 1 else math.inf
        small = wide < _PAGE  # where several are side by side, links matter more than agents
        least = (4.0 if small else 6.0) if m <= _NUMBERED else 1.5 if small else 2.0
        radius = min(max((0.28 if small else 0.36) * points, least), 8.0 if small else 11.0)
        return cls(at, wide, tall, low, high, inch, radius, ends, around, stubs)

    def frame(self, axes: Axes) -> None:
        axes.set_axis_off()
        middle = (self.low + self.high) / 2
        axes.set_xlim(middle[0] - self.wide / 2 / self.inch, middle[0] + self.wide / 2 / self.inch)
        axes.set_ylim(middle[1] - self.tall / 2 / self.inch, middle[1] + self.tall / 2 / self.inch)

    def links(self, axes: Axes, used: Csr, *, faint: bool = False) -> None:
        """Those that are used: ``used[j, i]`` where i sends to j. An arrow where nothing comes back."""
        if not len(self.ends):
            return
        there = np.asarray(used[self.ends[:, 0], self.ends[:, 1]]).ravel() != 0.0
        back = np.asarray(used[self.ends[:, 1], self.ends[:, 0]]).ravel() != 0.0
        both = there & back if not faint else there | back
        strength = min(1.0, (100.0 / (np.count_nonzero(there | back) + 1.0)) ** 0.6)  # many links are drawn fainter
        line = {"linewidths": 0.5 + 0.7 * strength, "alpha": 0.06 + 0.8 * strength, "zorder": 1}
        if faint:
            line = {"linewidths": 0.4, "alpha": 0.03 + 0.2 * strength, "zorder": 0}
        dashed = self.stubs[np.tile(both[self.around], 2)]  # a stub at both ends
        axes.add_collection(LineCollection(list(self.at[self.ends[both & ~self.around]]), colors=_LINK, **line))
        axes.add_collection(LineCollection(list(dashed), colors=_AROUND, linestyles=(0, (2, 1.5)), **line))
        if faint:
            return
        sent = np.concatenate([self.ends[back & ~there], self.ends[there & ~back][:, ::-1]])
        if len(sent) > _MOST_ARROWS:  # of so many, heads would hide the lines
            axes.add_collection(LineCollection(list(self.at[sent]), colors=_LINK, **line))
        else:
            self._arrows(axes, sent, strength)

    def _arrows(self, axes: Axes, sent: npt.NDArray[np.int64], strength: float) -> None:
        """From who sends to who receives."""
        for i, j in sent:
            arrow = FancyArrowPatch(
                tuple(self.at[i]),
                tuple(self.at[j]),
                arrowstyle="-|>",
                mutation_scale=5.0 + 6.0 * strength,
                shrinkA=self.radius,
                shrinkB=self.radius,
                color=_LINK,
                linewidth=0.4 + 0.6 * strength,
                alpha=0.15 + 0.7 * strength,
                zorder=1,
            )
            axes.add_patch(arrow)

    def agents(self, axes: Axes) -> None:
        size = (2.0 * self.radius) ** 2
        axes.scatter(self.at[:, 0], self.at[:, 1], s=size, color=_AGENT, edgecolors="white", linewidths=0.7, zorder=2)
        if len(self.at) <= _NUMBERED:
            for j, (x, y) in enumerate(self.at):
                size = 0.9 * self.radius
                axes.text(x, y, str(j), color="white", size=size, ha="center", va="center_baseline", zorder=3)


def layout(topology: Topology) -> Array:
    """Where every agent is drawn, ``(m, 2)``: by the shape that its name promises, else so that distance shows hops."""
    m = topology.n_agents
    if m == 1:
        return np.zeros((1, 2))
    kind, shape = _inner(topology).partition("(")[0], _shape(topology)
    if shape is not None:
        return _rows(m, shape[1])
    if m == 2 or kind in ("path", "grid"):
        return _folded(m)
    if kind in ("ring", "torus", "complete", "directed-ring", "directed-exponential", "one-peer"):
        return _circle(m)
    if kind == "star":
        return np.concatenate([np.zeros((1, 2)), _circle(m - 1)])
    return _by_hops(topology, start=_cube(m) if kind == "hypercube" else _circle(m))


def _inner(topology: Topology) -> str:
    """The name of the network whose links are used, where one changes."""
    found = re.fullmatch(r"(?:matchings|failing|lossy)\((.*?)(?:, [\d.e-]+)?\)", topology.name)
    return topology.name if found is None else found[1]


def _shape(topology: Topology) -> tuple[int, int] | None:
    """Rows and columns of a grid or a torus that has several of both."""
    found = re.fullmatch(r"(grid|torus)\((\d+)×(\d+)\)", _inner(topology))
    if found is None:
        return None
    rows, columns = int(found[2]), int(found[3])
    return (rows, columns) if min(rows, columns) > 1 and rows * columns == topology.n_agents else None


def _circle(m: int) -> Array:
    angle = math.pi / 2 - 2.0 * math.pi * np.arange(m) / m  # from the top, clockwise
    return np.column_stack([np.cos(angle), np.sin(angle)])


def _rows(m: int, columns: int) -> Array:
    j = np.arange(m)
    return np.column_stack([j % columns, -(j // columns)]).astype(np.float64)


def _folded(m: int) -> Array:
    """A line that turns back at the end of every row."""
    columns = m if m <= _STRAIGHT else math.ceil(math.sqrt(1.6 * m))
    at = _rows(m, columns)
    back = (-at[:, 1]) % 2 == 1
    at[back, 0] = columns - 1 - at[back, 0]
    return at


def _cube(m: int) -> Array:
    """A shadow of the cube: every bit of an agent's number is a direction, of a length of its own."""
    dimension = (m - 1).bit_length()
    bits = np.arange(m)[:, None] >> np.arange(dimension) & 1
    angle = math.pi * (np.arange(dimension) + 0.5) / dimension
    length = 1.0 + 0.25 * np.arange(dimension)
    return np.asarray(bits @ (length * np.stack([np.cos(angle), np.sin(angle)])).T)


def _by_hops(topology: Topology, start: Array) -> Array:
    graph: nx.Graph[int] = nx.empty_graph(topology.n_agents)
    graph.add_edges_from(topology.edges.tolist())
    at = dict(enumerate(start))
    with one_blas_thread():  # the matrices are small, and the drawing is the same on every machine
        if topology.n_agents <= _SPRINGS:
            found = nx.kamada_kawai_layout(graph, pos=at, weight=None)
        else:
            found = nx.spring_layout(graph, pos=at, weight=None, seed=0)
    return _apart(np.array([found[j] for j in range(topology.n_agents)], dtype=np.float64))


def _apart(at: Array) -> Array:
    """Move agents that nearly cover each other away from each other."""
    wanted = 0.7 * float(np.median(_nearest(at)))
    for _ in range(30):
        pairs = cKDTree(at).query_pairs(wanted, output_type="ndarray")
        if not len(pairs):
            break
        way = at[pairs[:, 1]] - at[pairs[:, 0]]
        length = np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-9 * wanted)
        push = 0.26 * (wanted / length - 1.0) * way
        np.subtract.at(at, pairs[:, 0], push)
        np.add.at(at, pairs[:, 1], push)
    return at


def _spacing(at: Array) -> float:
    """The distance to the nearest other agent, for an agent with less room than most."""
    return float(np.quantile(_nearest(at), 0.1))


def _nearest(at: Array) -> Array:
    """How far it is from every agent to the one drawn nearest."""
    return np.asarray(cKDTree(at).query(at, k=2)[0])[:, 1]


def _goes_around(topology: Topology, at: Array, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """The links of a torus that join opposite sides."""
    if _shape(topology) is None:
        return np.zeros(len(ends), dtype=np.bool_)
    return np.asarray(np.abs(at[ends[:, 0]] - at[ends[:, 1]]).sum(axis=1) > 1.5)


def _stubs(at: Array, ends: npt.NDArray[np.int64]) -> Array:
    """Two short lines for a link that goes around: it leaves at one side and comes back at the other."""
    one, other = at[ends[:, 0]], at[ends[:, 1]]
    out = np.sign(one - other) * _STUB
    return np.concatenate([np.stack([one, one + out], axis=1), np.stack([other, other - out], axis=1)])


def _title(topology: Topology) -> str:
    m, n = topology.n_agents, topology.n_edges
    agents, links = f"{m} agent{'s' * (m > 1)}", f"{n} link{'s' * (n != 1)}"
    if topology.changing:
        return f"{topology.name}: {agents}, {links}, a round leaves {topology.lambda2:.3g}"
    if topology.directed:
        n = topology.n_messages
        return f"{topology.name}: {agents}, {n} arc{'s' * (n != 1)}, 1 − |λ₂| = {1 - topology.lambda2:.3g}"
    return f"{topology.name}: {agents}, {links}, 1 − λ₂ = {1 - topology.lambda2:.3g}"
