"""Write the audit log of an agent in a thread of its own.

The event loop and the algorithm only append to queues. The writer formats, hashes and writes what is in them, at least
once per second, so that a process that is killed loses no more than that.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepca import __version__
from deepca._util.logs import EventLogger
from deepca.sites.audit.counts import FrameCounts, MessageCounts
from deepca.sites.audit.journal import LinkJournal
from deepca.sites.audit.lines import FIRST_HASH, FORMAT, SIGNATURE_LABEL, chained, described, digest_of, utc
from deepca.sites.audit.previous import PreviousLog, previous_log
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel

__all__ = ["AuditWriter", "Logged", "Signature"]

_logger = logging.getLogger(__name__)

_FLUSH_INTERVAL = 0.5  # seconds between writes; killed agents lose what is newer
_FLUSH_BYTES = 8 << 20  # bodies in the queue that are written at once, since the queue keeps them in memory
_COUNT_INTERVAL = 60.0  # seconds between lines that count frames
_NAME_ATTEMPTS = 100  # file names tried, one microsecond apart
Signature = tuple[bytes, bytes]
"""The certificate (DER) of a site, and a signature made with its key."""
_Body = tuple[bytes | bytearray | memoryview, ...]
_Event = tuple[float, str, str, int, int, bytes, _Body, str]  # time, way, neighbour, session, seq, header, body, shows


@dataclass(frozen=True)
class Logged:
    """Subject of an audit log.

    Parameters
    ----------
    site, network, run : str
        Names of the site, the network and the run.
    network_digest : bytes
        Digest of the network, which is the same at all its sites.
    privacy : str
        "private" or "open".
    incarnation : Incarnation
        This start of the agent.
    """

    site: str
    network: str
    run: str
    network_digest: bytes
    privacy: str
    incarnation: Incarnation


class AuditWriter:
    """The audit log of one agent, from its start to its end.

    Parameters
    ----------
    folder : Path
        Folder of the logs; it is created if necessary.
    about : Logged
        What the log is about.
    failed : callable, optional
        Called with the error when a line cannot be written, in the writer's thread; by default, a warning is logged.

    Raises
    ------
    OSError
        If the log cannot be created.

    Attributes
    ----------
    path : Path
        The file.
    frames : FrameCounts
        Counts of what is written to streams.
    """

    def __init__(
        self,
        folder: Path,
        about: Logged,
        *,
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        self._about = about
        self._failed = failed if failed is not None else self._warn
        self._log = EventLogger(_logger, about.site)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = previous_log(folder, about.site, about.network_digest, about.run)
        self.path, self._handle = _create(folder, about.site, time.time())
        self._events: deque[_Event] = deque()
        self._waiting = 0  # bytes in the queue
        self._due, self._over = threading.Event(), False
        self._head = FIRST_HASH if before is None else before.head
        self._size = self._lost = 0  # bytes written; messages that could not be written
        self._broken = False  # whether the last attempt to write failed
        self._last: tuple[bytes, _Body, str] = b"", (), ""  # the last message sent, and its digest
        self.frames, self._totals = FrameCounts(), MessageCounts()
        self._counted_at = time.monotonic()
        try:
            self._write([self._start(before)])
        except OSError:
            os.close(self._handle)
            self.path.unlink(missing_ok=True)
            raise
        self._thread = threading.Thread(target=self._work, name="deepca-audit", daemon=True)
        self._thread.start()

    def journal(self, neighbor: str) -> LinkJournal:
        """Return the journal of the link to a neighbour."""
        return _Journal(self, neighbor)

    def add(self, event: _Event, size: int) -> None:
        """Append an event to the queue; called from any thread."""
        self._events.append(event)
        self._waiting += size  # only an estimate: other threads may add at the same time
        if self._waiting > _FLUSH_BYTES:
            self._due.set()

    def close(self, sign: Callable[[bytes], Signature] | None) -> None:
        """Write the end of the log; ``sign`` signs its head with the key of the site, None leaves it unsigned."""
        if self._over:
            return
        self._over = True
        self._due.set()
        self._thread.join()
        self._flush(final=True)
        try:
            if not self._broken:
                self._sign(sign)
            os.fsync(self._handle)
        except OSError as error:
            self._fail(error)
        finally:
            os.close(self._handle)

    # --------------------------------------------------------------------------------------------- the writer's thread

    def _work(self) -> None:
        while not self._over:
            self._due.wait(_FLUSH_INTERVAL)
            self._due.clear()
            self._flush()

    def _flush(self, *, final: bool = False) -> None:
        """Write what is in the queue; what cannot be written is lost, and counted."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        self._waiting = 0
        now, lines, totals = time.time(), list[dict[str, Any]](), self._totals.copy()
        if self._lost:
            lines.append({"line": "gap", "time": utc(now), "lost": self._lost})
        for event in events:
            members = self._line(event)
            totals.add(members)
            lines.append(members)
        if counting := final or time.monotonic() - self._counted_at >= _COUNT_INTERVAL:
            counted = self.frames.new()
            lines += [{"line": "frames", "time": utc(now), "to": to, "counts": kinds} for to, kinds in counted.items()]
        if final:
            lines.append({"line": "end", "time": utc(now), "totals": totals.as_json()})
        if not lines:
            return
        try:
            self._write(lines)
        except OSError as error:
            self._lost += sum(event[1] in ("sent", "received") for event in events)
            self._fail(error)
            return
        self._totals, self._lost, self._broken = totals, 0, False
        if counting:
            self.frames.keep_new()
            self._counted_at = time.monotonic()

    def _line(self, event: _Event) -> dict[str, Any]:
        at, way, neighbor, session, seq, header, body, visibility = event
        if way == "incarnation":
            return {"line": way, "time": utc(at), "incarnation": f"{session:016x}", "boot": f"{seq:016x}"}
        about = described(header, visibility)
        if way == "received":
            about = {"kind": about["kind"]}
        return {
            "line": way,
            "time": utc(at),
            "to" if way == "sent" else "from": neighbor,
            **about,
            "bytes": sum(map(len, body)),
            "header": len(header),
            "session": f"{session:016x}",
            "seq": seq,
            "digest": self._digest(header, body),
        }

    def _digest(self, header: bytes, body: _Body) -> str:
        """Return the digest of a message; one for several neighbours is hashed once."""
        known = self._last
        if header is not known[0] or body is not known[1]:
            known = self._last = header, body, digest_of(header, *body)
        return known[2]

    def _start(self, before: PreviousLog | None) -> dict[str, Any]:
        about = self._about
        return {
            "line": "start",
            "format": FORMAT,
            "time": utc(time.time()),
            "site": about.site,
            "network": about.network,
            "run": about.run,
            "network_digest": about.network_digest.hex(),
            "privacy": about.privacy,
            "deepca": __version__,
            "incarnation": f"{about.incarnation.number:016x}",
            "boot": f"{about.incarnation.boot:016x}",
            "previous": None if before is None else {"file": before.name, "hash": before.head.hex()},
        }

    def _sign(self, sign: Callable[[bytes], Signature] | None) -> None:
        if sign is None:
            return
        certificate, signature = sign(SIGNATURE_LABEL + self._head)
        self._write([{"line": "signature", "certificate": certificate.hex(), "signature": signature.hex()}])

    def _write(self, lines: list[dict[str, Any]]) -> None:
        """Append lines; if that fails, leave the file as it was and raise OSError."""
        head, content = self._head, []
        for members in lines:
            line, head = chained(head, members)
            content.append(line)
        rest = memoryview(b"".join(content))
        size = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        except OSError:
            os.ftruncate(self._handle, self._size)
            raise
        self._head, self._size = head, self._size + size

    def _fail(self, error: OSError) -> None:
        if not self._broken:
            self._broken = True
            self._failed(error)

    def _warn(self, error: OSError) -> None:
        self._log.warning(
            f"the audit log {self.path} cannot be written ({error.strerror}), so it will not be complete; the run goes "
            "on. Check the disk space and permissions of that folder",
            event="audit",
        )


