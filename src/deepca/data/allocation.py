"""Allocate rows to agents: equally many to each, or by the values of a label column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca._util.units import plural
from deepca.data.sources import ArraySource, Block, Matrix, Source, block_rows, float_type
from deepca.errors import DataError

__all__ = ["by_label", "split_equally"]


class ConcatenatedSource(Source):
    """Source that reads several sources one after another."""

    def __init__(self, parts: Sequence[Source], name: str) -> None:
        first = parts[0]
        self._parts, self.name, self.columns, self.d = tuple(parts), name, first.columns, first.d
        self.is_sparse = all(part.is_sparse for part in parts)
        self.dtype = float_type(*(part.dtype for part in parts))
        self.n, self.first_index = sum(part.n or 0 for part in parts), first.first_index

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of all parts."""
        for part in self._parts:
            yield from part.blocks()

    def locate(self, row: int) -> tuple[str | None, int | None]:
        """Return the location of a row in the part that contains it."""
        for part in self._parts:
            if row < (part.n or 0):
                return part.locate(row)
            row -= part.n or 0
        return None, None


class RowSubset(Source):
    """Source of selected rows of an array, which are copied block by block."""

    def __init__(self, source: ArraySource, rows: npt.NDArray[np.int64], name: str) -> None:
        X = source.matrix()
        self._source, self._X, self._rows, self.name, self.columns = source, X, rows, name, source.columns
        self.file = source.file
        self.n, self.d, self.is_sparse = len(rows), int(X.shape[1]), not isinstance(X, np.ndarray)
        self.dtype = float_type(X.dtype)
        self.in_memory = not isinstance(X, np.memmap)
        if not isinstance(X, np.ndarray):
            self.entries = int(np.diff(X.indptr)[rows].sum())

    def blocks(self) -> Iterator[Block]:
        """Yield copies of the selected rows."""
        step = block_rows(self.d)
        for first in range(0, len(self._rows), step):
            yield self._X[self._rows[first : first + step]]

    def matrix(self) -> Matrix | None:
        """Return a copy of the selected rows if the array is in memory."""
        return self._X[self._rows] if self.in_memory else None

    def locate(self, row: int) -> tuple[str | None, int | None]:
        """Return the location of a row in the source it was selected from."""
        return self._source.locate(int(self._rows[row]))


def split_equally(sources: Sequence[ArraySource], m: int) -> tuple[Source, ...]:
    """Partition all rows, in their order, over m agents whose numbers of rows differ by at most one.

    All sources must have the same columns in the same order (:func:`deepca.data.columns.align_columns`). Raise
    DataError if there are fewer rows than agents.
    """
    ends = np.cumsum([0, *(source.n or 0 for source in sources)])
    n = int(ends[-1])
    if m < 1 or m > n:
        few = (
            f"there {'are' if n != 1 else 'is'} only {n} row{plural(n)}; use at most {n} agent{plural(n)}, one per row"
        )
        none = f"rows cannot be allocated to {m} agents; give at least one"
        raise DataError(few if m > 0 else none, parameter="agents", value=m)
    shares: list[Source] = []
    for j, (low, high) in enumerate(pairwise(n * i // m for i in range(m + 1))):
        pieces: list[Source] = []
        for source, (begin, end) in zip(sources, pairwise(ends), strict=True):
            first, last = max(low, int(begin)) - int(begin), min(high, int(end)) - int(begin)
            if first < last:
                name = f"agent {j} ({source.name} from row {first})"
                rows = source.matrix()[first:last]
                pieces.append(
                    ArraySource(
                        rows,
                        name,
                        source.columns,
                        first_index=source.first_index,
                        agent=j,
                        origin=source,
                        first_row=first,
                    )
                )
        shares.append(_as_one(f"agent {j}", j, pieces))
    return tuple(shares)


def by_label(sources: Sequence[ArraySource]) -> tuple[Source, ...]:
    """Allocate rows by label, one agent for each value of the label column, in ascending order of the values.

    All sources must have the same columns in the same order. Raise DataError if a source has no label column, or a
    row no label.
    """
    columns = [_labels(source) for source in sources]
    if len({labels.dtype.kind for labels in columns}) > 1 or any(labels.dtype.kind == "O" for labels in columns):
        # compare as text, since one file may contain numbers and another text
        columns = [labels.astype(str) for labels in columns]
    values = np.unique(np.concatenate(columns))
    shares: list[Source] = []
    for j, value in enumerate(values):
        pieces: list[Source] = []
        for source, labels in zip(sources, columns, strict=True):
            rows = np.flatnonzero(labels == value)
            if rows.size:
                pieces.append(RowSubset(source, rows, f"agent {value} ({source.name})"))
        shares.append(_as_one(f"agent {value}", j, pieces))
    return tuple(shares)


def _as_one(name: str, agent: int, pieces: Sequence[Source]) -> Source:
    """Combine the pieces of one agent into one source, whose name says where its rows come from."""
    whole = pieces[0]
    if len(pieces) > 1:
        places = ", then ".join(piece.name.split("(", 1)[-1].rstrip(")") for piece in pieces)
        whole = ConcatenatedSource(pieces, f"{name} (rows of {places})")
    whole.agent = agent
    return whole


def _labels(source: Source) -> npt.NDArray[Any]:
    """Return the labels of a source; raise DataError unless every row has one."""
    labels = source.labels()
    if labels is None:
        raise DataError(f"{source.name} has no label column; select one with label_column", file=source.file)
    missing = np.array([value is None or value == "" or value != value for value in labels], dtype=bool)
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        file, line = source.locate(row)
        where = source.name if line is None else f"{source.name}, line {line}"
        raise DataError(
            f"{where}: row {row} has no label, so its agent is unknown; fill in its label",
            file=file,
            line=line,
            row=row,
        )
    return labels
