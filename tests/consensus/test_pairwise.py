"""Check random pairwise gossip: one link at a time, a preserved mean, and the pooled answer at every agent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import deepca
from deepca.consensus.pairwise import Pairwise, pairs_in_rounds
from deepca.consensus.rates import first_rounds, response, responses, tracking_rate
from deepca.errors import MixingError, ParameterError
from deepca.network import Network, SimulatedNetwork
from deepca.operators import from_matrices
from deepca.planning.metered import LinkSpeed, MeteredNetwork
from deepca.solver.stopping import Tolerance
from deepca.topology import directed, time_varying
from tests.laws.strategies import quick, seeds
from tests.support.engines import ENGINES, at_every_agent, everyone, mine, network_of, over_mpi
from tests.support.errors import raises
from tests.support.helpers import GRAPHS, AtIteration, worst_tangent
from tests.support.problems import spectrum, spectrum_problem

Array = npt.NDArray[np.float64]
M, D, K_TOP = 12, 24, 3
PLACE = deepca.topology.erdos_renyi(M, 0.5, seed=2)
NOW = (0, 0, 0, 0)


def problem(seed: int = 0) -> tuple[Array, Array, Array]:
    stack = spectrum_problem(M, D, spectrum(D, K_TOP, gap=0.7, decay=0.8), seed)
    values, vectors = scipy.linalg.eigh(stack.mean(axis=0))
    return stack, np.ascontiguousarray(vectors[:, ::-1][:, :K_TOP]), values[::-1][:K_TOP]


def one_by_one(pairs: npt.NDArray[np.int64], m: int) -> Array:
    """Return the product of the averaging matrices of these pairs."""
    product = np.eye(m)
    for i, j in pairs:
        W = np.eye(m)
        W[np.ix_([i, j], [i, j])] = 0.5
        product = W @ product
    return product


# --------------------------------------------------------------------------------------------------------------- pairs


@given(st.sampled_from(sorted(GRAPHS)), st.integers(1, 9), seeds)
@quick(40)
def test_pairs_use_links_of_the_graph_and_their_number_follows_from_the_rounds(name: str, K: int, seed: int) -> None:
    place = GRAPHS[name]()
    m = place.n_agents
    pairs = Pairwise(K, seed=seed).pairs(place, K, NOW)
    assert pairs.shape == (math.ceil(K * m / 2) if m > 1 else 0, 2)
    links = {tuple(sorted(edge)) for edge in place.to_networkx().edges()}
    assert {tuple(pair) for pair in pairs.tolist()} <= links
    assert sorted(map(tuple, place.edges.tolist())) == sorted(links)


def test_all_links_are_drawn_equally_often() -> None:
    """The chi-square statistic of 20 000 pairs is within four standard deviations of its expectation."""
    pairs = Pairwise().pairs(PLACE, 20_000 * 2 // M, NOW)
    counts = np.unique(pairs, axis=0, return_counts=True)[1]
    assert len(counts) == PLACE.n_edges
    expected = len(pairs) / PLACE.n_edges
    freedom = PLACE.n_edges - 1
    assert abs(((counts - expected) ** 2 / expected).sum() - freedom) <= 4.0 * math.sqrt(2.0 * freedom)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", ["erdos-renyi", "ring", "star", "path", "one agent", "two agents"])
def test_a_mix_applies_its_pairs_in_order_and_counts_them(name: str, kind: str) -> None:
    """A second mix has other pairs; each pair sends two messages, and nothing else is sent."""
    place = GRAPHS[name]()
    m = place.n_agents
    x = np.random.default_rng(3).standard_normal((m, 5, 2))
    mixer = Pairwise(7, seed=5)

    def work(network: Network) -> Array:
        network.begin(0, 4)
        first = mixer(network, x[network.local])
        return np.stack([first, mixer(network, x[network.local])], axis=-1)

    done = at_every_agent(kind, place, work)
    n = pairs_in_rounds(7, m)
    step = network_of(place)
    step.begin(0, 4)
    epoch, phase, t, pairs_so_far = step.position
    assert (epoch, t, pairs_so_far) == (0, 4, 0)
    for i, before in enumerate((0, n)):
        pairs = mixer.pairs(place, 7, (epoch, phase, t, before))
        expected = np.einsum("ij,jab->iab", one_by_one(pairs, m), x)
        np.testing.assert_allclose(done.values[..., i], expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(done.values.sum(axis=0), np.stack([x.sum(axis=0)] * 2, axis=-1), rtol=0, atol=1e-13)
    assert done.traffic.rounds == 14
    assert done.traffic.messages == 2 * 2 * n
    assert done.traffic.bytes_sent == 2 * 2 * n * 10 * 8
    assert (done.traffic.control_rounds, done.traffic.control_bytes) == (0, 0)


@given(st.integers(2, 40), st.integers(1, 12), seeds)
@quick(40)
def test_the_mean_is_preserved_to_rounding(m: int, K: int, seed: int) -> None:
    place = deepca.topology.random_regular(m, 3, seed=0) if m % 2 == 0 and m > 4 else deepca.topology.path(m)
    x = np.random.default_rng(seed).standard_normal((m, 6)) * 10.0 ** np.arange(-3, 3)
    mixed = everyone(Pairwise(K, seed=seed)(network_of(place), x[mine(m)]), m)
    np.testing.assert_allclose(mixed.mean(axis=0), x.mean(axis=0), rtol=0, atol=1e-15 * np.abs(x).max(axis=0).max() * K)


def test_pairs_depend_on_the_position_only() -> None:
    """Another epoch, phase, iteration, mix or seed gives other pairs; a retry at the same position gives the same."""
    mixer, network = Pairwise(5), network_of(PLACE)
    seen = []
    for epoch, t, phase in ((0, 0, "step"), (0, 1, "step"), (0, 1, "restart"), (1, 1, "step"), (1, -1, "restart")):
        network.begin(epoch, t, phase)
        seen.append(mixer.pairs(PLACE, 5, network.position))
        mixer(network, np.ones((M, 1))[mine(M)])
        seen.append(mixer.pairs(PLACE, 5, network.position))
        network.begin(epoch, t, phase)
        np.testing.assert_array_equal(mixer.pairs(PLACE, 5, network.position), seen[-2])
    seen.append(Pairwise(5, seed=1).pairs(PLACE, 5, NOW))
    assert len({pairs.tobytes() for pairs in seen}) == len(seen)


# --------------------------------------------------------------------------------------------------------- contraction


@pytest.mark.simulator("statistics of many draws")
@pytest.mark.parametrize("name", ["erdos-renyi", "ring", "star", "complete"])
def test_the_expected_square_agrees_with_boyd(name: str) -> None:
    """Compare ``E‖x − x̄‖²`` of a mode of E[W] after one pair, and its bound after many, over 1500 seeds."""
    place = GRAPHS[name]()
    m = place.n_agents
    mean = np.mean([one_by_one(edge[None], m) for edge in place.edges], axis=0)
    values, vectors = np.linalg.eigh(mean)
    network, draws = SimulatedNetwork(place), 1500
    for mode in (0, m - 2):
        x = vectors[:, mode : mode + 1]
        left = np.array([_after(network, x, 1, seed) for seed in range(draws)])
        spread = left.std() / math.sqrt(draws)
        assert abs(left.mean() - values[mode]) <= 4.0 * spread + 1e-12
    slowest = vectors[:, m - 2 : m - 1]
    for K in (1, 4):
        n = pairs_in_rounds(K, m)
        left = np.array([_after(network, slowest, n, seed) for seed in range(draws)])
        bound = Pairwise().contraction(place, K)
        assert bound == pytest.approx(values[-2] ** (n / 2))
        # the slowest mode attains the bound, except for the part that pairs move to faster modes
        assert left.mean() <= bound**2 + 4.0 * left.std() / math.sqrt(draws)
        assert math.sqrt(left.mean()) >= 0.5 * bound


def _after(network: SimulatedNetwork, x: Array, n: int, seed: int) -> float:
    pairs = Pairwise(seed=seed).pairs(network.topology, n, NOW)[:n]
    y = network.average_pairs(x, pairs, 1)
    return float(((y - y.mean(axis=0)) ** 2).sum())


def test_rounds_are_chosen_by_the_contraction() -> None:
    mixer = Pairwise()
    for make in GRAPHS.values():
        place = make()
        if place.n_agents < 3:
            continue
        for accuracy in (0.5, 1e-3, 1e-10):
            K = mixer.rounds_for(place, accuracy)
            assert mixer.contraction(place, K) <= accuracy
            assert K == 1 or mixer.contraction(place, K - 1) > accuracy
        K = first_rounds(mixer, place)
        assert tracking_rate(mixer, place, K) <= 0.6
        p = responses(mixer, place, K)
        assert p.shape == (place.n_agents - 1,)
        assert (p == mixer.contraction(place, K)).all()
    assert mixer.contraction(GRAPHS["one agent"](), 1) == 0.0
    assert mixer.contraction(GRAPHS["two agents"](), 1) == 0.0
    large = deepca.topology.ring(1600)
    exact = 1.0 - (2.0 - 2.0 * math.cos(2.0 * math.pi / 1600)) / 3200
    assert mixer.contraction(large, 1000) == pytest.approx(exact**400_000, rel=1e-6)


# ---------------------------------------------------------------------------------------------------------- algorithms


@pytest.mark.parametrize("algorithm", [deepca.DeEPCA, deepca.AcceleratedDeEPCA])
@pytest.mark.parametrize(
    "place", [PLACE, deepca.topology.ring(M), deepca.topology.star(M), deepca.topology.path(M)], ids=lambda g: g.name
)
@pytest.mark.parametrize("rounds", ["auto", 40])
def test_every_agent_ends_with_the_pooled_answer(rounds: Any, place: deepca.Topology, algorithm: Any) -> None:
    stack, U, values = problem()
    W0 = deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    solver = algorithm(from_matrices(stack), W0, network_of(place), Pairwise(rounds))
    result = deepca.solve(solver, max_iter=2000, stop=Tolerance(1e-10))
    assert result.status.code == "converged"
    assert result.restarts == 0
    assert worst_tangent(U, result.W) <= 1e-10
    assert result.certificate is not None
    assert result.certificate.proves(1e-10)
    np.testing.assert_allclose(result.eigenvalues, np.broadcast_to(values, result.eigenvalues.shape), atol=1e-12)


def test_agreed_numbers_are_flooded_and_counted_separately() -> None:
    """Each iteration takes a diameter of control rounds, and the payload is that of the pairs alone."""
    stack, _, _ = problem()
    W0 = deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    place = deepca.topology.ring(M)
    network = network_of(place)
    solver = deepca.DeEPCA(from_matrices(stack), W0, network, Pairwise(30))
    result = deepca.solve(solver, max_iter=50, stop=Tolerance(1e-10), certify=False)
    sent = result.traffic
    assert sent.rounds == 30 * result.iterations
    if over_mpi():
        return
    assert sent.control_rounds == 6 * result.iterations
    n = pairs_in_rounds(30, M)
    assert sent.messages == result.iterations * (2 * n + 6 * place.n_messages)
    assert sent.bytes_sent - sent.control_bytes == result.iterations * 2 * n * D * K_TOP * 8


def test_a_retried_step_gives_the_same_result() -> None:
    """The pairs depend on the iteration, not on earlier attempts; without ``begin``, they differ."""
    stack, _, _ = problem()
    W0 = deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    for algorithm in (deepca.DeEPCA, deepca.AcceleratedDeEPCA):
        network = network_of(PLACE)
        solver: Any = algorithm(from_matrices(stack), W0, network, Pairwise(4))
        state = solver.init()
        for t in range(5):
            network.begin(0, t)
            once = solver.step(state)
            other = solver.step(state)
            network.begin(0, t)
            again = solver.step(state)
            np.testing.assert_array_equal(again.W, once.W)
            np.testing.assert_array_equal(again.S, once.S)
            assert np.abs(everyone(other.S - once.S, M)).max() > 1e-6
            state = once


def test_tracking_restarts_in_a_new_epoch() -> None:
    stack, U, _ = problem()
    W0 = deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    for algorithm in (deepca.DeEPCA, deepca.AcceleratedDeEPCA):
        network = network_of(PLACE)
        solver: Any = algorithm(from_matrices(stack), W0, network, Pairwise())
        announce = AtIteration(7, _announcer(network))
        result = deepca.solve(solver, max_iter=900, stop=Tolerance(1e-11), observers=[announce])
        assert result.restarts == 1
        assert worst_tangent(U, result.W) <= 1e-11


def _announcer(network: Network) -> Callable[[], None]:
    return lambda: network.announce_epoch(1)


@pytest.mark.simulator("a meter is a simulator")
def test_a_metered_network_counts_the_pairs_of_each_agent() -> None:
    network, mixer = MeteredNetwork(deepca.topology.star(6), LinkSpeed(0.1, 8e3)), Pairwise(4)
    x = np.ones((6, 10))
    mixer(network, x)
    pairs = mixer.pairs(network.topology, 4, SimulatedNetwork(network.topology).position)
    counts = np.bincount(pairs.ravel(), minlength=6)
    np.testing.assert_allclose(network.running.bytes, counts * 80.0)
    assert counts[0] == 12  # the centre takes part in every pair
    assert network.running.rounds == 4
    assert network.running.seconds == pytest.approx(4 * 0.1 + 12 * 80 * 8 / 8e3)


# ----------------------------------------------------------------------------------------------------------- bad input


def test_directed_and_changing_graphs_are_refused() -> None:
    stack, _, _ = problem()
    W0 = np.eye(D)[:, :2]
    for graph in (directed.ring(M), time_varying.matchings(PLACE)):
        with raises(MixingError, parameter="mix", value="Pairwise"):
            deepca.DeEPCA(from_matrices(stack), W0, network_of(graph), Pairwise(3))
        with raises(MixingError, parameter="mix", value="Pairwise"):
            Pairwise(3)(network_of(graph), stack[mine(M)])
        with raises(MixingError, parameter="mix", value="Pairwise"):
            Pairwise().rounds_for(graph, 0.1)


def test_invalid_settings_are_refused() -> None:
    with raises(MixingError, parameter="messages", value="float32"):
        Pairwise(3, messages="float32")
    for seed in (-1, 0.5, True, None):
        with raises(ParameterError, parameter="seed", value=seed):
            Pairwise(3, seed=seed)  # type: ignore[arg-type]
    with raises(ParameterError, parameter="rounds", value=0):
        Pairwise(0)
    with raises(MixingError, parameter="mixer"):
        response(Pairwise(2), PLACE, 2, [0.5])
