"""Test that agents agree on one answer even if their processors round differently or choose other bases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import deepca
from deepca import topology
from deepca._util.typing import Array
from deepca.data.sources import as_source
from deepca.decomposition.eigen import eigenpairs
from deepca.decomposition.fit import Decomposition, build_model, fit
from deepca.decomposition.settings import Settings
from deepca.decomposition.spectral.clustering import spectral_clustering
from deepca.decomposition.spectral.graphs import graph_eigenvectors, lambda2
from deepca.decomposition.svd import singular_triplets
from deepca.network import AgentNetwork, SimulatedNetwork
from tests.support.engines import over_mpi
from tests.support.graded import graded_rows, long_svd, tangent_of
from tests.support.graph_cases import shared, weighted
from tests.support.problems import random_rows, spectrum_problem
from tests.support.processors import other_processors

pytestmark = pytest.mark.skipif(over_mpi(), reason="agents in threads")

M, D, K = 5, 30, 3
_NOTHING_SENT = {"messages": 0, "bytes_sent": 0, "control_bytes": 0}
PLACE = topology.from_edges(M, [(0, 1), (1, 2), (2, 3), (3, 4), (1, 3)])


def unreliable(network: AgentNetwork) -> AgentNetwork:
    network.reliable = False
    return network


def with_rows(
    settings: Settings, rows: list[Array], *, reliable: bool = True
) -> Callable[[AgentNetwork], Decomposition]:
    def work(network: AgentNetwork) -> Decomposition:
        place = network if reliable else unreliable(network)
        return fit([as_source(rows[network.agent], f"agent {network.agent}")], place, settings).decomposition

    return work


def pooled_axes(rows: list[Array], k: int) -> tuple[Array, Array]:
    """Return variances and components of the pooled rows, computed by scipy's SVD."""
    X = np.vstack(rows)
    _, sigma, Vt = scipy.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    return np.square(sigma[:k]) / (len(X) - 1), Vt[:k]


def sine(found: Array, true: Array) -> float:
    """Return the sine of the largest angle between two spans of orthonormal rows."""
    return float(np.linalg.norm(true - (true @ found.T) @ found, 2))


CASES = {
    "krylov": Settings(K, algorithm="krylov"),
    "covariance": Settings(K, algorithm="covariance"),
    "accelerated": Settings(K, algorithm="accelerated"),
    "deepca": Settings(K, algorithm="deepca"),
    "float32": Settings(K, algorithm="accelerated", messages="float32"),
    "share": Settings(0.8),
    "scaled": Settings(K, scale=True),
}


def rows_of(name: str) -> list[Array]:
    rows = random_rows(M, 40, D, 3, decay=0.9)
    return [block - np.linspace(1.0, 2.0, D) for block in rows] if CASES[name].scale else rows


@lru_cache
def iterations_on_equal_processors(name: str) -> int:
    """Count the iterations with identical processors."""
    return deepca.run_agents(PLACE, with_rows(CASES[name], rows_of(name)))[0].result.iterations


@pytest.mark.parametrize("who", [0, 1, 3], ids=["agent 0", "the leader", "agent 3"])
@pytest.mark.parametrize("name", CASES)
def test_agents_agree_on_one_answer_with_every_method(name: str, who: int) -> None:
    """All agents have the same bits and a proof, after as many iterations as on equal processors."""
    rows, settings = rows_of(name), CASES[name]
    with other_processors([who], seed=7):
        found = deepca.run_agents(PLACE, with_rows(settings, rows))
    assert_one_answer(found)
    assert abs(found[0].result.iterations - iterations_on_equal_processors(name)) <= 1
    X = np.vstack(rows)
    scale = X.std(axis=0) if settings.scale else np.ones(D)
    variances, axes = pooled_axes([block / scale for block in rows], len(found[0].components))
    assert sine(found[0].components, axes) <= 1e-9
    np.testing.assert_allclose(found[0].variances, variances, rtol=1e-11)


