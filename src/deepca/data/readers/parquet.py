"""Parquet, read by Arrow batch by batch: a page of every column is in memory, however large a row group is.

Columns that pandas stored as the index of a frame are no values, unless they are asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca.data.readers._common import SET_APART, Choice, Options, choose, extra, reading
from deepca.data.readers._tables import TableSource, as_numpy
from deepca.data.sources import block_rows, without_rows
from deepca.errors import DataError

__all__ = ["open_parquet"]

_PARQUET = "Parquet"


def open_parquet(path: Path, name: str, options: Options) -> TableSource:
    arrow = extra("pyarrow", "reading Parquet")
    with reading(name, _PARQUET), _opened(path) as file:
        schema, n = file.schema_arrow, int(file.metadata.num_rows)
        choice = choose(list(schema.names), name, options, hidden=_index_columns(schema))
        if n == 0:
            raise without_rows(name)
        kinds = {column: _value_kind(schema.field(column).type) for column in choice.values}
        for column, kind in kinds.items():
            if not _is_number(arrow, kind):
                raise _no_numbers(name, file, column, kind)
    narrow = all(kind == arrow.float32() for kind in kinds.values())
    return _ParquetSource(path, name, choice, np.dtype(np.float32 if narrow else np.float64), n)


class _ParquetSource(TableSource):
    def __init__(self, path: Path, name: str, choice: Choice, dtype: np.dtype[Any], n: int) -> None:
        super().__init__(name, choice, dtype, n)
        self._path = path

    def _batches(self, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        rows = 0
        with reading(self.name, _PARQUET), _opened(self._path) as file:
            for batch in file.iter_batches(block_rows(len(names)), columns=list(names), use_threads=False):
                rows += batch.num_rows
                if batch.num_rows:
                    yield [_plain(batch.column(name)) for name in names]
        if rows != self.n:
            raise DataError(f"{self.name} has {rows:,} rows instead of {self.n:,}; it is damaged, or was changed")

    def _joined(self, parts: list[Any]) -> npt.NDArray[Any]:
        return as_numpy(extra("pyarrow", "reading Parquet").chunked_array(parts))


def _opened(path: Path) -> Any:
    # mapped, so that a row group is not in memory as a whole, however large it is
    return extra("pyarrow.parquet", "reading Parquet").ParquetFile(str(path), memory_map=True)


def _index_columns(schema: Any) -> list[str]:
    known = schema.pandas_metadata or {}
    return [column for column in known.get("index_columns", ()) if isinstance(column, str)]


def _value_kind(kind: Any) -> Any:
    """What is in a column; a dictionary is a way of storing it."""
    return getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind


def _plain(column: Any) -> Any:
    kind = _value_kind(column.type)
    return column if kind == column.type else column.cast(kind)


def _is_number(arrow: Any, kind: Any) -> bool:
    is_a = arrow.types
    tests = (is_a.is_integer, is_a.is_floating, is_a.is_boolean, is_a.is_decimal, is_a.is_null)
    return any(test(kind) for test in tests)


def _no_numbers(name: str, file: Any, column: str, kind: Any) -> DataError:
    """Names the first value of the column."""
    rows = 0
    for batch in file.iter_batches(1 << 12, columns=[column]):
        for row, value in enumerate(batch.column(0)):
            if value.is_valid:
                shown, holds = str(value)[:40], f"the column holds {kind}"
                return DataError.at_entry(name, rows + row, column, shown, SET_APART, kind=holds)
        rows += batch.num_rows
    return DataError(f"{name}: column {column!r} holds {kind}; numbers are needed (or set it apart as the label)")
