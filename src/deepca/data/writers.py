"""Write rows with named columns to files, block by block; a file appears only once it is complete.

CSV and Parquet store labels as the first column, HDF5 as a vector beside the matrix; .npy cannot store labels.
:func:`deepca.data.readers.open_source` reads the files.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca.data._npy import GrowingNpy
from deepca.data.readers._common import import_extra, listed
from deepca.errors import DataError

__all__ = ["SUFFIXES", "Writer", "open_writer"]

_HDF5_CHUNK_BYTES = 1 << 20  # the default size of HDF5's cache of chunks
_HDF5_SPARE_BYTES = 4 * _HDF5_CHUNK_BYTES  # disk space for an unfinished chunk and the metadata of HDF5


@contextmanager
def open_writer(
    path: str | os.PathLike[str], columns: Sequence[str], *, dtype: npt.DTypeLike, label: str = "label"
) -> Iterator[Writer]:
    """Open a file for writing rows, block by block.

    The file is written under a temporary name in the same folder. When the ``with`` block succeeds it is renamed,
    replacing any existing file; otherwise it is deleted.

    Parameters
    ----------
    path : str or path
        The file: ``.parquet``, ``.csv``, ``.npy``, ``.h5`` or ``.hdf5``.
    columns : sequence of str
        Column names.
    dtype : dtype
        Type of the stored values, float32 or float64.
    label : str, default="label"
        Name of the label column; labels are stored if the first block has labels.

    Yields
    ------
    Writer
        Its ``write`` method appends rows.

    Raises
    ------
    DataError
        If the suffix, the dtype or the column names cannot be used, or the file cannot be written.
    MissingExtraError
        If the package that writes this format is missing.
    """
    target, name = Path(path), os.fspath(path)
    kind = _WRITERS.get(target.suffix.lower())
    if kind is None:
        shown = f"unknown suffix {target.suffix}" if target.suffix else "no suffix"
        raise DataError(f"{name}: {shown}; use one of {', '.join(_WRITERS)}", file=name, value=target.suffix)
    spec = _file_spec(name, columns, dtype, label)
    if target.is_dir():
        raise DataError(f"{name} is a folder; give the name of a file", parameter="path", file=name)
    with _writing(name):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        os.close(handle)
    part, writer = Path(made), None
    try:
        with _writing(name):
            writer = kind(part, spec)
        yield writer
        with _writing(name):
            writer.finish()
            part.chmod(0o644)
            part.replace(target)
    finally:
        if writer is not None:
            with suppress(Exception):  # already complete, or abandoned because of another error
                writer.close()
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class _FileSpec:
    """Name of a file, its columns and dtype, and the name of its label column."""

    name: str
    columns: tuple[str, ...]
    dtype: np.dtype[Any]
    label: str


class Writer(ABC):
    """File to which rows are appended; `open_writer` creates it."""

    def __init__(self, path: Path, spec: _FileSpec) -> None:
        self._path, self._spec = path, spec
        self._label_kind: np.dtype[Any] | None = None
        self._begun = False

    def write(self, block: npt.NDArray[Any], labels: npt.NDArray[Any] | None = None) -> None:
        """Append a block of rows.

        Parameters
        ----------
        block : ndarray of shape (rows, d)
            The rows.
        labels : ndarray of shape (rows,), optional
            Their labels, required if the first block has labels, and of the same kind.

        Raises
        ------
        DataError
            If the shape of the block or of its labels is wrong, the kind of the labels differs from that of the first
            block, the format cannot store labels, or the file cannot be written.
        """
        values = np.asarray(block)
        d, name = len(self._spec.columns), self._spec.name
        if values.ndim != 2 or values.shape[1] != d:
            raise DataError(
                f"{name}: a block has shape {values.shape}; expected (rows, {d})", file=name, value=values.shape
            )
        given = None if labels is None else np.asarray(labels)
        if given is not None:
            given = given.astype(str) if given.dtype.kind == "O" else given
            if given.shape != values.shape[:1]:
                raise DataError(
                    f"{name}: labels of shape {given.shape} for {len(values)} rows; give one label per row",
                    parameter="labels",
                    file=name,
                    value=given.shape,
                )
        kind = None if given is None else given.dtype
        if self._begun and (getattr(kind, "kind", None) != getattr(self._label_kind, "kind", None)):
            raise DataError(
                f"{name}: this block has {_labels_of_type(kind)}, but earlier blocks have "
                f"{_labels_of_type(self._label_kind)}; give all blocks labels of the same type, or none",
                parameter="labels",
                file=name,
                value=kind,
            )
        with _writing(name):
            if not self._begun:
                self._label_kind, self._begun = kind, True
                self._begin()
            if len(values):
                self._append(values.astype(self._spec.dtype, copy=False), given)

    def finish(self) -> None:
        """Complete the file and close it; called by `open_writer`."""
        if not self._begun:
            self._begin()
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the file, whether or not it is complete."""

    @abstractmethod
    def _begin(self) -> None:
        """Prepare the file for rows; called once it is known whether there are labels."""

    @abstractmethod
    def _append(self, values: npt.NDArray[Any], labels: npt.NDArray[Any] | None) -> None: ...


class _NpyWriter(Writer):
    """A .npy file."""

    def __init__(self, path: Path, spec: _FileSpec) -> None:
        super().__init__(path, spec)
        self._file = GrowingNpy(path, (len(spec.columns),), spec.dtype)

    def _begin(self) -> None:
        if self._label_kind is not None:
            raise DataError(
                f"{self._spec.name}: .npy cannot store labels; write .parquet, .csv or .h5",
                parameter="labels",
                file=self._spec.name,
            )

    def _append(self, values: npt.NDArray[Any], labels: npt.NDArray[Any] | None) -> None:
        self._file.append(values)

    def finish(self) -> None:
        """Write the final header."""
        self._file.finish()
        super().finish()

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()


