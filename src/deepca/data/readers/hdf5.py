"""Read a matrix of an HDF5 file in blocks of whole chunks; a vector in the same file can be the label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from deepca.data.readers._common import Options, import_extra, pick_array, reading, value_type
from deepca.data.sources import Block, Source, block_rows
from deepca.errors import DataError

__all__ = ["DenseSource", "open_hdf5", "opened"]

_HDF5 = "HDF5"
_MAX_READ_BYTES = 64 << 20  # to limit memory, blocks of whole chunks beyond this size are read in parts


def open_hdf5(path: Path, name: str, options: Options) -> Source:
    """Open the matrix named by ``dataset``, or the only matrix of the file."""
    with reading(name, _HDF5), opened(path) as file:
        shapes = _shapes(file)
        key = pick_array(name, shapes, _without_slashes(options.dataset, shapes))
        labels = None
        if options.label_column is not None:
            wanted = _without_slashes(options.label_column, shapes)
            label = pick_array(name, shapes, wanted, ndim=1, parameter="label_column")
            labels = _values(file[label])
            if len(labels) != shapes[key][0]:
                raise DataError(
                    f"{name}: {label!r} has {len(labels)} entries for {shapes[key][0]} rows; give one label per row",
                    parameter="label_column",
                    file=name,
                    value=len(labels),
                )
        return DenseSource(
            path, name, _HDF5, file[key], columns=_column_names(file, shapes, shapes[key][1]), labels=labels
        )


def _column_names(file: Any, shapes: Mapping[str, tuple[int, ...]], d: int) -> tuple[str, ...] | None:
    """Return the column names stored as a vector ``columns`` (by :mod:`deepca.data.writers`), if there is one."""
    if shapes.get("columns") != (d,):
        return None
    values = _values(file["columns"])
    return tuple(map(str, values)) if values.dtype.kind in "OUST" else None


class DenseSource(Source):
    """Two-dimensional dataset of an HDF5 file; ``places`` are the indices of the columns to read, or None for all."""

    is_sparse = False

    def __init__(
        self,
        path: Path,
        name: str,
        kind: str,
        dataset: Any,
        *,
        columns: tuple[str, ...] | None = None,
        places: npt.NDArray[np.intp] | None = None,
        labels: npt.NDArray[Any] | None = None,
    ) -> None:
        self.dtype = value_type(dataset.shape, dataset.dtype, name)
        self.name, self.file, self.columns = name, name, columns
        self.n = int(dataset.shape[0])
        self.d = int(dataset.shape[1]) if places is None else len(places)
        self._path, self._kind, self._key, self._places, self._labels = path, kind, dataset.name, places, labels
        self._step = _step(dataset)

    def blocks(self) -> Iterator[Block]:
        """Yield rows in whole chunks."""
        with reading(self.name, self._kind), opened(self._path) as file:
            values = file[self._key]
            for first in range(0, cast("int", self.n), self._step):
                block = values[first : first + self._step].astype(self.dtype, copy=False)
                yield block if self._places is None else block[:, self._places]


def opened(path: Path) -> Any:
    """Open an HDF5 file for reading."""
    return import_extra("h5py", "reading HDF5").File(str(path), "r")


def _step(dataset: Any) -> int:
    """Return the number of rows to read at once: whole chunks if possible, since chunks are decompressed as a whole."""
    step = block_rows(dataset.shape[1])
    tall = dataset.chunks[0] if dataset.chunks else 1
    whole = -(-step // tall) * tall
    return int(whole if whole * dataset.shape[1] * 8 <= _MAX_READ_BYTES else step)


def _shapes(file: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all datasets of a file."""
    h5py = import_extra("h5py", "reading HDF5")
    found: dict[str, tuple[int, ...]] = {}

    def note(key: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            found[key] = tuple(item.shape)

    file.visititems(note)
    return found


def _without_slashes(key: str | None, shapes: dict[str, tuple[int, ...]]) -> str | None:
    """Return a key without leading and trailing slashes if that is how the file names it."""
    return key.strip("/") if key is not None and key.strip("/") in shapes else key


def _values(dataset: Any) -> npt.NDArray[Any]:
    """Return a vector as an array; text becomes str."""
    if dataset.dtype.kind in "SO":
        return np.array(dataset.asstr()[:], dtype=str)
    return cast("npt.NDArray[Any]", dataset[:])
