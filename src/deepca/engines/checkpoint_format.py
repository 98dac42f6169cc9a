"""Checkpoints of the agents of one process: the State of their algorithm in a file that is whole, or is not used.

A file is, in this order:

=============  =====================================================================================================
8 bytes        ``DEEPCAcp``
2 × 4 bytes    version of the format, length of the header (little-endian)
header         JSON: what the checkpoint belongs to, its State as a tree, and the layout of every array
arrays         their numbers, little-endian, one array after the other
32 bytes       SHA-256 of everything before
=============  =====================================================================================================

Nothing in it is code: classes are looked up in a fixed table, and their fields must be just those of the class.

A run that goes on from a file takes the same bits as one that was never interrupted. For that the numbers alone are
not enough: a sum over columns or a product takes another path, with other rounding, where an array lies in memory in
another order, and ``XᵀY`` is another routine where X and Y are one array. So strides are stored, and an array that
appears twice is stored once and appears twice again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca.algorithms.accelerated import AcceleratedState
from deepca.algorithms.base import State, TrackedState
from deepca.algorithms.covariance import CovarianceState
from deepca.algorithms.krylov import KrylovState
from deepca.consensus.mixer_state import PushSum
from deepca.engines.checkpoint_arrays import PIECE, Damaged, Layout, Unusable, layout_from, layout_of, loaded, pieces_of
from deepca.network.compression import Copies

__all__ = ["CLASSES", "FIELD_CHECKS", "Checkpoint", "KeptCheckpoint"]

_FORMAT = 1
_MAGIC = b"DEEPCAcp"
_START = struct.Struct("<8sII")
DIGEST = 32  # bytes of a SHA-256
_LONGEST_HEADER = 1 << 20
# whatever a checkpoint may hold, by its name in the file
CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (State, TrackedState, AcceleratedState, KrylovState, CovarianceState, Copies, PushSum)
}
# what a field may hold, by its annotation
FIELD_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int,
    "bool": lambda value: type(value) is bool,
    "str": lambda value: type(value) is str,
    "float": lambda value: type(value) in (float, int),
    "float | None": lambda value: value is None or type(value) in (float, int),
    "Array": lambda value: isinstance(value, np.ndarray),
    "Memory | None": lambda value: value is None or isinstance(value, (Copies, PushSum)),
    "tuple[float, ...]": lambda value: isinstance(value, tuple) and all(type(item) in (float, int) for item in value),
    "tuple[Array, ...]": lambda value: isinstance(value, tuple) and all(isinstance(item, np.ndarray) for item in value),
}


@dataclass(frozen=True)
class KeptCheckpoint:
    """What is known of a checkpoint without its State.

    iteration : of the State.  key : equal at all sites for checkpoints that belong together.  members : digest of the
    sites whose rows it is about.  k : components of the run it was made in.
    """

    iteration: int
    key: bytes
    members: bytes
    k: int


@dataclass(frozen=True)
class Checkpoint(KeptCheckpoint):
    """The State of one agent, and what it belongs to.

    data : digest of this site's rows.  run : digest of network and run.  All digests have 32 bytes.
    """

    data: bytes
    run: bytes
    state: State

    def __post_init__(self) -> None:
        if any(len(digest) != DIGEST for digest in (self.key, self.members, self.data, self.run)):
            raise ValueError(f"key, members, data and run have {DIGEST} bytes each")
        if self.iteration != self.state.t:
            raise ValueError(f"iteration {self.iteration} of a state after {self.state.t} iterations")


def remove_if_there(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # where it cannot be removed it is found, and left out, at the next start
            path.unlink()


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Whole and on the disk, or an OSError and no file; numbers go to the file from where they are."""
    arrays = _Arrays()
    about = {
        "iteration": checkpoint.iteration,
        "k": checkpoint.k,
        **{name: getattr(checkpoint, name).hex() for name in ("key", "members", "data", "run")},
        "state": _tree(checkpoint.state, arrays),
    }
    about["arrays"] = [layout_of(array) for array in arrays.found]
    header = json.dumps(about, allow_nan=False).encode()
    if len(header) > _LONGEST_HEADER:
        raise OSError(errno.EFBIG, f"the header of a checkpoint would take {len(header)} bytes")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".part")  # with mode 0600
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            start = _START.pack(_MAGIC, _FORMAT, len(header)) + header
            total = hashlib.sha256(start)
            file.write(start)
            for piece in chain.from_iterable(map(pieces_of, arrays.found)):
                total.update(piece)
                file.write(piece)
            file.write(total.digest())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        try:
            sync_folder(path.parent)
        except OSError:
            remove_if_there([path])
            raise
    finally:
        remove_if_there([part])


def sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def verified(path: Path) -> dict[str, Any]:
    """The header of a file whose checksum is right, without loading its arrays."""
    with _opened(path) as (file, size):
        header, _, total, room = _begun(file, size)
        while room:
            piece = file.read(min(PIECE, room))
            if not piece:
                raise Damaged("it is shorter than it says")
            total.update(piece)
            room -= len(piece)
        if file.read(DIGEST) != total.digest():
            raise Damaged("its checksum is wrong")
    return header


def read_checkpoint(path: Path) -> Checkpoint:
    with _opened(path) as (file, size):
        header, layouts, total, _ = _begun(file, size)
        arrays = [loaded(file, layout, total) for layout in layouts]
        if file.read(DIGEST) != total.digest():
            raise Damaged("its checksum is wrong")
    about = parsed_about(header)
    try:
        state = _value(header["state"], arrays)
        if not isinstance(state, State):
            raise Damaged("it holds no state")
        return Checkpoint(**about, state=state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError):
        raise Damaged("what it holds does not fit together") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    if not path.is_file():  # opening a pipe would wait for a writer
        raise FileNotFoundError(errno.ENOENT, "it is gone")
    with path.open("rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def _begun(file: BufferedReader, size: int) -> tuple[dict[str, Any], list[Layout], Any, int]:
    """Header, layouts, hash so far and bytes of all arrays, checked against the length of the file."""
    start = file.read(_START.size)
    if len(start) < _START.size or not start.startswith(_MAGIC):
        raise Damaged("it is no checkpoint, or its beginning is lost")
    _, version, length = _START.unpack(start)
    if version != _FORMAT:
        raise Unusable(f"it has format {version}, and this version of deepca reads format {_FORMAT}")
    room = size - _START.size - length - DIGEST
    if length > _LONGEST_HEADER or room < 0:
        raise Damaged("it is shorter than it says")
    text = file.read(length)
    try:
        header = json.loads(text)
        layouts = [layout_from(entry) for entry in header["arrays"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        raise Damaged("its header is damaged") from None
    if sum(layout.nbytes for layout in layouts) != room:
        raise Damaged("its length is not that of its arrays")
    total = hashlib.sha256(start)
    total.update(text)
    return header, layouts, total, room


def parsed_about(header: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint belongs to."""
    try:
        about: dict[str, Any] = {name: bytes.fromhex(header[name]) for name in ("key", "members", "data", "run")}
        whole = {name: header[name] for name in ("iteration", "k")}
        fits = set(header) == {*about, *whole, "state", "arrays"} and all(type(n) is int for n in whole.values())
        fits = fits and all(len(digest) == DIGEST for digest in about.values())
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise Damaged("its header is damaged")
    return about | whole


class _Arrays:
    """The different arrays of a State, in the order in which they are met."""

    def __init__(self) -> None:
        self.found: list[npt.NDArray[Any]] = []
        self._places: dict[tuple[Any, ...], int] = {}

    def place(self, array: npt.NDArray[Any]) -> int:
        where = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype)
        if where not in self._places:
            self._places[where] = len(self.found)
            self.found.append(array)
        return self._places[where]


def _tree(value: Any, arrays: _Arrays) -> Any:
    """A value for JSON; whatever JSON would change or does not know is an object with one entry."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": repr(value)}
    if type(value) is tuple:
        return {"tuple": [_tree(item, arrays) for item in value]}
    if isinstance(value, np.ndarray):
        return {"array": arrays.place(value)}
    name = type(value).__name__
    if CLASSES.get(name) is not type(value):
        raise TypeError(f"a checkpoint cannot hold a {name}")
    inside = {}
    for entry in fields(CLASSES[name]):
        held = getattr(value, entry.name)
        held = held.item() if isinstance(held, np.generic) else held
        if not _fits(held, entry.type):
            raise TypeError(f"a checkpoint cannot hold {name}.{entry.name} with a {type(held).__name__}")
        inside[entry.name] = _tree(held, arrays)
    return {name: inside}


def _value(tree: Any, arrays: Sequence[npt.NDArray[Any]]) -> Any:
    """The inverse of :func:`_tree`."""
    if tree is None or type(tree) in (bool, int, str):
        return tree
    [(kind, inside)] = tree.items()
    if kind == "float":
        return float(inside)
    if kind == "tuple":
        return tuple(_value(item, arrays) for item in inside)
    if kind == "array":
        if type(inside) is not int or inside < 0:
            raise ValueError
        return arrays[inside]
    cls = CLASSES[kind]
    held = {name: _value(item, arrays) for name, item in inside.items()}
    wanted = {entry.name: entry.type for entry in fields(cls)}
    if set(held) != set(wanted) or not all(_fits(held[name], wanted[name]) for name in wanted):
        raise ValueError
    return cls(**held)


def _fits(value: Any, annotation: Any) -> bool:
    return FIELD_CHECKS[str(annotation)](value)
