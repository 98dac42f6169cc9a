"""Links and agents as CSV files: ``from,to,latency_ms,mbit_per_s[,loss,jitter_ms]`` and ``agent,slowdown,…``.

Lines that begin with ``#`` are remarks. A row ``a,b`` serves both directions, unless there is a row ``b,a`` as well.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import numpy as np

from deepca.errors import DisconnectedError, InvalidInput
from deepca.planning.links import Links, Machines, Quantity
from deepca.topology.graph import Rule, from_edges

__all__ = ["EXAMPLE", "read_links", "read_machines"]

EXAMPLE = """\
# One row per link, for both directions; give a row b,a as well where the way back differs.
# latency_ms: until a message arrives.  mbit_per_s: of this link, or inf.
# loss: probability that a message is lost, and sent again.  jitter_ms: up to so much more latency.
from,to,latency_ms,mbit_per_s,loss,jitter_ms
north,south,12,100,0,1
south,west,18,100,0,1
west,north,25,50,0,2
west,coast,9,200,0,0
# a mobile connection: slow upwards, and one message in a hundred is lost
island,coast,60,2,0.01,20
coast,island,60,10,0.01,20
"""
_NAMES = 8  # shown in a message


@dataclass(frozen=True)
class _Column(Quantity):
    """What a column holds, and in which unit it is kept. default : where it is missing; None where it must be there."""

    unit: float = 1.0
    default: float | None = None


_LINK: Mapping[str, _Column] = {
    "latency_ms": _Column("milliseconds, 0 or more", unit=1e-3),
    "mbit_per_s": _Column("megabits per second above 0, or inf", positive=True, infinite=True, unit=1e6),
    "loss": _Column("a probability, 0 or more and below 1", below=1.0, default=0.0),
    "jitter_ms": _Column("milliseconds, 0 or more", unit=1e-3, default=0.0),
}
_AGENT: Mapping[str, _Column] = {
    "slowdown": _Column("a number above 0, such as 3 for three times as slow", positive=True, default=1.0),
    "stall": _Column("a probability, 0 or more and below 1", below=1.0, default=0.0),
    "stall_ms": _Column("milliseconds, 0 or more", unit=1e-3, default=0.0),
    "uplink_mbit_per_s": _Column(
        "megabits per second above 0, or inf", positive=True, infinite=True, unit=1e6, default=math.inf
    ),
}


@dataclass(frozen=True)
class _Row:
    """A line of a file: its number, the agents it names, and its numbers."""

    line: int
    who: tuple[str, ...]
    numbers: tuple[float, ...]


def read_links(path: str | Path, agents: str | Path | None = None, *, rule: Rule = "paper") -> Links:
    """The links of a file, and with ``agents`` what its agents are like.

    Agents are ordered as they first appear, by number where all names are whole numbers. ``rule`` : of the gossip
    weights, as in :mod:`deepca.topology`.
    """
    file = Path(path)
    rows = {row.who: row for row in _unique(file, _rows(file, ("from", "to"), _LINK))}
    if not rows:
        raise InvalidInput(f"{file}: there is no link; a row after the header is from,to,latency_ms,mbit_per_s")
    for (a, b), row in rows.items():
        if a == b:
            raise InvalidInput(f"{file}, line {row.line}: {a} is linked to itself; leave the row out")
    names = list(dict.fromkeys(name for pair in rows for name in pair))
    if all(name.isdecimal() for name in names):
        names.sort(key=int)
    number = {name: j for j, name in enumerate(names)}
    _check_connected(file, names, rows)
    topology = from_edges(len(names), [(number[a], number[b]) for a, b in rows], rule=rule, name=file.stem)
    links = Links.of(topology, names=tuple(names))
    pairs = zip(links.senders.tolist(), links.receivers.tolist(), strict=True)
    each = [rows.get((names[i], names[j])) or rows[names[j], names[i]] for i, j in pairs]
    latency, bandwidth, loss, jitter = np.array([row.numbers for row in each]).T
    machines = None if agents is None else read_machines(agents, names)
    return Links.of(
        topology,
        latency=latency,
        bandwidth=bandwidth,
        loss=loss,
        jitter=jitter,
        names=tuple(names),
        machines=machines,
    )


def read_machines(path: str | Path, names: Sequence[str]) -> Machines:
    """What agents are like; those that the file does not name are as all others."""
    file = Path(path)
    number = {name: j for j, name in enumerate(names)}
    values = np.tile([column.default or 0.0 for column in _AGENT.values()], (len(names), 1))
    for row in _unique(file, _rows(file, ("agent",), _AGENT)):
        [name] = row.who
        if name not in number:
            raise InvalidInput(
                f"{file}, line {row.line}: agent {name!r} has no link; agents of the network are {_listed(names)}"
            )
        values[number[name]] = row.numbers
    slowdown, stall, pause, uplink = values.T
    return Machines.of(len(names), slowdown=slowdown, stall=stall, pause=pause, uplink=uplink)


def _rows(file: Path, who: tuple[str, ...], columns: Mapping[str, _Column]) -> Iterator[_Row]:
    needed = [*who, *(name for name, column in columns.items() if column.default is None)]
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput(f"{file} does not exist; deepca simulate --example prints a file to start from") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is no text; give a CSV file with the columns {','.join(needed)}") from None
    header: list[str] = []
    for line, raw in enumerate(text.splitlines(), start=1):
        if not raw.strip() or raw.lstrip().startswith("#"):
            continue
        cells = [cell.strip() for cell in next(csv.reader([raw]))]
        if not header:
            header = _header(file, line, cells, [*who, *columns], needed)
            continue
        if len(cells) != len(header):
            raise InvalidInput(
                f"{file}, line {line}: {len(cells)} values for {len(header)} columns ({','.join(header)})"
            )
        given = dict(zip(header, cells, strict=True))
        for name in who:
            if not given[name]:
                raise InvalidInput(f"{file}, line {line}, column {name}: empty; give the name or number of an agent")
        numbers = tuple(_number(file, line, name, given.get(name, ""), column) for name, column in columns.items())
        yield _Row(line, tuple(given[name] for name in who), numbers)
    if not header:
        raise InvalidInput(f"{file} is empty; its first line is {','.join(needed)}")


def _header(file: Path, line: int, cells: list[str], known: list[str], needed: list[str]) -> list[str]:
    where = f"{file}, line {line}"
    for name in cells:
        if name not in known:
            raise InvalidInput(f"{where}: {name!r} is no column; the first line names columns of {','.join(known)}")
        if cells.count(name) > 1:
            raise InvalidInput(f"{where}: the column {name} is there twice; leave one out")
    for name in needed:
        if name not in cells:
            raise InvalidInput(f"{where}: there is no column {name}; the first line is {','.join(needed)}, or more")
    return cells


def _number(file: Path, line: int, name: str, text: str, column: _Column) -> float:
    if not text and column.default is not None:
        return column.default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not column.accepts(value):
        raise InvalidInput(f"{file}, line {line}, column {name}: {text!r} must be {column.wanted}")
    return value * column.unit


def _unique(file: Path, rows: Iterator[_Row]) -> Iterator[_Row]:
    """The same rows; an error names two that speak of the same."""
    seen: dict[tuple[str, ...], int] = {}
    for row in rows:
        if row.who in seen:
            raise InvalidInput(
                f"{file}, line {row.line}: {','.join(row.who)} is on line {seen[row.who]} already; leave one out"
            )
        seen[row.who] = row.line
        yield row


def _check_connected(file: Path, names: Sequence[str], pairs: Iterable[tuple[str, ...]]) -> None:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_edges_from((a, b) for a, b in pairs)
    order = {name: j for j, name in enumerate(names)}
    parts = [sorted(part, key=order.__getitem__) for part in nx.connected_components(graph)]
    if len(parts) > 1:
        shown = " and ".join(f"{{{_listed(part)}}}" for part in parts[:4])
        raise DisconnectedError(f"{file}: the network falls into {len(parts)} parts, {shown}; add a link between them")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES]) + (f", … ({len(names)} agents)" if len(names) > _NAMES else "")