def assert_one_answer(found: list[Decomposition], code: str = "converged") -> None:
    """Check that all agents would write the same bytes, including texts."""
    for one in found:
        assert one.result.certificate is not None
        assert one.result.status.code == code, str(one.result.status)
    assert len({_written(one) for one in found}) == 1


def _written(found: Decomposition) -> bytes:
    """Return the model file with zero traffic, since each agent counts its own here."""
    proof = found.result.certificate
    assert proof is not None
    result = replace(found.result, certificate=replace(proof, traffic=replace(proof.traffic, **_NOTHING_SENT)))
    common = replace(found, result=result, traffic=replace(found.traffic, **_NOTHING_SENT))
    return build_model(common, PLACE, Settings(), whiten=False, single_precision=False).to_bytes()


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("algorithm", ["krylov", "accelerated", "deepca", "depca"])
def test_the_advice_is_the_same_at_all_agents(algorithm: str, who: int) -> None:
    """Its rates and numbers of iterations are computed from agreed values by portable arithmetic."""
    rows, few = random_rows(M, 40, D, 3, decay=0.97), 3 if algorithm == "krylov" else 6
    with other_processors([who], seed=5):
        found = deepca.run_agents(PLACE, with_rows(Settings(K, algorithm=algorithm, max_iter=few), rows))
    assert_one_answer(found, "out_of_iterations")
    assert "more are needed" in found[0].result.status.advice


def test_rates_do_not_use_the_exponential_of_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(x: float) -> float:
        raise AssertionError("another library has another last digit")

    stack = np.stack([np.diag(np.arange(8.0, 0.0, -1.0))] * 3)
    place = SimulatedNetwork(topology.ring(3))
    states = [kind(stack, np.eye(8, 2), place).init() for kind in (deepca.BlockKrylov, deepca.AcceleratedDeEPCA)]
    monkeypatch.setattr("math.exp", another)
    for state in states:
        assert state.convergence_factor(2.0, (1.0,)) == pytest.approx(1.0 / (3.0 + np.sqrt(8.0)), rel=1e-14)


@pytest.mark.parametrize("algorithm", ["deepca", "accelerated"])
def test_agents_agree_on_one_proof_if_averages_are_gossiped(algorithm: str) -> None:
    """Where messages may get lost there is no tree, but agents still check averages in the same way and number."""
    rows, settings = random_rows(M, 40, D, 4, decay=0.85), Settings(K, algorithm=algorithm, tol=1e-8)
    with other_processors([2, 4], seed=1):
        found = deepca.run_agents(PLACE, with_rows(settings, rows, reliable=False))
    assert_one_answer(found)
    assert sine(found[0].components, pooled_axes(rows, K)[1]) <= 1e-8


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("algorithm", ["krylov", "covariance", "accelerated"])
def test_columns_beyond_the_rank_are_the_same_at_all_agents(algorithm: str, who: int) -> None:
    rng = np.random.default_rng(1)
    base = rng.standard_normal((4, D))
    rows = [rng.standard_normal((12, 4)) @ base for _ in range(M)]
    with other_processors([who], seed=3):
        found = deepca.run_agents(PLACE, with_rows(Settings(6, algorithm=algorithm), rows))
    assert_one_answer(found, "rank_deficient")
    gram = found[0].components @ found[0].components.T
    np.testing.assert_allclose(gram, np.eye(6), atol=1e-12)
    assert sine(found[0].components, pooled_axes(rows, 4)[1]) <= 1e-9


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("k", [3, 2])
def test_agents_take_a_steep_spectrum_in_the_same_stages(k: int, who: int) -> None:
    """Variances that span 18 decades are found by deflating the rows of every agent."""
    rows = np.array_split(graded_rows(100, [1e7, 1.0, 0.01], 4), M)
    with other_processors([who], seed=3):
        found = deepca.run_agents(PLACE, with_rows(Settings(k, tol=1e-7), rows))
    assert_one_answer(found, found[0].result.status.code)
    assert found[0].result.status.ok
    X = np.vstack(rows).astype(np.longdouble)
    sigma, V = long_svd(X - X.mean(axis=0))
    np.testing.assert_allclose(np.sqrt(found[0].variances * 99.0), sigma[:k].astype(np.float64), rtol=1e-5)
    assert tangent_of(V[:, :2], found[0].components[:2].T) <= 1e-6


