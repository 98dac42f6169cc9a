"""Read audit logs, verify their chains, and check who signed them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from cryptography import x509

from deepca.errors import InvalidInput, Refused
from deepca.sites.audit.counts import MessageCounts
from deepca.sites.audit.lines import FIRST_HASH, FORMAT, SIGNATURE_LABEL, parsed
from deepca.sites.audit.previous import pattern_of
from deepca.sites.pki.certificates import check_peer, verify_signature

__all__ = ["AuditLine", "AuditLog", "Signed", "check_restarts", "read_log", "read_logs"]

Signed = Literal["verified", "not checked", "wrong", "unsigned", "unfinished"]
"""State of the signature of a log.

"verified": by the certificate of the site; "not checked": it is valid, but the certificate was not checked, for lack of
an authority; "wrong": it is not valid; "unsigned": the log has an end, but no signature, as without certificates;
"unfinished": the log has no end.
"""


@dataclass(frozen=True)
class AuditLine:
    """A line of a log: its number, counted from 1, and its members."""

    number: int
    members: Mapping[str, Any]


@dataclass(frozen=True)
class AuditLog:
    """A log that was read.

    Parameters
    ----------
    path : Path
        The file.
    start : mapping
        Members of the first line.
    lines : tuple of AuditLine
        The lines up to the first fault, or all of them.
    head : bytes
        Hash of the last of these lines.
    fault : str
        What is wrong; empty if nothing is.
    faulty_line : int or None
        Number of the line at fault.
    signed : Signed
        What is known of the signature.
    signature_fault : str
        What is wrong with the signature; empty if nothing is.
    """

    path: Path
    start: Mapping[str, Any]
    lines: tuple[AuditLine, ...]
    head: bytes
    fault: str = ""
    faulty_line: int | None = None
    signed: Signed = "unfinished"
    signature_fault: str = ""
    totals: MessageCounts = field(default_factory=MessageCounts)

    @property
    def ok(self) -> bool:
        """True if no line was changed, removed or moved, as far as the file itself can tell."""
        return not self.fault and self.signed != "wrong"

    @property
    def site(self) -> str:
        """Name of the site."""
        return str(self.start["site"])

    @property
    def run(self) -> tuple[str, str]:
        """Digest of the network and name of the run."""
        return str(self.start["network_digest"]), str(self.start["run"])

    @property
    def complete(self) -> bool:
        """True if nothing is missing at the end or in between."""
        return self.signed != "unfinished" and not self.fault and not self.lost

    @property
    def lost(self) -> int:
        """Number of messages that could not be written."""
        return sum(int(line.members["lost"]) for line in self.lines if line.members["line"] == "gap")

    @property
    def boots(self) -> frozenset[int]:
        """Random numbers of the incarnations of the agent."""
        found = [self.start, *(one.members for one in self.lines if one.members["line"] == "incarnation")]
        return frozenset(int(one["boot"], 16) for one in found)


def read_logs(folder: Path, site: str = "") -> list[Path]:
    """Return the logs in a folder, oldest first: of one site, or of all; raise InvalidInput unless one is found."""
    found = sorted(folder.glob(pattern_of(site) if site else "*.jsonl"))
    if not found:
        raise InvalidInput(
            f"{folder}: this folder contains no audit logs; check the path, and `audit` and `audit_folder` in "
            "site.toml",
            file=str(folder),
        )
    return found


def read_log(path: Path, authority: x509.Certificate | None = None) -> AuditLog:
    """Read a log, verify its chain, and check its signature.

    Parameters
    ----------
    path : Path
        The file.
    authority : x509.Certificate, optional
        Certificate of the authority of its network.

    Returns
    -------
    AuditLog
        The log; ``fault`` and ``signature_fault`` say what is wrong with it.

    Raises
    ------
    InvalidInput
        If the file cannot be read, or is not an audit log of this version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read ({error.strerror}); give an audit log, a folder of them, or site.toml",
            file=str(path),
        ) from None
    *whole, torn = content.split(b"\n")
    start, head = _start(path, whole)
    log = _follow(path, start, head, whole)
    if torn and not log.fault and log.signed != "unfinished":  # else the agent was killed while it wrote this line
        log = replace(log, fault="there is text after the end of the log", faulty_line=len(whole) + 1)
    return log if log.signed != "not checked" else _check_signature(log, authority)


