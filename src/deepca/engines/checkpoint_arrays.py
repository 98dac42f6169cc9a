"""Arrays of a checkpoint, one after the other as they lie in memory, read and written in pieces."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

import numpy as np
import numpy.typing as npt

PIECE = 1 << 20  # bytes that are read, written or copied at a time
_ROOM = 8  # by how much gaps may enlarge an array in memory, before it is stored without them
_DTYPES = ("f8", "f4", "f2")


class Unusable(Exception):
    """Says what is wrong with a file."""


class Damaged(Unusable):
    """Of no use to anybody."""


@dataclass(frozen=True)
class Layout:
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


def layout_of(array: npt.NDArray[Any]) -> dict[str, Any]:
    kind = array.dtype.str[1:]
    if kind not in _DTYPES:
        raise TypeError(f"a checkpoint cannot hold an array of {array.dtype}")
    steps = tuple(step // array.itemsize for step in array.strides)
    whole = all(step % array.itemsize == 0 for step in array.strides)
    if not whole or _room(array.shape, steps) is None:  # a view of something far larger, or of one number many times
        steps = _without_gaps(array)
    return {"dtype": kind, "shape": array.shape, "strides": steps}


def layout_from(entry: Mapping[str, Any]) -> Layout:
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
    return Layout(np.dtype(entry["dtype"]), shape, strides, room)


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


def pieces_of(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """The bytes of an array as they go to the file."""
    ordered = _in_memory_order(array)
    flat: Any = ordered.reshape(-1) if ordered.flags.c_contiguous else ordered.flat
    step = PIECE // array.itemsize
    for start in range(0, array.size, step):
        numbers = np.asarray(flat[start : start + step])
        yield numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).view(np.uint8).data


def loaded(file: BufferedReader, layout: Layout, total: Any) -> npt.NDArray[Any]:
    """The next array of the file, in the layout that it had."""
    array = layout.empty()
    ordered = _in_memory_order(array)
    contiguous = ordered.flags.c_contiguous
    flat: Any = ordered.reshape(-1) if contiguous else ordered.flat
    step = PIECE // array.itemsize
    for start in range(0, array.size, step):
        stop = min(start + step, array.size)
        numbers: npt.NDArray[Any] = flat[start:stop] if contiguous else np.empty(stop - start, array.dtype)
        content = numbers.view(np.uint8).data
        if file.readinto(content) != len(content):
            raise Damaged("it is shorter than it says")
        total.update(content)
        if sys.byteorder == "big":
            numbers.byteswap(inplace=True)
        if not contiguous:
            flat[start:stop] = numbers
    return array
