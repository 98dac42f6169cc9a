"""Read svmlight files, the text format of LIBSVM: ``label index:value index:value …``.

Indices are counted from 1, unless a 0 occurs. scikit-learn parses the text, compressed or not, a few megabytes at a
time. The number of columns is known only at the end of the file, so opening reads all of it. The rows are kept if they
take less than a quarter of the available memory; otherwise they are parsed again in every pass.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.machine import available_memory
from deepca._util.typing import Csr
from deepca.data.readers._common import REPLACE_DAMAGED, Options, import_extra, open_decompressed, reading
from deepca.data.sources import ArraySource, Block, Source, no_rows_error
from deepca.errors import DataError

__all__ = ["Fault", "line_fault", "looks_like_svmlight", "open_svmlight"]

_SVMLIGHT = "svmlight text"
BLOCK_TEXT_BYTES = 2 << 20  # bytes of text to parse into one block
_MAX_LINE_BYTES = 64 << 20  # a longer line means that the file is not svmlight
_MAX_INDEX = 2**31 - 2  # largest index for which the number of columns fits into int32
_MIN_COLUMN_BYTES = 1 << 28  # an array of one float64 per column may take this much even if little memory is free
_MAX_VALUE_SHOWN = 40  # number of characters of a word to show in messages
_Parts = tuple[npt.NDArray[np.float64], npt.NDArray[Any], npt.NDArray[Any]]
"""Values, indices as written, and row pointers."""


class Fault(NamedTuple):
    """Fault of a line: a message, the word that is wrong, and the column index in that word, if there is one."""

    message: str
    word: str
    column: int | None


def open_svmlight(path: Path, name: str, options: Options) -> Source:
    """Open an svmlight file and read it once to determine its columns."""
    load = import_extra("sklearn.datasets", "reading svmlight").load_svmlight_file
    budget = available_memory() // 4
    kept: list[_Parts] | None = []
    targets: list[npt.NDArray[Any]] = []
    lowest, highest, taken = 1, 0, 0
    for parts, labels in _parsed(load, path, name):
        targets.append(labels)
        if parts[1].size:
            lowest, highest = min(lowest, int(parts[1].min())), max(highest, int(parts[1].max()))
        taken += sum(part.nbytes for part in parts)
        if kept is not None:
            kept.append(parts)
            kept = kept if taken < budget else None
    if not targets:
        raise no_rows_error(name, file=name)
    base = min(lowest, 1 if options.first_index is None else options.first_index)
    d = _column_count(highest - base + 1, name, options)
    if 8 * d > max(budget, _MIN_COLUMN_BYTES):
        raise DataError(
            f"{name}: index {highest} implies {d:,} columns, which do not fit into memory; check the index",
            redacted=f"{name}: an index implies more columns than fit into memory; check the indices",
            file=name,
            column=highest,
        )
    source = _SvmlightSource(load, path, name, (base, d), np.concatenate(targets))
    if kept is None:
        return source
    data, indices, counts = (np.concatenate(part) for part in zip(*map(_with_row_lengths, kept), strict=True))
    kept.clear()
    whole = _csr((data, indices, np.concatenate([[0], np.cumsum(counts)])), base, d)
    return ArraySource(whole, name, labels=source.labels(), first_index=base, origin=source)


def looks_like_svmlight(line: str) -> bool:
    """Return whether a line is ``label index:value …``, for files whose suffix does not determine the format."""
    words = line.split("#", 1)[0].split()
    return len(words) > 1 and all(_word_fault(word.encode(), place) is None for place, word in enumerate(words))


class _SvmlightSource(Source):
    """An svmlight file, parsed in every pass."""

    columns = None
    is_sparse = True
    dtype = np.dtype(np.float64)

    def __init__(
        self, load: Callable[..., Any], path: Path, name: str, form: tuple[int, int], labels: npt.NDArray[Any]
    ) -> None:
        self._load, self._path, self._labels = load, path, labels
        self._base, self.d = form
        self.first_index = self._base
        self.name, self.file, self.n = name, name, len(labels)

    def blocks(self) -> Iterator[Block]:
        """Yield rows as they are parsed."""
        for parts, _ in _parsed(self._load, self._path, self.name):
            if parts[1].size and not self._base <= parts[1].min() <= parts[1].max() < self._base + self.d:
                message = f"{self.name} has changed since it was opened: it has different columns now; open it again"
                raise DataError(message, file=self.name)
            yield _csr(parts, self._base, self.d)

    def locate(self, row: int) -> tuple[str | None, int | None]:
        """Return the file and the line of a row, for which the file is read again up to that row."""
        with reading(self.name, _SVMLIGHT), open_decompressed(self._path) as stream:
            for line, content in enumerate(stream, 1):
                row -= bool(_words(content))
                if row < 0:
                    return self.file, line
        return self.file, None


def _parsed(load: Callable[..., Any], path: Path, name: str) -> Iterator[tuple[_Parts, npt.NDArray[Any]]]:
    """Yield the rows of a file and their labels, a few megabytes of text at a time."""
    lines = rows = 0
    with reading(name, _SVMLIGHT), open_decompressed(path) as stream:
        while text := stream.read(BLOCK_TEXT_BYTES):
            rest = stream.readline(_MAX_LINE_BYTES)
            if len(rest) == _MAX_LINE_BYTES:
                message = f"{name} has a line longer than {_MAX_LINE_BYTES >> 20} MB; give svmlight text"
                raise DataError(message, file=name, line=lines + text.count(b"\n") + 1)
            text += rest
            try:
                X, labels = load(io.BytesIO(text), zero_based=True)
            except (ValueError, OverflowError) as error:
                found, advice = f"{name} is not svmlight text", REPLACE_DAMAGED
                unknown = DataError(f"{found} ({error}); {advice}", redacted=f"{found}; {advice}", file=name)
                raise (_first_fault(name, text, lines, rows) or unknown) from error
            lines += text.count(b"\n")
            rows += len(labels)
            if len(labels):
                yield (X.data, X.indices, X.indptr), labels


def _csr(parts: _Parts, base: int, d: int) -> Csr:
    data, indices, starts = parts
    small = np.int32 if max(d, data.size) < 2**31 else np.int64
    arrays = (data, (indices - base).astype(small), starts.astype(small))
    return cast("Csr", sparse.csr_array(arrays, shape=(len(starts) - 1, d)))


def _with_row_lengths(parts: _Parts) -> _Parts:
    """Return parts with row lengths instead of row pointers, so that they can be concatenated."""
    return parts[0], parts[1], np.diff(parts[2])


def _column_count(found: int, name: str, options: Options) -> int:
    """Return ``n_features`` if given, else the number of columns found in the file.

    Raises DataError if the file has more than ``n_features`` columns, or none and ``n_features`` is not given.
    """
    wanted = options.n_features
    if wanted is not None and found > wanted:
        raise DataError(
            f"{name} has {found} columns, more than n_features = {wanted}; increase n_features",
            parameter="n_features",
            file=name,
            value=wanted,
        )
    if not (wanted or found):
        raise DataError(f"{name} has no columns; give n_features", parameter="n_features", file=name)
    return wanted or found


def _first_fault(name: str, text: bytes, lines: int, rows: int) -> DataError | None:
    """Return the error for the first malformed line of a text, which scikit-learn does not report.

    ``lines`` and ``rows`` are the numbers of lines and rows before the text.
    """
    row = rows
    for line, content in enumerate(text.split(b"\n"), lines + 1):
        where, fault = f"{name}, line {line}", line_fault(content, 0, _MAX_INDEX)
        if fault is not None:
            return DataError(
                f"{where}: {fault.message}; correct or remove the line",
                redacted=f"{where} is not valid svmlight text; correct or remove the line",
                file=name,
                line=line,
                row=row,
                column=fault.column,
                value=fault.word,
            )
        row += bool(_words(content))
    return None


def line_fault(line: bytes, lowest: int, highest: int, *, finite: bool = False) -> Fault | None:
    """Return the first fault of a line, or None if it is valid svmlight text.

    Parameters
    ----------
    line : bytes
        The line.
    lowest, highest : int
        Range of valid indices.
    finite : bool, default=False
        Whether values must be finite.

    Returns
    -------
    Fault or None
        The first fault.
    """
    before = lowest - 1
    for place, word in enumerate(_words(line)):
        fault = _word_fault(word, place, lowest, highest, finite=finite)
        if fault is not None:
            return fault
        if place == 0 or _is_query(word, place):
            continue
        index = int(word.partition(b":")[0])
        if index <= before:
            return Fault(f"index {index} follows {before}, but indices must ascend", _shown(word), index)
        before = index
    return None


def _words(line: bytes) -> list[bytes]:
    """Return the words of a line without its comment."""
    return line.split(b"#", 1)[0].split()


def _word_fault(
    word: bytes, place: int, lowest: int = 0, highest: int = _MAX_INDEX, *, finite: bool = False
) -> Fault | None:
    """Return the fault of the word at a position in its line, or None."""
    if _is_query(word, place):
        return None
    index, _, value = word.partition(b":") if place else (str(lowest).encode(), b":", word)
    shown = _shown(word)
    try:
        column, number = int(index), float(value)
    except ValueError:
        return Fault(f"{shown!r} is not {'index:value' if place else 'a label'}", shown, None)
    if finite and not math.isfinite(number):
        return Fault(f"{shown!r} is not finite", shown, column if place else None)
    if lowest <= column <= highest:
        return None
    return Fault(f"index {column} is outside {lowest} … {highest:,}", shown, column)


def _shown(word: bytes) -> str:
    return word[:_MAX_VALUE_SHOWN].decode("ascii", "replace")


def _is_query(word: bytes, place: int) -> bool:
    return place == 1 and word.startswith(b"qid:")
