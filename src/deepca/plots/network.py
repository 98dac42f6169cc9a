"""Draw networks. Needs the ``plot`` extra (matplotlib)."""

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
from deepca.plots.curves import RC_PARAMS
from deepca.topology.graph import Topology, links_of

__all__ = ["draw", "layout"]

_SUFFIXES = (".png", ".svg")
_MAX_AGENTS, _MAX_LINKS = 1000, 100_000  # more cannot be distinguished in a drawing
_MAX_ARROWS = 3000  # the heads of more arrows would hide the lines
_MAX_NUMBERED_AGENTS = 60  # with more, the numbers would be too small to read
_MAX_STRAIGHT_PATH = 12  # agents; a longer path is folded into rows
_MAX_SPRING_AGENTS = 256  # Kamada–Kawai, with a spring between any two agents, is slow for more
_AGENT_COLOUR, _LINK_COLOUR, _WRAPPED_COLOUR = "#0072B2", "#4d4d4d", "#D55E00"
_PAGE_WIDTH, _MARGIN, _TITLE_HEIGHT, _CAPTION_HEIGHT = 7.0, 0.4, 0.5, 0.25  # inches
_STUB_LENGTH = 0.55  # relative to the distance between rows


def draw(topology: Topology, path: Path) -> None:
    """Draw a network to a file; agents are numbered if there are at most 60.

    An arrow is a link that is used in one direction only (a plain line if there are more than 3000). For a time-varying
    network, the first four rounds are drawn.

    Parameters
    ----------
    topology : Topology
        The network.
    path : Path
        File to write, PNG or SVG by its suffix.

    Raises
    ------
    InvalidInput
        If the suffix is neither .png nor .svg, or the network has more than 1000 agents or 100,000 links.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidInput(
            f"{path}: drawings are saved as PNG or SVG; use the suffix .png or .svg",
            parameter="path",
            file=str(path),
            value=path.suffix,
        )
    m = topology.n_agents
    if m > _MAX_AGENTS or topology.n_edges > _MAX_LINKS:
        raise InvalidInput(
            f"a drawing of {m:,} agents and {topology.n_edges:,} links would be illegible; "
            f"draw at most {_MAX_AGENTS:,} agents and {_MAX_LINKS:,} links",
            parameter="topology",
            value=(m, topology.n_edges),
        )
    with mpl.rc_context(RC_PARAMS):
        figure = _draw_rounds(topology) if topology.time_varying and m > 1 else _draw_static(topology)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _draw_static(topology: Topology) -> Figure:
    """Return a figure of all links."""
    page = _Page.of(topology, _PAGE_WIDTH)
    figure = Figure(figsize=(_PAGE_WIDTH, page.tall + _TITLE_HEIGHT))
    axes = figure.add_axes((0.0, 0.0, 1.0, page.tall / (page.tall + _TITLE_HEIGHT)))
    page.frame(axes)
    page.links(axes, topology.adjacency)
    page.agents(axes)
    _add_title(figure, topology, page, page.tall + _TITLE_HEIGHT)
    return figure


def _draw_rounds(topology: Topology) -> Figure:
    """Return a figure of the first four rounds, with the other links of the network drawn faintly."""
    page = _Page.of(topology, _PAGE_WIDTH / 2)
    tall = page.tall + _CAPTION_HEIGHT
    figure = Figure(figsize=(_PAGE_WIDTH, 2 * tall + _TITLE_HEIGHT))
    for r in range(4):
        row, column = divmod(r, 2)
        high = 1.0 - (_TITLE_HEIGHT + row * tall + _CAPTION_HEIGHT) / (2 * tall + _TITLE_HEIGHT)
        low = high - page.tall / (2 * tall + _TITLE_HEIGHT)
        axes = figure.add_axes((0.5 * column, low, 0.5, high - low))
        page.frame(axes)
        page.links(axes, topology.adjacency, faint=True)
        page.links(axes, links_of(topology.at(r)))
        page.agents(axes)
        name = f"round {r + 1}: {topology.messages_at(r)} messages"
        figure.text(0.5 * column + 0.25, high + 0.08 / (2 * tall + _TITLE_HEIGHT), name, ha="center", size=9)
    _add_title(figure, topology, page, 2 * tall + _TITLE_HEIGHT)
    return figure


def _add_title(figure: Figure, topology: Topology, page: _Page, tall: float) -> None:
    """Add the title, and a note if links wrap around."""
    figure.text(0.5, 1.0 - 0.3 / tall, _title(topology), ha="center", size=11)
    if page.wrapped.any():
        note = "dashed links wrap around to the opposite side"
        figure.text(0.5, 1.0 - 0.5 / tall, note, ha="center", size=9, color=_WRAPPED_COLOUR)


@dataclass(frozen=True)
class _Page:
    """Positions and sizes of a drawing.

    Parameters
    ----------
    at : ndarray of shape (m, 2)
        Positions of the agents.
    wide, tall : float
        Size of the frame in inches.
    low, high : ndarray of shape (2,)
        Corners of the drawn area.
    inch : float
        Inches per unit of ``at``.
    radius : float
        Radius of an agent in points.
    ends : ndarray of shape (n, 2)
        The two agents of each link.
    wrapped : ndarray of shape (n,)
        Mask of the links that join opposite sides.
    stubs : ndarray of shape (2 n_wrapped, 2, 2)
        Short lines that are drawn in place of the wrapped links.
    """

    at: Array
    wide: float
    tall: float
    low: Array
    high: Array
    inch: float
    radius: float
    ends: npt.NDArray[np.int64]
    wrapped: npt.NDArray[np.bool_]
    stubs: Array

    @classmethod
    def of(cls, topology: Topology, wide: float) -> _Page:
        """Lay out a network in a frame of the given width."""
        at, ends, m = layout(topology), topology.edges, topology.n_agents
        wrapped = _wraps_around(topology, at, ends)
        stubs = _stubs(at, ends[wrapped])
        seen = np.concatenate([at, stubs.reshape(-1, 2)])
        low, high = seen.min(axis=0), seen.max(axis=0)
        inch = (wide - 2 * _MARGIN) / max(float((high - low).max()), 1e-9)
        tall = float(high[1] - low[1]) * inch + 2 * _MARGIN
        points = 72.0 * inch * _spacing(at) if m > 1 else math.inf
        small = wide < _PAGE_WIDTH  # in small drawings side by side, links matter more than agents
        least = (4.0 if small else 6.0) if m <= _MAX_NUMBERED_AGENTS else 1.5 if small else 2.0
        radius = min(max((0.28 if small else 0.36) * points, least), 8.0 if small else 11.0)
        return cls(at, wide, tall, low, high, inch, radius, ends, wrapped, stubs)

    def frame(self, axes: Axes) -> None:
        """Set the limits of the axes."""
        axes.set_axis_off()
        middle = (self.low + self.high) / 2
        axes.set_xlim(middle[0] - self.wide / 2 / self.inch, middle[0] + self.wide / 2 / self.inch)
        axes.set_ylim(middle[1] - self.tall / 2 / self.inch, middle[1] + self.tall / 2 / self.inch)

    def links(self, axes: Axes, used: Csr, *, faint: bool = False) -> None:
        """Draw the links in use: ``used[j, i]`` is nonzero if i sends to j. A link used one way is an arrow."""
        if not len(self.ends):
            return
        there = np.asarray(used[self.ends[:, 0], self.ends[:, 1]]).ravel() != 0.0
        back = np.asarray(used[self.ends[:, 1], self.ends[:, 0]]).ravel() != 0.0
        both = there & back if not faint else there | back
        strength = min(1.0, (100.0 / (np.count_nonzero(there | back) + 1.0)) ** 0.6)  # draw many links fainter
        line = {"linewidths": 0.5 + 0.7 * strength, "alpha": 0.06 + 0.8 * strength, "zorder": 1}
        if faint:
            line = {"linewidths": 0.4, "alpha": 0.03 + 0.2 * strength, "zorder": 0}
        dashed = self.stubs[np.tile(both[self.wrapped], 2)]  # one stub at each end
        axes.add_collection(LineCollection(list(self.at[self.ends[both & ~self.wrapped]]), colors=_LINK_COLOUR, **line))
        axes.add_collection(LineCollection(list(dashed), colors=_WRAPPED_COLOUR, linestyles=(0, (2, 1.5)), **line))
        if faint:
            return
        sent = np.concatenate([self.ends[back & ~there], self.ends[there & ~back][:, ::-1]])
        if len(sent) > _MAX_ARROWS:
            axes.add_collection(LineCollection(list(self.at[sent]), colors=_LINK_COLOUR, **line))
        else:
            self._arrows(axes, sent, strength)

    def _arrows(self, axes: Axes, sent: npt.NDArray[np.int64], strength: float) -> None:
        """Draw arrows from senders to receivers."""
        for i, j in sent:
            arrow = FancyArrowPatch(
                tuple(self.at[i]),
                tuple(self.at[j]),
                arrowstyle="-|>",
                mutation_scale=5.0 + 6.0 * strength,
                shrinkA=self.radius,
                shrinkB=self.radius,
                color=_LINK_COLOUR,
                linewidth=0.4 + 0.6 * strength,
                alpha=0.15 + 0.7 * strength,
                zorder=1,
            )
            axes.add_patch(arrow)

    def agents(self, axes: Axes) -> None:
        """Draw the agents, with their numbers if there are few."""
        size = (2.0 * self.radius) ** 2
        axes.scatter(
            self.at[:, 0], self.at[:, 1], s=size, color=_AGENT_COLOUR, edgecolors="white", linewidths=0.7, zorder=2
        )
        if len(self.at) <= _MAX_NUMBERED_AGENTS:
            for j, (x, y) in enumerate(self.at):
                size = 0.9 * self.radius
                axes.text(x, y, str(j), color="white", size=size, ha="center", va="center_baseline", zorder=3)


def layout(topology: Topology) -> Array:
    """Return positions ``(m, 2)`` of the agents.

    Named networks have their usual shape; in others, distances reflect the number of hops.
    """
    m = topology.n_agents
    if m == 1:
        return np.zeros((1, 2))
    kind, shape = _underlying_name(topology).partition("(")[0], _shape(topology)
    if shape is not None:
        return _rows(m, shape[1])
    if m == 2 or kind in ("path", "grid"):
        return _folded(m)
    if kind in ("ring", "torus", "complete", "directed-ring", "directed-exponential", "one-peer"):
        return _circle(m)
    if kind == "star":
        return np.concatenate([np.zeros((1, 2)), _circle(m - 1)])
    return _spring_layout(topology, start=_cube(m) if kind == "hypercube" else _circle(m))


def _underlying_name(topology: Topology) -> str:
    """Return the name of the network, or of the network underlying a time-varying one."""
    found = re.fullmatch(r"(?:matchings|failing|lossy)\((.*?)(?:, [\d.e-]+)?\)", topology.name)
    return topology.name if found is None else found[1]


def _shape(topology: Topology) -> tuple[int, int] | None:
    """Return the rows and columns of a grid or torus with at least two of each, else None."""
    found = re.fullmatch(r"(grid|torus)\((\d+)×(\d+)\)", _underlying_name(topology))
    if found is None:
        return None
    rows, columns = int(found[2]), int(found[3])
    return (rows, columns) if min(rows, columns) > 1 and rows * columns == topology.n_agents else None


def _circle(m: int) -> Array:
    """Place agents on a circle."""
    angle = math.pi / 2 - 2.0 * math.pi * np.arange(m) / m  # from the top, clockwise
    return np.column_stack([np.cos(angle), np.sin(angle)])


def _rows(m: int, columns: int) -> Array:
    """Place agents in rows."""
    j = np.arange(m)
    return np.column_stack([j % columns, -(j // columns)]).astype(np.float64)


def _folded(m: int) -> Array:
    """Place agents on a line that turns back at the end of every row."""
    columns = m if m <= _MAX_STRAIGHT_PATH else math.ceil(math.sqrt(1.6 * m))
    at = _rows(m, columns)
    back = (-at[:, 1]) % 2 == 1
    at[back, 0] = columns - 1 - at[back, 0]
    return at


def _cube(m: int) -> Array:
    """Project a hypercube: each bit of an agent's index adds a vector with its own direction and length."""
    dimension = (m - 1).bit_length()
    bits = np.arange(m)[:, None] >> np.arange(dimension) & 1
    angle = math.pi * (np.arange(dimension) + 0.5) / dimension
    length = 1.0 + 0.25 * np.arange(dimension)
    return np.asarray(bits @ (length * np.stack([np.cos(angle), np.sin(angle)])).T)


