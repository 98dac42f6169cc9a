"""Compute digests of a site's rows, so that results and checkpoints of earlier rows are not taken for current ones.

The digest is a salted hash of the data file's content and never leaves the site. The content is hashed again only if
the file's size, times or inode have changed since the last time. Touching a file therefore only costs another read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Sequence
from typing import Any

from deepca._util.files import write_atomic
from deepca._util.logs import EventLogger
from deepca.errors import InvalidInput, OldResult
from deepca.sites.config.site_file import SiteFile
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.runtime.promise_store import FilePromiseStore

__all__ = ["RowBoundPromiseStore", "RowDigests", "next_name"]

_logger = logging.getLogger(__name__)

_READ_SIZE = 1 << 22  # number of bytes of the data file to hash at a time, so that large files need little memory


class RowDigests:
    """Digests of a site's rows: the current ones, and those for which it signed or accepted a result.

    They are stored in ``rows.json`` in the state folder.
    """

    def __init__(self, site: SiteFile) -> None:
        self._site, self._path = site, site.state / "rows.json"
        self._log = EventLogger(_logger, site.site)
        self._known = self._read()
        self.digest = self._digest()

    def check(self, run: bytes) -> None:
        """Raise OldResult if a result of a run, given by its 32-byte digest, was signed or accepted with other rows."""
        ended = self._known["ended"].get(run.hex())
        if ended is not None and ended != self.digest.hex():
            raise self._old(known=True)

    def check_known(self, run: bytes) -> None:
        """Raise OldResult unless the digest of the rows with which a run finished is recorded."""
        if run.hex() not in self._known["ended"]:
            raise self._old(known=False)

    def _old(self, *, known: bool) -> OldResult:
        name = self._site.network.run
        return OldResult(name, next_name(name), str(self._site.data), known=known)

    def record(self, run: bytes, *, required: bool = False) -> None:
        """Record that this site uses its current rows in this run; raise InvalidInput if it is required and fails."""
        if self._known["ended"].get(run.hex()) != self.digest.hex():
            self._known["ended"][run.hex()] = self.digest.hex()
            if not self._write() and required:
                raise InvalidInput(
                    f"{self._path} cannot be written, but a private run must recognise its rows when it is started "
                    "again; check the disk space and permissions of that folder",
                    parameter="state",
                    file=str(self._path),
                )

    def _digest(self) -> bytes:
        stat = self._site.data.stat()
        seen = [
            str(self._site.data.resolve()),
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
            stat.st_ino,
            self._site.label_column,
            self._site.dataset,
        ]
        if self._known["seen"] != seen:
            total = hashlib.sha256(bytes.fromhex(self._known["salt"]))
            total.update(json.dumps([self._site.label_column, self._site.dataset]).encode())
            with self._site.data.open("rb") as file:
                while block := file.read(_READ_SIZE):
                    total.update(block)
            self._known |= {"seen": seen, "digest": total.hexdigest()}
            self._write()
        return bytes.fromhex(self._known["digest"])

    def _read(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {"salt": secrets.token_hex(32), "seen": None, "digest": "", "ended": {}}
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
            bytes.fromhex(known["salt"] + known["digest"])
            if known.keys() == fresh.keys() and isinstance(known["ended"], dict):
                return dict(known)
            self._log.warning(
                f"{self._path} has unexpected fields and is ignored; the data file is hashed again", event="checkpoint"
            )
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._log.warning(
                f"{self._path} cannot be read ({error}) and is ignored; the data file is hashed again",
                event="checkpoint",
            )
        return fresh

    def _write(self) -> bool:
        try:
            write_atomic(self._path, json.dumps(self._known).encode(), mode=0o600)
        except OSError as error:
            self._log.warning(
                f"{self._path} cannot be written ({error.strerror}), so this site may not recognise its old results; "
                "check the disk space and permissions of that folder",
                event="checkpoint",
            )
            return False
        return True


class RowBoundPromiseStore(FilePromiseStore):
    """Promises bound to rows: the digest is recorded before a result is stored, so no later agent signs for other rows.

    ``run`` is the 32-byte digest of the run. OldResult is raised if the digest for a stored result is missing. In a
    private network, the digest is recorded before the first sum: sums over other rows of this site would show what has
    changed.
    """

    def __init__(self, name: str, site: SiteFile, rows: RowDigests, run: bytes) -> None:
        super().__init__(site.state, name, site.site, len(site.network.sites))
        self._rows, self._run, self._private = rows, run, site.network.privacy == "private"
        if self.kept.content is not None or (self._private and self.kept.epoch > 0):
            rows.check_known(run)

    def store_epoch(self, epoch: int, /) -> None:
        """Record the digest of the rows in a private network, then store the epoch."""
        if self._private:
            self._rows.record(self._run, required=True)
        super().store_epoch(epoch)

    def store_result(
        self, content: bytes, claim: ResultClaim, endorsements: Sequence[Endorsement], /, *, decided: bool = False
    ) -> None:
        """Record the digest of the rows, then store the result."""
        self._rows.record(self._run)
        super().store_result(content, claim, endorsements, decided=decided)


def next_name(name: str) -> str:
    """Return a name for the next run: the trailing number plus one, or the name with ``-2`` appended."""
    found = re.fullmatch(r"(.*?)(\d+)", name)
    return f"{found[1]}{int(found[2]) + 1}" if found else f"{name}-2"
