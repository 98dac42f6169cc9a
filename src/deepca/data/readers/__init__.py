"""Open files as sources of rows. The suffix of a file determines its format, and there is one module per format.

The packages that a format requires come with the ``files`` extra. They are imported when such a file is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from deepca.data.readers import arrays, delimited, h5ad, hdf5, parquet, svmlight
from deepca.data.readers._common import Options, reading
from deepca.data.readers.spooling import spool
from deepca.data.sources import Source
from deepca.errors import DataError

__all__ = ["SUFFIXES", "common_indices", "open_source", "open_sources", "spool"]


@dataclass(frozen=True)
class _Format:
    """Name of a file format, its reader, the options that apply to it, and whether files may be compressed."""

    kind: str
    open: Callable[[Path, str, Options], Source]
    options: frozenset[str]
    may_be_compressed: bool = False


_NPY = _Format(".npy", arrays.open_npy, frozenset())
_NPZ = _Format(".npz", arrays.open_npz, frozenset({"dataset", "label_column"}))
_CSV = _Format("CSV", delimited.open_delimited, frozenset({"columns", "label_column"}), may_be_compressed=True)
_PARQUET = _Format("Parquet", parquet.open_parquet, frozenset({"columns", "label_column"}))
_SVMLIGHT = _Format(
    "svmlight", svmlight.open_svmlight, frozenset({"n_features", "first_index"}), may_be_compressed=True
)
_HDF5 = _Format("HDF5", hdf5.open_hdf5, frozenset({"dataset", "label_column"}))
_H5AD = _Format("AnnData", h5ad.open_h5ad, frozenset({"columns", "dataset", "label_column"}))

_FORMATS: Mapping[str, _Format] = MappingProxyType(
    {
        ".npy": _NPY,
        ".npz": _NPZ,
        ".csv": _CSV,
        ".tsv": _CSV,
        ".txt": _CSV,
        ".parquet": _PARQUET,
        ".pq": _PARQUET,
        ".svm": _SVMLIGHT,
        ".svmlight": _SVMLIGHT,
        ".libsvm": _SVMLIGHT,
        ".t": _SVMLIGHT,
        "": _SVMLIGHT,
        ".h5": _HDF5,
        ".hdf5": _HDF5,
        ".h5ad": _H5AD,
    }
)
SUFFIXES = tuple(suffix for suffix in _FORMATS if suffix)
"""Suffixes of readable files; those of text formats may be followed by .gz or .bz2."""


def open_source(
    path: str | os.PathLike[str],
    *,
    label_column: str | None = None,
    dataset: str | None = None,
    columns: Sequence[str] | None = None,
    n_features: int | None = None,
    first_index: int | None = None,
) -> Source:
    r"""Open a file as a source of rows.

    Parameters
    ----------
    path : str or path
        The file. Its suffix, one of `SUFFIXES`, determines the format; ``.csv``, ``.tsv``, ``.txt`` and svmlight may
        be compressed (``.gz``, ``.bz2``). A file without a suffix is read as svmlight, since LIBSVM publishes such
        files (``a9a``, ``a9a.bz2``), and so is a ``.txt`` file whose first line is in that format.
    label_column : str, optional
        Labels, returned by `Source.labels` and excluded from the values: a column of CSV and Parquet, a column of
        ``obs`` in AnnData, a vector in .npz and HDF5. In svmlight the target is always the label.
    dataset : str, optional
        Matrix of an .npz, HDF5 or AnnData file; required if there are several (AnnData defaults to ``X``).
    columns : sequence of str, optional
        Names of the columns to read, in this order.
    n_features : int, optional
        Number of columns of an svmlight file, which may not mention the last columns if they are zero.
    first_index : {0, 1}, optional
        Index of the first column in svmlight; by default 0 if it occurs in the file, else 1.

    Returns
    -------
    Source
        The rows, to be read block by block.

    Raises
    ------
    DataError
        If the file cannot be used, on opening or while reading. Its attributes ``file``, ``line`` (counted from 1,
        header and blank lines included), ``row`` (counted from 0), ``column`` and ``value`` locate the fault.
    MissingExtraError
        If the package that reads this format is missing.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "north.csv"
    >>> size = path.write_text("site,age,height\nN,61,1.72\nN,47,1.80\n")
    >>> source = open_source(path, label_column="site")
    >>> source.columns
    ('age', 'height')
    >>> [block.shape for block in source.blocks()]
    [(2, 2)]
    """
    if isinstance(columns, str):
        message = f"{os.fspath(path)}: columns is a string, {columns!r}; give a list of names"
        raise DataError(message, parameter="columns", file=os.fspath(path), value=columns)
    names = None if columns is None else tuple(columns)
    return _open(Path(path), os.fspath(path), Options(label_column, dataset, names, n_features, first_index))


def _open(path: Path, name: str, options: Options) -> Source:
    """Open a file in the format of its suffix, after checking that the options apply."""
    form, suffix = _format(path, name)
    for option, given in vars(options).items():
        if given is not None and option not in form.options:
            raise DataError(
                f"{name}: {option} = {given!r} does not apply to {form.kind} files{_why(form, option)}; omit it",
                parameter=option,
                file=name,
                value=given,
            )
    try:
        return form.open(path, name, options)
    except DataError as error:
        if suffix:
            raise
        others = ", ".join(SUFFIXES)
        hint = f" (a file without a suffix is read as svmlight; other formats need one of {others})"
        raise error.with_hint(hint) from error


def open_sources(
    paths: Sequence[str | os.PathLike[str]],
    *,
    label_column: str | None = None,
    dataset: str | None = None,
    n_features: int | None = None,
    first_index: int | None = None,
) -> list[Source]:
    """Open several files, with a common numbering of columns if they are svmlight.

    Parameters
    ----------
    paths : sequence of str or path
        The files.
    label_column, dataset : str, optional
        As for `open_source`.
    n_features : int, optional
        Minimum number of columns of svmlight files.
    first_index : {0, 1}, optional
        Index of the first column in svmlight files.

    Returns
    -------
    list of Source
        One source per file.

    Raises
    ------
    DataError, MissingExtraError
        As for `open_source`.

    Notes
    -----
    svmlight omits zeros, so a single file may reveal neither the number of columns nor whether they are counted from 0
    or from 1. Both are determined from all files together.
    """
    opened = [open_source(path, label_column=label_column, dataset=dataset) for path in paths]
    common = common_indices([(source.first_index, source.d) for source in opened], first_index, n_features)
    if common is None:
        return opened
    first, widest = common
    return [
        open_source(path, n_features=widest, first_index=first)
        if source.first_index is not None and (source.d != widest or source.first_index != first)
        else source
        for path, source in zip(paths, opened, strict=True)
    ]


def common_indices(
    headers: Sequence[tuple[int | None, int]], first_index: int | None = None, n_features: int | None = None
) -> tuple[int, int] | None:
    """Determine the first index and the number of columns of svmlight files from all files together.

    Parameters
    ----------
    headers : sequence of (int or None, int)
        ``first_index`` and ``d`` of every source.
    first_index : {0, 1}, optional
        First index, if known from elsewhere.
    n_features : int, optional
        Minimum number of columns, if known from elsewhere.

    Returns
    -------
    tuple of (int, int) or None
        First index and number of columns; None if no file is svmlight.
    """
    firsts = [first for first, _ in headers if first is not None]
    if not firsts:
        return None
    begin = min(firsts if first_index is None else [*firsts, first_index])
    return begin, max(n_features or 0, *(d + (begin if first is None else first) - begin for first, d in headers))


def _format(path: Path, name: str) -> tuple[_Format, str]:
    """Return the format of a file, and the suffix that determines it.

    Raises DataError if the file is missing, empty or not a regular file, or if its suffix is unknown.
    """
    with reading(name, "a file"):
        try:
            status = path.stat()
        except FileNotFoundError as error:
            raise DataError(f"{name}: file not found; check the path", file=name) from error
    if stat.S_ISDIR(status.st_mode):
        raise DataError(f"{name} is a folder; give the files in it", parameter="path", file=name)
    if not stat.S_ISREG(status.st_mode):
        message = f"{name} is not a regular file, so it cannot be read twice; save its contents to a file first"
        raise DataError(message, parameter="path", file=name)
    compression = path.suffix.lower() if path.suffix.lower() in (".gz", ".bz2") else ""
    suffix = (path.with_suffix("") if compression else path).suffix.lower()
    form = _FORMATS.get(suffix)
    if form is None or (compression and not form.may_be_compressed):
        raise DataError(
            f"{name}: unknown suffix {suffix}{compression}; use one of {', '.join(SUFFIXES)}, followed by .gz or .bz2 "
            "for compressed text",
            file=name,
            value=f"{suffix}{compression}",
        )
    if status.st_size == 0:
        raise DataError(f"{name} is empty; omit it, or provide rows", file=name)
    if suffix == ".txt":
        with reading(name, "text"):
            if svmlight.looks_like_svmlight(delimited.first_line(path, name)):
                form = _SVMLIGHT
    return form, suffix


def _why(form: _Format, option: str) -> str:
    """Return the reason why an option does not apply to a format, or an empty text if it is obvious."""
    if form is _SVMLIGHT and option == "label_column":
        return ", whose target is always the label"
    if option in ("label_column", "columns"):
        return ", whose columns have no names"
    return ""
