"""Read .npy and .npz files: numpy arrays, and sparse matrices saved by scipy.

A .npy file is memory-mapped. An array in an .npz file is decompressed block by block in every pass; sparse matrices and
arrays in Fortran order are read into memory once.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca.data._npy import read_header
from deepca.data.readers._common import Options, pick_array, reading, value_type
from deepca.data.sources import ArraySource, Block, Source, block_rows, numeric
from deepca.errors import DataError

__all__ = ["open_npy", "open_npz"]

_NPY, _NPZ = "a .npy array", "an .npz archive"


def open_npy(path: Path, name: str, options: Options) -> Source:
    """Memory-map a .npy file; numbers of types other than float32 and float64 are converted block by block."""
    with reading(name, _NPY):
        with path.open("rb") as stream:
            shape, by_column, kind = read_header(stream)
            first = stream.tell()
        dtype = value_type(shape, kind, name)
        values = np.memmap(path, kind, mode="r", offset=first, shape=shape, order="F" if by_column else "C")
    source: Source = ArraySource(values, name) if kind == dtype else _CastSource(values, name, dtype)
    source.file = name
    return source


def open_npz(path: Path, name: str, options: Options) -> Source:
    """Open a matrix of an .npz archive, or the sparse matrix that scipy saved in it."""
    source = _open_npz(path, name, options)
    source.file = name
    return source


def _open_npz(path: Path, name: str, options: Options) -> Source:
    with reading(name, _NPZ):
        with zipfile.ZipFile(path) as archive:
            headers = dict(_headers(archive))
        if {"format", "shape", "data"} <= set(headers) and options.dataset is None:
            matrix = _sparse(path, name)
            return ArraySource(matrix, name, labels=_labels(path, name, headers, options, matrix.shape[0]))
        key = pick_array(name, {key: shape for key, (shape, _, _) in headers.items()}, options.dataset)
        shape, by_column, kind = headers[key]
        dtype, labels = value_type(shape, kind, name), _labels(path, name, headers, options, shape[0])
        if by_column:
            with np.load(path, allow_pickle=False) as archive:
                return ArraySource(archive[key].astype(dtype, copy=False), name, labels=labels)
    return _ArchivedSource(path, name, key, shape, kind, dtype, labels)


class _CastSource(Source):
    """Memory-mapped array that is converted to floats block by block, so that it is never in memory as a whole."""

    columns = None
    is_sparse = False

    def __init__(self, values: npt.NDArray[Any], name: str, dtype: np.dtype[Any]) -> None:
        self._values, self.name, self.dtype = values, name, dtype
        self.n, self.d = values.shape

    def blocks(self) -> Iterator[Block]:
        """Yield converted copies of slices."""
        step = block_rows(self.d)
        for first in range(0, len(self._values), step):
            yield np.asarray(self._values[first : first + step]).astype(self.dtype)


class _ArchivedSource(Source):
    """Array of an .npz file, which is read block by block."""

    columns = None
    is_sparse = False

    def __init__(
        self,
        path: Path,
        name: str,
        key: str,
        shape: tuple[int, ...],
        kind: np.dtype[Any],
        dtype: np.dtype[Any],
        labels: npt.NDArray[Any] | None,
    ) -> None:
        self._path, self._key, self._kind, self._labels = path, key, kind, labels
        self.name, self.dtype = name, dtype
        self.n, self.d = shape

    def blocks(self) -> Iterator[Block]:
        """Yield rows as they are decompressed."""
        step, left, row_bytes = block_rows(self.d), cast("int", self.n), self.d * self._kind.itemsize
        with (
            reading(self.name, _NPZ),
            zipfile.ZipFile(self._path) as archive,
            archive.open(self._key + ".npy") as stream,
        ):
            read_header(stream)
            while left:
                rows = min(step, left)
                values = stream.read(rows * row_bytes)
                if len(values) != rows * row_bytes:
                    raise DataError(
                        f"{self.name}: {self._key!r} is truncated: {left:,} rows are missing; save it again",
                        file=self.name,
                    )
                yield np.frombuffer(values, self._kind).reshape(rows, self.d).astype(self.dtype)
                left -= rows


def _headers(archive: zipfile.ZipFile) -> Iterator[tuple[str, tuple[tuple[int, ...], bool, np.dtype[Any]]]]:
    for member in archive.namelist():
        if member.endswith(".npy"):
            with archive.open(member) as stream:
                yield member.removesuffix(".npy"), read_header(stream)


def _labels(path: Path, name: str, headers: dict[str, Any], options: Options, n: int) -> npt.NDArray[Any] | None:
    """Return the array selected by ``label_column``, which must have one entry for each of the n rows.

    Raises DataError if the array is missing or has another number of entries.
    """
    if options.label_column is None:
        return None
    shapes = {key: shape for key, (shape, _, _) in headers.items()}
    key = pick_array(name, shapes, options.label_column, ndim=1, parameter="label_column")
    with np.load(path, allow_pickle=False) as archive:
        labels = cast("npt.NDArray[Any]", archive[key])
    if len(labels) != n:
        raise DataError(
            f"{name}: {options.label_column!r} has {len(labels)} entries for {n} rows; give one label per row",
            parameter="label_column",
            file=name,
            value=len(labels),
        )
    return labels


def _sparse(path: Path, name: str) -> Any:
    matrix = sparse.csr_array(sparse.load_npz(path))
    matrix.check_format(full_check=True)
    return numeric(matrix, name)
