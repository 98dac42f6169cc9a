"""Files that are whole or not there."""

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
    """One at a time in a folder, over processes: whoever comes second waits."""
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
    """Whether this process alone now holds the file, until it is closed; True where the system has no such locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write under another name first, then rename; two writers do not get into each other's way.

    What is there after the return is there after a power failure, too. ``mode`` : permissions of the file; at no
    moment are there more of them.
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
    """Make new names in a folder last; does nothing on systems that cannot."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
