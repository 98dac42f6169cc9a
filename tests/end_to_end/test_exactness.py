"""Test that the answer equals that of the pooled data by scipy up to rounding: tan θ ≤ 1e-12."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
from sklearn.decomposition import PCA

import deepca
from deepca import CPCA, Chebyshev, DeEPCA, FastMix, Gossip
from deepca._util.typing import Array
from deepca.consensus.mixers import Mixer
from deepca.operators import from_rows, split_rows
from deepca.topology import Topology
from tests.support.engines import network_of, run_separately
from tests.support.helpers import worst_tangent
from tests.support.problems import spectrum, spectrum_problem
from tests.support.seeds import law_seeds

TOPOLOGIES: list[Callable[[int], Topology]] = [
    lambda seed: deepca.topology.erdos_renyi(15, 0.4, seed=seed),
    lambda seed: deepca.topology.ring(9),
    lambda seed: deepca.topology.star(10),
    lambda seed: deepca.topology.grid(3, 4, rule="lazy-metropolis"),
    lambda seed: deepca.topology.hypercube(4),
    lambda seed: deepca.topology.random_regular(12, 3, seed=seed),
    lambda seed: deepca.topology.complete(7),
]
MIXERS: list[type[FastMix] | type[Gossip] | type[Chebyshev]] = [FastMix, Chebyshev, Gossip]


def answer(pooled: Array, k: int) -> tuple[Array, Array]:
    """Return eigenvalues (descending) and eigenvectors computed by scipy."""
    values, vectors = scipy.linalg.eigh(pooled)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


def random_problem(seed: int, m: int) -> tuple[Array, int]:
    """Draw agents' matrices of random size and spectrum, with a clear gap after k; also return k."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(5, 40))
    k = int(rng.integers(1, min(6, d - 1)))
    values = spectrum(d, k, top=float(rng.uniform(0.5, 50)), gap=0.5, decay=float(rng.uniform(0.6, 0.85)))
    return spectrum_problem(m, d, values, seed, heterogeneity=float(rng.uniform(0.1, 0.9))), k


@pytest.mark.parametrize("seed", law_seeds(21))
def test_deepca_is_exact_at_every_agent(seed: int) -> None:
    """Try random problems on seven graphs with three mixers; the number of rounds does not depend on the accuracy."""
    topology = TOPOLOGIES[seed % 7](seed)
    stack, k = random_problem(seed, topology.n_agents)
    values, U = answer(stack.mean(axis=0), k)
    mixer: Mixer = MIXERS[seed % 3](1)
    mixer = mixer.with_rounds(mixer.rounds_for(topology, 0.05))
    W0 = deepca.operators.linalg.random_orthonormal(stack.shape[-1], k, seed=seed)
    result = deepca.solve(DeEPCA(stack, W0, network_of(topology), mixer), max_iter=300)
    assert result.status.code == "completed"
    assert worst_tangent(U, result.W) <= 1e-12
    np.testing.assert_allclose(result.eigenvalues, np.broadcast_to(values, result.eigenvalues.shape), rtol=1e-11)


@pytest.mark.parametrize("seed", law_seeds(6))
def test_cpca_is_exact(seed: int) -> None:
    """Run the centralised reference on the pooled matrix."""
    stack, k = random_problem(seed + 100, 4)
    values, U = answer(stack.mean(axis=0), k)
    W0 = deepca.operators.linalg.random_orthonormal(stack.shape[-1], k, seed=seed)
    result = deepca.solve(CPCA(stack.mean(axis=0), W0), max_iter=300)
    assert worst_tangent(U, result.W) <= 1e-12
    np.testing.assert_allclose(result.eigenvalues, values, rtol=1e-11)


@pytest.mark.parametrize("seed", law_seeds(3))
def test_separate_agents_are_exact(seed: int) -> None:
    """Run one agent per thread, or several per rank."""
    topology = deepca.topology.erdos_renyi(6, 0.5, seed=seed)
    stack, k = random_problem(seed + 200, 6)
    _, U = answer(stack.mean(axis=0), k)
    W0 = deepca.operators.linalg.random_orthonormal(stack.shape[-1], k, seed=seed)
    rounds = FastMix(1).rounds_for(topology, 0.05)
    result = run_separately(
        topology,
        deepca.operators.from_matrices(stack),
        lambda A_j, network: DeEPCA(A_j, W0, network, FastMix(rounds)),
        max_iter=250,
    ).whole
    assert worst_tangent(U, result.W) <= 1e-12


@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_components_match_scikit_learn(form: deepca.operators.Form) -> None:
    """Compare PCA of centred rows, partitioned unevenly over agents."""
    rng = np.random.default_rng(7)
    X = (
        rng.standard_normal((400, 12))
        * np.array([6, 5, 4, *([1.0] * 9)])
        @ np.linalg.qr(rng.standard_normal((12, 12)))[0]
    )
    X = X - X.mean(axis=0)
    pca = PCA(n_components=3, svd_solver="full").fit(X)
    blocks = [X[:30], X[30:50], X[50:180], X[180:181], X[181:]]
    A = from_rows(blocks, scale=5 / 399, form=form)
    W0 = deepca.operators.linalg.random_orthonormal(12, 3, seed=0)
    network = network_of(deepca.topology.ring(5))
    result = deepca.solve(DeEPCA(A, W0, network, FastMix(12)), max_iter=300)
    assert worst_tangent(pca.components_.T, result.W) <= 1e-12
    np.testing.assert_allclose(result.eigenvalues[0], pca.explained_variance_, rtol=1e-12)
    overlap = np.abs(np.einsum("dk,jdk->jk", pca.components_.T, result.components))
    np.testing.assert_allclose(overlap, 1.0, atol=1e-12)  # column by column, up to sign


@pytest.mark.parametrize("seed", law_seeds(4))
def test_few_rounds_reach_the_same_accuracy_as_many(seed: int) -> None:
    """K does not depend on the accuracy: on heterogeneous rows, 4 rounds reach what 40 reach."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((300, 10)) * np.array([5, 4, 3, *([1.0] * 7)])
    A = from_rows(split_rows(X, 12))
    _, U = answer(X.T @ X / 12, 3)
    topology = deepca.topology.erdos_renyi(12, 0.5, seed=seed)
    W0 = deepca.operators.linalg.random_orthonormal(10, 3, seed=seed)
    for rounds in (4, 40):
        result = deepca.solve(DeEPCA(A, W0, network_of(topology), FastMix(rounds)), max_iter=300)
        assert worst_tangent(U, result.W) <= 1e-12


def test_a_wide_range_of_eigenvalues_loses_no_more_accuracy_than_the_gap_requires() -> None:
    """Ratios λ₁/λ_k of 1e8 occur in real data."""
    values = np.array([1e8, 1e6, 1e4, 1e2, 1.0, 0.1, 0.05, 0.01])
    stack = spectrum_problem(6, 8, values, seed=3, heterogeneity=0.2)
    pooled = stack.mean(axis=0)
    _, U = answer(pooled, 5)
    W0 = deepca.operators.linalg.random_orthonormal(8, 5, seed=1)
    network = network_of(deepca.topology.complete(6))
    result = deepca.solve(DeEPCA(stack, W0, network, FastMix(3)), max_iter=200)
    gram = np.swapaxes(result.W, 1, 2) @ result.W
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(5), gram.shape), atol=1e-13)
    eps = float(np.finfo(np.float64).eps)
    assert worst_tangent(U, result.W) <= 100 * eps * values[0] / (values[4] - values[5])