def _spring_layout(topology: Topology, start: Array) -> Array:
    """Place agents by a spring model, starting from given positions."""
    graph: nx.Graph[int] = nx.empty_graph(topology.n_agents)
    graph.add_edges_from(topology.edges.tolist())
    at = dict(enumerate(start))
    with one_blas_thread():  # the matrices are small, and the drawing must not depend on the number of cores
        if topology.n_agents <= _MAX_SPRING_AGENTS:
            found = nx.kamada_kawai_layout(graph, pos=at, weight=None)
        else:
            found = nx.spring_layout(graph, pos=at, weight=None, seed=0)
    return _push_apart(np.array([found[j] for j in range(topology.n_agents)], dtype=np.float64))


def _push_apart(at: Array) -> Array:
    """Separate agents that nearly cover each other."""
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
    """Return the 10th percentile of the distances from each agent to the nearest other one."""
    return float(np.quantile(_nearest(at), 0.1))


def _nearest(at: Array) -> Array:
    """Return the distance from every agent to the nearest other one."""
    return np.asarray(cKDTree(at).query(at, k=2)[0])[:, 1]


def _wraps_around(topology: Topology, at: Array, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return the mask of the links of a torus that join opposite sides."""
    if _shape(topology) is None:
        return np.zeros(len(ends), dtype=np.bool_)
    return np.asarray(np.abs(at[ends[:, 0]] - at[ends[:, 1]]).sum(axis=1) > 1.5)


def _stubs(at: Array, ends: npt.NDArray[np.int64]) -> Array:
    """Return two short lines per wrapped link, one at each end, which point out of the drawing."""
    one, other = at[ends[:, 0]], at[ends[:, 1]]
    out = np.sign(one - other) * _STUB_LENGTH
    return np.concatenate([np.stack([one, one + out], axis=1), np.stack([other, other - out], axis=1)])


def _title(topology: Topology) -> str:
    """Return the title: name, size, and spectral gap or convergence factor of the network."""
    m, n = topology.n_agents, topology.n_edges
    agents, links = f"{m} agent{'s' * (m > 1)}", f"{n} link{'s' * (n != 1)}"
    if topology.time_varying:
        return f"{topology.name}: {agents}, {links}, disagreement × {topology.lambda2:.3g} per round"
    if topology.directed:
        n = topology.n_messages
        return f"{topology.name}: {agents}, {n} arc{'s' * (n != 1)}, 1 − |λ₂| = {1 - topology.lambda2:.3g}"
    return f"{topology.name}: {agents}, {links}, 1 − λ₂ = {1 - topology.lambda2:.3g}"
