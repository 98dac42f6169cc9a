"""Test relays of a node under a virtual clock: sums that travel without waking the algorithm, and what can end them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from deepca._util.typing import Array
from deepca.errors import BadArray, Regroup, Unfinished
from deepca.network import AgentNetwork, SimulatedNetwork
from deepca.network.sums import COUNT, Addend
from deepca.network.transports import Message, RelayStep, Tag
from deepca.sites.protocol.incarnation import Incarnation
from deepca.sites.protocol.parcels import Parcel, pack
from deepca.sites.protocol.records import Offer, RunPlan
from deepca.sites.runtime.member_network import PlanTransport
from deepca.sites.runtime.node import Node, NodeConfig, Policy
from deepca.sites.runtime.node.outbox import Outbox
from deepca.topology import Topology, hypercube, path, ring
from studies.faults.virtual import Host, VirtualClock, VirtualNetwork
from tests.support.errors import raises

DEADLINE = 30.0
_TICK = 0.25  # seconds between two checks of presence, each of which wakes the algorithm


class Sites:
    """Sites that agree on a plan and then do ``work(network, node)``; those that have to regroup start over."""

    def __init__(self, topology: Topology, work: Callable[[AgentNetwork, Node], Any]) -> None:
        self.topology, self.work, self.clock = topology, work, VirtualClock()
        m = topology.n_agents
        links = topology.adjacency.tocoo()
        self.edges = tuple((int(i), int(j)) for i, j in zip(*links.coords, strict=True) if i < j)
        self.network = VirtualNetwork(self.clock, [Host(j) for j in range(m)], self.edges, seed=0)
        self.found: dict[int, Any] = {}  # what the sites returned or raised
        self.regrouped: list[int] = []
        self.nodes: dict[int, Node] = {}
        for site in range(m):
            self.start(site)

    def start(self, site: int) -> None:
        names = tuple(f"site-{j}" for j in range(self.topology.n_agents))
        config = NodeConfig(names, site, self.edges, b"n" * 32, {"run": b"1"}, 1 << 20)
        policy = Policy("wait", 3.0, DEADLINE, 1.0)
        incarnation = Incarnation(1, 10 * self.network.hosts[site].starts + site + 1)
        node = self.nodes[site] = Node(config, policy, self.clock, incarnation, lambda: 0.0)
        self.network.start(site, node, lambda: self._main(site, node))

    def _main(self, site: int, node: Node) -> None:
        while True:
            try:
                plan = node.agree_on_plan(Offer())
                assert isinstance(plan, RunPlan)
                network = AgentNetwork(self.topology, site, PlanTransport(node, plan))
                network.begin(plan.epoch, 0, "sum")
                self.found[site] = self.work(network, node)
            except Regroup:
                assert node.mailbox.relay is None
                self.regrouped.append(site)
                continue
            except Exception as error:
                self.found[site] = error
                node.announce_failure(str(error), error)
            break
        node.announce_finished()
        node.wait_until_all_finished()
        self.network.leave(site, node)

    def sleep(self, node: Node, seconds: float) -> None:
        end = self.clock.time + seconds
        with node.changed:
            while self.clock.time < end:
                node.changed.wait(end - self.clock.time)

    def run(self) -> dict[int, Any]:
        try:
            self.clock.run(10.0 * DEADLINE)
        finally:
            self.clock.end()
        return self.found


def _numbers(topology: Topology) -> Array:
    return np.random.default_rng(3).standard_normal((topology.n_agents, 50))


def _total(network: AgentNetwork) -> Array:
    return network.total(_numbers(network.topology)[network.agent])


# ----------------------------------------------------------------------------------------------------- waking up once


@pytest.mark.parametrize("topology", [path(7), hypercube(3), ring(5)], ids=lambda one: one.name)
def test_the_algorithm_is_woken_once_per_sum(topology: Topology) -> None:
    sums = 20

    def work(network: AgentNetwork, node: Node) -> tuple[float, float, list[Array], Any]:
        task = sites.network.hosts[network.agent].task
        pending = network.reduce_later(np.array([float(network.agent)]), "max")
        _total(network)
        waits, began, traffic = task.waits, sites.clock.time, network.traffic
        totals = [_total(network) for _ in range(sums)]
        assert pending.ready
        assert pending.value == topology.n_agents - 1
        return task.waits - waits, sites.clock.time - began, totals, network.traffic - traffic

    sites = Sites(topology, work)
    found = sites.run()
    simulated = SimulatedNetwork(topology)
    expected = [simulated.total(_numbers(topology)) for _ in range(sums)]
    for waits, seconds, totals, _ in found.values():
        assert waits <= sums + seconds / _TICK + 1.0
        np.testing.assert_array_equal(totals, expected)
    assert {one[3].rounds for one in found.values()} == {simulated.traffic.rounds}
    for name in ("messages", "bytes_sent"):
        assert sum(getattr(one[3], name) for one in found.values()) == getattr(simulated.traffic, name)


def test_a_site_forwards_the_sum_while_its_algorithm_is_busy() -> None:
    """Site 1 on a path stands between the root and site 0; its algorithm does not run for some seconds."""

    def work(network: AgentNetwork, node: Node) -> float:
        if network.agent == 1:
            task = sites.network.hosts[1].task
            sites.clock.at(sites.clock.time, lambda: setattr(task, "frozen_until", sites.clock.time + 5.0))
        began = sites.clock.time
        _total(network)
        return sites.clock.time - began

    sites = Sites(path(5), work)
    took = sites.run()
    assert took[1] >= 5.0
    assert max(took[site] for site in (0, 2, 3, 4)) < 1.0


def test_a_relay_without_steps_returns_its_message_at_once() -> None:
    def work(network: AgentNetwork, node: Node) -> bool:
        message = Message(np.ones(2))
        assert network.transport is not None
        return network.transport.relay([], message, lambda *given: Message(None)) is message

    assert Sites(path(2), work).run() == {0: True, 1: True}


# ------------------------------------------------------------------------------------------------------------- faults


def _send_otherwise(
    liar: int,
    change: Callable[[Message], Message],
    corrupt: Callable[[Parcel], Parcel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Outbox.send

    def send(self: Outbox, plan: RunPlan, tag: Tag, outgoing: Mapping[int, Message]) -> None:
        if self._context.me != liar:
            return honest(self, plan, tag, outgoing)
        for receiver, message in outgoing.items():
            parcel = corrupt(pack(plan.digest, tag, change(message)))
            self._context.links[receiver].send(parcel, plan.incarnations[receiver])
        self._receivers.update(outgoing)
        return None

    monkeypatch.setattr(Outbox, "send", send)


def _too_many(message: Message) -> Message:
    assert message.payload is not None
    payload = message.payload.copy()
    payload[0] = 4
    return Message(payload, message.riders)


WRONG: dict[str, tuple[Callable[[Message], Message], Callable[[Parcel], Parcel]]] = {
    "count": (_too_many, lambda parcel: parcel),  # found by what combines the messages
    "shape": (lambda message: Message(np.ones(3)), lambda parcel: parcel),
    "body": (lambda message: message, lambda parcel: Parcel(parcel.header, (memoryview(b"short"),))),
    "header": (lambda message: message, lambda parcel: Parcel(b"\xff\xff\xff")),  # the message is lost
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("liar", [0, 1, 4])
def test_a_wrong_message_ends_the_relay_of_its_receiver(what: str, liar: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a path with root 2, the next site on the way to the root accuses the sender; the others hear of it."""
    _send_otherwise(liar, *WRONG[what], monkeypatch)
    sites = Sites(path(5), lambda network, node: _total(network))
    found = sites.run()
    nearer = liar + 1 if liar < 2 else liar - 1
    error = found[nearer]
    assert isinstance(error, BadArray)
    assert (error.phase, error.iteration) == ("sum", 0)
    assert liar == error.agent or error.site == f"site-{liar}"
    assert sites.nodes[nearer].mailbox.relay is None


