"""Read links and agents from CSV files, ``from,to,latency_ms,mbit_per_s[,loss,jitter_ms]`` and ``agent,slowdown,…``.

Lines that begin with ``#`` are comments. A row ``a,b`` describes both directions, unless there is also a row ``b,a``.
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
from deepca.planning.links import Links, Machines, ValueRange
from deepca.topology.graph import Rule, from_edges

__all__ = ["EXAMPLE", "read_links", "read_machines"]

EXAMPLE = """\
# One row per link, for both directions; add a row b,a if the way back differs.
# latency_ms: time until a message arrives.  mbit_per_s: bandwidth of the link, or inf.
# loss: probability that a message is lost and sent again.  jitter_ms: largest additional latency.
from,to,latency_ms,mbit_per_s,loss,jitter_ms
north,south,12,100,0,1
south,west,18,100,0,1
west,north,25,50,0,2
west,coast,9,200,0,0
# a mobile connection: slow uplink, and one message in a hundred is lost
island,coast,60,2,0.01,20
coast,island,60,10,0.01,20
"""
_EXAMPLE_ADVICE = " (deepca simulate --example prints one)"
_MAX_NAMES = 8  # number of agents listed in an error message


@dataclass(frozen=True)
class _Column(ValueRange):
    """Accepted values of a column, the factor that converts them to SI units, and the default; None if none exists."""

    unit: float = 1.0
    default: float | None = None


_LINK_COLUMNS: Mapping[str, _Column] = {
    "latency_ms": _Column("milliseconds from 0 to 1e300", unit=1e-3),
    "mbit_per_s": _Column("megabits per second from 1e-300 to 1e294, or inf", positive=True, infinite=True, unit=1e6),
    "loss": _Column("a probability, 0 or more and below 1", below=1.0, default=0.0),
    "jitter_ms": _Column("milliseconds from 0 to 1e300", unit=1e-3, default=0.0),
}
_AGENT_COLUMNS: Mapping[str, _Column] = {
    "slowdown": _Column("a number from 1e-300 to 1e300, such as 3 for three times as slow", positive=True, default=1.0),
    "stall": _Column("a probability, 0 or more and below 1", below=1.0, default=0.0),
    "stall_ms": _Column("milliseconds from 0 to 1e300", unit=1e-3, default=0.0),
    "uplink_mbit_per_s": _Column(
        "megabits per second from 1e-300 to 1e294, or inf", positive=True, infinite=True, unit=1e6, default=math.inf
    ),
}


@dataclass(frozen=True)
class _Row:
    """Row of a file: its line number, its agents, and its numbers in SI units."""

    line: int
    agents: tuple[str, ...]
    numbers: tuple[float, ...]


def read_links(path: str | Path, agents: str | Path | None = None, *, rule: Rule = "paper") -> Links:
    """Read a network from CSV files.

    Parameters
    ----------
    path : path-like
        File of the links, with the columns ``from,to,latency_ms,mbit_per_s`` and optionally ``loss,jitter_ms``.
    agents : path-like, optional
        File of the agents, with the column ``agent`` and any of ``slowdown,stall,stall_ms,uplink_mbit_per_s``.
    rule : str
        Rule of the gossip weights, as in :mod:`deepca.topology`.

    Returns
    -------
    Links
        The links; agents are ordered by first appearance, or by number if all names are integers.

    Raises
    ------
    InvalidInput
        If a file cannot be used; ``file``, ``line`` and ``column`` locate the fault.
    DisconnectedError
        If the links do not connect all agents.
    """
    file = Path(path)
    rows = {row.agents: row for row in _unique(file, _rows(file, ("from", "to"), _LINK_COLUMNS))}
    if not rows:
        raise InvalidInput(
            f"{file} has no links; add a row from,to,latency_ms,mbit_per_s after the header", file=str(file)
        )
    for (a, b), row in rows.items():
        if a == b:
            raise _error(f"{a} is linked to itself; remove the row", file, row.line, value=a)
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
    """Read the speed of agents from a file; agents that it does not mention get the defaults."""
    file = Path(path)
    number = {name: j for j, name in enumerate(names)}
    values = np.tile([column.default or 0.0 for column in _AGENT_COLUMNS.values()], (len(names), 1))
    for row in _unique(file, _rows(file, ("agent",), _AGENT_COLUMNS)):
        [name] = row.agents
        if name not in number:
            reason = f"agent {name!r} has no link; the agents of the network are {_listed(names)}"
            raise _error(reason, file, row.line, "agent", name)
        values[number[name]] = row.numbers
    slowdown, stall, pause, uplink = values.T
    return Machines.of(len(names), slowdown=slowdown, stall=stall, pause=pause, uplink=uplink)


def _error(reason: str, file: Path, line: int, column: str | None = None, value: object = None) -> InvalidInput:
    """Return the error about a line of a file."""
    where = f"{file}, line {line}" + ("" if column is None else f", column {column}")
    return InvalidInput(f"{where}: {reason}", file=str(file), line=line, column=column, value=value)


def _rows(file: Path, agent_columns: tuple[str, ...], columns: Mapping[str, _Column]) -> Iterator[_Row]:
    """Yield the rows of a file; ``agent_columns`` are the columns that name agents."""
    needed = [*agent_columns, *(name for name, column in columns.items() if column.default is None)]
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput(
            f"{file}: file not found; check the path, or write a CSV file that begins with the line "
            f"{','.join([*agent_columns, *columns])}{_EXAMPLE_ADVICE if needed != ['agent'] else ''}",
            file=str(file),
        ) from None
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{file} is not a text file; give a CSV file with the columns {','.join(needed)}", file=str(file)
        ) from None
    header: list[str] = []
    for line, raw in enumerate(text.splitlines(), start=1):
        if not raw.strip() or raw.lstrip().startswith("#"):
            continue
        cells = [cell.strip() for cell in next(csv.reader([raw]))]
        if not header:
            header = _header(file, line, cells, [*agent_columns, *columns], needed)
            continue
        if len(cells) != len(header):
            reason = f"{len(cells)} values for {len(header)} columns; give {','.join(header)}"
            raise _error(reason, file, line, value=len(cells))
        given = dict(zip(header, cells, strict=True))
        for name in agent_columns:
            if not given[name]:
                raise _error("the cell is empty; give the name or number of an agent", file, line, name, "")
        numbers = tuple(_number(file, line, name, given.get(name, ""), column) for name, column in columns.items())
        yield _Row(line, tuple(given[name] for name in agent_columns), numbers)
    if not header:
        raise InvalidInput(f"{file} is empty; start it with the line {','.join(needed)}", file=str(file))


def _header(file: Path, line: int, cells: list[str], known: list[str], needed: list[str]) -> list[str]:
    """Return the column names; raise InvalidInput if one is unknown, repeated or missing."""
    for name in cells:
        if name not in known:
            raise _error(f"unknown column {name!r}; use columns of {','.join(known)}", file, line, name)
        if cells.count(name) > 1:
            raise _error(f"the column {name} occurs twice; remove one", file, line, name)
    for name in needed:
        if name not in cells:
            raise _error(f"the column {name} is missing; give at least {','.join(needed)}", file, line, name)
    return cells


def _number(file: Path, line: int, name: str, text: str, column: _Column) -> float:
    """Return the number in a cell, converted to SI units, or the default if the cell is empty.

    Raises InvalidInput if the cell has no default, or does not contain a number that its column accepts.
    """
    if not text and column.default is not None:
        return column.default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not column.accepts([value, value * column.unit]).all():
        raise _error(f"found {text!r}; give {column.expected}", file, line, name, text)
    return value * column.unit


def _unique(file: Path, rows: Iterator[_Row]) -> Iterator[_Row]:
    """Yield the rows unchanged; raise InvalidInput if two of them describe the same link or agent."""
    seen: dict[tuple[str, ...], int] = {}
    for row in rows:
        if row.agents in seen:
            name = ",".join(row.agents)
            raise _error(
                f"{name} is already on line {seen[row.agents]}; remove one of the two rows", file, row.line, value=name
            )
        seen[row.agents] = row.line
        yield row


def _check_connected(file: Path, names: Sequence[str], pairs: Iterable[tuple[str, ...]]) -> None:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_edges_from((a, b) for a, b in pairs)
    order = {name: j for j, name in enumerate(names)}
    parts = [sorted(part, key=order.__getitem__) for part in nx.connected_components(graph)]
    if len(parts) > 1:
        shown = " and ".join(f"{{{_listed(part)}}}" for part in parts[:4])
        raise DisconnectedError(
            f"{file}: the network has {len(parts)} components, {shown}; add links between them",
            file=str(file),
            value=len(parts),
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (f", … ({len(names)} agents)" if len(names) > _MAX_NAMES else "")
