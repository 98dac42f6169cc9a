"""Test ``DecentralizedEigen`` and ``DecentralizedSVD`` as scikit-learn estimators, and the soft-impute example."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas
import pytest
import scipy.linalg
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator, eigsh, svds
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import TruncatedSVD
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import deepca
from deepca import DecentralizedEigen, DecentralizedSVD
from deepca.decomposition.svd import Partition
from deepca.errors import DataError, GapError, InvalidInput, ParameterError
from deepca.solver.result import StatusCode
from tests.decomposition.test_eigen import INDEFINITE, agents_with, pooled
from tests.support.errors import raises
from tests.support.paths import ROOT
from tests.support.problems import close

Array = npt.NDArray[np.float64]
EXAMPLE = ROOT / "examples" / "matrix_completion.py"


# --------------------------------------------------------------------------------------------------------------- SVD


@pytest.mark.parametrize("partition", ["rows", "columns"])
def test_scikit_learns_estimator_checks_pass(partition: Partition) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = check_estimator(DecentralizedSVD(partition=partition, topology="complete"), on_skip=None, on_fail=None)
    assert len(report) > 40
    others = {check["check_name"]: check["exception"] for check in report if check["status"] != "passed"}
    assert set(others) <= {"check_array_api_input"}, others


@pytest.mark.parametrize("load", [load_digits, load_wine, load_breast_cancer])
@pytest.mark.parametrize("partition", ["rows", "columns"])
def test_the_svd_equals_truncated_svd(partition: Partition, load: Any) -> None:
    """All attributes are compared, on the whole matrix, including signs."""
    X = load().data[:400]
    ours = DecentralizedSVD(3, partition=partition, n_agents=6, topology="ring", tol=1e-11).fit(X)
    theirs = TruncatedSVD(3, algorithm="arpack").fit(X)
    close(ours.components_, theirs.components_, atol=1e-10)
    close(ours.singular_values_, theirs.singular_values_, rtol=1e-10)
    close(ours.explained_variance_, theirs.explained_variance_, rtol=1e-10)
    close(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-10)
    scale = float(np.abs(X).max())
    close(ours.transform(X), theirs.transform(X), atol=1e-9 * scale)
    close(ours.inverse_transform(ours.transform(X)), theirs.inverse_transform(theirs.transform(X)), atol=1e-9 * scale)
    assert list(ours.get_feature_names_out()) == ["decentralizedsvd0", "decentralizedsvd1", "decentralizedsvd2"]
    sigma = np.sort(svds(X, k=3, return_singular_vectors=False))[::-1]
    close(ours.singular_values_, sigma, rtol=1e-10)


def test_fit_transform_clone_and_pipelines_work() -> None:
    X = load_wine().data
    svd = DecentralizedSVD(2, n_agents=4, topology="path")
    close(svd.fit_transform(X), TruncatedSVD(2, algorithm="arpack").fit_transform(X), atol=1e-8)
    assert clone(svd).get_params() == svd.get_params()
    scaled = make_pipeline(StandardScaler(), DecentralizedSVD(2, topology="ring")).fit_transform(X)
    plain = make_pipeline(StandardScaler(), TruncatedSVD(2, algorithm="arpack")).fit_transform(X)
    close(scaled, plain, atol=1e-9)


def test_left_vectors_are_local_with_partitioned_rows_and_shared_with_partitioned_columns() -> None:
    """With partitioned rows, an agent has the left vectors of its rows only; with partitioned columns, those of all."""
    X = load_wine().data
    U, s, Vt = scipy.linalg.svd(X, full_matrices=False)
    rows = DecentralizedSVD(2, topology="ring").fit_agents([X[:30], X[30:120], X[120:]])
    assert [part.shape for part in rows.left_] == [(30, 2), (90, 2), (58, 2)]
    close(np.abs(np.concatenate(rows.left_)), np.abs(U[:, :2]), atol=1e-10)
    assert not hasattr(rows, "left_singular_vectors_")
    columns = DecentralizedSVD(2, partition="columns", topology="ring").fit_agents([X[:, :3], X[:, 3:4], X[:, 4:]])
    assert [part.shape for part in columns.components_by_agent_] == [(2, 3), (2, 1), (2, 9)]
    close(np.abs(columns.left_singular_vectors_), np.abs(U[:, :2]), atol=1e-10)
    close(np.abs(columns.components_), np.abs(Vt[:2]), atol=1e-10)
    assert not hasattr(columns, "left_")
    again = columns.set_params(partition="rows").fit(X)
    assert not hasattr(again, "components_by_agent_")
    close(columns.singular_values_, s[:2], rtol=1e-12)


@pytest.mark.parametrize("partition", ["rows", "columns"])
def test_each_agent_can_reconstruct_its_own_part(partition: Partition) -> None:
    """The part equals that of scipy's best approximation, for labels in any order."""
    X = load_wine().data
    U, s, Vt = scipy.linalg.svd(X, full_matrices=False)
    best = (U[:, :2] * s[:2]) @ Vt[:2]
    labels = np.arange(X.shape[0 if partition == "rows" else 1]) % 3
    svd = DecentralizedSVD(2, partition=partition, topology="path", tol=1e-11).fit(X, agents=labels)
    close(np.abs(svd.components_), np.abs(Vt[:2]), atol=1e-9)
    for j in range(3):
        held = labels == j
        part, whole = (best[held], X[held]) if partition == "rows" else (best[:, held], X[:, held])
        close(svd.reconstruct(j), part, atol=1e-9 * s[0])
        close(svd.reconstruction_errors_[j], np.linalg.norm(whole - part), rtol=1e-8)
    rest = float(np.linalg.norm(X - best))
    close([svd.reconstruction_error_, svd.best_error_], [rest, rest], rtol=1e-9)
    with raises(ParameterError, parameter="agent", value=3):
        svd.reconstruct(3)


