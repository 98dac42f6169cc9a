"""Read AnnData files (.h5ad): X, or another matrix named by ``dataset`` (``layers/counts``, ``raw/X``, ``obsm/X_pca``).

The file is read with h5py, as in AnnData's backed mode, but without loading layers and annotations. Dense and CSR
matrices are read in blocks of rows. A CSC matrix is stored by columns: it is loaded and converted to CSR if that takes
less than a quarter of the available memory, and rejected otherwise. Column names are ``var_names``; the label is a
column of ``obs``.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.machine import available_memory
from deepca._util.typing import Csr
from deepca.data.readers._common import Options, import_extra, listed, reading, select_columns, value_type
from deepca.data.readers.hdf5 import DenseSource, opened
from deepca.data.sources import BLOCK_BYTES, ArraySource, Block, Source
from deepca.errors import DataError

__all__ = ["open_h5ad"]

_H5AD = "AnnData (.h5ad)"
ROW_POINTERS_AT_ONCE = 1 << 14  # number of row pointers to read at a time; they take far less memory than the rows


def open_h5ad(path: Path, name: str, options: Options) -> Source:
    """Open a matrix of an AnnData file."""
    source = _open_h5ad(path, name, options)
    source.file = name
    return source


def _open_h5ad(path: Path, name: str, options: Options) -> Source:
    with reading(name, _H5AD), opened(path) as file:
        key = options.dataset or "X"
        if key not in file:
            raise DataError(
                f"{name} has no matrix {key!r}; its matrices are {listed(_matrices(file))}",
                parameter="dataset",
                file=name,
                value=key,
            )
        item = file[key]
        if hasattr(item, "shape"):
            shape, form = tuple(item.shape), "dense"
        else:
            shape, form = _sparse_form(item, name)
        columns, places = _columns(file, key, shape, name, options)
        labels = _labels(file, name, shape[0], options)
        if form == "dense":
            return DenseSource(path, name, _H5AD, item, columns=columns, places=places, labels=labels)
        dtype = value_type(shape, item["data"].dtype, name)
        if form == "csr":
            return _CsrSource(path, name, key, shape, dtype, columns, places, labels)
        whole = _csc_to_csr(item, shape, name).astype(dtype, copy=False)
        return ArraySource(whole if places is None else whole[:, places], name, columns, labels)


class _CsrSource(Source):
    """Rows of a CSR matrix, read a few megabytes at a time."""

    is_sparse = True

    def __init__(
        self,
        path: Path,
        name: str,
        key: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        columns: tuple[str, ...] | None,
        places: npt.NDArray[np.intp] | None,
        labels: npt.NDArray[Any] | None,
    ) -> None:
        self._path, self._key, self._width, self._places, self._labels = path, key, shape[1], places, labels
        self.name, self.columns, self.dtype = name, columns, dtype
        self.n, self.d = shape[0], shape[1] if places is None else len(places)

    def blocks(self) -> Iterator[Block]:
        """Yield rows in blocks of limited size."""
        with reading(self.name, _H5AD), opened(self._path) as file:
            item = file[self._key]
            for starts in _row_blocks(item["indptr"], cast("int", self.n)):
                X = self._csr(item, starts)
                yield X if self._places is None else X[:, self._places]

    def _csr(self, item: Any, starts: npt.NDArray[np.int64]) -> Csr:
        first, last = int(starts[0]), int(starts[-1])
        data, indices = item["data"][first:last], item["indices"][first:last]
        if len(data) != last - first or len(indices) != last - first:
            raise DataError(
                f"{self.name}: {self._key!r} has fewer entries than its row pointers indicate, so it is truncated; "
                "save it again",
                file=self.name,
            )
        small = np.int32 if max(self._width, last - first) < 2**31 else np.int64
        arrays = (data.astype(self.dtype, copy=False), indices.astype(small), (starts - first).astype(small))
        X = sparse.csr_array(arrays, shape=(len(starts) - 1, self._width))
        X.check_format(full_check=True)  # products do not check indices, and would access memory out of bounds
        return cast("Csr", X)


def _row_blocks(indptr: Any, n: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the row pointers of each block, including the end of its last row."""
    max_entries = BLOCK_BYTES // 12  # an entry is a value of 8 bytes and an index of 4 bytes
    for chunk in range(0, n, ROW_POINTERS_AT_ONCE):
        starts = indptr[chunk : min(chunk + ROW_POINTERS_AT_ONCE, n) + 1].astype(np.int64)
        first = 0
        while first < len(starts) - 1:
            last = int(np.searchsorted(starts, starts[first] + max_entries, side="right")) - 1
            last = min(max(last, first + 1), len(starts) - 1)
            yield starts[first : last + 1]
            first = last


