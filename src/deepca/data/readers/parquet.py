"""Read Parquet files with Arrow, batch by batch: one page per column is in memory, however large the row groups are.

Columns that pandas stored as the index of a data frame are excluded unless they are requested by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca.data.readers._common import NUMBERS_REQUIRED, Options, Selection, import_extra, reading, select_columns
from deepca.data.readers._tables import TableSource, as_numpy
from deepca.data.sources import block_rows, no_rows_error
from deepca.errors import DataError

__all__ = ["open_parquet"]

_PARQUET = "Parquet"
_MAX_VALUE_SHOWN = 40  # number of characters of a value to show in messages


def open_parquet(path: Path, name: str, options: Options) -> TableSource:
    """Open a Parquet file; raise DataError unless all value columns are numeric."""
    arrow = import_extra("pyarrow", "reading Parquet")
    with reading(name, _PARQUET), _opened(path) as file:
        schema, n = file.schema_arrow, int(file.metadata.num_rows)
        selection = select_columns(list(schema.names), name, options, hidden=_index_columns(schema))
        if n == 0:
            raise no_rows_error(name, file=name)
        kinds = {column: _value_type(schema.field(column).type) for column in selection.values}
        for column, kind in kinds.items():
            if not _is_number(arrow, kind):
                raise _not_numeric_error(name, file, column, kind)
    narrow = all(kind == arrow.float32() for kind in kinds.values())
    return _ParquetSource(path, name, selection, np.dtype(np.float32 if narrow else np.float64), n)


class _ParquetSource(TableSource):
    """Columns of a Parquet file."""

    def __init__(self, path: Path, name: str, selection: Selection, dtype: np.dtype[Any], n: int) -> None:
        super().__init__(name, selection, dtype, n)
        self._path = path

    def _batches(self, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        rows = 0
        with reading(self.name, _PARQUET), _opened(self._path) as file:
            for batch in file.iter_batches(block_rows(len(names)), columns=list(names), use_threads=False):
                rows += batch.num_rows
                if batch.num_rows:
                    yield [_plain(batch.column(name)) for name in names]
        if rows != self.n:
            raise DataError(
                f"{self.name} has {rows:,} rows instead of {self.n:,}: it is damaged or has changed; open it again",
                file=self.name,
                value=rows,
            )

    def _join_labels(self, parts: list[Any]) -> npt.NDArray[Any]:
        return as_numpy(import_extra("pyarrow", "reading Parquet").chunked_array(parts))


def _opened(path: Path) -> Any:
    # memory-mapped, so that a large row group is never loaded as a whole
    return import_extra("pyarrow.parquet", "reading Parquet").ParquetFile(str(path), memory_map=True)


def _index_columns(schema: Any) -> list[str]:
    """Return the columns that pandas stored as the index."""
    known = schema.pandas_metadata or {}
    return [column for column in known.get("index_columns", ()) if isinstance(column, str)]


def _value_type(kind: Any) -> Any:
    """Return the type of a column's values, whether or not they are dictionary-encoded."""
    return getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind


def _plain(column: Any) -> Any:
    kind = _value_type(column.type)
    return column if kind == column.type else column.cast(kind)


def _is_number(arrow: Any, kind: Any) -> bool:
    is_a = arrow.types
    tests = (is_a.is_integer, is_a.is_floating, is_a.is_boolean, is_a.is_decimal, is_a.is_null)
    return any(test(kind) for test in tests)


def _not_numeric_error(name: str, file: Any, column: str, kind: Any) -> DataError:
    """Return the error for a column that is not numeric; the message contains the first value."""
    rows = 0
    for batch in file.iter_batches(1 << 12, columns=[column]):
        for row, value in enumerate(batch.column(0)):
            if value.is_valid:
                shown = str(value)[:_MAX_VALUE_SHOWN]
                return DataError.at_entry(
                    name,
                    f"{shown!r} is not a number (the column has type {kind})",
                    NUMBERS_REQUIRED,
                    redacted=f"not a number (the column has type {kind})",
                    file=name,
                    row=rows + row,
                    column=column,
                    value=shown,
                )
        rows += batch.num_rows
    return DataError(f"{name}: column {column!r} has type {kind}; {NUMBERS_REQUIRED}", file=name, column=column)
