"""Copy a source into one array: in memory, or memory-mapped if it does not fit."""

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
from deepca.data.sources import ArraySource, Block, Source, no_rows_error, stored_parts
from deepca.errors import DataError

__all__ = ["spool"]


def spool(source: Source, folder: Path | None = None) -> ArraySource:
    """Read a source once and return its rows as an array, with columns and labels.

    Parameters
    ----------
    source : Source
        The rows.
    folder : Path, optional
        Folder for temporary files; the system's by default.

    Returns
    -------
    ArraySource
        The rows: in memory if they take less than a quarter of the available memory, otherwise in unnamed temporary
        .npy files, which are deleted with the array or when the process ends.

    Raises
    ------
    DataError
        If the source has no rows or cannot be read, or the rows cannot be stored.
    """
    whole = source.matrix()
    if whole is None:
        store = _Store(source, folder)
        try:
            whole = store.fill()
        except OSError as error:
            raise DataError(
                f"{source.name} cannot be stored on disk ({error.strerror or error}); free disk space, or choose "
                "another folder",
                parameter="folder",
                agent=source.agent,
                file=source.file,
            ) from error
        finally:
            store.discard()
    return ArraySource(
        whole,
        source.name,
        source.columns,
        source.labels(),
        source.first_index,
        agent=source.agent,
        origin=source,
    )


class _Store:
    """Blocks of a source, collected in memory as long as they fit into the budget, otherwise in files."""

    def __init__(self, source: Source, folder: Path | None) -> None:
        self._source, self._folder = source, folder
        self._budget = available_memory() // 4
        self._blocks: list[Block] = []
        self._files: list[tuple[Path, GrowingNpy]] = []

    def fill(self) -> Block:
        """Read the source and return all rows."""
        taken = rows = entries = 0
        for block in self._source.blocks():
            rows += block.shape[0]
            taken += sum(part.nbytes for part in stored_parts(block))
            self._blocks.append(block)
            if taken >= self._budget:
                for one in self._blocks:
                    entries = self._append(one, entries)
                self._blocks.clear()
        if not rows:
            raise no_rows_error(self._source.name, file=self._source.file)
        if self._files:
            return self._mapped(rows)
        return self._joined()

    def discard(self) -> None:
        """Delete the files that have not become part of an array."""
        for path, file in self._files:
            with suppress(OSError):  # if the disk is full, closing fails again
                file.close()
            path.unlink(missing_ok=True)

    def _append(self, block: Block, entries: int) -> int:
        """Append a block to the files; return the total number of stored entries of sparse blocks, 0 for dense ones."""
        if isinstance(block, np.ndarray):
            files = self._open_files([((self._source.d,), self._source.dtype)])
            files[0].append(block)
            return 0
        # indices and row pointers of the same type, or scipy would copy both into memory to convert one
        kinds: list[tuple[tuple[int, ...], npt.DTypeLike]] = [((), self._source.dtype), ((), np.int64), ((), np.int64)]
        files = self._open_files(kinds)
        if files[2].rows == 0:
            files[2].append(np.zeros(1, dtype=np.int64))
        files[0].append(block.data)
        files[1].append(block.indices)
        files[2].append(block.indptr[1:] + np.int64(entries))
        return entries + int(block.indptr[-1])

    def _open_files(self, kinds: Sequence[tuple[tuple[int, ...], npt.DTypeLike]]) -> list[GrowingNpy]:
        if not self._files:
            for shape, dtype in kinds:
                with tempfile.NamedTemporaryFile(
                    dir=self._folder, prefix="deepca-", suffix=".npy", delete=False
                ) as new:
                    path = Path(new.name)
                self._files.append((path, GrowingNpy(path, shape, dtype)))
        return [file for _, file in self._files]

    def _mapped(self, rows: int) -> Block:
        """Return the files as one memory-mapped matrix."""
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
        """Return the collected blocks as one matrix."""
        if self._source.is_sparse:
            return cast("Csr", sparse.vstack(cast("list[Csr]", self._blocks), format="csr"))
        return np.concatenate(cast("list[npt.NDArray[Any]]", self._blocks))


def _map(path: Path) -> npt.NDArray[Any]:
    array = np.load(path, mmap_mode="r")
    if os.name == "posix":
        path.unlink()  # the mapping stays valid, and a killed process leaves no data behind
    else:
        # views keep the array alive, so the file is deleted after the last of them
        weakref.finalize(array, path.unlink, missing_ok=True)
    return cast("npt.NDArray[Any]", array)
