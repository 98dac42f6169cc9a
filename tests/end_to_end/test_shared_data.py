"""Test the paper's data sets, w8a and a9a over 50 agents, where the files are available."""

from __future__ import annotations

import bz2
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from sklearn.datasets import load_svmlight_file
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import deepca
from deepca import CPCA, DeEPCA, DePCA, FastMix, Tolerance
from deepca._util.typing import Array
from deepca.cli.app import app
from deepca.network import SimulatedNetwork
from deepca.operators import Operator, from_rows, split_rows
from tests.support.helpers import worst_tangent
from tests.support.paths import SHARED

FOLDER = SHARED
SETS = {"w8a": (300, 800), "a9a": (123, 600)}  # features, rows per agent
M, K_COMPONENTS, ROUNDS = 50, 5, 5

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(
        not all((FOLDER / f"{name}.bz2").exists() for name in SETS),
        reason="the LIBSVM files w8a.bz2 and a9a.bz2 are not in ../shared/data",
    ),
]


@lru_cache
def problem(name: str) -> tuple[Operator, Array, Array]:
    """Return the paper's partition, the pooled matrix and its top eigenvectors computed by scipy."""
    features, per_agent = SETS[name]
    with bz2.open(FOLDER / f"{name}.bz2") as file:
        X: Any = load_svmlight_file(file, n_features=features)[0]
    A = from_rows(split_rows(X, M, rows_per_agent=per_agent))
    first = X[: M * per_agent]
    pooled = np.asarray((first.T @ first).toarray()) / M
    vectors = scipy.linalg.eigh(pooled)[1]
    return A, pooled, vectors[:, ::-1][:, :K_COMPONENTS]


def network() -> SimulatedNetwork:
    return SimulatedNetwork(deepca.topology.erdos_renyi(M, 0.5, seed=0))


def start(name: str) -> Array:
    return deepca.operators.linalg.random_orthonormal(SETS[name][0], K_COMPONENTS, seed=0)


def iterations_to(trace: deepca.solver.observers.Trace, tangent: float) -> int:
    """Return the first iteration from which every agent stays within ``tangent``."""
    above = np.flatnonzero(trace.tan_theta_max > tangent)
    return int(above[-1]) + 2 if above.size else 1


@pytest.mark.parametrize("name", SETS)
def test_the_mean_of_the_operators_is_the_pooled_matrix(name: str) -> None:
    """Compare the mean of the agents' matrices with the product of all rows."""
    A, pooled, _ = problem(name)
    np.testing.assert_allclose(A.mean(), pooled, rtol=0, atol=1e-11 * np.abs(pooled).max())
    assert A.n_local == M


@pytest.mark.parametrize("name", SETS)
def test_deepca_reaches_1e_10_as_fast_as_the_centralised_method(name: str) -> None:
    """Use five rounds per iteration and allow a few iterations more than CPCA."""
    A, pooled, U = problem(name)
    trace, central = deepca.solver.observers.Trace(U=U), deepca.solver.observers.Trace(U=U)
    result = deepca.solve(DeEPCA(A, start(name), network(), FastMix(ROUNDS)), max_iter=450, observers=[trace])
    deepca.solve(CPCA(pooled, start(name)), max_iter=450, observers=[central])
    assert worst_tangent(U, result.W) <= 1e-10
    needed, reference = iterations_to(trace, 1e-10), iterations_to(central, 1e-10)
    assert reference < 450
    assert abs(needed - reference) <= 0.05 * reference + 5
    values = scipy.linalg.eigh(pooled, eigvals_only=True)[::-1][:K_COMPONENTS]
    np.testing.assert_allclose(result.eigenvalues, np.broadcast_to(values, (M, K_COMPONENTS)), rtol=1e-10)


@pytest.mark.parametrize("name", SETS)
def test_the_stopping_rule_meets_its_tolerance(name: str) -> None:
    """The rule does not know the answer, yet the worst agent is within Tolerance(1e-8)."""
    A, _, U = problem(name)
    result = deepca.solve(DeEPCA(A, start(name), network(), FastMix(ROUNDS)), max_iter=1000, stop=Tolerance(1e-8))
    assert result.status.code == "converged"
    assert worst_tangent(U, result.W) <= 1e-8


@pytest.mark.parametrize("name", SETS)
def test_depca_with_the_same_rounds_stalls(name: str) -> None:
    """DePCA stalls above 1e-6, and its status advises more rounds."""
    A, _, U = problem(name)
    result = deepca.solve(DePCA(A, start(name), network(), FastMix(ROUNDS)), max_iter=250)
    assert worst_tangent(U, result.W) > 1e-6
    assert result.status.code == "disagreement"
    assert "rounds" in result.status.advice


@pytest.mark.parametrize("scale", [False, True], ids=["as is", "scaled"])
@pytest.mark.parametrize("name", SETS)
def test_the_estimator_matches_pooled_pca(name: str, scale: bool) -> None:
    """Compare sparse rows at 50 agents of very different sizes with scikit-learn on dense pooled rows."""
    with bz2.open(FOLDER / f"{name}.bz2") as file:
        X: Any = load_svmlight_file(file, n_features=SETS[name][0])[0]
    X = X[:, np.flatnonzero(np.asarray((X != 0).sum(axis=0)).ravel())]  # a column of zeros cannot be scaled
    dense = X.toarray()
    pooled: Any = PCA(K_COMPONENTS, svd_solver="covariance_eigh")
    rows = StandardScaler().fit_transform(dense) if scale else dense
    pooled.fit(rows)
    sizes = np.geomspace(1, 40, M)
    agents = np.repeat(np.arange(M), np.diff(np.round(np.cumsum([0, *sizes]) / sizes.sum() * len(dense)).astype(int)))
    found = deepca.DecentralizedPCA(K_COMPONENTS, scale=scale).fit(X, agents=agents)
    np.testing.assert_allclose(found.components_, pooled.components_, atol=1e-7)
    np.testing.assert_allclose(found.explained_variance_, pooled.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(found.explained_variance_ratio_, pooled.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(found.transform(X[:500]), pooled.transform(rows[:500]), atol=1e-7)


@pytest.mark.parametrize("name", SETS)
def test_a_compressed_file_can_be_fit(name: str, tmp_path: Path) -> None:
    """Fit the compressed svmlight file on the command line, partitioned over 50 agents."""
    out = tmp_path / "model.npz"
    done = CliRunner().invoke(app, ["fit", str(FOLDER / f"{name}.bz2"), "--agents", str(M), "-k", "5", "-o", str(out)])
    assert done.exit_code == 0, done.output
    with bz2.open(FOLDER / f"{name}.bz2") as file:
        X: Any = load_svmlight_file(file)[0]
    pooled = PCA(5, svd_solver="covariance_eigh").fit(X.toarray())
    np.testing.assert_allclose(deepca.load(out).components, pooled.components_, atol=1e-7)
