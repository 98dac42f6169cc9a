"""Test time-varying networks: every round preserves the sum, and results equal those on static networks."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import deepca
from deepca._util.typing import Csr, csr
from deepca.consensus.averaging import average, common_average, common_average_and_derive
from deepca.consensus.exact import exact_average
from deepca.consensus.mixer_state import PushSum
from deepca.errors import (
    DisconnectedError,
    InvalidInput,
    MassError,
    MixingError,
    NetworkError,
    ParameterError,
    TopologyError,
)
from deepca.network import Network, SimulatedNetwork
from deepca.network.sums import Addend
from deepca.operators import from_matrices
from deepca.solver.stopping import Tolerance
from deepca.topology import directed, time_varying
from deepca.topology.time_varying import TimeVarying
from tests.laws.strategies import quick
from tests.support.engines import ENGINES, at_every_agent, mine, network_of
from tests.support.errors import raises
from tests.support.helpers import AtIteration, worst_tangent
from tests.support.problems import spectrum, spectrum_problem
from tests.support.seeds import law_seeds

Array = npt.NDArray[np.float64]
M, D, K_TOP = 12, 24, 3
BASE = deepca.topology.erdos_renyi(M, 0.5, seed=2)
NETWORKS: dict[str, TimeVarying] = {
    "periodic": time_varying.periodic([deepca.topology.ring(M), deepca.topology.star(M), BASE]),
    "matchings": time_varying.matchings(BASE, seed=1),
    "matchings of a ring": time_varying.matchings(deepca.topology.ring(M), seed=2),
    "one peer": time_varying.one_peer(M),
    "half of the links fail": time_varying.failing(BASE, 0.5, seed=3),
    "most links of a torus fail": time_varying.failing(deepca.topology.torus(3, 4), 0.7, seed=4),
    "directed, periodic": time_varying.periodic([directed.random_digraph(M, 0.3, seed=s) for s in range(3)]),
}


def problem(seed: int = 0) -> tuple[Array, Array, Array]:
    stack = spectrum_problem(M, D, spectrum(D, K_TOP, gap=0.7, decay=0.8), seed)
    values, vectors = scipy.linalg.eigh(stack.mean(axis=0))
    return stack, np.ascontiguousarray(vectors[:, ::-1][:, :K_TOP]), values[::-1][:K_TOP]


# ----------------------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize("name", NETWORKS)
def test_every_round_preserves_the_sum_and_uses_existing_links(name: str) -> None:
    network = NETWORKS[name]
    for r in range(80):
        weights = network.at(r).toarray()
        assert network.at(r) is network.at(r)
        np.testing.assert_allclose(weights.sum(axis=0), 1.0, rtol=1e-14)
        assert weights.min() >= 0.0
        if not network.directed:
            np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-14)
        used = (weights != 0.0) & ~np.eye(M, dtype=bool)
        assert network.messages_at(r) == used.sum()


def test_matchings_pair_agents_and_failures_have_the_given_frequency() -> None:
    allowed = BASE.adjacency.toarray() > 0
    for r in range(50):
        weights = NETWORKS["matchings"].at(r).toarray()
        np.testing.assert_array_equal(weights, weights.T)
        partners = (weights != 0.0) & ~np.eye(M, dtype=bool)
        assert partners.sum(axis=1).max() == 1
        assert not (partners & ~allowed).any()
        assert set(np.unique(weights)) <= {0.0, 0.5, 1.0}
    up = [NETWORKS["half of the links fail"].messages_at(r) for r in range(400)]
    share = np.mean(up) / BASE.n_messages
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(400 * BASE.n_edges)
    whole = time_varying.failing(BASE, 0.0).at(5).toarray()
    np.testing.assert_allclose(whole, BASE.gossip_matrix, atol=1e-15)


@pytest.mark.parametrize("m", [1, 2, 3, 8, 13, 16])
def test_one_peer_sends_one_message_per_agent(m: int) -> None:
    network = time_varying.one_peer(m)
    hops = (m - 1).bit_length()
    x = np.random.default_rng(0).standard_normal((m, 3))
    y = x
    for r in range(hops):
        assert network.messages_at(r) == (m if m > 1 else 0)
        y = network.at(r).toarray() @ y
    if m & (m - 1) == 0:
        np.testing.assert_allclose(y, np.broadcast_to(x.mean(axis=0), x.shape), atol=1e-15)
    assert network.flood_rounds <= hops


@given(st.integers(2, 7), st.integers(0, 1000), st.integers(0, 30))
@quick(30)
def test_flooding_takes_exactly_as_many_rounds_as_reported(m: int, seed: int, start: int) -> None:
    network = time_varying.matchings(deepca.topology.complete(m), seed=seed)
    rounds = network.flood_rounds_from(start)
    known = [{j} for j in range(m)]
    for r in range(start, start + rounds):
        assert any(len(each) < m for each in known)
        weights = network.at(r).toarray()
        known = [set().union(*(known[i] for i in np.flatnonzero(weights[j]))) for j in range(m)]
    assert all(len(each) == m for each in known)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_contraction_matches_the_product_of_the_rounds(name: str) -> None:
    network = NETWORKS[name]
    found = [network.contraction(K) for K in (1, 4, 16, 64)]
    assert all(after < before for before, after in pairwise(found[1:]))
    product = np.eye(M)
    for r in range(16):
        product = network.at(r).toarray() @ product
    x = np.random.default_rng(0).standard_normal((M, 100))
    ratio = product @ x / product.sum(axis=1, keepdims=True)
    left = np.linalg.norm(ratio - x.mean(axis=0), axis=0) / np.linalg.norm(x - x.mean(axis=0), axis=0)
    assert left.max() <= found[2] * (1 + 1e-12)
    assert 0.0 < network.lambda2 < 1.0


def test_the_search_for_rounds_reuses_products() -> None:
    class Counted(TimeVarying):
        asked = 0

        def at(self, r: int) -> Csr:
            type(self).asked += 1
            return super().at(r)

    slow = time_varying.failing(deepca.topology.ring(M), 0.8, seed=5)
    known = {field.name: getattr(slow, field.name) for field in fields(slow)}
    counted = Counted(**known)
    K = deepca.Gossip().rounds_for(counted, 1e-10)
    assert K > 500
    # from three starts, at most 2K and half of that in between; and few rounds from many starts
    assert Counted.asked <= 3 * 3 * K + 64 * 64
    for made in (K - 1, K):
        left = []
        for start in (0, 7, 23):
            product = np.eye(M)
            for r in range(start, start + made):
                product = np.asarray(slow.at(r) @ product)
            left.append(float(np.linalg.norm(product - 1.0 / M, 2)))
        assert (max(left) <= 1e-10) is (made == K)


@pytest.mark.parametrize("seed", [140, 155, 160])
def test_a_common_mean_is_exact_where_rounds_are_worse_than_those_sampled(seed: int) -> None:
    """Windows of four rounds leave 1e-4 of the error when sampled, but nearly all of it while most links are down."""
    network = time_varying.failing(deepca.topology.complete(4), 0.5, seed=seed)
    x = np.arange(8.0).reshape(4, 2)
    np.testing.assert_allclose(common_average(SimulatedNetwork(network), x), x.mean(axis=0), rtol=1e-14)


@pytest.mark.parametrize("seed", [None, -1, 0.5])
def test_invalid_seeds_are_rejected(seed: Any) -> None:
    for make in (time_varying.matchings, lambda base, seed: time_varying.failing(base, 0.1, seed=seed)):
        with raises(ParameterError, parameter="seed", value=seed):
            make(BASE, seed=seed)


def test_arguments_of_the_wrong_type_are_rejected() -> None:
    odd: Any
    for odd in ("ring", ["ring"], BASE):
        with raises(InvalidInput, parameter="graphs", value=odd):
            time_varying.periodic(odd)
    for odd in ("ring:5", None):
        with raises(InvalidInput, parameter="base", value=odd):
            time_varying.matchings(odd)
    odd = "0.1"
    with raises(InvalidInput, parameter="p", value="0.1"):
        time_varying.failing(BASE, odd)
    for odd in ("3", 2.5):
        for make in (directed.ring, directed.exponential):
            with raises(TopologyError, value=odd):
                make(odd)


def test_a_common_mean_is_recomputed_or_raises_where_messages_get_lost() -> None:
    base, x = deepca.topology.complete(4), np.arange(8.0).reshape(4, 2)
    ends = SimulatedNetwork(time_varying.lossy(base, 0.3, seed=2, until=50))
    np.testing.assert_allclose(common_average(ends, x), x.mean(axis=0), rtol=1e-13)
    with pytest.raises(NetworkError):
        common_average(SimulatedNetwork(time_varying.lossy(base, 0.3, seed=2)), x)


@pytest.mark.simulator("a network that loses messages")
def test_eigenpairs_blame_the_network_for_lost_messages() -> None:
    A = from_matrices([np.diag([4.0, 2.0, 1.0]) * (j + 1) for j in range(4)])
    with pytest.raises(NetworkError):
        deepca.eigenpairs(A, SimulatedNetwork(time_varying.lossy(deepca.topology.ring(4), 0.05, seed=1)), 2)


@pytest.mark.parametrize(("base", "share"), [(deepca.topology.ring(3), 0.3), (deepca.topology.complete(4), 0.3)])
def test_the_number_of_rounds_does_not_rely_on_a_lucky_round(base: deepca.Topology, share: float) -> None:
    network = time_varying.failing(base, share, seed=0)
    K = deepca.Gossip().rounds_for(network, 1e-12)
    for start in range(40):
        left = np.eye(network.n_agents)
        for r in range(start, start + K):
            left = network.at(r).toarray() @ left
        assert np.linalg.norm(left - left.mean(axis=0), 2) <= 1e-11


@pytest.mark.simulator("many runs")
@pytest.mark.parametrize("seed", [34, 35, 36, 37, 38, 39])
def test_accelerated_iterations_converge_where_links_fail(seed: int) -> None:
    """The A_j are ten times as large as their mean; DeEPCA converges for all of these seeds."""
    rng = np.random.default_rng(seed)
    apart = rng.normal(size=(3, 4, 4))
    apart = apart + apart.transpose(0, 2, 1)
    stack = np.diag([4.0, 1.0, 0.5, 0.25]) + 10.0 * (apart - apart.mean(axis=0))
    network = SimulatedNetwork(time_varying.failing(deepca.topology.ring(3), 0.4, seed=seed))
    found = deepca.eigenpairs(stack, network, 1, algorithm="accelerated", max_iter=1500)
    assert found.status.code == "converged"
    np.testing.assert_allclose(found.values, 4.0, rtol=1e-9)


def average_over_lossy_links(seed: int) -> tuple[float, float]:
    """Return the error of an average over links that lose few messages, and its bound; infinite if it is refused."""
    base = deepca.topology.erdos_renyi(6, 0.6, seed=1)
    x = np.random.default_rng(seed).standard_normal((6, 40))
    network = SimulatedNetwork(time_varying.lossy(base, 1e-3, seed=seed))
    try:
        found, _ = common_average_and_derive(network, [Addend("numbers", x)], lambda mean: mean[:1], 1)
    except NetworkError:
        return np.inf, np.inf
    largest = float(np.linalg.norm(x, axis=-1).max())
    return float(np.linalg.norm(found.mean - x.mean(axis=0))), found.error_bound(largest) + found.error_norm


@pytest.mark.simulator("a network that loses messages")
@pytest.mark.parametrize("seed", law_seeds(12))
def test_the_bound_of_an_average_includes_lost_messages(seed: int) -> None:
    error, bound = average_over_lossy_links(seed)
    assert error <= bound


@pytest.mark.simulator("a network that loses messages")
def test_an_average_that_lost_messages_is_repeated() -> None:
    """So most averages are exact, although single attempts lose messages."""
    errors = [average_over_lossy_links(seed)[0] for seed in range(30)]
    assert np.median(errors) <= 1e-12


def test_invalid_schedules_are_rejected() -> None:
    with raises(InvalidInput, parameter="graphs", value=[4, 5]):
        time_varying.periodic([deepca.topology.ring(4), deepca.topology.ring(5)])
    with raises(InvalidInput, parameter="graphs", value=[]):
        time_varying.periodic([])
    with raises(InvalidInput, parameter="graphs", value=NETWORKS["one peer"].name):
        time_varying.periodic([NETWORKS["one peer"]])
    with raises(InvalidInput, parameter="base", value=directed.ring(4).name):
        time_varying.matchings(directed.ring(4))
    with raises(InvalidInput, parameter="p", value=1.0):
        time_varying.failing(BASE, 1.0)
    with pytest.raises(TopologyError):
        _ = NETWORKS["one peer"].eigenvalues
    apart = csr(np.eye(4))
    alone = TimeVarying("apart", "changing", csr(np.full((4, 4), 0.25)), 0.5, -0.5, lambda r: apart)
    with pytest.raises(DisconnectedError):
        alone.flood_rounds_from(0)
    leaking = TimeVarying(
        "leaking", "changing", csr(np.eye(4)), 0.5, -0.5, lambda r: csr(np.diag([1.0, 1.0, 0.9, 1.0]))
    )
    with raises(MassError, agent=2, value=0.9):
        leaking.at(3)
    wrong = TimeVarying("wrong", "changing", csr(np.eye(4)), 0.5, -0.5, lambda r: csr(np.eye(3)))
    with raises(TopologyError, value=(3, 3)):
        wrong.at(0)


# -------------------------------------------------------------------------------------------------------------- mixing


def test_mixers_with_memory_and_exact_ones_are_rejected() -> None:
    network = network_of(NETWORKS["matchings"])
    x = np.ones((M, 3))[mine(M)]
    for mixer in (deepca.FastMix(3), deepca.Chebyshev(3), deepca.PositiveChebyshev(3)):
        with pytest.raises(MixingError):
            mixer(network, x)
    with pytest.raises(MixingError):
        exact_average(network, x)
    with pytest.raises(MixingError):
        deepca.Gossip(3, messages="float16")(network, x)
    stack, _, _ = problem()
    krylov = deepca.BlockKrylov(from_matrices(stack), np.eye(D)[:, :2], network)
    with pytest.raises(MixingError):
        deepca.solve(krylov, max_iter=3)


def test_mixers_with_memory_are_slow_or_diverge() -> None:
    """Over matchings of a ring FastMix is slower than plain averaging, and unbounded with more momentum."""
    network = NETWORKS["matchings of a ring"]
    start = np.random.default_rng(0).standard_normal((M, 1))

    def apart(eta: float) -> float:
        x = before = start
        for r in range(200):
            y = network.at(r).toarray() @ x
            x, before = y + eta * (y - before), x
        return float(np.linalg.norm(x - x.mean()))

    plain = apart(0.0)
    assert plain < 1e-5
    assert apart(deepca.consensus.mixers.fastmix_eta(network.lambda2)) > 100.0 * plain
    assert apart(0.7) > 1e6


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", NETWORKS)
def test_mixing_and_reducing_use_consecutive_rounds_on_every_engine(name: str, kind: str) -> None:
    """All agents run the same rounds in sequence, and traffic counts their messages."""
    graph = NETWORKS[name]
    x = np.random.default_rng(1).standard_normal((M, 4))

    def work(network: Network) -> Array:
        mixed = deepca.Gossip(9)(network, x[network.local])
        high = network.reduce(x[network.local], "max")
        again = deepca.Gossip(2)(network, x[network.local])
        return np.concatenate([mixed, np.broadcast_to(high, mixed.shape), again], axis=-1)

    done = at_every_agent(kind, graph, work)
    np.testing.assert_array_equal(done.values[:, 4:8], np.broadcast_to(x.max(axis=0), (M, 4)))
    product = np.eye(M)
    for r in range(9):
        product = graph.at(r).toarray() @ product
    np.testing.assert_allclose(done.values[:, :4], product @ x / product.sum(axis=1, keepdims=True), atol=1e-14)
    if kind == "mpi":
        return  # agrees by other means
    flood = graph.flood_rounds_from(9)
    assert (done.traffic.rounds, done.traffic.control_rounds) == (11, flood)
    assert done.traffic.messages == sum(graph.messages_at(r) for r in range(11 + flood))
    last = graph.at(10 + flood).toarray() @ graph.at(9 + flood).toarray()
    np.testing.assert_allclose(done.values[:, 8:], last @ x / last.sum(axis=1, keepdims=True), atol=1e-14)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_average_reports_its_error(name: str) -> None:
    network = network_of(NETWORKS[name])
    assert not network.reliable
    x = np.random.default_rng(3).standard_normal((M, 6))
    rounds = deepca.Gossip().rounds_for(NETWORKS[name], 1e-4)
    found = average(network, x[mine(M)], rounds, lambda averaged: averaged.error_norm < 1e-9)
    assert (np.abs(found.mean - x.mean(axis=0)) <= found.error + 1e-15).all()
    assert found.error_norm < 1e-9


# ---------------------------------------------------------------------------------------------------------- algorithms


@pytest.mark.parametrize("algorithm", [deepca.DeEPCA, deepca.AcceleratedDeEPCA])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_agent_obtains_the_pooled_result(name: str, algorithm: Any) -> None:
    stack, U, values = problem()
    W0 = deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    solver = algorithm(from_matrices(stack), W0, network_of(NETWORKS[name]))
    result = deepca.solve(solver, max_iter=2000, stop=Tolerance(1e-12))
    assert result.status.code == "converged"
    assert worst_tangent(U, result.W) <= 1e-12
    np.testing.assert_allclose(result.eigenvalues, np.broadcast_to(values, result.eigenvalues.shape), atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_tracking_invariant_holds_in_every_iteration(name: str) -> None:
    stack, _, _ = problem()
    solver = deepca.DeEPCA(
        from_matrices(stack),
        deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1),
        SimulatedNetwork(NETWORKS[name]),
        deepca.Gossip(3),
    )
    state = solver.init()
    for _ in range(100):
        state = solver.step(state)
        assert np.abs(state.excess.mean(axis=0)).max() <= 1e-13
        assert isinstance(state.memory, PushSum) == NETWORKS[name].directed


def test_a_new_epoch_has_its_own_rounds() -> None:
    """So agents that were interrupted in different rounds agree again on the current one."""
    stack, U, _ = problem()
    W0 = deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    network = network_of(NETWORKS["matchings"])
    solver = deepca.DeEPCA(from_matrices(stack), W0, network)
    announce = AtIteration(7, lambda: network.announce_epoch(1))
    result = deepca.solve(solver, max_iter=900, stop=Tolerance(1e-11), observers=[announce])
    assert result.restarts == 1
    assert network.next_round > 1 << 32
    assert worst_tangent(U, result.W) <= 1e-11


@pytest.mark.simulator("what a lost message does is the same on every engine")
@pytest.mark.parametrize("algorithm", [deepca.DeEPCA, deepca.AcceleratedDeEPCA])
def test_the_certificate_detects_lost_messages_and_tracking_recovers(algorithm: Any) -> None:
    """The agents agree on a wrong result; fresh averages detect this, and tracking restarts."""
    stack, U, _ = problem()
    W0 = deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    losing = time_varying.lossy(BASE, 0.02, seed=5, until=150)
    assert any(np.abs(losing.at(r).sum(axis=0) - 1.0).max() > 0.01 for r in range(150))
    np.testing.assert_array_equal(losing.at(150).toarray(), BASE.gossip_matrix)

    def run(certify: bool) -> deepca.Result[Any]:
        solver = algorithm(from_matrices(stack), W0, SimulatedNetwork(losing), deepca.Gossip(5))
        return deepca.solve(solver, max_iter=300, stop=Tolerance(1e-10), certify=certify)

    believed, proven = run(False), run(True)
    assert worst_tangent(U, believed.W) > 1e-3
    assert max(worst_tangent(believed.W[0], W[None]) for W in believed.W) < 1e-3  # they agree on another subspace
    assert proven.restarts >= 1
    assert proven.status.code == "converged"
    assert worst_tangent(U, proven.W) <= 1e-10


@pytest.mark.simulator("the estimator has engines of its own")
def test_the_estimator_matches_pooled_pca_on_time_varying_networks() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    rng = np.random.default_rng(6)
    X = rng.standard_normal((600, 20)) * 0.8 ** np.arange(20) + 100.0
    pooled = decomposition.PCA(3).fit(X)
    for name in ("matchings", "directed, periodic"):
        pca = deepca.DecentralizedPCA(3, topology=NETWORKS[name], tol=1e-11).fit(X)
        np.testing.assert_allclose(pca.explained_variance_, pooled.explained_variance_, rtol=1e-10)
        np.testing.assert_allclose(np.abs(pca.components_ @ pooled.components_.T), np.eye(3), atol=1e-9)
