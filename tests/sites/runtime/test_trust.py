"""What a site is believed: of others only what they have sealed. Who lies is named, and nobody else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deepca.errors import DisputedResult, FrameError, PeerFault, Refused
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel
from deepca.sites.protocol.records import Record, RunPlan
from deepca.sites.protocol.signatures import CertificateSeals
from deepca.sites.runtime import run
from deepca.sites.runtime.link import Link, hello_check
from deepca.sites.runtime.membership import Membership, Policy
from deepca.sites.runtime.node import Node
from deepca.sites.runtime.run import Ending
from deepca.sites.runtime.vault import MemoryVault
from deepca.topology import complete, path, ring
from studies.faults.virtual import VirtualClock
from tests.sites.runtime.test_node import Town, undisturbed

LIAR = 2


class Names:
    """Seals that cannot be made up, within a test: each site signs with its number."""

    binding = True

    def __init__(self, me: int) -> None:
        self._me = b"%d" % me

    def seal(self, content: bytes, /) -> wire.Sealed:
        return wire.Sealed(record=content, signature=self._me)

    def fault(self, site: int, sealed: wire.Sealed, /) -> str:
        return "" if sealed.signature == b"%d" % site else "its signature is wrong"

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        return Endorsement(site, claim, signature=self._me)

    def endorsement_fault(self, endorsement: Endorsement, /) -> str:
        return "" if endorsement.signature == b"%d" % endorsement.site else "its signature is wrong"

    def forged(self, endorsement: Endorsement, /) -> bool:
        return bool(self.endorsement_fault(endorsement))


def _check_named(town: Town, liar: int, *, before: float, error: type[PeerFault] = PeerFault) -> None:
    """All others end early, without a result, and say who it was."""
    for site in set(range(len(town.names))) - {liar}:
        ending = town.endings.get(site)
        assert isinstance(ending, error), f"site {site}: {ending!r}"
        assert ending.site == town.names[liar]
    assert not town.results
    assert all(time <= before for time, _, event, _ in town.told if event not in ("silent", "lost"))


def _node(town: Town, site: int) -> Node:
    node = town.network.hosts[site].node
    assert node is not None
    return node


# ----------------------------------------------------------------------------------------------------- one's own starts


def _hello_of_the_liar(town: Town, known: Callable[[Link], Incarnation], every: float) -> None:
    """From now on it tells its neighbours, again and again, that it knows of other starts of them."""

    def lying(link: Link) -> Callable[[float], wire.Frame | None]:
        honest, said = link.next_frame, [0.0]

        def next_frame(now: float) -> wire.Frame | None:
            if link.up and now - said[0] >= every:
                link.hello_due, said[0] = True, now
            frame = honest(now)
            if frame is not None and frame.HasField("hello") and link.peer is not None:
                seen = known(link)
                frame.hello.known, frame.hello.known_boot = seen.incarnation, seen.boot
                frame.hello.check = hello_check(frame.hello)
            return frame

        return next_frame

    for link in _node(town, LIAR).links.values():
        link.next_frame = lying(link)  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize("lie", ["flood", "last of all", "made-up record"])
def test_nobody_is_told_by_others_which_start_it_is(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town(ring(3), seals=Names, deadline=40.0)

    def known(link: Link) -> Incarnation:
        assert link.peer is not None
        return Incarnation((1 << 62) - 1 if lie == "last of all" else link.peer.incarnation + 1, 12345)

    if lie == "made-up record":  # with the liar's own seal
        honest = Node.next_frame

        def next_frame(self: Node, peer: int) -> wire.Frame | None:
            frame = honest(self, peer)
            if self.context.me == LIAR and frame is not None and frame.HasField("hello"):
                record = Record(
                    peer, Incarnation(10**6, 5), 1, fingerprint=self.context.membership.fingerprint
                ).to_wire()
                frame.hello.yours.CopyFrom(self.context.seals.seal(record.SerializeToString()))
                frame.hello.check = hello_check(frame.hello)
            return frame

        monkeypatch.setattr(Node, "next_frame", next_frame)
    town.all_at().at(0.0, lambda: _hello_of_the_liar(town, known, 0.1))
    town.run().check_all_ended()
    assert not any("makes no sense" in text or "another agent" in text for _, _, _, text in town.told)
    assert all(record.identity.incarnation < 10 for record in _records(town))


def _records(town: Town) -> list[Record]:
    return [record for host in town.network.hosts.values() if host.node for record in host.node.assembly.table]


@pytest.mark.parametrize("seals", [Names, None])
def test_a_start_that_counts_as_earlier_learns_to_count_as_later(seals: Any) -> None:
    """Its clock may have been put back: others show it what it has sealed before."""
    begin, end = undisturbed(4, "ring")
    town = Town(ring(4), seals=seals)

    class Falling:
        left = 100

        def integers(self, *_: object) -> int:
            self.left -= 1
            return self.left

    town.boots = Falling()  # type: ignore[assignment]
    when = begin + 0.5 * (end - begin)
    town.all_at().at(when, town.kill, 1).at(when + 1.0, town.start, 1).run().check_all_ended()


# --------------------------------------------------------------------------------------------------------------- epochs


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
@pytest.mark.parametrize("liar", [0, 3])
def test_an_epoch_that_one_site_makes_up_is_not_that_of_all(liar: int, on_loss: Any) -> None:
    """It is named by all, and what others remember is not spoilt: without the lie the same run goes on."""
    town = Town(path(4), on_loss, deadline=80.0, seals=Names)
    town.disks[liar].vault.enter((1 << 62) - 1)

    def check() -> None:
        _check_named(town, liar, before=10.0)
        assert all(town.disks[site].vault.load().epoch <= 1 for site in range(4) if site != liar)
        town.kill(liar)
        town.disks[liar].vault = MemoryVault()
        town.endings.clear()
        town.start(*range(4))

    town.all_at().at(20.0, check)
    town.run(30.0).check_all_ended()


def test_an_epoch_made_up_in_the_middle_ends_the_run_with_its_site_named() -> None:
    begin, end = undisturbed(4, "ring")

    def lie() -> None:
        _node(town, LIAR).neighbors.publish(phase="gathering", plan=b"", epoch=1 << 40)

    town = Town(ring(4), seals=Names)
    town.all_at().at(begin + 0.5 * (end - begin), lie).run()
    _check_named(town, LIAR, before=begin + 10.0)


# -------------------------------------------------------------------------------------------------------------- results


def _two_proposals(honest: Callable[..., Any]) -> Callable[..., Any]:
    """Site 0 shows every neighbour a record with another proposal, and hands out both."""

    def settle(self: Node, plan: RunPlan, differs: Any, proposal: Callable[[], bytes]) -> Any:
        if self.context.me != 0:
            return honest(self, plan, differs, proposal)
        with self.changed:
            for number, link in enumerate(self.links.values()):
                content = proposal() + bytes(number)  # the same model in other bytes
                claim = ResultClaim(plan.epoch, plan.digest, plan.members, hashlib.sha256(content).digest())
                self.files.contents[claim.outcome] = content
                own = self.context.seals.endorse(self.context.me, claim)
                self.settling.claims.add(own)
                said = self.assembly.record
                said = replace(said, version=said.version + 1000, computed=plan.digest, endorsement=own)
                sealed = self.context.seals.seal(said.to_wire().SerializeToString(deterministic=True))
                link.send(Parcel(wire.Parcel(records=wire.Records(sealed=[sealed])).SerializeToString()))
            self.neighbors.wake_all()
            while True:
                self.faults.check()
                self.changed.wait(1.0)

    return settle


@pytest.mark.parametrize("size", [3, 5])
def test_who_proposes_two_results_is_named_and_nobody_who_signed_one(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "difference", lambda mine, content: "")
    monkeypatch.setattr(Node, "settle", _two_proposals(Node.settle))
    town = Town(ring(size), deadline=30.0, seals=Names).all_at().run()
    _check_named(town, 0, before=30.0, error=DisputedResult)
    others = [ending for site, ending in town.endings.items() if site]
    assert any("proposes two results" in str(ending) for ending in others)


@pytest.mark.parametrize("forged", [False, True])
def test_a_signature_without_a_proposal_is_named_and_holds_nothing_up(
    forged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site that would have proposed is dead; another one signs what it makes up, perhaps with a forged proposal."""
    honest, town = Node.settle, Town(complete(4), "shrink", patience=3.0, deadline=60.0, seals=Names)

    def settle(self: Node, plan: RunPlan, differs: Any, proposal: Callable[[], bytes]) -> Any:
        if self.context.me == 0:
            town.at(town.clock.time + 0.5, town.kill, 0)  # others have its last numbers by then
            while True:
                self.changed.wait(1.0)
        if self.context.me == 3 and plan.proposer == 0:
            with self.changed:
                claim = ResultClaim(plan.epoch, plan.digest, plan.members, b"x" * 32)
                own, proposed = self.context.seals.endorse(3, claim), self.context.seals.endorse(0, claim)
                self.neighbors.publish(endorsement=own, proposed=proposed if forged else None, computed=plan.digest)
        return honest(self, plan, differs, proposal)

    monkeypatch.setattr(Node, "settle", settle)
    town.all_at().run()
    for site in (1, 2):
        ending = town.endings[site]
        assert isinstance(ending, DisputedResult), ending
        assert ending.site == "site-3"
    assert not isinstance(town.endings[3], Ending)