class _Journal:
    """The journal of the link to one neighbour."""

    def __init__(self, writer: AuditWriter, neighbor: str) -> None:
        self._writer, self._neighbor = writer, neighbor

    def sent(self, session: int, seq: int, parcel: Parcel, /) -> None:
        """Record a message that leaves."""
        event = (time.time(), "sent", self._neighbor, session, seq, parcel.header, parcel.body, parcel.visibility)
        self._writer.add(event, parcel.total)

    def received(self, session: int, seq: int, header: bytes, body: bytes | bytearray, /) -> None:
        """Record a message that has arrived."""
        event = (time.time(), "received", self._neighbor, session, seq, header, (body,), "public")
        self._writer.add(event, len(body))

    def continued_as(self, incarnation: Incarnation, /) -> None:
        """Record another incarnation of this agent."""
        event = (time.time(), "incarnation", "", incarnation.number, incarnation.boot, b"", (), "public")
        self._writer.add(event, 0)


def _create(folder: Path, site: str, now: float) -> tuple[Path, int]:
    """Create the file of a new log, which only its owner can read."""
    for attempt in range(_NAME_ATTEMPTS):
        stamp = utc(now + attempt * 1e-3).translate({ord(":"): None, ord("-"): None, ord("."): None})
        path = folder / f"{site}-{stamp}.jsonl"
        try:
            return path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
    raise FileExistsError(errno.EEXIST, "other logs have all names that are tried", str(folder))
