"""Test records of sites, and the plan derived from them: equal for equal records, and never from malformed ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepca.errors import FrameError
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.failures import Failure
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.records import (
    Offer,
    Phase,
    Record,
    RecordedCheckpoint,
    RecordTable,
    digest_of_members,
)
from tests.laws.strategies import quick

SITES = 4
EDGES = ((0, 1), (1, 2), (2, 3), (0, 3))
ALL = frozenset(range(SITES))


def _key(number: int) -> bytes:
    return bytes([number]) * 32


def _kept(iteration: int, key: int | None = None, members: frozenset[int] = ALL) -> RecordedCheckpoint:
    return RecordedCheckpoint(iteration, _key(iteration if key is None else key), digest_of_members(members))


def _record(
    site: int, *kept: RecordedCheckpoint, reached: int = -1, epoch: int = 0, phase: Phase = "gathering"
) -> Record:
    links = frozenset((site + step) % SITES for step in (1, -1))
    offer = Offer(kept, reached)
    return Record(site, Incarnation(1, site + 10), 1, phase, links, {"k": b"3"}, epoch, b"", offer)


def _table(*records: Record) -> RecordTable:
    table = RecordTable(SITES, EDGES)
    for record in records:
        table.put(record)
    return table


# ------------------------------------------------------------------------------------------------------- serialization


def test_a_record_is_restored_exactly() -> None:
    record = replace(
        _record(2, _kept(5), _kept(10), reached=12, epoch=7, phase="running"),
        plan=_key(1),
        computed=_key(2),
        endorsement=Endorsement(2, ResultClaim(7, _key(1), (0, 2, 3), _key(3)), b"certificate", b"signature"),
        failure=Failure("array", "no rows", 3, "NaN", "mean", 4),
        proposed=Endorsement(
            0, ResultClaim(7, _key(1), (0, 2, 3), _key(3)), b"another certificate", b"another signature"
        ),
    )
    sent = wire.Record.FromString(record.to_wire().SerializeToString())
    assert Record.from_wire(sent, SITES) == record


def _endorsed(site: int, **claim: Any) -> wire.Endorsement:
    whole = {"epoch": 1, "plan": _key(1), "members": [0, 1, 2], "outcome": _key(2), **claim}
    return wire.Endorsement(site=site, claim=wire.Claim(**whole))


def _signed(record: wire.Record, proposed: wire.Endorsement) -> None:
    record.endorsement.CopyFrom(_endorsed(site=1))
    record.proposed.CopyFrom(proposed)


MALFORMED: dict[str, Callable[[wire.Record], object]] = {
    "unknown site": lambda r: setattr(r, "site", SITES),
    "unknown phase": lambda r: setattr(r, "phase", "asleep"),
    "no phase": lambda r: setattr(r, "phase", ""),
    "link to an unknown site": lambda r: r.links.append(SITES),
    "short plan": lambda r: setattr(r, "plan", b"x" * 31),
    "long digest": lambda r: setattr(r, "computed", b"x" * 33),
    "empty claim": lambda r: r.endorsement.claim.SetInParent(),
    "short outcome": lambda r: r.endorsement.CopyFrom(_endorsed(site=1, outcome=b"x")),
    "another's signature": lambda r: r.endorsement.CopyFrom(_endorsed(site=2)),
    "signer outside the members": lambda r: r.endorsement.CopyFrom(_endorsed(site=1, members=[0, 2])),
    "unknown member": lambda r: r.endorsement.CopyFrom(_endorsed(site=1, members=[1, SITES])),
    "members out of order": lambda r: r.endorsement.CopyFrom(_endorsed(site=1, members=[2, 1])),
    "last epoch of a claim": lambda r: r.endorsement.CopyFrom(_endorsed(site=1, epoch=2**64 - 1)),
    "a proposal and no signature": lambda r: r.proposed.CopyFrom(_endorsed(site=0)),
    "a proposal of something else": lambda r: _signed(r, _endorsed(site=0, outcome=_key(9))),
    "a proposal of another site": lambda r: _signed(r, _endorsed(site=2)),
    "unknown kind of failure": lambda r: setattr(r.failure, "kind", "whim"),
    "unknown site accused": lambda r: r.failure.CopyFrom(wire.Failure(kind="array", accused=SITES)),
    "short key": lambda r: r.kept.add(iteration=1, key=b"x", members=_key(1)),
    "no members": lambda r: r.kept.add(iteration=1, key=_key(1)),
    "negative iteration": lambda r: r.kept.add(iteration=-1, key=_key(1), members=_key(1)),
    "too many checkpoints": lambda r: r.kept.extend([wire.Kept(iteration=1, key=_key(1), members=_key(1))] * 9),
    "too many fields": lambda r: r.fingerprint.update({str(j): b"" for j in range(100)}),
    "huge fingerprint": lambda r: r.fingerprint.update({"columns": bytes(1 << 20)}),
    "huge name": lambda r: r.fingerprint.update({"c" * (1 << 20): b""}),
    "last incarnation": lambda r: setattr(r, "incarnation", 2**64 - 1),
    "last epoch": lambda r: setattr(r, "epoch", 2**64 - 1),
    "no boot": lambda r: setattr(r, "boot", 0),
    "negative iteration reached": lambda r: setattr(r, "reached", -2),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_records_are_refused(case: str) -> None:
    sent = _record(1, _kept(5)).to_wire()
    assert Record.from_wire(sent, SITES).site == 1
    MALFORMED[case](sent)
    with pytest.raises(FrameError):
        Record.from_wire(sent, SITES)


@quick(300)
@given(st.binary(max_size=120))
def test_random_bytes_never_raise_unexpected_errors(content: bytes) -> None:
    try:
        sent = wire.Record.FromString(content)
    except Exception:  # not a Record: refused by the caller
        return
    try:
        record = Record.from_wire(sent, SITES)
    except FrameError:
        return
    assert Record.from_wire(record.to_wire(), SITES) == record
    table = _table(*(_record(site) for site in range(SITES)))
    table.put(record)
    assert replace(
        record, epoch=table.plan(ALL, EDGES).epoch
    ).to_wire()  # the field has room for the epoch after the highest one


def test_a_long_reason_is_shortened() -> None:
    sent = _record(1).to_wire()
    sent.failure.CopyFrom(wire.Failure(kind="site", why="x" * 100_000, what="a\x1b[0m\nb"))
    failure = Record.from_wire(sent, SITES).failure
    assert failure is not None
    assert len(failure.why) <= 1000
    assert failure.what.isprintable()


# --------------------------------------------------------------------------------------------------------------- table


def test_only_a_newer_record_replaces_the_known_one() -> None:
    old = _record(1)
    table = _table(old)
    newer, restarted = replace(old, version=2), replace(old, incarnation=Incarnation(2, 1), version=0)
    assert not table.put(old)
    assert table.put(newer)
    assert not table.put(old)
    assert table.put(restarted)
    assert not table.put(replace(old, version=99))
    assert table[1] == restarted


def test_a_link_is_up_if_both_ends_report_it() -> None:
    records = [_record(site) for site in range(SITES)]
    assert _table(*records).reachable_from(0) == ALL
    assert _table(*records[:3]).reachable_from(0) == {0, 1, 2}
    one_way = [records[0], replace(records[1], links=frozenset({2})), *records[2:]]
    assert not _table(*one_way).up((0, 1))
    assert _table(*one_way).reachable_from(0) == ALL  # along the rest of the ring
    failed = [records[0], replace(records[1], phase="failed"), records[2], replace(records[3], phase="failed")]
    assert _table(*failed).reachable_from(0) == {0}


# ---------------------------------------------------------------------------------------------------------------- plans


def test_a_plan_does_not_depend_on_the_order_of_records() -> None:
    records = [_record(site, _kept(5), _kept(10), reached=site, epoch=site) for site in range(SITES)]
    plans = {
        _table(*order).plan(ALL, edges).digest
        for order in itertools.permutations(records)
        for edges in (EDGES, EDGES[::-1])
    }
    assert len(plans) == 1


def test_every_field_of_a_plan_changes_its_digest() -> None:
    plan = _table(*(_record(site, _kept(5)) for site in range(SITES))).plan(ALL, EDGES)
    others = [
        replace(plan, epoch=2),
        replace(plan, members=(0, 1, 2)),
        replace(plan, incarnations=(Incarnation(1, 99), *plan.incarnations[1:])),
        replace(plan, edges=plan.edges[1:]),
        replace(plan, resume=_key(9)),
        replace(plan, iteration=6),
        replace(plan, source=1),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == 1 + len(others)


def test_the_newest_checkpoint_that_all_have_is_resumed() -> None:
    kept = [(_kept(5), _kept(10)), (_kept(10), _kept(15)), (_kept(15), _kept(10)), (_kept(10), _kept(5))]
    plan = _table(*(_record(site, *kept[site], reached=17) for site in range(SITES))).plan(ALL, EDGES)
    assert (plan.iteration, plan.resume, plan.source) == (10, _key(10), -1)


def test_checkpoints_of_one_iteration_and_different_epochs_are_not_mixed() -> None:
    kept = [_kept(10, key=1), _kept(10, key=2), _kept(10, key=1), _kept(10, key=1)]
    plan = _table(*(_record(site, kept[site], reached=10) for site in range(SITES))).plan(ALL, EDGES)
    assert (plan.resume, plan.iteration) == (b"", -1)
    assert plan.source == 0


def test_checkpoints_of_other_members_are_not_resumed() -> None:
    three = frozenset({0, 1, 2})
    table = _table(*(_record(site, _kept(5, members=three), _kept(4), reached=7) for site in range(SITES)))
    assert table.plan(three, EDGES[:2]).iteration == 5
    assert table.plan(ALL, EDGES).iteration == 4


def test_without_a_common_checkpoint_all_start_from_the_first_site_that_has_reached_most() -> None:
    reached = [3, 9, -1, 9]
    plan = _table(*(_record(site, reached=reached[site]) for site in range(SITES))).plan(ALL, EDGES)
    assert (plan.source, plan.resume) == (1, b"")
    nobody = _table(*(_record(site) for site in range(SITES))).plan(ALL, EDGES)
    assert (nobody.source, nobody.resume) == (-1, b"")


def test_the_next_epoch_is_later_than_any_known_one() -> None:
    table = _table(*(_record(site, epoch=epoch) for site, epoch in enumerate([2, 2, 2, 6])))
    assert table.plan(frozenset({0, 1, 2}), EDGES[:2]).epoch == 7
    assert table.started()
    assert not _table(_record(0), _record(1)).started()


FAR = 2**21
CLAIMED: dict[str, tuple[list[int], tuple[int, int] | None]] = {
    "similar epochs": ([7, 7, 6, 0], None),
    "one somewhat ahead": ([0, 0, 1000, 0], None),
    "one implausible": ([1, 1, 2**62 - 1, 1], (2, 1)),
    "two implausible": ([1, FAR, FAR, 1], (1, 1)),
    "most far ahead of this site": ([0, FAR, FAR + 1, FAR], None),
    "this site far ahead itself": ([FAR, 0, FAR + 5, 0], None),
}


@pytest.mark.parametrize("case", CLAIMED)
def test_an_implausible_epoch_is_detected(case: str) -> None:
    epochs, found = CLAIMED[case]
    assert _table(*(_record(site, epoch=epoch) for site, epoch in enumerate(epochs))).implausible_epoch(0) == found


def test_unknown_sites_do_not_count_as_having_entered_an_epoch() -> None:
    assert _table(_record(0), _record(2, epoch=FAR)).implausible_epoch(0) == (2, 0)
    assert _table(_record(0)).implausible_epoch(0) is None


# --------------------------------------------------------------------------------------------------------- differences


def _with_prints(*prints: dict[str, bytes]) -> RecordTable:
    return _table(*(replace(_record(site), fingerprint=one) for site, one in enumerate(prints)))


def test_the_site_that_differs_is_named() -> None:
    common, other = {"k": b"3", "columns": b"abcd"}, {"k": b"4", "columns": b"abcd"}
    for odd in range(SITES):
        found = _with_prints(*(other if site == odd else common for site in range(SITES))).differences()
        assert [(one.site, one.names) for one in found] == [(odd, ("k",))]
    assert _with_prints(common, common, common).differences() == ()


def test_without_a_majority_the_first_site_is_the_reference() -> None:
    common, other = {"k": b"3"}, {"k": b"4"}
    assert [one.site for one in _with_prints(common, other).differences()] == [1]
    assert [one.site for one in _with_prints(other, common, common, other).differences()] == [1, 2]


def test_a_missing_or_additional_field_is_a_difference() -> None:
    found = _with_prints({"k": b"3"}, {"k": b"3"}, {"k": b"3", "seed": b"0"}, {"seed": b"0"}).differences()
    assert [(one.site, one.names) for one in found] == [(2, ("seed",)), (3, ("k", "seed"))]


def test_a_site_without_a_fingerprint_does_not_differ() -> None:
    assert _with_prints({"k": b"3"}, {}, {"k": b"3"}).differences() == ()
    assert _with_prints({"k": b"3"}).differences() == ()