def test_agents_agree_if_krylov_blocks_are_nearly_rank_deficient() -> None:
    """With a steep spectrum, most directions of a block are rounding, and thick restarts split clusters."""
    values = np.concatenate([10.0 ** -np.arange(0.0, 8.0), np.full(52, 1e-9)])
    stack = spectrum_problem(M, 60, values, 2, 0.5)
    A, W0 = deepca.operators.from_matrices(stack), deepca.operators.linalg.random_orthonormal(60, 2, seed=1)

    def work(network: AgentNetwork) -> Any:
        algorithm = deepca.BlockKrylov(A.agent(network.agent), W0, network)
        return deepca.solve(algorithm, max_iter=60, stop=deepca.Tolerance(1e-12))

    with other_processors([0, 2, 4], seed=11):
        found = deepca.run_agents(PLACE, work)
    assert {one.status.code for one in found} == {"converged"}
    assert len({one.certificate.digest for one in found}) == 1
    U = scipy.linalg.eigh(stack.mean(axis=0))[1][:, ::-1][:, :2]
    assert sine(found[0].components.T, U.T) <= 1e-12


def test_agents_agree_on_the_restarts_of_a_long_krylov_run() -> None:
    """A flat spectrum takes more than twelve blocks, after which only some Ritz vectors are retained."""
    values = np.concatenate([[1.05], np.linspace(1.0, 0.2, 119)])
    stack = spectrum_problem(M, 120, values, 5, 0.5)
    A, W0 = deepca.operators.from_matrices(stack), deepca.operators.linalg.random_orthonormal(120, 1, seed=1)

    def work(network: AgentNetwork) -> Any:
        algorithm = deepca.BlockKrylov(A.agent(network.agent), W0, network, guards=1)
        return deepca.solve(algorithm, max_iter=200, stop=deepca.Tolerance(1e-11))

    equal = deepca.run_agents(PLACE, work)
    with other_processors([0, 3], seed=5):
        found = deepca.run_agents(PLACE, work)
    assert {one.status.code for one in found} == {"converged"}
    assert len({one.certificate.digest for one in found}) == 1
    assert equal[0].iterations > 12
    assert abs(found[0].iterations - equal[0].iterations) <= 1


@pytest.mark.parametrize(("which", "algorithm"), [("LA", "auto"), ("SA", "auto"), ("LM", "auto"), ("LM", "deepca")])
def test_agents_agree_on_eigenpairs(which: Any, algorithm: str) -> None:
    rng = np.random.default_rng(2)
    stack = rng.standard_normal((M, 20, 20))
    stack = stack + np.swapaxes(stack, -1, -2)
    operators = deepca.operators.from_matrices(stack)

    def work(network: AgentNetwork) -> Any:
        return eigenpairs(operators.agent(network.agent), network, 3, which=which, algorithm=algorithm, tol=1e-9)

    equal = deepca.run_agents(PLACE, work)
    with other_processors([0, 2], seed=5):
        found = deepca.run_agents(PLACE, work)
    values = scipy.linalg.eigvalsh(stack.mean(axis=0))
    true = {"LA": values[::-1], "SA": values, "LM": values[np.argsort(-np.abs(values))]}[which][:3]
    for one in found:
        assert one.status.ok, str(one.status)
        assert one.vectors.tobytes() == found[0].vectors.tobytes()
        assert one.values.tobytes() == found[0].values.tobytes()
        assert (one.others, one.angle, one.shifts) == (found[0].others, found[0].angle, found[0].shifts)
    np.testing.assert_allclose(found[0].values, true, atol=1e-12 * np.abs(values).max())
    assert abs(found[0].iterations - equal[0].iterations) <= 1


