"""What a site must not forget when it is killed: the epochs it has entered, and the result it has said to hold.

Others rely on both. A site that said to hold a result counts towards the majority that decides it, and a site that has
entered an epoch will not hold results of earlier ones; were either forgotten, two results could be decided.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from deepca._files import write_whole

__all__ = ["FileVault", "MemoryVault", "Remembered", "Vault"]


@dataclass(frozen=True)
class Remembered:
    """epoch : the last one entered.  outcome : a result held, made in ``outcome_epoch``.  decided : most hold it."""

    epoch: int = 0
    outcome: bytes | None = None
    outcome_epoch: int = 0
    decided: bool = False


class Vault(Protocol):
    def load(self) -> Remembered: ...
    def enter(self, epoch: int, /) -> None: ...
    def hold(self, outcome: bytes | None, epoch: int, /, *, decided: bool = False) -> None: ...


class MemoryVault:
    """Of an agent that cannot be killed alone."""

    def __init__(self) -> None:
        self.kept = Remembered()

    def load(self) -> Remembered:
        return self.kept

    def enter(self, epoch: int, /) -> None:
        kept = self.kept
        self.kept = Remembered(max(epoch, kept.epoch), kept.outcome, kept.outcome_epoch, kept.decided)

    def hold(self, outcome: bytes | None, epoch: int, /, *, decided: bool = False) -> None:
        self.kept = Remembered(self.kept.epoch, outcome, epoch, decided)


class FileVault(MemoryVault):
    """Two files: the result, and what is to be said of it. Where they cannot be written, a warning, and memory."""

    def __init__(self, folder: Path, name: str, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._about, self._result, self._warn = folder / f"{name}.json", folder / f"{name}.npz", warn
        self.kept = self._read()

    def enter(self, epoch: int, /) -> None:
        super().enter(epoch)
        self._write()

    def hold(self, outcome: bytes | None, epoch: int, /, *, decided: bool = False) -> None:
        known = self.kept.outcome
        super().hold(outcome, epoch, decided=decided)
        self._write(outcome if outcome != known else None)

    def _read(self) -> Remembered:
        try:
            said = json.loads(self._about.read_text(encoding="utf-8"))
            epoch, digest = int(said["epoch"]), said["sha256"]
            if digest is None:
                return Remembered(epoch)
            outcome = self._result.read_bytes()
            if hashlib.sha256(outcome).hexdigest() == digest:
                return Remembered(epoch, outcome, int(said["outcome_epoch"]), bool(said["decided"]))
            self._warn(f"{self._result} is not the result that was held")
            return Remembered(epoch)
        except FileNotFoundError:
            return Remembered()
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._warn(f"{self._about} cannot be used: {error}")
            return Remembered()

    def _write(self, outcome: bytes | None = None) -> None:
        said = asdict(self.kept)
        held = said.pop("outcome")
        said["sha256"] = None if held is None else hashlib.sha256(held).hexdigest()
        try:
            if outcome is not None:
                write_whole(self._result, outcome, mode=0o600)
            write_whole(self._about, json.dumps(said).encode(), mode=0o600)
        except OSError as error:
            self._warn(f"what this run has come to could not be kept in {self._about.parent}: {error.strerror}")
