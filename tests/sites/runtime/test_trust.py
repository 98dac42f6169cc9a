"""Test trust between sites: only a site's own signed records are believed, and only the site that lies is named."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deepca.errors import DisputedResult, FrameError, InvalidInput, PeerFault, Refused, WrongNetwork
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.claims import Endorsement, ResultClaim
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel
from deepca.sites.protocol.records import Record, RunPlan
from deepca.sites.protocol.signatures import CertificateSignatures, NoSignatures
from deepca.sites.runtime import run
from deepca.sites.runtime.link import Link, hello_check
from deepca.sites.runtime.node import Node
from deepca.sites.runtime.node_config import NodeConfig, Policy
from deepca.sites.runtime.promise_store import MemoryPromiseStore
from deepca.sites.runtime.site_result import SiteResult
from deepca.topology import complete, path, ring
from studies.faults.virtual import VirtualClock
from tests.sites.runtime.test_node import Simulation, undisturbed
from tests.support.errors import raises

LIAR = 2


class Names:
    """Signatures for tests, which count as unforgeable: each site signs with its number."""

    unforgeable = True

    def __init__(self, me: int) -> None:
        self._me = b"%d" % me

    def sign_record(self, content: bytes, /) -> wire.Sealed:
        return wire.Sealed(record=content, signature=self._me)

    def record_problem(self, site: int, signed_record: wire.Sealed, /) -> str:
        return "" if signed_record.signature == b"%d" % site else "its signature is wrong"

    def endorse(self, site: int, claim: ResultClaim, /) -> Endorsement:
        return Endorsement(site, claim, signature=self._me)

    def endorsement_problem(self, endorsement: Endorsement, /) -> str:
        return "" if endorsement.signature == b"%d" % endorsement.site else "its signature is wrong"

    def forged(self, endorsement: Endorsement, /) -> bool:
        return bool(self.endorsement_problem(endorsement))


def _check_accused(simulation: Simulation, liar: int, *, before: float, error: type[PeerFault] = PeerFault) -> None:
    """Check that all other sites end early, without a result, and name the liar."""
    for site in set(range(len(simulation.names))) - {liar}:
        ending = simulation.endings.get(site)
        assert isinstance(ending, error), f"site {site}: {ending!r}"
        assert ending.site == simulation.names[liar]
    assert not simulation.results
    assert all(time <= before for time, _, event, _ in simulation.logged if event not in ("silent", "lost"))


def _node(simulation: Simulation, site: int) -> Node:
    node = simulation.network.hosts[site].node
    assert node is not None
    return node


# -------------------------------------------------------------------------------------- incarnations of the same agent


def _hello_of_the_liar(simulation: Simulation, known: Callable[[Link], Incarnation], every: float) -> None:
    """Make the liar claim repeatedly, in its Hello, to know other incarnations of its neighbours."""

    def lying(link: Link) -> Callable[[float], wire.Frame | None]:
        honest, last = link.next_frame, [0.0]

        def next_frame(now: float) -> wire.Frame | None:
            if link.up and now - last[0] >= every:
                link.hello_due, last[0] = True, now
            frame = honest(now)
            if frame is not None and frame.HasField("hello") and link.peer is not None:
                seen = known(link)
                frame.hello.known, frame.hello.known_boot = seen.number, seen.boot
                frame.hello.check = hello_check(frame.hello)
            return frame

        return next_frame

    for link in _node(simulation, LIAR).links.values():
        link.next_frame = lying(link)  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize("lie", ["flood", "last of all", "made-up record"])
def test_a_site_does_not_believe_others_about_its_own_incarnation(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(ring(3), signatures=Names, deadline=40.0)

    def known(link: Link) -> Incarnation:
        assert link.peer is not None
        return Incarnation((1 << 62) - 1 if lie == "last of all" else link.peer.number + 1, 12345)

    if lie == "made-up record":  # signed by the liar
        honest = Node.next_frame

        def next_frame(self: Node, peer: int) -> wire.Frame | None:
            frame = honest(self, peer)
            if self.context.me == LIAR and frame is not None and frame.HasField("hello"):
                record = Record(peer, Incarnation(10**6, 5), 1, fingerprint=self.context.config.fingerprint).to_wire()
                frame.hello.yours.CopyFrom(self.context.signatures.sign_record(record.SerializeToString()))
                frame.hello.check = hello_check(frame.hello)
            return frame

        monkeypatch.setattr(Node, "next_frame", next_frame)
    simulation.all_at().at(0.0, lambda: _hello_of_the_liar(simulation, known, 0.1))
    simulation.run().check_all_ended()

    assert all(record.incarnation.number < 10 for record in _records(simulation))


def _records(simulation: Simulation) -> list[Record]:
    return [record for host in simulation.network.hosts.values() if host.node for record in host.node.assembly.table]


@pytest.mark.parametrize("signatures", [Names, None])
def test_an_incarnation_that_counts_as_earlier_takes_a_later_number(signatures: Any) -> None:
    """If the clock of a site was set back, its neighbours send it the record that it signed before."""
    begin, end = undisturbed(4, "ring")
    simulation = Simulation(ring(4), signatures=signatures)

    class Falling:
        left = 100

        def integers(self, *_: object) -> int:
            self.left -= 1
            return self.left

    simulation.boots = Falling()  # type: ignore[assignment]
    when = begin + 0.5 * (end - begin)
    simulation.all_at().at(when, simulation.kill, 1).at(when + 1.0, simulation.start, 1).run().check_all_ended()


# --------------------------------------------------------------------------------------------------------------- epochs


@pytest.mark.parametrize("on_loss", ["wait", "shrink"])
@pytest.mark.parametrize("liar", [0, 3])
def test_a_made_up_epoch_is_not_adopted(liar: int, on_loss: Any) -> None:
    """All sites name the liar; their memory stays intact, so that without the lie the same run continues."""
    simulation = Simulation(path(4), on_loss, deadline=80.0, signatures=Names)
    simulation.disks[liar].promise_store.store_epoch((1 << 62) - 1)

    def check() -> None:
        _check_accused(simulation, liar, before=10.0)
        assert all(simulation.disks[site].promise_store.load().epoch <= 1 for site in range(4) if site != liar)
        simulation.kill(liar)
        simulation.disks[liar].promise_store = MemoryPromiseStore()
        simulation.endings.clear()
        simulation.start(*range(4))

    simulation.all_at().at(20.0, check)
    simulation.run(30.0).check_all_ended()


def test_an_epoch_made_up_during_the_run_ends_it_and_names_the_site() -> None:
    begin, end = undisturbed(4, "ring")

    def lie() -> None:
        _node(simulation, LIAR).neighbors.publish(phase="gathering", plan=b"", epoch=1 << 40)

    simulation = Simulation(ring(4), signatures=Names)
    simulation.all_at().at(begin + 0.5 * (end - begin), lie).run()
    _check_accused(simulation, LIAR, before=begin + 10.0)


# -------------------------------------------------------------------------------------------------------------- results


def _two_proposals(honest: Callable[..., Any]) -> Callable[..., Any]:
    """Make site 0 send every neighbour a record with a different proposal, and serve all proposals."""

    def settle(self: Node, plan: RunPlan, differs: Any, proposal: Callable[[], bytes]) -> Any:
        if self.context.me != 0:
            return honest(self, plan, differs, proposal)
        with self.changed:
            for number, link in enumerate(self.links.values()):
                content = proposal() + bytes(number)  # the same model in different bytes
                claim = ResultClaim(plan.epoch, plan.digest, plan.members, hashlib.sha256(content).digest())
                self.files.contents[claim.outcome] = content
                own = self.context.signatures.endorse(self.context.me, claim)
                self.settlement.claims.add(own)
                record = self.assembly.record
                record = replace(record, version=record.version + 1000, computed=plan.digest, endorsement=own)
                signed_record = self.context.signatures.sign_record(
                    record.to_wire().SerializeToString(deterministic=True)
                )
                link.send(Parcel(wire.Parcel(records=wire.Records(sealed=[signed_record])).SerializeToString()))
            self.neighbors.wake_all()
            while True:
                self.abort_reasons.check()
                self.changed.wait(1.0)

    return settle


@pytest.mark.parametrize("size", [3, 5])
def test_only_the_proposer_of_two_results_is_named_and_not_their_signers(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "difference", lambda mine, content: "")
    monkeypatch.setattr(Node, "agree_on_result", _two_proposals(Node.agree_on_result))
    simulation = Simulation(ring(size), deadline=30.0, signatures=Names).all_at().run()
    _check_accused(simulation, 0, before=30.0, error=DisputedResult)
    others = [ending for site, ending in simulation.endings.items() if site]
    assert any(isinstance(ending, DisputedResult) and ending.by is None for ending in others)


@pytest.mark.parametrize("forged", [False, True])
def test_a_site_that_signs_without_a_proposal_is_named_and_delays_no_other(
    forged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proposer is down, and another site signs a fabricated result, in one case with a forged proposal."""
    honest, simulation = (
        Node.agree_on_result,
        Simulation(complete(4), "shrink", patience=3.0, deadline=60.0, signatures=Names),
    )

    def settle(self: Node, plan: RunPlan, differs: Any, proposal: Callable[[], bytes]) -> Any:
        if self.context.me == 0:
            simulation.at(
                simulation.clock.time + 0.5, simulation.kill, 0
            )  # by then the others have received the last numbers of site 0
            while True:
                self.changed.wait(1.0)
        if self.context.me == 3 and plan.proposer == 0:
            with self.changed:
                claim = ResultClaim(plan.epoch, plan.digest, plan.members, b"x" * 32)
                own, proposed = self.context.signatures.endorse(3, claim), self.context.signatures.endorse(0, claim)
                self.neighbors.publish(endorsement=own, proposed=proposed if forged else None, computed=plan.digest)
        return honest(self, plan, differs, proposal)

    monkeypatch.setattr(Node, "agree_on_result", settle)
    simulation.all_at().run()
    for site in (1, 2):
        ending = simulation.endings[site]
        assert isinstance(ending, DisputedResult), ending
        assert ending.site == "site-3"
    assert not isinstance(simulation.endings[3], SiteResult)


