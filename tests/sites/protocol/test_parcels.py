"""Test serialized messages: every array is restored exactly, and malformed messages are refused."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepca.errors import FrameError, NetworkError
from deepca.network.transports.base import Message, Tag
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.parcels import Parcel, pack, tag_of, unpack
from tests.laws.strategies import quick

PLAN = b"p" * 32
TAG = Tag(3, "step", 17, 4)
DTYPES = ("f8", "f4", "f2")

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
payloads = st.none() | st.tuples(st.sampled_from(DTYPES), shapes)


def _numbers(shape: tuple[int, ...], dtype: str = "f8", seed: int = 0) -> npt.NDArray[Any]:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def _sent_and_received(message: Message, tag: Tag = TAG) -> tuple[Tag, Message]:
    """Return a message after it was packed, sent in pieces and unpacked."""
    parcel = pack(PLAN, tag, message)
    header = wire.Parcel.FromString(parcel.header)
    body = bytearray().join(parcel.slice(at, 7) for at in range(0, parcel.total, 7))
    assert header.data.plan == PLAN
    assert len(body) == parcel.total
    return tag_of(header.data), unpack(header.data, body)


def _same(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@quick(200)
@given(payload=payloads, riders=st.lists(shapes, max_size=4), t=st.integers(-(2**63), 2**63 - 1))
def test_every_message_is_restored_exactly(
    payload: tuple[str, tuple[int, ...]] | None, riders: list[tuple[int, ...]], t: int
) -> None:
    sent = Message(
        None if payload is None else _numbers(payload[1], payload[0]),
        tuple(_numbers(shape, seed=j) for j, shape in enumerate(riders)),
    )
    tag, got = _sent_and_received(sent, Tag(2**63, "größe", t, 2**64 - 1))
    assert tag == Tag(2**63, "größe", t, 2**64 - 1)
    if sent.payload is None:
        assert got.payload is None
    else:
        assert got.payload is not None
        assert _same(got.payload, sent.payload)
    assert len(got.riders) == len(sent.riders)
    assert all(_same(a, b) for a, b in zip(got.riders, sent.riders, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_any_memory_layout_and_byte_order_are_restored(dtype: str) -> None:
    dense = _numbers((6, 4), dtype)
    for array in (
        np.asfortranarray(dense),
        np.repeat(dense, 2, axis=0)[::2],
        dense[::-1][::-1],
        dense.astype(dense.dtype.newbyteorder(">")),
    ):
        _, got = _sent_and_received(Message(array))
        assert got.payload is not None
        assert got.payload.dtype == np.dtype(f"<{dtype}")
        assert np.array_equal(got.payload, dense)


def test_nan_and_signed_zero_keep_their_bits() -> None:
    odd = np.array([np.nan, -0.0, np.inf, -np.inf, 5e-324])
    _, got = _sent_and_received(Message(odd, (odd,)))
    assert got.payload is not None
    assert got.payload.tobytes() == got.riders[0].tobytes() == odd.tobytes()


@pytest.mark.parametrize("odd", [1, 3, 5])
def test_riders_after_a_float16_payload_are_aligned(odd: int) -> None:
    rider = _numbers((3, 2))
    _, got = _sent_and_received(Message(_numbers((odd,), "f2"), (rider, rider)))
    assert all(one.flags.aligned and _same(one, rider) for one in got.riders)


def test_numbers_are_not_copied_before_they_are_sent() -> None:
    array = _numbers((1000, 100))
    tracemalloc.start()
    parcel = pack(PLAN, TAG, Message(array))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert parcel.total == array.nbytes
    assert peak < array.nbytes // 4


@pytest.mark.parametrize("dtype", ["i8", "c16", "?", "O", "f16"])
def test_only_floating_point_numbers_are_sent(dtype: str) -> None:
    with pytest.raises(NetworkError) as error:
        pack(PLAN, TAG, Message(np.zeros(3, dtype=dtype)))
    assert str(np.dtype(dtype)) in str(error.value)


def test_slices_of_a_body_span_its_pieces() -> None:
    pieces = [bytes(range(n)) for n in (5, 1, 9, 3)]
    parcel, whole = Parcel(b"", tuple(map(memoryview, pieces))), b"".join(pieces)
    for offset, size in itertools.product(range(len(whole) + 2), range(len(whole) + 2)):
        assert parcel.slice(offset, size) == whole[offset : offset + size]


# -------------------------------------------------------------------------------------------------- malformed messages


def _data(*arrays: tuple[str, tuple[int, ...]], payload: tuple[str, tuple[int, ...]] | None = None) -> wire.Data:
    data = wire.Data(plan=PLAN, epoch=1, phase="step")
    if payload is not None:
        data.payload.CopyFrom(wire.Array(dtype=payload[0], shape=payload[1]))
    data.riders.extend(wire.Array(dtype=dtype, shape=shape) for dtype, shape in arrays)
    return data


HUGE = 2**64 - 1
MALFORMED: dict[str, tuple[wire.Data, int]] = {
    "body too long": (_data(payload=("f8", (2,))), 17),
    "body too short": (_data(payload=("f8", (2,))), 15),
    "body without an array": (_data(), 1),
    "array without a body": (_data(("f8", (1,))), 0),
    "rider missing": (_data(("f8", (2,)), payload=("f4", (2,))), 8),
    "unknown dtype": (_data(payload=("i8", (1,))), 8),
    "no dtype": (_data(payload=("", (1,))), 8),
    "an object": (_data(payload=("O", (1,))), 8),
    "other order of bytes": (_data(payload=(">f8", (1,))), 8),
    "rider of half size": (_data(("f4", (2,))), 8),
    "too many axes": (_data(payload=("f8", (1, 1, 1, 1, 1))), 8),
    "too many arrays": (_data(*[("f8", (0,))] * 5000), 0),
    "huge": (_data(payload=("f8", (HUGE,))), 8),
    "huge product": (_data(payload=("f8", (2**32, 2**32, 2**32, 2**32))), 8),
    "product that wraps to nothing": (_data(payload=("f8", (2**32, 2**32))), 0),
    "product that wraps to the size": (_data(payload=("f8", (2**61 + 1,))), 8),
    "huge and empty": (_data(payload=("f8", (HUGE, 0))), 0),
    "huge, empty, and not representable": (_data(payload=("f8", (2**62, 2**62, 0))), 0),
    "a huge rider that is empty": (_data(("f8", (0, HUGE, HUGE))), 0),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_messages_are_refused(case: str) -> None:
    data, size = MALFORMED[case]
    tracemalloc.start()
    with pytest.raises(FrameError):
        unpack(data, bytearray(size))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@given(
    header=st.binary(max_size=60),
    shape=st.lists(st.integers(0, HUGE), max_size=6),
    dtype=st.sampled_from([*DTYPES, "", "f", "u1", "V8"]),
    body=st.binary(max_size=64),
)
def test_random_headers_and_bodies_never_crash(header: bytes, shape: list[int], dtype: str, body: bytes) -> None:
    """They raise FrameError, or give a message that is as long as its body."""
    candidates = [_data(payload=(dtype, tuple(shape))), _data((dtype, tuple(shape)))]
    try:
        candidates.append(wire.Data.FromString(header))
    except Exception:  # not a header: refused by the caller of unpack
        candidates.append(wire.Data())
    for data in candidates:
        try:
            message = unpack(data, bytearray(body))
        except FrameError:
            continue
        arrays = [*([] if message.payload is None else [message.payload]), *message.riders]
        assert sum(array.nbytes for array in arrays) == len(body)
