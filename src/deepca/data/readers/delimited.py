"""CSV and its relatives, read by Arrow in blocks of about a megabyte; packed files (.gz, .bz2) are unpacked on the way.

- The first line names the columns, unless every cell of it is a number (or empty): then it is a row, and columns have
  no names. A first line 0, 1, 2, … counts as names, since that is what data frames without names write.
- The delimiter is a tab in .tsv files. Elsewhere it is the comma, or what the first line has instead of it: a
  semicolon, a tab or (in .txt files) a space.
- Empty cells and what is usually written for missing values (NA, nan, null, …) become NaN; empty lines are no rows.
- Labels are text, unless all of them are numbers written in the usual way.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca.data.readers._common import SET_APART, Choice, Options, choose, extra, reading, unpacked
from deepca.data.readers._tables import TableSource, as_numpy
from deepca.data.sources import without_rows
from deepca.errors import DataError

__all__ = ["first_line", "open_delimited"]

_CSV = "CSV"
_LONGEST_LINE = 64 << 20
# a block is some rows, of so much text at least, unless they are long: then it is fewer rows, of so much at most
ROWS_OF_BLOCK, LEAST_TEXT, MOST_TEXT = 256, 1 << 20, 32 << 20
_CELL = 26  # characters of a number with its delimiter, at most
_CONVERSION = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to [^:]*: invalid value '(.*)'", re.S)
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_LINE_END = re.compile("[\r\n]")
_LEADING_ZERO = re.compile(r"\s*[+-]?0\d")


@dataclass(frozen=True)
class _Form:
    delimiter: str
    has_names: bool
    block_size: int
    names: tuple[str, ...]
    """As Arrow calls the columns, spaces and all."""


def open_delimited(path: Path, name: str, options: Options) -> TableSource:
    arrow, arrow_csv = extra("pyarrow", "reading CSV"), extra("pyarrow.csv", "reading CSV")
    with reading(name, _CSV):
        line = first_line(path, name)
        delimiter = _delimiter(line, path)
        cells = next(csv.reader([line], delimiter=delimiter))
        has_names = _is_header(cells)
        row = max(len(line), _CELL * len(cells))
        form = _Form(delimiter, has_names, min(max(ROWS_OF_BLOCK * row, LEAST_TEXT), max(2 * row, MOST_TEXT)), ())
        try:
            names = tuple(_opened(arrow_csv, path, form).schema.names)
        except arrow.ArrowInvalid as error:
            raise _told(name, form, str(error)) from error
        form = replace(form, names=names)
    if not has_names and (options.label_column is not None or options.columns is not None):
        raise DataError(f"{name} has no header, so columns have no names; put a line with names first")
    source = _CsvSource(path, name, form, choose([column.strip() for column in names], name, options))
    if next(source.blocks(), None) is None:
        raise without_rows(name)
    return source


def first_line(path: Path, name: str) -> str:
    """The first line that is not empty, however the file is packed."""
    with unpacked(path) as stream:
        while line := stream.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise DataError(f"{name} has a first line of more than {_LONGEST_LINE >> 20} MB; is it a text file?")
            text = line.decode("utf-8-sig", "replace").replace("\0", " ")
            if text.strip():
                return _LINE_END.split(text.lstrip("\r\n"), maxsplit=1)[0]
    raise without_rows(name)


class _CsvSource(TableSource):
    def __init__(self, path: Path, name: str, form: _Form, choice: Choice) -> None:
        super().__init__(name, choice, np.dtype(np.float64), None)
        self._path, self._form = path, form
        if not form.has_names:
            self.columns = None

    def _batches(self, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        arrow, arrow_csv = extra("pyarrow", "reading CSV"), extra("pyarrow.csv", "reading CSV")
        written = {column.strip(): column for column in self._form.names}
        kinds = {written[c]: arrow.string() if c == self._choice.label else arrow.float64() for c in names}
        wanted = arrow_csv.ConvertOptions(column_types=kinds, include_columns=list(kinds))
        with reading(self.name, _CSV):
            try:
                for batch in _opened(arrow_csv, self._path, self._form, wanted):
                    if batch.num_rows:
                        yield batch.columns
            except arrow.ArrowInvalid as error:
                raise _told(self.name, self._form, str(error)) from error

    def _joined(self, parts: list[Any]) -> npt.NDArray[Any]:
        arrow = extra("pyarrow", "reading CSV")
        return _typed(arrow, arrow.chunked_array(parts, type=arrow.string()))


def _opened(arrow_csv: Any, path: Path, form: _Form, convert: Any = None) -> Any:
    """A reader from the first row on. One thread: that is as fast, and it knows the row in which something is wrong."""
    packing = {".gz": "gzip", ".bz2": "bz2"}.get(path.suffix.lower())
    return arrow_csv.open_csv(
        extra("pyarrow", "reading CSV").input_stream(str(path), compression=packing),
        read_options=arrow_csv.ReadOptions(
            use_threads=False, block_size=form.block_size, autogenerate_column_names=not form.has_names
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True),
        convert_options=convert,
    )


def _told(name: str, form: _Form, said: str) -> DataError:
    """What Arrow found, in terms of the file; rows count from 0 behind the header."""
    before = 2 if form.has_names else 1
    if found := _CONVERSION.search(said):
        place, row, value = int(found[1]), int(found[2]) - before, found[3][:40]
        return DataError.at_entry(name, row, form.names[place].strip() if form.has_names else place, value, SET_APART)
    if found := _RAGGED.search(said):
        row = int(found[1]) - before
        return DataError(f"{name}: row {row} has {found[3]} cells instead of {found[2]}; mend or remove it")
    if "Empty CSV file" in said:
        return without_rows(name)
    if "UTF8" in said:
        return DataError(f"{name} is not UTF-8 throughout; save it as UTF-8")
    said = " ".join(said.split())[:200]
    wrong = f"{name} cannot be read as CSV: it is damaged, cut short or something else"
    return DataError(f"{wrong} ({said})", discreet=wrong)


def _delimiter(line: str, path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".tsv" in suffixes:
        return "\t"
    others = [";", "\t", " "] if ".txt" in suffixes else [";", "\t"]
    return next((mark for mark in [",", *others] if mark in line.strip()), ",")


def _is_header(cells: list[str]) -> bool:
    """Whether the first line names the columns; a line of numbers is a row."""
    filled = [cell for cell in map(str.strip, cells) if cell]
    if len(filled) > 2 and filled == [str(i) for i in range(len(filled))]:
        return True
    return not all(map(_is_number, filled))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python takes 1_000 for a number, files do not


def _typed(arrow: Any, labels: Any) -> npt.NDArray[Any]:
    """Whole numbers, numbers, or text as it stands; 007 is text."""
    text = as_numpy(labels)
    if any(map(_LEADING_ZERO.match, text)):
        return text
    for kind in (arrow.int64(), arrow.float64()):
        with suppress(arrow.ArrowInvalid):
            return as_numpy(labels.cast(kind))
    return text