def test_the_other_sites_continue_when_the_proposer_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, simulation = (
        Node.agree_on_result,
        Simulation(complete(4), "shrink", patience=3.0, deadline=60.0, signatures=Names),
    )

    def settle(self: Node, *given: Any) -> Any:
        if self.context.me == 0:
            simulation.at(
                simulation.clock.time + 0.5, simulation.kill, 0
            )  # by then the others have received the last numbers of site 0
            while True:
                self.changed.wait(1.0)
        return honest(self, *given)

    monkeypatch.setattr(Node, "agree_on_result", settle)
    simulation.all_at().run().check_all_ended([1, 2, 3])


class _Shown:
    """Credentials with a fixed verdict on certificates and signatures."""

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
def test_relying_on_a_certificate_that_expired_later_is_not_a_fault(reason: str, right: bool, forged: bool) -> None:
    shown: Any = _Shown(reason, right)
    signatures = CertificateSignatures(lambda: shown, SITES, b"r" * 32, b"a" * 32)
    assert signatures.forged(_endorsed(0, b"x")) is forged
    node = _alone(signatures)
    signed, proposed = _endorsed(1, b"x"), _endorsed(0, b"x")
    node.settlement.claims.add(signed)  # as if it had been verified earlier
    node.records.process_endorsement(1, Record(1, Incarnation(1, 2), endorsement=signed, proposed=proposed))
    if forged:
        with raises(DisputedResult, site="south", by=None) as caught:
            node.settlement.check(None)
        assert "north" in caught.value.what  # the proposer that made no such proposal
    else:
        node.settlement.check(None)


