"""A source that can only be read through, kept as one array: in memory, or memory-mapped where that is too small."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from deepca._util.machine import available_memory
from deepca._util.typing import Csr
from deepca.data._npy import GrowingNpy
from deepca.data.sources import ArraySource, Block, Source, stored_parts, without_rows
from deepca.errors import DataError

__all__ = ["spool"]


def spool(source: Source, folder: Path | None = None) -> ArraySource:
    """Read a source once and keep it as an array, with its columns and labels.

    The array is in memory if it takes less than a quarter of what is available. Otherwise it is in temporary .npy files
    in ``folder`` (by default the system's) without a name, which go away with the array or the process.
    """
    whole = source.matrix()
    if whole is None:
        store = _Store(source, folder)
        try:
            whole = store.fill()
        except OSError as error:
            raise DataError(
                f"{source.name} cannot be kept on disk ({error.strerror or error}); make room, or name another folder"
            ) from error
        finally:
            store.drop()
    return ArraySource(whole, source.name, source.columns, source.labels(), source.first_index)


class _Store:
    """Blocks as they come: in a list while that is small, then in files."""

    def __init__(self, source: Source, folder: Path | None) -> None:
        self._source, self._folder = source, folder
        self._budget = available_memory() // 4
        self._held: list[Block] = []
        self._files: list[tuple[Path, GrowingNpy]] = []

    def fill(self) -> Block:
        taken = rows = entries = 0
        for block in self._source.blocks():
            rows += block.shape[0]
            taken += sum(part.nbytes for part in stored_parts(block))
            self._held.append(block)
            if taken >= self._budget:
                for one in self._held:
                    entries = self._append(one, entries)
                self._held.clear()
        if not rows:
            raise without_rows(self._source.name)
        if self._files:
            return self._mapped(rows)
        return self._joined()

    def drop(self) -> None:
        """Files that did not become part of an array."""
        for path, file in self._files:
            with suppress(OSError):  # a full disk fails here again
                file.close()
            path.unlink(missing_ok=True)

    def _append(self, block: Block, entries: int) -> int:
        """Adds a block to the files; returns how many sparse entries there are now."""
        if isinstance(block, np.ndarray):
            files = self._begun([((self._source.d,), self._source.dtype)])
            files[0].append(block)
            return 0
        # one type of index for both, as scipy would otherwise copy them into memory to make it so
        kinds: list[tuple[tuple[int, ...], npt.DTypeLike]] = [((), self._source.dtype), ((), np.int64), ((), np.int64)]
        files = self._begun(kinds)
        if files[2].rows == 0:
            files[2].append(np.zeros(1, dtype=np.int64))
        files[0].append(block.data)
        files[1].append(block.indices)
        files[2].append(block.indptr[1:] + np.int64(entries))
        return entries + int(block.indptr[-1])

    def _begun(self, kinds: Sequence[tuple[tuple[int, ...], npt.DTypeLike]]) -> list[GrowingNpy]:
        if not self._files:
            for shape, dtype in kinds:
                with tempfile.NamedTemporaryFile(
                    dir=self._folder, prefix="deepca-", suffix=".npy", delete=False
                ) as new:
                    path = Path(new.name)
                self._files.append((path, GrowingNpy(path, shape, dtype)))
        return [file for _, file in self._files]

    def _mapped(self, rows: int) -> Block:
        arrays = []
        while self._files:
            path, file = self._files[0]
            file.finish()
            arrays.append(_map(path))
            self._files.pop(0)
        if len(arrays) == 1:
            return arrays[0]
        return cast("Csr", sparse.csr_array(tuple(arrays), shape=(rows, self._source.d), copy=False))

    def _joined(self) -> Block:
        if self._source.is_sparse:
            return cast("Csr", sparse.vstack(cast("list[Csr]", self._held), format="csr"))
        return np.concatenate(cast("list[npt.NDArray[Any]]", self._held))


def _map(path: Path) -> npt.NDArray[Any]:
    array = np.load(path, mmap_mode="r")
    if os.name == "posix":
        path.unlink()  # what is mapped stays; a process that is killed leaves no rows of anybody behind
    else:
        weakref.finalize(array, path.unlink, missing_ok=True)  # views hold the array: the file outlives none of them
    return cast("npt.NDArray[Any]", array)
