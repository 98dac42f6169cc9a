"""The checkpoints of the agents of one process: a folder of files, of which the newest few are kept."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deepca.engines.checkpoint_arrays import Damaged, Unusable
from deepca.engines.checkpoint_format import (
    DIGEST,
    Checkpoint,
    KeptCheckpoint,
    parsed_about,
    read_checkpoint,
    remove_if_there,
    verified,
    write_checkpoint,
)

__all__ = ["Checkpoints"]

_KEPT = 2
_NAME = re.compile(r"([0-9a-f]{8})-([0-9]{10})\.checkpoint")
_PART = re.compile(_NAME.pattern + r"\..*\.part")


@dataclass(frozen=True)
class _Stored:
    path: Path
    kept: KeptCheckpoint


class Checkpoints:
    """The checkpoints of one agent in a folder; the last two that were written are kept.

    Parameters
    ----------
    folder : made if it is not there yet; readable by its owner only.
    run, data : digests of 32 bytes. Checkpoints of another run or of other rows are neither used nor touched.
    warn : told in one line of whatever is wrong. Nothing here raises an OSError.
    foreign : whether checkpoints of another run or of other rows are worth a line.

    Files are read through once, here, so that one that is damaged is never offered. One thread may change things while
    another one asks for :meth:`kept`. Two agents must not share folder and run.
    """

    def __init__(
        self, folder: Path, run: bytes, data: bytes, *, warn: Callable[[str], None], foreign: bool = True
    ) -> None:
        if len(run) != DIGEST or len(data) != DIGEST:
            raise ValueError(f"run and data have {DIGEST} bytes each")
        self._folder, self.run, self.data, self._warn = folder, run, data, warn
        self._stored: tuple[_Stored, ...] = ()
        self._waiting: tuple[Checkpoint, ...] = ()  # those that could not be written
        self._worthless: list[Path] = []  # own ones that go when a better one is there
        self._next = 1  # number of the next file
        self._foreign = foreign
        self._trouble = ""
        with contextlib.suppress(OSError):  # told when something is to be written
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._look()

    def write(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint is on the disk now. If not, the last two are kept in memory, and tried again later.

        The reason is told once, and again only when it has changed. Nothing on the disk is given up in the meantime.
        """
        if (checkpoint.run, checkpoint.data) != (self.run, self.data):
            raise ValueError("a checkpoint of another run or of other rows")
        waiting = [*(other for other in self._waiting if other.key != checkpoint.key), checkpoint][-_KEPT:]
        self._waiting = tuple(waiting)
        try:
            for one in waiting:
                self._store(one)
                self._waiting = self._waiting[1:]
        except OSError as error:
            self._tell(
                f"no checkpoint can be written to {self._folder}: {error.strerror or error}; the run goes on with its "
                "latest checkpoints in memory, which are lost when this agent ends"
            )
            return False
        self._trouble = ""
        return True

    def kept(self) -> tuple[KeptCheckpoint, ...]:
        """What could be loaded, in the order of writing: newest last."""
        waiting = self._waiting  # first: so what moves to the disk meanwhile is not left out
        found = {one.kept.key: one.kept for one in self._stored}
        for one in waiting:
            found.pop(one.key, None)
            found[one.key] = _kept_of(one)
        return tuple(found.values())

    def load(self, key: bytes) -> Checkpoint | None:
        """The checkpoint with that key; None, and a warning, where it is damaged or gone."""
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
                why = "it is another one than before"
            except (OSError, Unusable) as error:
                why = _reason(error)
                self._worthless += [stored.path] if isinstance(error, Damaged) else []
            self._warn(f"the checkpoint {stored.path} cannot be used: {why}")
            self._stored = tuple(one for one in self._stored if one is not stored)
            return None
        self._warn(f"{self._folder} has no checkpoint {key.hex()[:8]}")
        return None

    def keep_until(self, key: bytes) -> None:
        """Forget all others, after going back to this one. Where it is not there, nothing is forgotten."""
        if all(one.key != key for one in self.kept()):
            return
        self._waiting = tuple(one for one in self._waiting if one.key == key)
        self._keep([one for one in self._stored if one.kept.key == key])

    def clear(self) -> None:
        """Forget all checkpoints of this run and these rows."""
        self._waiting = ()
        self._keep([])

    # ------------------------------------------------------------------------------------------------------- folder

    def _look(self) -> None:
        """What earlier processes have left."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._warn(f"checkpoints in {self._folder} cannot be read: {_reason(error)}")
            return
        found: dict[bytes, _Stored] = {}
        foreign: list[str] = []
        for name in names:  # numbers have leading zeros: in the order of writing
            path = self._folder / name
            if _PART.fullmatch(name):
                remove_if_there([path])
            elif (parts := _NAME.fullmatch(name)) is not None:
                if parts[1] != self._prefix:
                    foreign.append(name)
                    continue
                self._next = max(self._next, int(parts[2]) + 1)
                one = self._inspect(path, foreign)
                if one is not None:
                    before = found.pop(one.kept.key, None)
                    self._worthless += [before.path] if before is not None else []
                    found[one.kept.key] = one
        usable = list(found.values())
        self._worthless += [one.path for one in usable[:-_KEPT]]
        self._stored = tuple(usable[-_KEPT:])
        if foreign and self._foreign:
            named = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
            self._warn(
                f"{self._folder} holds checkpoints of another run or of other rows ({named}); they are not used and "
                "stay where they are"
            )

    def _inspect(self, path: Path, foreign: list[str]) -> _Stored | None:
        try:
            header = verified(path)
            about = parsed_about(header)
        except (OSError, Unusable) as error:
            self._warn(f"the checkpoint {path} cannot be used: {_reason(error)}")
            self._worthless += [path] if isinstance(error, Damaged) else []
            return None
        if (about["run"], about["data"]) != (self.run, self.data):
            foreign.append(path.name)
            return None
        return _Stored(path, KeptCheckpoint(about["iteration"], about["key"], about["members"], about["k"]))

    @property
    def _prefix(self) -> str:
        return self.run.hex()[:8]

    def _store(self, checkpoint: Checkpoint) -> None:
        path = self._folder / f"{self._prefix}-{self._next:010d}.checkpoint"
        self._next += 1
        write_checkpoint(path, checkpoint)
        one = _Stored(path, _kept_of(checkpoint))
        self._keep([*(other for other in self._stored if other.kept.key != checkpoint.key), one][-_KEPT:])

    def _keep(self, wanted: list[_Stored]) -> None:
        gone = [one.path for one in self._stored if one not in wanted]
        self._stored = tuple(wanted)
        remove_if_there([*gone, *self._worthless])
        self._worthless = []

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._warn(trouble)
        self._trouble = trouble


def _kept_of(checkpoint: Checkpoint) -> KeptCheckpoint:
    return KeptCheckpoint(checkpoint.iteration, checkpoint.key, checkpoint.members, checkpoint.k)


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
