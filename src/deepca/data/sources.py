"""Sources of rows: one interface to arrays, tables, iterators and files.

A :class:`Source` provides the rows of one agent or one file. It is read block by block, as often as needed, so files
larger than memory need no special treatment. Files are opened by :mod:`deepca.data.readers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
    "as_source",
    "at_agent",
    "block_rows",
    "check_matrix",
    "dense",
    "float_type",
    "no_rows_error",
    "numeric",
    "stored_parts",
]

Block = npt.NDArray[Any] | Csr
"""Consecutive rows, ``(rows, d)``: dense or CSR, float32 or float64."""
Matrix = Block
"""All rows of a source at once, in the same formats; a dense matrix may be memory-mapped."""
BLOCK_BYTES = 4 << 20  # large enough for fast products, small enough to read many sources at once


class Source(ABC):
    """Rows of one agent or one file, which can be read block by block.

    Attributes
    ----------
    name : str
        Name to show in messages: a path, or ``"agent 3"``.
    columns : tuple of str or None
        Column names, if there are any.
    d : int
        Number of columns.
    n : int or None
        Number of rows; None if it is unknown before reading.
    dtype : numpy.dtype
        Type of the values, float32 or float64.
    is_sparse : bool
        Whether blocks are sparse (CSR).
    single_pass : bool
        Whether the rows can be read only once.
    in_memory : bool
        Whether all rows are in memory already.
    entries : int or None
        Number of stored values, if it is less than ``n · d``.
    first_index : int or None
        Index of the first column in svmlight files, 0 or 1; None for other formats.
    file : str or None
        The file that the rows come from, as the caller named it.
    agent : int or None
        Index of the agent that holds the rows, if known.
    """

    name: str
    columns: tuple[str, ...] | None
    d: int
    n: int | None
    dtype: np.dtype[Any]
    is_sparse: bool
    single_pass: bool = False
    in_memory: bool = False
    entries: int | None = None
    first_index: int | None = None
    file: str | None = None
    agent: int | None = None
    _labels: npt.NDArray[Any] | None = None

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield all rows in order, a few megabytes at a time.

        Every call starts a new pass. Values are not checked.
        """

    def matrix(self) -> Matrix | None:
        """Return all rows as one (perhaps memory-mapped) array if that costs nothing, else None."""
        return None

    def labels(self) -> npt.NDArray[Any] | None:
        """Return one label per row, from the column selected as ``label_column``; None if none was selected."""
        return self._labels

    def locate(self, row: int) -> tuple[str | None, int | None]:
        """Return the file and the line, counted from 1, on which a row begins; each is None if unknown."""
        return self.file, None

    def __repr__(self) -> str:
        """Show class, name and shape."""
        rows = "?" if self.n is None else f"{self.n:,}"
        return f"{type(self).__name__}({self.name}: {rows} × {self.d})"


class ArraySource(Source):
    """Rows of an array: dense, memory-mapped or CSR.

    Parameters
    ----------
    X : ndarray or csr_array
        The rows, float32 or float64. Duplicate entries of a CSR array are summed in a copy.
    name : str
        Name used in messages.
    columns : tuple of str, optional
        Column names.
    labels : ndarray, optional
        One label per row.
    first_index : int, optional
        See :class:`Source`.
    agent : int, optional
        Index of the agent that holds the rows.
    origin : Source, optional
        The source that the rows were copied from; it locates them in their file.
    first_row : int, default=0
        Index of the first row within ``origin``.
    """

    def __init__(
        self,
        X: Matrix,
        name: str,
        columns: tuple[str, ...] | None = None,
        labels: npt.NDArray[Any] | None = None,
        first_index: int | None = None,
        *,
        agent: int | None = None,
        origin: Source | None = None,
        first_row: int = 0,
    ) -> None:
        if not isinstance(X, np.ndarray) and not X.has_canonical_format:
            X = X.copy()  # sum_duplicates works in place, and the arrays are the caller's
            X.sum_duplicates()
        self._X, self.name, self.columns, self._labels = X, name, columns, labels
        self.n, self.d = int(X.shape[0]), int(X.shape[1])
        self.is_sparse = not isinstance(X, np.ndarray)
        self.dtype, self.first_index = float_type(X.dtype), first_index
        self.in_memory = not isinstance(X, np.memmap)
        self.entries = None if isinstance(X, np.ndarray) else int(X.nnz)
        self.agent, self.file = agent, None if origin is None else origin.file
        self._origin, self._first_row = origin, first_row

    def blocks(self) -> Iterator[Block]:
        """Yield slices of the array."""
        step = block_rows(self.d)
        for first in range(0, self._X.shape[0], step):
            yield self._X[first : first + step]

    def matrix(self) -> Matrix:
        """Return the array itself."""
        return self._X

    def locate(self, row: int) -> tuple[str | None, int | None]:
        """Return the location of a row in the source it was copied from."""
        return super().locate(row) if self._origin is None else self._origin.locate(self._first_row + row)


