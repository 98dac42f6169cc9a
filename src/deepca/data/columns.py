"""Columns that mean the same everywhere: put in order where they can be, an error that names them where not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca.consensus.consistency import differing, listed
from deepca.data.sources import Block, Source
from deepca.errors import DataError
from deepca.network.base import Network

__all__ = ["Header", "Reordered", "agree_on_columns", "common_columns", "in_order_of", "named_columns"]

_SHOWN = 6


def common_columns(sources: Sequence[Source]) -> tuple[Source, ...]:
    """The sources with their columns in the order of the first; an error names who differs, and in what."""
    for source in sources:
        twice = [name for name, count in Counter(source.columns or ()).items() if count > 1]
        if twice:
            raise DataError(
                f"{source.name} has more than one {named_columns(twice)}; give every column a name of its own"
            )
    return tuple(in_order_of(sources[0], source) for source in sources)


@dataclass(frozen=True)
class Header:
    """What another process says of its columns."""

    name: str
    d: int
    columns: tuple[str, ...] | None


def in_order_of(first: Source | Header, source: Source) -> Source:
    """``source`` with its columns in the order of ``first``."""
    if source.d != first.d and (source.columns is None or first.columns is None):
        raise DataError(
            f"{source.name} has {source.d} columns, {first.name} has {first.d}; all agents need the same columns"
        )
    if (source.columns is None) != (first.columns is None):
        named, bare = (source.name, first.name) if first.columns is None else (first.name, source.name)
        raise DataError(
            f"{named} names its columns and {bare} does not, so nobody can tell whether they are the same; "
            "name them everywhere, or nowhere"
        )
    if source.columns == first.columns:
        return source
    have, want = source.columns or (), first.columns or ()
    missing, extra = [c for c in want if c not in set(have)], [c for c in have if c not in set(want)]
    if missing or extra:
        said = [f"has no {named_columns(missing)}"] if missing else []
        said += [f"has {named_columns(extra)}, which {first.name} has not"] if extra else []
        raise DataError(f"{source.name} {' and '.join(said)}; all agents need the same columns")
    place = {name: i for i, name in enumerate(have)}
    return Reordered(source, want, np.array([place[name] for name in want]))


def agree_on_columns(network: Network, source: Source) -> None:
    """An error that names the agents whose columns (number, names, order) are not those of agent 0.

    Hashes are compared, so names are not shown to others. Nothing is sent where all agents are in one process.
    """
    who = differing(network, repr((source.d, source.columns)), "columns")
    if who.size:
        raise DataError(
            f"agents {listed(who)} and agent 0 differ in the number, names or order of their columns; all need the "
            "same, in the same order"
        )


class Reordered(Source):
    """The same rows with their columns in another order."""

    def __init__(self, source: Source, columns: tuple[str, ...], order: npt.NDArray[np.int64]) -> None:
        self._source, self._order = source, order
        self.name, self.columns, self.d, self.n = source.name, columns, len(order), source.n
        self.dtype, self.is_sparse, self.once = source.dtype, source.is_sparse, source.once
        self.kept, self.entries = source.kept, source.entries

    def blocks(self) -> Iterator[Block]:
        for block in self._source.blocks():
            yield block[:, self._order]

    def matrix(self) -> Block | None:
        X = self._source.matrix()
        return X[:, self._order] if X is not None and self.kept else None

    def labels(self) -> npt.NDArray[Any] | None:
        return self._source.labels()


def named_columns(names: Sequence[str | int]) -> str:
    """Return names of columns, or their numbers, as a text; of many, the first six."""
    shown = ", ".join(map(repr, names[:_SHOWN]))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"column{'s' if len(names) > 1 else ''} {shown}{more}"
