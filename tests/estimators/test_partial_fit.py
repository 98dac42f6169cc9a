"""Test partial_fit: after every call the components equal those of all rows so far, with their weights."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.preprocessing import StandardScaler

import deepca
from deepca import DecentralizedPCA
from deepca._util.typing import Array
from deepca.data.moments import Moments, moments
from deepca.data.sources import ArraySource
from deepca.decomposition import partial_fit
from deepca.errors import DataError, InvalidInput, ParameterError, PooledDataError
from tests.support.errors import raises
from tests.support.problems import close


@cache
def digits() -> Array:
    """Return the digits in the order of the file, which is sorted by writer, so that the rows drift."""
    return np.asarray(load_digits().data[:, 10:40], dtype=np.float64)


def parts(X: Any, count: int) -> list[Any]:
    n = X.shape[0]
    return [X[n * i // count : n * (i + 1) // count] for i in range(count)]


def weighted(X: Array, w: Array, k: int) -> tuple[Array, Array, Array]:
    """Return mean, variances and components of weighted rows by numpy's SVD, with positive largest entries."""
    mean = w @ X / w.sum()
    _, s, V = np.linalg.svd((X - mean) * np.sqrt(w)[:, None], full_matrices=False)
    V = V[:k] * np.sign(V[np.arange(k), np.abs(V[:k]).argmax(axis=1)])[:, None]
    return mean, np.square(s[:k]) / (w.sum() - 1.0), V


def assert_pooled(ours: DecentralizedPCA, X: Array, k: int) -> None:
    theirs = PCA(k, svd_solver="full").fit(X)
    close(ours.components_, theirs.components_, atol=1e-10)
    close(ours.explained_variance_, theirs.explained_variance_, rtol=1e-10)
    close(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-10)
    close(ours.singular_values_, theirs.singular_values_, rtol=1e-10)
    close(ours.noise_variance_, theirs.noise_variance_, rtol=1e-10)
    close(ours.mean_, theirs.mean_, atol=1e-10)
    assert ours.n_samples_ == ours.n_samples_seen_ == len(X)
    assert ours.result_.status.code == "converged"


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("algorithm", ["auto", "accelerated", "deepca"])
def test_every_call_gives_the_pca_of_all_rows_so_far(algorithm: str) -> None:
    X, pca = digits(), DecentralizedPCA(4, topology="ring", n_agents=6, algorithm=algorithm, tol=1e-11)
    seen = 0
    for batch in parts(X, 5):
        seen += len(batch)
        assert pca.partial_fit(batch) is pca
        assert_pooled(pca, X[:seen], 4)


@pytest.mark.parametrize("forgetting", [0.9, 0.5])
def test_forgetting_equals_weighting(forgetting: float) -> None:
    X, w = digits(), np.zeros(0)
    pca = DecentralizedPCA(3, topology="ring", n_agents=4, forgetting=forgetting, tol=1e-11)
    for batch in parts(X, 6):
        w = np.concatenate([forgetting * w, np.ones(len(batch))])
        mean, variances, components = weighted(X[: w.size], w, 3)
        pca.partial_fit(batch)
        close(pca.mean_, mean, atol=1e-11)
        close(pca.explained_variance_, variances, rtol=1e-10)
        close(pca.components_, components, atol=1e-10)
        close(pca.model_.weight, w.sum(), rtol=1e-12)
        close(pca.singular_values_, np.sqrt(variances * (w.sum() - 1.0)), rtol=1e-10)
        assert pca.n_samples_seen_ == w.size
    at_once = DecentralizedPCA(3, tol=1e-11).fit(X, sample_weight=w)
    close(pca.components_, at_once.components_, atol=1e-10)
    close(pca.noise_variance_, at_once.noise_variance_, rtol=1e-9)


