"""The .npy format where numpy's own calls want the whole array: reading a header, and files that grow."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

__all__ = ["GrowingNpy", "read_header"]


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns lie together, and dtype; the stream is left at the first value."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"version {version} of the .npy format is for named fields, not for numbers")


class GrowingNpy:
    """A .npy file that rows are appended to. Its header is written again at the end, when their number is known."""

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.rows = 0
        self._row_shape, self._dtype = row_shape, np.dtype(dtype)
        self._file = path.open("wb")
        self._write_header()
        self._first = self._file.tell()

    def append(self, rows: npt.NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self.rows += len(rows)

    def finish(self) -> None:
        self._file.seek(0)
        self._write_header()  # numpy leaves room for any number of rows
        if self._file.tell() != self._first:
            raise RuntimeError("the .npy header has another length now than when it was begun")
        self._file.close()

    def close(self) -> None:
        """Leave the file as it is; nothing to do after `finish`."""
        self._file.close()

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.rows, *self._row_shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
