"""Test exact sums over all agents: against exact rational arithmetic, with the same bits on every graph and engine."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
import pytest

from deepca import topology
from deepca._util.typing import Array
from deepca.errors import BadArray, MixingError, NetworkError, NotFiniteError, ParameterError
from deepca.network import AgentNetwork, Network, SimulatedNetwork, run_agents
from deepca.network.sums import COUNT, Addend, Unit, Words
from deepca.network.transports import MemoryHub, Message
from deepca.topology import Topology, directed
from deepca.topology.local_view import Neighbourhood
from deepca.topology.time_varying import lossy
from tests.support.engines import ENGINES, at_every_agent, mine, network_of, over_mpi
from tests.support.errors import raises

GRAPHS: dict[str, Topology] = {
    "ring": topology.ring(8),
    "star": topology.star(8),
    "path": topology.path(8),
    "torus": topology.torus(2, 4),
    "hypercube": topology.hypercube(3),
    "random": topology.erdos_renyi(8, 0.5, seed=1),
    "directed ring": directed.from_arcs(8, [(j, (j + 1) % 8) for j in range(8)]),
}
M = 8


def values(scale: float = 1.0) -> Array:
    """Return numbers whose float sums depend on the order of addition."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((M, 40)) * 10.0 ** rng.integers(-8, 8, (M, 40))
    x[0, :10], x[1, :10] = 1e17, -1e17  # cancel
    x[:, 10] = 0.0
    return x * scale


def exact(x: Array) -> list[float]:
    """Return sums over agents, correctly rounded."""
    return [float(sum(map(Fraction, column), Fraction(0))) for column in x.T.tolist()]


@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e150, 1e-300])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", GRAPHS)
def test_totals_are_correctly_rounded_at_every_agent(name: str, engine: str, scale: float) -> None:
    x = values(scale)

    def work(network: Network) -> Array:
        found = network.total(x[network.local])
        return np.broadcast_to(found, (*network.batch, *found.shape))

    done = at_every_agent(engine, GRAPHS[name], work)
    np.testing.assert_array_equal(done.values, np.broadcast_to(exact(x), (M, 40)))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_given_unit_needs_a_single_sum_of_one_word(engine: str) -> None:
    x, unit = np.random.default_rng(2).standard_normal((M, 40)), Unit(-40)
    place = GRAPHS["ring"]

    def work(network: Network) -> Array:
        found = network.total(x[network.local], unit)
        return np.broadcast_to(found, (*network.batch, *found.shape))

    done = at_every_agent(engine, place, work)
    rounded = [[Fraction(round(Fraction(v) * 2**40), 2**40) for v in row] for row in x.tolist()]
    np.testing.assert_array_equal(done.values[0], [float(sum(column)) for column in zip(*rounded, strict=True)])
    if not over_mpi():
        assert done.traffic.rounds == 2 * nx.radius(place.to_networkx())
        assert done.traffic.bytes_sent == 2 * (M - 1) * 8 * (1 + 40)


@pytest.mark.parametrize("engine", ENGINES)
def test_terms_are_added_without_rounding_and_the_remainder_is_returned(engine: str) -> None:
    x = np.random.default_rng(0).standard_normal((M, 5))
    tiny = x * 2.0**-60

    def work(network: Network) -> Array:
        ones = Addend("ones", np.ones((*network.batch, 1)), unit=COUNT)
        count, total = network.totals(ones, Addend("numbers", x[network.local], (tiny[network.local],)))
        found = np.stack([total.value, total.rest, np.repeat(count.value, 5)])
        return np.broadcast_to(found, (*network.batch, 3, 5))

    done = at_every_agent(engine, GRAPHS["random"], work)
    for i, column in enumerate(np.concatenate([x, tiny]).T.tolist()):
        value, rest, count = map(Fraction, done.values[0][:, i].tolist())
        assert abs(value + rest - sum(map(Fraction, column))) <= Fraction(M, 2**128) + abs(value) / 2**105
        assert count == M
    assert (done.values == done.values[0]).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_totals_that_overflow_are_infinite(engine: str) -> None:
    x = np.repeat([[1.7e308, -1.7e308, 1.0]], M, axis=0)

    def work(network: Network) -> Array:
        found = network.total(x[network.local])
        return np.broadcast_to(found, (*network.batch, *found.shape))

    done = at_every_agent(engine, GRAPHS["star"], work)
    np.testing.assert_array_equal(done.values, np.broadcast_to([math.inf, -math.inf, M], (M, 3)))


@pytest.mark.parametrize("engine", ENGINES)
def test_pending_values_ride_along(engine: str) -> None:
    def work(network: Network) -> Array:
        pending = network.reduce_later(np.asarray(network.local[..., None], dtype=np.float64), "max")
        network.total(np.ones((*network.batch, 3)))
        return np.broadcast_to([float(pending.value[0]), float(pending.ready)], (*network.batch, 2))

    done = at_every_agent(engine, GRAPHS["torus"], work)
    np.testing.assert_array_equal(done.values, np.broadcast_to([M - 1.0, 1.0], (M, 2)))