def _sparse_form(item: Any, name: str) -> tuple[tuple[int, ...], str]:
    """Return the shape and the format, "csr" or "csc", of a matrix written by any version of AnnData.

    Raises DataError for any other encoding, or if the shape is missing or does not match ``indptr``.
    """
    encoding = str(item.attrs.get("encoding-type", item.attrs.get("h5sparse_format", "")))
    shape = item.attrs.get("shape", item.attrs.get("h5sparse_shape"))
    form = encoding.removesuffix("_matrix")
    if form not in ("csr", "csc") or shape is None:
        raise DataError(
            f"{name}: {item.name!r} has encoding {encoding!r}; a dense, CSR or CSC matrix is required",
            parameter="dataset",
            file=name,
            value=encoding,
        )
    rows, columns = (int(size) for size in shape)
    if len(item["indptr"]) != (rows if form == "csr" else columns) + 1:
        raise DataError(
            f"{name}: {item.name!r} has shape {rows} × {columns}, but its indptr is for "
            f"{len(item['indptr']) - 1} {'rows' if form == 'csr' else 'columns'}; "
            "write the file again from the original data",
            file=name,
            value=(rows, columns),
        )
    return (rows, columns), form


def _csc_to_csr(item: Any, shape: tuple[int, ...], name: str) -> Csr:
    """Convert a CSC matrix to CSR; raise DataError if it takes more than a quarter of the available memory."""
    taken = 2 * sum(item[part].size * item[part].dtype.itemsize for part in ("data", "indices"))
    if taken > available_memory() // 4:
        raise DataError(
            f"{name}: {item.name!r} is stored by columns (CSC) and is too large to convert in memory; save it by rows "
            "first: adata.X = adata.X.tocsr(); adata.write_h5ad(…)",
            file=name,
            value="csc",
        )
    arrays = (item["data"][:], item["indices"][:], item["indptr"][:])
    matrix = sparse.csc_array(arrays, shape=(shape[0], shape[1]))
    matrix.check_format(full_check=True)
    return cast("Csr", matrix.tocsr())


def _columns(
    file: Any, key: str, shape: tuple[int, ...], name: str, options: Options
) -> tuple[tuple[str, ...] | None, npt.NDArray[np.intp] | None]:
    """Return the names of the columns to read, None if they have none, and their indices, None for all columns.

    Raises DataError if columns are selected but have no names, or if the number of names is not that of the columns.
    """
    group = "raw/var" if key.startswith("raw/") else "var"
    if key.startswith("obsm") or group not in file or len(shape) != 2:
        if options.columns is not None:
            raise DataError(
                f"{name}: the columns of {key!r} have no names; omit columns", parameter="columns", file=name
            )
        return None, None
    names = _index(file[group])
    if len(names) != shape[1]:
        raise DataError(
            f"{name}: {key!r} has {shape[1]} columns, but {group} has {len(names)} names; the file is damaged, save it "
            "again",
            file=name,
            value=shape[1],
        )
    advice = "call adata.var_names_make_unique() and save it again"
    values = select_columns(names, name, Options(columns=options.columns), if_duplicate=advice).values
    if options.columns is None:
        return values, None
    at = {column: place for place, column in enumerate(names)}
    return values, np.array([at[column] for column in values], dtype=np.intp)


def _index(frame: Any) -> list[str]:
    """Return the index of a stored data frame; before AnnData 0.7, frames were stored as structured arrays."""
    if hasattr(frame, "dtype"):
        names = frame[next(field for field in ("_index", "index") if field in frame.dtype.names)]
        return [one.decode() if isinstance(one, bytes) else str(one) for one in names]
    stored = frame[frame.attrs.get("_index", "_index")]
    return [str(one) for one in (stored.asstr()[:] if stored.dtype.kind in "SO" else stored[:])]


def _labels(file: Any, name: str, n: int, options: Options) -> npt.NDArray[Any] | None:
    """Return the column of ``obs`` selected by ``label_column``; None if none is selected.

    Raises DataError if the column is missing or does not have n entries.
    """
    wanted = options.label_column
    if wanted is None:
        return None
    frame = file["obs"]
    names = [str(one) for one in (frame.dtype.names if hasattr(frame, "dtype") else frame.attrs["column-order"])]
    if wanted not in names:
        raise DataError(
            f"{name} has no column {wanted!r} in obs; its columns are {listed(names)}",
            parameter="label_column",
            file=name,
            column=wanted,
        )
    anndata = import_extra("anndata", "reading the labels of .h5ad")
    read = anndata.io.read_elem if hasattr(anndata, "io") else anndata.experimental.read_elem
    is_element = not hasattr(frame, "dtype") and "encoding-type" in frame[wanted].attrs
    column = read(frame[wanted]) if is_element else read(frame)[wanted]
    found = _as_numpy(import_module("pandas").Series(column))  # pandas is a dependency of anndata
    if len(found) != n:
        raise DataError(
            f"{name}: {wanted!r} has {len(found)} entries for {n} rows; the file is damaged, save it again",
            parameter="label_column",
            file=name,
            value=len(found),
        )
    return found


def _as_numpy(column: Any) -> npt.NDArray[Any]:
    """Convert a pandas column to numpy; missing numbers become NaN, missing text the empty string."""
    found = np.asarray(column)
    if found.dtype != object:
        return found
    missing = np.asarray(column.isna())
    if column.dtype.kind in "iufb":  # nullable types, which may contain NA
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.array(["" if gap else str(one) for one, gap in zip(found, missing, strict=True)], dtype=str)


def _matrices(file: Any) -> list[str]:
    """Return the names of all matrices of a file."""
    found = [key for key in ("X", "raw/X") if key in file]
    return found + [f"{group}/{key}" for group in ("layers", "obsm") if group in file for key in file[group]]
