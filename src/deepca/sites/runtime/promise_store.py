"""Store what a site must not forget in a crash: the epochs it entered, the result it signed, and what totals showed.

Other sites rely on the first two. A site's signature counts towards the majority that decides a result, and a site
that has entered an epoch signs no result of an earlier one; if either were forgotten, two results could be decided.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from deepca._util.files import write_atomic
from deepca._util.logs import EventLogger
from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement, ResultClaim

__all__ = ["FilePromiseStore", "MemoryPromiseStore", "PromiseStore", "Promises"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Promises:
    """The promises of a site.

    Parameters
    ----------
    epoch : int
        The last epoch entered.
    content : bytes or None
        The model file that this site signed, or accepted because most sites had signed it.
    claim : ResultClaim or None
        The claim about that file.
    endorsements : tuple of Endorsement
        The known signatures on that claim.
    decided : bool
        Whether those signatures suffice to write the result.
    directions : int
        Number of directions of the pooled covariance that totals of the run have shown, at most.
    """

    epoch: int = 0
    content: bytes | None = None
    claim: ResultClaim | None = None
    endorsements: tuple[Endorsement, ...] = ()
    decided: bool = False
    directions: int = 0


class PromiseStore(Protocol):
    """Storage for the promises of a site."""

    def load(self) -> Promises:
        """Return what is stored."""
        ...

    def store_epoch(self, epoch: int, /) -> None:
        """Store that this site enters an epoch, before other sites learn of it."""
        ...

    def store_directions(self, directions: int, /) -> None:
        """Store how many directions totals show, before the total that shows them is computed."""
        ...

    def store_result(
        self, content: bytes, claim: ResultClaim, endorsements: Sequence[Endorsement], /, *, decided: bool = False
    ) -> None:
        """Store a result and its signatures, before other sites learn of this site's own signature."""
        ...


class MemoryPromiseStore:
    """Promises in memory, for simulated agents; the simulation keeps this object when it restarts an agent."""

    def __init__(self) -> None:
        self.kept = Promises()

    def load(self) -> Promises:
        """Return what is stored."""
        return self.kept

    def store_epoch(self, epoch: int, /) -> None:
        """Store the epoch if it is later than the stored one."""
        self.kept = replace(self.kept, epoch=max(epoch, self.kept.epoch))

    def store_directions(self, directions: int, /) -> None:
        """Store the number if it is larger than the stored one."""
        self.kept = replace(self.kept, directions=max(directions, self.kept.directions))

    def store_result(
        self, content: bytes, claim: ResultClaim, endorsements: Sequence[Endorsement], /, *, decided: bool = False
    ) -> None:
        """Replace the stored result."""
        kept = self.kept
        self.kept = Promises(kept.epoch, content, claim, tuple(endorsements), decided, kept.directions)


class FilePromiseStore(MemoryPromiseStore):
    """Promises in two files, the result and its endorsements; if a write fails, a warning is logged.

    Promises are kept in memory as well, so that the agent can continue after a failed write.

    Parameters
    ----------
    folder : Path
        State folder of the site.
    name : str
        Name of the files, without suffix.
    site : str
        Name of the site, for the log.
    sites : int
        Number of sites in the network.
    """

    def __init__(self, folder: Path, name: str, site: str, sites: int) -> None:
        super().__init__()
        self._about, self._result = folder / f"{name}.json", folder / f"{name}.npz"
        self._log = EventLogger(_logger, site)
        self.kept = self._read(sites)

    def store_epoch(self, epoch: int, /) -> None:
        """Store the epoch on disk."""
        super().store_epoch(epoch)
        self._write()

    def store_directions(self, directions: int, /) -> None:
        """Store the number on disk."""
        super().store_directions(directions)
        self._write()

    def store_result(
        self, content: bytes, claim: ResultClaim, endorsements: Sequence[Endorsement], /, *, decided: bool = False
    ) -> None:
        """Store the result on disk; the model file is written only if it has changed."""
        known = self.kept.content
        super().store_result(content, claim, endorsements, decided=decided)
        self._write(content if content != known else None)

    def _read(self, sites: int) -> Promises:
        try:
            stored = json.loads(self._about.read_text(encoding="utf-8"))
            epoch, directions = int(stored["epoch"]), int(stored.get("directions", 0))
        except FileNotFoundError:
            return Promises()
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._log.warning(
                f"{self._about} cannot be read ({error}) and is ignored, so this site does not know what it signed in "
                "this run; check the disk and the permissions of that folder",
                event="checkpoint",
            )
            return Promises()
        try:
            if not (signed := stored["endorsements"]):
                return Promises(epoch, directions=directions)
            endorsements = tuple(_endorsement(one, sites) for one in signed)
            content, claim = self._result.read_bytes(), endorsements[0].claim
            if hashlib.sha256(content).digest() == claim.outcome:
                return Promises(epoch, content, claim, endorsements, bool(stored["decided"]), directions)
            reason = "is not the result that this site signed"
        except (OSError, ValueError, KeyError, TypeError, FrameError) as error:
            reason = f"cannot be used ({error})"
        self._log.warning(
            f"{self._result} {reason}, so it is ignored; another site can send the result again", event="checkpoint"
        )
        return Promises(epoch, directions=directions)  # without the result; the epoch is still binding

    def _write(self, content: bytes | None = None) -> None:
        kept = self.kept
        stored = {
            "epoch": kept.epoch,
            "decided": kept.decided,
            "directions": kept.directions,
            "endorsements": [one.to_wire().SerializeToString().hex() for one in kept.endorsements],
        }
        try:
            if content is not None:
                write_atomic(self._result, content, mode=0o600)
            write_atomic(self._about, json.dumps(stored).encode(), mode=0o600)
        except OSError as error:
            self._log.warning(
                f"the progress of this run cannot be stored in {self._about.parent} ({error.strerror}); check the disk "
                "space and permissions of that folder, and do not restart this agent before the run has ended",
                event="checkpoint",
            )


def _endorsement(stored: str, sites: int) -> Endorsement:
    one = wire.Endorsement()
    try:
        one.ParseFromString(bytes.fromhex(stored))
    except ValueError:
        raise
    except Exception:  # the import path of protobuf's DecodeError is not stable
        raise ValueError("malformed endorsement") from None
    return Endorsement.from_wire(one, sites)