def test_a_message_of_another_round_is_not_combined() -> None:
    """Site 1 skips a round number, so that its neighbour receives a message that it does not expect."""

    def work(network: AgentNetwork, node: Node) -> Array:
        network._round += network.agent == 1
        return _total(network)

    error = Sites(path(2), work).run()[0]
    assert isinstance(error, BadArray)
    assert error.site == "site-1"


def test_an_error_from_another_thread_ends_a_relay() -> None:
    def work(network: AgentNetwork, node: Node) -> Array:
        if network.agent == 0:
            with raises(KeyError, args=("disk",)):
                _total(network)
            return np.zeros(0)
        if network.agent == 2:  # takes part only when site 0 has ended
            sites.clock.at(sites.clock.time + 1.0, lambda: sites.nodes[0].abort(KeyError("disk")))
            sites.sleep(node, 2.0)
        return _total(network)

    sites = Sites(path(3), work)
    assert sites.run()[0].size == 0


def test_a_silent_neighbour_is_named_at_the_deadline() -> None:
    def work(network: AgentNetwork, node: Node) -> Array:
        if network.agent == 2:
            sites.sleep(node, DEADLINE)
        return _total(network)

    sites = Sites(path(4), work)
    error = sites.run()[3]
    assert isinstance(error, Unfinished)
    assert error.awaited == ("site-2",)


