"""Compare graphs and gossip matrices with networkx, dense eigensolvers and closed forms."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable
from typing import Any, get_args

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from deepca import topology as tp
from deepca._util.typing import csr
from deepca.errors import AsymmetricError, DisconnectedError, ParameterError, TopologyError
from tests.laws.strategies import connected, quick
from tests.support.errors import raises
from tests.support.problems import Array, close

RULES: tuple[tp.Rule, ...] = get_args(tp.Rule)
Build = Callable[[tp.Rule], tp.Topology]


def _relabelled(graph: nx.Graph[Any]) -> nx.Graph[Any]:
    return nx.convert_node_labels_to_integers(graph, ordering="default")


GENERATORS: dict[str, tuple[Build, nx.Graph[Any]]] = {
    "ring-1": (lambda rule: tp.ring(1, rule=rule), nx.path_graph(1)),
    "ring-2": (lambda rule: tp.ring(2, rule=rule), nx.path_graph(2)),
    "ring-9": (lambda rule: tp.ring(9, rule=rule), nx.cycle_graph(9)),
    "path-1": (lambda rule: tp.path(1, rule=rule), nx.path_graph(1)),
    "path-8": (lambda rule: tp.path(8, rule=rule), nx.path_graph(8)),
    "star-1": (lambda rule: tp.star(1, rule=rule), nx.path_graph(1)),
    "star-7": (lambda rule: tp.star(7, rule=rule), nx.star_graph(6)),
    "complete-1": (lambda rule: tp.complete(1, rule=rule), nx.path_graph(1)),
    "complete-6": (lambda rule: tp.complete(6, rule=rule), nx.complete_graph(6)),
    "grid-3x4": (lambda rule: tp.grid(3, 4, rule=rule), _relabelled(nx.grid_2d_graph(3, 4))),
    "grid-1x5": (lambda rule: tp.grid(1, 5, rule=rule), nx.path_graph(5)),
    "torus-3x4": (lambda rule: tp.torus(3, 4, rule=rule), _relabelled(nx.grid_2d_graph(3, 4, periodic=True))),
    "torus-2x2": (lambda rule: tp.torus(2, 2, rule=rule), _relabelled(nx.grid_2d_graph(2, 2))),
    "torus-1x5": (lambda rule: tp.torus(1, 5, rule=rule), nx.cycle_graph(5)),
    "hypercube-0": (lambda rule: tp.hypercube(0, rule=rule), nx.path_graph(1)),
    "hypercube-3": (lambda rule: tp.hypercube(3, rule=rule), _relabelled(nx.hypercube_graph(3))),
}


def _expected_weights(graph: nx.Graph[Any], rule: str) -> Array:
    """Compute 𝐋 from the definition of each rule, with loops and a dense eigensolver."""
    m = graph.number_of_nodes()
    if m == 1:
        return np.ones((1, 1))
    nodes = list(graph.nodes())
    M: Array = np.asarray(nx.laplacian_matrix(graph, nodelist=nodes).toarray(), dtype=np.float64)
    values = np.linalg.eigvalsh(M)
    alpha = {
        "paper": 1.0 / float(values[-1]),
        "max-degree": 1.0 / (float(M.diagonal().max()) + 1.0),
        "best-constant": 2.0 / (float(values[1]) + float(values[-1])),
    }
    L: Array = np.zeros((m, m))
    if rule in alpha:
        L[:] = np.eye(m) - alpha[rule] * M
        return L
    for i in range(m):
        for j in range(m):
            if i != j and graph.has_edge(nodes[i], nodes[j]):
                L[i, j] = 1 / (1 + max(M[i, i], M[j, j]))
    L += np.diag(1 - L.sum(axis=1))
    return (L + np.eye(m)) / 2 if rule == "lazy-metropolis" else L


def _check_against(topology: tp.Topology, graph: nx.Graph[Any], rule: str) -> None:
    """Compare all properties of a topology with networkx and a dense eigensolver."""
    m = graph.number_of_nodes()
    L = topology.gossip_matrix
    values = np.linalg.eigvalsh(L)
    assert topology.n_agents == m
    assert topology.n_edges == graph.number_of_edges()
    assert topology.rule == rule
    np.testing.assert_array_equal(L, L.T)
    close(L.sum(axis=1), 1.0, atol=1e-14)
    close(L, _expected_weights(graph, rule), atol=1e-13)
    close(topology.gossip_sparse.toarray(), L, atol=0.0)
    close(topology.eigenvalues, values[::-1], atol=1e-13)
    assert topology.lambda2 == pytest.approx(values[-2] if m > 1 else 0.0, abs=1e-13)
    assert topology.lambda_min == pytest.approx(values[0], abs=1e-13)
    assert topology.positive_semidefinite == (values[0] > -1e-10)
    expected = nx.laplacian_matrix(graph, nodelist=sorted(graph.nodes())).toarray()
    np.testing.assert_array_equal(topology.laplacian, expected)
    np.testing.assert_array_equal(topology.degrees, np.diag(expected))
    assert topology.flood_rounds == nx.diameter(graph)
    for j in range(m):
        assert topology.neighbors(j) == tuple(sorted(graph.neighbors(j)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_with_every_rule_creates_the_documented_graph_and_weights(name: str, rule: tp.Rule) -> None:
    build, graph = GENERATORS[name]
    _check_against(build(rule), graph, rule)


@given(connected(), st.sampled_from(RULES))
@quick(60)
def test_edge_lists_give_the_documented_graph_and_weights(
    made: tuple[int, list[tuple[int, int]]], rule: tp.Rule
) -> None:
    m, edges = made
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(range(m))
    graph.add_edges_from(edges)
    _check_against(tp.from_edges(m, edges, rule=rule), graph, rule)


@given(connected(min_agents=2))
@quick(40)
def test_paper_and_lazy_metropolis_weights_are_always_positive_semidefinite(
    made: tuple[int, list[tuple[int, int]]],
) -> None:
    rules: tuple[tp.Rule, ...] = ("paper", "lazy-metropolis")
    for rule in rules:
        topology = tp.from_edges(*made, rule=rule)
        assert topology.positive_semidefinite
        assert np.linalg.eigvalsh(topology.gossip_matrix)[0] > -1e-13


def test_metropolis_max_degree_and_best_constant_are_not_positive_semidefinite_on_a_ring() -> None:
    rules: tuple[tp.Rule, ...] = ("metropolis", "max-degree", "best-constant")
    for rule in rules:
        topology = tp.ring(10, rule=rule)
        assert not topology.positive_semidefinite
        assert np.linalg.eigvalsh(topology.gossip_matrix)[0] < -0.3
    assert tp.complete(10, rule="metropolis").positive_semidefinite


@given(connected(min_agents=2), st.floats(0.001, 0.999))
@quick(60)
def test_no_constant_edge_weight_contracts_better_than_the_best_constant(
    made: tuple[int, list[tuple[int, int]]], share: float
) -> None:
    topology = tp.from_edges(*made, rule="best-constant")
    best = max(abs(topology.lambda2), abs(topology.lambda_min))
    M = topology.laplacian
    mu = np.linalg.eigvalsh(M)[1:]
    other = np.abs(1.0 - share * 2.0 / mu[-1] * mu).max()  # any weight beyond 2/μ_max diverges
    assert best <= other + 1e-12
    assert best == pytest.approx(np.linalg.norm(topology.gossip_matrix - 1.0 / topology.n_agents, 2), abs=1e-12)


@pytest.mark.parametrize("m", [3, 4, 7, 10, 25])
def test_ring_eigenvalues_are_the_closed_form(m: int) -> None:
    mu = 2 - 2 * np.cos(2 * np.pi * np.arange(m) / m)
    topology = tp.ring(m)
    close(topology.eigenvalues, np.sort(1 - mu / mu.max())[::-1], atol=1e-13)
    assert topology.lambda2 == pytest.approx(1 - (2 - 2 * np.cos(2 * np.pi / m)) / mu.max(), abs=1e-13)
    metropolis = tp.ring(m, rule="metropolis")
    assert metropolis.lambda_min == pytest.approx(
        (1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(m) / m)).min(), abs=1e-13
    )


@pytest.mark.parametrize("dimension", [1, 2, 3, 5])
def test_hypercube_eigenvalues_are_the_closed_form(dimension: int) -> None:
    topology = tp.hypercube(dimension)
    ones = np.array([j.bit_count() for j in range(2**dimension)])
    close(topology.eigenvalues, np.sort(1 - ones / dimension)[::-1], atol=1e-13)
    assert topology.flood_rounds == dimension


@pytest.mark.parametrize("rule", ["paper", "metropolis", "max-degree", "best-constant"])
def test_the_complete_graph_averages_in_one_round(rule: tp.Rule) -> None:
    topology = tp.complete(7, rule=rule)
    close(topology.gossip_matrix, np.full((7, 7), 1 / 7), atol=1e-14)
    assert topology.lambda2 == pytest.approx(0.0, abs=1e-14)
    if rule == "paper":
        assert topology.lambda2 == 0.0


def test_erdos_renyi_is_connected_reproducible_and_has_about_p_of_all_edges() -> None:
    a, b, c = (tp.erdos_renyi(60, 0.3, seed=s) for s in (5, 5, 6))
    np.testing.assert_array_equal(a.gossip_matrix, b.gossip_matrix)
    assert not np.array_equal(a.gossip_matrix, c.gossip_matrix)
    pairs = 60 * 59 / 2
    assert abs(a.n_edges - 0.3 * pairs) < 6 * np.sqrt(pairs * 0.3 * 0.7)
    assert nx.is_connected(a.to_networkx())
    sparse_one = tp.erdos_renyi(100, 0.08, seed=1)
    assert abs(sparse_one.n_edges - 0.08 * 4950) < 6 * np.sqrt(4950 * 0.08 * 0.92)
    assert tp.erdos_renyi(10, 1.0, seed=0).n_edges == 45
    assert tp.erdos_renyi(1, 0.5, seed=0).n_agents == 1


def test_erdos_renyi_draws_again_until_connected() -> None:
    seeds = range(20)
    first_draws = [
        nx.is_connected(nx.gnp_random_graph(12, 0.2, seed=int(np.random.default_rng(s).integers(2**31)))) for s in seeds
    ]
    assert not all(first_draws)  # otherwise this test would be vacuous
    for s in seeds:
        assert nx.is_connected(tp.erdos_renyi(12, 0.2, seed=s).to_networkx())


def test_seeds_may_be_generators() -> None:
    a = tp.erdos_renyi(20, 0.4, seed=np.random.default_rng(3))
    b = tp.erdos_renyi(20, 0.4, seed=3)
    np.testing.assert_array_equal(a.gossip_matrix, b.gossip_matrix)


@pytest.mark.parametrize(("m", "degree"), [(10, 3), (11, 4), (8, 7), (2, 1)])
def test_random_regular_graphs_are_regular_connected_and_reproducible(m: int, degree: int) -> None:
    topology = tp.random_regular(m, degree, seed=2)
    assert topology.degrees.tolist() == [degree] * m
    assert nx.is_connected(topology.to_networkx())
    np.testing.assert_array_equal(topology.gossip_matrix, tp.random_regular(m, degree, seed=2).gossip_matrix)


@given(connected(), st.sampled_from(RULES))
@quick(30)
def test_networkx_round_trip_keeps_graph_and_weights(made: tuple[int, list[tuple[int, int]]], rule: tp.Rule) -> None:
    first = tp.from_edges(*made, rule=rule)
    graph = first.to_networkx()
    assert sorted(graph.nodes()) == list(range(first.n_agents))
    for i, j, data in graph.edges(data=True):
        assert data["weight"] == first.gossip_matrix[i, j]
    second = tp.from_networkx(graph, rule=rule)
    np.testing.assert_array_equal(first.gossip_matrix, second.gossip_matrix)
    assert (first.lambda2, first.lambda_min) == (second.lambda2, second.lambda_min)


def test_networkx_nodes_keep_their_order_whatever_their_labels() -> None:
    graph: nx.Graph[Any] = nx.Graph(name="sites")
    graph.add_nodes_from(["c", "a", "b"])
    graph.add_edges_from([("a", "b"), ("b", "c")])
    topology = tp.from_networkx(graph)
    assert topology.name == "sites"
    assert [topology.neighbors(j) for j in range(3)] == [(2,), (2,), (0, 1)]


def test_a_directed_graph_with_every_edge_both_ways_is_accepted() -> None:
    graph: Any = nx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 1)])
    np.testing.assert_array_equal(tp.from_networkx(graph).laplacian, tp.path(3).laplacian)


def test_repeated_and_reversed_edges_count_once() -> None:
    topology = tp.from_edges(3, [(0, 1), (1, 0), (1, 2), (1, 2)])
    np.testing.assert_array_equal(topology.gossip_matrix, tp.path(3).gossip_matrix)
    assert topology.n_edges == 2


def test_a_custom_gossip_matrix_is_used_unchanged() -> None:
    rng = np.random.default_rng(0)
    M = tp.erdos_renyi(9, 0.5, seed=1).adjacency.toarray() * rng.uniform(0.02, 0.1, (9, 9))
    L = np.triu(M, 1) + np.triu(M, 1).T
    L += np.diag(1 - L.sum(axis=1))
    values = np.linalg.eigvalsh(L)
    for given_matrix in (L, L.tolist(), sparse.csr_array(L), sparse.coo_array(L), sparse.csc_matrix(L)):
        topology = tp.from_gossip_matrix(given_matrix)  # type: ignore[arg-type]
        np.testing.assert_array_equal(topology.gossip_matrix, L)
        assert topology.lambda2 == pytest.approx(values[-2], abs=1e-14)
        assert topology.lambda_min == pytest.approx(values[0], abs=1e-14)
    assert tp.from_gossip_matrix([[1.0]]).n_agents == 1


# ------------------------------------------------------------------------------------------------ frozen


@pytest.mark.parametrize("field", ["lambda2", "lambda_min", "gossip_sparse", "name", "rule"])
def test_no_field_can_be_replaced(field: str) -> None:
    topology = tp.ring(5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(topology, field, 0.5)


def test_the_dense_matrix_is_a_copy() -> None:
    topology = tp.ring(5)
    topology.gossip_matrix[0, 0] = 9.0
    assert topology.gossip_matrix[0, 0] < 1.0


@pytest.mark.parametrize("part", ["gossip_sparse", "adjacency"])
def test_the_sparse_matrices_are_read_only(part: str) -> None:
    matrix = getattr(tp.ring(5), part)
    assert not any(array.flags.writeable for array in (matrix.data, matrix.indices, matrix.indptr))


def test_modifying_the_input_matrix_does_not_change_the_topology() -> None:
    L = sparse.csr_array(tp.ring(5).gossip_matrix)
    topology = tp.from_gossip_matrix(L)
    L.data[:] = 7.0
    close(topology.gossip_matrix.sum(axis=1), 1.0, atol=1e-14)


def test_creating_a_topology_does_not_modify_the_input_matrix() -> None:
    L = sparse.csr_array(tp.path(3).gossip_matrix + 1.0)
    L.data -= 1.0  # the zeros of a path of three are now stored explicitly
    assert L.nnz == 9
    tp.from_gossip_matrix(L)
    assert L.nnz == 9


# ------------------------------------------------------------------------------------------------ large


def _ring_gap(m: int) -> float:
    return float(2 - 2 * np.cos(2 * np.pi / m))


def _close(topology: tp.Topology, lambda2: float, lambda_min: float) -> None:
    assert topology.lambda2 == pytest.approx(lambda2, abs=1e-9)
    assert 1 - topology.lambda2 == pytest.approx(1 - lambda2, rel=1e-6)
    assert topology.lambda_min == pytest.approx(lambda_min, abs=1e-9)


def test_large_ring_and_path_have_the_closed_form_eigenvalues() -> None:
    _close(tp.ring(5000), 1 - _ring_gap(5000) / 4, 0.0)
    mu = 2 - 2 * np.cos(np.pi * np.array([1, 2999]) / 3000)
    _close(tp.path(3000), 1 - mu[0] / mu[1], 0.0)
    _close(tp.path(3000, rule="best-constant"), 1 - 2 * mu[0] / mu.sum(), 1 - 2 * mu[1] / mu.sum())


def test_large_ring_with_metropolis_weights_has_the_closed_form_eigenvalues() -> None:
    _close(tp.ring(2000, rule="metropolis"), 1 - _ring_gap(2000) / 3, -1 / 3)
    _close(tp.ring(2000, rule="lazy-metropolis"), 1 - _ring_gap(2000) / 6, 1 / 3)


def test_large_torus_hypercube_and_star_have_the_closed_form_eigenvalues() -> None:
    _close(tp.torus(50, 40), 1 - _ring_gap(50) / 8, 0.0)
    _close(tp.torus(50, 40, rule="max-degree"), 1 - _ring_gap(50) / 5, 1 - 8 / 5)
    _close(tp.hypercube(11), 1 - 1 / 11, 0.0)
    _close(tp.star(2000), 1 - 1 / 2000, 0.0)
    mu = 4 - 2 * np.cos(np.pi * np.arange(60) / 60)[:, None] - 2 * np.cos(np.pi * np.arange(30) / 30)
    mu = np.sort(mu.ravel())
    _close(tp.grid(60, 30), 1 - mu[1] / mu[-1], 0.0)


def test_large_random_graphs_have_the_eigenvalues_of_a_dense_solver() -> None:
    """With 1501 agents the dense solver is no longer used; on a regular graph every rule gives ``I − αM``."""
    topology = tp.random_regular(1501, 4, seed=0)
    mu = np.linalg.eigvalsh(topology.laplacian)[[1, -1]]
    steps: dict[tp.Rule, float] = {
        "paper": 1 / mu[1],
        "metropolis": 1 / 5,
        "lazy-metropolis": 1 / 10,
        "max-degree": 1 / 5,
        "best-constant": 2 / mu.sum(),
    }
    for rule, alpha in steps.items():
        _close(tp.random_regular(1501, 4, seed=0, rule=rule), 1 - alpha * mu[0], 1 - alpha * mu[1])


def test_large_irregular_graphs_have_the_eigenvalues_of_a_dense_solver() -> None:
    topology = tp.erdos_renyi(1501, 0.01, seed=0, rule="metropolis")
    values = np.linalg.eigvalsh(topology.gossip_matrix)
    _close(topology, values[-2], values[0])


def test_a_large_custom_matrix_may_have_negative_weights() -> None:
    """On a ring whose second neighbours have weight −0.05, the eigenvalues still have a closed form."""
    m = 4000
    angle = 2 * np.pi * np.arange(m) / m
    exact = np.sort(0.3 + 0.8 * np.cos(angle) - 0.1 * np.cos(2 * angle))
    j = np.arange(m)
    weights = {0: 0.3, 1: 0.4, -1: 0.4, 2: -0.05, -2: -0.05}
    values = np.concatenate([np.full(m, w) for w in weights.values()])
    rows, columns = np.tile(j, len(weights)), np.concatenate([(j + hop) % m for hop in weights])
    L = csr(sparse.coo_array((values, (rows, columns)), shape=(m, m)))
    _close(tp.from_gossip_matrix(L), exact[-2], exact[0])


def test_ten_thousand_agents_need_no_dense_matrix() -> None:
    tracemalloc.start()
    try:
        topology = tp.torus(100, 100)
        _ = topology.flood_rounds, topology.degrees, topology.neighbors(0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000 * 10_000 * 8 / 8  # an eighth of one dense m × m matrix; lists of edges are most of it
    _close(topology, 1 - _ring_gap(100) / 8, 0.0)


def test_flood_rounds_of_large_graphs_are_between_one_and_two_diameters() -> None:
    for topology, diameter in (
        (tp.path(2000), 1999),
        (tp.ring(2000), 1000),
        (tp.star(2000), 2),
        (tp.torus(50, 40), 45),
        (tp.hypercube(11), 11),
    ):
        assert diameter <= topology.flood_rounds <= 2 * diameter
    assert tp.path(2001).flood_rounds == 2000


# ------------------------------------------------------------------------------------------------ bad input


def test_a_disconnected_graph_names_its_components() -> None:
    with raises(DisconnectedError, components=((0, 2), (1, 3), (4,))):
        tp.from_edges(5, [(0, 2), (1, 3)])
    with raises(DisconnectedError, components=((0, 1), (2,))):
        tp.from_gossip_matrix([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    with raises(DisconnectedError, components=((0,), (1,))):
        tp.from_networkx(nx.empty_graph(2))


def test_messages_abbreviate_many_or_large_components() -> None:
    with raises(DisconnectedError, components=tuple((j,) for j in range(20))) as many:
        tp.from_edges(20, [])
    assert "{3} and 16 more" in str(many.value)
    assert "{4}" not in str(many.value)
    with raises(DisconnectedError, components=(tuple(range(19)), (19,))) as large:
        tp.from_edges(20, [(j, j + 1) for j in range(18)])
    assert "7, … (19 agents)" in str(large.value)


def test_erdos_renyi_raises_if_no_draw_is_connected() -> None:
    with raises(DisconnectedError, parameter="p", value=0.001):
        tp.erdos_renyi(50, 0.001, seed=0, attempts=3)


def test_an_asymmetric_matrix_names_the_edge() -> None:
    L = tp.ring(5).gossip_matrix
    L[1, 2] += 1e-6
    L[1, 1] -= 1e-6
    with pytest.raises(AsymmetricError) as caught:
        tp.from_gossip_matrix(L)
    assert caught.value.edge in ((1, 2), (2, 1))
    L = tp.ring(5).gossip_matrix
    L[0, 3], L[0, 0] = 0.1, L[0, 0] - 0.1  # an edge in one direction only
    with pytest.raises(AsymmetricError) as caught:
        tp.from_gossip_matrix(L)
    assert caught.value.edge in ((0, 3), (3, 0))


def test_an_edge_without_its_reverse_is_named() -> None:
    graph: Any = nx.DiGraph([("a", "b"), ("b", "a"), ("b", "c")])
    with raises(AsymmetricError, edge=("b", "c")):
        tp.from_networkx(graph)


@pytest.mark.parametrize("edges", [[(0, 1, 2), (1, 2, 0)], [0, 1], [(0, 1), (1,)], [(0, 1), (0, 1, 2)], [[[0, 1]]]])
def test_edges_that_are_not_pairs_are_rejected(edges: Any) -> None:
    with raises(TopologyError, parameter="edges"):
        tp.from_edges(3, edges)


def test_self_loops_are_rejected() -> None:
    with raises(TopologyError, edge=(1, 1)):
        tp.from_edges(3, [(0, 1), (1, 1), (1, 2)])
    with raises(TopologyError, edge=(0, 0)):
        tp.from_networkx(nx.Graph([(0, 1), (0, 0)]))


@pytest.mark.parametrize("edge", [(0, 3), (-1, 0)])
def test_edges_to_nonexistent_agents_are_rejected(edge: tuple[int, int]) -> None:
    with raises(TopologyError, edge=edge):
        tp.from_edges(3, [(0, 1), (1, 2), edge])


def test_an_unknown_rule_is_rejected() -> None:
    with raises(ParameterError, parameter="rule", value="equal") as caught:
        tp.ring(5, rule="equal")  # type: ignore[arg-type]
    assert all(rule in caught.value.expected for rule in get_args(tp.Rule))


def test_a_row_that_does_not_sum_to_one_is_named() -> None:
    with raises(TopologyError, row=0, value=0.9):
        tp.from_gossip_matrix([[0.4, 0.5], [0.5, 0.5]])


def test_matrices_that_do_not_converge_to_the_mean_are_rejected() -> None:
    with raises(TopologyError, parameter="matrix"):
        tp.from_gossip_matrix([[0.0, 1.0], [1.0, 0.0]])  # λ_min = −1: the two agents keep swapping values
    with raises(TopologyError, parameter="matrix"):
        tp.from_gossip_matrix([[1.5, -0.5], [-0.5, 1.5]])  # λ₂ = 2


def test_matrices_that_are_not_square_or_not_finite_are_rejected() -> None:
    with raises(TopologyError, parameter="matrix", value=(2, 3)):
        tp.from_gossip_matrix(np.full((2, 3), 1 / 3))
    with raises(TopologyError, row=0, column=0):
        tp.from_gossip_matrix([[np.nan, 0.5], [0.5, 0.5]])


@pytest.mark.parametrize("m", [0, -1])
def test_a_network_needs_at_least_one_agent(m: int) -> None:
    builders: list[Callable[[int], tp.Topology]] = [
        tp.ring,
        tp.path,
        tp.star,
        tp.complete,
        lambda n: tp.erdos_renyi(n, 0.5),
        lambda n: tp.random_regular(n, 2),
        lambda n: tp.from_edges(n, []),
        lambda n: tp.grid(n, 3),
        lambda n: tp.torus(3, n),
    ]
    for build in builders:
        with pytest.raises(TopologyError) as caught:
            build(m)
        assert caught.value.value in (m, 3 * m)
    with raises(TopologyError, value=0):
        tp.from_networkx(nx.empty_graph(0))
    with raises(TopologyError, parameter="dimension", value=-1):
        tp.hypercube(-1)


@pytest.mark.parametrize("p", [0.0, -0.1, 1.1, float("nan")])
def test_a_probability_out_of_range_is_rejected(p: float) -> None:
    with raises(TopologyError, parameter="p", value=p):
        tp.erdos_renyi(10, p)


@pytest.mark.parametrize(("m", "degree"), [(5, 3), (4, 4), (4, 0), (4, -1), (1, 1)])
def test_impossible_regular_graphs_are_rejected(m: int, degree: int) -> None:
    with raises(TopologyError, parameter="degree", value=degree):
        tp.random_regular(m, degree)


def test_random_regular_raises_if_no_draw_is_connected() -> None:
    with raises(DisconnectedError, parameter="degree", value=1):
        tp.random_regular(10, 1, seed=0, attempts=3)


@pytest.mark.parametrize("j", [-1, 5])
def test_neighbours_of_a_nonexistent_agent_raise(j: int) -> None:
    with raises(TopologyError, agent=j):
        tp.ring(5).neighbors(j)


def test_repr_shows_name_rule_sizes_and_gap() -> None:
    assert repr(tp.ring(4)) == "Topology(ring(4), rule='paper', 4 agents, 4 edges, 1 − λ₂ = 0.5)"
