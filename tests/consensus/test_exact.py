"""Check averages over trees and hypercubes: they are exact, have the same bits everywhere, and take few rounds."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest

import deepca
from deepca import Chebyshev, topology
from deepca._util.typing import Array
from deepca.consensus.exact import DimensionExchange, TreeSweep, exact_average, exact_mixer
from deepca.errors import MixingError
from deepca.network import AgentNetwork, Network, SimulatedNetwork
from deepca.topology import Topology, directed
from tests.support.engines import (
    ENGINES,
    assert_same_traffic,
    at_every_agent,
    everyone,
    mine,
    network_of,
    over_mpi,
    total,
    whole,
)
from tests.support.errors import raises
from tests.support.problems import spectrum_problem

GRAPHS: dict[str, Topology] = {
    "one": topology.complete(1),
    "two": topology.path(2),
    "path": topology.path(9),
    "ring": topology.ring(12),
    "star": topology.star(8),
    "grid": topology.grid(3, 5),
    "complete": topology.complete(6),
    "random": topology.erdos_renyi(15, 0.3, seed=1),
    "hypercube": topology.hypercube(4),
    "any weights": topology.star(7, rule="best-constant"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_all_agents_get_the_exact_mean(name: str) -> None:
    graph = GRAPHS[name]
    m = graph.n_agents
    x = np.random.default_rng(0).standard_normal((m, 3, 4)) * 10.0 ** np.arange(-6, 6, 3)
    network = SimulatedNetwork(graph)
    mean = exact_average(network, x)
    np.testing.assert_allclose(mean.reshape(3, 4), x.mean(axis=0), rtol=1e-13, atol=1e-18)

    def work(net: Network) -> Array:
        found = exact_average(net, x[net.local])
        return np.broadcast_to(found, (*net.batch, *found.shape))

    apart = at_every_agent(ENGINES[-1], graph, work)
    np.testing.assert_array_equal(apart.values, np.broadcast_to(apart.values[0], apart.values.shape))
    np.testing.assert_allclose(apart.values[0], mean, rtol=1e-13, atol=1e-18)
    if not over_mpi():
        assert apart.traffic.rounds == network.traffic.rounds
        assert apart.traffic.messages == network.traffic.messages


@pytest.mark.simulator("sums over ranks are collective operations")
@pytest.mark.parametrize("name", [name for name in GRAPHS if name not in ("one", "hypercube")])
def test_an_average_takes_twice_the_radius_in_rounds(name: str) -> None:
    graph = GRAPHS[name]
    network = network_of(graph)
    exact_average(network, np.ones((len(network.local), 1)))
    assert network.traffic.rounds == 2 * nx.radius(graph.to_networkx())
    assert total(network.traffic, graph.n_agents).messages == 2 * (graph.n_agents - 1)
    assert TreeSweep().rounds_for(graph, 1e-16) == network.traffic.rounds


@pytest.mark.simulator("sums over ranks are collective operations")
def test_a_hypercube_takes_as_many_rounds_as_dimensions() -> None:
    graph = topology.hypercube(5)
    assert isinstance(exact_mixer(graph), DimensionExchange)
    network = network_of(graph)
    exact_average(network, np.ones((32, 1))[mine(32)])
    assert network.traffic.rounds == 5
    assert not isinstance(exact_mixer(topology.ring(8)), DimensionExchange)
    with raises(MixingError, parameter="mix", value="DimensionExchange"):
        DimensionExchange()(network_of(topology.ring(8)), np.ones((8, 1))[mine(8)])


def test_a_digraph_with_some_links_of_a_hypercube_is_not_one() -> None:
    """A directed ring of four has as many links as a square, each along a dimension, but in one direction only."""
    place = directed.from_arcs(4, [(0, 1), (1, 3), (3, 2), (2, 0)])
    x = np.random.default_rng(0).standard_normal((4, 3))
    assert isinstance(exact_mixer(place), TreeSweep)
    found = exact_average(network_of(place), x[mine(4)])
    np.testing.assert_allclose(found, np.broadcast_to(x.mean(axis=0), found.shape), rtol=0, atol=1e-15)


@pytest.mark.simulator(reason="checks a large network")
def test_a_large_network_needs_no_dense_matrix() -> None:
    graph = topology.ring(4000)
    x = np.random.default_rng(0).standard_normal((4000, 2))
    np.testing.assert_allclose(exact_average(SimulatedNetwork(graph), x), x.mean(axis=0), atol=1e-14)


def test_deepca_accepts_an_exact_mixer() -> None:
    rng = np.random.default_rng(0)
    A = deepca.operators.from_rows([rng.standard_normal((20, 6)) * [3, 2, 1, 0.5, 0.4, 0.3] for _ in range(7)])
    network = network_of(topology.ring(7))
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=0)
    result = deepca.solve(deepca.DeEPCA(A, W0, network, TreeSweep()), stop=deepca.Tolerance(1e-10), max_iter=500)
    assert result.status.code == "converged"
    U = np.linalg.eigh(A.mean())[1][:, ::-1][:, :2]
    assert deepca.operators.linalg.tan_theta(U, result.W).max() <= 1e-10


# ------------------------------------------------------------------------------- the best polynomial


@pytest.mark.parametrize("K", [1, 2, 5, 9])
def test_chebyshev_on_the_papers_weights_is_chebyshev_on_the_best_constant_matrix(K: int) -> None:
    """Both matrices are I − αM, and the interval scales with α, so the map is the same: other weights gain nothing."""
    x = np.random.default_rng(K).standard_normal((12, 5))
    mixed = [
        everyone(Chebyshev(K)(network_of(deepca.topology.erdos_renyi(12, 0.4, seed=3, rule=rule)), x[mine(12)]), 12)
        for rule in ("paper", "best-constant")
    ]
    np.testing.assert_allclose(mixed[0], mixed[1], rtol=0, atol=1e-13)
    apart = np.linalg.norm(mixed[1] - x.mean(axis=0)) / np.linalg.norm(x - x.mean(axis=0))
    values = np.sort(np.linalg.eigvalsh(deepca.topology.erdos_renyi(12, 0.4, seed=3).laplacian))
    mu = (values[-1] - values[1]) / (values[-1] + values[1])  # of I − 2M/(λ_2 + λ_max)
    assert apart <= 1.0 / np.cosh(K * np.arccosh(1.0 / mu)) * (1.0 + 1e-9)


# ------------------------------------------------------------------------------------- piggybacked values


@pytest.mark.parametrize("graph", GRAPHS)
def test_piggybacked_values_arrive_with_one_exact_average(graph: str) -> None:
    """After one sweep every agent knows the maximum over all agents, without any additional round."""
    place = GRAPHS[graph]

    def work(network: Network) -> Array:
        pending = network.reduce_later(np.asarray((7.0 * network.local[..., None]) % 5.0, dtype=np.float64), "max")
        exact_average(network, np.ones((*network.batch, 3)))
        found = np.array([float(pending.value[0]), float(pending.ready)])
        return np.broadcast_to(found, (*network.batch, 2))

    largest = max(float((7 * j) % 5) for j in range(place.n_agents))
    for engine in ENGINES:
        done = at_every_agent(engine, place, work)
        np.testing.assert_array_equal(done.values, np.broadcast_to([largest, 1.0], (place.n_agents, 2)))
        assert done.traffic.control_rounds == 0


@pytest.mark.simulator("sums over ranks are collective operations")
def test_a_krylov_run_needs_no_control_rounds() -> None:
    place = GRAPHS["random"]
    stack = spectrum_problem(place.n_agents, 90, 0.8 ** np.arange(90.0), 1)
    W0 = deepca.operators.linalg.random_orthonormal(90, 2, seed=0)

    def run(A: Any, network: Network) -> deepca.Result[Any]:
        return deepca.solve(deepca.BlockKrylov(A, W0, network), max_iter=100, stop=deepca.Tolerance(1e-10))

    def work(network: AgentNetwork) -> deepca.Result[Any]:
        return run(stack[network.agent], network)

    simulated = run(stack, SimulatedNetwork(place))
    parts = deepca.run_agents(place, work) if ENGINES[-1] == "threads" else [run(stack, network_of(place))]
    apart = whole(parts, place.n_agents)
    assert simulated.status.code == "converged"
    assert simulated.traffic.control_rounds == apart.traffic.control_rounds == 0
    assert_same_traffic(apart.traffic, simulated.traffic, place)
    assert apart.iterations == simulated.iterations
