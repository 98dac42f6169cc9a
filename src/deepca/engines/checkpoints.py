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
import math
import os
import re
import struct
import sys
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
from deepca.network.compression import Copies

__all__ = ["Checkpoint", "Checkpoints", "Kept"]

_FORMAT = 1
_MAGIC = b"DEEPCAcp"
_START = struct.Struct("<8sII")
_DIGEST = 32  # bytes of a SHA-256
_LONGEST_HEADER = 1 << 20
_PIECE = 1 << 20  # bytes that are read, written or copied at a time
_ROOM = 8  # by how much gaps may enlarge an array in memory, before it is stored without them
_KEPT = 2
_NAME = re.compile(r"([0-9a-f]{8})-([0-9]{10})\.checkpoint")
_PART = re.compile(_NAME.pattern + r"\..*\.part")
_CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (State, TrackedState, AcceleratedState, KrylovState, CovarianceState, Copies, PushSum)
}
_DTYPES = ("f8", "f4", "f2")
# what a field may hold, by its annotation
_FITS: dict[str, Callable[[Any], bool]] = {
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
class Checkpoint:
    """The State of one agent, and what it belongs to.

    iteration : of the State.  key : equal at all sites for checkpoints that belong together.  members : digest of the
    sites whose rows it is about.  k : components of the run it was made in.  data : digest of this site's rows.
    run : digest of network and run.  All digests have 32 bytes.
    """

    iteration: int
    key: bytes
    members: bytes
    k: int
    data: bytes
    run: bytes
    state: State

    def __post_init__(self) -> None:
        if any(len(digest) != _DIGEST for digest in (self.key, self.members, self.data, self.run)):
            raise ValueError(f"key, members, data and run have {_DIGEST} bytes each")
        if self.iteration != self.state.t:
            raise ValueError(f"iteration {self.iteration} of a state after {self.state.t} iterations")


@dataclass(frozen=True)
class Kept:
    """What is known of a checkpoint without its State; see :class:`Checkpoint`."""

    iteration: int
    key: bytes
    members: bytes
    k: int


@dataclass(frozen=True)
class _Stored:
    path: Path
    kept: Kept


class Checkpoints:
    """The checkpoints of one agent in a folder; the last two that were written are kept.

    Parameters
    ----------
    folder : made if it is not there yet; readable by its owner only.
    run, data : digests of 32 bytes. Checkpoints of another run or of other rows are neither used nor touched.
    warn : told in one line of whatever is wrong. Nothing here raises an OSError.
    foreign : whether checkpoints of another run or of other rows are worth a line.

    Files are read through once, here, so that one that is damaged is never offered. One thread may change things while
    another one asks for :meth:`kept`. Two agents must not share folder and run.
    """

    def __init__(
        self, folder: Path, run: bytes, data: bytes, *, warn: Callable[[str], None], foreign: bool = True
    ) -> None:
        if len(run) != _DIGEST or len(data) != _DIGEST:
            raise ValueError(f"run and data have {_DIGEST} bytes each")
        self._folder, self._run, self._data, self._warn = folder, run, data, warn
        self._stored: tuple[_Stored, ...] = ()
        self._waiting: tuple[Checkpoint, ...] = ()  # those that could not be written
        self._worthless: list[Path] = []  # own ones that go when a better one is there
        self._next = 1  # number of the next file
        self._foreign = foreign
        self._trouble = ""
        with contextlib.suppress(OSError):  # told when something is to be written
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._look()

    @property
    def run(self) -> bytes:
        return self._run

    @property
    def data(self) -> bytes:
        return self._data

    def write(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint is on the disk now. If not, the last two are kept in memory, and tried again later.

        The reason is told once, and again only when it has changed. Nothing on the disk is given up in the meantime.
        """
        if (checkpoint.run, checkpoint.data) != (self._run, self._data):
            raise ValueError("a checkpoint of another run or of other rows")
        waiting = [*(other for other in self._waiting if other.key != checkpoint.key), checkpoint][-_KEPT:]
        self._waiting = tuple(waiting)
        try:
            for one in waiting:
                self._store(one)
                self._waiting = self._waiting[1:]
        except OSError as error:
            self._tell(
                f"no checkpoint can be written to {self._folder}: {error.strerror or error}; the run goes on with its "
                "latest checkpoints in memory, which are lost when this agent ends"
            )
            return False
        self._trouble = ""
        return True

    def kept(self) -> tuple[Kept, ...]:
        """What could be loaded, in the order of writing: newest last."""
        waiting = self._waiting  # first: so what moves to the disk meanwhile is not left out
        found = {one.kept.key: one.kept for one in self._stored}
        for one in waiting:
            found.pop(one.key, None)
            found[one.key] = _kept_of(one)
        return tuple(found.values())

    def load(self, key: bytes) -> Checkpoint | None:
        """The checkpoint with that key; None, and a warning, where it is damaged or gone."""
        for waiting in self._waiting:
            if waiting.key == key:
                return waiting
        for stored in self._stored:
            if stored.kept.key != key:
                continue
            try:
                checkpoint = _read(stored.path)
                if (_kept_of(checkpoint), checkpoint.run, checkpoint.data) == (stored.kept, self._run, self._data):
                    return checkpoint
                why = "it is another one than before"
            except (OSError, _Unusable) as error:
                why = _reason(error)
                self._worthless += [stored.path] if isinstance(error, _Damaged) else []
            self._warn(f"the checkpoint {stored.path} cannot be used: {why}")
            self._stored = tuple(one for one in self._stored if one is not stored)
            return None
        self._warn(f"{self._folder} has no checkpoint {key.hex()[:8]}")
        return None

    def keep_until(self, key: bytes) -> None:
        """Forget all others, after going back to this one. Where it is not there, nothing is forgotten."""
        if all(one.key != key for one in self.kept()):
            return
        self._waiting = tuple(one for one in self._waiting if one.key == key)
        self._keep([one for one in self._stored if one.kept.key == key])

    def clear(self) -> None:
        """Forget all checkpoints of this run and these rows."""
        self._waiting = ()
        self._keep([])

    # ------------------------------------------------------------------------------------------------------- folder

    def _look(self) -> None:
        """What earlier processes have left."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._warn(f"checkpoints in {self._folder} cannot be read: {_reason(error)}")
            return
        found: dict[bytes, _Stored] = {}
        foreign: list[str] = []
        for name in names:  # numbers have leading zeros: in the order of writing
            path = self._folder / name
            if _PART.fullmatch(name):
                _remove([path])
            elif (parts := _NAME.fullmatch(name)) is not None:
                if parts[1] != self._prefix:
                    foreign.append(name)
                    continue
                self._next = max(self._next, int(parts[2]) + 1)
                one = self._inspect(path, foreign)
                if one is not None:
                    before = found.pop(one.kept.key, None)
                    self._worthless += [before.path] if before is not None else []
                    found[one.kept.key] = one
        usable = list(found.values())
        self._worthless += [one.path for one in usable[:-_KEPT]]
        self._stored = tuple(usable[-_KEPT:])
        if foreign and self._foreign:
            named = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
            self._warn(
                f"{self._folder} holds checkpoints of another run or of other rows ({named}); they are not used and "
                "stay where they are"
            )

    def _inspect(self, path: Path, foreign: list[str]) -> _Stored | None:
        try:
            header = _verified(path)
            about = _about(header)
        except (OSError, _Unusable) as error:
            self._warn(f"the checkpoint {path} cannot be used: {_reason(error)}")
            self._worthless += [path] if isinstance(error, _Damaged) else []
            return None
        if (about["run"], about["data"]) != (self._run, self._data):
            foreign.append(path.name)
            return None
        return _Stored(path, Kept(about["iteration"], about["key"], about["members"], about["k"]))

    @property
    def _prefix(self) -> str:
        return self._run.hex()[:8]

    def _store(self, checkpoint: Checkpoint) -> None:
        path = self._folder / f"{self._prefix}-{self._next:010d}.checkpoint"
        self._next += 1
        _write(path, checkpoint)
        one = _Stored(path, _kept_of(checkpoint))
        self._keep([*(other for other in self._stored if other.kept.key != checkpoint.key), one][-_KEPT:])

    def _keep(self, wanted: list[_Stored]) -> None:
        gone = [one.path for one in self._stored if one not in wanted]
        self._stored = tuple(wanted)
        _remove([*gone, *self._worthless])
        self._worthless = []

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._warn(trouble)
        self._trouble = trouble


def _kept_of(checkpoint: Checkpoint) -> Kept:
    return Kept(checkpoint.iteration, checkpoint.key, checkpoint.members, checkpoint.k)


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # where it cannot be removed it is found, and left out, at the next start
            path.unlink()


# ------------------------------------------------------------------------------------------------------------- file


class _Unusable(Exception):
    """Says what is wrong with a file."""


class _Damaged(_Unusable):
    """Of no use to anybody."""


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _write(path: Path, checkpoint: Checkpoint) -> None:
    """Whole and on the disk, or an OSError and no file; numbers go to the file from where they are."""
    arrays = _Arrays()
    about = {
        "iteration": checkpoint.iteration,
        "k": checkpoint.k,
        **{name: getattr(checkpoint, name).hex() for name in ("key", "members", "data", "run")},
        "state": _tree(checkpoint.state, arrays),
    }
    about["arrays"] = [_layout(array) for array in arrays.found]
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
            for piece in chain.from_iterable(map(_pieces, arrays.found)):
                total.update(piece)
                file.write(piece)
            file.write(total.digest())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        try:
            _sync_folder(path.parent)
        except OSError:
            _remove([path])
            raise
    finally:
        _remove([part])


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _verified(path: Path) -> dict[str, Any]:
    """The header of a file whose checksum is right, without loading its arrays."""
    with _opened(path) as (file, size):
        header, _, total, room = _begun(file, size)
        while room:
            piece = file.read(min(_PIECE, room))
            if not piece:
                raise _Damaged("it is shorter than it says")
            total.update(piece)
            room -= len(piece)
        if file.read(_DIGEST) != total.digest():
            raise _Damaged("its checksum is wrong")
    return header


def _read(path: Path) -> Checkpoint:
    with _opened(path) as (file, size):
        header, layouts, total, _ = _begun(file, size)
        arrays = [_loaded(file, layout, total) for layout in layouts]
        if file.read(_DIGEST) != total.digest():
            raise _Damaged("its checksum is wrong")
    about = _about(header)
    try:
        state = _value(header["state"], arrays)
        if not isinstance(state, State):
            raise _Damaged("it holds no state")
        return Checkpoint(**about, state=state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError):
        raise _Damaged("what it holds does not fit together") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    if not path.is_file():  # opening a pipe would wait for a writer
        raise FileNotFoundError(errno.ENOENT, "it is gone")
    with path.open("rb") as file:
        yield file, os.fstat(file.fileno()).st_size


@dataclass(frozen=True)
class _Layout:
    """An array in memory: shape, strides (counted in numbers) and, with its gaps, how many numbers it takes there."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    room: int

    @property
    def nbytes(self) -> int:
        """Of its numbers alone, as in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def empty(self) -> npt.NDArray[Any]:
        if self.room == 0:
            return np.empty(self.shape, self.dtype)
        size = self.dtype.itemsize
        first = -sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True) if step < 0 and n > 1)
        steps = tuple(step * size for step in self.strides)
        return np.ndarray(self.shape, self.dtype, np.empty(self.room, self.dtype), first * size, steps)


