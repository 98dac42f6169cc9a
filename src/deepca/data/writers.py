"""Rows written to files, block by block, with a name for every column. A file is whole or not there.

CSV and Parquet hold labels as a first column, HDF5 as a vector beside the matrix; .npy has no room for them.
What is written here is read again by :func:`deepca.data.readers.open_source`.
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
from deepca.data.readers._common import extra, listed
from deepca.errors import DataError

__all__ = ["Writer", "open_writer"]

_HDF5_CHUNK = 1 << 20
_HDF5_ROOM = 4 * _HDF5_CHUNK  # that a chunk begun and the library's own notes may take besides the rows


@contextmanager
def open_writer(
    path: str | os.PathLike[str], columns: Sequence[str], *, dtype: npt.DTypeLike, label: str = "label"
) -> Iterator[Writer]:
    """A file that blocks of rows are written to; ``.parquet``, ``.csv``, ``.npy``, ``.h5`` or ``.hdf5``.

    It is written under another name in the same folder and takes its own, in place of what was there, when the block
    ends well; otherwise nothing is left of it. Values are stored as ``dtype``, float32 or float64, and labels, where
    the first block comes with them, under the name ``label``.
    """
    target, name = Path(path), os.fspath(path)
    kind = _WRITERS.get(target.suffix.lower())
    if kind is None:
        shown = target.suffix or "no suffix"
        raise DataError(f"{name}: {shown} is not known; names of files to write end in {', '.join(_WRITERS)}")
    form = _form(name, columns, dtype, label)
    if target.is_dir():
        raise DataError(f"{name} is a folder; give the name of a file")
    with _writing(name):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        os.close(handle)
    part, writer = Path(made), None
    try:
        with _writing(name):
            writer = kind(part, form)
        yield writer
        with _writing(name):
            writer.finish()
            part.chmod(0o644)
            part.replace(target)
    finally:
        if writer is not None:
            with suppress(Exception):  # whole by now, or given up for another reason
                writer.close()
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Form:
    """What a file is to hold."""

    name: str
    columns: tuple[str, ...]
    dtype: np.dtype[Any]
    label: str


class Writer(ABC):
    """What `open_writer` gives."""

    def __init__(self, path: Path, form: _Form) -> None:
        self._path, self._form = path, form
        self._label_kind: np.dtype[Any] | None = None
        self._begun = False

    def write(self, block: npt.NDArray[Any], labels: npt.NDArray[Any] | None = None) -> None:
        """Append rows, and their labels if the first rows had some."""
        values = np.asarray(block)
        d, name = len(self._form.columns), self._form.name
        if values.ndim != 2 or values.shape[1] != d:
            raise DataError(f"{name}: a block of shape {values.shape} does not fit; expected (rows, {d})")
        given = None if labels is None else np.asarray(labels)
        if given is not None:
            given = given.astype(str) if given.dtype.kind == "O" else given
            if given.shape != values.shape[:1]:
                raise DataError(f"{name}: labels of shape {given.shape} for {len(values)} rows")
        kind = None if given is None else given.dtype
        if self._begun and (getattr(kind, "kind", None) != getattr(self._label_kind, "kind", None)):
            raise DataError(f"{name}: labels are {kind or 'none'} here and {self._label_kind or 'none'} in rows before")
        with _writing(name):
            if not self._begun:
                self._label_kind, self._begun = kind, True
                self._begin()
            if len(values):
                self._append(values.astype(self._form.dtype, copy=False), given)

    def finish(self) -> None:
        """Complete the file and let go of it. `open_writer` calls it."""
        if not self._begun:
            self._begin()
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of the file as it is."""

    @abstractmethod
    def _begin(self) -> None:
        """Called when it is known whether there are labels."""

    @abstractmethod
    def _append(self, values: npt.NDArray[Any], labels: npt.NDArray[Any] | None) -> None: ...


class _NpyWriter(Writer):
    def __init__(self, path: Path, form: _Form) -> None:
        super().__init__(path, form)
        self._file = GrowingNpy(path, (len(form.columns),), form.dtype)

    def _begin(self) -> None:
        if self._label_kind is not None:
            raise DataError(f"{self._form.name}: .npy has no room for labels; write .parquet, .csv or .h5")

    def _append(self, values: npt.NDArray[Any], labels: npt.NDArray[Any] | None) -> None:
        self._file.append(values)

    def finish(self) -> None:
        self._file.finish()
        super().finish()

    def close(self) -> None:
        self._file.close()


