"""Test eigenpairs and singular triplets of w8a and a9a over the paper's 50 agents, where files are available."""

from __future__ import annotations

import bz2
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from scipy import sparse
from scipy.sparse.linalg import svds
from sklearn.datasets import load_svmlight_file

import deepca
from deepca._util.typing import Array
from deepca.decomposition.eigen import Which, eigenpairs
from deepca.decomposition.svd import singular_triplets
from deepca.operators import from_matrices, split_rows
from tests.end_to_end.test_shared_data import FOLDER, SETS, M, network, problem, pytestmark  # noqa: F401 (skips where absent)
from tests.support.problems import close


@lru_cache
def rows_of(name: str) -> Any:
    features, per_agent = SETS[name]
    with bz2.open(FOLDER / f"{name}.bz2") as file:
        return sparse.csr_array(load_svmlight_file(file, n_features=features)[0][: M * per_agent])


@pytest.mark.parametrize("name", SETS)
def test_singular_triplets_are_right(name: str) -> None:
    X = rows_of(name)
    got = singular_triplets(split_rows(X, M), network(), 5, tol=1e-11)
    U, s, Vt = svds(X, k=5, v0=np.ones(min(X.shape)))
    U, s, Vt = U[:, ::-1], s[::-1], Vt[::-1]
    signs = np.sign(Vt[np.arange(5), np.abs(Vt).argmax(axis=1)])
    assert got.status.code == "converged"
    close(got.values, s, rtol=1e-10)
    close(got.shared_vectors, Vt.T * signs, atol=1e-10)
    close(np.concatenate(got.local_vectors), U * signs, atol=1e-10)
    rest = np.sqrt(float(X.multiply(X).sum()) - np.square(s).sum())
    close([got.error, got.best_error], [rest, rest], rtol=1e-10)


@pytest.mark.parametrize("name", SETS)
def test_triplets_of_partitioned_columns_are_right(name: str) -> None:
    """Only 600 samples are used, because messages have one entry per sample."""
    X = np.asarray(rows_of(name)[:600].toarray())
    blocks = [X[:, i] for i in np.array_split(np.arange(X.shape[1]), 10)]
    got = singular_triplets(
        blocks, deepca.SimulatedNetwork(deepca.topology.ring(10)), 4, partition="columns", tol=1e-11
    )
    U, s, Vt = scipy.linalg.svd(X, full_matrices=False)
    signs = np.sign(Vt[np.arange(4), np.abs(Vt[:4]).argmax(axis=1)])
    close(got.values, s[:4], rtol=1e-10)
    close(np.concatenate(got.local_vectors), Vt[:4].T * signs, atol=1e-10)
    close(got.shared_vectors, U[:, :4] * signs, atol=1e-10)


def difference(name: str) -> Array:
    """Negate the matrices of odd agents, so that the mean is the difference between two halves of the data.

    Every A_j is much larger than the mean: 120 times on a9a, about 20 times on w8a.
    """
    signs = np.where(np.arange(M) % 2, -1.0, 1.0)
    return np.asarray(problem(name)[0].dense() * signs[:, None, None])


@pytest.mark.parametrize("which", ["LA", "SA"])
def test_accelerated_tracking_solves_agents_that_cancel(which: Which) -> None:
    """The shift is large enough for such agents."""
    stack = difference("a9a")
    values, vectors = scipy.linalg.eigh(stack.mean(axis=0))
    end = slice(None, -4, -1) if which == "LA" else slice(3)
    got = eigenpairs(from_matrices(stack), network(), 3, which=which, algorithm="accelerated", max_iter=1500)
    assert got.status.code == "converged", got.status
    close(got.values, values[end], atol=1e-12 * float(np.abs(values).max()))
    aligned = vectors[:, end] * np.sign((vectors[:, end] * got.vectors).sum(axis=0))
    close(got.vectors, aligned, atol=1e-10)


@pytest.mark.parametrize("name", SETS)
def test_eigenpairs_of_an_indefinite_difference_are_right(name: str) -> None:
    """The eigenvalues largest in modulus lie at both ends."""
    stack = difference(name)
    values, vectors = scipy.linalg.eigh(stack.mean(axis=0))
    assert values[0] < 0.0 < values[-1]
    order = np.argsort(-np.abs(values))[:3]
    got = eigenpairs(from_matrices(stack), network(), 3, which="LM", tol=1e-11)
    assert got.status.code == "converged", got.status
    size = float(np.abs(values).max())
    close(got.values, values[order], atol=1e-12 * size)
    chosen = vectors[:, order]
    close(np.abs((chosen * got.vectors).sum(axis=0)), np.ones(3), atol=1e-12)
    aligned = chosen * np.sign((chosen * got.vectors).sum(axis=0))
    close(got.vectors, aligned, atol=1e-10)
