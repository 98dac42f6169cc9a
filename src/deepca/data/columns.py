"""Put the columns of all agents into the same order, or report how they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca._util.units import plural
from deepca.consensus.consistency import differing_agents, name_agents
from deepca.data.sources import Block, Source
from deepca.errors import DataError
from deepca.network.base import Network

__all__ = ["Header", "Reordered", "agree_on_columns", "align_columns", "in_order_of", "named_columns"]

_MAX_NAMES_SHOWN = 6  # keeps messages to a line or two


def align_columns(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Put the columns of all sources into the order of the first source.

    Parameters
    ----------
    sources : sequence of Source
        The sources, at least one.

    Returns
    -------
    tuple of Source
        The same rows; a source whose columns are in that order already is returned as it is.

    Raises
    ------
    DataError
        If a source has two columns of the same name, or the sources do not have the same columns.
    """
    for source in sources:
        twice = [name for name, count in Counter(source.columns or ()).items() if count > 1]
        if twice:
            raise DataError(
                f"{source.name} has duplicate {named_columns(twice)}; give every column a unique name",
                redacted=f"{source.name} uses a column name more than once; give every column a unique name",
                agent=source.agent,
                file=source.file,
                column=twice[0],
            )
    return tuple(in_order_of(sources[0], source) for source in sources)


@dataclass(frozen=True)
class Header:
    """Name, number of columns and column names of a source in another process."""

    name: str
    d: int
    columns: tuple[str, ...] | None


def in_order_of(first: Source | Header, source: Source) -> Source:
    """Return ``source`` with its columns in the order of those of ``first``; raise DataError if they differ."""
    if source.d != first.d and (source.columns is None or first.columns is None):
        raise DataError(
            f"{source.name} has {source.d} columns, but {first.name} has {first.d}; give all agents the same columns",
            agent=source.agent,
            file=source.file,
            value=source.d,
        )
    if (source.columns is None) != (first.columns is None):
        named, bare = (source.name, first.name) if first.columns is None else (first.name, source.name)
        raise DataError(
            f"{named} has column names and {bare} does not, so the columns cannot be compared; "
            "name the columns of all agents, or of none",
            agent=source.agent,
            file=source.file,
        )
    if source.columns == first.columns:
        return source
    have, want = source.columns or (), first.columns or ()
    missing, extra = [c for c in want if c not in set(have)], [c for c in have if c not in set(want)]
    if missing or extra:
        differences = [f"has no {named_columns(missing)}"] if missing else []
        differences += [f"has {named_columns(extra)}, which {first.name} does not have"] if extra else []
        raise DataError(
            f"{source.name} {' and '.join(differences)}; give all agents the same columns",
            redacted=f"{source.name} and {first.name} have different columns; give all agents the same columns",
            agent=source.agent,
            file=source.file,
            column=(missing or extra)[0],
        )
    place = {name: i for i, name in enumerate(have)}
    return Reordered(source, want, np.array([place[name] for name in want]))


def agree_on_columns(network: Network, source: Source) -> None:
    """Raise DataError unless all agents have the columns (number, names, order) of agent 0.

    Agents compare hashes, so that no names are disclosed. Nothing is sent if all agents are in one process.
    """
    others = differing_agents(network, repr((source.d, source.columns)), "columns")
    if others.size:
        raise DataError(
            f"{name_agents(others)} and agent 0 differ in the number, names or order of their columns; give "
            "all agents the same columns in the same order",
            agent=int(others[0]),
        )


class Reordered(Source):
    """Source whose columns are those of another source in a different order."""

    def __init__(self, source: Source, columns: tuple[str, ...], order: npt.NDArray[np.int64]) -> None:
        self._source, self._order = source, order
        self.name, self.columns, self.d, self.n = source.name, columns, len(order), source.n
        self.dtype, self.is_sparse, self.single_pass = source.dtype, source.is_sparse, source.single_pass
        self.in_memory, self.entries = source.in_memory, source.entries
        self.file, self.agent = source.file, source.agent

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks with their columns reordered."""
        for block in self._source.blocks():
            yield block[:, self._order]

    def matrix(self) -> Block | None:
        """Return a reordered copy of all rows if they are in memory, else None."""
        X = self._source.matrix()
        return X[:, self._order] if X is not None and self.in_memory else None

    def labels(self) -> npt.NDArray[Any] | None:
        """Return the labels of the source."""
        return self._source.labels()

    def locate(self, row: int) -> tuple[str | None, int | None]:
        """Return the location of a row in the original source."""
        return self._source.locate(row)


def named_columns(names: Sequence[str | int]) -> str:
    """Format names (or indices) of columns for a message: the first six, and the number of the others."""
    shown = ", ".join(map(repr, names[:_MAX_NAMES_SHOWN]))
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return f"column{plural(len(names))} {shown}{more}"
