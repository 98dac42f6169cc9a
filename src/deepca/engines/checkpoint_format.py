"""File format of checkpoints: the State of an algorithm, with a checksum that reveals incomplete files.

A file consists of:

=============  =====================================================================================================
8 bytes        ``DEEPCAcp``
2 × 4 bytes    version of the format, length of the header (little-endian)
header         JSON: digests of the run and its data, the State as a tree, and the layout of every array
arrays         their entries, little-endian, one array after another
32 bytes       SHA-256 of all preceding bytes
=============  =====================================================================================================

The file contains no code: classes are looked up in a fixed table, and their fields must be exactly those of the class.

A run that resumes from a file produces the same bits as an uninterrupted one. Storing only values would not be enough:
sums and products are rounded differently if an array has another memory order, and ``XᵀY`` is computed by another BLAS
routine if X and Y are the same array. Therefore strides are stored, too, and an array that occurs twice in the State is
stored once and shared again after loading.
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

from deepca._util.files import sync_folder
from deepca.algorithms.accelerated import AcceleratedState
from deepca.algorithms.base import State, TrackedState
from deepca.algorithms.covariance import CovarianceState
from deepca.algorithms.krylov import KrylovState
from deepca.consensus.mixer_state import PushSum
from deepca.engines.checkpoint_arrays import (
    CHUNK_BYTES,
    DamagedCheckpoint,
    Layout,
    UnusableCheckpoint,
    layout_from,
    layout_of,
    pieces_of,
    read_array,
)
from deepca.network.compression import Copies

__all__ = ["CLASSES", "FIELD_CHECKS", "Checkpoint", "CheckpointInfo"]

_FORMAT = 1
_MAGIC = b"DEEPCAcp"
_START = struct.Struct("<8sII")
DIGEST_BYTES = 32  # size of a SHA-256 digest
_MAX_HEADER = 1 << 20  # maximum size of a header in bytes; files with a longer header count as damaged
# classes that a checkpoint may contain, by name
CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (State, TrackedState, AcceleratedState, KrylovState, CovarianceState, Copies, PushSum)
}
# checks of the value of a field, by its annotation
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
class CheckpointInfo:
    """Description of a checkpoint without its State.

    Parameters
    ----------
    iteration : int
        Iteration of the State.
    key : bytes
        Digest that identifies the checkpoint; equal at all sites for checkpoints that belong together.
    members : bytes
        Digest of the sites whose rows the run uses.
    k : int
        Number of components of the run.
    """

    iteration: int
    key: bytes
    members: bytes
    k: int


@dataclass(frozen=True)
class Checkpoint(CheckpointInfo):
    """State of the agents of one process, with digests that identify the run and the rows.

    Parameters
    ----------
    iteration, key, members, k : int or bytes
        As in :class:`CheckpointInfo`.
    data : bytes
        Digest of the rows of this process, 32 bytes.
    run : bytes
        Digest of the network and the run, 32 bytes.
    state : State
        The State.
    seed : int, default=0
        Seed with which the run began.

    Raises
    ------
    ValueError
        If a digest does not have 32 bytes, or ``iteration`` is not that of the State.
    """

    data: bytes
    run: bytes
    state: State
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError unless digests have 32 bytes and the iteration is that of the State."""
        if any(len(digest) != DIGEST_BYTES for digest in (self.key, self.members, self.data, self.run)):
            raise ValueError(f"key, members, data and run must have {DIGEST_BYTES} bytes each")
        if self.iteration != self.state.t:
            raise ValueError(f"iteration {self.iteration} does not match the state after {self.state.t} iterations")


