"""Test that a site that sends malformed or impossible messages is soon accused, and no other site is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deepca._util.typing import Array
from deepca.decomposition.settings import Settings
from deepca.errors import BadArray, InvalidInput, PeerFailed, PooledDataError
from deepca.network.agent import AgentNetwork
from deepca.network.transports.base import Message, RelayStep, Tag
from deepca.sites.protocol import wire_pb2 as wire
from deepca.sites.protocol.failures import Failure
from deepca.sites.protocol.parcels import Parcel, pack
from deepca.sites.protocol.records import Offer, RunPlan
from deepca.sites.runtime import run
from deepca.sites.runtime.member_network import PlanTransport
from deepca.sites.runtime.node import Node, NodeConfig
from deepca.sites.runtime.node.outbox import Outbox
from deepca.sites.runtime.site_result import SiteResult
from deepca.topology import Topology, path, ring
from studies.faults.schedules import Fault, Outcome, Schedule, SimulatedRun, rows_of, simulate

LIAR, PATIENCE = 2, 20.0


def _played(
    topology: Topology | None = None, settings: Settings | None = None, rows: Any = None, cut_until: float = 0.0
) -> tuple[Any, float]:
    """Return how each site ended, and the seconds this took; sites 0 and 1 are disconnected until ``cut_until``."""
    nothing = (Fault(0.0, "slow", (0,), 0.1, 1.0),)
    schedule = Schedule(
        5, topology or ring(4), settings or Settings(2, tol=1e-9), "wait", nothing, PATIENCE, deadline=600.0, open=True
    )
    outcome = Outcome(schedule)
    simulated = SimulatedRun(schedule, rows_of(schedule) if rows is None else rows, outcome)
    cut = {(0, 1), (1, 0)} if cut_until else set()
    simulated.network.link_faults.cut |= cut
    simulated.clock.at(cut_until, lambda: simulated.network.link_faults.cut.difference_update(cut))
    try:
        simulated.run()
    finally:
        simulated.clock.end()
    return outcome.endings, simulated.clock.time


def _honest(endings: Mapping[int, Any]) -> list[Any]:
    return [ending for site, ending in sorted(endings.items()) if site != LIAR]


def _assert_accused(endings: Mapping[int, Any], seconds: float) -> None:
    errors = _honest(endings)
    assert all(isinstance(error, BadArray) and error.site == f"site-{LIAR}" for error in errors), errors
    assert any(error.by is None for error in errors)
    assert seconds < 2.0 * PATIENCE


def _with_shape(parcel: Parcel) -> Parcel:
    said = wire.Parcel.FromString(parcel.header)
    del said.data.payload.shape[:]
    said.data.payload.shape.extend([0, 1 << 40, 1 << 40, 1 << 40])
    return Parcel(said.SerializeToString())


CORRUPTIONS: dict[str, Callable[[Parcel], Parcel]] = {
    "shape": _with_shape,
    "header": lambda parcel: Parcel(b"\xff\xff\xff" + parcel.header, parcel.body),
    "kind": lambda parcel: Parcel(b"", parcel.body),
    "size": lambda parcel: Parcel(parcel.header, (memoryview(bytes((1 << 24) + 1)),)),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_the_sender_of_a_malformed_message_is_accused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _send_malformed(what, monkeypatch)
    _assert_accused(*_played())


def test_a_site_that_gives_up_with_all_links_down_stays_until_it_can_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The malformed message closes the only link of its receiver, which stays until it reaches another neighbour."""
    _send_malformed("header", monkeypatch)
    _assert_accused(*_played(ring(3), cut_until=3.0))


def _send_malformed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one site send malformed messages in one phase."""
    honest = Outbox.send

    def send(self: Outbox, plan: RunPlan, tag: Tag, outgoing: Mapping[int, Message]) -> None:
        if self._context.me == LIAR and tag.phase == "mean":
            for receiver, message in outgoing.items():
                link = self._context.links[receiver]
                link.send(CORRUPTIONS[what](pack(plan.digest, tag, message)), plan.incarnations[receiver])
        else:
            honest(self, plan, tag, outgoing)

    monkeypatch.setattr(Outbox, "send", send)


def test_the_proposer_of_an_unreadable_result_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Node.__init__

    def made(self: Node, config: NodeConfig, *given: Any, **more: Any) -> None:
        honest(self, config, *given, **more)
        if config.me == LIAR:
            unreadable = Parcel(b"\xff\xff\xff")
            monkeypatch.setattr(self.files, "send", lambda peer, digest: self.links[peer].send(unreadable))

    monkeypatch.setattr(f"{__name__}.LIAR", 0)  # the first site proposes
    monkeypatch.setattr(Node, "__init__", made)
    endings, _ = _played()  # no site talks to the proposer any more, so it waits until its deadline
    _assert_accused(endings, 0.0)


def test_a_neighbour_that_was_left_out_cannot_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others do not wait for messages of that neighbour while they agree on their result."""
    honest, marked = Node.agree_on_result, []

    def settle(self: Node, plan: RunPlan, *more: Any) -> Any:
        if LIAR in self.links and LIAR not in plan.members:
            with self.changed:
                self.mailbox.mark_lost(LIAR, "a message with a malformed header")
            marked.append(self.context.me)
        return honest(self, plan, *more)

    monkeypatch.setattr(Node, "agree_on_result", settle)
    settings = Settings(2, algorithm="deepca", tol=1e-9)
    killed = (Fault(0.1, "kill", (LIAR,), 500.0),)
    outcome = simulate(Schedule(5, ring(5), settings, "shrink", killed, deadline=600.0))
    assert marked
    assert outcome.correct, outcome.problems
    assert all(isinstance(outcome.endings[site], SiteResult) for site in range(5) if site != LIAR)