# ------------------------------------------------------------------------------------- what a site stores of the others

SITES = ("north", "south", "west")


def _alone(signatures: Any = None) -> Node:
    config = NodeConfig(SITES, 0, ((0, 1), (0, 2), (1, 2)), b"n" * 32, {"run": b"1"}, 1 << 20)
    return Node(config, Policy(), VirtualClock(), Incarnation(1, 1), signatures=signatures or Names(0))


def _endorsed(site: int, content: bytes, epoch: int = 1) -> Endorsement:
    claim = ResultClaim(epoch, b"p" * 32, (0, 1, 2), hashlib.sha256(content).digest())
    return Names(site).endorse(site, claim)


def _outcome(content: bytes, *signed: Endorsement) -> wire.Outcome:
    return wire.Outcome(outcome=hashlib.sha256(content).digest(), endorsements=[one.to_wire() for one in signed])


def test_a_site_gives_up_if_all_its_neighbours_belong_to_another_network() -> None:
    node = _alone()
    for peer in (1, 2):
        node.abort_reasons.check()
        node.opened(peer)
        stranger = Link(Incarnation(1, 7), b"o" * 32)
        stranger.opened(0.0)
        hello = stranger.next_frame(0.0)
        assert hello is not None
        with pytest.raises(WrongNetwork):
            node.received(peer, hello)
    with raises(InvalidInput, parameter="sites", agent=0):
        node.abort_reasons.check()


