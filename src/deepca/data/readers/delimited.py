"""Read CSV and similar text with Arrow, in blocks of about a megabyte; .gz and .bz2 are decompressed on the fly.

- The first line contains the column names, unless all of its cells are numbers or empty: then the line is a row, and
  the columns have no names. A first line 0, 1, 2, … counts as names: data frames without names are written like that.
- The delimiter is a tab in .tsv files. In other files it is a comma or, if the first line contains none, a semicolon, a
  tab or (in .txt files) a space.
- Empty cells and the usual codes for missing values (NA, nan, null, …) become NaN; empty lines are skipped.
- Labels are text, unless all of them are ordinary numbers.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca.data.readers._common import (
    NUMBERS_REQUIRED,
    Options,
    Selection,
    damaged_file_error,
    import_extra,
    open_decompressed,
    reading,
    select_columns,
)
from deepca.data.readers._tables import TableSource, as_numpy
from deepca.data.sources import no_rows_error
from deepca.errors import DataError

__all__ = ["first_line", "open_delimited"]

_CSV = "CSV"
_MAX_LINE_BYTES = 64 << 20  # a longer first line means that the file is not text
# a block contains ROWS_PER_BLOCK rows, or more if that is less than MIN_BLOCK_BYTES of text, up to MAX_BLOCK_BYTES
ROWS_PER_BLOCK, MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 256, 1 << 20, 32 << 20
_MAX_CELL_BYTES = 26  # length of the longest float64 in text, with its delimiter
_MAX_VALUE_SHOWN = 40  # number of characters of a cell to show in messages
_CONVERSION = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to [^:]*: invalid value '(.*)'", re.S)
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_LINE_END = re.compile("[\r\n]")
_LEADING_ZERO = re.compile(r"\s*[+-]?0\d")


@dataclass(frozen=True)
class _Dialect:
    """Format of a CSV file; ``names`` are the column names as Arrow reads them, including spaces."""

    delimiter: str
    has_header: bool
    block_size: int
    names: tuple[str, ...]


def open_delimited(path: Path, name: str, options: Options) -> TableSource:
    """Open a CSV file and read its first block to check the file."""
    arrow, arrow_csv = import_extra("pyarrow", "reading CSV"), import_extra("pyarrow.csv", "reading CSV")
    with reading(name, _CSV):
        line = first_line(path, name)
        delimiter = _delimiter(line, path)
        cells = next(csv.reader([line], delimiter=delimiter))
        has_header = _is_header(cells)
        row = max(len(line), _MAX_CELL_BYTES * len(cells))
        size = min(max(ROWS_PER_BLOCK * row, MIN_BLOCK_BYTES), max(2 * row, MAX_BLOCK_BYTES))
        dialect = _Dialect(delimiter, has_header, size, ())
        try:
            names = tuple(_open_reader(arrow_csv, path, dialect).schema.names)
        except arrow.ArrowInvalid as error:
            raise _parse_error(path, name, dialect, str(error)) from error
        dialect = replace(dialect, names=names)
    if not has_header and (options.label_column is not None or options.columns is not None):
        option = "columns" if options.label_column is None else "label_column"
        message = f"{name} has no header, but {option} selects columns by name; add a first line with the column names"
        raise DataError(message, parameter=option, file=name, line=1)
    selection = select_columns([column.strip() for column in names], name, options)
    source = _CsvSource(path, name, dialect, selection)
    if next(source.blocks(), None) is None:
        raise no_rows_error(name, file=name)
    return source


def first_line(path: Path, name: str) -> str:
    """Return the first line that is not empty; raise DataError without one, or if it is too long for text."""
    with open_decompressed(path) as stream:
        while line := stream.readline(_MAX_LINE_BYTES):
            if len(line) == _MAX_LINE_BYTES:
                message = f"{name}: the first line is longer than {_MAX_LINE_BYTES >> 20} MB; give a text file"
                raise DataError(message, file=name, line=1)
            text = line.decode("utf-8-sig", "replace").replace("\0", " ")
            if text.strip():
                return _LINE_END.split(text.lstrip("\r\n"), maxsplit=1)[0]
    raise no_rows_error(name, file=name)


class _CsvSource(TableSource):
    """Columns of a CSV file."""

    def __init__(self, path: Path, name: str, dialect: _Dialect, selection: Selection) -> None:
        super().__init__(name, selection, np.dtype(np.float64), None)
        self._path, self._dialect = path, dialect
        if not dialect.has_header:
            self.columns = None

    def locate(self, row: int) -> tuple[str | None, int | None]:
        """Return the file and the line of a row, for which the file is read again up to that row."""
        return self.file, _line_of_record(self._path, self._dialect, row + 1 + self._dialect.has_header)

    def _batches(self, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        arrow, arrow_csv = import_extra("pyarrow", "reading CSV"), import_extra("pyarrow.csv", "reading CSV")
        written = {column.strip(): column for column in self._dialect.names}
        kinds = {written[c]: arrow.string() if c == self._selection.label else arrow.float64() for c in names}
        wanted = arrow_csv.ConvertOptions(column_types=kinds, include_columns=list(kinds))
        with reading(self.name, _CSV):
            try:
                for batch in _open_reader(arrow_csv, self._path, self._dialect, wanted):
                    if batch.num_rows:
                        yield batch.columns
            except arrow.ArrowInvalid as error:
                raise _parse_error(self._path, self.name, self._dialect, str(error)) from error

    def _join_labels(self, parts: list[Any]) -> npt.NDArray[Any]:
        arrow = import_extra("pyarrow", "reading CSV")
        return _typed_labels(arrow, arrow.chunked_array(parts, type=arrow.string()))


def _open_reader(arrow_csv: Any, path: Path, dialect: _Dialect, convert: Any = None) -> Any:
    """Return an Arrow reader with a single thread: several would save no time, and their errors lack the row."""
    compression = {".gz": "gzip", ".bz2": "bz2"}.get(path.suffix.lower())
    return arrow_csv.open_csv(
        import_extra("pyarrow", "reading CSV").input_stream(str(path), compression=compression),
        read_options=arrow_csv.ReadOptions(
            use_threads=False, block_size=dialect.block_size, autogenerate_column_names=not dialect.has_header
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True),
        convert_options=convert,
    )


def _parse_error(path: Path, name: str, dialect: _Dialect, reason: str) -> DataError:
    """Translate an error of Arrow; rows are counted from 0 after the header, lines from 1 as in an editor."""
    before = 2 if dialect.has_header else 1
    if found := _CONVERSION.search(reason):
        place, row, value = int(found[1]), int(found[2]) - before, found[3][:_MAX_VALUE_SHOWN]
        line = _line_of_record(path, dialect, int(found[2]))
        column = dialect.names[place].strip() if dialect.has_header else place
        return DataError.at_entry(
            name,
            f"{value!r} is not a number",
            NUMBERS_REQUIRED,
            redacted="not a number",
            file=name,
            line=line,
            row=row,
            column=column,
            value=value,
        )
    if found := _RAGGED.search(reason):
        row, line = int(found[1]) - before, _line_of_record(path, dialect, int(found[1]))
        message = f"{_where(name, line)}: row {row} has {found[3]} cells instead of {found[2]}; correct or remove it"
        return DataError(message, file=name, line=line, row=row, value=int(found[3]))
    if "Empty CSV file" in reason:
        return no_rows_error(name, file=name)
    if "UTF8" in reason:
        return DataError(f"{name} is not encoded in UTF-8; save it as UTF-8", file=name)
    return damaged_file_error(name, _CSV, reason)


def _where(name: str, line: int | None) -> str:
    return name if line is None else f"{name}, line {line}"


def _line_of_record(path: Path, dialect: _Dialect, record: int) -> int | None:
    """Return the line on which a record starts, both counted from 1; None if it cannot be determined.

    Like Arrow, this counts the header as a record, but not empty lines; a record may span several lines.
    """
    with suppress(csv.Error, OSError, EOFError), open_decompressed(path) as stream:
        records = csv.reader(io.TextIOWrapper(stream, "utf-8", "replace", newline=""), delimiter=dialect.delimiter)
        line = 1
        for cells in records:
            record -= bool(cells)
            if not record:
                return line
            line = records.line_num + 1
    return None


def _delimiter(line: str, path: Path) -> str:
    """Guess the delimiter from the suffix and the first line."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".tsv" in suffixes:
        return "\t"
    others = [";", "\t", " "] if ".txt" in suffixes else [";", "\t"]
    return next((mark for mark in [",", *others] if mark in line.strip()), ",")


def _is_header(cells: list[str]) -> bool:
    """Return whether the first line contains column names; a line of numbers is a row."""
    filled = [cell for cell in map(str.strip, cells) if cell]
    if len(filled) > 2 and filled == [str(i) for i in range(len(filled))]:
        return True
    return not all(map(_is_number, filled))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python accepts 1_000, CSV files do not


def _typed_labels(arrow: Any, labels: Any) -> npt.NDArray[Any]:
    """Convert labels to integers, else floats, else text; a number with leading zeros, such as 007, is text."""
    text = as_numpy(labels)
    if any(map(_LEADING_ZERO.match, text)):
        return text
    for kind in (arrow.int64(), arrow.float64()):
        with suppress(arrow.ArrowInvalid):
            return as_numpy(labels.cast(kind))
    return text