def test_rows_may_have_weights() -> None:
    X, own = digits()[:600], np.random.default_rng(0).integers(0, 4, 600).astype(np.float64)
    labels = np.arange(600) % 5
    pca = DecentralizedPCA(3, forgetting=0.8, tol=1e-11)
    apart = DecentralizedPCA(3, forgetting=0.8, tol=1e-11)
    for i in range(3):
        now = slice(200 * i, 200 * i + 200)
        pca.partial_fit(X[now], agents=labels[now], sample_weight=own[now])
        mine = [labels[now] == j for j in range(5)]
        apart.partial_fit_agents([X[now][who] for who in mine], sample_weight=[own[now][who] for who in mine])
    w = own * np.repeat([0.64, 0.8, 1.0], 200)
    mean, variances, components = weighted(X, w, 3)
    for one in (pca, apart):
        close(one.mean_, mean, atol=1e-11)
        close(one.explained_variance_, variances, rtol=1e-10)
        close(one.components_, components, atol=1e-10)
        assert one.n_samples_seen_ == np.count_nonzero(own)


def test_columns_can_be_scaled_and_a_share_of_the_variance_requested() -> None:
    X = np.asarray(load_wine().data)
    pca = DecentralizedPCA(0.8, scale=True, whiten=True, n_agents=4)
    for batch in parts(X, 4):
        pca.partial_fit(batch)
    scaled = StandardScaler().fit(X)
    theirs = PCA(0.8, svd_solver="full", whiten=True).fit(scaled.transform(X))
    close(pca.components_, theirs.components_, atol=1e-9)
    assert pca.scale_ is not None
    close(pca.scale_, scaled.scale_, rtol=1e-12)
    close(pca.transform(X), theirs.transform(scaled.transform(X)), atol=1e-8)


@pytest.mark.parametrize("kind", [sparse.csr_array, pd.DataFrame], ids=["sparse", "frame"])
def test_rows_may_be_sparse_or_data_frames(kind: Callable[[Any], Any]) -> None:
    X, pca = digits(), DecentralizedPCA(3, n_agents=3, tol=1e-11)
    for batch in parts(X, 3):
        pca.partial_fit(kind(batch))
    assert_pooled(pca, X, 3)


def test_float32_stays_float32_until_float64_rows_are_added() -> None:
    X = digits().astype(np.float32)
    pca = DecentralizedPCA(3, n_agents=3).partial_fit(X[:800]).partial_fit(X[800:])
    assert pca.components_.dtype == pca.transform(X).dtype == np.float32
    close(pca.components_, PCA(3, svd_solver="full").fit(X.astype(np.float64)).components_, atol=1e-6)
    assert pca.partial_fit(digits()).components_.dtype == np.float64


@pytest.mark.parametrize("step", [0.0, 1e6])
def test_rows_that_drift_away_from_zero_lose_no_digits(step: float) -> None:
    """Old rows are almost forgotten, and the remaining rows are far from the first ones."""
    rng, d = np.random.default_rng(1), 5
    scales = np.array([5.0, 4.0, 3.0, 1.0, 0.5])
    pca, moved = DecentralizedPCA(2, n_agents=3, forgetting=1e-9, tol=1e-11), []
    for t in range(6):
        moved.append(rng.standard_normal((300, d)) * scales + 1e6 + step * t)
        pca.partial_fit(moved[-1])
    # only the last two calls count: 300 rows, and 300 rows with a total weight of 3e-7 at a distance of 1e6
    X, w = np.concatenate(moved[-2:]), np.repeat([1e-9, 1.0], 300)
    about = X - moved[-1].mean(axis=0)
    mean = w @ about / w.sum()
    C = ((about - mean) * w[:, None]).T @ (about - mean) / (w.sum() - 1.0)
    values, vectors = np.linalg.eigh(C)
    U = vectors[:, ::-1][:, :2]
    ours = pca.components_.T
    assert np.linalg.norm(ours - U @ (U.T @ ours), 2) < 1e-8
    close(pca.explained_variance_, values[::-1][:2], rtol=1e-8)


# ------------------------------------------------------------------------------------- agents with and without new rows


def test_agents_may_have_no_new_rows() -> None:
    X = digits()[:500]
    pca = DecentralizedPCA(3, topology="ring", tol=1e-11)
    pca.partial_fit_agents([None, X[:60], None, X[60:100]])
    assert_pooled(pca, X[:100], 3)
    pca.partial_fit_agents([X[100:300], np.empty((0, 30)), [], None])
    assert_pooled(pca, X[:300], 3)
    pca.partial_fit_agents([sparse.csr_array(X[300:310]), X[310:311], None, (rows for rows in parts(X[311:], 3))])
    assert_pooled(pca, X, 3)
    assert pca.topology_.n_agents == 4


