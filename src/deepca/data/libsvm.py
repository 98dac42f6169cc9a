"""The LIBSVM sets w8a and a9a: read from a folder or downloaded, checked, and kept in a fast form.

The rows are read once by scikit-learn and then kept as plain arrays in a cache folder, which is the environment
variable ``DEEPCA_CACHE`` or, without it, the user's cache folder of the system (``~/.cache/deepca`` on Linux).

Copies of these files go round with other labels and other compression, so what is checked is neither: it is the
features of the rows that the paper uses (see `features_digest`). Of a9a there are two editions: LIBSVM's, and one
that goes round without row 19,610, the only row with feature 123. Both are accepted; `Rows.digest` tells which it was.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from scipy import sparse

from deepca._util.typing import Array, Csr
from deepca.data.readers._common import unpacked
from deepca.data.readers.svmlight import line_fault
from deepca.errors import DataError, MissingExtraError, NetworkError

__all__ = ["SETS", "LibsvmRows", "LibsvmSet", "Progress", "features_digest", "load"]

Progress = Callable[[int, int | None], None]
"""Told ``(bytes so far, bytes in all)`` while a file comes in; the second is None where the server does not say."""

_FORMAT = 1  # of the files in the cache: raise it when what is in them changes
_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


@dataclass(frozen=True)
class LibsvmSet:
    """What is known of a data set before it is there."""

    name: str
    url: str
    n_features: int
    n_rows_used: int
    """How many rows, from the first on, the paper uses: agents times rows per agent."""
    digests: tuple[str, ...]
    """`features_digest` of the rows used, one for each edition of the file that is accepted."""


@dataclass(frozen=True)
class LibsvmRows:
    """All rows of a file."""

    X: Csr
    labels: Array
    source: str
    """Name of the file that the rows come from."""
    digest: str
    """`features_digest` of the rows that the paper uses: tells which edition of the file this is."""


SETS: Mapping[str, LibsvmSet] = MappingProxyType(
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
"""The data sets of the paper, with 50 agents of 800 and of 600 rows."""


def load(
    name: str,
    folder: Path | None = None,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
    sets: Mapping[str, LibsvmSet] = SETS,
) -> LibsvmRows:
    """All rows of the set ``name``, from ``folder`` or, without one, from the network.

    A folder holds the file as plain text, ``.bz2`` or ``.gz``, with or without ``.txt`` before that. A download is
    kept in ``cache`` and used from there the next time; ``timeout`` is how many seconds the server may be silent, and
    ``progress`` is told how far it has come.

    Raises `DataError` for a file that cannot be used and `NetworkError` for one that did not arrive.
    """
    if name not in sets:
        raise DataError(f"there is no data set {name!r}; choose one of {', '.join(sorted(sets))}")
    wanted, store = sets[name], cache if cache is not None else _default_cache()
    fresh = f"get a fresh copy from {wanted.url}"
    if folder is not None:
        path = _find(wanted, folder)
        return _read(wanted, _File(path, str(path), fresh), store)
    kept = store / name
    if kept.is_file():
        with suppress(DataError):  # damaged since it was fetched: fetched again
            return _read(wanted, _File(kept, str(kept), fresh), store)
    return _fetch(wanted, store, progress, timeout)


def features_digest(X: Csr) -> str:
    """SHA-256 of a sparse matrix: equal for equal matrices, however the file that held them was written.

    Over a line that names the form, then the shape, row pointers (int64), columns (int32) and values (float64) in
    little-endian order, columns ascending, no duplicates and no stored zeros.
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
    path: Path
    label: str
    """How an error names it."""
    way_out: str
    """What to do when it cannot be used."""


def _find(wanted: LibsvmSet, folder: Path) -> Path:
    if not folder.is_dir():
        what = "is a file; give the folder that it is in" if folder.exists() else "does not exist; give one that does"
        raise DataError(f"the data folder {folder} {what}")
    names = [f"{wanted.name}{text}{packed}" for packed in ("", ".bz2", ".gz") for text in ("", ".txt")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"{wanted.name} is not in {folder}: looked for {', '.join(names)}; put one of them there "
        f"(from {wanted.url}), or give no folder to have it downloaded"
    )


