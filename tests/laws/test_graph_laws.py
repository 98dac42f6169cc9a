"""Laws of eigenvectors with partitioned rows, on random graphs."""

from __future__ import annotations

import networkx as nx
import numpy as np
import numpy.typing as npt
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from deepca.algorithms.partitioned_rows import FilteredSubspaceIteration
from deepca.decomposition.spectral import graphs
from deepca.decomposition.spectral.block_rows import BlockRows
from deepca.decomposition.spectral.blocks import GraphMatrix
from deepca.errors import GapError
from deepca.network.trees import SpanningTree
from deepca.topology import Topology
from tests.laws.strategies import edge_lists, quick, seeds, topologies
from tests.support.engines import ENGINES, network_of
from tests.support.errors import raises
from tests.support.graph_cases import Shared, entries, pooled, shared, weighted

Array = npt.NDArray[np.float64]


@st.composite
def cases(draw: st.DrawFn) -> Shared:
    """Draw a connected weighted graph over a few agents."""
    n, seed = draw(st.integers(3, 24)), draw(seeds)
    graph = nx.Graph(edge_lists(n, draw(st.sampled_from([0.0, 0.1, 0.4])), seed))
    graph = nx.relabel_nodes(graph, {old: new for new, old in enumerate(sorted(graph))})
    W = weighted(graph, seed=draw(st.sampled_from([None, 1, 2])))
    return shared(W, draw(st.integers(1, min(n, 6))), seed)


@given(topologies(min_agents=2))
@quick(40)
def test_the_gossip_spectrum_of_any_graph_is_right_and_proven(place: Topology) -> None:
    found = graphs.lambda2(network_of(place))
    values = scipy.linalg.eigvalsh(place.gossip_matrix)
    assert abs(found.lambda2 - values[-2]) <= 1e-12
    assert abs(found.lambda_min - values[0]) <= 1e-12
    assert found.proven


@given(cases(), st.sampled_from(["laplacian", "normalized"]), st.integers(1, 4))
@quick(60)
def test_eigenvectors_of_any_graph_are_right(case: Shared, matrix: GraphMatrix, k: int) -> None:
    """Eigenvectors are orthonormal over the network, and the known one comes first."""
    k = min(k, case.size)
    values, vectors = pooled(case.W, matrix, "smallest")
    network = network_of(case.topology)
    gap = values[k] - values[k - 1] if k < case.size else np.inf
    if gap <= 1e-11:
        with raises(GapError, parameter="k", value=k):
            graphs.graph_eigenvectors(case.local(network), network, k, matrix=matrix)
        return
    if gap <= 1e-6:
        return  # it is not clear whether there is a gap
    X = entries(
        ENGINES[0], case, lambda blocks, network: graphs.graph_eigenvectors(blocks, network, k, matrix=matrix).vectors
    )
    np.testing.assert_allclose(X.T @ X, np.eye(k), atol=1e-12)
    degrees = np.asarray(case.W.sum(axis=1)).ravel() if matrix == "normalized" else np.ones(case.size)
    constant = np.sqrt(degrees / degrees.sum())
    np.testing.assert_allclose(X[:, 0], constant, atol=1e-14)
    assert np.abs(constant @ X[:, 1:]).max(initial=0.0) <= 1e-13
    distance = np.linalg.norm(X - vectors[:, :k] @ (vectors[:, :k].T @ X), 2)
    assert distance <= 1e-13 * case.size * max(1.0, float(values[-1])) / min(gap, 1.0)


@given(cases(), seeds)
@quick(25)
def test_eigenvectors_do_not_depend_on_the_partition_and_the_numbering_of_agents(case: Shared, seed: int) -> None:
    """Blocks are given to other agents, and nodes to other blocks."""
    values, _ = pooled(case.W, "laplacian", "smallest")
    if values[2] - values[1] <= 1e-3:
        return
    rng = np.random.default_rng(seed)
    m = case.topology.n_agents
    owner = np.empty(case.size, dtype=np.int64)
    for j, block in enumerate(case.blocks):
        owner[block.nodes] = j
    found = []
    for labels in (owner, rng.permutation(m)[owner], rng.permutation(owner)):
        other = Shared(case.W, *graphs.partition_graph(case.W, labels))
        found.append(entries(ENGINES[0], other, lambda b, n: [x[:, None] for x in graphs.fiedler(b, n)[1]]))
    for X in found[1:]:
        np.testing.assert_allclose(X, found[0], atol=1e-10)


@given(cases(), st.integers(0, 20))
@quick(25)
def test_the_bound_on_the_remaining_eigenvalues_holds(case: Shared, seed: int) -> None:
    """The bound also holds for columns that are not eigenvectors yet."""
    network = network_of(case.topology)
    rows = BlockRows(case.local(network), network, "laplacian", negated=False)
    method = FilteredSubspaceIteration(rows, SpanningTree.grow(network), 1, seed=seed)
    state = method.init()
    values = pooled(case.W, "laplacian", "largest")[0] / rows.unit
    for _ in range(3):
        for s in (1, 2):
            if s < state.theta.size:
                bound, _ = method.upper_bound(state, s, 1e-6)
                assert bound >= values[s] - 1e-12 * values[0]
        state = method.step(state, 1e-6)
        assert (state.theta <= values[: state.theta.size] + 1e-12 * values[0]).all()  # Cauchy
