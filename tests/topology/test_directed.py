"""Test directed graphs: weights preserve the sum, ratios agree, and every agent obtains the pooled result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import deepca
from deepca.algorithms.accelerated import AcceleratedState
from deepca.consensus.averaging import average
from deepca.consensus.centring import agreed_mean
from deepca.consensus.exact import TreeSweep, exact_average
from deepca.consensus.mixer_state import PushSum, mean_of
from deepca.consensus.rates import accelerated_rate, tracking_rate
from deepca.errors import DisconnectedError, MassError, MixingError, TopologyError
from deepca.network import Network, SimulatedNetwork
from deepca.operators import from_matrices
from deepca.solver.stopping import Tolerance
from deepca.topology import directed
from deepca.topology.directed import Digraph
from tests.laws.strategies import quick
from tests.support.engines import ENGINES, at_every_agent, everyone, mine, network_of
from tests.support.errors import raises
from tests.support.helpers import worst_tangent
from tests.support.problems import spectrum, spectrum_problem

Array = npt.NDArray[np.float64]
M, D, K_TOP = 12, 24, 3
GRAPHS: dict[str, Digraph] = {
    **{f"random {seed}": directed.random_digraph(M, 0.2, seed=seed) for seed in range(10)},
    "ring": directed.ring(M),
    "exponential": directed.exponential(M),
    "star with one way back": directed.from_arcs(
        M, [*((j, 0) for j in range(1, M)), *((j, j + 1) for j in range(M - 1))]
    ),
}


def problem(seed: int = 0) -> tuple[Array, Array, Array]:
    """Return very different matrices of the agents, and the top eigenpairs of their mean."""
    stack = spectrum_problem(M, D, spectrum(D, K_TOP, gap=0.7, decay=0.8), seed)
    values, vectors = scipy.linalg.eigh(stack.mean(axis=0))
    return stack, np.ascontiguousarray(vectors[:, ::-1][:, :K_TOP]), values[::-1][:K_TOP]


# -------------------------------------------------------------------------------------------------------------- graphs


@given(st.integers(2, 9), st.integers(0, 10_000))
@quick(40)
def test_weights_follow_from_out_degrees_alone(m: int, seed: int) -> None:
    graph = nx.gnp_random_graph(m, 0.6, seed=seed, directed=True)
    if not nx.is_strongly_connected(graph):
        with pytest.raises(DisconnectedError) as caught:
            directed.from_arcs(m, graph.edges())
        assert {frozenset(one) for one in caught.value.components} == {
            frozenset(one) for one in nx.strongly_connected_components(graph)
        }
        return
    found = directed.from_arcs(m, graph.edges())
    C = found.gossip_matrix
    np.testing.assert_allclose(C.sum(axis=0), 1.0, rtol=1e-15)
    for i in range(m):
        assert found.receivers(i) == tuple(sorted(graph.successors(i)))
        assert found.senders(i) == tuple(sorted(graph.predecessors(i)))
        share = 1.0 / (1 + graph.out_degree(i))
        np.testing.assert_allclose(C[[i, *graph.successors(i)], i], share, rtol=1e-15)
        assert np.count_nonzero(C[:, i]) == 1 + graph.out_degree(i)
    assert found.n_messages == graph.number_of_edges()
    assert found.degrees.tolist() == [graph.out_degree(i) for i in range(m)]
    assert found.flood_rounds == nx.diameter(graph)
    values = np.sort(np.abs(np.linalg.eigvals(C)))
    assert found.lambda2 == pytest.approx(values[-2], abs=1e-12)
    np.testing.assert_allclose(C @ found.stationary_distribution, found.stationary_distribution, atol=1e-14)
    assert found.stationary_distribution.min() > 0.0
    assert set(found.to_networkx().edges()) == set(graph.edges())
    for root in range(m):
        there, back = found.paths_to(root), found.paths_from(root)
        for j in range(m):
            assert there[0][j] == nx.shortest_path_length(graph, j, root)
            assert back[0][j] == nx.shortest_path_length(graph, root, j)
            if j != root:
                assert graph.has_edge(j, there[1][j])
                assert graph.has_edge(back[1][j], j)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_contraction_bound_holds_and_is_tight(name: str) -> None:
    """It is compared with the ratios for random starts and for the worst singular vector."""
    graph = GRAPHS[name]
    rng = np.random.default_rng(0)
    for K in (1, 3, 10, 40):
        power = np.linalg.matrix_power(graph.gossip_matrix, K)
        x = rng.standard_normal((M, 200))
        x = np.concatenate([x, np.linalg.svd(power - power.sum(axis=1, keepdims=True) / M)[2].T[:, :1]], axis=1)
        ratio = (power @ x) / power.sum(axis=1, keepdims=True)
        left = np.linalg.norm(ratio - x.mean(axis=0), axis=0) / np.linalg.norm(x - x.mean(axis=0), axis=0)
        assert left.max() <= graph.contraction(K) * (1 + 1e-9) + 1e-14
    rounds = deepca.Gossip().rounds_for(graph, 1e-6)
    assert graph.contraction(rounds) <= 1e-6 < graph.contraction(rounds - 1)


def test_directed_graphs_may_have_one_or_two_agents() -> None:
    alone = directed.from_arcs(1, [])
    assert (alone.n_messages, alone.flood_rounds, alone.contraction(1)) == (0, 0, 0.0)
    assert directed.ring(1).n_agents == 1
    assert directed.ring(2).gossip_matrix.tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("arcs", "silent"),
    [([(0, 1), (1, 2)], "{2}"), ([(0, 1), (1, 0), (2, 0), (2, 1)], "{0, 1}")],
)
def test_the_message_names_the_agents_that_do_not_reach_the_others(arcs: list[tuple[int, int]], silent: str) -> None:
    with pytest.raises(DisconnectedError) as caught:
        directed.from_arcs(3, arcs)
    assert f"agents {silent} reaches" in str(caught.value)


@pytest.mark.parametrize("arc", [(0, 3), (0, 0)])
def test_invalid_arcs_are_rejected(arc: tuple[int, int]) -> None:
    with raises(TopologyError, edge=arc):
        directed.from_arcs(3, [(0, 1), (1, 2), (2, 0), arc])


def test_invalid_weights_are_rejected() -> None:
    C = directed.ring(4).gossip_matrix
    assert directed.from_weights(C).lambda2 == pytest.approx(directed.ring(4).lambda2)
    assert directed.from_weights(sparse.csr_array(C)).n_messages == 4
    leaking = C.copy()
    leaking[3, 2] = 0.3
    with raises(MassError, agent=2, value=pytest.approx(0.8)):
        directed.from_weights(leaking)
    leaking[3, 2] = 0.7
    with raises(MassError, agent=2, value=pytest.approx(1.2)):
        directed.from_weights(leaking)
    negative = C.copy()
    negative[:, 1] = [0.0, 1.5, -0.5, 0.0]
    with raises(TopologyError, agent=1, value=-0.5):
        directed.from_weights(negative)
    with raises(TopologyError, parameter="matrix", value=pytest.approx(1.0)):
        directed.from_weights(np.roll(np.eye(4), 1, axis=0))  # no agent keeps a share
    with pytest.raises(DisconnectedError):
        directed.from_weights([[0.5, 0.0], [0.5, 1.0]])
    with raises(DisconnectedError, parameter="p", value=0.01):
        directed.random_digraph(30, 0.01, seed=0, attempts=3)


# -------------------------------------------------------------------------------------------------------------- mixing


@pytest.mark.parametrize("mixer", [deepca.FastMix(4), deepca.Chebyshev(4), deepca.PositiveChebyshev(4)])
def test_mixers_with_memory_are_rejected(mixer: deepca.consensus.mixers.Mixer) -> None:
    stack, _, _ = problem()
    network = network_of(GRAPHS["ring"])
    with pytest.raises(MixingError) as caught:
        mixer(network, stack[mine(M)])
    assert type(mixer).__name__ in str(caught.value)
    assert "deepca.Gossip" in str(caught.value)
    with pytest.raises(MixingError):
        deepca.DeEPCA(from_matrices(stack), np.eye(D)[:, :2], network, mixer)
    with pytest.raises(MixingError):
        deepca.Gossip(4, messages="float32")(network, stack[mine(M)])


def test_mixers_with_memory_diverge_on_a_directed_ring() -> None:
    """With the weights of a directed ring, some start of FastMix's recurrence grows in every round."""
    C, eta = GRAPHS["ring"].gossip_matrix, deepca.consensus.mixers.fastmix_eta(GRAPHS["ring"].lambda2)
    step = np.block([[(1 + eta) * C, -eta * np.eye(M)], [np.eye(M), np.zeros((M, M))]])
    assert np.abs(np.linalg.eigvals(step)).max() > 1.05


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", ["random 0", "ring", "star with one way back"])
def test_mixing_gives_the_mean(name: str, kind: str) -> None:
    """On every engine ratios agree, x preserves the sum, and messages follow the arcs."""
    graph = GRAPHS[name]
    x = np.random.default_rng(1).standard_normal((M, 5, 2))
    rounds = deepca.Gossip().rounds_for(graph, 1e-13)
    done = at_every_agent(kind, graph, lambda network: deepca.Gossip(rounds)(network, x[network.local]))
    np.testing.assert_allclose(done.values, np.broadcast_to(x.mean(axis=0), x.shape), atol=1e-12)
    assert done.traffic.rounds == rounds
    assert done.traffic.messages == rounds * graph.n_messages
    assert done.traffic.bytes_sent == rounds * graph.n_messages * 11 * 8  # ten numbers and the weight

    def parts(network: Network) -> Array:
        kept, memory = deepca.Gossip(7).mix(network, x[network.local], None)
        assert isinstance(memory, PushSum)
        np.testing.assert_allclose(mean_of(kept, memory) * memory.y[..., None, None], kept)
        return np.concatenate([kept.reshape(*network.batch, -1), memory.y[..., None]], axis=-1)

    after = at_every_agent(kind, graph, parts).values
    power = np.linalg.matrix_power(graph.gossip_matrix, 7)
    np.testing.assert_allclose(after[:, :-1], power @ x.reshape(M, -1), atol=1e-14)
    np.testing.assert_allclose(after[:, -1], power.sum(axis=1), atol=1e-14)
    np.testing.assert_allclose(after[:, :-1].sum(axis=0), x.reshape(M, -1).sum(axis=0), atol=1e-13)