def test_data_frames_sparse_matrices_and_float32_are_accepted() -> None:
    """The result of float32 data is float32."""
    X = load_wine().data
    frame = pandas.DataFrame(X, columns=[f"c{i}" for i in range(13)])
    assert list(DecentralizedSVD(2).fit(frame).feature_names_in_) == list(frame.columns)
    apart = DecentralizedSVD(2).fit_agents([frame[:90], frame[90:][frame.columns[::-1]]])  # another order of columns
    want = np.abs(TruncatedSVD(2, algorithm="arpack").fit(X).components_)
    close(np.abs(apart.components_), want, atol=1e-9)
    mixed = DecentralizedSVD(2).fit_agents([sparse.csr_array(X[:90]), X[90:]])
    close(np.abs(mixed.components_), want, atol=1e-9)
    assert DecentralizedSVD(2).fit(X.astype(np.float32)).components_.dtype == np.float32


def test_the_svd_rejects_bad_input() -> None:
    X = load_wine().data
    for settings, parameter, value in (
        ({"partition": "both"}, "partition", "both"),
        ({"n_components": 14}, "n_components", 14),
        ({"n_components": 1.5}, "n_components", 1.5),
        ({"algorithm": "power"}, "algorithm", "power"),
        ({"n_agents": 200}, "n_agents", 200),
        ({"partition": "columns", "n_agents": 20}, "n_agents", 20),
    ):
        with raises(InvalidInput, parameter=parameter, value=value):
            DecentralizedSVD(**settings).fit(X)
    with raises(GapError, parameter="k", value=2):
        DecentralizedSVD(2, n_agents=2).fit(np.diag([5.0, 3.0, 3.0, 1.0]))
    with raises(DataError, parameter="Xs", value=()):
        DecentralizedSVD().fit_agents([])
    with raises(DataError, parameter="agents", value=(3,)):
        DecentralizedSVD().fit(X, agents=[0, 1, 2])
    with raises(DataError, parameter="agents", row=None, column=1):
        DecentralizedSVD(partition="columns").fit(X, agents=[0.0, np.nan, *range(11)])
    svd = DecentralizedSVD(2, algorithm="deepca", max_iter=3, topology="ring")
    with pytest.warns(ConvergenceWarning):
        svd.fit(StandardScaler().fit_transform(X))
    assert svd.result_.status.code == StatusCode.OUT_OF_ITERATIONS


