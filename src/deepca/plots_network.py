"""Drawings of networks. Needs the ``plot`` extra (matplotlib)."""

from __future__ import annotations

import math
import re
from pathlib import Path

import matplotlib as mpl
import networkx as nx
import numpy as np
import numpy.typing as npt
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy import sparse
from scipy.spatial import cKDTree

from deepca._machine import one_blas_thread
from deepca._typing import Array
from deepca.errors import InvalidInput
from deepca.topology import Topology

__all__ = ["draw", "layout"]

_SUFFIXES = (".png", ".svg")
_MOST, _MOST_LINKS = 1000, 100_000
_NUMBERED = 60
_STRAIGHT = 12  # a longer path is folded
_SPRINGS = 256  # a spring between every two agents is slow for more
_AGENT, _LINK, _AROUND = "#0072B2", "#4d4d4d", "#D55E00"
_PAGE, _MARGIN, _TITLE = 7.0, 0.4, 0.5  # inches
_STUB = 0.55  # of the distance between rows


def draw(topology: Topology, path: Path) -> None:
    """Agents and links, saved as PNG or SVG by suffix; up to 60 agents are numbered."""
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidInput(f"{path}: a drawing is saved as PNG or SVG; let the name end in .png or .svg")
    m = topology.n_agents
    if m > _MOST or topology.n_edges > _MOST_LINKS:
        raise InvalidInput(
            f"a drawing of {m:,} agents with {topology.n_edges:,} links would be a blot; "
            f"draw at most {_MOST:,} agents and {_MOST_LINKS:,} links"
        )
    at = layout(topology)
    links = sparse.coo_array(sparse.triu(topology.adjacency, k=1))
    ends = np.column_stack([links.row, links.col]).astype(np.int64)
    around = _goes_around(topology, at, ends)
    stubs = _stubs(at, ends[around])

    seen = np.concatenate([at, stubs.reshape(-1, 2)])
    low, high = seen.min(axis=0), seen.max(axis=0)
    inch = (_PAGE - 2 * _MARGIN) / max(float((high - low).max()), 1e-9)  # per unit of the layout
    tall = float(high[1] - low[1]) * inch + 2 * _MARGIN
    points = 72.0 * inch * _spacing(at) if m > 1 else math.inf
    radius = min(max(0.36 * points, 6.0 if m <= _NUMBERED else 2.0), 11.0)
    strength = min(1.0, (100.0 / (len(ends) + 1.0)) ** 0.6)  # many links are drawn thinner and fainter
    line = {"linewidths": 0.5 + 0.7 * strength, "alpha": 0.06 + 0.8 * strength, "zorder": 1}
    with mpl.rc_context({"font.size": 10, "svg.hashsalt": "deepca"}):
        figure = Figure(figsize=(_PAGE, tall + _TITLE))
        axes = figure.add_axes((0.0, 0.0, 1.0, tall / (tall + _TITLE)))
        axes.set_axis_off()
        middle = (low + high) / 2
        axes.set_xlim(middle[0] - _PAGE / 2 / inch, middle[0] + _PAGE / 2 / inch)
        axes.set_ylim(middle[1] - tall / 2 / inch, middle[1] + tall / 2 / inch)
        axes.add_collection(LineCollection(list(at[ends[~around]]), colors=_LINK, **line))
        axes.add_collection(LineCollection(list(stubs), colors=_AROUND, linestyles=(0, (2, 1.5)), **line))
        axes.scatter(
            at[:, 0], at[:, 1], s=(2.0 * radius) ** 2, color=_AGENT, edgecolors="white", linewidths=0.7, zorder=2
        )
        if m <= _NUMBERED:
            for j, (x, y) in enumerate(at):
                axes.text(x, y, str(j), color="white", size=0.9 * radius, ha="center", va="center_baseline", zorder=3)
        figure.text(0.5, 1.0 - 0.3 / (tall + _TITLE), _title(topology), ha="center", size=11)
        if around.any():
            note = "dashed links go around to the opposite side"
            figure.text(0.5, 1.0 - 0.5 / (tall + _TITLE), note, ha="center", size=9, color=_AROUND)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def layout(topology: Topology) -> Array:
    """Where every agent is drawn, ``(m, 2)``: by the shape that its name promises, else so that distance shows hops."""
    m = topology.n_agents
    if m == 1:
        return np.zeros((1, 2))
    kind, shape = topology.name.partition("(")[0], _shape(topology)
    if shape is not None:
        return _rows(m, shape[1])
    if m == 2 or kind in ("path", "grid"):
        return _folded(m)
    if kind in ("ring", "torus", "complete"):
        return _circle(m)
    if kind == "star":
        return np.concatenate([np.zeros((1, 2)), _circle(m - 1)])
    return _by_hops(topology, start=_cube(m) if kind == "hypercube" else _circle(m))


def _shape(topology: Topology) -> tuple[int, int] | None:
    """Rows and columns of a grid or a torus that has several of both."""
    found = re.fullmatch(r"(grid|torus)\((\d+)×(\d+)\)", topology.name)
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
    graph, at = topology.to_networkx(), dict(enumerate(start))
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
    return f"{topology.name}: {m} agent{'s' * (m > 1)}, {n} link{'s' * (n != 1)}, 1 − λ₂ = {1 - topology.lambda2:.3g}"