def test_the_others_go_on_where_the_proposer_dies_and_nobody_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, town = Node.settle, Town(complete(4), "shrink", patience=3.0, deadline=60.0, seals=Names)

    def settle(self: Node, *given: Any) -> Any:
        if self.context.me == 0:
            town.at(town.clock.time + 0.5, town.kill, 0)  # others have its last numbers by then
            while True:
                self.changed.wait(1.0)
        return honest(self, *given)

    monkeypatch.setattr(Node, "settle", settle)
    town.all_at().run().check_all_ended([1, 2, 3])


class _Shown:
    """Credentials that find this wrong with a certificate, and that with a signature."""

    def __init__(self, reason: str, right: bool) -> None:
        self._reason, self._right = reason, right

    def check_peer(self, certificate_der: bytes, expected_site: str) -> None:
        if self._reason:
            raise Refused("the certificate is not accepted", reason=self._reason)

    def verify_signature(self, certificate_der: bytes, signature: bytes, data: bytes) -> bool:
        return self._right


@pytest.mark.parametrize(
    ("reason", "right", "forged"),
    [
        ("", True, False),
        ("", False, True),
        ("revoked", True, False),
        ("expired", True, False),
        ("expired", False, True),
        ("site", True, True),
        ("issuer", True, True),
    ],
)
def test_who_relied_on_a_certificate_that_has_ended_since_is_not_blamed(reason: str, right: bool, forged: bool) -> None:
    shown: Any = _Shown(reason, right)
    seals = CertificateSeals(lambda: shown, SITES, b"r" * 32, b"a" * 32)
    assert seals.forged(_endorsed(0, b"x")) is forged
    node = _alone(seals)
    signed, proposed = _endorsed(1, b"x"), _endorsed(0, b"x")
    node.settling.claims.add(signed)  # verified before
    node.records.take_endorsement(1, Record(1, Incarnation(1, 2), endorsement=signed, proposed=proposed))
    if forged:
        with pytest.raises(DisputedResult, match="south signs a result of epoch 1 that north has not proposed"):
            node.settling.check(None)
    else:
        node.settling.check(None)


