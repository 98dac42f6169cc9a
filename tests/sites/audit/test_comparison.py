"""Test that two sites' logs are compared message by message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from deepca.errors import InvalidInput
from deepca.sites.audit.comparison import LogAgreement, compare
from deepca.sites.audit.lines import chained
from deepca.sites.audit.reader import read_log
from deepca.sites.audit.writer import AuditWriter
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel
from tests.sites.audit.test_writer import ABOUT, parcel
from tests.support.errors import raises

BOOTS = {"north": 0x11, "south": 0x22}
SESSION = 0x33


def pair(folder: Path) -> tuple[AuditWriter, AuditWriter]:
    north, south = (
        AuditWriter(folder / name, replace(ABOUT, site=name, incarnation=Incarnation(1, boot)))
        for name, boot in BOOTS.items()
    )
    return north, south


def send(
    writers: tuple[AuditWriter, AuditWriter], parcels: Sequence[Parcel], *, first: int = 1, session: int = SESSION
) -> None:
    """Log messages from north to south at both sites."""
    for number, one in enumerate(parcels, first):
        writers[0].journal("south").sent(session, number, one)
        writers[1].journal("north").received(session, number, one.header, b"".join(one.body))


def compared(writers: tuple[AuditWriter, AuditWriter]) -> LogAgreement:
    for one in writers:
        one.close(None)
    return compare(*([read_log(one.path)] for one in writers))


def rewritten(path: Path, keep: slice) -> None:
    """Leave out lines, and compute the chain again."""
    head, lines = bytes(32), []
    kept = path.read_text().splitlines()
    for line in [kept[0], *kept[1:][keep]]:
        members = {name: value for name, value in json.loads(line).items() if name != "hash"}
        content, head = chained(head, members)
        lines.append(content)
    path.write_bytes(b"".join(lines))


def test_logs_of_the_same_messages_agree(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    send(writers, [parcel(number) for number in range(5)])
    writers[1].journal("north").sent(SESSION, 1, parcel(9))
    writers[0].journal("south").received(SESSION, 1, parcel(9).header, b"".join(parcel(9).body))
    writers[0].journal("west").sent(99, 1, parcel(8))  # of no concern to south
    found = compared(writers)
    assert (found.sites, found.ok) == (("north", "south"), True)
    assert (found.equal, found.lost, found.undecided) == (6, 0, 0)


def test_the_last_messages_of_a_session_may_be_lost(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    send(writers, [parcel(1), parcel(2)])
    writers[0].journal("south").sent(SESSION, 3, parcel(3))
    found = compared(writers)
    assert (found.ok, found.equal, found.lost) == (True, 2, 1)


def test_another_message_than_was_sent_is_a_contradiction(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    send(writers, [parcel(1)])
    writers[0].journal("south").sent(SESSION, 2, parcel(2))
    writers[1].journal("north").received(SESSION, 2, parcel(2).header, b"other")
    [difference] = compared(writers).differences
    assert (difference.sender, difference.receiver) == ("north", "south")
    assert difference.sent == (str(writers[0].path), 3)
    assert difference.received == (str(writers[1].path), 3)


def test_messages_in_another_order_are_a_contradiction(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    first, second = parcel(1), parcel(2)
    for number, (sent, received) in enumerate([(first, second), (second, first)], 1):
        writers[0].journal("south").sent(SESSION, number, sent)
        writers[1].journal("north").received(SESSION, number, received.header, b"".join(received.body))
    assert len(compared(writers).differences) == 2


def test_a_message_that_its_sender_does_not_list_is_a_contradiction(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    send(writers, [parcel(1)])
    writers[1].journal("north").received(SESSION, 2, parcel(2).header, b"")
    [difference] = compared(writers).differences
    assert difference.sent is None
    assert difference.received == (str(writers[1].path), 3)


def test_a_message_missing_between_others_is_a_contradiction(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    send(writers, [parcel(1)])
    writers[0].journal("south").sent(SESSION, 2, parcel(2))
    send(writers, [parcel(3)], first=3)
    [difference] = compared(writers).differences
    assert difference.sent == (str(writers[0].path), 3)
    assert difference.received is None


def test_what_an_unfinished_log_lacks_is_undecided(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    send(writers, [parcel(number) for number in range(4)])
    for one in writers:
        one.close(None)
    rewritten(writers[0].path, slice(0, 2))
    found = compare(*([read_log(one.path)] for one in writers))
    assert (found.ok, found.equal, found.undecided) == (True, 2, 2)


def test_starts_of_an_agent_that_the_logs_do_not_cover_are_undecided(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    send(writers, [parcel(1)])
    writers[0].journal("south").sent(0x99, 1, parcel(2))
    found = compared(writers)
    assert (found.ok, found.equal, found.undecided) == (True, 1, 1)


def test_sessions_of_later_incarnations_are_compared(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    writers[0].journal("south").continued_as(Incarnation(2, 0x44))
    send(writers, [parcel(1)], session=0x44 ^ 0x22)
    assert compared(writers).equal == 1


@pytest.mark.parametrize("changes", [{"run": "2"}, {"network_digest": b"m" * 32}, {"site": "north"}])
def test_logs_that_cannot_be_compared_are_refused(changes: dict[str, object], tmp_path: Path) -> None:
    about = replace(ABOUT, **{"site": "south", **changes})  # type: ignore[arg-type]
    logs = []
    for number, one in enumerate((ABOUT, about)):
        writer = AuditWriter(tmp_path / str(number), one)
        writer.close(None)
        logs.append([read_log(writer.path)])
    with raises(InvalidInput):
        compare(*logs)
