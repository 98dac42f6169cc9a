"""Layout of a model file: array members, metadata and a checksum."""

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
"""Version of the file format; raised whenever older readers could not read the new files."""
MAGIC = "deepca-model"
"""Value of ``kind`` in the metadata, by which model files are recognized."""


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return the bytes of an ``.npz`` file, without numpy and zlib, whose output differs between their versions."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as file:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, so that the bytes depend on neither time nor system
            member.create_system, member.external_attr = 3, 0o600 << 16
            file.writestr(member, _npy(array))
    return content.getvalue()


def _npy(array: npt.NDArray[Any]) -> bytes:
    """Return an array in numpy's ``.npy`` format, version 1.0."""
    little = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C")
    header = f"{{'descr': {little.dtype.str!r}, 'fortran_order': False, 'shape': {little.shape!r}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"  # the format aligns data to 64 bytes
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + little.tobytes()


def checksum_of(arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> str:
    """Return the SHA-256 over names, types, shapes and contents of the arrays, and over the metadata."""
    total = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        total.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
        total.update(little.tobytes())
    return total.hexdigest()


def plain_value(value: Any) -> Any:
    """Convert a value for JSON, where infinities and nan become text."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value
