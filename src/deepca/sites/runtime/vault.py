"""What a site must not forget when it is killed: the epochs it has entered, and the result it has signed.

Others rely on both. A site's signature counts towards the majority that decides a result, and a site that has entered
an epoch signs no result of an earlier one; were either forgotten, two results could be decided.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from deepca._util.files import write_whole
from deepca._util.logs import EventLogger
from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement, ResultClaim

__all__ = ["FileVault", "MemoryVault", "Remembered", "Vault"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Remembered:
    """epoch : the last one entered.  outcome : a model file that was signed, or taken because most had signed it.

    claim : what was said of it.  endorsements : the signatures under that, as far as they were known.
    decided : whether they suffice.
    """

    epoch: int = 0
    outcome: bytes | None = None
    claim: ResultClaim | None = None
    endorsements: tuple[Endorsement, ...] = ()
    decided: bool = False


class Vault(Protocol):
    def load(self) -> Remembered: ...
    def enter(self, epoch: int, /) -> None: ...
    def hold(
        self, outcome: bytes, claim: ResultClaim, endorsements: Sequence[Endorsement], /, *, decided: bool = False
    ) -> None: ...


class MemoryVault:
    """Of an agent that cannot be killed alone."""

    def __init__(self) -> None:
        self.kept = Remembered()

    def load(self) -> Remembered:
        return self.kept

    def enter(self, epoch: int, /) -> None:
        self.kept = replace(self.kept, epoch=max(epoch, self.kept.epoch))

    def hold(
        self, outcome: bytes, claim: ResultClaim, endorsements: Sequence[Endorsement], /, *, decided: bool = False
    ) -> None:
        self.kept = Remembered(self.kept.epoch, outcome, claim, tuple(endorsements), decided)


class FileVault(MemoryVault):
    """Two files: the result, and what is to be said of it. Where they cannot be written, a warning, and memory.

    site : whose vault it is.  sites : how many there are.
    """

    def __init__(self, folder: Path, name: str, site: str, sites: int) -> None:
        super().__init__()
        self._about, self._result = folder / f"{name}.json", folder / f"{name}.npz"
        self._log = EventLogger(_logger, site)
        self.kept = self._read(sites)

    def enter(self, epoch: int, /) -> None:
        super().enter(epoch)
        self._write()

    def hold(
        self, outcome: bytes, claim: ResultClaim, endorsements: Sequence[Endorsement], /, *, decided: bool = False
    ) -> None:
        known = self.kept.outcome
        super().hold(outcome, claim, endorsements, decided=decided)
        self._write(outcome if outcome != known else None)

    def _read(self, sites: int) -> Remembered:
        try:
            said = json.loads(self._about.read_text(encoding="utf-8"))
            epoch, signed = int(said["epoch"]), said["endorsements"]
            if not signed:
                return Remembered(epoch)
            endorsements = tuple(_endorsement(one, sites) for one in signed)
            outcome, claim = self._result.read_bytes(), endorsements[0].claim
            if hashlib.sha256(outcome).digest() == claim.outcome:
                return Remembered(epoch, outcome, claim, endorsements, bool(said["decided"]))
            self._log.warning(f"{self._result} is not the result that was held", event="checkpoint")
            return Remembered(epoch)
        except FileNotFoundError:
            return Remembered()
        except (OSError, ValueError, KeyError, TypeError, FrameError) as error:
            self._log.warning(f"{self._about} cannot be used: {error}", event="checkpoint")
            return Remembered()

    def _write(self, outcome: bytes | None = None) -> None:
        kept = self.kept
        said = {
            "epoch": kept.epoch,
            "decided": kept.decided,
            "endorsements": [one.to_wire().SerializeToString().hex() for one in kept.endorsements],
        }
        try:
            if outcome is not None:
                write_whole(self._result, outcome, mode=0o600)
            write_whole(self._about, json.dumps(said).encode(), mode=0o600)
        except OSError as error:
            self._log.warning(
                f"what this run has come to could not be kept in {self._about.parent}: {error.strerror}",
                event="checkpoint",
            )


def _endorsement(said: str, sites: int) -> Endorsement:
    one = wire.Endorsement()
    try:
        one.ParseFromString(bytes.fromhex(said))
    except ValueError:
        raise
    except Exception:  # protobuf's own DecodeError has no stable home
        raise ValueError("an endorsement that cannot be read") from None
    return Endorsement.from_wire(one, sites)
