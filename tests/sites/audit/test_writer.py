"""Test that audit logs are written whole, chained across restarts, and that what cannot be written is counted."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from deepca.network.transports.base import Message, Tag, Visibility
from deepca.sites.audit.reader import AuditLog, check_restarts, read_log, read_logs
from deepca.sites.audit.summary import frames_of, summarise
from deepca.sites.audit.writer import AuditWriter, Logged, Signature
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel, pack

ABOUT = Logged("north", "three", "1", b"n" * 32, "private", Incarnation(5, 0xAB))


def parcel(number: int = 0, visibility: Visibility = "masked") -> Parcel:
    return pack(b"p" * 32, Tag(1, "step", number, 2), Message(np.arange(3.0) + number, (), visibility))


def write(folder: Path, messages: int = 3, about: Logged = ABOUT) -> Path:
    """Write a log with messages both ways, and without a signature."""
    writer = AuditWriter(folder, about)
    journal = writer.journal("south")
    for number in range(1, messages + 1):
        journal.sent(7, number, parcel(number))
        journal.received(7, number, parcel(-number).header, b"body")
    writer.frames.add("south", "part", 100)
    writer.frames.add("south", "beat", 10)
    writer.frames.add("south", "beat", 10)
    writer.close(None)
    return writer.path


def fill_disk(monkeypatch: pytest.MonkeyPatch, writer: AuditWriter) -> threading.Event:
    """Make the disk accept half of what is written to a log, until the event that is returned is set."""
    there_is_room, write_whole = threading.Event(), os.write

    def write_some(handle: int, content: Any) -> int:
        if handle != writer._handle or there_is_room.is_set():
            return write_whole(handle, content)
        if len(content) > 40:
            return write_whole(handle, content[:40])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("deepca.sites.audit.writer.os.write", write_some)
    return there_is_room


def what(log: AuditLog) -> list[str]:
    return [str(line.members["line"]) for line in log.lines]


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_logs_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    path = write(tmp_path / "audit")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_line_says_what_left(tmp_path: Path) -> None:
    log = read_log(write(tmp_path))
    assert log.ok
    assert what(log) == ["start", *["sent", "received"] * 3, "frames", "end"]
    first = log.lines[1].members
    assert {
        name: first[name] for name in ("to", "kind", "phase", "iteration", "round", "masked", "dtype", "shape")
    } == {
        "to": "south",
        "kind": "data",
        "phase": "step",
        "iteration": 1,
        "round": 2,
        "masked": True,
        "dtype": "f8",
        "shape": [3],
    }
    assert (first["bytes"], first["header"], first["seq"]) == (24, len(parcel(1).header), 1)
    assert frames_of([log]) == {"beat": (2, 20), "part": (1, 100)}
    [row] = summarise([log])
    assert (row.messages, row.masked, row.masked_share) == (3, 3, 1.0)


def test_lines_contain_no_numbers_of_a_message(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert json.dumps([1.0, 2.0, 3.0])[1:-1] not in path.read_text()
    assert np.arange(3.0).tobytes().hex() not in path.read_text()


@pytest.mark.parametrize(
    ("visibility", "expected"), [("masked", True), ("public", "public"), ("structural", "structural"), ("open", False)]
)
def test_the_visibility_of_a_message_is_in_its_line(visibility: Visibility, expected: object, tmp_path: Path) -> None:
    writer = AuditWriter(tmp_path, ABOUT)
    writer.journal("south").sent(7, 1, parcel(visibility=visibility))
    writer.close(None)
    assert read_log(writer.path).lines[1].members["masked"] == expected


def test_a_malformed_header_does_not_end_the_log(tmp_path: Path) -> None:
    writer = AuditWriter(tmp_path, ABOUT)
    writer.journal("south").received(7, 1, b"\xff\xff\xff", b"")
    writer.close(None)
    assert read_log(writer.path).lines[1].members["kind"] == "malformed"


def test_restarts_continue_the_chain(tmp_path: Path) -> None:
    paths = [write(tmp_path) for _ in range(3)]
    logs = [read_log(path) for path in read_logs(tmp_path, "north")]
    assert [log.path for log in logs] == paths
    assert [log.start["previous"] and log.start["previous"]["file"] for log in logs] == [
        None,
        paths[0].name,
        paths[1].name,
    ]
    assert check_restarts(logs) == []
    assert len(check_restarts([logs[0], logs[2]])) == 1
    lines = paths[1].read_bytes().split(b"\n")
    paths[1].write_bytes(b"\n".join([*lines[:4], b""]))  # as if the agent had been killed then
    cut = [read_log(path) for path in paths]
    assert all(log.ok for log in cut)
    assert len(check_restarts(cut)) == 1


def test_a_restart_after_a_kill_continues_the_last_whole_line(tmp_path: Path) -> None:
    first = write(tmp_path)
    lines = first.read_bytes().split(b"\n")
    first.write_bytes(b"\n".join([*lines[:4], lines[4][:30]]))  # killed while it wrote a line
    logs = [read_log(first), read_log(write(tmp_path))]
    assert (logs[0].ok, logs[0].signed, len(logs[0].lines)) == (True, "unfinished", 4)
    assert check_restarts(logs) == []
    assert logs[1].start["previous"]["hash"] == logs[0].head.hex()


def test_other_runs_and_sites_have_chains_of_their_own(tmp_path: Path) -> None:
    write(tmp_path)
    for other in (
        Logged("north", "three", "2", b"n" * 32, "private", Incarnation(5, 1)),
        Logged("north", "four", "1", b"m" * 32, "private", Incarnation(5, 1)),
        Logged("north-east", "three", "1", b"n" * 32, "private", Incarnation(5, 1)),
    ):
        assert read_log(write(tmp_path, about=other)).start["previous"] is None
    assert len(read_logs(tmp_path, "north")) == 3


def test_other_incarnations_are_listed(tmp_path: Path) -> None:
    writer = AuditWriter(tmp_path, ABOUT)
    writer.journal("south").continued_as(Incarnation(9, 0xCD))
    writer.close(None)
    assert read_log(writer.path).boots == {0xAB, 0xCD}


def test_a_full_disk_is_reported_once_and_what_is_lost_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[OSError] = []
    writer = AuditWriter(tmp_path, ABOUT, failed=failures.append)
    journal = writer.journal("south")
    there_is_room = fill_disk(monkeypatch, writer)
    for number in range(1, 4):
        journal.sent(7, number, parcel(number))
        writer._flush()
    there_is_room.set()
    journal.sent(7, 4, parcel(4))
    writer.close(None)
    assert [error.errno for error in failures] == [errno.ENOSPC]
    log = read_log(writer.path)
    assert log.ok
    assert what(log) == ["start", "gap", "sent", "end"]
    assert (log.lost, log.complete) == (3, False)


def test_a_log_that_cannot_be_ended_is_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = AuditWriter(tmp_path, ABOUT)
    fill_disk(monkeypatch, writer)
    writer.journal("south").sent(7, 1, parcel())
    writer.close(_signer(ec.generate_private_key(ec.SECP256R1())))
    log = read_log(writer.path)
    assert (log.ok, log.signed, what(log)) == (True, "unfinished", ["start"])


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        AuditWriter(tmp_path / "audit", ABOUT)


def _signer(key: ec.EllipticCurvePrivateKey, certificate: bytes = b"") -> Any:
    def sign(statement: bytes) -> Signature:
        return certificate, key.sign(statement, ec.ECDSA(hashes.SHA256()))

    return sign
