"""Digests of a site's rows: an old result is not a new one, and a checkpoint is of no use with other rows.

The digest is that of the file's content, salted, and stays at the site. Content is read again only where the file may
have changed: where its size, its times or its place on the disk are not those of the last look. Touching a file costs a
look, and changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Sequence
from typing import Any

from deepca._util.files import write_whole
from deepca._util.logs import EventLogger
from deepca.errors import OldResult
from deepca.sites.config.site_file import SiteFile
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.runtime.vault import FileVault

__all__ = ["RowsVault", "SiteRows", "next_name"]

_logger = logging.getLogger(__name__)

_BLOCK = 1 << 22


class SiteRows:
    """The rows of one site, and the runs that have ended with them; kept in ``rows.json`` of its state folder."""

    def __init__(self, site: SiteFile) -> None:
        self._site, self._path = site, site.state / "rows.json"
        self._log = EventLogger(_logger, site.site)
        self._known = self._read()
        self.digest = self._digest()

    def check(self, run: bytes) -> None:
        """Raise OldResult if a run of that name has ended here with other rows. run : 32 bytes that stand for it."""
        ended = self._known["ended"].get(run.hex())
        if ended is not None and ended != self.digest.hex():
            raise self._old(known=True)

    def check_known(self, run: bytes) -> None:
        """Raise OldResult unless it is remembered with which rows a run has ended, of which there is a result here."""
        if run.hex() not in self._known["ended"]:
            raise self._old(known=False)

    def _old(self, *, known: bool) -> OldResult:
        name = self._site.network.run
        return OldResult(name, next_name(name), str(self._site.data), known=known)

    def keep(self, run: bytes) -> None:
        """Remember that a result of this run is signed, or taken, with the rows as they are."""
        if self._known["ended"].get(run.hex()) != self.digest.hex():
            self._known["ended"][run.hex()] = self.digest.hex()
            self._write()

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
                while block := file.read(_BLOCK):
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
            self._log.warning(f"{self._path} cannot be used: it has other fields", event="checkpoint")
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._log.warning(f"{self._path} cannot be used: {error}", event="checkpoint")
        return fresh

    def _write(self) -> None:
        try:
            write_whole(self._path, json.dumps(self._known).encode(), mode=0o600)
        except OSError as error:
            self._log.warning(f"{self._path} could not be written: {error.strerror}", event="checkpoint")


class RowsVault(FileVault):
    """A vault that has the rows remembered before a result is signed: whoever is killed after that signs for no other.

    run : 32 bytes that stand for the run. A result without the digest of its rows is not taken for one of these rows.
    """

    def __init__(self, name: str, site: SiteFile, rows: SiteRows, run: bytes) -> None:
        super().__init__(site.state, name, site.site, len(site.network.sites))
        self._rows, self._run = rows, run
        if self.kept.outcome is not None:
            rows.check_known(run)

    def hold(
        self, outcome: bytes, claim: ResultClaim, endorsements: Sequence[Endorsement], /, *, decided: bool = False
    ) -> None:
        self._rows.keep(self._run)
        super().hold(outcome, claim, endorsements, decided=decided)


def next_name(name: str) -> str:
    """A name for the next run: one more, or with a number."""
    found = re.fullmatch(r"(.*?)(\d+)", name)
    return f"{found[1]}{int(found[2]) + 1}" if found else f"{name}-2"
