"""Write the checkpoints of one process to a folder, and keep the newest of them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deepca.engines.checkpoint_arrays import DamagedCheckpoint, UnusableCheckpoint
from deepca.engines.checkpoint_format import (
    DIGEST_BYTES,
    Checkpoint,
    CheckpointInfo,
    parse_identity,
    read_checkpoint,
    remove_files,
    verified_header,
    write_checkpoint,
)

__all__ = ["Checkpoints"]

_MAX_KEPT = 2  # files; an agent may be one checkpoint ahead of the others
_NAME = re.compile(r"([0-9a-f]{8})-([0-9]{10})\.checkpoint")
_PART = re.compile(_NAME.pattern + r"\..*\.part")


@dataclass(frozen=True)
class _StoredFile:
    """A checkpoint on the disk."""

    path: Path
    kept: CheckpointInfo


class Checkpoints:
    """Checkpoints of one process in a folder, which keeps the last two.

    Parameters
    ----------
    folder : Path
        Folder, created if missing; readable by its owner only.
    run, data : bytes
        Digests of 32 bytes. Checkpoints of another run or of other rows are neither used nor touched.
    warn : callable
        Receives one line about each problem. No method raises an OSError.
    foreign : bool, default=True
        Whether to warn about checkpoints of another run or of other rows.

    Notes
    -----
    The constructor reads and verifies all files, so :meth:`kept` never lists a damaged one. One thread may write while
    another one calls :meth:`kept`. Two agents must not share both folder and run.
    """

    def __init__(
        self, folder: Path, run: bytes, data: bytes, *, warn: Callable[[str], None], foreign: bool = True
    ) -> None:
        if len(run) != DIGEST_BYTES or len(data) != DIGEST_BYTES:
            raise ValueError(f"run and data must have {DIGEST_BYTES} bytes each")
        self._folder, self.run, self.data, self._warn = folder, run, data, warn
        self._stored: tuple[_StoredFile, ...] = ()
        self._waiting: tuple[Checkpoint, ...] = ()  # to be written again after an error
        self._obsolete: list[Path] = []  # own files to remove once a better one is on the disk
        self._next = 1  # number of the next file
        self._foreign = foreign
        self._trouble = ""
        with contextlib.suppress(OSError):  # reported when a checkpoint cannot be written
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()

    def write(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint; return whether it is on the disk now.

        If not, the last two checkpoints stay in memory, later calls try to write them again, and the files on the disk
        remain. The reason is reported once, and again only if it changes.
        """
        if (checkpoint.run, checkpoint.data) != (self.run, self.data):
            raise ValueError("the checkpoint belongs to another run or to other rows")
        waiting = [*(other for other in self._waiting if other.key != checkpoint.key), checkpoint][-_MAX_KEPT:]
        self._waiting = tuple(waiting)
        try:
            for one in waiting:
                self._store(one)
                self._waiting = self._waiting[1:]
        except OSError as error:
            self._report(
                f"cannot write a checkpoint to {self._folder}: {error.strerror or error}; the run continues with its "
                "latest checkpoints in memory, which are lost when this agent ends"
            )
            return False
        self._trouble = ""
        return True

    def kept(self) -> tuple[CheckpointInfo, ...]:
        """Return the checkpoints that can be loaded, in the order of writing, newest last."""
        waiting = self._waiting  # read first, so that a checkpoint moving to the disk is not missed
        found = {one.kept.key: one.kept for one in self._stored}
        for one in waiting:
            found.pop(one.key, None)
            found[one.key] = _kept_of(one)
        return tuple(found.values())

    def load(self, key: bytes) -> Checkpoint | None:
        """Return the checkpoint with that key; None, after a warning, if it is damaged or missing."""
        for waiting in self._waiting:
            if waiting.key == key:
                return waiting
        for stored in self._stored:
            if stored.kept.key != key:
                continue
            try:
                checkpoint = read_checkpoint(stored.path)
                if (_kept_of(checkpoint), checkpoint.run, checkpoint.data) == (stored.kept, self.run, self.data):
                    return checkpoint
                why = "the file was replaced by another one"
            except (OSError, UnusableCheckpoint) as error:
                why = _reason(error)
                self._obsolete += [stored.path] if isinstance(error, DamagedCheckpoint) else []
            self._warn(f"the checkpoint {stored.path} cannot be used: {why}")
            self._stored = tuple(one for one in self._stored if one is not stored)
            return None
        self._warn(f"{self._folder} has no checkpoint {key.hex()[:8]}")
        return None

    def keep_only(self, key: bytes) -> None:
        """Discard all checkpoints but this one, from which the run has resumed; do nothing if it is missing."""
        if all(one.key != key for one in self.kept()):
            return
        self._waiting = tuple(one for one in self._waiting if one.key == key)
        self._keep([one for one in self._stored if one.kept.key == key])

    def clear(self) -> None:
        """Remove all checkpoints of this run and these rows."""
        self._waiting = ()
        self._keep([])

    # ------------------------------------------------------------------------------------------------------- folder

    def _scan(self) -> None:
        """Find the checkpoints that earlier processes left in the folder."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._warn(f"checkpoints in {self._folder} cannot be read: {_reason(error)}")
            return
        found: dict[bytes, _StoredFile] = {}
        foreign: list[str] = []
        for name in names:  # numbers have leading zeros, so names sort in the order of writing
            path = self._folder / name
            if _PART.fullmatch(name):
                remove_files([path])
            elif (parts := _NAME.fullmatch(name)) is not None:
                if parts[1] != self._prefix:
                    foreign.append(name)
                    continue
                self._next = max(self._next, int(parts[2]) + 1)
                one = self._inspect(path, foreign)
                if one is not None:
                    before = found.pop(one.kept.key, None)
                    self._obsolete += [before.path] if before is not None else []
                    found[one.kept.key] = one
        usable = list(found.values())
        self._obsolete += [one.path for one in usable[:-_MAX_KEPT]]
        self._stored = tuple(usable[-_MAX_KEPT:])
        if foreign and self._foreign:
            named = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
            self._warn(
                f"{self._folder} contains checkpoints of another run or of other rows ({named}); they are not used and "
                "are left in place"
            )

    def _inspect(self, path: Path, foreign: list[str]) -> _StoredFile | None:
        """Return a verified file of this run and these rows; else None, after noting it as foreign or damaged."""
        try:
            header = verified_header(path)
            about = parse_identity(header)
        except (OSError, UnusableCheckpoint) as error:
            self._warn(f"the checkpoint {path} cannot be used: {_reason(error)}")
            self._obsolete += [path] if isinstance(error, DamagedCheckpoint) else []
            return None
        if (about["run"], about["data"]) != (self.run, self.data):
            foreign.append(path.name)
            return None
        return _StoredFile(path, CheckpointInfo(about["iteration"], about["key"], about["members"], about["k"]))

    @property
    def _prefix(self) -> str:
        """Beginning of the file names of this run."""
        return self.run.hex()[:8]

    def _store(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint to the disk."""
        path = self._folder / f"{self._prefix}-{self._next:010d}.checkpoint"
        self._next += 1
        write_checkpoint(path, checkpoint)
        one = _StoredFile(path, _kept_of(checkpoint))
        self._keep([*(other for other in self._stored if other.kept.key != checkpoint.key), one][-_MAX_KEPT:])

    def _keep(self, wanted: list[_StoredFile]) -> None:
        """Keep only these files; remove all others of this run, and the obsolete ones."""
        gone = [one.path for one in self._stored if one not in wanted]
        self._stored = tuple(wanted)
        remove_files([*gone, *self._obsolete])
        self._obsolete = []

    def _report(self, trouble: str) -> None:
        """Warn about a problem unless it was the last one reported."""
        if trouble != self._trouble:
            self._warn(trouble)
        self._trouble = trouble


def _kept_of(checkpoint: Checkpoint) -> CheckpointInfo:
    """Return a checkpoint without its State."""
    return CheckpointInfo(checkpoint.iteration, checkpoint.key, checkpoint.members, checkpoint.k)


def _reason(error: Exception) -> str:
    """Return the reason for an error as text, without the path."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