class _TableWriter(Writer):
    """CSV or Parquet, through Arrow."""

    def __init__(self, path: Path, form: _Form) -> None:
        super().__init__(path, form)
        self._arrow = extra("pyarrow", "writing tables")
        self._file: Any = None
        self._schema: Any = None

    def _begin(self) -> None:
        fields = [(self._form.label, self._arrow_kind(self._label_kind))] if self._label_kind is not None else []
        values = self._arrow.from_numpy_dtype(self._form.dtype)
        self._schema = self._arrow.schema([*fields, *((column, values) for column in self._form.columns)])
        self._file = self._open()

    def _append(self, values: npt.NDArray[Any], labels: npt.NDArray[Any] | None) -> None:
        arrays = [np.ascontiguousarray(column) for column in values.T]
        held = arrays if labels is None else [labels, *arrays]
        columns = [self._arrow.array(part, type=of.type) for part, of in zip(held, self._schema, strict=True)]
        self._file.write_batch(self._arrow.record_batch(columns, schema=self._schema))

    def _arrow_kind(self, kind: np.dtype[Any]) -> Any:
        return self._arrow.string() if kind.kind in "US" else self._arrow.from_numpy_dtype(kind)

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    @abstractmethod
    def _open(self) -> Any: ...


class _CsvWriter(_TableWriter):
    def _open(self) -> Any:
        return extra("pyarrow.csv", "writing CSV").CSVWriter(str(self._path), self._schema)


class _ParquetWriter(_TableWriter):
    def _open(self) -> Any:
        return extra("pyarrow.parquet", "writing Parquet").ParquetWriter(str(self._path), self._schema)


class _Hdf5Writer(Writer):
    """The matrix as ``X``, its column names as ``columns``, labels under their own name."""

    def __init__(self, path: Path, form: _Form) -> None:
        super().__init__(path, form)
        self._h5py = extra("h5py", "writing HDF5")
        if form.label in ("X", "columns"):
            raise DataError(f"{form.name}: {form.label!r} is taken by HDF5; give the label another name")
        self._file = self._h5py.File(str(path), "w")

    def _begin(self) -> None:
        d = len(self._form.columns)
        self._expect_room(0)
        tall = max(1, min(1 << 12, _HDF5_CHUNK // (8 * d)))
        self._file.create_dataset("X", (0, d), self._form.dtype, maxshape=(None, d), chunks=(tall, d))
        self._file["columns"] = np.array(self._form.columns, dtype=self._h5py.string_dtype())
        if self._label_kind is not None:
            kind = self._h5py.string_dtype() if self._label_kind.kind in "US" else self._label_kind
            self._file.create_dataset(self._form.label, (0,), kind, maxshape=(None,), chunks=(1 << 12,))

    def _append(self, values: npt.NDArray[Any], labels: npt.NDArray[Any] | None) -> None:
        self._expect_room(values.nbytes + (0 if labels is None else labels.nbytes))
        self._extend("X", values)
        if labels is not None:
            self._extend(self._form.label, labels.astype(object) if labels.dtype.kind in "US" else labels)
        self._file.flush()

    def _expect_room(self, size: int) -> None:
        """The HDF5 library does not survive a disk that fills up under it, so it must not come to that."""
        if shutil.disk_usage(self._path.parent).free < size + _HDF5_ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _extend(self, key: str, rows: npt.NDArray[Any]) -> None:
        stored = self._file[key]
        stored.resize(len(stored) + len(rows), axis=0)
        stored[-len(rows) :] = rows

    def close(self) -> None:
        self._file.close()


_WRITERS: Mapping[str, type[Writer]] = MappingProxyType(
    {".parquet": _ParquetWriter, ".csv": _CsvWriter, ".npy": _NpyWriter, ".h5": _Hdf5Writer, ".hdf5": _Hdf5Writer}
)


@contextmanager
def _writing(name: str) -> Iterator[None]:
    """Disks that are full and folders that may not be written."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # the second is how HDF5 tells of a file that cannot be completed
        said = getattr(error, "strerror", None) or error
        raise DataError(f"{name} cannot be written ({said}); make room or name another") from error


def _form(name: str, columns: Sequence[str], dtype: npt.DTypeLike, label: str) -> _Form:
    kind, names = np.dtype(dtype), tuple(columns)
    if kind not in (np.float32, np.float64):
        raise DataError(f"{name}: values of dtype {kind} cannot be written; float32 and float64 can")
    if not names:
        raise DataError(f"{name}: there are no columns to write")
    if len({*names, label}) <= len(names):
        raise DataError(f"{name}: columns and label need different names; they are {listed([label, *names])}")
    return _Form(name, names, kind, label)