def _begun(file: BufferedReader, size: int) -> tuple[dict[str, Any], list[_Layout], Any, int]:
    """Header, layouts, hash so far and bytes of all arrays, checked against the length of the file."""
    start = file.read(_START.size)
    if len(start) < _START.size or not start.startswith(_MAGIC):
        raise _Damaged("it is no checkpoint, or its beginning is lost")
    _, version, length = _START.unpack(start)
    if version != _FORMAT:
        raise _Unusable(f"it has format {version}, and this version of deepca reads format {_FORMAT}")
    room = size - _START.size - length - _DIGEST
    if length > _LONGEST_HEADER or room < 0:
        raise _Damaged("it is shorter than it says")
    text = file.read(length)
    try:
        header = json.loads(text)
        layouts = [_layout_from(entry) for entry in header["arrays"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        raise _Damaged("its header is damaged") from None
    if sum(layout.nbytes for layout in layouts) != room:
        raise _Damaged("its length is not that of its arrays")
    total = hashlib.sha256(start)
    total.update(text)
    return header, layouts, total, room


def _about(header: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint belongs to."""
    try:
        about: dict[str, Any] = {name: bytes.fromhex(header[name]) for name in ("key", "members", "data", "run")}
        whole = {name: header[name] for name in ("iteration", "k")}
        fits = set(header) == {*about, *whole, "state", "arrays"} and all(type(n) is int for n in whole.values())
        fits = fits and all(len(digest) == _DIGEST for digest in about.values())
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise _Damaged("its header is damaged")
    return about | whole


# ------------------------------------------------------------------------------------------------------------ values


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
    if _CLASSES.get(name) is not type(value):
        raise TypeError(f"a checkpoint cannot hold a {name}")
    inside = {}
    for entry in fields(_CLASSES[name]):
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
    cls = _CLASSES[kind]
    held = {name: _value(item, arrays) for name, item in inside.items()}
    wanted = {entry.name: entry.type for entry in fields(cls)}
    if set(held) != set(wanted) or not all(_fits(held[name], wanted[name]) for name in wanted):
        raise ValueError
    return cls(**held)


def _fits(value: Any, annotation: Any) -> bool:
    return _FITS[str(annotation)](value)


# ------------------------------------------------------------------------------------------------------------ arrays


def _layout(array: npt.NDArray[Any]) -> dict[str, Any]:
    kind = array.dtype.str[1:]
    if kind not in _DTYPES:
        raise TypeError(f"a checkpoint cannot hold an array of {array.dtype}")
    steps = tuple(step // array.itemsize for step in array.strides)
    whole = all(step % array.itemsize == 0 for step in array.strides)
    if not whole or _room(array.shape, steps) is None:  # a view of something far larger, or of one number many times
        steps = _without_gaps(array)
    return {"dtype": kind, "shape": array.shape, "strides": steps}


def _layout_from(entry: Mapping[str, Any]) -> _Layout:
    shape, strides = tuple(entry["shape"]), tuple(entry["strides"])
    if set(entry) != {"dtype", "shape", "strides"} or entry["dtype"] not in _DTYPES or len(shape) != len(strides):
        raise ValueError
    if not all(type(n) is int for n in (*shape, *strides)) or min(shape, default=0) < 0:
        raise ValueError
    if len(shape) > 8 or any(abs(step) >= 2**56 for step in strides):
        raise ValueError
    room = _room(shape, strides)
    if room is None:
        raise ValueError
    return _Layout(np.dtype(entry["dtype"]), shape, strides, room)


def _room(shape: tuple[int, ...], steps: tuple[int, ...]) -> int | None:
    """Numbers from the first to the last in memory; None where two share a place, or gaps take up too much."""
    size, room = math.prod(shape), 1
    if size == 0:
        return 0
    for step, n in sorted((abs(step), n) for step, n in zip(steps, shape, strict=True) if n > 1):
        if step < room:
            return None
        room += (n - 1) * step
    return room if room <= _ROOM * size else None


def _without_gaps(array: npt.NDArray[Any]) -> tuple[int, ...]:
    """Strides of the same order and directions."""
    steps, room = [0] * array.ndim, 1
    for axis in reversed(_order(array)):
        steps[axis] = -room if array.strides[axis] < 0 else room
        room *= array.shape[axis]
    return tuple(steps)


def _order(array: npt.NDArray[Any]) -> list[int]:
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def _in_memory_order(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view with the axis of the longest stride first, and all axes forwards: its C order is that in memory."""
    forwards: tuple[Any, ...] = tuple(slice(None, None, -1 if step < 0 else 1) for step in array.strides)
    return np.asarray(array[(*forwards, ...)]).transpose(_order(array))


def _pieces(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """The bytes of an array as they go to the file."""
    ordered = _in_memory_order(array)
    flat: Any = ordered.reshape(-1) if ordered.flags.c_contiguous else ordered.flat
    step = _PIECE // array.itemsize
    for start in range(0, array.size, step):
        numbers = np.asarray(flat[start : start + step])
        yield numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).view(np.uint8).data


def _loaded(file: BufferedReader, layout: _Layout, total: Any) -> npt.NDArray[Any]:
    """The next array of the file, in the layout that it had."""
    array = layout.empty()
    ordered = _in_memory_order(array)
    contiguous = ordered.flags.c_contiguous
    flat: Any = ordered.reshape(-1) if contiguous else ordered.flat
    step = _PIECE // array.itemsize
    for start in range(0, array.size, step):
        stop = min(start + step, array.size)
        numbers: npt.NDArray[Any] = flat[start:stop] if contiguous else np.empty(stop - start, array.dtype)
        content = numbers.view(np.uint8).data
        if file.readinto(content) != len(content):
            raise _Damaged("it is shorter than it says")
        total.update(content)
        if sys.byteorder == "big":
            numbers.byteswap(inplace=True)
        if not contiguous:
            flat[start:stop] = numbers
    return array