def _read(wanted: LibsvmSet, file: _File, store: Path) -> LibsvmRows:
    """The rows of a file: from the fast form if it was read before, else parsed, checked and kept."""
    fast = store / _fast_name(wanted, file)
    rows = _load_fast(wanted, file, fast)
    if rows is None:
        rows = _parse(wanted, file)
        _save_fast(rows, fast)
    return rows


def _parse(wanted: LibsvmSet, file: _File) -> LibsvmRows:
    """The rows of a file that is what it should be."""
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError as error:
        raise MissingExtraError("reading LIBSVM files needs scikit-learn; pip install 'deepca[data]'") from error
    text = _unpacked(file)
    try:
        X, labels = load_svmlight_file(io.BytesIO(text), n_features=wanted.n_features, zero_based=False)
    except (ValueError, OverflowError) as error:
        raise DataError(_first_fault(wanted, file, text) or f"{file.label}: {error}; {file.way_out}") from error
    if not (np.isfinite(X.data).all() and np.isfinite(labels).all()):
        raise DataError(_first_fault(wanted, file, text) or f"{file.label} is not finite throughout; {file.way_out}")
    n = X.shape[0]
    if n < wanted.n_rows_used:
        raise DataError(
            f"{file.label} has {n:,} rows, and the paper uses the first {wanted.n_rows_used:,}: "
            f"it was cut short or is another data set; {file.way_out}"
        )
    rows = _rows(wanted, (X.data, X.indices, X.indptr), labels, file)
    if rows.digest not in wanted.digests:
        raise DataError(
            f"{file.label} is not the data set that the paper used: the checksum of the features of its first "
            f"{wanted.n_rows_used:,} rows is {rows.digest}, expected {' or '.join(wanted.digests)}; {file.way_out}"
        )
    return rows


def _rows(wanted: LibsvmSet, parts: tuple[Any, Any, Any], labels: Any, file: _File) -> LibsvmRows:
    data, indices, indptr = parts
    narrow = (data, indices.astype(np.int32, copy=False), indptr.astype(np.int32, copy=False))
    X = cast("Csr", sparse.csr_array(narrow, shape=(len(labels), wanted.n_features), dtype=np.float64))
    X.check_format(full_check=True)
    used = features_digest(X[: wanted.n_rows_used])
    return LibsvmRows(X, np.asarray(labels, dtype=np.float64), file.path.name, used)


