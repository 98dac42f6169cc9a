"""Files as sources: what the name of a file says about its format, and one module per format.

Packages that a format needs come with the ``files`` extra and are imported when a file of that format is opened.
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
    kind: str
    open: Callable[[Path, str, Options], Source]
    options: frozenset[str]
    """Which options mean something for it."""
    packed: bool = False
    """Whether it may be packed with gzip or bzip2."""


_NPY = _Format(".npy", arrays.open_npy, frozenset())
_NPZ = _Format(".npz", arrays.open_npz, frozenset({"dataset", "label_column"}))
_CSV = _Format("CSV", delimited.open_delimited, frozenset({"columns", "label_column"}), packed=True)
_PARQUET = _Format("Parquet", parquet.open_parquet, frozenset({"columns", "label_column"}))
_SVMLIGHT = _Format("svmlight", svmlight.open_svmlight, frozenset({"n_features", "first_index"}), packed=True)
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
"""How the names of files end that can be read; text may have .gz or .bz2 behind it."""


def open_source(
    path: str | os.PathLike[str],
    *,
    label_column: str | None = None,
    dataset: str | None = None,
    columns: Sequence[str] | None = None,
    n_features: int | None = None,
    first_index: int | None = None,
) -> Source:
    """The rows of a file, whose name says what it is.

    Parameters
    ----------
    path : ends in one of `SUFFIXES`; ``.csv``, ``.tsv``, ``.txt`` and svmlight may be packed (``.gz``, ``.bz2``). A
        file without a suffix is svmlight, as LIBSVM names them (``a9a``, ``a9a.bz2``); so is a ``.txt`` that looks like
        it.
    label_column : set apart from the values, for `Source.labels`: a column of CSV and Parquet, a column of ``obs`` in
        AnnData, a vector in .npz and HDF5. In svmlight the target is the label.
    dataset : which matrix of an .npz, HDF5 or AnnData file; needed where there are several (AnnData has ``X``).
    columns : names of columns to take, in this order.
    n_features : number of columns of svmlight, where this file may lack the last ones.
    first_index : 0 or 1, from which svmlight counts its columns; 0 if one is found, else 1, unless told.

    Rows are numbered from 0 in messages. Raises `DataError` for what cannot be used, when it is opened or in the middle
    of reading, and `MissingExtraError` where a package is not installed.
    """
    file, name = Path(path), os.fspath(path)
    form, suffix = _format(file, name)
    if isinstance(columns, str):
        raise DataError(f"{name}: columns is one text, {columns!r}; give a list of names")
    options = Options(label_column, dataset, None if columns is None else tuple(columns), n_features, first_index)
    for option, given in vars(options).items():
        if given is not None and option not in form.options:
            raise DataError(f"{name}: {option} means nothing for {form.kind} files{_why(form, option)}; leave it out")
    try:
        return form.open(file, name, options)
    except DataError as error:
        if suffix:
            raise
        others = ", ".join(SUFFIXES)
        more = f"; a file without a suffix is read as svmlight, others need one of {others}"
        raise error.with_hint(more) from error


def open_sources(
    paths: Sequence[str | os.PathLike[str]],
    *,
    label_column: str | None = None,
    dataset: str | None = None,
    n_features: int | None = None,
    first_index: int | None = None,
) -> list[Source]:
    """Several files that hold the same columns.

    svmlight leaves out zeros, so a single file may tell neither how many columns there are nor whether they are counted
    from 0 or from 1. All files together do: what one of them shows holds for the others.
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
    told: Sequence[tuple[int | None, int]], first_index: int | None = None, n_features: int | None = None
) -> tuple[int, int] | None:
    """Return the first index of svmlight files and the number of columns, as all files together show them.

    told : ``first_index`` and ``d`` of every source.  first_index, n_features : what else is known.  None where no file
    is svmlight.
    """
    firsts = [first for first, _ in told if first is not None]
    if not firsts:
        return None
    begin = min(firsts if first_index is None else [*firsts, first_index])
    return begin, max(n_features or 0, *(d + (begin if first is None else first) - begin for first, d in told))


def _format(path: Path, name: str) -> tuple[_Format, str]:
    """What a file is, and the suffix that says so."""
    with reading(name, "a file"):
        try:
            held = path.stat()
        except FileNotFoundError:
            raise DataError(f"{name} does not exist") from None
    if stat.S_ISDIR(held.st_mode):
        raise DataError(f"{name} is a folder; give the files in it")
    if not stat.S_ISREG(held.st_mode):
        raise DataError(f"{name} is no regular file, so it cannot be read twice; save it in one first")
    packing = path.suffix.lower() if path.suffix.lower() in (".gz", ".bz2") else ""
    suffix = (path.with_suffix("") if packing else path).suffix.lower()
    form = _FORMATS.get(suffix)
    if form is None or (packing and not form.packed):
        raise DataError(
            f"{name}: {suffix}{packing} is not known; files end in {', '.join(SUFFIXES)}, "
            "and text may have .gz or .bz2 behind that"
        )
    if held.st_size == 0:
        raise DataError(f"{name} is empty; leave it out or give it data")
    if suffix == ".txt":
        with reading(name, "text"):
            if svmlight.looks_like_svmlight(delimited.first_line(path, name)):
                form = _SVMLIGHT
    return form, suffix


def _why(form: _Format, option: str) -> str:
    if form is _SVMLIGHT and option == "label_column":
        return ", whose label is always set apart"
    if option in ("label_column", "columns"):
        return ", whose columns have no names"
    return ""
