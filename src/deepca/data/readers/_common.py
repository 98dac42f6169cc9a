"""Helpers shared by the readers: options, selection of columns and arrays, and errors that name the file."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from deepca.data.sources import check_matrix
from deepca.errors import DataError, DeepcaError, MissingExtraError

__all__ = [
    "NUMBERS_REQUIRED",
    "REPLACE_DAMAGED",
    "Options",
    "Selection",
    "damaged_file_error",
    "import_extra",
    "listed",
    "open_decompressed",
    "pick_array",
    "reading",
    "select_columns",
    "value_type",
]

_MAX_NAMES_SHOWN = 8  # keeps messages to a line or two
_MAX_LIBRARY_MESSAGE = 200  # number of characters to quote from messages of other libraries
REPLACE_DAMAGED = "replace it with an intact copy, or give it the suffix of its format"
NUMBERS_REQUIRED = "correct it, or name its column as label_column to exclude it"


@dataclass(frozen=True)
class Options:
    """Options of `open_source`, each None if not given."""

    label_column: str | None = None
    dataset: str | None = None
    columns: tuple[str, ...] | None = None
    n_features: int | None = None
    first_index: int | None = None


@dataclass(frozen=True)
class Selection:
    """Names of the columns to read: those of the values, in order, and that of the label."""

    values: tuple[str, ...]
    label: str | None


def select_columns(
    names: Sequence[str],
    file: str,
    options: Options,
    *,
    hidden: Iterable[str] = (),
    if_duplicate: str = "rename one of them",
) -> Selection:
    """Select the value columns and the label column of a file by name.

    ``hidden`` columns are excluded unless they are requested by name; ``if_duplicate`` is the advice to give if two
    columns have the same name. Raise DataError if names are not unique, a requested column does not exist, or no value
    column remains.
    """
    label, wanted = options.label_column, options.columns
    if (name := _first_duplicate(names)) is not None:
        raise DataError(
            f"{file}: two columns are named {name!r}; {if_duplicate}",
            redacted=f"{file}: two columns have the same name; {if_duplicate}",
            file=file,
            column=name,
        )
    known = set(names)
    requested = [("label_column", label)] if label is not None else []
    for option, name in (*requested, *(("columns", column) for column in wanted or ())):
        if name not in known:
            missing = f"{file} has no column {name!r}"
            raise DataError(
                f"{missing}; its columns are {listed(names)}",
                redacted=f"{missing}; choose one of its columns",
                parameter=option,
                file=file,
                column=name,
            )
    if wanted is not None:
        if (name := _first_duplicate(wanted)) is not None:
            message = f"{file}: columns contains {name!r} twice; list every column once"
            raise DataError(message, parameter="columns", file=file, column=name)
        if label in wanted:
            message = f"{file}: column {label!r} is requested both as a value and as the label; choose one"
            raise DataError(message, parameter="label_column", file=file, column=label)
        values = wanted
    else:
        excluded = {*hidden, label}
        values = tuple(column for column in names if column not in excluded)
    if not values:
        besides = "" if label is None else f" besides the label {label!r}"
        raise DataError(f"{file} has no columns{besides}; provide or select at least one", file=file, value=())
    return Selection(values, label)


def pick_array(
    file: str,
    shapes: Mapping[str, tuple[int, ...]],
    wanted: str | None,
    *,
    ndim: int = 2,
    parameter: str = "dataset",
) -> str:
    """Return the key of the array ``wanted`` or, if that is None, of the only matrix in the file.

    ``ndim`` is the number of dimensions that ``wanted`` must have, ``parameter`` the option that selects it. Raise
    DataError if no such array exists, or not exactly one matrix.
    """
    if wanted is not None:
        if wanted not in shapes:
            raise DataError(
                f"{file} has no array {wanted!r}; its arrays are {listed(list(shapes))}",
                parameter=parameter,
                file=file,
                value=wanted,
            )
        if len(shapes[wanted]) != ndim:
            expected = "(rows, columns)" if ndim == 2 else "one entry per row"
            raise DataError(
                f"{file}: {wanted!r} has shape {shapes[wanted]}; expected {expected}",
                parameter=parameter,
                file=file,
                value=shapes[wanted],
            )
        return wanted
    matrices = [key for key, shape in shapes.items() if len(shape) == 2]
    if len(matrices) == 1:
        return matrices[0]
    if matrices:
        message = f"{file} contains {len(matrices)} matrices, {listed(matrices)}; select one as the dataset"
        raise DataError(message, parameter=parameter, file=file, value=tuple(matrices))
    found = ", ".join(f"{key!r} {shape}" for key, shape in list(shapes.items())[:_MAX_NAMES_SHOWN])
    message = f"{file} contains no matrix of shape (rows, columns), only {found or 'nothing'}; add one"
    raise DataError(message, file=file, value=())


def value_type(shape: tuple[int, ...], kind: np.dtype[Any], file: str) -> np.dtype[Any]:
    """Return the type to convert an array to: float32 stays float32, all other real numbers become float64.

    Raises DataError unless the array is a nonempty matrix of real numbers.
    """
    if kind.kind == "O":
        raise DataError(
            f"{file} contains Python objects, not numbers; save it as an array of float64", file=file, value=kind
        )
    try:
        check_matrix(shape, kind, file, "it")
    except DataError as error:
        error.file = file
        raise
    return np.dtype(np.float32 if kind.kind == "f" and kind.itemsize == 4 else np.float64)


def import_extra(module: str, purpose: str) -> Any:
    """Import an optional package; if it is missing, raise an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(module.partition(".")[0], module.partition(".")[0])
        raise MissingExtraError(f"{purpose} needs {package}; pip install 'deepca[files]'", name=package) from error


@contextmanager
def reading(file: str, kind: str) -> Iterator[None]:
    """Translate any exception that a library raises into a DataError of one line with the name of the file."""
    try:
        yield
    except (DeepcaError, MemoryError):
        raise
    except OSError as error:
        if error.errno is not None and error.strerror:  # raised by the system, not by the library
            raise DataError(f"{file} cannot be read ({error.strerror}); check its permissions", file=file) from error
        raise damaged_file_error(file, kind, str(error) or type(error).__name__) from error
    except Exception as error:  # libraries raise errors of any type for damaged files
        raise damaged_file_error(file, kind, str(error) or type(error).__name__) from error


def damaged_file_error(file: str, kind: str, reason: str) -> DataError:
    """Return the error for a file that a library cannot parse; its redacted message omits ``reason``."""
    found, advice = f"{file} cannot be read as {kind}: it is damaged, truncated or in another format", REPLACE_DAMAGED
    reason = " ".join(reason.split())[:_MAX_LIBRARY_MESSAGE]
    return DataError(f"{found} ({reason}); {advice}", redacted=f"{found}; {advice}", file=file)


def open_decompressed(path: Path) -> IO[bytes]:
    """Open a file for reading; decompress it if its name ends in .gz or .bz2."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path))
    return cast("IO[bytes]", bz2.open(path)) if suffix == ".bz2" else path.open("rb")


def listed(names: Sequence[str]) -> str:
    """Format names for a message: all if there are at most eight, otherwise the first eight and the total number."""
    shown = ", ".join(repr(str(n)) for n in names[:_MAX_NAMES_SHOWN])
    return f"{shown}, … ({len(names):,} in all)" if len(names) > _MAX_NAMES_SHOWN else shown or "none"


def _first_duplicate(names: Sequence[str]) -> str | None:
    if len(set(names)) == len(names):
        return None
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