@pytest.mark.parametrize("partition", ["rows", "columns"])
def test_agents_agree_on_singular_triplets(partition: Any) -> None:
    rows = random_rows(M, 25, 20, 6, decay=0.8)
    whole = np.vstack(rows)
    parts = rows if partition == "rows" else np.array_split(whole, M, axis=1)

    def work(network: AgentNetwork) -> Any:
        return singular_triplets([parts[network.agent]], network, 4, partition=partition)

    with other_processors([1, 3], seed=9):
        found = deepca.run_agents(PLACE, work)
    U, sigma, Vt = scipy.linalg.svd(whole, full_matrices=False)
    for one in found:
        assert one.status.ok, str(one.status)
        for field in ("values", "shared_vectors", "explained_variance"):
            assert getattr(one, field).tobytes() == getattr(found[0], field).tobytes(), field
        assert (one.error, one.best_error, one.norm) == (found[0].error, found[0].best_error, found[0].norm)
        assert one.total_variance == found[0].total_variance
    np.testing.assert_allclose(found[0].values, sigma[:4], rtol=1e-12)
    true = Vt[:4] if partition == "rows" else U[:, :4].T
    assert sine(found[0].shared_vectors.T, true) <= 1e-9


def test_agents_agree_on_graph_eigenvectors_and_clusters() -> None:
    import networkx as nx

    graph = shared(weighted(nx.connected_caveman_graph(4, 7), seed=2), 4)

    def work(network: AgentNetwork) -> Any:
        blocks = graph.local(network)
        pairs = graph_eigenvectors(blocks, network, 4, matrix="laplacian")
        clusters = spectral_clustering(blocks, network, 4)
        return pairs, clusters, lambda2(network)

    with other_processors([0, 2], seed=4):
        found = deepca.run_agents(graph.topology, work)
    W = graph.W.toarray()
    L = np.diag(W.sum(axis=1)) - W
    values, vectors = scipy.linalg.eigh(L)
    pairs = [one[0] for one in found]
    for one in pairs:
        assert one.proven
        assert one.values.tobytes() == pairs[0].values.tobytes()
        assert (one.error, one.next_bound) == (pairs[0].error, pairs[0].next_bound)
    np.testing.assert_allclose(pairs[0].values, values[:4], atol=1e-12 * values[-1])
    X = deepca.decomposition.spectral.graphs.gather_parts(graph.blocks, [one.vectors[0] for one in pairs])
    assert sine(X.T, vectors[:, :4].T) <= 1e-10
    together = SimulatedNetwork(graph.topology)
    expected = spectral_clustering(graph.blocks, together, 4)
    labels = np.concatenate([one[1].labels[0] for one in found])
    np.testing.assert_array_equal(labels, np.concatenate(expected.labels))
    assert len({one[1].inertia for one in found}) == 1
    assert len({(one[2].lambda2, one[2].lambda_min) for one in found}) == 1
    assert abs(found[0][2].lambda2 - graph.topology.lambda2) <= 1e-10


def test_arbitrary_directions_below_rounding_do_not_count_as_disagreement() -> None:
    """Agents choose different directions for variances below rounding, which once used up all iterations."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.standard_normal((D, D)))[0]
    rows = [(rng.standard_normal((60, D)) * 0.04 ** np.arange(D)) @ basis for _ in range(M)]
    work = with_rows(Settings(7, tol=1e-4, max_iter=200), rows)
    equal = deepca.run_agents(PLACE, work)
    with other_processors([0, 2, 3], seed=3):
        found = deepca.run_agents(PLACE, work)
    assert len({one.result.components.tobytes() for one in found}) == 1
    assert {one.result.status.code for one in [*equal, *found]} == {"converged"}
    assert abs(found[0].result.iterations - equal[0].result.iterations) <= 2
