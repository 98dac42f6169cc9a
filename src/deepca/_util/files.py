"""Write files atomically, and lock files and folders."""

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

__all__ = ["alone", "sync_folder", "try_lock", "write_whole"]


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, across processes; wait until it is free (no-op on Windows)."""
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
    """Try to lock a file until it is closed; return whether it succeeded (always on systems without such locks)."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically and durably: to a temporary name first, which is then renamed.

    Concurrent writers do not interfere. After the return, the content survives a power failure.

    Parameters
    ----------
    path : Path
        The file; its folder is created if necessary.
    content : bytes
        The whole content.
    mode : int
        Permissions of the file, which at no time has more.
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


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable; does nothing on systems that do not support it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