def test_a_call_may_have_fewer_rows_than_agents_or_labels() -> None:
    X = digits()[:120]
    pca = DecentralizedPCA(2, n_agents=8, tol=1e-11).partial_fit(X[:5])
    assert_pooled(pca, X[:5], 2)
    pca.partial_fit(X[5:6])
    assert_pooled(pca, X[:6], 2)
    pca.partial_fit(X[6:100], agents=[j % 3 for j in range(94)])  # by number, as partial_fit_agents counts
    pca.partial_fit(X[100:])
    assert_pooled(pca, X, 2)
    named = DecentralizedPCA(2, tol=1e-11).partial_fit(X[:60], agents=["north", "south"] * 30)
    assert named.topology_.n_agents == 2
    assert_pooled(named.partial_fit(X[60:], agents=["south"] * 60), X, 2)


def test_an_agent_may_be_a_file(tmp_path: Path) -> None:
    X = digits()[:300]
    np.save(tmp_path / "a.npy", X[100:200])
    pca = DecentralizedPCA(2, tol=1e-11).partial_fit_agents([X[:50], X[50:100]])
    assert_pooled(pca.partial_fit_agents([tmp_path / "a.npy", X[200:]]), X, 2)


def test_named_columns_are_reordered() -> None:
    X, names = digits()[:300], [f"c{i}" for i in range(30)]
    frame = pd.DataFrame(X, columns=names)
    pca = DecentralizedPCA(2, tol=1e-11).partial_fit_agents([frame[:50], frame[50:100]])
    pca.partial_fit_agents([None, frame[100:200][names[::-1]]])
    assert_pooled(pca.partial_fit(frame[200:]), X, 2)
    assert list(pca.feature_names_in_) == names
    with raises(DataError, agent=1, column="c3"):
        pca.partial_fit_agents([None, frame.drop(columns="c3")])
    with pytest.raises(ValueError, match="names should match"):
        pca.partial_fit(frame.rename(columns={"c0": "other"}))


# ----------------------------------------------------------------------------------------- conventions of scikit-learn


def test_fit_starts_over_and_partial_fit_extends_it() -> None:
    """scikit-learn's IncrementalPCA behaves in the same way."""
    X = digits()
    pca = DecentralizedPCA(3, n_agents=3, tol=1e-11).fit(X[:700])
    theirs = IncrementalPCA(3).fit(X[:700]).partial_fit(X[700:])
    assert_pooled(pca.partial_fit(X[700:]), X, 3)
    assert pca.n_samples_seen_ == theirs.n_samples_seen_ == len(X)
    assert_pooled(pca.fit(X[:900]), X[:900], 3)
    assert_pooled(pca.partial_fit(X[900:]), X, 3)
    pca.set_params(n_agents=None)
    assert_pooled(pca.fit_agents([X[:500], X[500:600]]).partial_fit_agents([None, X[600:]]), X, 3)


def test_a_fit_of_wide_rows_cannot_be_extended() -> None:
    """The rows of such a fit are not stored: they belong to the caller, who may have changed them."""
    X = np.random.default_rng(0).standard_normal((20, 200))
    pca = DecentralizedPCA(2, n_agents=4).fit(X)
    with raises(DataError, value=200):
        pca.partial_fit(X)
    twice = np.concatenate([X, X])
    mean, variances, components = weighted(twice, np.ones(40), 2)
    again = clone(pca).partial_fit(X).partial_fit(X)
    close(again.mean_, mean, atol=1e-13)
    close(again.explained_variance_, variances, rtol=1e-10)
    close(again.components_, components, atol=1e-9)


def test_agents_with_few_rows_can_be_extended_with_all_others() -> None:
    """Agents with few rows keep the rows where others form covariances."""
    X = np.random.default_rng(1).standard_normal((60, 8)) * np.arange(1.0, 9.0)
    for parts in ([X[:1], X[1:40]], [X[:1], X[1:3]]):
        rest = X[sum(map(len, parts)) :]
        pca = DecentralizedPCA(2).fit_agents(parts).partial_fit_agents([rest[:5], rest[5:]])
        mean, variances, components = weighted(X, np.ones(60), 2)
        close(pca.mean_, mean, atol=1e-13)
        close(pca.explained_variance_, variances, rtol=1e-10)
        close(pca.components_, components, atol=1e-9)


