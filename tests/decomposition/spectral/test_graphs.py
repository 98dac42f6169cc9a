"""Compare eigenvectors of graphs that are partitioned over agents with scipy, and check errors for invalid graphs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, get_args

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from scipy import sparse
from scipy.sparse.linalg import eigsh
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.neighbors import kneighbors_graph

import deepca
from deepca import topology
from deepca._util.typing import csr
from deepca.decomposition.spectral import graphs
from deepca.decomposition.spectral.block_rows import BlockRows
from deepca.decomposition.spectral.blocks import GraphMatrix
from deepca.errors import (
    AsymmetricError,
    DataError,
    DisconnectedError,
    GapError,
    InvalidInput,
    MixingError,
    NetworkError,
    ParameterError,
    TopologyError,
)
from deepca.network import AgentNetwork, Network, SimulatedNetwork
from deepca.network.transports import MemoryHub, Message
from deepca.network.trees import SpanningTree
from deepca.topology import Rule, Topology
from studies.adversary.reference import of_matrix, tangent
from tests.support.engines import ENGINES, assert_same_traffic, at_every_agent, network_of, over_mpi
from tests.support.errors import raises
from tests.support.graph_cases import Shared, entries, pooled, shared, weighted
from tests.support.paths import ROOT
from tests.support.problems import spectrum, spectrum_problem

Array = npt.NDArray[np.float64]
NETWORKS: dict[str, Topology] = {
    "ring": topology.ring(50),
    "path": topology.path(40),
    "grid": topology.grid(6, 7),
    "torus": topology.torus(5, 5),
    "erdos-renyi": topology.erdos_renyi(50, 0.5, seed=0),
    "star": topology.star(17),
    "complete": topology.complete(9),
    "hypercube": topology.hypercube(4),
    "two": topology.path(2),
    "three": topology.path(3),
}
CASES: dict[str, Shared] = {
    "path": shared(weighted(nx.path_graph(60)), 5),
    "grid": shared(weighted(nx.convert_node_labels_to_integers(nx.grid_2d_graph(8, 9))), 6),
    "erdos-renyi": shared(weighted(nx.gnp_random_graph(80, 0.1, seed=3)), 7),
    "weighted ring": shared(weighted(nx.cycle_graph(50), seed=1), 4),
    "weighted small world": shared(weighted(nx.connected_watts_strogatz_graph(90, 4, 0.1, seed=1), seed=2), 6),
    "one agent": shared(weighted(nx.path_graph(12)), 1),
}
ENDS = (("laplacian", "smallest"), ("normalized", "smallest"), ("laplacian", "largest"), ("adjacency", "largest"))


def found_by(
    network: Network, case: Shared, k: int, matrix: GraphMatrix = "laplacian", which: graphs.SpectrumEnd = "smallest"
) -> graphs.GraphEigenpairs:
    return graphs.graph_eigenvectors(case.local(network), network, k, matrix=matrix, which=which)


def raises_naming(kind: type[Exception], number: str) -> AbstractContextManager[object]:
    """Expect an error of another package whose message states a number."""
    return pytest.raises(kind, match=rf"\b{number}\b")


# ----------------------------------------------------------------------------------------- the network's own matrix


def test_the_documented_rounds_are_correct() -> None:
    page = (ROOT / "docs" / "graphs.md").read_text(encoding="utf-8")
    documented = re.findall(r"(?m)^\| `([\w:.-]+)` \| (\d+) \| (\d+) \|", page)
    assert len(documented) == 7
    for name, depth, rounds in documented:
        found = graphs.lambda2(network_of(topology.from_name(name, seed=0)))
        assert found.depth == int(depth)
        if not over_mpi():  # ranks agree in fewer rounds
            assert found.rounds == pytest.approx(int(rounds), rel=0.1)


@pytest.mark.parametrize("rule", get_args(Rule))
@pytest.mark.parametrize("name", NETWORKS)
def test_the_spectrum_of_the_gossip_matrix_is_found_by_its_agents(name: str, rule: Rule) -> None:
    links = sparse.coo_array(sparse.triu(NETWORKS[name].adjacency))
    place = topology.from_edges(
        NETWORKS[name].n_agents, zip(links.row.tolist(), links.col.tolist(), strict=True), rule=rule
    )
    found = graphs.lambda2(network_of(place))
    values = scipy.linalg.eigvalsh(place.gossip_matrix)
    assert abs(found.lambda2 - values[-2]) <= 1e-12
    assert abs(found.lambda_min - values[0]) <= 1e-12
    assert abs(found.lambda2 - place.lambda2) <= 1e-12
    assert found.error <= 1e-10
    assert found.proven
    assert found.n_agents == place.n_agents
    assert place.flood_rounds <= 2 * found.depth


def test_highly_repeated_eigenvalues_are_only_proven_if_none_can_be_missed() -> None:
    """With more equal eigenvalues than columns, a single different one among 200 cannot be excluded."""
    complete = graphs.lambda2(network_of(topology.complete(150)))
    assert (abs(complete.lambda2) <= 1e-12, complete.proven) == (True, True)
    star = graphs.lambda2(network_of(topology.star(200)))
    assert abs(star.lambda2 - (1.0 - 1.0 / 200.0)) <= 1e-12
    assert not star.proven


@pytest.mark.skipif(over_mpi(), reason="one agent per thread")
@pytest.mark.parametrize("name", ["torus", "three", "star"])
def test_an_agent_needs_only_its_own_row(name: str) -> None:
    """Instead of the topology every agent has a Neighbourhood, which raises if asked for anything else."""
    place = NETWORKS[name]
    hub = MemoryHub(place.n_agents)

    def alone(network: AgentNetwork) -> graphs.LocalMixing:
        view = graphs.Neighbourhood.of(place, network.agent, n_agents=place.n_agents + 7)
        return graphs.local_mixing(AgentNetwork(view, network.agent, hub.transport(network.agent)))

    found = deepca.run_agents(place, alone, hub=hub)
    assert len(set(found)) == 1  # bitwise identical
    spectrum_ = found[0].spectrum
    assert abs(spectrum_.lambda2 - place.lambda2) <= 1e-12
    assert spectrum_.n_agents == place.n_agents
    assert abs(found[0].eta - deepca.consensus.mixers.fastmix_eta(place.lambda2)) <= 1e-10
    assert found[0].rounds >= deepca.consensus.rates.first_rounds(deepca.FastMix(), place)
    same = graphs.local_mixing(deepca.SimulatedNetwork(place))
    assert abs(same.eta - found[0].eta) <= 1e-12
    assert same.rounds == found[0].rounds


@pytest.mark.skipif(over_mpi(), reason="one agent per thread")
def test_a_run_with_the_computed_spectrum_matches_one_with_the_known_spectrum() -> None:
    """Agents that know only their own row compute η and K for DeEPCA with FastMix."""
    place, d, k = topology.erdos_renyi(10, 0.4, seed=2), 12, 2
    stack = spectrum_problem(10, d, spectrum(d, k, gap=0.5, decay=0.8), 0)
    U = scipy.linalg.eigh(stack.mean(axis=0))[1][:, ::-1][:, :k]
    W0 = deepca.operators.linalg.random_orthonormal(d, k, seed=0)
    hub = MemoryHub(10)

    def alone(network: AgentNetwork) -> tuple[Array, int]:
        view = graphs.Neighbourhood.of(place, network.agent)
        here = AgentNetwork(view, network.agent, hub.transport(network.agent))
        local = graphs.local_mixing(here)
        here = AgentNetwork(view.with_spectrum_of(local.spectrum), network.agent, hub.transport(network.agent))
        here.begin(0, 0, phase="run")
        method = deepca.DeEPCA(stack[network.agent], W0, here, deepca.FastMix(rounds=local.rounds))
        return deepca.solve(method, max_iter=80).W, local.rounds

    parts = deepca.run_agents(place, alone, hub=hub)
    W, K = np.stack([part[0] for part in parts]), parts[0][1]
    given = deepca.solve(
        deepca.DeEPCA(stack, W0, deepca.SimulatedNetwork(place), deepca.FastMix(rounds=K)), max_iter=80
    )
    np.testing.assert_allclose(W, given.W, atol=1e-11)
    assert deepca.operators.linalg.tan_theta(U, W).max() <= 1e-10


def test_a_neighbourhood_knows_only_its_neighbours() -> None:
    view = graphs.Neighbourhood.of(topology.path(5), 1)
    assert view.neighbors(1) == (0, 2)
    assert np.isnan(view.lambda2)
    for ask in (lambda: view.center, lambda: view.paths_from(0), lambda: view.eigenvalues):
        with pytest.raises(TopologyError):
            ask()
    for weights in ({1: 0.5}, {9: 0.5}):  # its own neighbour; an agent beyond the largest number
        with pytest.raises(TopologyError):
            graphs.Neighbourhood.around(1, weights, 4)
    assert graphs.Neighbourhood.around(1, {2: 0.5}, 4).neighbors(1) == (2,)


def test_a_network_without_a_symmetric_matrix_has_no_lambda2() -> None:
    place = deepca.topology.directed.ring(5)
    with raises(TopologyError, parameter="network"):
        graphs.lambda2(network_of(place))
    with pytest.raises(TopologyError):
        SpanningTree.grow(network_of(place))
    odd = network_of(topology.ring(9, rule="best-constant"))
    with pytest.raises(MixingError):
        graphs.local_mixing(odd)
    assert graphs.local_mixing(odd, mixer=deepca.Chebyshev()).rounds >= 1


# ------------------------------------------------------------------------------------------------------- data graphs


@pytest.mark.parametrize(("matrix", "which"), ENDS)
@pytest.mark.parametrize("name", CASES)
def test_eigenvectors_equal_those_of_the_pooled_graph(
    name: str, matrix: GraphMatrix, which: graphs.SpectrumEnd
) -> None:
    case = CASES[name]
    values, vectors = pooled(case.W, matrix, which)
    for k in (1, 2, 4):
        if abs(values[k] - values[k - 1]) <= 1e-9:
            continue
        checked: list[graphs.GraphEigenpairs] = []

        def work(
            blocks: object, network: Network, k: int = k, checked: list[graphs.GraphEigenpairs] = checked
        ) -> tuple[Array, ...]:
            checked.append(found_by(network, case, k, matrix, which))
            return checked[-1].vectors

        X, found = entries(ENGINES[0], case, work), checked[0]
        np.testing.assert_allclose(found.values, values[:k], atol=1e-12 * max(1.0, abs(values).max()))
        np.testing.assert_allclose(X.T @ X, np.eye(k), atol=1e-12)
        tangent = float(deepca.operators.linalg.tan_theta(vectors[:, :k], X))
        assert tangent <= 1e-10
        assert found.proven
        assert tangent <= found.error + 1e-13 * abs(values).max() / abs(values[k] - values[k - 1])
        assert found.error <= 1e-10
        assert found.residuals.max() <= 1e-11 * max(1.0, abs(values).max())
        sign = 1.0 if which == "largest" else -1.0
        assert sign * values[k - 1] > sign * found.next_bound >= sign * values[k] - 1e-12 * abs(values).max()


@pytest.mark.parametrize("name", ["grid", "weighted small world"])
@pytest.mark.parametrize("matrix", ["laplacian", "normalized"])
def test_separate_agents_agree_with_the_simulator(name: str, matrix: GraphMatrix) -> None:
    case = CASES[name]
    found = {kind: entries(kind, case, lambda b, n: found_by(n, case, 3, matrix).vectors) for kind in ENGINES}
    for X in found.values():
        np.testing.assert_allclose(X, found[ENGINES[0]], atol=1e-12)
    simulated = deepca.SimulatedNetwork(case.topology)
    whole = graphs.gather_parts(case.blocks, found_by(simulated, case, 3, matrix).vectors)
    np.testing.assert_allclose(found[ENGINES[0]], whole, atol=1e-10)
    for kind in ENGINES:
        done = at_every_agent(
            kind, case.topology, lambda n: np.zeros((*n.batch, found_by(n, case, 3, matrix).products))
        )
        assert_same_traffic(done.traffic, simulated.traffic, case.topology, sums=True)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
@pytest.mark.parametrize(("matrix", "which"), [("laplacian", "smallest"), ("adjacency", "largest")])
@pytest.mark.parametrize("kind", ENGINES)
def test_results_do_not_depend_on_the_unit_of_the_weights(
    kind: str, matrix: GraphMatrix, which: graphs.SpectrumEnd, scale: float
) -> None:
    """Squares of the weights may overflow or underflow. The reference is scipy at scale 1."""
    W = weighted(nx.erdos_renyi_graph(60, 0.2, seed=1), seed=2)
    held, results = shared(csr(W * scale), 4), []

    def found(blocks: Sequence[graphs.GraphBlock], network: Network) -> Sequence[npt.NDArray[np.float64]]:
        results.append(graphs.graph_eigenvectors(blocks, network, 3, matrix=matrix, which=which))
        return results[-1].vectors

    X = entries(kind, held, found)
    M = W.toarray() if matrix == "adjacency" else np.diag(W.sum(axis=1)) - W.toarray()
    values, vectors = scipy.linalg.eigh(M)
    order = slice(None) if which == "smallest" else slice(None, None, -1)
    values, vectors = values[order], vectors[:, order]
    np.testing.assert_allclose(results[0].values / scale, values[:3], atol=1e-12 * float(np.abs(values).max()))
    assert results[0].proven
    assert float(np.linalg.norm(X - vectors[:, :3] @ (vectors[:, :3].T @ X), 2)) <= max(results[0].error, 1e-13)


def test_a_large_sparse_graph_agrees_with_eigsh() -> None:
    W = weighted(nx.convert_node_labels_to_integers(nx.grid_2d_graph(30, 41)), seed=4)
    case = shared(W, 12)
    L = csr(sparse.diags_array(np.asarray(W.sum(axis=1)).ravel()) - W)
    values, vectors = eigsh(L.tocsc(), k=4, sigma=-1e-3, v0=np.ones(W.shape[0]))
    X = entries(ENGINES[0], case, lambda b, n: found_by(n, case, 4).vectors)
    np.testing.assert_allclose((X * np.asarray(L @ X)).sum(axis=0), np.sort(values), atol=1e-11)
    assert float(deepca.operators.linalg.tan_theta(vectors, X)) <= 1e-9


@pytest.mark.parametrize(("name", "k"), [("digits", 10), ("breast cancer", 4), ("wine", 3)])
def test_eigenvectors_of_graphs_of_real_data_are_right(name: str, k: int) -> None:
    """The graphs connect nearest neighbours with Gaussian weights; agents have every sixth point, or a region."""
    given = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}[name]().data[:500]
    points = (given - given.mean(axis=0)) / np.maximum(given.std(axis=0), 1e-9)
    apart = kneighbors_graph(points, 12, mode="distance")
    apart.data = np.exp(-np.square(apart.data / np.median(apart.data)))
    W = csr(apart.maximum(apart.T))
    values, vectors = pooled(W, "normalized", "smallest")
    for labels in (np.arange(len(points)) % 6, np.argsort(np.argsort(points[:, 2])) * 6 // len(points)):
        case = Shared(W, *graphs.partition_graph(W, labels))
        X = entries(ENGINES[0], case, lambda b, n: graphs.graph_eigenvectors(b, n, k, matrix="normalized").vectors)
        assert float(deepca.operators.linalg.tan_theta(vectors[:, :k], X)) <= 1e-10
        found = found_by(network_of(case.topology), case, k, "normalized")
        np.testing.assert_allclose(found.values, values[:k], atol=1e-12)
        assert found.proven


def test_the_bound_includes_the_effect_of_orthonormalization_on_residuals() -> None:
    """If the start spans a small space completely, vectors are rotated after their residuals were measured."""
    links = [(0, 1), (1, 2), (2, 3), (3, 4), (1, 3), (2, 4), (3, 4)]
    for seed in range(60):
        W = np.zeros((5, 5))
        W[tuple(zip(*links, strict=True))] = np.random.default_rng(seed).uniform(0.5, 2.0, len(links))
        blocks, place = graphs.partition_graph(W + W.T, [0, 1, 1, 2, 2])
        found = graphs.graph_eigenvectors(blocks, SimulatedNetwork(place), 2, matrix="normalized", seed=seed)
        root = 1 / np.sqrt((W + W.T).astype(np.longdouble).sum(axis=1))
        truth = of_matrix(np.eye(5) - root[:, None] * (W + W.T) * root)
        X = graphs.gather_parts(blocks, found.vectors)
        assert tangent(truth.vectors[:, -2:], truth.vectors[:, :-2], X) <= found.error


def test_repeated_eigenvalues_raise_unless_all_of_them_are_requested() -> None:
    case = shared(weighted(nx.cycle_graph(40)), 5)
    network = network_of(case.topology)
    with raises(GapError, parameter="k", value=2) as caught:
        graphs.fiedler(case.local(network), network)
    assert all(f"k = {n}" in str(caught.value) for n in (1, 3))  # the k to choose instead
    values, vectors = pooled(case.W, "laplacian", "smallest")
    X = entries(ENGINES[0], case, lambda b, n: found_by(n, case, 3).vectors)
    assert float(deepca.operators.linalg.tan_theta(vectors[:, :3], X)) <= 1e-10
    np.testing.assert_allclose(found_by(network, case, 3).values, values[:3], atol=1e-12)
    whole = shared(weighted(nx.complete_graph(12)), 3)
    with raises(GapError, parameter="k", value=4):
        found_by(network_of(whole.topology), whole, 4)
    np.testing.assert_allclose(found_by(network_of(whole.topology), whole, 12).values, [0.0] + [12.0] * 11, atol=1e-12)


def test_agents_find_the_fiedler_vector_of_their_own_network() -> None:
    place = topology.from_networkx(nx.barbell_graph(6, 3))

    def work(network: Network) -> Array:
        value, parts = graphs.fiedler(graphs.network_blocks(network), network)
        return np.array([[value, *part] for part in parts]).reshape(*network.batch, 2)

    values, vectors = scipy.linalg.eigh(place.laplacian)
    for kind in ENGINES:
        found = at_every_agent(kind, place, work).values
        np.testing.assert_allclose(found[:, 0], values[1], atol=1e-13)
        assert abs(abs(found[:, 1] @ vectors[:, 1]) - 1.0) <= 1e-12
        assert abs(found[:, 1].sum()) <= 1e-12
        assert found[np.argmax(np.abs(found[:, 1])), 1] > 0.0


def test_self_loops_count_as_in_scipy() -> None:
    W = weighted(nx.path_graph(14), seed=0)
    W.setdiag(np.linspace(0.0, 3.0, 14))
    case = shared(csr(W), 3)
    for matrix, which in ENDS:
        values, _ = pooled(case.W, matrix, which)
        found = found_by(network_of(case.topology), case, 3, matrix, which)  # type: ignore[arg-type]
        np.testing.assert_allclose(found.values, values[:3], atol=1e-13)


def test_messages_contain_boundary_nodes_only() -> None:
    """Of a grid in stripes, a product sends each neighbour one row of the grid, and no inner nodes."""
    W = weighted(nx.convert_node_labels_to_integers(nx.grid_2d_graph(12, 5)))
    case = Shared(W, *graphs.partition_graph(W, np.arange(60) // 20))
    network = deepca.SimulatedNetwork(case.topology)
    rows = BlockRows(case.blocks, network, "laplacian", negated=False)
    before = network.traffic
    X = np.random.default_rng(0).standard_normal((3, 20, 2))
    np.testing.assert_allclose(
        rows.product(X).reshape(60, 2), (np.diag(W.sum(axis=1)) - W.toarray()) @ X.reshape(60, 2), atol=1e-14
    )
    sent = network.traffic - before
    assert (sent.rounds, sent.messages) == (1, 4)
    assert sent.bytes_sent == 4 * 10 * 2 * 8  # the agent in the middle has two boundary rows


# ------------------------------------------------------------------------------------------------------ sums


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", ["grid", "torus", "star", "complete", "hypercube", "two", "three"])
def test_sums_over_a_tree_grown_by_the_agents_are_exact(name: str, kind: str) -> None:
    place = NETWORKS[name]
    x = np.random.default_rng(0).standard_normal((place.n_agents, 3))

    def work(network: Network) -> Array:
        tree = SpanningTree.grow(network)
        assert tree.n_agents == place.n_agents
        assert tree.depth == nx.radius(place.to_networkx())  # the root is a centre
        total = tree.sum(x[network.local])
        return np.broadcast_to(total, (*network.batch, 3))

    found = at_every_agent(kind, place, work).values
    assert (found == found[0]).all()
    np.testing.assert_allclose(found[0], x.sum(axis=0), atol=1e-13)


@pytest.mark.skipif(over_mpi(), reason="agents in threads")
def test_a_lost_message_is_detected() -> None:
    class Losing(AgentNetwork):
        loses = False

        def _combine_words(self, part: Any, layout: Any, ops: Any, own: Message, received: Any) -> Message:
            received = {} if self.loses and self.agent == 3 else received
            return super()._combine_words(part, layout, ops, own, received)

    hub = MemoryHub(7, timeout=10.0)

    def work(network: AgentNetwork) -> Array:
        lossy = Losing(network.topology, network.agent, hub.transport(network.agent))
        tree = SpanningTree.grow(lossy)
        lossy.loses, lossy.reliable = True, False
        return tree.sum(np.ones(2))

    with raises_naming(NetworkError, "7"):
        deepca.run_agents(topology.ring(7), work, hub=hub)


@pytest.mark.parametrize("kind", ENGINES)
def test_collect_returns_each_neighbours_array(kind: str) -> None:
    place = topology.star(6)
    x = np.arange(24.0).reshape(6, 2, 2)

    def work(network: Network) -> Array:
        got, beside = network.collect(x[network.local]), network.neighbors
        assert got.shape == (*beside.shape, 2, 2)
        full = np.zeros((*network.batch, 6, 2, 2))
        for at in np.ndindex(*beside.shape):
            if beside[at] >= 0:
                full[(*at[:-1], beside[at])] = got[at]
            else:
                assert (got[at] == 0.0).all()
        return full

    done = at_every_agent(kind, place, work)
    for j in range(6):
        for i in range(6):
            expected = x[i] if i in place.neighbors(j) else np.zeros((2, 2))
            np.testing.assert_array_equal(done.values[j, i], expected)
    assert (done.traffic.rounds, done.traffic.messages, done.traffic.bytes_sent) == (1, 10, 10 * 32)


# ------------------------------------------------------------------------------------------------------- bad input


def tampered(case: Shared, agent: int, u: int, v: int, weight: float) -> list[graphs.GraphBlock]:
    """Return the blocks, one of which has another weight for an edge that leaves it."""
    blocks, block = list(case.blocks), case.blocks[agent]
    W = block.weights.tolil()
    W[int(np.searchsorted(block.nodes, u)), block.nodes.size + int(np.searchsorted(block.beyond, v))] = weight
    blocks[agent] = graphs.GraphBlock(block.nodes, csr(W), block.beyond, block.owners)
    return blocks


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("weight", [2.0, 0.0])
def test_agents_that_disagree_on_a_weight_raise(kind: str, weight: float) -> None:
    W = weighted(nx.path_graph(9))
    case = Shared(W, *graphs.partition_graph(W, np.arange(9) // 3))
    blocks = tampered(case, 1, 3, 2, weight)

    def work(network: Network) -> Array:
        graphs.fiedler([blocks[int(j)] for j in network.local.ravel()], network)
        return np.zeros(network.batch)

    with pytest.raises(AsymmetricError) as caught:
        at_every_agent(kind, case.topology, work)
    error = caught.value
    assert {(error.row, error.column): error.value} in ({(2, 3): (1.0, weight)}, {(3, 2): (weight, 1.0)})


@pytest.mark.parametrize("kind", ENGINES)
def test_a_disconnected_graph_raises_at_every_agent(kind: str) -> None:
    """The agents are connected, but nodes 0 … 5 and 6 … 11 are not."""
    graph = nx.disjoint_union(nx.path_graph(6), nx.cycle_graph(6))
    W = weighted(graph)
    blocks, place = graphs.partition_graph(W, [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1])

    def work(network: Network) -> Array:
        graphs.fiedler([blocks[int(j)] for j in network.local.ravel()], network)
        return np.zeros(network.batch)

    with raises(DisconnectedError, value=(0, 6)):
        at_every_agent(kind, place, work)
    with pytest.raises(DisconnectedError):
        graphs.partition_graph(W, [0] * 6 + [1] * 6)


def test_connectivity_is_found_for_interleaved_blocks() -> None:
    """The nodes of a path alternate between two agents, so that labels take as many rounds as there are nodes."""
    W = weighted(nx.path_graph(41))
    case = Shared(W, *graphs.partition_graph(W, np.arange(41) % 2))
    values, _ = pooled(W, "laplacian", "smallest")
    assert found_by(network_of(case.topology), case, 2).values[1] == pytest.approx(values[1], abs=1e-13)


def test_an_edge_between_agents_without_a_link_is_rejected() -> None:
    W = weighted(nx.cycle_graph(9))
    case = Shared(W, *graphs.partition_graph(W, np.arange(9) // 3))
    network = network_of(topology.path(3))
    with raises(TopologyError, row=0, column=8, agent=0):
        graphs.fiedler(case.local(network), network)


@pytest.mark.parametrize(
    ("W", "labels", "error", "facts"),
    [
        ([[0.0, 1.0], [2.0, 0.0]], [0, 1], AsymmetricError, {"row": 0, "column": 1, "value": (1.0, 2.0)}),
        ([[0.0, -1.0], [-1.0, 0.0]], [0, 0], DataError, {"row": 0, "column": 1, "value": -1.0}),
        ([[0.0, np.nan], [np.nan, 0.0]], [0, 0], DataError, {"row": 0, "column": 1}),
        ([[0.0, np.inf], [np.inf, 0.0]], [0, 1], DataError, {"row": 0, "column": 1, "value": np.inf}),
        ([[0.0, 1e-14], [2e-14, 0.0]], [0, 1], AsymmetricError, {"row": 0, "column": 1, "value": (1e-14, 2e-14)}),
        ([[0.0, 1e-14], [2e-14, 0.0]], [0, 0], AsymmetricError, {"row": 0, "column": 1}),
        ([[0.0, 1.0 + 1.0j], [1.0 - 1.0j, 0.0]], [0, 1], DataError, {"value": np.dtype(np.complex128)}),
        ([["0", "a"], ["a", "0"]], [0, 1], DataError, {"value": np.dtype("<U1")}),
        ([[0.0, 1.0, 1.0]], [0], DataError, {"parameter": "adjacency", "value": (1, 3)}),
        ([[0.0, 1.0], [1.0, 0.0]], [0, 2], DataError, {"parameter": "labels", "agent": 1}),
        ([[0.0, 1.0], [1.0, 0.0]], [0], DataError, {"parameter": "labels", "agent": None}),
        ([[0.0, 1.0], [1.0, 0.0]], [0.5, 1.0], DataError, {"parameter": "labels", "agent": None}),
    ],
)
def test_graphs_that_cannot_be_partitioned_are_rejected(
    W: list[list[float]], labels: list[int], error: type[Exception], facts: dict[str, object]
) -> None:
    with raises(error, **facts), np.errstate(invalid="ignore"):
        graphs.partition_graph(np.array(W), labels)


def test_agents_that_disagree_on_a_small_weight_raise() -> None:
    W = csr(weighted(nx.path_graph(9)) * 1e-20)
    case = Shared(W, *graphs.partition_graph(W, np.arange(9) // 3))
    network = network_of(case.topology)
    blocks = tampered(case, 1, 3, 2, 2e-20)
    with pytest.raises(AsymmetricError) as caught:
        graphs.fiedler([blocks[int(j)] for j in network.local], network)
    assert set(caught.value.value) == {1e-20, 2e-20}  # type: ignore[call-overload]
    values, _ = pooled(W, "laplacian", "smallest")
    found, _ = graphs.fiedler([case.blocks[int(j)] for j in network.local], network)
    assert found == pytest.approx(values[1], rel=1e-12, abs=0.0)


def test_the_given_weights_are_not_modified() -> None:
    W = sparse.csr_array(([1.0, 0.0, 1.0], ([0, 0, 1], [1, 0, 0])), shape=(2, 2))
    graphs.partition_graph(W, [0, 1])
    assert W.nnz == 3


def test_invalid_parameters_are_rejected() -> None:
    case = CASES["path"]
    network = network_of(case.topology)
    blocks = case.local(network)
    for parameter, value in (
        ("k", 0),
        ("which", "middle"),
        ("matrix", "signless"),
        ("tol", 0.0),
        ("tol", "small"),
        ("seed", -1),
        ("seed", 0.5),
    ):
        arguments: dict[str, Any] = {"k": 2, parameter: value}
        with raises(ParameterError, parameter=parameter, value=value):
            graphs.graph_eigenvectors(blocks, network, **arguments)
    with raises_naming(InvalidInput, "60"):
        graphs.graph_eigenvectors(blocks, network, 61)
    with raises(InvalidInput, parameter="blocks", value=0):
        graphs.graph_eigenvectors([], network, 2)
    with raises(ParameterError, parameter="matrix", value="adjacency"):
        graphs.fiedler(blocks, network, matrix="adjacency")
