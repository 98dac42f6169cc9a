"""Read headers of .npy files and write .npy files row by row."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

__all__ = ["GrowingNpy", "read_header"]


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a .npy file: its shape, whether it is in Fortran order, and its dtype.

    The stream is left at the first value. Raise ValueError if the file is not in format 1.0 or 2.0.
    """
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f".npy format version {version} stores named fields, not plain numbers")


class GrowingNpy:
    """A .npy file to which rows are appended.

    The header is rewritten at the end, when the number of rows is known.
    """

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.rows = 0
        self._row_shape, self._dtype = row_shape, np.dtype(dtype)
        self._file = path.open("wb")
        self._write_header()
        self._first = self._file.tell()

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append rows."""
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self.rows += len(rows)

    def finish(self) -> None:
        """Write the final header and close the file."""
        self._file.seek(0)
        self._write_header()  # numpy pads it, so that any number of rows fits
        if self._file.tell() != self._first:
            raise RuntimeError("the final .npy header differs in length from the first one")
        self._file.close()

    def close(self) -> None:
        """Close the file without completing it; do nothing after `finish`."""
        self._file.close()

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.rows, *self._row_shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