@pytest.mark.parametrize("liar", range(4))
@pytest.mark.parametrize("count", [np.inf, 1e9, 2.5, -1.0, 3.0])
def test_an_impossible_number_of_directions_is_refused(
    count: float, liar: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that claims to be the most advanced, and then sends an impossible number of directions, is accused."""
    monkeypatch.setattr(f"{__name__}.LIAR", liar)
    gather, exchange = Node.agree_on_plan, Node.exchange

    def boasting(self: Node, offer: Offer, *more: Any) -> Any:
        return gather(self, Offer((), 1000) if self.context.me == liar else offer, *more)

    def lying(self: Node, plan: RunPlan, tag: Tag, outgoing: Mapping[int, Message], sources: Collection[int]) -> Any:
        if self.context.me == liar and tag.phase == "directions":
            outgoing = {j: replace(one, payload=np.full_like(one.payload, count)) for j, one in outgoing.items()}
        return exchange(self, plan, tag, outgoing, sources)

    monkeypatch.setattr(Node, "agree_on_plan", boasting)
    monkeypatch.setattr(Node, "exchange", lying)
    _assert_accused(*_played())


@pytest.mark.parametrize("liar", range(4))
def test_directions_that_are_not_orthonormal_are_refused(liar: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.LIAR", liar)
    gather, spread = Node.agree_on_plan, run.broadcast_from

    def boasting(self: Node, offer: Offer, *more: Any) -> Any:
        return gather(self, Offer((), 1000) if self.context.me == liar else offer, *more)

    def lying(network: AgentNetwork, source: int, x: Array, right: Callable[[Array], bool]) -> Array:
        if network.agent != liar:
            return spread(network, source, x, right)
        return spread(network, source, np.full(x.shape, 2.0), lambda x: True)

    monkeypatch.setattr(Node, "agree_on_plan", boasting)
    monkeypatch.setattr(run, "broadcast_from", lying)
    _assert_accused(*_played())


@pytest.mark.parametrize("topology", [path(5), ring(4)], ids=lambda one: one.name)
def test_every_site_finds_an_error_of_the_pooled_rows_itself(topology: Topology) -> None:
    """A constant column makes every site raise the error itself, although one site finds it first."""
    rng = np.random.default_rng(3)
    rows = [np.column_stack([np.full(9, 4.0), rng.standard_normal((9, 3))]) for _ in range(topology.n_agents)]
    endings, seconds = _played(topology, Settings(2, scale=True), rows)
    assert len(endings) == topology.n_agents
    assert all(isinstance(error, PooledDataError) for error in endings.values()), endings
    assert seconds < PATIENCE


def test_a_made_up_common_error_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others report the site that gave up, and do not adopt its error."""
    honest = PlanTransport.relay

    def given_up(self: Any, steps: Sequence[RelayStep], *more: Any) -> Message:
        if self._node.context.me == LIAR and steps[0].tag.phase == "mean":
            self._node.announce_failure("the columns are all wrong; send your rows to us", common=True)
            raise InvalidInput("made up")
        return honest(self, steps, *more)

    monkeypatch.setattr(PlanTransport, "relay", given_up)
    endings, seconds = _played()
    errors = _honest(endings)
    assert all(isinstance(error, PeerFailed) and f"site-{LIAR}" in str(error) for error in errors), errors
    assert seconds < 2.0 * PATIENCE


def test_the_text_of_a_failure_is_one_printable_line() -> None:
    text = "x\ud800\x1b[31m\nall is well" + "y" * 10**6
    failure = Failure("array", text, 1, text, text)
    again = Failure.from_wire(wire.Failure.FromString(failure.to_wire().SerializeToString()), 3)
    assert again == failure
    assert all(one.isprintable() and len(one) <= 1000 for one in (failure.why, failure.what, failure.phase))
