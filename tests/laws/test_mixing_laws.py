"""Laws of mixers: they are linear, preserve the mean and contract as proven; on random graphs and by closed forms."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.polynomial import chebyshev
from scipy import sparse

from deepca import AgentNetwork, Chebyshev, FastMix, Gossip, SimulatedNetwork, topology
from deepca._util.typing import csr
from deepca.consensus.mixers import Mixer, PositiveChebyshev, fastmix_eta
from deepca.consensus.rates import accelerated_rate, response
from deepca.errors import MixingError, ParameterError, TopologyError
from deepca.network import Network
from deepca.topology import Rule, Topology
from tests.laws.strategies import connected, mixed_topologies, quick, seeds, topologies
from tests.support.engines import ENGINES, at_every_agent, everyone, mine, network_of
from tests.support.errors import raises
from tests.support.problems import Array, close

KINDS: list[Callable[[int], Mixer]] = [FastMix, Gossip, Chebyshev, PositiveChebyshev]
PSD_RULES: tuple[Rule, ...] = ("paper", "lazy-metropolis")


def _one_by_one(mixer: Mixer, place: Topology, x: Array, K: int) -> Array:
    """Apply K rounds of ``network.gossip``, without the collapsed matrix."""
    m = place.n_agents
    return everyone(mixer.run(network_of(place), x[mine(m)], K), m)


def _mixed(mixer: Mixer, place: Topology, x: Array, t: int = 0) -> Array:
    """Mix x as a network does."""
    m = place.n_agents
    return everyone(mixer(network_of(place), x[mine(m)], t), m)


def _matrix(mixer: Mixer, place: Topology, K: int) -> Array:
    """Return the linear map that K rounds apply."""
    return _one_by_one(mixer, place, np.eye(place.n_agents), K)


def _polynomial(mixer: Mixer, place: Topology, K: int, values: Array) -> Array:
    """Compute ``p_K(λ)`` from closed forms instead of recurrences."""
    if isinstance(mixer, Gossip):
        return np.asarray(values**K, dtype=np.float64)
    if isinstance(mixer, Chebyshev):
        low, high = place.lambda_min, place.lambda2
        centre, half = (low + high) / 2, (high - low) / 2
        if half < 1e-12:
            return np.asarray(((values - centre) / (1 - centre)) ** K, dtype=np.float64)
        T, one = [0.0] * K + [1.0], float(isinstance(mixer, PositiveChebyshev))
        inside, at_one = chebyshev.chebval((values - centre) / half, T), chebyshev.chebval((1 - centre) / half, T)
        return np.asarray((inside + one) / (at_one + one), dtype=np.float64)
    root = math.sqrt(1 - place.lambda2**2)
    eta = (1 - root) / (1 + root)
    step = np.array([[0.0, 1.0], [0.0, 0.0]]) + np.zeros((len(values), 2, 2))
    step[:, 0, 0], step[:, 0, 1], step[:, 1, 0] = (1 + eta) * values, -eta, 1.0
    return np.asarray(np.linalg.matrix_power(step, K).sum(axis=2)[:, 0], dtype=np.float64)


def _ratio(x: Array, mixed: Array) -> float:
    """Compute ``‖x^K − x̄‖ / ‖x⁰ − x̄‖``."""
    return float(np.linalg.norm(mixed - x.mean(axis=0)) / np.linalg.norm(x - x.mean(axis=0)))


# ------------------------------------------------------------------------------------------ the laws


@given(mixed_topologies(), seeds)
@quick(60)
def test_mixing_is_linear(made: tuple[Topology, Mixer], seed: int) -> None:
    place, mixer = made
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, place.n_agents, 3, 2))
    a, b = rng.standard_normal(2)
    x, y = x[mine(place.n_agents)], y[mine(place.n_agents)]
    network = network_of(place)
    close(mixer(network, a * x + b * y), a * mixer(network, x) + b * mixer(network, y), atol=1e-12)


@given(mixed_topologies(), seeds)
@quick(60)
def test_mixing_preserves_the_mean(made: tuple[Topology, Mixer], seed: int) -> None:
    place, mixer = made
    x = np.random.default_rng(seed).standard_normal((place.n_agents, 3, 2))
    mixed = _mixed(mixer, place, x)
    close(mixed.mean(axis=0), x.mean(axis=0), atol=1e-13)
    same = np.broadcast_to(x[0], x.shape).copy()
    close(_mixed(mixer, place, same), same, atol=1e-13)


@given(mixed_topologies(min_agents=2, max_rounds=40), seeds)
@quick(120)
def test_mixing_contracts_at_least_as_proven(made: tuple[Topology, Mixer], seed: int) -> None:
    place, mixer = made
    K = mixer.rounds_at(0)
    bound = mixer.contraction(place, K)
    x = np.random.default_rng(seed).standard_normal((place.n_agents, 4))
    assert _ratio(x, _mixed(mixer, place, x)) <= bound * (1 + 1e-9) + 1e-14
    # the worst case over all x is the norm of the map without the mean
    worst = np.linalg.norm(_matrix(mixer, place, K) - 1.0 / place.n_agents, 2)
    assert worst <= bound * (1 + 1e-9) + 1e-14


@given(mixed_topologies(min_agents=2, max_rounds=30))
@quick(80)
def test_rounds_apply_the_polynomial_of_the_gossip_matrix_that_response_gives(made: tuple[Topology, Mixer]) -> None:
    place, mixer = made
    K = mixer.rounds_at(0)
    values, vectors = np.linalg.eigh(place.gossip_matrix)
    found = vectors.T @ _matrix(mixer, place, K) @ vectors
    expected = _polynomial(mixer, place, K, values)
    assert expected[-1] == pytest.approx(1.0, abs=1e-10)
    close(found, np.diag(expected), atol=1e-11)
    close(response(mixer, place, K, values), expected, atol=1e-11)


@given(topologies(min_agents=2), st.integers(1, 25))
@quick(60)
def test_gossip_and_chebyshev_bounds_are_attained(place: Topology, K: int) -> None:
    """The largest ``|p_K|`` over [λ_min, λ₂] equals the bound, for Chebyshev at both ends."""
    between = np.linspace(place.lambda_min, place.lambda2, 2001)
    for mixer in (Gossip(K), Chebyshev(K)):
        bound = mixer.contraction(place, K)
        largest = np.abs(_polynomial(mixer, place, K, between)).max()
        assert largest == pytest.approx(bound, rel=1e-8, abs=1e-14)
        # λ_min and λ₂ are eigenvalues, so some x attains the bound
        worst = np.linalg.norm(_matrix(mixer, place, K) - 1.0 / place.n_agents, 2)
        assert worst == pytest.approx(bound, rel=1e-8, abs=1e-13)


@given(topologies(min_agents=2), st.integers(1, 12), seeds)
@quick(40)
def test_no_polynomial_beats_chebyshev_on_its_interval(place: Topology, K: int, seed: int) -> None:
    assume(place.lambda2 - place.lambda_min > 1e-6)
    rng = np.random.default_rng(seed)
    between = np.linspace(place.lambda_min, place.lambda2, 501)
    roots = rng.uniform(place.lambda_min - 0.2, min(place.lambda2 + 0.2, 0.999), K)
    other = np.prod([(between - r) / (1 - r) for r in roots], axis=0)
    assert np.abs(other).max() >= Chebyshev(K).contraction(place, K) * (1 - 1e-4)
    assert Gossip(K).contraction(place, K) >= Chebyshev(K).contraction(place, K) * (1 - 1e-12)


@given(topologies(rules=PSD_RULES, min_agents=2), st.integers(1, 60))
@quick(60)
def test_the_fastmix_bound_holds_between_zero_and_lambda2(place: Topology, K: int) -> None:
    between = np.linspace(0.0, place.lambda2, 2001)
    found = np.abs(_polynomial(FastMix(K), place, K, between)).max()
    assert found <= FastMix(K).contraction(place, K) * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("lambda2", [1e-3, 0.1, 0.54, 0.9, 0.999, 0.999999])
def test_the_fastmix_bound_follows_its_formula_and_is_tight_to_a_factor_of_two(lambda2: float) -> None:
    place = topology.from_gossip_matrix(_two_valued(lambda2))
    root = math.sqrt(1 - lambda2**2)
    eta = (1 - root) / (1 + root)
    for K in (1, 2, 5, 20, 100):
        bound = FastMix(K).contraction(place, K)
        assert bound == pytest.approx(((K + 1) * (1 - math.sqrt(eta)) + math.sqrt(2 * eta)) * eta ** (K / 2), rel=1e-6)
        worst = np.abs(_polynomial(FastMix(K), place, K, np.linspace(0.0, lambda2, 4001))).max()
        assert worst <= bound * (1 + 1e-9)
        assert bound <= 2.0 * worst


def _two_valued(lambda2: float, m: int = 4) -> Array:
    """Return a gossip matrix on the complete graph with λ₂ = … = λ_m."""
    return lambda2 * np.eye(m) + (1 - lambda2) * np.full((m, m), 1.0 / m)


# ------------------------------------------------------------------------------ the paper's proposition


def test_the_printed_contraction_of_fastmix_is_false_for_small_K() -> None:
    """Proposition 1 claims ``(1 − √(1−λ₂))^K``; on a graph as in the experiments, all K up to 34 exceed that."""
    place = topology.from_gossip_matrix(_two_valued(0.54))
    x = np.array([[1.0], [-1.0], [0.0], [0.0]])
    for K in range(1, 61):
        printed = (1 - math.sqrt(1 - 0.54)) ** K
        run = _ratio(x, _one_by_one(FastMix(K), place, x, K))
        true = float(np.abs(_polynomial(FastMix(K), place, K, np.array([0.54])))[0])  # x is an eigenvector
        assert run == pytest.approx(true, rel=1e-6, abs=1e-16)  # numbers of size one are rounded to 1e-16
        assert true <= FastMix(K).contraction(place, K) * (1 + 1e-9)
        if K <= 34:
            assert true > printed
    assert _ratio(x, _one_by_one(FastMix(1), place, x, 1)) > 1.5 * (1 - math.sqrt(1 - 0.54))


def test_two_rounds_of_fastmix_on_a_path_of_fifty_expand() -> None:
    place = topology.path(50)
    worst = np.linalg.norm(_matrix(FastMix(2), place, 2) - 1 / 50, 2)
    assert worst > 1.0
    x = np.linalg.eigh(place.gossip_matrix)[1][:, :-1]  # all directions without the mean
    assert max(_ratio(x[:, [i]], _one_by_one(FastMix(2), place, x[:, [i]], 2)) for i in range(49)) > 1.0
    assert worst <= FastMix(2).contraction(place, 2)
    assert (1 - math.sqrt(1 - place.lambda2)) ** 2 < 1.0  # what the proposition claims


def test_fastmix_with_negative_eigenvalues_expands_more_on_longer_rings() -> None:
    """No bound on the expansion holds for all graphs, so FastMix is refused there."""
    largest = []
    for m in (20, 80, 320):
        place = topology.ring(m, rule="best-constant")
        sizes = [abs(float(response(FastMix(1), place, K, [place.lambda_min])[0])) for K in range(1, 2 * m)]
        largest.append(max(sizes))
    assert largest[0] > 2.0
    assert largest[1] > 3.0 * largest[0]
    assert largest[2] > 3.0 * largest[1]


# ------------------------------------------------------------------------------------------ rounds needed


@given(topologies(rules=PSD_RULES, min_agents=2), st.sampled_from(KINDS), st.floats(1e-14, 0.9))
@quick(80)
def test_rounds_for_is_the_smallest_number_that_suffices(
    place: Topology, kind: Callable[[int], Mixer], accuracy: float
) -> None:
    mixer = kind(1)
    K = mixer.rounds_for(place, accuracy)
    assert mixer.contraction(place, K) <= accuracy
    assert K == 1 or mixer.contraction(place, K - 1) > accuracy
    worst = np.linalg.norm(_matrix(mixer, place, K) - 1.0 / place.n_agents, 2)
    assert worst <= accuracy * (1 + 1e-9) + 1e-13


@pytest.mark.parametrize("kind", KINDS)
def test_one_agent_and_the_complete_graph_need_one_round(kind: Callable[[int], Mixer]) -> None:
    assert kind(3).rounds_for(topology.complete(1), 1e-12) == 1
    assert kind(3).rounds_for(topology.complete(9), 1e-12) == 1


# ------------------------------------------------------------------------------------------ special graphs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("K", [1, 2, 7])
@pytest.mark.parametrize("m", [2, 3, 10])
def test_the_complete_graph_is_exact_after_one_or_more_rounds(m: int, K: int, kind: Callable[[int], Mixer]) -> None:
    place = topology.complete(m)
    x = np.random.default_rng(m).standard_normal((m, 5, 2))
    mixed = _mixed(kind(K), place, x)
    close(mixed, np.broadcast_to(x.mean(axis=0), x.shape), atol=1e-14)
    assert kind(K).contraction(place, K) == 0.0
    assert fastmix_eta(place.lambda2) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_agent_keeps_its_values(kind: Callable[[int], Mixer]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 4, 2))
    for K in (1, 2, 3, 10):
        close(kind(K)(network_of(topology.ring(1)), x), x, rtol=1e-14)
        alone = kind(K)(AgentNetwork(topology.ring(1), 0), x[0])
        close(alone, x[0], rtol=1e-14)
        assert kind(K).contraction(topology.ring(1), K) == 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lambda2", [1e-12, 1e-10, 1e-8, 1e-6, 1e-4])
def test_bounds_hold_for_graphs_that_are_almost_complete(lambda2: float, kind: Callable[[int], Mixer]) -> None:
    place = topology.from_gossip_matrix(_two_valued(lambda2))
    x = np.array([[1.0], [-1.0], [0.0], [0.0]])
    assert _ratio(x, _mixed(kind(1), place, x)) <= kind(1).contraction(place, 1) * (1 + 1e-6) + 1e-15


def test_eta_is_the_formula_of_the_paper() -> None:
    for lambda2 in (0.0, 0.1, 0.5437, 0.99, 0.999999, -0.3):
        root = math.sqrt(1 - lambda2**2)
        assert fastmix_eta(lambda2) == pytest.approx((1 - root) / (1 + root), rel=1e-12, abs=1e-16)


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("rule", ["metropolis", "best-constant", "max-degree"])
def test_fastmix_refuses_indefinite_matrices(rule: Rule) -> None:
    place = topology.ring(8, rule=rule)
    with raises(MixingError, parameter="mix", value="FastMix"):
        FastMix(3)(network_of(place), np.ones((8, 2, 1))[mine(8)])
    with raises(MixingError, parameter="mix", value="FastMix"):
        FastMix(3).check(place)


def test_fastmix_gives_no_bound_for_indefinite_matrices() -> None:
    """Its bound is only proven for ``𝐋 ⪰ 0``, so elsewhere it raises an error instead of returning a wrong number."""
    place = topology.ring(8, rule="best-constant")
    worst = np.linalg.norm(_matrix(FastMix(5), place, 5) - 1 / 8, 2)
    root = math.sqrt(1 - place.lambda2**2)
    eta = (1 - root) / (1 + root)
    assert worst > (6 * (1 - math.sqrt(eta)) + math.sqrt(2 * eta)) * eta**2.5
    with raises(MixingError, parameter="mix", value="FastMix"):
        FastMix(5).contraction(place, 5)
    with raises(MixingError, parameter="mix", value="FastMix"):
        FastMix(5).rounds_for(place, 1e-3)


@given(connected(min_agents=2))
@quick(30)
def test_chebyshev_and_gossip_work_with_every_rule(made: tuple[int, list[tuple[int, int]]]) -> None:
    rules: tuple[Rule, ...] = ("metropolis", "best-constant", "max-degree")
    for rule in rules:
        place = topology.from_edges(*made, rule=rule)
        x = np.random.default_rng(0).standard_normal((place.n_agents, 2))
        for mixer in (Gossip(4), Chebyshev(4)):
            assert _ratio(x, _mixed(mixer, place, x)) <= mixer.contraction(place, 4) * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [0, -1, 2.0, 2.5, True, None, "3", float("nan")])
def test_invalid_numbers_of_rounds_are_refused(bad: object, kind: Callable[[object], Mixer]) -> None:
    with pytest.raises(ParameterError) as caught:
        kind(bad)
    assert caught.value.parameter == "rounds"
    assert caught.value.value is bad


@pytest.mark.parametrize("bad", [0, -2, 1.5, None])
def test_a_schedule_that_returns_an_invalid_number_is_refused_with_the_iteration(bad: int) -> None:
    mixer = Gossip(lambda t: 2 if t < 3 else bad)
    network, x = network_of(topology.ring(4)), np.ones((4, 2, 1))[mine(4)]
    mixer(network, x, 2)
    with raises(ParameterError, parameter="rounds", value=bad) as caught:
        mixer(network, x, 3)
    assert "iteration 3" in caught.value.expected


# ------------------------------------------------------------------------------------------ schedules


@pytest.mark.parametrize("kind", [FastMix, Gossip, Chebyshev])
def test_a_schedule_sets_the_rounds_of_each_iteration(kind: Callable[..., Mixer]) -> None:
    place = topology.ring(7)
    scheduled = kind(lambda t: 1 + t // 2)
    x = np.random.default_rng(0).standard_normal((7, 3, 2))
    for t in range(7):
        network = network_of(place)
        mixed = everyone(scheduled(network, x[mine(7)], t), 7)
        close(mixed, _one_by_one(kind(1), place, x, 1 + t // 2), atol=1e-14)
        assert network.traffic.rounds == 1 + t // 2
        assert scheduled.rounds_at(t) == 1 + t // 2
    fixed = scheduled.with_rounds(5)
    assert fixed.rounds_at(0) == fixed.rounds_at(9) == 5


def test_numbers_of_rounds_may_be_numpy_integers() -> None:
    x = np.random.default_rng(0).standard_normal((5, 2, 1))[mine(5)]
    network = network_of(topology.ring(5))
    close(Gossip(np.int64(3))(network, x), Gossip(3)(network, x), atol=0.0)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ engines


@pytest.mark.simulator(reason="only the simulator collapses rounds")
@given(mixed_topologies(max_rounds=20), seeds)
@quick(60)
def test_the_collapsed_map_equals_the_rounds(made: tuple[Topology, Mixer], seed: int) -> None:
    place, mixer = made
    K = mixer.rounds_at(0)
    x = np.random.default_rng(seed).standard_normal((place.n_agents, 4, 2))
    together, stepwise = SimulatedNetwork(place), SimulatedNetwork(place)
    mixed = mixer(together, x)
    close(mixed, mixer.run(stepwise, x, K), atol=1e-13)
    assert together.traffic == stepwise.traffic
    assert together.traffic.rounds == K
    assert together.traffic.messages == 2 * place.n_edges * K
    assert together.traffic.bytes_sent == together.traffic.messages * 8 * 8
    # the memory order does not matter: products come with their last axes swapped
    swapped = np.asarray(np.swapaxes(np.ascontiguousarray(np.swapaxes(x, 1, 2)), 1, 2))
    close(mixer(together, swapped), mixed, atol=1e-13)


@pytest.mark.simulator(reason="checks the matrix that the simulator caches")
@pytest.mark.parametrize("kind", KINDS)
def test_large_sparse_graphs_are_mixed_without_a_dense_matrix(kind: Callable[[int], Mixer]) -> None:
    """On a ring the discrete Fourier transform diagonalises 𝐋, which gives an independent answer."""
    m, K = 2500, 6
    place = topology.ring(m)
    x = np.random.default_rng(0).standard_normal((m, 2, 1))
    tracemalloc.start()
    network = SimulatedNetwork(place)
    mixed = kind(K)(network, x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < m * m  # bytes; a dense matrix takes eight times as many
    values = 1 - (2 - 2 * np.cos(2 * np.pi * np.arange(m) / m)) / 4
    p = _polynomial(kind(K), place, K, values)
    expected = np.fft.ifft(p[:, None, None] * np.fft.fft(x, axis=0), axis=0).real
    close(mixed, expected, atol=1e-10)
    assert network.traffic.messages == 2 * m * K


@pytest.mark.simulator(reason="checks the matrix that the simulator caches")
@pytest.mark.parametrize("kind", KINDS)
def test_small_dense_graphs_are_collapsed_once(kind: Callable[[int], Mixer], monkeypatch: pytest.MonkeyPatch) -> None:
    place = topology.erdos_renyi(20, 0.5, seed=0)
    network, runs = SimulatedNetwork(place), list[int]()
    x = np.random.default_rng(0).standard_normal((20, 3, 2))
    real = type(kind(4)).run

    def run(mixer: Mixer, network: Network, x: Array, K: int, /) -> Array:
        runs.append(K)
        return real(mixer, network, x, K)

    monkeypatch.setattr(type(kind(4)), "run", run)
    for _ in range(3):
        kind(4)(network, x)
    assert runs == [4]
    assert network.traffic.rounds == 12


# ------------------------------------------------------------------------------------------ weights of one round


def _matching(m: int) -> Array:
    """Return weights by which agents 2i and 2i + 1 average with each other."""
    L = np.eye(m)
    for j in range(0, m - 1, 2):
        L[j : j + 2, j : j + 2] = 0.5
    return L


def test_weights_of_one_round_replace_the_gossip_matrix_and_zeros_send_nothing() -> None:
    m = 7
    place = topology.complete(m)
    L = _matching(m)
    weights = csr(np.where(L == 0.0, 1.0, L))
    weights.data[weights.data == 1.0] = 0.0  # stored zeros, including the last agent's own weight
    weights = csr(weights + sparse.csr_array(([1.0], ([m - 1], [m - 1])), shape=(m, m)))
    x = np.random.default_rng(0).standard_normal((m, 3, 2))
    for kind in ENGINES:
        done = at_every_agent(kind, place, lambda network: network.gossip(x[network.local], weights))
        close(done.values, np.einsum("ij,jdk->idk", weights.toarray(), x), atol=1e-14)
        assert done.traffic.rounds == 1
        assert done.traffic.messages == 6  # three pairs, both ways
        assert done.traffic.bytes_sent == 6 * 3 * 2 * 8


def test_explicit_zeros_send_nothing_on_any_engine() -> None:
    place = topology.ring(4)
    weights = csr(place.gossip_sparse.copy())
    edge = (np.array([0, 1]), np.array([1, 0]))
    dense = weights.toarray()
    dense[edge] = 0.0
    dense[0, 0], dense[1, 1] = 1 - dense[0, 3], 1 - dense[1, 2]
    full = csr(place.gossip_matrix + 1.0)  # every pair is stored …
    full.data[:] = dense[np.nonzero(full.toarray())]  # … and most are zero
    assert full.nnz == 16
    x = np.random.default_rng(0).standard_normal((4, 2, 1))
    for kind in ENGINES:
        sent = np.zeros(4, dtype=np.int64)

        def work(network: Network, sent: npt.NDArray[np.int64] = sent) -> Array:
            y = network.gossip(x[network.local], full)
            sent[network.local] = network.traffic.messages
            return y

        done = at_every_agent(kind, place, work)
        close(done.values, np.einsum("ij,jdk->idk", dense, x), atol=1e-14)
        assert done.traffic.messages == 6
        assert done.traffic.bytes_sent == 6 * 16
        if kind == "threads":
            assert sent.tolist() == [1, 1, 2, 2]


def test_one_way_weights_send_one_way() -> None:
    place = topology.path(3)
    weights = csr(np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]))
    x = np.arange(6.0).reshape(3, 2, 1)
    for kind in ENGINES:
        sent = np.zeros(3, dtype=np.int64)

        def work(network: Network, sent: npt.NDArray[np.int64] = sent) -> Array:
            y = network.gossip(x[network.local], weights)
            sent[network.local] = network.traffic.messages
            return y

        done = at_every_agent(kind, place, work)
        close(done.values, np.einsum("ij,jdk->idk", weights.toarray(), x), atol=1e-15)
        assert done.traffic.messages == 1
        if kind == "threads":
            assert sent.tolist() == [1, 0, 0]


def test_weights_outside_the_graph_are_refused_with_the_pair() -> None:
    place = topology.path(3)
    weights = csr(np.array([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]))
    for kind in ENGINES:
        with pytest.raises(TopologyError, match=r"pair \(0, 2\)"):
            at_every_agent(kind, place, lambda network: network.gossip(np.ones((3, 1, 1))[network.local], weights))


def test_weights_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"\(4, 4\); expected \(3, 3\)"):
        network_of(topology.path(3)).gossip(np.ones((3, 1, 1))[mine(3)], csr(np.eye(4)))


def test_a_mixer_with_its_own_weights_has_no_response() -> None:
    class Matching(Gossip):
        def run(self, network: object, x: Array, K: int, /) -> Array:
            return network.gossip(x, csr(np.eye(4)))  # type: ignore[attr-defined, no-any-return]

    with raises(MixingError, parameter="mixer"):
        response(Matching(1), topology.ring(4), 1, [0.5])


# ------------------------------------------------------------------------------------------ positive response


@given(topologies(min_agents=2, max_agents=12), st.integers(1, 12))
@quick(60)
def test_positive_chebyshev_is_nowhere_negative_and_attains_its_bound(place: Topology, K: int) -> None:
    """``0 ≤ p_K ≤ 2ε/(1+ε)`` holds on [λ_min, λ₂], and the upper bound is attained."""
    mixer = PositiveChebyshev(K)
    grid = np.linspace(place.lambda_min, place.lambda2, 400)
    p = response(mixer, place, K, grid)
    bound = mixer.contraction(place, K)
    assert p.min() >= -1e-12
    assert p.max() <= bound * (1 + 1e-9) + 1e-12
    assert response(mixer, place, K, 1.0)[0] == pytest.approx(1.0)
    if place.lambda2 - place.lambda_min > 1e-6:
        assert p.max() == pytest.approx(bound, rel=1e-6)


def test_the_accelerated_rate_is_that_of_its_recurrence() -> None:
    """Run the recurrence and compare the long-term decay of the worst eigenvalue."""
    place, K, g = topology.ring(12), 6, 2.0
    for mixer in (Chebyshev(K), PositiveChebyshev(K)):
        p = response(mixer, place, K, np.linalg.eigvalsh(place.gossip_matrix)[:-1])
        worst = 0.0
        for one in p:
            for edge in np.linspace(0.0, 1.0, 9):
                x, before, s, sizes = 1.0, 0.3, 0.7, []
                for _ in range(400):
                    s = one * (s + edge * (x - before))
                    x, before = (s - x / 2 - before / (4 * g)) * 4 / g, x
                    size = abs(x) + abs(before) + abs(s)
                    sizes.append(size)
                    x, before, s = x / size, before / size, s / size
                worst = max(worst, float(np.exp(np.mean(np.log(sizes[200:])))))
        assert accelerated_rate(mixer, place, K, g) == pytest.approx(worst, rel=0.02)