def test_threads_and_the_simulator_count_the_same_traffic() -> None:
    x = values()
    for place in GRAPHS.values():
        simulated = SimulatedNetwork(place)
        simulated.total(x)

        def work(network: AgentNetwork) -> tuple[int, int, int]:
            network.total(x[network.agent])
            return network.traffic.rounds, network.traffic.messages, network.traffic.bytes_sent

        rounds, messages, sent = zip(*run_agents(place, work), strict=True)
        assert set(rounds) == {simulated.traffic.rounds}
        assert (sum(messages), sum(sent)) == (simulated.traffic.messages, simulated.traffic.bytes_sent)


def test_numbers_that_are_not_finite_are_rejected_before_they_are_sent() -> None:
    x = np.ones((M, 3))
    x[2, 1] = math.nan
    network = SimulatedNetwork(GRAPHS["ring"])
    with raises(NotFiniteError, agent=2, index=1):
        network.total(x)
    assert network.traffic.messages == 0


def test_networks_whose_links_change_or_that_are_not_known_have_no_totals() -> None:
    changing = network_of(lossy(topology.ring(M), 0.1, seed=0))
    assert not changing.adds_exactly
    with raises(MixingError, parameter="topology"):
        changing.total(np.ones((M, 3))[mine(M)])

    def work(network: AgentNetwork) -> bool:
        nearby = AgentNetwork(Neighbourhood.of(GRAPHS["ring"], network.agent), network.agent, network.transport)
        return nearby.adds_exactly

    assert not any(run_agents(GRAPHS["ring"], work))


class _Forgetful(AgentNetwork):
    """An agent that does not add the first message it receives."""

    forgets = True

    def _combine_words(self, part: Any, layout: Any, ops: Any, own: Message, received: Any) -> Message:
        if received and self.forgets:
            self.forgets, received = False, {}
        return super()._combine_words(part, layout, ops, own, received)


@pytest.mark.parametrize("reliable", [True, False])
def test_an_omitted_message_is_detected(reliable: bool) -> None:
    """On a path, agent 2 omits the sums of agents 0 and 1, which agent 3 notices unless messages may get lost."""
    hub = MemoryHub(M, timeout=10.0)

    def work(network: AgentNetwork) -> Array:
        kind = _Forgetful if network.agent == 2 else AgentNetwork
        broken = kind(network.topology, network.agent, hub.transport(network.agent))
        broken.reliable = reliable
        return broken.total(np.ones(3), COUNT)

    with pytest.raises(NetworkError) as caught:
        run_agents(topology.path(M), work, hub=hub)
    if reliable:
        assert isinstance(caught.value, BadArray)
        assert caught.value.agent == 2
    else:
        assert caught.type is NetworkError


class _Greedy(AgentNetwork):
    """An agent that contributes the largest number that passes for a count."""

    def _sum_words(self, own: Words, *more: Any) -> tuple[Words, Words]:
        return super()._sum_words(np.concatenate([own[:1], np.full(own.size - 1, 1 << 53, dtype=np.uint64)]), *more)


def test_a_number_that_is_too_large_only_with_others_is_blamed_on_its_sender() -> None:
    """On a path, agent 0 is a leaf, and agent 1 adds its own counts before it sends them on."""
    hub = MemoryHub(M, timeout=10.0)

    def work(network: AgentNetwork) -> Array:
        kind = _Greedy if network.agent == 0 else AgentNetwork
        lying = kind(network.topology, network.agent, hub.transport(network.agent))
        return lying.totals(Addend("counts", np.ones(3), unit=COUNT, nonnegative=True))[0].value

    with pytest.raises(BadArray) as caught:
        run_agents(topology.path(M), work, hub=hub)
    assert caught.value.agent == 0


class _Picky(AgentNetwork):
    """An agent that counts a number for which it claims to need another unit."""

    def _sum_words(self, own: Words, *more: Any) -> tuple[Words, Words]:
        own[1] += np.uint64(self.agent == 0 and own.size > 70)
        return super()._sum_words(own, *more)


def test_a_need_of_another_unit_without_a_number_is_an_error_of_the_network() -> None:
    hub = MemoryHub(M, timeout=10.0)

    def work(network: AgentNetwork) -> Array:
        return _Picky(network.topology, network.agent, hub.transport(network.agent)).total(np.zeros(40))

    with pytest.raises(NetworkError) as caught:
        run_agents(topology.path(M), work, hub=hub)
    assert caught.type is NetworkError


def test_numbers_beyond_their_limits_are_added_in_another_unit() -> None:
    x = values()
    for parts in (1, 4, 40):  # of equal length, each with a limit and a unit
        limits, unit = np.full((M, parts), 1e-3), Unit(np.full(parts, -70))
        found = SimulatedNetwork(GRAPHS["ring"]).totals(Addend("numbers", x, unit=unit, limits=limits))[0].value
        np.testing.assert_array_equal(found, exact(x))


def test_arrays_of_another_shape_are_rejected() -> None:
    network = SimulatedNetwork(GRAPHS["ring"])
    for x in (np.ones((3, 2)), np.ones(M), np.ones((M, 2, 2))):
        with raises(ParameterError, parameter="x", value=x.shape):
            network.total(x)
    assert network.total([[1.0]] * M).tolist() == [8.0]  # type: ignore[arg-type]