def test_an_agent_gives_up_when_another_one_keeps_running_as_the_same_site() -> None:
    node = _alone(NoSignatures())
    for number in range(1, 7):
        node.abort_reasons.check()
        later = Incarnation(10**6 * number, 7)
        node.records.greeted(1, wire.Hello(known=later.number, known_boot=later.boot))
    with raises(InvalidInput, parameter="site", agent=0):
        node.abort_reasons.check()


def test_a_result_that_was_not_requested_is_not_stored() -> None:
    node = _alone()
    for number in range(200):
        content = b"%d" % number
        node.files.receive(1, _outcome(content, _endorsed(1, content)), content)
    assert not node.files.contents
    assert not list(node.settlement.claims)


def test_a_requested_result_is_stored_while_a_site_claims_it() -> None:
    node = _alone()
    contents = [b"%d" % number for number in range(40)]
    for epoch, content in enumerate(contents, 1):
        signed = _endorsed(1, content, epoch)
        node.settlement.claims.add(signed)
        node.files.asked[1, signed.claim.outcome] = 0.0
        node.files.receive(1, _outcome(content, signed), content)
        assert node.files.obtain(signed.claim)
        assert not node.files.obtain(_endorsed(2, b"another", epoch).claim)
        assert len(node.files.contents) <= 9
    assert len(node.files.asked) <= 9
    stored = dict(node.files.contents)
    with pytest.raises(FrameError):
        node.files.receive(1, _outcome(contents[-1]), b"other")
    assert node.files.contents == stored


def test_signatures_are_verified_once_and_a_limited_number_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    signatures, asked = Names(0), [0]
    honest = signatures.endorsement_problem

    def counted(one: Endorsement) -> str:
        asked[0] += 1
        return honest(one)

    monkeypatch.setattr(signatures, "endorsement_problem", counted)
    node = _alone(signatures)
    signed = _endorsed(0, b"x")
    for _ in range(3):
        node.records.process_endorsement(
            1, Record(1, Incarnation(1, 2), endorsement=_endorsed(1, b"x"), proposed=signed)
        )
    assert asked == [2]
    for number in range(100):
        node.records.process_endorsement(
            1, Record(1, Incarnation(1, 2), endorsement=_endorsed(1, b"%d" % number), proposed=signed)
        )
    assert len(list(node.settlement.claims)) <= 9


def test_an_invalid_record_names_its_site_whichever_neighbour_passes_it_on() -> None:
    node = _alone()
    record = Record(2, Incarnation(1, 3), 1).to_wire()
    record.phase = "asleep"
    signed_record = Names(2).sign_record(record.SerializeToString())
    with pytest.raises(FrameError) as caught:
        node.records.receive(1, wire.Records(sealed=[signed_record]))
    assert "west" in str(caught.value)
    with raises(PeerFault, site="west", by=None):
        node.abort_reasons.check()


def test_a_refused_signature_on_a_result_is_logged_once_with_its_site_and_the_neighbour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = _alone()
    forged = replace(_endorsed(2, b"x"), signature=b"forged")
    record = Record(2, Incarnation(1, 3), endorsement=forged, proposed=_endorsed(0, b"x"))
    with caplog.at_level(logging.WARNING, logger="deepca"):
        for _ in range(2):
            node.records.process_endorsement(1, record)
    (logged,) = caplog.records
    assert [vars(logged)["facts"][name] for name in ("peer", "where")] == ["west", "south"]
    assert not list(node.settlement.claims)


def test_an_invalid_record_signed_by_another_site_accuses_no_site() -> None:
    node = _alone()
    record = Record(2, Incarnation(1, 3), 1).to_wire()
    record.phase = "asleep"
    node.records.receive(1, wire.Records(sealed=[Names(1).sign_record(record.SerializeToString())]))
    node.abort_reasons.check()
