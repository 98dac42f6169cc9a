"""Load the LIBSVM data sets w8a and a9a from a folder or the network, verify them, and cache them.

scikit-learn parses the rows once; afterwards they are cached as plain arrays, in the folder named by the environment
variable ``DEEPCA_CACHE`` or else in the user's cache folder (``~/.cache/deepca`` on Linux).

Published copies of these files differ in their labels and compression, so verification covers only the features of the
rows that the paper uses (see `features_digest`). There are two editions of a9a: LIBSVM's, and one without row 19,610,
the only row with feature 123. Both are accepted; `LibsvmRows.digest` identifies the one that was read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from scipy import sparse

from deepca._util.typing import Array, Csr
from deepca.data.downloads import DownloadProgress, download, download_advice, import_pooch
from deepca.data.readers._common import open_decompressed
from deepca.data.readers.svmlight import line_fault
from deepca.errors import DataError, MissingExtraError

__all__ = ["DATA_SETS", "DownloadProgress", "LibsvmRows", "LibsvmSet", "features_digest", "load"]

_CACHE_FORMAT = 1  # increase it whenever the contents of cached files change
_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


@dataclass(frozen=True)
class LibsvmSet:
    """Address of a data set, and the facts to verify.

    Parameters
    ----------
    name : str
        Name of the data set and of its file.
    url : str
        Address of the file.
    n_features : int
        Number of columns.
    n_rows_used : int
        Number of leading rows that the paper uses: agents times rows per agent.
    digests : tuple of str
        `features_digest` of the rows used, one for each accepted edition of the file.
    """

    name: str
    url: str
    n_features: int
    n_rows_used: int
    digests: tuple[str, ...]


@dataclass(frozen=True)
class LibsvmRows:
    """Rows of a data set.

    Parameters
    ----------
    X : csr_array
        The features.
    labels : ndarray
        One label per row.
    source : str
        Name of the file that the rows come from.
    digest : str
        `features_digest` of the rows that the paper uses, which identifies the edition of the file.
    """

    X: Csr
    labels: Array
    source: str
    digest: str


DATA_SETS: Mapping[str, LibsvmSet] = MappingProxyType(
    {
        "w8a": LibsvmSet(
            "w8a", _PAGE + "w8a", 300, 50 * 800, ("33c9a972a55189068205195a163248a83b7aa68f68df9ecc4ab8af84cb2a6439",)
        ),
        "a9a": LibsvmSet(
            "a9a",
            _PAGE + "a9a",
            123,
            50 * 600,
            (
                "9a3a940306c1e1e2018f3e6805d2188faaa799fc2dc979e06bcdc844e810c06f",
                "f760a08f6e25c2791853d1fc9a787853036f0f146962439c9ef15f3b60b19d03",
            ),
        ),
    }
)
"""The data sets of the paper: 50 agents with 800 rows each (w8a) or 600 rows each (a9a)."""


def load(
    name: str,
    folder: Path | None = None,
    *,
    cache: Path | None = None,
    progress: DownloadProgress | None = None,
    timeout: float = 30.0,
    sets: Mapping[str, LibsvmSet] = DATA_SETS,
) -> LibsvmRows:
    """Load all rows of a data set from a folder or, without one, from the network.

    Parameters
    ----------
    name : str
        Name of the data set, a key of ``sets``.
    folder : Path, optional
        Folder that contains the file as plain text or compressed (``.bz2``, ``.gz``), with or without the suffix
        ``.txt``.
    cache : Path, optional
        Folder for downloads and parsed rows; by default the one that this module describes.
    progress : callable, optional
        Called with ``(bytes so far, total bytes)`` during a download.
    timeout : float, default=30.0
        Seconds without data from the server after which the download fails.
    sets : mapping of str to LibsvmSet
        The known data sets.

    Returns
    -------
    LibsvmRows
        The verified rows.

    Raises
    ------
    DataError
        If the data set is unknown, or its file is missing, damaged or not the one that the paper used.
    NetworkError
        If the download fails.
    MissingExtraError
        If scikit-learn or pooch is missing.
    """
    if name not in sets:
        raise DataError(
            f"unknown data set {name!r}; choose one of {', '.join(sorted(sets))}", parameter="name", value=name
        )
    wanted, store = sets[name], cache if cache is not None else _default_cache()
    fresh = f"get a fresh copy from {wanted.url}"
    if folder is not None:
        path = _find(wanted, folder)
        return _read(wanted, _File(path, str(path), fresh), store)
    kept = store / name
    if kept.is_file():
        with suppress(DataError):  # damaged since the download: download it again
            return _read(wanted, _File(kept, str(kept), fresh), store)
    return _fetch(wanted, store, progress, timeout)


def features_digest(X: Csr) -> str:
    """Return the SHA-256 digest of a sparse matrix, which does not depend on how the matrix is stored.

    It covers a line that names the format, then the shape, row pointers (int64), columns (int32) and values (float64)
    in little-endian order, with ascending columns, no duplicates and no stored zeros.
    """
    X = X.copy()
    X.sum_duplicates()
    X.eliminate_zeros()
    digest = hashlib.sha256(b"deepca csr 1\n")
    for part, kind in ((X.shape, "<i8"), (X.indptr, "<i8"), (X.indices, "<i4"), (X.data, "<f8")):
        digest.update(np.ascontiguousarray(part, dtype=kind).data)
    return digest.hexdigest()


# --- reading a file --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    """File to read, its name in messages, and the advice to give if it cannot be used."""

    path: Path
    label: str
    advice: str

    def error(self, found: str, *, value: object = None) -> DataError:
        """Return the error for this file; ``value`` is the fact that is wrong."""
        return DataError(f"{self.label}{found}; {self.advice}", file=self.label, value=value)


def _find(wanted: LibsvmSet, folder: Path) -> Path:
    if not folder.is_dir():
        what = (
            "this is a file; give the folder that contains it"
            if folder.exists()
            else "folder not found; check the path"
        )
        raise DataError(f"{folder}: {what}", parameter="folder", file=str(folder))
    names = [f"{wanted.name}{text}{packed}" for packed in ("", ".bz2", ".gz") for text in ("", ".txt")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"{wanted.name} is not in {folder}: looked for {', '.join(names)}; put one of these files there "
        f"(from {wanted.url}), or omit the folder to download it",
        parameter="folder",
        file=str(folder),
        value=tuple(names),
    )


def _read(wanted: LibsvmSet, file: _File, store: Path) -> LibsvmRows:
    """Return the rows of a file from the cache; if they are not cached, parse, verify and cache them."""
    cached = store / _cache_name(wanted, file)
    rows = _load_cached(wanted, file, cached)
    if rows is None:
        rows = _parse(wanted, file)
        _save_cached(rows, cached)
    return rows


def _parse(wanted: LibsvmSet, file: _File) -> LibsvmRows:
    """Parse and verify a file."""
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError as error:
        message = "reading LIBSVM files needs scikit-learn; pip install 'deepca[data]'"
        raise MissingExtraError(message, name="scikit-learn") from error
    text = _decompressed(file)
    try:
        X, labels = load_svmlight_file(io.BytesIO(text), n_features=wanted.n_features, zero_based=False)
    except (ValueError, OverflowError) as error:
        raise _first_fault(wanted, file, text) or file.error(" is not svmlight text") from error
    if not (np.isfinite(X.data).all() and np.isfinite(labels).all()):
        raise _first_fault(wanted, file, text) or file.error(" contains values that are not finite")
    n = X.shape[0]
    if n < wanted.n_rows_used:
        raise file.error(
            f" has {n:,} rows, but the paper uses the first {wanted.n_rows_used:,}: "
            "it is truncated or a different data set",
            value=n,
        )
    rows = _rows(wanted, (X.data, X.indices, X.indptr), labels, file)
    if rows.digest not in wanted.digests:
        raise file.error(
            " is not the data set that the paper used: the checksum of the features of its first "
            f"{wanted.n_rows_used:,} rows is {rows.digest}, expected {' or '.join(wanted.digests)}",
            value=rows.digest,
        )
    return rows


def _rows(wanted: LibsvmSet, parts: tuple[Any, Any, Any], labels: Any, file: _File) -> LibsvmRows:
    data, indices, indptr = parts
    narrow = (data, indices.astype(np.int32, copy=False), indptr.astype(np.int32, copy=False))
    X = cast("Csr", sparse.csr_array(narrow, shape=(len(labels), wanted.n_features), dtype=np.float64))
    X.check_format(full_check=True)
    used = features_digest(X[: wanted.n_rows_used])
    return LibsvmRows(X, np.asarray(labels, dtype=np.float64), file.path.name, used)


def _decompressed(file: _File) -> bytes:
    """Return the decompressed text of a file; raise DataError if it cannot be read, or is truncated or damaged."""
    try:
        with open_decompressed(file.path) as stream:
            return stream.read()
    except EOFError as error:
        raise file.error(" is truncated") from error
    except (OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # raised by the system, not by the decompressor
            raise _unreadable_error(file, error) from error
        raise file.error(f" is damaged ({error})") from error


def _unreadable_error(file: _File, error: OSError) -> DataError:
    return DataError(f"{file.label} cannot be read ({error.strerror}); check its permissions", file=file.label)


def _first_fault(wanted: LibsvmSet, file: _File, text: bytes) -> DataError | None:
    """Return the error for the first malformed line, which scikit-learn does not report."""
    for line, content in enumerate(text.split(b"\n"), 1):
        fault = line_fault(content, 1, wanted.n_features, finite=True)
        if fault is not None:
            where = f"{file.label}, line {line}"
            return DataError(
                f"{where}: {fault.message}; {file.advice}",
                redacted=f"{where} is not valid svmlight text; {file.advice}",
                file=file.label,
                line=line,
                column=fault.column,
                value=fault.word,
            )
    return None


# --- the cache -------------------------------------------------------------------------------------------------------


def _default_cache() -> Path:
    chosen = os.environ.get("DEEPCA_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(import_pooch().os_cache("deepca"))


def _cache_name(wanted: LibsvmSet, file: _File) -> str:
    """Return a file name that changes with the source file, the data set description and the format.

    Raises DataError if the source file cannot be accessed.
    """
    try:
        stat = file.path.stat()
    except OSError as error:
        raise _unreadable_error(file, error) from error
    key = [file.path.name, stat.st_size, stat.st_mtime_ns, _CACHE_FORMAT]
    key += [wanted.n_features, wanted.n_rows_used, *wanted.digests]
    return f"{file.path.name}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.npz"


def _load_cached(wanted: LibsvmSet, file: _File, cached: Path) -> LibsvmRows | None:
    """Return the cached rows; None if they are missing or damaged."""
    try:
        with cached.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
            parts = (kept["data"], kept["indices"], kept["indptr"])
            rows = _rows(wanted, parts, kept["labels"], file)
    except Exception:  # an unusable cache file is ignored, and the data file is parsed again
        return None
    return rows if rows.digest in wanted.digests else None


def _save_cached(rows: LibsvmRows, cached: Path) -> None:
    """Cache the rows atomically; do nothing if the folder is not writable, since they can be parsed again."""
    with suppress(OSError), _temporary_folder(cached.parent) as place:
        new = Path(place) / cached.name
        np.savez(new, data=rows.X.data, indices=rows.X.indices, indptr=rows.X.indptr, labels=rows.labels)
        new.replace(cached)


def _temporary_folder(store: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder in the cache, from which a finished file can be renamed atomically."""
    store.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=".new-", dir=store)


# --- downloads -------------------------------------------------------------------------------------------------------


def _fetch(wanted: LibsvmSet, store: Path, progress: DownloadProgress | None, timeout: float) -> LibsvmRows:
    """Download and verify a file, and only then store it under its name."""
    try:
        folder = _temporary_folder(store)
    except OSError:  # the cache is not writable: discard the download after use
        folder = tempfile.TemporaryDirectory(prefix="deepca-")
    with folder as place:
        file = _File(
            Path(place) / wanted.name,
            f"the download from {wanted.url}",
            f"nothing was stored; {download_advice(wanted.name)}",
        )
        download(wanted.name, wanted.url, file.path, progress, timeout)
        rows = _parse(wanted, file)
        with suppress(OSError):
            file.path.replace(store / wanted.name)
            kept = _File(store / wanted.name, wanted.name, "")
            _save_cached(rows, store / _cache_name(wanted, kept))
    return rows