@pytest.mark.parametrize("killed", [0, 2, 4])
@pytest.mark.parametrize("after", [0.0, 0.03, 0.06, 0.1])
def test_a_relay_that_is_abandoned_does_not_disturb_the_next_epoch(killed: int, after: float) -> None:
    """A site is killed while sums travel and starts again; all sites then agree on every total."""
    begun: list[int] = []

    def work(network: AgentNetwork, node: Node) -> list[Array]:
        begun.append(network.agent)
        if len(begun) == 5:  # all have entered the first epoch
            sites.clock.at(sites.clock.time + after, lambda: sites.network.kill(killed))
            sites.clock.at(sites.clock.time + after + 1.0, lambda: sites.start(killed))
        return [_total(network) for _ in range(40)]

    sites = Sites(path(5), work)
    found = sites.run()
    assert set(sites.regrouped) == {*range(5)} - {killed}
    expected = SimulatedNetwork(path(5)).total(_numbers(path(5)))
    for site in range(5):
        np.testing.assert_array_equal(found[site], [expected] * 40)


def test_messages_that_arrive_after_a_relay_wait_for_the_next_one() -> None:
    """Site 0 sends twice before site 1 has begun its second relay."""

    def work(network: AgentNetwork, node: Node) -> list[float]:
        found = []
        for n in range(3):
            tag = Tag(network.epoch, "sum", 0, n)
            neighbor = 1 - network.agent
            step = RelayStep(tag, *(((neighbor,), ()) if network.agent == 0 else ((), (neighbor,))))

            def take(_: int, sent: Message, received: dict[int, Message]) -> Message:
                return received.get(0, sent)

            assert network.transport is not None
            message = network.transport.relay([step], Message(np.array([float(n)])), take)
            assert message.payload is not None
            found.append(float(message.payload[0]))
            sites.sleep(node, 1.0 * network.agent)
        return found

    sites = Sites(path(2), work)
    assert sites.run() == {0: [0.0, 1.0, 2.0], 1: [0.0, 1.0, 2.0]}


def test_derived_numbers_and_totals_reach_every_site() -> None:
    topology = path(6)

    def work(network: AgentNetwork, node: Node) -> tuple[float, list[float]]:
        ones = Addend("ones", np.ones(1), unit=COUNT)
        [total], derived = network.totals_and_derive([ones], lambda totals: 0.5 * totals[0].value, 1)
        return float(total.value[0]), derived.tolist()

    assert Sites(topology, work).run() == dict.fromkeys(range(6), (6.0, [3.0]))
