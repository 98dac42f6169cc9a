"""Real data as in the paper: w8a and a9a over 50 agents, where the files are at hand."""

from __future__ import annotations

import bz2
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from sklearn.datasets import load_svmlight_file

import deepca
from deepca import CPCA, DeEPCA, DePCA, FastMix, Tolerance
from deepca._typing import Array
from deepca.networks import SimulatedNetwork
from deepca.operators import Operator, from_rows, split_rows
from tests.helpers import worst_tangent

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
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
    """The paper's split, the pooled matrix and its top eigenvectors by scipy."""
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
    return deepca.linalg.random_orthonormal(SETS[name][0], K_COMPONENTS, seed=0)


def iterations_to(trace: deepca.observers.Trace, tangent: float) -> int:
    """The first iteration from which on every agent is within ``tangent``."""
    above = np.flatnonzero(trace.tan_theta_max > tangent)
    return int(above[-1]) + 2 if above.size else 1


@pytest.mark.parametrize("name", SETS)
def test_the_operators_are_the_pooled_matrix(name: str) -> None:
    """The mean of the agents' matrices against the product of all rows at once."""
    A, pooled, _ = problem(name)
    np.testing.assert_allclose(A.mean(), pooled, rtol=0, atol=1e-11 * np.abs(pooled).max())
    assert A.n_local == M


@pytest.mark.parametrize("name", SETS)
def test_deepca_reaches_1e_10_as_fast_as_the_centralised_method(name: str) -> None:
    """With five rounds per iteration, and within a few iterations of CPCA."""
    A, pooled, U = problem(name)
    trace, central = deepca.observers.Trace(U=U), deepca.observers.Trace(U=U)
    result = deepca.solve(DeEPCA(A, start(name), network(), FastMix(ROUNDS)), max_iter=450, observers=[trace])
    deepca.solve(CPCA(pooled, start(name)), max_iter=450, observers=[central])
    assert worst_tangent(U, result.W) <= 1e-10
    needed, reference = iterations_to(trace, 1e-10), iterations_to(central, 1e-10)
    assert reference < 450
    assert abs(needed - reference) <= 0.05 * reference + 5
    values = scipy.linalg.eigh(pooled, eigvals_only=True)[::-1][:K_COMPONENTS]
    np.testing.assert_allclose(result.eigenvalues, np.broadcast_to(values, (M, K_COMPONENTS)), rtol=1e-10)


@pytest.mark.parametrize("name", SETS)
def test_the_stop_rule_keeps_its_word(name: str) -> None:
    """Tolerance(1e-8), without the truth: the worst agent is within it."""
    A, _, U = problem(name)
    result = deepca.solve(DeEPCA(A, start(name), network(), FastMix(ROUNDS)), max_iter=1000, stop=Tolerance(1e-8))
    assert result.status.code == "converged"
    assert worst_tangent(U, result.W) <= 1e-8


@pytest.mark.parametrize("name", SETS)
def test_depca_with_the_same_rounds_stalls(name: str) -> None:
    """Above 1e-6, and it says that rounds are what is missing."""
    A, _, U = problem(name)
    result = deepca.solve(DePCA(A, start(name), network(), FastMix(ROUNDS)), max_iter=250)
    assert worst_tangent(U, result.W) > 1e-6
    assert result.status.code == "disagreement"
    assert "raise rounds" in result.status.advice
