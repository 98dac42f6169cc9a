"""What all readers share: how faults are told, how columns are chosen, which numbers become what."""

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

__all__ = ["SET_APART", "Choice", "Options", "choose", "extra", "listed", "pick", "reading", "unpacked", "value_type"]

_SHOWN = 8
SET_APART = "numbers are needed (or set the column apart with --label-column)"


@dataclass(frozen=True)
class Options:
    """What the caller asked for; None where nothing was said."""

    label_column: str | None = None
    dataset: str | None = None
    columns: tuple[str, ...] | None = None
    n_features: int | None = None
    first_index: int | None = None


@dataclass(frozen=True)
class Choice:
    """Which of the named columns are values, in order, and which is the label."""

    values: tuple[str, ...]
    label: str | None


def choose(
    names: Sequence[str],
    name: str,
    options: Options,
    *,
    hidden: Iterable[str] = (),
    if_twice: str = "rename one of them",
) -> Choice:
    """Columns by name; ``hidden`` ones are no values unless they are asked for."""
    label, wanted = options.label_column, options.columns
    _refuse_twice(names, f"{name}: two columns are called", if_twice)
    known = set(names)
    for asked in (*(() if label is None else (label,)), *(wanted or ())):
        if asked not in known:
            raise DataError(f"{name} has no column {asked!r}; there are {listed(names)}")
    if wanted is not None:
        _refuse_twice(wanted, f"{name}: columns names", "give every column once")
        if label in wanted:
            raise DataError(f"{name}: column {label!r} cannot be a value and the label; take it out of one")
        values = wanted
    else:
        without = {*hidden, label}
        values = tuple(column for column in names if column not in without)
    if not values:
        raise DataError(f"{name} has no columns" + ("" if label is None else f" besides the label {label!r}"))
    return Choice(values, label)


def pick(name: str, shapes: Mapping[str, tuple[int, ...]], wanted: str | None, *, ndim: int = 2) -> str:
    """The array called ``wanted``, or the only one that is a matrix."""
    if wanted is not None:
        if wanted not in shapes:
            raise DataError(f"{name} has no array {wanted!r}; there are {listed(list(shapes))}")
        if len(shapes[wanted]) != ndim:
            expected = "(rows, columns)" if ndim == 2 else "one entry per row"
            raise DataError(f"{name}: {wanted!r} has shape {shapes[wanted]}; expected {expected}")
        return wanted
    matrices = [key for key, shape in shapes.items() if len(shape) == 2]
    if len(matrices) == 1:
        return matrices[0]
    if matrices:
        raise DataError(f"{name} holds {len(matrices)} matrices, {listed(matrices)}; say which one with dataset")
    held = ", ".join(f"{key!r} {shape}" for key, shape in list(shapes.items())[:_SHOWN])
    raise DataError(f"{name} holds no matrix of shape (rows, columns), but {held or 'nothing'}")


def value_type(shape: tuple[int, ...], kind: np.dtype[Any], name: str) -> np.dtype[Any]:
    """What an array is given as: float32 stays, all other real numbers become float64."""
    if kind.kind == "O":
        raise DataError(f"{name} holds Python objects, not numbers; save it as an array of float64")
    check_matrix(shape, kind, name, "it")
    return np.dtype(np.float32 if kind.kind == "f" and kind.itemsize == 4 else np.float64)


def extra(module: str, kind: str) -> Any:
    """An optional package, or how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(module.partition(".")[0], module.partition(".")[0])
        raise MissingExtraError(f"{kind} needs {package}; pip install 'deepca[files]'") from error


@contextmanager
def reading(name: str, kind: str) -> Iterator[None]:
    """Whatever a library raises about a file becomes one sentence that names the file."""
    try:
        yield
    except (DeepcaError, MemoryError):
        raise
    except OSError as error:
        if error.errno is not None and error.strerror:  # from the system, not from the library
            raise DataError(f"{name} cannot be read ({error.strerror})") from error
        raise _not_what_it_should_be(name, kind, error) from error
    except Exception as error:  # libraries raise all sorts on damaged files
        raise _not_what_it_should_be(name, kind, error) from error


def unpacked(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked on the way if its name ends so."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path))
    return cast("IO[bytes]", bz2.open(path)) if suffix == ".bz2" else path.open("rb")


def listed(names: Sequence[str]) -> str:
    """Some names, and how many there are where that is not all."""
    shown = ", ".join(repr(str(n)) for n in names[:_SHOWN])
    return f"{shown}, … ({len(names):,} in all)" if len(names) > _SHOWN else shown or "none"


def _not_what_it_should_be(name: str, kind: str, error: Exception) -> DataError:
    said = " ".join(str(error).split())[:200] or type(error).__name__
    wrong = f"{name} cannot be read as {kind}: it is damaged, cut short or something else"
    return DataError(f"{wrong} ({said})", discreet=wrong)


def _refuse_twice(names: Sequence[str], what: str, way_out: str) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    for column in names:
        if column in seen:
            raise DataError(f"{what} {column!r}; {way_out}")
        seen.add(column)