def _unpacked(file: _File) -> bytes:
    try:
        with unpacked(file.path) as stream:
            return stream.read()
    except EOFError as error:
        raise DataError(f"{file.label} ends too early: it was cut short; {file.way_out}") from error
    except (OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # from the system, not from the unpacking
            raise DataError(f"{file.label} cannot be read ({error.strerror}); see to its permissions") from error
        raise DataError(f"{file.label} is damaged ({error}); {file.way_out}") from error


def _first_fault(wanted: LibsvmSet, file: _File, text: bytes) -> str | None:
    """The first line that cannot be used, and why; scikit-learn does not say which one it was."""
    for number, line in enumerate(text.split(b"\n"), 1):
        fault = line_fault(line, 1, wanted.n_features, finite=True)
        if fault is not None:
            return f"{file.label}, line {number}: {fault}; {file.way_out}"
    return None


# --- the fast form ---------------------------------------------------------------------------------------------------


def _default_cache() -> Path:
    chosen = os.environ.get("DEEPCA_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(_pooch().os_cache("deepca"))


def _fast_name(wanted: LibsvmSet, file: _File) -> str:
    """Another name whenever the source, what is asked of it or the form is another."""
    try:
        stat = file.path.stat()
    except OSError as error:
        raise DataError(f"{file.label} cannot be read ({error.strerror}); see to its permissions") from error
    key = [file.path.name, stat.st_size, stat.st_mtime_ns, _FORMAT]
    key += [wanted.n_features, wanted.n_rows_used, *wanted.digests]
    return f"{file.path.name}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.npz"


def _load_fast(wanted: LibsvmSet, file: _File, fast: Path) -> LibsvmRows | None:
    """The rows as kept; None if they are not there or not whole."""
    try:
        with fast.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
            parts = (kept["data"], kept["indices"], kept["indptr"])
            rows = _rows(wanted, parts, kept["labels"], file)
    except Exception:  # whatever is wrong with it, the way out is the same: read the source again
        return None
    return rows if rows.digest in wanted.digests else None


def _save_fast(rows: LibsvmRows, fast: Path) -> None:
    """Keep the rows, whole or not at all. A folder that cannot be written is no fault: they are parsed again then."""
    with suppress(OSError), _folder_in(fast.parent) as place:
        new = Path(place) / fast.name
        np.savez(new, data=rows.X.data, indices=rows.X.indices, indptr=rows.X.indptr, labels=rows.labels)
        new.replace(fast)


def _folder_in(store: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder that goes away by itself, in the store, from which a finished file can be moved at one stroke."""
    store.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=".new-", dir=store)


# --- fetching --------------------------------------------------------------------------------------------------------


def _fetch(wanted: LibsvmSet, store: Path, progress: Progress | None, timeout: float) -> LibsvmRows:
    """Download, check, and only then keep under its name."""
    try:
        folder = _folder_in(store)
    except OSError:  # not kept then
        folder = tempfile.TemporaryDirectory(prefix="deepca-")
    with folder as place:
        file = _File(Path(place) / wanted.name, f"what came from {wanted.url}", f"nothing was kept; {_by_hand(wanted)}")
        _download(wanted, file.path, progress, timeout)
        rows = _parse(wanted, file)
        with suppress(OSError):
            file.path.replace(store / wanted.name)
            kept = _File(store / wanted.name, wanted.name, "")
            _save_fast(rows, store / _fast_name(wanted, kept))
    return rows


def _download(wanted: LibsvmSet, target: Path, progress: Progress | None, timeout: float) -> None:
    pooch, failed = _pooch(), import_module("requests.exceptions")  # requests comes with pooch
    url, bar, way_out = wanted.url, _Bar(progress), _by_hand(wanted)
    # asked for as it is, so that the length announced is the length of the file
    get = pooch.HTTPDownloader(
        progressbar=bar, chunk_size=1 << 16, timeout=timeout, headers={"Accept-Encoding": "identity"}
    )
    try:
        get(url, str(target), None)
    except failed.HTTPError as error:
        status = f"{error.response.status_code} {error.response.reason}"
        raise NetworkError(f"the server answered {status!r} for {url}; {way_out}") from error
    except (failed.ChunkedEncodingError, failed.ContentDecodingError) as error:
        raise NetworkError(_broken_off(wanted, bar)) from error
    except (failed.Timeout, failed.ConnectionError) as error:
        if isinstance(error, failed.Timeout) or "timed out" in str(error):
            raise NetworkError(f"no answer within {timeout:g} s from {url}; {way_out}") from error
        raise NetworkError(f"{url} cannot be reached: is there a network? Otherwise {way_out} ({error})") from error
    except failed.RequestException as error:
        raise NetworkError(f"{url} could not be downloaded ({error}); {way_out}") from error
    except OSError as error:
        raise DataError(f"{url} cannot be stored ({error.strerror}); make room or choose another cache") from error
    if target.stat().st_size < bar.total:  # an older urllib3 does not notice
        raise NetworkError(_broken_off(wanted, bar))


def _broken_off(wanted: LibsvmSet, bar: _Bar) -> str:
    announced = f"before the {bar.total:,} bytes announced had come" if bar.total else "in the middle"
    return f"the download of {wanted.url} broke off {announced}; nothing was kept; {_by_hand(wanted)}"


def _by_hand(wanted: LibsvmSet) -> str:
    return f"try again later, or get {wanted.name} by other means and give the folder that it is in"


class _Bar:
    """What pooch expects of a progress bar, handed on to a plain function."""

    def __init__(self, progress: Progress | None) -> None:
        self.total = 0  # set by pooch; 0 where the server does not say
        self._done, self._progress = 0, progress

    def update(self, n: int) -> None:
        self._done = min(self._done + n, self.total) if self.total else self._done + n
        if self._progress is not None:
            self._progress(self._done, self.total or None)

    def reset(self) -> None:
        """Pooch starts anew at the end to fill the bar; there is no need."""

    def close(self) -> None:
        """Nothing to close."""


def _pooch() -> Any:
    try:
        return import_module("pooch")
    except ImportError as error:
        raise MissingExtraError("data sets need pooch; pip install 'deepca[data]'") from error