def _start(path: Path, lines: Sequence[bytes]) -> tuple[Mapping[str, Any], bytes]:
    """Return the members of the first line, and the hash that the chain continues."""
    try:
        members, _, _ = parsed(lines[0])
        before = FIRST_HASH if members["previous"] is None else bytes.fromhex(members["previous"]["hash"])
    except (ValueError, KeyError, TypeError, IndexError):
        raise InvalidInput(
            f"{path}:1: this is not the first line of an audit log; give a file that an agent wrote to its audit "
            "folder, as it is",
            file=str(path),
            line=1,
        ) from None
    if members.get("format") != FORMAT:
        raise InvalidInput(
            f"{path}:1: format {members.get('format')} of audit logs is not known to this version of deepca, which "
            f"reads format {FORMAT}; use the version that wrote it, {members.get('deepca')}",
            file=str(path),
            line=1,
        )
    return members, before


def _follow(path: Path, start: Mapping[str, Any], before: bytes, lines: Sequence[bytes]) -> AuditLog:
    """Follow the chain to the first fault, or to the end."""
    found: list[AuditLine] = []
    totals, state, fault, head = MessageCounts(), "unfinished", "", before
    for number, line in enumerate(lines, 1):
        try:
            members, claimed, covered = parsed(line)
            what = members["line"]
            if hashlib.sha256(head + covered).digest() != claimed:
                fault = "its hash does not match: this line, or the one before it, was changed, moved or removed"
            elif state == "signed" or (state == "ended" and what != "signature"):
                fault = "there is another line after the end of the log"
            elif what == "start" and number > 1:
                fault = "another log begins here"
            else:
                totals.add(members)
                if what == "end" and members["totals"] != totals.as_json():
                    fault = "its totals are not those of the lines before it"
                state = {"end": "ended", "signature": "signed"}.get(what, state)
                if what == "signature" and (not found or found[-1].members["line"] != "end"):
                    fault = "a signature without the end of the log before it"
        except (ValueError, KeyError, TypeError):
            fault = "it is damaged"
        if fault:
            break
        head = claimed
        found.append(AuditLine(number, members))
    known: Signed = "not checked" if state == "signed" else "unsigned" if state == "ended" else "unfinished"
    faulty = len(found) + 1 if fault else None
    return AuditLog(path, start, tuple(found), head, fault, faulty, "unfinished" if fault else known, "", totals)


def _check_signature(log: AuditLog, authority: x509.Certificate | None) -> AuditLog:
    """Check the signature in the last line, and its certificate at the time of the end."""
    *_, end, last = log.lines
    try:
        certificate, signature = (bytes.fromhex(last.members[name]) for name in ("certificate", "signature"))
        ended = datetime.fromisoformat(end.members["time"]).astimezone(UTC)
        head = _hash_before(log.path, last.number)
    except (ValueError, KeyError, TypeError):
        return replace(log, signed="wrong", signature_fault="the signature is damaged")
    if not verify_signature(certificate, signature, SIGNATURE_LABEL + head):
        return replace(log, signed="wrong", signature_fault="the signature is not one of these lines")
    if authority is None:
        return log
    try:
        check_peer(certificate, log.site, str(log.start["network"]), authority, None, now=ended)
    except Refused as error:
        return replace(log, signed="wrong", signature_fault=str(error))
    return replace(log, signed="verified")


def _hash_before(path: Path, number: int) -> bytes:
    """Return the hash of the line before line ``number``."""
    return parsed(path.read_bytes().split(b"\n")[number - 2])[1]


def check_restarts(logs: Sequence[AuditLog]) -> list[str]:
    """Return what is wrong with how the logs of a folder continue each other; ``logs`` are in the order of time."""
    heads = {log.path.name: log.head for log in logs}
    wrong = []
    for log in logs:
        if (before := log.start["previous"]) is None:
            continue
        name = str(before["file"])
        if name not in heads:
            wrong.append(f"{log.path.name} continues {name}, which is missing; restore it")
        elif heads[name].hex() != before["hash"]:
            wrong.append(f"{log.path.name} continues {name}, but the end of that log was changed or removed")
    return wrong