# ------------------------------------------------------------------------------------------------------- eigenpairs


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
def test_eigenpairs_equal_those_of_arpack_and_lapack(which: Any) -> None:
    """The agents' matrices may be a list, and their sum may be requested instead of the mean."""
    stack = agents_with(INDEFINITE)
    found = DecentralizedEigen(3, which=which, of="sum", topology="ring", tol=1e-11).fit(list(stack))
    values, vectors = pooled(stack, 3, which)
    close(found.eigenvalues_, 6 * values, atol=1e-11 * 54)
    close(found.eigenvectors_, vectors, atol=1e-10)
    theirs = eigsh(stack.sum(axis=0), k=3, which=which, return_eigenvectors=False, v0=np.ones(stack.shape[1]))
    close(np.sort(found.eigenvalues_), np.sort(theirs), atol=1e-10)
    assert (found.residuals_ <= 1e-9).all()
    assert (found.angles_ <= 1e-9).all()
    assert found.clusters_ == ()
    assert clone(found).get_params()["which"] == which


def test_eigenpairs_of_a_mean_of_covariances_are_right() -> None:
    """The covariances are of real data, and each is centred by its agent."""
    parts = np.array_split(load_breast_cancer().data / load_breast_cancer().data.std(axis=0), 6)
    stack = np.stack([np.cov(part.T) for part in parts])
    for which in ("LA", "SA"):
        found = DecentralizedEigen(2, which=which, topology="ring").fit(stack)
        values, vectors = pooled(stack, 2, which)
        close(found.eigenvalues_, values, atol=1e-12 * float(np.linalg.norm(stack.mean(axis=0), 2)))
        close(found.eigenvectors_, vectors, atol=1e-8 if which == "SA" else 1e-10)


def test_the_eigenpairs_estimator_rejects_bad_input() -> None:
    A = np.diag([3.0, 2.0, 2.0, 1.0])
    with raises(GapError, parameter="k", value=2) as caught:
        DecentralizedEigen(2, topology="path").fit([A, A, A])
    assert "k = 1 or k = 3" in str(caught.value)
    with pytest.raises(DataError) as asymmetric:
        DecentralizedEigen(1).fit([A, np.triu(np.ones((4, 4)))])
    assert asymmetric.value.parameter != "operators"
    with raises(DataError, parameter="operators", value=(4, 4)):
        DecentralizedEigen(1).fit(A)
    with raises(DataError, parameter="operators", value=(4, 4)):
        DecentralizedEigen(1).fit(aslinearoperator(A))
    with raises(DataError, parameter="operators", value=()):
        DecentralizedEigen(1).fit([])
    with pytest.raises(DataError) as unequal:
        DecentralizedEigen(1).fit([A, A[:3, :3]])
    assert unequal.value.parameter != "operators"
    with raises(InvalidInput, parameter="topology", value=5):
        DecentralizedEigen(1, topology=deepca.topology.ring(5)).fit([A, A])
    slow = agents_with([1.0, 0.999, *np.linspace(0.9, -1.0, 14)])
    eigen = DecentralizedEigen(1, algorithm="deepca", max_iter=4, topology="ring")
    with pytest.warns(ConvergenceWarning):
        eigen.fit(slow)
    assert eigen.result_.status.code == StatusCode.OUT_OF_ITERATIONS


# ------------------------------------------------------------------------------------------------- matrix completion


def test_soft_impute_equals_that_of_the_pooled_matrix() -> None:
    """The distributed iteration of the example equals the one with numpy's SVD of the whole matrix."""
    spec = importlib.util.spec_from_file_location("matrix_completion", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 4)) @ rng.standard_normal((4, 20)) + 0.1 * rng.standard_normal((60, 20))
    seen = rng.random(X.shape) > 0.4
    rank, shrink, iterations = 5, 1.0, 15
    ours, _ = example.soft_impute(np.split(X, 4), np.split(seen, 4), rank, shrink, iterations)
    filled = np.where(seen, X, 0.0)
    Z = filled
    for _ in range(iterations):
        U, s, Vt = np.linalg.svd(filled, full_matrices=False)
        Z = (U[:, :rank] * np.maximum(s[:rank] - shrink, 0.0)) @ Vt[:rank]
        filled = np.where(seen, X, Z)
    close(np.concatenate(ours), Z, atol=1e-8)
    assert np.linalg.norm((Z - X)[~seen]) < 0.5 * np.linalg.norm(X[~seen])