@pytest.mark.parametrize("kind", ENGINES)
def test_exact_averages_and_reductions_follow_the_arcs(kind: str) -> None:
    for graph in (GRAPHS["random 1"], GRAPHS["ring"], GRAPHS["star with one way back"]):
        x = np.random.default_rng(2).standard_normal((M, 4))

        def work(network: Network, x: Array = x) -> Array:
            mean = exact_average(network, x[network.local])
            high = network.reduce(x[network.local], "max")
            return np.broadcast_to(np.concatenate([mean, high]), (*network.batch, 8))

        found = at_every_agent(kind, graph, work).values
        np.testing.assert_allclose(found[:, :4], np.broadcast_to(x.mean(axis=0), (M, 4)), atol=1e-14)
        assert (found[:, 4:] == x.max(axis=0)).all()
        root = graph.center
        assert TreeSweep().length(graph) == graph.paths_to(root)[0].max() + graph.paths_from(root)[0].max()


def test_an_average_reports_its_error_where_messages_may_get_lost() -> None:
    class Unreliable(SimulatedNetwork):
        reliable = False

    x = np.random.default_rng(3).standard_normal((M, 6)) * 10.0 ** np.arange(-3, 3)
    for graph in GRAPHS.values():
        rounds = deepca.Gossip().rounds_for(graph, 1e-3)
        found = average(Unreliable(graph), x, rounds, lambda averaged: averaged.error_norm < 1e-9)
        assert (np.abs(found.mean - x.mean(axis=0)) <= found.error + 1e-15).all()
        assert found.error_norm < 1e-9