def test_a_pickled_estimator_can_be_extended_and_contains_no_row() -> None:
    X = digits() + np.random.default_rng(0).standard_normal(digits().shape)
    pca = DecentralizedPCA(3, n_agents=4, forgetting=0.9).partial_fit(X[:900])
    stored = pickle.dumps(pca)
    assert not any(row[:3].tobytes() in stored for row in X[:900])
    assert pca.components_[0].tobytes() in stored  # so the search below could find a row
    went_on = pickle.loads(stored).partial_fit(X[900:])
    pca.partial_fit(X[900:])
    np.testing.assert_array_equal(went_on.components_, pca.components_)
    assert clone(pca).get_params() == pca.get_params()
    assert not hasattr(clone(pca).partial_fit(X[:50]), "feature_names_in_")
    assert clone(pca).partial_fit(X[:50]).n_samples_seen_ == 50


def test_iterations_start_at_the_current_components() -> None:
    """Repeated rows do not change the components, and a few new rows hardly do, so fewer iterations are needed."""
    X = np.random.default_rng(4).permutation(digits())
    settings: dict[str, Any] = {"n_components": 4, "topology": "complete", "n_agents": 4, "algorithm": "deepca"}
    few = DecentralizedPCA(**settings).partial_fit(X[:1700]).partial_fit(X[1700:]).n_iter_
    pca = DecentralizedPCA(**settings).partial_fit(X)
    cold, none = pca.n_iter_, pca.partial_fit(X).n_iter_
    assert none < 0.1 * cold
    assert few < 0.95 * cold


def test_partial_fit_works_on_a_single_mpi_rank() -> None:
    """One rank holds all agents; test_pca_mpi uses several ranks."""
    pytest.importorskip("mpi4py")
    X = digits()[:300]
    pca = DecentralizedPCA(2, engine="mpi", tol=1e-11).partial_fit_agents([X[:100], None]).partial_fit(X[100:])
    assert_pooled(pca, X, 2)


def test_checkpoints_are_removed_after_every_call(tmp_path: Path) -> None:
    X, folder = digits()[:600], tmp_path / "kept"
    pca = DecentralizedPCA(2, n_agents=3, checkpoints=folder, algorithm="deepca", tol=1e-11)
    pca.partial_fit(X[:300]).partial_fit(X[300:])
    assert_pooled(pca, X, 2)
    assert not list(folder.rglob("*.checkpoint"))


# ------------------------------------------------------------------------------------------------------------- errors


def missing_at(X: Array, row: int, column: int) -> Array:
    """Return a copy of X with a missing value."""
    copy = X.copy()
    copy[row, column] = np.nan
    return copy


