"""Serialize messages as a typed header and a body of raw numbers, which are not copied before they are sent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.errors import FrameError, NetworkError
from deepca.network.transports.base import Message, Tag, Visibility
from deepca.sites.protocol import wire_pb2 as wire

__all__ = ["Parcel", "pack", "parse_header", "tag_of", "unpack"]

_DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(f"<{name}") for name in ("f8", "f4", "f2", "u8")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# limits on what the header of a message from another site may describe
_MAX_AXES = 4  # axes of an array
_MAX_ARRAYS = 4096  # arrays in a message
_MAX_NUMBERS = 1 << 40  # numbers in an array; axes of length 0 count as 1, since numpy multiplies the others


@dataclass(frozen=True)
class Parcel:
    """A serialized message, which can be sent to any number of neighbours.

    Parameters
    ----------
    header : bytes
        Serialized header.
    body : tuple of memoryview
        The numbers, one piece per array.
    visibility : {"masked", "public", "structural", "open"}, default="public"
        What the numbers show to the receiver; recorded in the audit log and not sent.

    Attributes
    ----------
    total : int
        Size of the body in bytes.
    """

    header: bytes
    body: tuple[memoryview, ...] = ()
    visibility: Visibility = "public"
    total: int = field(init=False)

    def __post_init__(self) -> None:
        """Add up the body."""
        object.__setattr__(self, "total", sum(piece.nbytes for piece in self.body))

    def slice(self, offset: int, size: int) -> bytes:
        """Return bytes ``offset`` … ``offset + size`` of the body."""
        if len(self.body) == 1:
            return bytes(self.body[0][offset : offset + size])
        found = []
        for piece in self.body:
            if size <= 0:
                break
            if offset < piece.nbytes:
                found.append(piece[offset : offset + size])
                size -= found[-1].nbytes
            offset = max(offset - piece.nbytes, 0)
        return b"".join(found)


def pack(plan: bytes, tag: Tag, message: Message) -> Parcel:
    """Serialize a message between agents; raise NetworkError for a dtype that cannot be sent."""
    data = wire.Data(plan=plan, epoch=tag.epoch, phase=tag.phase, iteration=tag.t, round=tag.round)
    body = []
    if message.payload is not None:
        data.payload.CopyFrom(_describe(message.payload))
        body.append(_raw_bytes(message.payload))
    for rider in message.riders:
        data.riders.append(_describe(rider))
        body.append(_raw_bytes(rider))
    return Parcel(
        wire.Parcel(data=data).SerializeToString(), tuple(piece for piece in body if piece.nbytes), message.visibility
    )


def parse_header(header: bytes) -> wire.Parcel:
    """Return the parsed header of a message; raise FrameError if it is malformed."""
    parcel = wire.Parcel()
    try:
        parcel.ParseFromString(header)
    except Exception:  # the import path of protobuf's DecodeError is not stable
        raise FrameError("a message with a malformed header", intact=True) from None
    return parcel


def tag_of(data: wire.Data) -> Tag:
    """Return the tag of the exchange that a message belongs to."""
    return Tag(data.epoch, data.phase, data.iteration, data.round)


def unpack(data: wire.Data, body: bytes | bytearray) -> Message:
    """Return the message that :func:`pack` serialized; do not write to its arrays, which are views of ``body``.

    Raises
    ------
    FrameError
        If it is malformed; the message says what was sent, as in "an array with 5 axes, more than 4".
    """
    described = [*([data.payload] if data.HasField("payload") else []), *data.riders]
    if len(described) > _MAX_ARRAYS:
        raise FrameError(f"a message with {len(described)} arrays, more than {_MAX_ARRAYS}")
    arrays, at = [], 0
    for array in described:
        dtype: np.dtype[Any] | None = _DTYPES.get(array.dtype)
        if dtype is None:
            raise FrameError(f"an array of the unsupported dtype {array.dtype[:16]!r}")
        if len(array.shape) > _MAX_AXES:
            raise FrameError(f"an array with {len(array.shape)} axes, more than {_MAX_AXES}")
        if math.prod(n or 1 for n in array.shape) > _MAX_NUMBERS:
            raise FrameError(f"an array of shape {tuple(array.shape)}, with more than {_MAX_NUMBERS:,} numbers")
        size = math.prod(array.shape) * dtype.itemsize
        if at + size > len(body):
            raise FrameError(f"a message with a body of {len(body)} bytes, whose header describes at least {at + size}")
        arrays.append(np.frombuffer(body, dtype, math.prod(array.shape), at).reshape(tuple(array.shape)))
        at += size
    if at != len(body):
        raise FrameError(f"a message with a body of {len(body)} bytes, whose header describes {at}")
    payload = arrays.pop(0) if data.HasField("payload") else None
    riders: tuple[Array, ...] = tuple(_aligned(arrays))
    if any(rider.dtype != np.float64 for rider in riders):
        raise FrameError("a message whose values for a reduction are not float64")
    return Message(payload, riders)


def _aligned(arrays: Iterable[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Copy arrays that are not aligned as BLAS and views require, for example those after a payload of float16."""
    return [array if array.flags.aligned else array.copy() for array in arrays]


def _describe(array: npt.NDArray[Any]) -> wire.Array:
    name = _NAMES.get(array.dtype.newbyteorder("<"))
    if name is None:
        raise NetworkError(f"arrays of {array.dtype} cannot be sent; use float64, float32, float16 or uint64")
    return wire.Array(dtype=name, shape=array.shape)


def _raw_bytes(array: npt.NDArray[Any]) -> memoryview:
    dense = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return dense.reshape(-1).view(np.uint8).data if dense.size else memoryview(b"")