@given(st.integers(2, 8), st.integers(0, 1000), st.integers(1, 6))
@quick(30)
def test_rates_match_the_spectral_radius_of_the_recurrence(m: int, seed: int, K: int) -> None:
    """Eigenvalues may be complex."""
    graph = directed.random_digraph(m, 0.7, seed=seed)
    p = graph.modes**K
    worst = max(np.abs(np.roots([1.0, -2.0 * v, v])).max() for v in p)
    assert tracking_rate(deepca.Gossip(), graph, K) == pytest.approx(worst, rel=1e-6, abs=1e-7)
    assert 0.0 < accelerated_rate(deepca.Gossip(), graph, 60) < 1.0


# ---------------------------------------------------------------------------------------------------------- algorithms


@pytest.mark.parametrize("algorithm", [deepca.DeEPCA, deepca.AcceleratedDeEPCA, deepca.BlockKrylov])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_agent_obtains_the_pooled_result(
    name: str, algorithm: type[deepca.DeEPCA | deepca.AcceleratedDeEPCA | deepca.BlockKrylov]
) -> None:
    stack, U, values = problem()
    W0 = deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    network = network_of(GRAPHS[name])
    solver: Any = algorithm(from_matrices(stack), W0, network)
    result = deepca.solve(solver, max_iter=2000, stop=Tolerance(1e-12))
    assert result.status.code == "converged"
    assert worst_tangent(U, result.W) <= 1e-12
    np.testing.assert_allclose(result.eigenvalues, np.broadcast_to(values, result.eigenvalues.shape), atol=1e-13)
    assert result.certificate is not None
    assert result.certificate.n_agents == M


