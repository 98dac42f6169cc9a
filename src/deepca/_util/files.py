"""Write files atomically and lock files and folders."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["exclusive_lock", "sync_folder", "try_lock", "write_atomic"]


@contextlib.contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder across processes, waiting until it is free (does nothing on Windows)."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def try_lock(file: IO[str]) -> bool:
    """Lock a file until it is closed, without waiting; return whether that succeeded (always True on Windows)."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write_atomic(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically and durably: a temporary file is written first, then renamed.

    Concurrent writers do not interfere. Once the function returns, the content survives a power failure.

    Parameters
    ----------
    path : Path
        The file; its folder is created if necessary.
    content : bytes
        The whole content.
    mode : int
        Permissions of the file; the temporary file never has wider ones.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(mode)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path, *, must_succeed: bool = False) -> None:
    """Flush new and renamed entries of a folder to disk (does nothing on Windows, where folders cannot be opened).

    Parameters
    ----------
    folder : Path
        The folder.
    must_succeed : bool, default=False
        Whether to raise the OSError of a file system that cannot flush folders, or fails to, instead of ignoring it.
    """
    if os.name != "posix":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError:
        if must_succeed:
            raise
