"""Where rows come from: one contract, blocks of rows, for arrays, tables, iterators and files.

A :class:`Source` is what one agent (or one file) holds. It can be read as often as needed, block by block, so that a
file larger than memory is no special case. Files are opened by :mod:`deepca.data.readers`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.masked import unmasked
from deepca._util.typing import Csr
from deepca.errors import DataError

__all__ = [
    "ArraySource",
    "Block",
    "IteratorSource",
    "Matrix",
    "Source",
    "add_rows",
    "as_source",
    "block_rows",
    "check_matrix",
    "dense",
    "float_type",
    "numeric",
    "stored_parts",
    "without_rows",
]

Block = npt.NDArray[Any] | Csr
"""Some rows, ``(rows, d)``: dense or CSR, float32 or float64."""
Matrix = Block
"""All rows of a source at once, of the same kinds; dense ones may be memory-mapped."""
BLOCK_BYTES = 4 << 20


class Source(ABC):
    """Rows of one holder.

    Attributes
    ----------
    name : as messages name it: a path, ``"agent 3"``.
    columns : names of the columns, where there are any.
    d : number of columns.
    n : number of rows; None where only reading would tell.
    dtype : float32 or float64, what the values are given as.
    is_sparse : whether blocks are CSR.
    once : whether the rows can be read a single time only.
    kept : whether all rows are in memory already.
    entries : how many values are stored, where fewer than ``n · d``.
    first_index : from which number a format without names counts its columns, where that is open (svmlight).
    """

    name: str
    columns: tuple[str, ...] | None
    d: int
    n: int | None
    dtype: np.dtype[Any]
    is_sparse: bool
    once: bool = False
    kept: bool = False
    entries: int | None = None
    first_index: int | None = None
    _labels: npt.NDArray[Any] | None = None

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """All rows from the first on, some megabytes at a time; a new pass with every call. Values are not checked."""

    def matrix(self) -> Matrix | None:
        """All rows as one (perhaps memory-mapped) array, where that costs nothing; else None."""
        return None

    def labels(self) -> npt.NDArray[Any] | None:
        """The column set apart when the source was opened (``label_column``), one entry per row; else None."""
        return self._labels

    def __repr__(self) -> str:
        rows = "?" if self.n is None else f"{self.n:,}"
        return f"{type(self).__name__}({self.name}: {rows} × {self.d})"


class ArraySource(Source):
    """Rows that are an array already: dense, memory-mapped or CSR."""

    def __init__(
        self,
        X: Matrix,
        name: str,
        columns: tuple[str, ...] | None = None,
        labels: npt.NDArray[Any] | None = None,
        first_index: int | None = None,
    ) -> None:
        if not isinstance(X, np.ndarray) and not X.has_canonical_format:
            X = X.copy()  # entries given in parts are summed, but not in the caller's arrays
            X.sum_duplicates()
        self._X, self.name, self.columns, self._labels = X, name, columns, labels
        self.n, self.d = int(X.shape[0]), int(X.shape[1])
        self.is_sparse = not isinstance(X, np.ndarray)
        self.dtype, self.first_index = float_type(X.dtype), first_index
        self.kept = not isinstance(X, np.memmap)
        self.entries = None if isinstance(X, np.ndarray) else int(X.nnz)

    def blocks(self) -> Iterator[Block]:
        step = block_rows(self.d)
        for first in range(0, self._X.shape[0], step):
            yield self._X[first : first + step]

    def matrix(self) -> Matrix:
        return self._X


class IteratorSource(Source):
    """Rows that somebody else delivers block by block: a function that begins anew, or an iterator to be read once.

    Names of columns, and whether blocks are dense or sparse, follow the first block that has rows.
    """

    n = None

    def __init__(self, give: Callable[[], Iterable[Any]] | Iterator[Any], name: str) -> None:
        self._give, self.name = give, name
        self.once = not callable(give)
        self._rest: Iterator[Any] | None = iter(give()) if callable(give) else iter(give)
        self._first = next((block for block in self._rest if _rows_of(block) != 0), None)
        if self._first is None:
            raise DataError(f"{name} has no rows: its iterator of blocks is empty; leave the agent out or give it data")
        self._head = as_source(self._first, name)
        head = self._head
        self.columns, self.d, self.dtype, self.is_sparse = head.columns, head.d, head.dtype, head.is_sparse
        if not self.once:
            self._first = self._rest = None

    def blocks(self) -> Iterator[Block]:
        from deepca.data.columns import in_order_of

        for number, block in enumerate(self._begun()):
            if _rows_of(block) == 0:
                continue
            part = as_source(block, f"{self.name}, block {number}")
            if part.d != self.d and part.columns is None:
                raise DataError(
                    f"{self.name}: block {number} has {part.d} columns, the first one has {self.d}; all need the same"
                )
            if part.dtype != np.float32:
                self.dtype = np.dtype(np.float64)
            for rows in in_order_of(self._head, part).blocks():
                yield self._alike(rows)

    def _begun(self) -> Iterator[Any]:
        if callable(self._give):
            return iter(self._give())
        if self._rest is None:
            raise DataError(f"{self.name}: its iterator has been read; give a function that returns a new one")
        given = chain([self._first], self._rest)
        self._first = self._rest = None
        return given

    def _alike(self, rows: Block) -> Block:
        """Dense or sparse, as the first block."""
        if self.is_sparse:
            return cast("Csr", sparse.csr_array(cast("Any", rows)))
        return dense(rows)


def as_source(X: Any, name: str) -> Source:
    """A Source from whatever holds rows: a Source, array, sparse matrix, data frame, iterator, function, or path."""
    if isinstance(X, Source):
        return X
    if isinstance(X, str) or hasattr(X, "__fspath__"):
        from deepca.data.readers import open_source

        return open_source(str(X))
    if sparse.issparse(X):
        return ArraySource(numeric(X, name), name)
    if hasattr(X, "columns") or hasattr(X, "column_names"):
        return _from_table(X, name)
    if callable(X) or hasattr(X, "__next__"):
        return IteratorSource(X, name)
    return ArraySource(numeric(X, name), name)


def numeric(X: Any, name: str, columns: tuple[str, ...] | None = None) -> Matrix:
    """X as a two-dimensional array of float32 or float64, or a float64 CSR array; not copied where it is one."""
    if sparse.issparse(X):
        kind = np.dtype(getattr(X, "dtype", None))
        check_matrix(cast("Any", X).shape, kind, name)
        return cast("Csr", sparse.csr_array(cast("Any", X), dtype=float_type(kind)))
    given: npt.NDArray[Any] = np.asanyarray(unmasked(X, name))
    if given.dtype == object:
        try:
            given = given.astype(np.float64)
        except (TypeError, ValueError):
            raise _no_number(given, columns, name) from None
    check_matrix(given.shape, given.dtype, name)
    return given if given.dtype in (np.float32, np.float64) else given.astype(np.float64)


def float_type(*given: np.dtype[Any]) -> np.dtype[Any]:
    """Return float32 where all of these are, else float64."""
    return np.dtype(np.float32 if all(kind == np.float32 for kind in given) else np.float64)


def dense(block: Block) -> npt.NDArray[Any]:
    """Return the rows of a block as an array; not copied where they are one."""
    return block if isinstance(block, np.ndarray) else block.toarray()


def stored_parts(block: Block) -> tuple[npt.NDArray[Any], ...]:
    """Return the arrays that a block is stored in."""
    return (block,) if isinstance(block, np.ndarray) else (block.indptr, block.indices, block.data)


def block_rows(d: int) -> int:
    """Rows of a block, so that it takes some megabytes."""
    return max(1, BLOCK_BYTES // (8 * max(d, 1)))


def _from_table(table: Any, name: str) -> ArraySource:
    """pandas, polars or Arrow: columns with names."""
    names = list(table.column_names if hasattr(table, "column_names") else table.columns)
    columns = tuple(names) if all(isinstance(column, str) for column in names) else None  # numbers are no names
    if hasattr(table, "to_numpy"):
        values = table.to_numpy()
    else:
        values = np.stack([np.asarray(column) for column in table.columns], axis=1)
    return ArraySource(numeric(values, name, columns), name, columns)


def _rows_of(block: Any) -> int | None:
    """How many rows a block has, where it tells; 0 for an empty one."""
    shape = getattr(block, "shape", None)
    return int(shape[0]) if shape else None


def check_matrix(shape: Sequence[int], kind: np.dtype[Any], name: str, holder: str = "the agent") -> None:
    """Raise DataError unless an array of this shape and type holds rows of real numbers. holder : as without_rows."""
    if kind.kind not in "fiub":
        raise DataError(f"{name}: rows have dtype {kind}; real numbers are needed")
    if len(shape) != 2:
        raise DataError(f"{name}: rows have shape {tuple(shape)}; expected (rows, columns)")
    if shape[0] == 0:
        raise without_rows(name, holder)
    if shape[1] == 0:
        raise DataError(f"{name} has no columns")


def without_rows(name: str, holder: str = "it") -> DataError:
    """Return the error of a source that is empty. holder : who may be left out, "it" or "the agent"."""
    return DataError(f"{name} has no rows; leave {holder} out or give it data")


def _no_number(values: npt.NDArray[Any], columns: tuple[str, ...] | None, name: str) -> DataError:
    """Name the first entry that is none."""
    for place, value in np.ndenumerate(values):
        try:
            float(value)
        except (TypeError, ValueError):
            if len(place) != 2:
                where = f"{name}: entry {place} is"
                return DataError(
                    f"{where} {value!r}; numbers are needed", discreet=f"{where} not a number", value=value
                )
            row, column = place[0], place[1] if columns is None else columns[place[1]]
            return DataError.at_entry(name, row, column, value, "numbers are needed")
    return DataError(f"{name}: not all entries are numbers; numbers are needed")


def add_rows(digest: hashlib._Hash, source: Source) -> None:
    """All numbers of a source, block by block, to a digest."""
    for block in source.blocks():
        for part in stored_parts(block):
            digest.update(np.ascontiguousarray(part).data)
