"""How a model is laid out in its file: names, numbers, and a checksum over all of it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FORMAT"]

FORMAT = 2
"""Of the file: raised when an older reader could no longer make sense of it."""


MAGIC = "deepca-model"


def stored(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """An ``.npz`` file, written here to the last byte, since numpy's and zlib's depend on their versions."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as file:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # of 1980: no time, and no trace of the system
            member.create_system, member.external_attr = 3, 0o600 << 16
            file.writestr(member, _npy(array))
    return content.getvalue()


def _npy(array: npt.NDArray[Any]) -> bytes:
    little = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C")
    header = f"{{'descr': {little.dtype.str!r}, 'fortran_order': False, 'shape': {little.shape!r}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"  # data begin at a multiple of 64 bytes
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + little.tobytes()


def checksum_of(arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and contents, and over everything else."""
    total = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        total.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
        total.update(little.tobytes())
    return total.hexdigest()


def plain_value(value: Any) -> Any:
    """For JSON, which knows no infinity: such numbers become text."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value