@pytest.mark.parametrize(
    ("settings", "act", "kind", "facts"),
    [
        (
            {"forgetting": 0.0},
            lambda pca, X: pca.partial_fit(X),
            ParameterError,
            {"parameter": "forgetting", "value": 0.0},
        ),
        (
            {"forgetting": 1.5},
            lambda pca, X: pca.partial_fit(X),
            ParameterError,
            {"parameter": "forgetting", "value": 1.5},
        ),
        (
            {"forgetting": "some"},
            lambda pca, X: pca.partial_fit(X),
            ParameterError,
            {"parameter": "forgetting", "value": "some"},
        ),
        ({"n_agents": 7}, lambda pca, X: pca.partial_fit(X), ParameterError, {"parameter": "n_agents", "value": 7}),
        (
            {},
            lambda pca, X: pca.partial_fit(X, agents=[9] * len(X)),
            DataError,
            {"parameter": "agents", "row": 0, "value": "9"},
        ),
        ({}, lambda pca, X: pca.partial_fit(missing_at(X, 5, 7)), DataError, {"row": 5, "column": 7}),
        ({}, lambda pca, X: pca.partial_fit_agents([X, X]), DataError, {"parameter": "Xs", "value": 2}),
        ({}, lambda pca, X: pca.partial_fit_agents([None] * 3), DataError, {"parameter": None, "value": 0}),
        ({}, lambda pca, X: pca.partial_fit_agents([X, X[:, :4], None]), DataError, {"agent": 1, "value": 4}),
        ({}, lambda pca, X: pca.partial_fit_agents([None, X[:, :5], None]), DataError, {"agent": 1, "value": 5}),
        (
            {},
            lambda pca, X: pca.partial_fit_agents([X, None, X], sample_weight=[1]),
            DataError,
            {"parameter": "sample_weight", "value": 1},
        ),
        (
            {"n_components": 31},
            lambda pca, X: pca.partial_fit(X),
            InvalidInput,
            {"parameter": "n_components", "value": 31},
        ),
        (
            {"forgetting": 1e-9},
            lambda pca, X: pca.partial_fit(X[:1], sample_weight=[0.5]),
            PooledDataError,
            {"parameter": "weights"},
        ),
        (
            {"topology": deepca.topology.ring(4)},
            lambda pca, X: pca.partial_fit(X),
            InvalidInput,
            {"parameter": "topology", "value": 4},
        ),
        ({}, lambda pca, X: pca.partial_fit(X[:, :9]), ValueError, {}),  # these are errors of scikit-learn
        ({}, lambda pca, X: pca.partial_fit(X[:0]), ValueError, {}),
        ({}, lambda pca, X: pca.partial_fit(X, sample_weight=np.zeros(len(X))), ValueError, {}),
    ],
)
def test_a_call_that_raises_changes_nothing(
    settings: dict[str, Any],
    act: Callable[[DecentralizedPCA, Array], object],
    kind: type[Exception],
    facts: dict[str, Any],
) -> None:
    X = digits()
    pca = DecentralizedPCA(2, n_agents=3, tol=1e-11).partial_fit(X[:200])
    usual = {name: pca.get_params()[name] for name in settings}
    pca.set_params(**settings)
    with raises(kind, **facts) as caught:
        act(pca, X[200:400])
    assert isinstance(caught.value, InvalidInput) == bool(facts)
    assert_pooled(pca, X[:200], 2)
    assert_pooled(pca.set_params(**usual).partial_fit(X[200:]), X, 2)


def test_the_first_call_needs_enough_rows() -> None:
    X, pca = digits(), DecentralizedPCA(3)
    with raises(PooledDataError, value=1):
        pca.partial_fit(X[:1])
    with raises(InvalidInput, parameter="n_components", value=3):
        pca.partial_fit(X[:2])
    with raises(DataError, value=0):
        pca.partial_fit_agents([None, None])
    assert_pooled(pca.partial_fit(X[:90]), X[:90], 3)


def test_matrices_that_do_not_fit_into_memory_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_fit, "available_memory", lambda: 4 * 8 * 3 * 30**2 - 1)
    pca = DecentralizedPCA(2, n_agents=3)
    with raises(DataError, value=8 * 3 * 30**2):
        pca.partial_fit(digits())
    pca.set_params(n_agents=2).partial_fit(digits())


# ---------------------------------------------------------------------------------------------------- combined moments


def test_combined_moments_equal_those_of_all_rows() -> None:
    rng = np.random.default_rng(2)
    one, two = rng.standard_normal((40, 3)) + 1e8, 2.0 * rng.standard_normal((7, 3)) - 1e8
    w = np.concatenate([np.full(40, 0.25), np.ones(7)])

    def of(X: Array, weights: Array | None = None) -> Moments:
        return moments(ArraySource(X, "rows"), weights)

    joined, together = of(one).scaled(0.25).joined(of(two)), of(np.concatenate([one, two]), w)
    assert (joined.n, joined.weight) == (47, 17.0)
    assert joined.scatter is not None
    assert together.scatter is not None
    close(joined.scatter, together.scatter, rtol=1e-12)
    close(joined.mean_minus(together.reference, together.shift), np.zeros(3), atol=1e-7)
    close(joined.squares, np.diagonal(joined.scatter), rtol=1e-12)
    # joined again and again with rows at another place, it follows them with all digits
    for _ in range(60):
        joined = joined.scaled(0.25).joined(of(two))
    assert joined.scatter is not None
    exact = (two - two.mean(axis=0)).T @ (two - two.mean(axis=0)) / 0.75
    close(joined.scatter, exact, rtol=1e-9, atol=1e-9)
    close(joined.mean_minus(of(two).reference, of(two).shift), np.zeros(3), atol=1e-12)
