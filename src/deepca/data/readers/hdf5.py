"""HDF5: one matrix of a file, read in blocks of whole chunks. A vector of the file can be the label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from deepca.data.readers._common import Options, extra, pick, reading, value_type
from deepca.data.sources import Block, Source, block_rows
from deepca.errors import DataError

__all__ = ["DenseSource", "open_hdf5", "opened"]

_HDF5 = "HDF5"
_LARGEST_READ = 64 << 20


def open_hdf5(path: Path, name: str, options: Options) -> Source:
    with reading(name, _HDF5), opened(path) as file:
        shapes = _shapes(file)
        key = pick(name, shapes, _found(options.dataset, shapes))
        labels = None
        if options.label_column is not None:
            label = pick(name, shapes, _found(options.label_column, shapes), ndim=1)
            labels = _values(file[label])
            if len(labels) != shapes[key][0]:
                raise DataError(f"{name}: {label!r} has {len(labels)} entries for {shapes[key][0]} rows")
        return DenseSource(path, name, _HDF5, file[key], columns=_names(file, shapes, shapes[key][1]), labels=labels)


def _names(file: Any, shapes: Mapping[str, tuple[int, ...]], d: int) -> tuple[str, ...] | None:
    """Names of the columns, where a vector of texts called ``columns`` has one for each, as our own writer puts it."""
    if shapes.get("columns") != (d,):
        return None
    values = _values(file["columns"])
    return tuple(map(str, values)) if values.dtype.kind in "OUST" else None


class DenseSource(Source):
    """A two-dimensional dataset of an HDF5 file."""

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
        self.name, self.columns = name, columns
        self.n = int(dataset.shape[0])
        self.d = int(dataset.shape[1]) if places is None else len(places)
        self._path, self._kind, self._key, self._places, self._labels = path, kind, dataset.name, places, labels
        self._step = _step(dataset)

    def blocks(self) -> Iterator[Block]:
        with reading(self.name, self._kind), opened(self._path) as file:
            values = file[self._key]
            for first in range(0, cast("int", self.n), self._step):
                block = values[first : first + self._step].astype(self.dtype, copy=False)
                yield block if self._places is None else block[:, self._places]


def opened(path: Path) -> Any:
    return extra("h5py", "reading HDF5").File(str(path), "r")


def _step(dataset: Any) -> int:
    """Rows to read at once: whole chunks where they are not too tall, since a chunk is unpacked as a whole."""
    step = block_rows(dataset.shape[1])
    tall = dataset.chunks[0] if dataset.chunks else 1
    whole = -(-step // tall) * tall
    return int(whole if whole * dataset.shape[1] * 8 <= _LARGEST_READ else step)


def _shapes(file: Any) -> dict[str, tuple[int, ...]]:
    h5py = extra("h5py", "reading HDF5")
    found: dict[str, tuple[int, ...]] = {}

    def note(key: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            found[key] = tuple(item.shape)

    file.visititems(note)
    return found


def _found(key: str | None, shapes: dict[str, tuple[int, ...]]) -> str | None:
    return key.strip("/") if key is not None and key.strip("/") in shapes else key


def _values(dataset: Any) -> npt.NDArray[Any]:
    """All of a vector; text as str."""
    if dataset.dtype.kind in "SO":
        return np.array(dataset.asstr()[:], dtype=str)
    return cast("npt.NDArray[Any]", dataset[:])