def remove_files(paths: Sequence[Path]) -> None:
    """Remove files; ignore those that cannot be removed."""
    for path in paths:
        with contextlib.suppress(OSError):  # the next start finds a remaining file, and ignores it
            path.unlink()


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically and durably, without copying its arrays; after an OSError no file remains."""
    arrays = _Arrays()
    about = {
        "iteration": checkpoint.iteration,
        "k": checkpoint.k,
        "seed": checkpoint.seed,
        **{name: getattr(checkpoint, name).hex() for name in ("key", "members", "data", "run")},
        "state": _encode(checkpoint.state, arrays),
    }
    about["arrays"] = [layout_of(array) for array in arrays.found]
    header = json.dumps(about, allow_nan=False).encode()
    if len(header) > _MAX_HEADER:
        raise OSError(
            errno.EFBIG, f"the header of a checkpoint would take {len(header):,} bytes, more than {_MAX_HEADER:,}"
        )
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".part")  # with mode 0600
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            start = _START.pack(_MAGIC, _FORMAT, len(header)) + header
            digest = hashlib.sha256(start)
            file.write(start)
            for piece in chain.from_iterable(map(pieces_of, arrays.found)):
                digest.update(piece)
                file.write(piece)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        try:
            sync_folder(path.parent, must_succeed=True)
        except OSError:
            remove_files([path])
            raise
    finally:
        remove_files([part])


def verified_header(path: Path) -> dict[str, Any]:
    """Return the header of a file after verifying its checksum, without loading its arrays.

    Raise UnusableCheckpoint if the file is damaged or has a different format.
    """
    with _open(path) as (file, size):
        header, _, digest, room = _read_header(file, size)
        while room:
            piece = file.read(min(CHUNK_BYTES, room))
            if not piece:
                raise DamagedCheckpoint("the file is truncated")
            digest.update(piece)
            room -= len(piece)
        if file.read(DIGEST_BYTES) != digest.digest():
            raise DamagedCheckpoint("the checksum is wrong")
    return header


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raise UnusableCheckpoint if it is damaged or has a different format."""
    with _open(path) as (file, size):
        header, layouts, digest, _ = _read_header(file, size)
        arrays = [read_array(file, layout, digest) for layout in layouts]
        if file.read(DIGEST_BYTES) != digest.digest():
            raise DamagedCheckpoint("the checksum is wrong")
    about = parse_identity(header)
    try:
        state = _decode(header["state"], arrays)
        if not isinstance(state, State):
            raise DamagedCheckpoint("it does not contain a State")
        return Checkpoint(**about, state=state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError):
        raise DamagedCheckpoint("its contents are inconsistent") from None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """Open a regular file and yield it with its size."""
    if not path.is_file():  # opening a pipe would wait for a writer
        raise FileNotFoundError(errno.ENOENT, "the file no longer exists, or is not a regular file")
    with path.open("rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def _read_header(file: BufferedReader, size: int) -> tuple[dict[str, Any], list[Layout], Any, int]:
    """Return header, layouts, digest so far and total size of the arrays, checked against the length of the file.

    Raises DamagedCheckpoint if the header or the length is wrong, and UnusableCheckpoint if the format is different.
    """
    start = file.read(_START.size)
    if len(start) < _START.size or not start.startswith(_MAGIC):
        raise DamagedCheckpoint("the file is not a checkpoint, or its beginning is missing")
    _, version, length = _START.unpack(start)
    if version != _FORMAT:
        raise UnusableCheckpoint(f"it has format {version}, but this version of deepca reads only format {_FORMAT}")
    room = size - _START.size - length - DIGEST_BYTES
    if length > _MAX_HEADER or room < 0:
        raise DamagedCheckpoint("the file is truncated")
    text = file.read(length)
    try:
        header = json.loads(text)
        layouts = [layout_from(entry) for entry in header["arrays"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        raise DamagedCheckpoint("the header is damaged") from None
    if sum(layout.nbytes for layout in layouts) != room:
        raise DamagedCheckpoint("the length of the file does not match its arrays")
    digest = hashlib.sha256(start)
    digest.update(text)
    return header, layouts, digest, room


def parse_identity(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Checkpoint other than its State; raise DamagedCheckpoint if they are malformed."""
    try:
        about: dict[str, Any] = {name: bytes.fromhex(header[name]) for name in ("key", "members", "data", "run")}
        whole = {"seed": 0} | {name: header[name] for name in ("iteration", "k")}
        whole |= {name: header[name] for name in ("seed",) if name in header}  # files of version 0.1 have none
        fits = {"seed", *header} == {*about, *whole, "state", "arrays"} and all(type(n) is int for n in whole.values())
        fits = fits and all(len(digest) == DIGEST_BYTES for digest in about.values())
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise DamagedCheckpoint("the header is damaged")
    return about | whole


class _Arrays:
    """The distinct arrays of a State, in the order in which they occur."""

    def __init__(self) -> None:
        self.found: list[npt.NDArray[Any]] = []
        self._places: dict[tuple[Any, ...], int] = {}

    def index(self, array: npt.NDArray[Any]) -> int:
        """Return the index of an array; an array that occurs for the first time is added."""
        where = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype)
        if where not in self._places:
            self._places[where] = len(self.found)
            self.found.append(array)
        return self._places[where]


def _encode(value: Any, arrays: _Arrays) -> Any:
    """Return a value as JSON; values that JSON would change or does not support become objects with one entry.

    Raises TypeError for a type that cannot be stored.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": repr(value)}
    if type(value) is tuple:
        return {"tuple": [_encode(item, arrays) for item in value]}
    if isinstance(value, np.ndarray):
        return {"array": arrays.index(value)}
    name = type(value).__name__
    if CLASSES.get(name) is not type(value):
        raise TypeError(f"cannot store a {name} in a checkpoint")
    inside = {}
    for entry in fields(CLASSES[name]):
        item = getattr(value, entry.name)
        item = item.item() if isinstance(item, np.generic) else item
        if not _fits(item, entry.type):
            raise TypeError(f"cannot store {name}.{entry.name} of type {type(item).__name__} in a checkpoint")
        inside[entry.name] = _encode(item, arrays)
    return {name: inside}


def _decode(tree: Any, arrays: Sequence[npt.NDArray[Any]]) -> Any:
    """Return the value that :func:`_encode` was given; raise ValueError or another error if the tree is malformed."""
    if tree is None or type(tree) in (bool, int, str):
        return tree
    [(kind, inside)] = tree.items()
    if kind == "float":
        return float(inside)
    if kind == "tuple":
        return tuple(_decode(item, arrays) for item in inside)
    if kind == "array":
        if type(inside) is not int or inside < 0:
            raise ValueError
        return arrays[inside]
    cls = CLASSES[kind]
    values = {name: _decode(item, arrays) for name, item in inside.items()}
    types = {entry.name: entry.type for entry in fields(cls)}
    if set(values) != set(types) or not all(_fits(values[name], types[name]) for name in types):
        raise ValueError
    return cls(**values)


def _fits(value: Any, annotation: Any) -> bool:
    """Return whether a value fits the annotation of a field."""
    return FIELD_CHECKS[str(annotation)](value)
