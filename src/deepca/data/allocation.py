"""Who holds which rows, where files do not say it by themselves: one file over many agents, or by a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca.data.sources import ArraySource, Block, Matrix, Source, block_rows, float_type
from deepca.errors import DataError

__all__ = ["by_label", "in_equal_shares"]


class Pieces(Source):
    """Several sources, one after the other, as one."""

    def __init__(self, parts: Sequence[Source], name: str) -> None:
        first = parts[0]
        self._parts, self.name, self.columns, self.d = tuple(parts), name, first.columns, first.d
        self.is_sparse = all(part.is_sparse for part in parts)
        self.dtype = float_type(*(part.dtype for part in parts))
        self.n, self.first_index = sum(part.n or 0 for part in parts), first.first_index

    def blocks(self) -> Iterator[Block]:
        for part in self._parts:
            yield from part.blocks()


class Picked(Source):
    """Some rows of an array, by their numbers, without copying them all at once."""

    def __init__(self, X: Matrix, rows: npt.NDArray[np.int64], name: str, columns: tuple[str, ...] | None) -> None:
        self._X, self._rows, self.name, self.columns = X, rows, name, columns
        self.n, self.d, self.is_sparse = len(rows), int(X.shape[1]), not isinstance(X, np.ndarray)
        self.dtype = float_type(X.dtype)
        self.kept = not isinstance(X, np.memmap)
        if not isinstance(X, np.ndarray):
            self.entries = int(np.diff(X.indptr)[rows].sum())

    def blocks(self) -> Iterator[Block]:
        step = block_rows(self.d)
        for first in range(0, len(self._rows), step):
            yield self._X[self._rows[first : first + step]]

    def matrix(self) -> Matrix | None:
        return self._X[self._rows] if self.kept else None


def in_equal_shares(sources: Sequence[ArraySource], m: int) -> tuple[Source, ...]:
    """All rows in their order, dealt to m agents in blocks that differ by at most one row.

    Columns must be the same and in the same order in all sources (:func:`deepca.data.columns.common_columns`).
    """
    ends = np.cumsum([0, *(source.n or 0 for source in sources)])
    n = int(ends[-1])
    if m < 1 or m > n:
        raise DataError(f"{n} rows cannot be spread over {m} agents: every agent needs at least one row")
    shares: list[Source] = []
    for j, (low, high) in enumerate(pairwise(n * i // m for i in range(m + 1))):
        pieces: list[Source] = []
        for source, (begin, end) in zip(sources, pairwise(ends), strict=True):
            first, last = max(low, int(begin)) - int(begin), min(high, int(end)) - int(begin)
            if first < last:
                name = f"agent {j} ({source.name} from row {first})"
                rows = source.matrix()[first:last]
                pieces.append(ArraySource(rows, name, source.columns, first_index=source.first_index))
        shares.append(_joined(f"agent {j}", pieces))
    return tuple(shares)


def by_label(sources: Sequence[ArraySource]) -> tuple[Source, ...]:
    """One agent for each value of the column set apart as label, by rising value."""
    columns = [_labels(source) for source in sources]
    if len({labels.dtype.kind for labels in columns}) > 1 or any(labels.dtype.kind == "O" for labels in columns):
        columns = [labels.astype(str) for labels in columns]  # numbers here and text there are compared as written
    holders = np.unique(np.concatenate(columns))
    shares: list[Source] = []
    for holder in holders:
        pieces: list[Source] = []
        for source, labels in zip(sources, columns, strict=True):
            rows = np.flatnonzero(labels == holder)
            if rows.size:
                pieces.append(Picked(source.matrix(), rows, f"agent {holder} ({source.name})", source.columns))
        shares.append(_joined(f"agent {holder}", pieces))
    return tuple(shares)


def _joined(name: str, pieces: Sequence[Source]) -> Source:
    """Return one source of all that an agent holds; its name tells where that comes from."""
    if len(pieces) == 1:
        return pieces[0]
    places = ", then ".join(piece.name.split("(", 1)[-1].rstrip(")") for piece in pieces)
    return Pieces(pieces, f"{name} (rows of {places})")


def _labels(source: Source) -> npt.NDArray[Any]:
    labels = source.labels()
    if labels is None:
        raise DataError(f"{source.name}: no column of it says who holds a row")
    missing = np.array([value is None or value == "" or value != value for value in labels], dtype=bool)
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise DataError(f"{source.name}: row {row} does not say which agent holds it; fill the column in")
    return labels
