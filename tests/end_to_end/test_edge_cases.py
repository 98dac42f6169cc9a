"""Test edge cases: one agent, the complete graph, any scale of the data, and more components than the rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import deepca
from deepca import CPCA, Chebyshev, DeEPCA, DePCA, FastMix, Gossip, Tolerance
from deepca._util.typing import Array
from deepca.consensus.mixers import Mixer
from deepca.operators import Form, from_rows
from deepca.solver.result import Result
from deepca.topology import Topology
from tests.support.engines import everyone, network_of, run_separately
from tests.support.helpers import random_psd_rows, worst_tangent
from tests.support.problems import pooled_answer, spectrum, spectrum_problem

MIXERS: list[Callable[[int], Mixer]] = [FastMix, Gossip, Chebyshev]

# ---------------------------------------------------------------------------------- one agent, everyone connected


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("stop", [None, Tolerance(1e-10)], ids=["no stop rule", "stop rule"])
def test_a_single_agent_runs_the_power_method(mixer: Callable[[int], Mixer], stop: Tolerance | None) -> None:
    """With m = 1, nothing is sent."""
    stack = spectrum_problem(1, 7, spectrum(7, 2, decay=0.7), 0, heterogeneity=0.0)
    _, U = pooled_answer(stack, 2)
    W0 = deepca.operators.linalg.random_orthonormal(7, 2, seed=0)
    network = network_of(deepca.topology.complete(1))
    result = deepca.solve(DeEPCA(stack, W0, network, mixer(3)), max_iter=200, stop=stop)
    assert result.status.ok
    assert worst_tangent(U, result.W) <= 1e-10
    assert result.traffic.bytes_sent == result.traffic.messages == 0
    central = deepca.solve(CPCA(stack[0], W0), max_iter=result.iterations)
    np.testing.assert_allclose(result.W[0], central.W, atol=1e-12)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("m", [2, 3, 8])
def test_the_complete_graph_is_exact_after_one_round(m: int, mixer: Callable[[int], Mixer]) -> None:
    """With λ₂ = 0 and η = 0, every iteration with K = 1 equals one of the centralised power method."""
    topology = deepca.topology.complete(m)
    assert topology.lambda2 == 0.0
    stack = spectrum_problem(m, 7, spectrum(7, 2, decay=0.7), 1, heterogeneity=0.9)
    _, U = pooled_answer(stack, 2)
    W0 = deepca.operators.linalg.random_orthonormal(7, 2, seed=0)
    result = deepca.solve(DeEPCA(stack, W0, network_of(topology), mixer(1)), max_iter=60)
    central = deepca.solve(CPCA(stack.mean(axis=0), W0), max_iter=60)
    np.testing.assert_allclose(result.W, np.broadcast_to(central.W, result.W.shape), atol=1e-11)
    assert worst_tangent(U, result.W) <= 1e-12


# -------------------------------------------------------------------------------------------------------- scale


@pytest.mark.parametrize("form", ["rows", "covariance"])
@pytest.mark.parametrize("factor", [1e-12, 1e12])
@pytest.mark.parametrize("algorithm", [DeEPCA, DePCA])
def test_the_answer_does_not_depend_on_the_scale_of_the_data(
    algorithm: type[DeEPCA] | type[DePCA], factor: float, form: Form
) -> None:
    """The answer, iterations and status stay the same; eigenvalues scale with the square."""
    rows = random_psd_rows(8, 20, 7, [5.0, 3.0, 2.0, 0.8, 0.4, 0.2, 0.1], seed=0)
    W0 = deepca.operators.linalg.random_orthonormal(7, 3, seed=0)
    topology = deepca.topology.erdos_renyi(8, 0.5, seed=0)

    def run(scale: float) -> Result[Any]:
        A = from_rows([X * scale for X in rows], form=form)
        mixer = FastMix(8)
        return deepca.solve(algorithm(A, W0, network_of(topology), mixer), max_iter=120, stop=Tolerance(1e-9))

    plain, scaled = run(1.0), run(factor)
    assert scaled.iterations == plain.iterations
    assert scaled.status.code == plain.status.code
    assert scaled.rank == plain.rank == 3
    np.testing.assert_allclose(scaled.W, plain.W, rtol=0, atol=1e-11)
    np.testing.assert_allclose(scaled.eigenvalues, plain.eigenvalues * factor**2, rtol=1e-10)
    if algorithm is DeEPCA:
        _, U = pooled_answer(sum(X.T @ X for X in rows) / 8, 3)
        assert scaled.status.code == "converged"
        assert worst_tangent(U, scaled.W) <= 1e-9


@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_scaled_data_reach_full_accuracy(factor: float) -> None:
    """The start of the recursion loses no accuracy."""
    rows = random_psd_rows(8, 20, 7, [5.0, 3.0, 2.0, 0.8, 0.4, 0.2, 0.1], seed=0)
    _, U = pooled_answer(sum(X.T @ X for X in rows) / 8, 3)
    W0 = deepca.operators.linalg.random_orthonormal(7, 3, seed=0)
    topology = deepca.topology.erdos_renyi(8, 0.5, seed=0)
    A = from_rows([X * factor for X in rows])
    result = deepca.solve(DeEPCA(A, W0, network_of(topology), FastMix(6)), max_iter=150)
    assert worst_tangent(U, result.W) <= 1e-12


# ------------------------------------------------------------------------------- more components than there are

CASES: dict[str, tuple[int, int, int, int, int, int, Callable[[int], Topology]]] = {
    # m, rows per agent, d, k, rank, K, graph
    "all zero": (8, 5, 9, 3, 0, 3, deepca.topology.ring),
    "rank 1 of 3": (10, 20, 12, 3, 1, 4, deepca.topology.ring),
    "rank 2 of 4": (10, 20, 12, 4, 2, 4, deepca.topology.ring),
    "rank 3 of 4": (10, 20, 12, 4, 3, 4, deepca.topology.ring),
    "two rows per agent": (10, 2, 12, 5, 3, 3, deepca.topology.ring),
    "one row per agent": (8, 1, 12, 5, 3, 4, lambda m: deepca.topology.erdos_renyi(m, 0.6, seed=3)),
    "one row per agent, star": (6, 1, 10, 4, 2, 6, deepca.topology.star),
    "k = d": (8, 2, 9, 9, 4, 3, deepca.topology.ring),
    "k = d, one row": (8, 1, 9, 9, 4, 4, lambda m: deepca.topology.erdos_renyi(m, 0.6, seed=3)),
    "one agent": (1, 3, 8, 5, 2, 1, deepca.topology.complete),
    "complete": (5, 2, 8, 5, 3, 1, deepca.topology.complete),
}


def low_rank(case: str) -> tuple[list[Array], Topology, int, int, int, int, Array]:
    m, n, d, k, r, K, graph = CASES[case]
    topology = graph(m)
    rows = random_psd_rows(m, n, d, list(np.geomspace(4.0, 1.0, r)) if r else [], seed=len(case))
    stacked = np.concatenate(rows)
    V = scipy.linalg.eigh(stacked.T @ stacked)[1][:, ::-1][:, :r]
    return rows, topology, d, k, r, K, V


def assert_completed(W: Array, components: Array, eigenvalues: Array, V: Array, k: int, r: int) -> None:
    """Check that all bases are orthonormal, begin with the directions of the data, and are completed identically."""
    assert np.isfinite(eigenvalues).all()
    for X in (W, components):
        assert np.isfinite(X).all()
        assert X.shape[-1] == k
        gram = np.swapaxes(X, -1, -2) @ X
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(k), gram.shape), atol=1e-12)
    for w, x in zip(W, components, strict=True):
        assert np.linalg.norm(V - w @ (w.T @ V)) <= 1e-10
        assert np.linalg.norm(V - x[:, :r] @ (x[:, :r].T @ V)) <= 1e-10
        np.testing.assert_allclose(w @ w.T, W[0] @ W[0].T, atol=1e-8)
        np.testing.assert_allclose(x @ x.T, w @ w.T, atol=1e-8)
        np.testing.assert_array_equal(x, components[0])
    np.testing.assert_allclose(eigenvalues[:, r:], 0.0, atol=1e-12)


@pytest.mark.parametrize("stop", [None, Tolerance(1e-10)], ids=["no stop rule", "stop rule"])
@pytest.mark.parametrize("form", ["rows", "covariance"])
@pytest.mark.parametrize("case", CASES)
def test_components_beyond_the_rank_complete_the_basis(case: str, form: Form, stop: Tolerance | None) -> None:
    """The rank is reported, the leading columns are the answer, and the others agree between agents."""
    rows, topology, d, k, r, K, V = low_rank(case)
    W0 = deepca.operators.linalg.random_orthonormal(d, k, seed=1)
    network = network_of(topology)
    max_iter = 400 if stop else 200  # without a stop rule, a run takes all iterations
    result = deepca.solve(DeEPCA(from_rows(rows, form=form), W0, network, FastMix(K)), max_iter=max_iter, stop=stop)
    # unlike rows, covariances cannot distinguish zero from the rounding of the largest eigenvalue
    assert result.status.code == ("rank_deficient" if form == "rows" or r == 0 else "below_rounding")
    assert result.status.ok == (result.status.code == "rank_deficient")
    assert result.rank == r
    assert result.certificate is not None
    assert r == 0 or result.certificate.n_known(1e-6) == r
    m = topology.n_agents
    assert_completed(everyone(result.W, m), everyone(result.components, m), everyone(result.eigenvalues, m), V, k, r)


@pytest.mark.parametrize("case", CASES)
def test_separate_agents_complete_the_basis_in_the_same_way(case: str) -> None:
    """All agents find the same rank and complete the basis identically."""
    rows, topology, d, k, r, K, V = low_rank(case)
    W0 = deepca.operators.linalg.random_orthonormal(d, k, seed=1)
    result = run_separately(
        topology,
        from_rows(rows, form="rows"),
        lambda A_j, network: DeEPCA(A_j, W0, network, FastMix(K)),
        max_iter=400,
        stop=Tolerance(1e-10),
    ).whole
    assert (result.status.code, result.rank) == ("rank_deficient", r)
    assert_completed(result.W, result.components, result.eigenvalues, V, k, r)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_cpca_and_depca_complete_the_basis_of_low_rank_data(rank: int) -> None:
    rows = random_psd_rows(6, 4, 8, list(np.geomspace(4.0, 1.0, rank)) if rank else [], seed=5)
    stack = np.stack([X.T @ X for X in rows])
    V = scipy.linalg.eigh(stack.mean(axis=0))[1][:, ::-1][:, :rank]
    W0 = deepca.operators.linalg.random_orthonormal(8, 5, seed=1)
    central = deepca.solve(CPCA(stack.mean(axis=0), W0), max_iter=200)
    code = "below_rounding" if rank else "rank_deficient"
    assert (central.status.code, central.rank) == (code, rank)
    assert_completed(central.W[None], central.components[None], central.eigenvalues[None], V, 5, rank)
    network = network_of(deepca.topology.complete(6))
    mixed = deepca.solve(DePCA(stack, W0, network, FastMix(1)), max_iter=200)
    assert (mixed.status.code, mixed.rank) == (code, rank)
    W, components, eigenvalues = (everyone(x, 6) for x in (mixed.W, mixed.components, mixed.eigenvalues))
    assert_completed(W, components, eigenvalues, V, 5, rank)


@pytest.mark.parametrize("stop", [None, Tolerance(1e-9)], ids=["no stop rule", "stop rule"])
def test_all_components_of_full_rank_data_can_be_computed(stop: Tolerance | None) -> None:
    """With k = d, all eigenvalues are returned."""
    d, m = 6, 7
    values = np.array([5.0, 3.0, 2.0, 1.0, 0.6, 0.3])
    rows = random_psd_rows(m, 12, d, list(values), seed=2)
    W0 = deepca.operators.linalg.random_orthonormal(d, d, seed=1)
    network = network_of(deepca.topology.ring(m))
    result = deepca.solve(DeEPCA(from_rows(rows), W0, network, FastMix(6)), max_iter=200, stop=stop)
    assert result.status.ok
    assert result.rank == d
    np.testing.assert_allclose(result.eigenvalues, np.broadcast_to(values, result.eigenvalues.shape), rtol=1e-7)


def test_identity_matrices_are_reported_as_not_unique() -> None:
    """With A_j = I every subspace is invariant, so the run ends at once."""
    stack = np.stack([np.eye(5)] * 4)
    W0 = deepca.operators.linalg.random_orthonormal(5, 2, seed=1)
    network = network_of(deepca.topology.ring(4))
    result = deepca.solve(DeEPCA(stack, W0, network, FastMix(3)), max_iter=50, stop=Tolerance(1e-9))
    assert result.status.code == "not_unique"
    assert not result.status.ok
    assert result.iterations < 50
    np.testing.assert_allclose(result.W, np.broadcast_to(W0, result.W.shape), atol=1e-12)
    np.testing.assert_allclose(result.eigenvalues, 1.0, atol=1e-12)
