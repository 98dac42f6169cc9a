"""Write the checkpoints of one process to a folder and keep the newest two."""

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

__all__ = ["CheckpointFolder"]

_MAX_KEPT = 2  # number of checkpoints to keep, since an agent may be one checkpoint ahead of the others
_NAME = re.compile(r"([0-9a-f]{8})-([0-9]{10})\.checkpoint")
_PART = re.compile(_NAME.pattern + r"\..*\.part")


@dataclass(frozen=True)
class _StoredFile:
    """Checkpoint on disk."""

    path: Path
    info: CheckpointInfo


class CheckpointFolder:
    """Folder of the checkpoints of one process, of which the last two are kept.

    Parameters
    ----------
    folder : Path
        Folder, created if missing; readable by its owner only.
    run, data : bytes
        Digests of the run and of its rows, 32 bytes each. Checkpoints with different digests are neither used nor
        removed.
    warn : callable
        Receives one line about each problem. No method raises an OSError.
    foreign : bool, default=True
        Whether to warn about checkpoints with different digests.

    Notes
    -----
    The constructor reads and verifies all files, so :meth:`kept` never lists a damaged one. One thread may write while
    another calls :meth:`kept`. Two agents of the same run must not use the same folder.
    """

    def __init__(
        self, folder: Path, run: bytes, data: bytes, *, warn: Callable[[str], None], foreign: bool = True
    ) -> None:
        if len(run) != DIGEST_BYTES or len(data) != DIGEST_BYTES:
            raise ValueError(f"run and data must have {DIGEST_BYTES} bytes each")
        self._folder, self.run, self.data, self._warn = folder, run, data, warn
        self._stored: tuple[_StoredFile, ...] = ()
        self._waiting: tuple[Checkpoint, ...] = ()  # checkpoints to write again after an error
        self._obsolete: list[Path] = []  # files of this run to remove once a better one is on disk
        self._next = 1  # number of the next file
        self._foreign = foreign
        self._trouble = ""
        with contextlib.suppress(OSError):  # reported when a checkpoint cannot be written
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()

    def write(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint; return whether it is on disk now.

        If it is not, the last two checkpoints stay in memory, later calls try to write them again, and older files
        remain on disk. A warning gives the reason, and is repeated only if the reason changes.
        """
        if (checkpoint.run, checkpoint.data) != (self.run, self.data):
            raise ValueError(
                "the checkpoint belongs to a different run or to different rows; use the folder of that run"
            )
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
        found = {one.info.key: one.info for one in self._stored}
        for one in waiting:
            found.pop(one.key, None)
            found[one.key] = _info_of(one)
        return tuple(found.values())

    def load(self, key: bytes) -> Checkpoint | None:
        """Return the checkpoint with that key; None, after a warning, if it is damaged or missing."""
        for waiting in self._waiting:
            if waiting.key == key:
                return waiting
        for stored in self._stored:
            if stored.info.key != key:
                continue
            try:
                checkpoint = read_checkpoint(stored.path)
                if (_info_of(checkpoint), checkpoint.run, checkpoint.data) == (stored.info, self.run, self.data):
                    return checkpoint
                why = "the file has been replaced since it was verified"
            except (OSError, UnusableCheckpoint) as error:
                why = _reason(error)
                self._obsolete += [stored.path] if isinstance(error, DamagedCheckpoint) else []
            self._warn(f"the checkpoint {stored.path} cannot be used: {why}")
            self._stored = tuple(one for one in self._stored if one is not stored)
            return None
        self._warn(f"{self._folder} has no checkpoint with the key {key.hex()[:8]}…, so it cannot be resumed from")
        return None

    def keep_only(self, key: bytes) -> None:
        """Discard all checkpoints except this one, from which the run resumes; do nothing if it is missing."""
        if all(one.key != key for one in self.kept()):
            return
        self._waiting = tuple(one for one in self._waiting if one.key == key)
        self._keep([one for one in self._stored if one.info.key == key])

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
                    before = found.pop(one.info.key, None)
                    self._obsolete += [before.path] if before is not None else []
                    found[one.info.key] = one
        usable = list(found.values())
        self._obsolete += [one.path for one in usable[:-_MAX_KEPT]]
        self._stored = tuple(usable[-_MAX_KEPT:])
        if foreign and self._foreign:
            named = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
            self._warn(
                f"{self._folder} contains checkpoints of a different run or of different rows ({named}); they are "
                "not used, and are left in place"
            )

    def _inspect(self, path: Path, foreign: list[str]) -> _StoredFile | None:
        """Verify a file; return None if it is damaged, or has different digests (then add it to ``foreign``)."""
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
        """Prefix of the file names of this run."""
        return self.run.hex()[:8]

    def _store(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint to the disk."""
        path = self._folder / f"{self._prefix}-{self._next:010d}.checkpoint"
        self._next += 1
        write_checkpoint(path, checkpoint)
        one = _StoredFile(path, _info_of(checkpoint))
        self._keep([*(other for other in self._stored if other.info.key != checkpoint.key), one][-_MAX_KEPT:])

    def _keep(self, wanted: list[_StoredFile]) -> None:
        """Keep only these files; remove all other stored files and the obsolete ones."""
        gone = [one.path for one in self._stored if one not in wanted]
        self._stored = tuple(wanted)
        remove_files([*gone, *self._obsolete])
        self._obsolete = []

    def _report(self, trouble: str) -> None:
        """Warn about a problem, unless it is the one that was reported last."""
        if trouble != self._trouble:
            self._warn(trouble)
        self._trouble = trouble


def _info_of(checkpoint: Checkpoint) -> CheckpointInfo:
    """Return the description of a checkpoint, without its State."""
    return CheckpointInfo(checkpoint.iteration, checkpoint.key, checkpoint.members, checkpoint.k)


def _reason(error: Exception) -> str:
    """Return the reason for an error as text, without the path."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