class IteratorSource(Source):
    """Rows that the caller supplies block by block.

    Parameters
    ----------
    iterator : iterator or callable
        An iterator of blocks, which can be read only once, or a function that returns a new iterator for every pass.
    name : str
        Name to show in messages.

    Raises
    ------
    DataError
        If no block has rows, or the first block that has rows cannot be used.

    Notes
    -----
    The first block that has rows determines the column names, and whether blocks are dense or sparse.
    """

    n = None

    def __init__(self, iterator: Callable[[], Iterable[Any]] | Iterator[Any], name: str) -> None:
        self._iterator, self.name = iterator, name
        self.single_pass = not callable(iterator)
        self._rest: Iterator[Any] | None = iter(iterator()) if callable(iterator) else iter(iterator)
        self._first = next((block for block in self._rest if _rows_of(block) != 0), None)
        if self._first is None:
            raise DataError(f"{name} has no rows: its iterator yields none; omit the agent, or provide rows")
        self._head = as_source(self._first, name)
        head = self._head
        self.columns, self.d, self.dtype, self.is_sparse = head.columns, head.d, head.dtype, head.is_sparse
        if not self.single_pass:
            self._first = self._rest = None

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks, with their columns in the order of those of the first block."""
        from deepca.data.columns import in_order_of

        for number, block in enumerate(self._start_pass()):
            if _rows_of(block) == 0:
                continue
            part = as_source(block, f"{self.name}, block {number}")
            if part.d != self.d and part.columns is None:
                raise DataError(
                    f"{self.name}: block {number} has {part.d} columns, the first block has {self.d}; "
                    "give all blocks the same columns",
                    value=part.d,
                )
            if part.dtype != np.float32:
                self.dtype = np.dtype(np.float64)
            for rows in in_order_of(self._head, part).blocks():
                yield self._in_format(rows)

    def _start_pass(self) -> Iterator[Any]:
        if callable(self._iterator):
            return iter(self._iterator())
        if self._rest is None:
            raise DataError(f"{self.name}: its iterator is exhausted; pass a function that returns a new iterator")
        blocks = chain([self._first], self._rest)
        self._first = self._rest = None
        return blocks

    def _in_format(self, rows: Block) -> Block:
        """Return the rows in the format of the first block, dense or sparse."""
        if self.is_sparse:
            return cast("Csr", sparse.csr_array(cast("Any", rows)))
        return dense(rows)


@contextmanager
def at_agent(agent: int | None) -> Iterator[None]:
    """Set ``agent`` on a DataError raised in the ``with`` block, unless the error has an agent already."""
    try:
        yield
    except DataError as error:
        if error.agent is None:
            error.agent = agent
        raise


def as_source(X: Any, name: str, *, agent: int | None = None) -> Source:
    """Wrap any object that contains rows in a source.

    Parameters
    ----------
    X : Source, array, sparse matrix, data frame, iterator, callable, str or path
        The rows. The suffix of a path determines the file format; a callable returns an iterator of blocks.
    name : str
        Name to show in messages; a source keeps its name, and a file has its path as its name.
    agent : int, optional
        Index of the agent that holds the rows.

    Returns
    -------
    Source
        A new source, or X itself if it is a source; its ``agent`` is set if one is given.

    Raises
    ------
    DataError
        If X does not contain rows of real numbers, or is a file that cannot be used.
    """
    with at_agent(agent):
        source = _as_source(X, name)
    if agent is not None:
        source.agent = agent
    return source


def _as_source(X: Any, name: str) -> Source:
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
    """Convert X to a dense or CSR matrix of float32 or float64, without copying X if it is such a matrix already."""
    if sparse.issparse(X):
        kind = np.dtype(getattr(X, "dtype", None))
        check_matrix(cast("Any", X).shape, kind, name)
        return cast("Csr", sparse.csr_array(cast("Any", X), dtype=float_type(kind)))
    values: npt.NDArray[Any] = np.asanyarray(unmasked(X, name))
    if values.dtype == object:
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            raise _non_number_error(values, columns, name) from None
    check_matrix(values.shape, values.dtype, name)
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float64)


def float_type(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """Return float32 if all types are float32, else float64."""
    return np.dtype(np.float32 if all(dtype == np.float32 for dtype in dtypes) else np.float64)


def dense(block: Block) -> npt.NDArray[Any]:
    """Return a block as a dense array; a dense block is not copied."""
    return block if isinstance(block, np.ndarray) else block.toarray()


def stored_parts(block: Block) -> tuple[npt.NDArray[Any], ...]:
    """Return the arrays that store a block."""
    return (block,) if isinstance(block, np.ndarray) else (block.indptr, block.indices, block.data)


def block_rows(d: int) -> int:
    """Return the number of rows of d float64 values that fit into `BLOCK_BYTES`, at least one."""
    return max(1, BLOCK_BYTES // (8 * max(d, 1)))


def _from_table(table: Any, name: str) -> ArraySource:
    """Return a source for the rows of a pandas, polars or Arrow table."""
    names = list(table.column_names if hasattr(table, "column_names") else table.columns)
    columns = tuple(names) if all(isinstance(column, str) for column in names) else None  # as in scikit-learn
    if hasattr(table, "to_numpy"):
        values = table.to_numpy()
    else:
        values = np.stack([np.asarray(column) for column in table.columns], axis=1)
    return ArraySource(numeric(values, name, columns), name, columns)


def _rows_of(block: Any) -> int | None:
    """Return the number of rows of a block, or None if it has no shape."""
    shape = getattr(block, "shape", None)
    return int(shape[0]) if shape else None


def check_matrix(shape: Sequence[int], kind: np.dtype[Any], name: str, holder: str = "the agent") -> None:
    """Raise DataError unless an array of this shape and type consists of rows of real numbers.

    ``name`` is the name of the array in messages, ``holder`` what to advise omitting, as in :func:`no_rows_error`.
    """
    if kind.kind not in "fiub":
        raise DataError(f"{name} has dtype {kind}; give real numbers", value=kind)
    if len(shape) != 2:
        raise DataError(f"{name} has shape {tuple(shape)}; give a matrix, (rows, columns)", value=tuple(shape))
    if shape[0] == 0:
        raise no_rows_error(name, holder)
    if shape[1] == 0:
        raise DataError(f"{name} has no columns; provide at least one", value=tuple(shape))


def no_rows_error(name: str, holder: str = "it", *, file: str | None = None) -> DataError:
    """Return the error for a source without rows; the message advises omitting ``holder``, "it" or "the agent"."""
    return DataError(f"{name} has no rows; omit {holder}, or provide rows", file=file)


def _non_number_error(values: npt.NDArray[Any], columns: tuple[str, ...] | None, name: str) -> DataError:
    """Return the error for the first entry that is not a number."""
    for place, value in np.ndenumerate(values):
        try:
            float(value)
        except (TypeError, ValueError):
            if len(place) != 2:
                where, advice = f"{name}: entry {place} is", "give numbers only"
                return DataError(
                    f"{where} {value!r}; {advice}", redacted=f"{where} not a number; {advice}", value=value
                )
            return DataError.at_entry(
                name,
                f"{value!r} is not a number",
                "give numbers only",
                redacted="not a number",
                row=place[0],
                column=place[1] if columns is None else columns[place[1]],
                value=value,
            )
    return DataError(f"{name}: not all entries are numbers; give numbers only")
