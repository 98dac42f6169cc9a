"""svmlight, the text form of LIBSVM: ``label index:value index:value …``. The label is always set apart.

Indices count from 1, unless a 0 is found. Rows are parsed by scikit-learn some megabytes at a time, whatever the file
is packed with. As the number of columns is known only at the end, opening reads the whole file; what it finds is kept
where it takes less than a quarter of the memory, and parsed again with every pass elsewhere.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.machine import available_memory
from deepca._util.typing import Csr
from deepca.data.readers._common import Options, extra, reading, unpacked
from deepca.data.sources import ArraySource, Block, Source, without_rows
from deepca.errors import DataError

__all__ = ["line_fault", "looks_like_svmlight", "open_svmlight"]

_SVMLIGHT = "svmlight text"
TEXT_AT_ONCE = 2 << 20  # bytes of lines that become one block
_LONGEST_LINE = 64 << 20
_HIGHEST = 2**31 - 2
_ALWAYS = 1 << 28  # bytes that one number per column may take in any case
_Parts = tuple[npt.NDArray[np.float64], npt.NDArray[Any], npt.NDArray[Any]]
"""Values, indices as written, and where rows begin."""


def open_svmlight(path: Path, name: str, options: Options) -> Source:
    load = extra("sklearn.datasets", "reading svmlight").load_svmlight_file
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
        raise without_rows(name)
    base = min(lowest, 1 if options.first_index is None else options.first_index)
    d = _width(highest - base + 1, name, options)
    if 8 * d > max(budget, _ALWAYS):
        raise DataError(
            f"{name}: index {highest} means {d:,} columns, more than fit into memory; look for a slip in it"
        )
    source = _SvmlightSource(load, path, name, (base, d), np.concatenate(targets))
    if kept is None:
        return source
    data, indices, counts = (np.concatenate(part) for part in zip(*map(_counted, kept), strict=True))
    kept.clear()
    whole = _csr((data, indices, np.concatenate([[0], np.cumsum(counts)])), base, d)
    return ArraySource(whole, name, labels=source.labels(), first_index=base)


def looks_like_svmlight(line: str) -> bool:
    """Whether a line is ``label index:value …``, for files whose names do not say."""
    words = line.split("#", 1)[0].split()
    return len(words) > 1 and all(_fault(word.encode(), place) is None for place, word in enumerate(words))


class _SvmlightSource(Source):
    """A file too large to be kept: parsed with every pass."""

    columns = None
    is_sparse = True
    dtype = np.dtype(np.float64)

    def __init__(
        self, load: Callable[..., Any], path: Path, name: str, form: tuple[int, int], labels: npt.NDArray[Any]
    ) -> None:
        self._load, self._path, self._labels = load, path, labels
        self._base, self.d = form
        self.first_index = self._base
        self.name, self.n = name, len(labels)

    def blocks(self) -> Iterator[Block]:
        for parts, _ in _parsed(self._load, self._path, self.name):
            if parts[1].size and not self._base <= parts[1].min() <= parts[1].max() < self._base + self.d:
                raise DataError(f"{self.name} has other columns than when it was opened; open it again")
            yield _csr(parts, self._base, self.d)


def _parsed(load: Callable[..., Any], path: Path, name: str) -> Iterator[tuple[_Parts, npt.NDArray[Any]]]:
    lines = 0
    with reading(name, _SVMLIGHT), unpacked(path) as stream:
        while text := stream.read(TEXT_AT_ONCE):
            rest = stream.readline(_LONGEST_LINE)
            if len(rest) == _LONGEST_LINE:
                raise DataError(f"{name} has a line of more than {_LONGEST_LINE >> 20} MB; is it svmlight text?")
            text += rest
            try:
                X, labels = load(io.BytesIO(text), zero_based=True)
            except (ValueError, OverflowError) as error:
                wrong = f"{name} is no svmlight text"
                none = DataError(f"{wrong} ({error})", discreet=wrong)
                raise (_first_fault(name, text, lines) or none) from error
            lines += text.count(b"\n")
            if len(labels):
                yield (X.data, X.indices, X.indptr), labels


def _csr(parts: _Parts, base: int, d: int) -> Csr:
    data, indices, starts = parts
    small = np.int32 if max(d, data.size) < 2**31 else np.int64
    held = (data, (indices - base).astype(small), starts.astype(small))
    return cast("Csr", sparse.csr_array(held, shape=(len(starts) - 1, d)))


def _counted(parts: _Parts) -> _Parts:
    """Row lengths in place of where rows begin, so that parts can be put one after the other."""
    return parts[0], parts[1], np.diff(parts[2])


def _width(found: int, name: str, options: Options) -> int:
    wanted = options.n_features
    if wanted is not None and found > wanted:
        raise DataError(f"{name} has {found} columns, more than the {wanted} of n_features")
    if not (wanted or found):
        raise DataError(f"{name} has no columns")
    return wanted or found


def _first_fault(name: str, text: bytes, lines: int) -> DataError | None:
    """The first line that cannot be used, and why; scikit-learn does not say which one it was."""
    for number, line in enumerate(text.split(b"\n"), lines + 1):
        where, fault = f"{name}, line {number}", line_fault(line, 0, _HIGHEST)
        if fault is not None:
            return DataError(f"{where}: {fault}", discreet=f"{where} is not svmlight text", row=number)
    return None


def line_fault(line: bytes, lowest: int, highest: int, *, finite: bool = False) -> str | None:
    """Return what is wrong with a line; None if nothing is. lowest, highest : indices.  finite : as values must be."""
    before = lowest - 1
    for place, word in enumerate(line.split(b"#", 1)[0].split()):
        fault = _fault(word, place, lowest, highest, finite=finite)
        if fault is not None:
            return fault
        if place == 0 or _is_query(word, place):
            continue
        index = int(word.partition(b":")[0])
        if index <= before:
            return f"index {index} comes after {before}, and indices must ascend"
        before = index
    return None


def _fault(word: bytes, place: int, lowest: int = 0, highest: int = _HIGHEST, *, finite: bool = False) -> str | None:
    """What is wrong with a word of a line; None if nothing is."""
    if _is_query(word, place):
        return None
    index, _, value = word.partition(b":") if place else (str(lowest).encode(), b":", word)
    shown = repr(word[:40].decode("ascii", "replace"))
    try:
        column, number = int(index), float(value)
    except ValueError:
        return f"{shown} is not {'index:value' if place else 'a label'}, so this is no svmlight"
    if finite and not math.isfinite(number):
        return f"{shown} is not finite"
    return None if lowest <= column <= highest else f"index {column} is outside {lowest} … {highest:,}"


def _is_query(word: bytes, place: int) -> bool:
    return place == 1 and word.startswith(b"qid:")