class _TableWriter(Writer):
    """A CSV or Parquet file, written by Arrow."""

    def __init__(self, path: Path, spec: _FileSpec) -> None:
        super().__init__(path, spec)
        self._arrow = import_extra("pyarrow", "writing tables")
        self._file: Any = None
        self._schema: Any = None

    def _begin(self) -> None:
        fields = [(self._spec.label, self._arrow_type(self._label_kind))] if self._label_kind is not None else []
        values = self._arrow.from_numpy_dtype(self._spec.dtype)
        self._schema = self._arrow.schema([*fields, *((column, values) for column in self._spec.columns)])
        self._file = self._open()

    def _append(self, values: npt.NDArray[Any], labels: npt.NDArray[Any] | None) -> None:
        arrays = [np.ascontiguousarray(column) for column in values.T]
        parts = arrays if labels is None else [labels, *arrays]
        columns = [self._arrow.array(part, type=of.type) for part, of in zip(parts, self._schema, strict=True)]
        self._file.write_batch(self._arrow.record_batch(columns, schema=self._schema))

    def _arrow_type(self, kind: np.dtype[Any]) -> Any:
        return self._arrow.string() if kind.kind in "US" else self._arrow.from_numpy_dtype(kind)

    def close(self) -> None:
        """Close the file as it is."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    @abstractmethod
    def _open(self) -> Any: ...


class _CsvWriter(_TableWriter):
    """A CSV file with a header."""

    def _open(self) -> Any:
        return import_extra("pyarrow.csv", "writing CSV").CSVWriter(str(self._path), self._schema)


class _ParquetWriter(_TableWriter):
    """A Parquet file."""

    def _open(self) -> Any:
        return import_extra("pyarrow.parquet", "writing Parquet").ParquetWriter(str(self._path), self._schema)


class _Hdf5Writer(Writer):
    """An HDF5 file with the matrix ``X``, its column names ``columns``, and labels under their own name."""

    def __init__(self, path: Path, spec: _FileSpec) -> None:
        super().__init__(path, spec)
        self._h5py = import_extra("h5py", "writing HDF5")
        if spec.label in ("X", "columns"):
            raise DataError(
                f"{spec.name}: {spec.label!r} is a reserved name in HDF5 files; give the label another name",
                parameter="label",
                file=spec.name,
                value=spec.label,
            )
        self._file = self._h5py.File(str(path), "w")

    def _begin(self) -> None:
        d = len(self._spec.columns)
        self._check_disk_space(0)
        tall = max(1, min(1 << 12, _HDF5_CHUNK_BYTES // (8 * d)))
        self._file.create_dataset("X", (0, d), self._spec.dtype, maxshape=(None, d), chunks=(tall, d))
        self._file["columns"] = np.array(self._spec.columns, dtype=self._h5py.string_dtype())
        if self._label_kind is not None:
            kind = self._h5py.string_dtype() if self._label_kind.kind in "US" else self._label_kind
            self._file.create_dataset(self._spec.label, (0,), kind, maxshape=(None,), chunks=(1 << 12,))

    def _append(self, values: npt.NDArray[Any], labels: npt.NDArray[Any] | None) -> None:
        self._check_disk_space(values.nbytes + (0 if labels is None else labels.nbytes))
        self._extend("X", values)
        if labels is not None:
            self._extend(self._spec.label, labels.astype(object) if labels.dtype.kind in "US" else labels)
        self._file.flush()

    def _check_disk_space(self, size: int) -> None:
        """Raise OSError if the disk is nearly full, since the HDF5 library crashes on a full one."""
        if shutil.disk_usage(self._path.parent).free < size + _HDF5_SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _extend(self, key: str, rows: npt.NDArray[Any]) -> None:
        stored = self._file[key]
        stored.resize(len(stored) + len(rows), axis=0)
        stored[-len(rows) :] = rows

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()


_WRITERS: Mapping[str, type[Writer]] = MappingProxyType(
    {".parquet": _ParquetWriter, ".csv": _CsvWriter, ".npy": _NpyWriter, ".h5": _Hdf5Writer, ".hdf5": _Hdf5Writer}
)
SUFFIXES = tuple(_WRITERS)
"""Suffixes of the files that can be written."""


@contextmanager
def _writing(name: str) -> Iterator[None]:
    """Translate errors of the file system into DataError."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # h5py raises RuntimeError if it cannot complete a file
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{name} cannot be written ({reason}); free disk space, or choose another file", file=name
        ) from error


def _file_spec(name: str, columns: Sequence[str], dtype: npt.DTypeLike, label: str) -> _FileSpec:
    kind, names = np.dtype(dtype), tuple(columns)
    if kind not in (np.float32, np.float64):
        raise DataError(
            f"{name}: values cannot be written as {kind}; use float32 or float64",
            parameter="dtype",
            file=name,
            value=kind,
        )
    if not names:
        raise DataError(f"{name}: no columns to write; name at least one", parameter="columns", file=name)
    if len({*names, label}) <= len(names):
        raise DataError(
            f"{name}: the names of label and columns, {listed([label, *names])}, are not unique; rename one",
            parameter="columns",
            file=name,
            value=names,
        )
    return _FileSpec(name, names, kind, label)


def _labels_of_type(kind: Any) -> str:
    return "no labels" if kind is None else f"labels of type {kind}"