# --------------------------------------------------------------------------------------------------- what is kept of it

SITES = ("north", "south", "west")


def _alone(seals: Any = None) -> Node:
    membership = Membership(SITES, 0, ((0, 1), (0, 2), (1, 2)), b"n" * 32, {"run": b"1"}, 1 << 20)
    return Node(membership, Policy(), VirtualClock(), Incarnation(1, 1), seals=seals or Names(0))


def _endorsed(site: int, content: bytes, epoch: int = 1) -> Endorsement:
    claim = ResultClaim(epoch, b"p" * 32, (0, 1, 2), hashlib.sha256(content).digest())
    return Names(site).endorse(site, claim)


def _outcome(content: bytes, *signed: Endorsement) -> wire.Outcome:
    return wire.Outcome(outcome=hashlib.sha256(content).digest(), endorsements=[one.to_wire() for one in signed])


def test_a_result_that_was_not_asked_for_is_not_kept() -> None:
    node = _alone()
    for number in range(200):
        content = b"%d" % number
        node.files.receive(1, _outcome(content, _endorsed(1, content)), content)
    assert not node.files.contents
    assert not list(node.settling.claims)


def test_a_result_that_was_asked_for_is_kept_while_somebody_claims_it() -> None:
    node = _alone()
    contents = [b"%d" % number for number in range(40)]
    for epoch, content in enumerate(contents, 1):
        signed = _endorsed(1, content, epoch)
        node.settling.claims.add(signed)
        node.files.asked[1, signed.claim.outcome] = 0.0
        node.files.receive(1, _outcome(content, signed), content)
        assert node.files.obtain(signed.claim)
        assert not node.files.obtain(_endorsed(2, b"another", epoch).claim)
        assert len(node.files.contents) <= 9
    assert len(node.files.asked) <= 9
    with pytest.raises(FrameError, match="announced"):
        node.files.receive(1, _outcome(contents[-1]), b"other")


def test_signatures_are_verified_once_and_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seals, asked = Names(0), [0]
    honest = seals.endorsement_fault

    def counted(one: Endorsement) -> str:
        asked[0] += 1
        return honest(one)

    monkeypatch.setattr(seals, "endorsement_fault", counted)
    node = _alone(seals)
    signed = _endorsed(0, b"x")
    for _ in range(3):
        node.records.take_endorsement(1, Record(1, Incarnation(1, 2), endorsement=_endorsed(1, b"x"), proposed=signed))
    assert asked == [2]
    for number in range(100):
        node.records.take_endorsement(
            1, Record(1, Incarnation(1, 2), endorsement=_endorsed(1, b"%d" % number), proposed=signed)
        )
    assert len(list(node.settling.claims)) <= 9


def test_a_record_that_makes_no_sense_names_its_site_whoever_hands_it_on() -> None:
    node = _alone()
    said = Record(2, Incarnation(1, 3), 1).to_wire()
    said.phase = "asleep"
    sealed = Names(2).seal(said.SerializeToString())
    with pytest.raises(FrameError, match="a record that makes no sense, of west"):
        node.records.receive(1, wire.Records(sealed=[sealed]))
    with pytest.raises(PeerFault, match="west says of itself what no site can say"):
        node.faults.check()


def test_a_record_with_another_seal_accuses_nobody() -> None:
    node = _alone()
    said = Record(2, Incarnation(1, 3), 1).to_wire()
    said.phase = "asleep"
    node.records.receive(1, wire.Records(sealed=[Names(1).seal(said.SerializeToString())]))
    node.faults.check()
