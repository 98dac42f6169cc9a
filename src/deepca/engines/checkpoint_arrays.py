"""Read and write the arrays of a checkpoint in pieces, and preserve their memory layout."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 1 << 20  # number of bytes to read, write or copy at a time
_MAX_GAP_FACTOR = 8  # arrays that span more than this multiple of their size in memory are stored without gaps
_DTYPES = ("f8", "f4", "f2")


class UnusableCheckpoint(Exception):
    """Error for a checkpoint file that this version cannot use; the message says why."""


class DamagedCheckpoint(UnusableCheckpoint):
    """Error for a checkpoint file that no version can use."""


@dataclass(frozen=True)
class Layout:
    """Memory layout of an array.

    Parameters
    ----------
    dtype : dtype
        Type of the entries.
    shape, strides : tuple of int
        Shape, and strides counted in entries.
    extent : int
        Number of entries that the array spans in memory, including gaps.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    extent: int

    @property
    def nbytes(self) -> int:
        """Size of the entries in bytes, without gaps, as in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def empty(self) -> npt.NDArray[Any]:
        """Create an uninitialised array with this layout."""
        if self.extent == 0:
            return np.empty(self.shape, self.dtype)
        size = self.dtype.itemsize
        first = -sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True) if step < 0 and n > 1)
        steps = tuple(step * size for step in self.strides)
        return np.ndarray(self.shape, self.dtype, np.empty(self.extent, self.dtype), first * size, steps)


def layout_of(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the layout of an array as JSON values; raise TypeError unless it has a floating-point type."""
    kind = array.dtype.str[1:]
    if kind not in _DTYPES:
        raise TypeError(f"cannot store an array of {array.dtype} in a checkpoint")
    steps = tuple(step // array.itemsize for step in array.strides)
    whole = all(step % array.itemsize == 0 for step in array.strides)
    if not whole or _extent(array.shape, steps) is None:  # a view of a far larger array, or one that repeats entries
        steps = _without_gaps(array)
    return {"dtype": kind, "shape": array.shape, "strides": steps}


def layout_from(entry: Mapping[str, Any]) -> Layout:
    """Return the layout from JSON values; raise KeyError, TypeError or ValueError if they are malformed."""
    shape, strides = tuple(entry["shape"]), tuple(entry["strides"])
    if set(entry) != {"dtype", "shape", "strides"} or entry["dtype"] not in _DTYPES or len(shape) != len(strides):
        raise ValueError
    if not all(type(n) is int for n in (*shape, *strides)) or min(shape, default=0) < 0:
        raise ValueError
    if len(shape) > 8 or any(abs(step) >= 2**56 for step in strides):
        raise ValueError
    extent = _extent(shape, strides)
    if extent is None:
        raise ValueError
    return Layout(np.dtype(entry["dtype"]), shape, strides, extent)


def _extent(shape: tuple[int, ...], steps: tuple[int, ...]) -> int | None:
    """Return the number of entries that an array spans in memory; None if entries overlap, or gaps are too large."""
    size, extent = math.prod(shape), 1
    if size == 0:
        return 0
    for step, n in sorted((abs(step), n) for step, n in zip(steps, shape, strict=True) if n > 1):
        if step < extent:
            return None
        extent += (n - 1) * step
    return extent if extent <= _MAX_GAP_FACTOR * size else None


def _without_gaps(array: npt.NDArray[Any]) -> tuple[int, ...]:
    """Return strides without gaps that keep the order and the directions of the axes."""
    steps, extent = [0] * array.ndim, 1
    for axis in reversed(_order(array)):
        steps[axis] = -extent if array.strides[axis] < 0 else extent
        extent *= array.shape[axis]
    return tuple(steps)


def _order(array: npt.NDArray[Any]) -> list[int]:
    """Return the axes by descending stride."""
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def _in_memory_order(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a view whose C order is the order in memory: axes by descending stride, all forwards."""
    forwards: tuple[Any, ...] = tuple(slice(None, None, -1 if step < 0 else 1) for step in array.strides)
    return np.asarray(array[(*forwards, ...)]).transpose(_order(array))


def pieces_of(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """Yield the bytes of an array in pieces, as they are written to the file."""
    ordered = _in_memory_order(array)
    flat: Any = ordered.reshape(-1) if ordered.flags.c_contiguous else ordered.flat
    step = CHUNK_BYTES // array.itemsize
    for start in range(0, array.size, step):
        numbers = np.asarray(flat[start : start + step])
        yield numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).view(np.uint8).data


def read_array(file: BufferedReader, layout: Layout, digest: Any) -> npt.NDArray[Any]:
    """Read the next array of the file, restore its memory layout, and update the digest."""
    array = layout.empty()
    ordered = _in_memory_order(array)
    contiguous = ordered.flags.c_contiguous
    flat: Any = ordered.reshape(-1) if contiguous else ordered.flat
    step = CHUNK_BYTES // array.itemsize
    for start in range(0, array.size, step):
        stop = min(start + step, array.size)
        numbers: npt.NDArray[Any] = flat[start:stop] if contiguous else np.empty(stop - start, array.dtype)
        content = numbers.view(np.uint8).data
        if file.readinto(content) != len(content):
            raise DamagedCheckpoint("the file is truncated")
        digest.update(content)
        if sys.byteorder == "big":
            numbers.byteswap(inplace=True)
        if not contiguous:
            flat[start:stop] = numbers
    return array