@pytest.mark.parametrize("algorithm", [deepca.DeEPCA, deepca.AcceleratedDeEPCA])
def test_the_sum_is_tracked_and_the_ratios_agree(algorithm: type[deepca.DeEPCA | deepca.AcceleratedDeEPCA]) -> None:
    stack, _, _ = problem()
    A, W0 = from_matrices(stack), deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    solver: Any = algorithm(A, W0, SimulatedNetwork(GRAPHS["star with one way back"]), deepca.Gossip(30))
    state = solver.init()
    for _ in range(60):
        state = solver.step(state)
        assert isinstance(state.memory, PushSum)
        assert state.memory.y.sum() == pytest.approx(M, rel=1e-13)
        assert np.abs(state.excess.mean(axis=0)).max() <= 1e-13
    ratio = state.estimate
    assert np.abs(ratio - ratio[0]).max() <= 1e-9
    assert np.abs(state.S - state.S[0]).max() >= 0.3 * np.abs(state.S[0]).max()


def test_tracking_restarts_after_a_disturbance() -> None:
    """The push-sum weights are reset to one, and the invariant holds again."""
    stack, U, _ = problem()
    W0 = deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    for algorithm in (deepca.DeEPCA, deepca.AcceleratedDeEPCA):
        network = network_of(GRAPHS["random 3"])
        solver: Any = algorithm(from_matrices(stack), W0, network)
        first = deepca.solve(solver, max_iter=500, stop=Tolerance(1e-9))
        tracked = "T" if isinstance(first.state, AcceleratedState) else "S"
        corrupted = replace(first.state, **{tracked: getattr(first.state, tracked) + 1.0})
        assert np.abs(everyone(corrupted.excess, M).mean(axis=0)).max() >= 0.9
        restarted = solver.restart(corrupted, 60)
        assert isinstance(restarted.memory, PushSum)
        drift = everyone(restarted.excess, M).mean(axis=0)
        assert np.abs(drift).max() <= 1e-13
        again = deepca.solve(solver, max_iter=500, stop=Tolerance(1e-12), start=restarted)
        assert worst_tangent(U, again.W) <= 1e-12


def test_depca_stalls_as_on_undirected_graphs() -> None:
    stack, U, values = problem()
    W0 = deepca.operators.linalg.random_orthonormal(D, K_TOP, seed=1)
    found = {}
    for K in (5, 60):
        solver = deepca.DePCA(from_matrices(stack), W0, network_of(GRAPHS["random 4"]), deepca.Gossip(K))
        result = deepca.solve(solver, max_iter=200, certify=False)
        found[K] = worst_tangent(U, result.W)
        ritz = np.sort(np.linalg.eigvalsh(np.swapaxes(result.W, -1, -2) @ result.state.estimate))[..., ::-1]
        np.testing.assert_allclose(ritz, np.broadcast_to(values, ritz.shape), rtol=0.5 if K == 5 else 1e-6)
    assert found[60] < 1e-6 < found[5]


# ---------------------------------------------------------------------------------------------------------------- data


def test_rows_far_from_zero_are_centred_exactly() -> None:
    """The mean is computed by ratios; agents have different numbers of rows."""
    rng = np.random.default_rng(5)
    rows = [rng.standard_normal((3 + 4 * j, 5)) + 1e6 for j in range(M)]
    graph = GRAPHS["random 5"]
    sums = np.stack([X.sum(axis=0) for X in rows])
    counts = np.array([float(len(X)) for X in rows])
    network = network_of(graph)
    mean = agreed_mean(network, deepca.Gossip(), sums[mine(M)], counts[mine(M)])
    np.testing.assert_allclose(mean, np.broadcast_to(np.concatenate(rows).mean(axis=0), mean.shape), rtol=1e-14)


@pytest.mark.parametrize("algorithm", ["auto", "deepca", "accelerated"])
def test_the_estimator_matches_pooled_pca_on_a_directed_graph(algorithm: str) -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    rng = np.random.default_rng(6)
    X = rng.standard_normal((600, 20)) * 0.8 ** np.arange(20) + 100.0
    pca = deepca.DecentralizedPCA(3, topology=GRAPHS["random 6"], algorithm=algorithm, tol=1e-11).fit(X)
    pooled = decomposition.PCA(3).fit(X)
    np.testing.assert_allclose(pca.explained_variance_, pooled.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(np.abs(pca.components_ @ pooled.components_.T), np.eye(3), atol=1e-9)
    np.testing.assert_allclose(pca.mean_, pooled.mean_, rtol=1e-12)
