"""Test that DecentralizedPCA equals scikit-learn's PCA of the pooled rows, and follows its conventions."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import deepca
from deepca import DecentralizedPCA
from deepca.data.sources import as_source
from deepca.decomposition.fit import fit
from deepca.decomposition.settings import Settings
from deepca.errors import InvalidInput
from deepca.estimators.base import default_topology
from deepca.network import SimulatedNetwork
from deepca.operators import Form
from deepca.solver.result import StatusCode
from tests.support.errors import raises
from tests.support.problems import close

Array = npt.NDArray[np.float64]


def rows(n: int, d: int, variances: npt.ArrayLike, seed: int, *, offset: float = 0.0) -> Array:
    """Return rows with mean ``offset`` whose covariance matrix has exactly these nonzero eigenvalues."""
    rng = np.random.default_rng(seed)
    values = np.asarray(variances, dtype=np.float64)
    left = rng.standard_normal((n, len(values)))
    U = np.linalg.qr(left - left.mean(axis=0))[0]
    V = np.linalg.qr(rng.standard_normal((d, len(values))))[0]
    return np.asarray((U * np.sqrt(values * (n - 1))) @ V.T + offset)


@cache
def dataset(name: str) -> Array:
    loaders = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}
    return np.asarray(loaders[name]().data, dtype=np.float64)


def in_blocks(X: Any, size: int = 7) -> Iterator[Any]:
    return (X[first : first + size] for first in range(0, X.shape[0], size))


def deviations(pca: DecentralizedPCA) -> npt.NDArray[Any]:
    """Return the numbers by which the columns are divided."""
    assert pca.scale_ is not None
    return pca.scale_


def assert_pooled(ours: Any, X: Array, k: int, *, like: Any = None) -> None:
    """Compare every number of ``ours`` with scikit-learn's full SVD of ``X``, as exactly as the spectrum allows.

    Subspaces are always compared, and single components, including signs, where their eigenvalue is separate.
    """
    theirs = PCA(k, svd_solver="full").fit(X) if like is None else like
    n, d = X.shape
    values = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2 / (n - 1)
    around = np.concatenate([[np.inf], values, [-np.inf if d <= n else 0.0]])
    apart = np.minimum(around[:-2] - around[1:-1], around[1:-1] - around[2:])[:k]
    clear = (apart > 1e-6 * values[0]) & (values[:k] > 1e-6 * values[0])
    size = float(np.abs(X).max())

    assert ours.n_components_ == theirs.n_components_ == k
    assert ours.components_.shape == (k, d)
    close(ours.components_ @ ours.components_.T, np.eye(k), atol=1e-12)
    close(ours.components_[clear], theirs.components_[clear], atol=1e-7)
    rank = int((values > 1e-6 * values[0]).sum())
    whole = min(k, rank)
    if whole == len(values) or values[whole - 1] - values[whole] > 1e-6 * values[0]:
        angles = scipy.linalg.subspace_angles(ours.components_[:whole].T, theirs.components_[:whole].T)
        assert angles.max() <= 1e-7

    large = values[:k] >= 1e-6 * values[0]
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_"):
        close(getattr(ours, name)[large], getattr(theirs, name)[large], rtol=1e-9, err_msg=name)
        highest = float(getattr(theirs, name)[0])
        close(getattr(ours, name), getattr(theirs, name), atol=1e-7 * highest, err_msg=name)
    close(ours.mean_, theirs.mean_, atol=1e-13 * size)
    close(ours.noise_variance_, theirs.noise_variance_, rtol=1e-9, atol=1e-13 * float(values.sum()))
    assert ours.n_samples_ == theirs.n_samples_ == n
    assert ours.n_features_in_ == theirs.n_features_in_ == d

    scores, expected = ours.transform(X), theirs.transform(X)
    close(scores[:, clear], expected[:, clear], atol=1e-7 * size)
    if whole == k:
        close(ours.inverse_transform(scores), theirs.inverse_transform(expected), atol=1e-7 * size)


# ------------------------------------------------------------------------------------------- scikit-learn's own checks


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_components": 1, "scale": True},
        {"algorithm": "deepca", "topology": "complete"},
        {"n_components": 0.5, "whiten": True, "topology": "ring"},
    ],
    ids=["defaults", "one, scaled", "deepca", "share, whitened"],
)
def test_scikit_learns_estimator_checks_pass(settings: dict[str, Any]) -> None:
    """The check of the array API skips itself if no such library is enabled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # data of rank 1, and the like
        report = check_estimator(DecentralizedPCA(**settings), on_skip=None, on_fail=None)
    assert len(report) > 40
    others = {check["check_name"]: check["exception"] for check in report if check["status"] != "passed"}
    assert set(others) <= {"check_array_api_input"}, others
    assert not [check for check in report if check["status"] == "failed"]


# ------------------------------------------------------------------------------------------------ parity, real data


@pytest.mark.parametrize("name", ["digits", "breast cancer", "wine"])
@pytest.mark.parametrize(
    ("algorithm", "k"),
    [("auto", 1), ("auto", 4), ("auto", None), ("krylov", 4), ("deepca", 1), ("deepca", 4)],
)
def test_real_data_give_the_pooled_pca(algorithm: str, k: int | None, name: str) -> None:
    """The data have columns of very different sizes, constant columns, and eigenvalues over ten decades."""
    X = dataset(name)
    ours = DecentralizedPCA(k, algorithm=algorithm, topology="erdos-renyi:0.5", n_agents=8).fit(X)
    assert ours.result_.status.ok
    assert_pooled(ours, X, min(X.shape) if k is None else k)


@pytest.mark.parametrize("name", ["breast cancer", "wine"])
def test_deepca_finds_all_components(name: str) -> None:
    """The smallest eigenvalues are only rounding errors."""
    X = dataset(name)
    ours = DecentralizedPCA(algorithm="deepca", topology="complete", n_agents=5).fit(X)
    assert ours.result_.status.ok
    assert_pooled(ours, X, min(X.shape))


@pytest.mark.parametrize("name", ["breast cancer", "wine"])
def test_depca_gives_the_pooled_pca(name: str) -> None:
    """Without tracking, runs take longer but give the same result."""
    X = dataset(name)
    ours = DecentralizedPCA(2, algorithm="depca", topology="complete", n_agents=5).fit(X)
    assert_pooled(ours, X, 2)


@pytest.mark.parametrize("name", ["digits", "breast cancer", "wine"])
def test_likelihood_covariance_and_precision_equal_those_of_scikit_learn(name: str) -> None:
    X = StandardScaler().fit_transform(dataset(name))[:, :13]
    X = X[:, X.std(axis=0) > 0.0]
    ours, theirs = DecentralizedPCA(4).fit(X), PCA(4, svd_solver="full").fit(X)
    close(ours.score_samples(X), theirs.score_samples(X), rtol=1e-8)
    close(ours.score(X), theirs.score(X), rtol=1e-9)
    assert isinstance(ours.score(X), float)
    close(ours.get_covariance(), theirs.get_covariance(), atol=1e-9)
    close(ours.get_precision(), theirs.get_precision(), rtol=1e-8, atol=1e-8)
    close(ours.get_precision() @ ours.get_covariance(), np.eye(X.shape[1]), atol=1e-8)


def test_the_probabilistic_model_of_all_components_has_no_noise() -> None:
    X = dataset("wine")
    ours, theirs = DecentralizedPCA().fit(X), PCA(svd_solver="full").fit(X)
    assert ours.noise_variance_ == theirs.noise_variance_ == 0.0
    close(ours.get_covariance(), np.cov(X.T), rtol=1e-8, atol=1e-6)
    close(ours.score(X), theirs.score(X), rtol=1e-7)


# ----------------------------------------------------------------------------------------------- parity, synthetic data

SPECTRA: dict[str, Array] = {
    "geometric": 3.0 * 0.6 ** np.arange(8.0),
    "slow": 0.97 ** np.arange(8.0),
    "wide": 10.0 ** -np.linspace(0.0, 6.0, 8),
    "clusters": np.array([5.0, 5.0 * (1 - 1e-9), 5.0 * (1 - 2e-9), 1.0, 1.0, 0.1, 0.05, 0.01]),
    "low rank": np.array([4.0, 2.0, 1.0, 0.5, 0.3]),
    "large": 1e12 * 0.5 ** np.arange(8.0),
    "small": 1e-12 * 0.5 ** np.arange(8.0),
}
NETWORKS = [
    ("ring", 5),
    ("path", 4),
    ("star", 7),
    ("complete", 3),
    ("grid", 6),
    ("torus", 9),
    ("hypercube", 8),
    ("erdos-renyi:0.4", 11),
    ("random-regular", 12),
    ("complete", 1),
    ("path", 2),
]


@pytest.mark.parametrize("shape", [(60, 8), (25, 40), (300, 12)], ids=["60x8", "25x40", "300x12"])
@pytest.mark.parametrize("name", SPECTRA)
def test_synthetic_data_give_the_pooled_pca(name: str, shape: tuple[int, int]) -> None:
    """Spectra, shapes, seeds, networks and algorithms are varied together."""
    n, d = shape
    turn = list(SPECTRA).index(name) + 3 * d
    for seed, algorithm in enumerate(("auto", "deepca", "auto")):
        topology, m = NETWORKS[(turn + seed) % len(NETWORKS)]
        X = rows(n, d, SPECTRA[name], seed, offset=float(seed) * np.sqrt(SPECTRA[name][0]))
        ours = DecentralizedPCA(3, topology=topology, n_agents=m, algorithm=algorithm, random_state=seed).fit(X)
        assert ours.result_.status.ok, ours.result_.status
        assert_pooled(ours, X, 3)


@pytest.mark.parametrize(("topology", "m"), NETWORKS)
@pytest.mark.parametrize("algorithm", ["auto", "deepca"])
def test_every_network_gives_the_pooled_pca(algorithm: str, topology: str, m: int) -> None:
    """A name and a Topology give the same result."""
    X = rows(60, 10, 0.6 ** np.arange(10.0), 1, offset=1.0)
    ours = DecentralizedPCA(3, topology=topology, n_agents=m, algorithm=algorithm).fit(X)
    assert ours.topology_.n_agents == m
    assert_pooled(ours, X, 3)
    again = DecentralizedPCA(3, topology=ours.topology_, algorithm=algorithm).fit(X)
    close(again.components_, ours.components_, atol=1e-9)


@pytest.mark.parametrize("shape", [(20, 6), (6, 20), (6, 6), (7, 6), (2, 3), (3, 2), (50, 1)])
def test_none_gives_the_largest_number_of_components(shape: tuple[int, int]) -> None:
    """``n_components=None`` gives min(n, d), although the rank of centred rows is at most n − 1."""
    X = np.random.default_rng(0).standard_normal(shape) * np.linspace(3.0, 1.0, shape[1])
    ours = DecentralizedPCA().fit(X)
    theirs = PCA(svd_solver="full").fit(X)
    k = min(shape)
    assert ours.components_.shape == theirs.components_.shape == (k, shape[1])
    close(ours.explained_variance_, theirs.explained_variance_, atol=1e-13 * theirs.explained_variance_[0] + 1e-30)
    close(ours.components_ @ ours.components_.T, np.eye(k), atol=1e-12)
    rank = min(shape[0] - 1, shape[1])
    close(ours.components_[:rank], theirs.components_[:rank], atol=1e-9)
    close(ours.inverse_transform(ours.transform(X)), X, atol=1e-10)
    assert ours.noise_variance_ == 0.0


@pytest.mark.parametrize("mean", [0.0, 1.0, 10.0, 100.0])
def test_csr_rows_lose_no_digits(mean: float) -> None:
    """Sparse rows a few deviations from zero are as accurate as dense rows, even for small eigenvalues."""
    X = rows(1000, 10, 10.0 ** -np.linspace(0.0, 6.0, 10), 1, offset=mean)
    theirs = PCA(svd_solver="full").fit(X)
    for given in (X, sparse.csr_array(X)):
        ours = DecentralizedPCA(n_agents=5).fit(given)
        close(ours.explained_variance_, theirs.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
def test_sparse_rows_give_the_pooled_pca(kind: Callable[[Array], Any]) -> None:
    """All sparse formats of scipy are accepted."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((80, 12)) < 0.2, rng.standard_normal((80, 12)), 0.0) * np.linspace(3.0, 1.0, 12)
    ours = DecentralizedPCA(3).fit(kind(X))
    assert_pooled(ours, X, 3)
    close(ours.transform(kind(X)), ours.transform(X), atol=1e-12)


def test_duplicate_entries_of_csr_rows_are_summed() -> None:
    rng = np.random.default_rng(1)
    i, j = rng.integers(0, 40, 300), rng.integers(0, 5, 300)
    order = np.argsort(i, kind="stable")
    pointers = np.searchsorted(i[order], np.arange(41))
    X = sparse.csr_array((rng.standard_normal(300), j[order], pointers), shape=(40, 5))
    assert not X.has_canonical_format
    dense = np.asarray(X.toarray(), dtype=np.float64)
    assert_pooled(DecentralizedPCA(2, n_agents=4).fit(X), dense, 2)
    scaled = DecentralizedPCA(2, n_agents=4, scale=True).fit(X)
    close(deviations(scaled), dense.std(axis=0), rtol=1e-12)


# ---------------------------------------------------------------------------- centring, scaling, shares of the variance


@pytest.mark.parametrize("name", ["wine", "breast cancer"])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
def test_scaling_equals_a_standard_scaler_before_pca(kind: Callable[[Array], Any], name: str) -> None:
    """All attributes and methods are compared."""
    X = dataset(name)
    theirs = make_pipeline(StandardScaler(), PCA(3, svd_solver="full")).fit(X)
    ours = DecentralizedPCA(3, scale=True).fit(kind(X))
    close(ours.components_, theirs[-1].components_, atol=1e-9)
    close(ours.explained_variance_, theirs[-1].explained_variance_, rtol=1e-10)
    close(ours.explained_variance_ratio_, theirs[-1].explained_variance_ratio_, rtol=1e-10)
    close(ours.singular_values_, theirs[-1].singular_values_, rtol=1e-10)
    close(ours.noise_variance_, theirs[-1].noise_variance_, rtol=1e-9)
    close(ours.mean_, theirs[0].mean_, rtol=1e-12)
    close(deviations(ours), theirs[0].scale_, rtol=1e-12)
    scores = theirs.transform(X)
    close(ours.transform(kind(X)), scores, atol=1e-8)
    close(ours.inverse_transform(scores), theirs.inverse_transform(scores), atol=1e-8 * np.abs(X).max())
    close(ours.score_samples(X), theirs.score_samples(X), rtol=1e-8)
    close(ours.score(X), theirs.score(X), rtol=1e-8)
    close(ours.get_covariance(), theirs[-1].get_covariance(), atol=1e-9)
    close(ours.to_sklearn_pipeline().transform(X), scores, atol=1e-8)
    close(ours.to_sklearn_pipeline().inverse_transform(scores), theirs.inverse_transform(scores), atol=1e-6)
    with pytest.raises(InvalidInput, match="to_sklearn_pipeline"):
        ours.to_sklearn()


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_without_centring_the_result_is_an_svd(form: Form, kind: Callable[[Array], Any]) -> None:
    """The components are the right singular vectors of the uncentred rows."""
    X = rows(40, 7, 0.5 ** np.arange(7.0), 0, offset=0.3)
    _, sigma, Vt = np.linalg.svd(X, full_matrices=False)
    sources = [as_source(kind(part), f"agent {j}") for j, part in enumerate(np.array_split(X, 4))]
    found = fit(sources, SimulatedNetwork(deepca.topology.ring(4)), Settings(3, center=False, form=form)).decomposition
    signs = np.sign(np.take_along_axis(Vt, np.abs(Vt).argmax(axis=1)[:, None], axis=1))
    close(found.components, (Vt * signs)[:3], atol=1e-9)
    close(found.variances, sigma[:3] ** 2 / 39.0, rtol=1e-10)
    ours = DecentralizedPCA(3, center=False).fit(kind(X))
    close(ours.components_, (Vt * signs)[:3], atol=1e-9)
    close(ours.singular_values_, sigma[:3], rtol=1e-10)
    close(ours.explained_variance_ratio_, sigma[:3] ** 2 / np.square(sigma).sum(), rtol=1e-10)
    assert not ours.mean_.any()
    close(ours.transform(X), X @ (Vt * signs)[:3].T, atol=1e-9)
    close(ours.to_sklearn().transform(X), ours.transform(X), atol=1e-12)


def test_columns_can_be_scaled_without_centring() -> None:
    """Columns are divided by their standard deviation, as by StandardScaler(with_mean=False)."""
    X = rows(40, 5, 0.5 ** np.arange(5.0), 0, offset=0.7)
    scaler = StandardScaler(with_mean=False).fit(X)
    ours = DecentralizedPCA(2, center=False, scale=True).fit(X)
    close(deviations(ours), scaler.scale_, rtol=1e-12)
    _, sigma, Vt = np.linalg.svd(scaler.transform(X), full_matrices=False)
    close(ours.singular_values_, sigma[:2], rtol=1e-10)
    close(np.abs(np.vecdot(ours.components_, Vt[:2])), 1.0, rtol=1e-10)


@pytest.mark.parametrize("name", ["digits", "breast cancer", "wine", "made up", "wider than long"])
def test_a_share_of_the_variance_gives_the_same_number_of_components(name: str) -> None:
    """scikit-learn selects the same number of components for the same share."""
    made_up = {
        "made up": rows(80, 30, 0.9 ** np.arange(30.0), 0),
        "wider than long": rows(30, 60, 0.9 ** np.arange(29.0), 1),
    }
    X = made_up[name] if name in made_up else dataset(name)
    cumulated = np.cumsum(PCA(svd_solver="full").fit(X).explained_variance_ratio_)
    between = [float(share) for share in (cumulated[:-1] + cumulated[1:]) / 2.0 if share < 0.9999][:12:3]
    for share in (0.01, 0.3, 0.5, 0.8, 0.95, 0.99, *between):
        ours = DecentralizedPCA(share).fit(X)
        theirs = PCA(share, svd_solver="full").fit(X)
        assert ours.n_components_ == theirs.n_components_, share
        assert ours.explained_variance_ratio_.sum() > share
        close(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-9)
        close(ours.noise_variance_, theirs.noise_variance_, rtol=1e-8, atol=1e-13 * theirs.explained_variance_[0])


def test_a_share_of_the_variance_refers_to_scaled_columns() -> None:
    """The share refers to the variance after scaling."""
    X = dataset("wine")
    for share in (0.3, 0.6, 0.9):
        theirs = make_pipeline(StandardScaler(), PCA(share, svd_solver="full")).fit(X)
        assert DecentralizedPCA(share, scale=True).fit(X).n_components_ == theirs[-1].n_components_


@pytest.mark.parametrize("k", [np.int64(2), np.int32(2), np.uint8(2), np.float64(0.9), np.float32(0.9), 2, 0.9])
def test_numpy_integers_and_floats_are_accepted(k: Any) -> None:
    """They give the same result as Python's numbers."""
    X = dataset("wine")
    ours = DecentralizedPCA(k).fit(X)
    assert ours.n_components_ == (2 if k > 1 else PCA(0.9, svd_solver="full").fit(X).n_components_)
    assert type(ours.n_components_) is int


# ------------------------------------------------------------------------------------------------ precision and offset


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("settings", [{}, {"scale": True}, {"whiten": True}, {"n_components": 0.7}])
def test_float32_rows_give_float32_results(settings: dict[str, Any], kind: Callable[[Any], Any]) -> None:
    """All attributes and scores are float32, with the accuracy of single precision."""
    X = rows(80, 9, 0.6 ** np.arange(9.0), 0, offset=1.0).astype(np.float32)
    wide = X.astype(np.float64)
    ours = DecentralizedPCA(**{"n_components": 3, **settings}).fit(kind(X))
    double = DecentralizedPCA(**{"n_components": 3, **settings}).fit(wide)
    names = ["components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"]
    if "scale" in settings:
        names.append("scale_")
    for name in names:
        assert getattr(ours, name).dtype == np.float32, name
        assert getattr(double, name).dtype == np.float64, name
    k = settings.get("n_components", 3)
    if "scale" in settings:
        theirs = make_pipeline(StandardScaler(), PCA(k, svd_solver="full")).fit(wide)
    else:
        theirs = make_pipeline(PCA(k, svd_solver="full", whiten="whiten" in settings)).fit(wide)
    for name in names[:4]:
        close(getattr(ours, name), getattr(theirs[-1], name), rtol=1e-5, atol=1e-5)
    scores = ours.transform(kind(X))
    assert scores.dtype == np.float32
    close(scores, theirs.transform(wide), atol=1e-5 * float(np.abs(theirs.transform(wide)).max()))
    assert ours.inverse_transform(scores).dtype == np.float32
    close(ours.inverse_transform(scores), theirs.inverse_transform(theirs.transform(wide)), atol=1e-5)
    assert ours.to_sklearn_pipeline().transform(X).dtype == np.float32
    close(ours.noise_variance_, theirs[-1].noise_variance_, rtol=1e-5)


def test_mixed_precision_gives_float64() -> None:
    """A single agent with float64 makes the result float64."""
    X = rows(40, 5, 0.6 ** np.arange(5.0), 0)
    single = X.astype(np.float32)
    assert DecentralizedPCA(2).fit_agents([single[:20], single[20:]]).components_.dtype == np.float32
    assert DecentralizedPCA(2).fit_agents([single[:20], X[20:]]).components_.dtype == np.float64
    blocks = iter([single[20:30], X[30:]])  # the first block alone does not show this
    assert DecentralizedPCA(2).fit_agents([single[:20], blocks]).components_.dtype == np.float64


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.float16, bool])
def test_other_numbers_become_float64(dtype: type) -> None:
    """Sums of integers cannot overflow then."""
    X: npt.NDArray[Any] = np.random.default_rng(0).integers(0, 100, (40, 4)).astype(dtype)
    ours = DecentralizedPCA(2, n_agents=4).fit(X)
    assert ours.components_.dtype == np.float64
    theirs = PCA(2, svd_solver="full").fit(X.astype(np.float64))
    close(ours.explained_variance_, theirs.explained_variance_, rtol=1e-10)
    apart = DecentralizedPCA(2).fit_agents(np.array_split(X, 4))
    close(apart.explained_variance_, theirs.explained_variance_, rtol=1e-10)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("form", ["rows", "covariance"])
@pytest.mark.parametrize("scale", [False, True], ids=["plain", "scaled"])
def test_an_offset_of_a_million_changes_nothing(scale: bool, form: Form, kind: Callable[[Array], Any]) -> None:
    """Rows that are shifted without rounding give the same result to 1e-9."""
    X = np.round(rows(300, 8, 10.0 ** -np.linspace(0.0, 3.0, 8), 2) * 4096.0) / 4096.0
    moved = X + 1e6
    assert np.array_equal(moved - 1e6, X)
    network = SimulatedNetwork(deepca.topology.ring(6))

    def run(Y: Array) -> Any:
        sources = [as_source(kind(part), f"agent {j}") for j, part in enumerate(np.array_split(Y, 6))]
        return fit(sources, network, Settings(4, scale=scale, form=form)).decomposition

    here, there = run(X), run(moved)
    close(there.components, here.components, atol=1e-9)
    close(there.variances, here.variances, rtol=1e-9)
    close(there.total_variance, here.total_variance, rtol=1e-9)
    close(there.mean - 1e6, here.mean, atol=1e-9)
    theirs = PCA(4, svd_solver="full").fit(StandardScaler().fit_transform(X) if scale else X)
    close(there.components, theirs.components_, atol=1e-9)
    close(there.variances, theirs.explained_variance_, rtol=1e-9)


def test_offsets_may_differ_between_agents() -> None:
    """Agents are far from each other, so most of the variance is between them."""
    X = rows(60, 5, 0.6 ** np.arange(5.0), 0)
    X += np.repeat([0.0, 100.0, -50.0], 20)[:, None] * np.array([1.0, 0.5, -1.0, 0.0, 2.0])
    ours = DecentralizedPCA(3).fit_agents([X[:20], X[20:40], X[40:]])
    assert_pooled(ours, X, 3)


# --------------------------------------------------------------------------------------------------- allocation of rows


def test_labels_assign_rows_to_agents() -> None:
    """Labels may be text, numbers or categories, and the result does not depend on them."""
    X = rows(90, 6, 0.6 ** np.arange(6.0), 0, offset=2.0)
    names = np.array(["köln"] * 70 + ["b"] * 19 + ["z"])
    order = np.random.default_rng(0).permutation(90)
    for labels in (names, names.astype(object), names.tolist(), np.unique(names, return_inverse=True)[1]):
        shuffled = np.asarray(labels)[order]
        ours = DecentralizedPCA(3, topology="path").fit(X[order], agents=shuffled)
        assert ours.topology_.n_agents == 3
        assert ours.model_.about["agents"] == 3
        assert_pooled(ours, X[order], 3)


def test_labels_assign_sparse_rows() -> None:
    """Labels may also be categories of pandas."""
    X = rows(50, 6, 0.6 ** np.arange(6.0), 0)
    labels = np.random.default_rng(1).integers(0, 4, 50)
    assert_pooled(DecentralizedPCA(2).fit(sparse.csr_array(X), agents=labels), X, 2)
    pd = pytest.importorskip("pandas")
    assert_pooled(DecentralizedPCA(2).fit(X, agents=pd.Series(labels).astype("category")), X, 2)


@pytest.mark.parametrize("algorithm", ["auto", "deepca"])
def test_numbers_of_rows_may_differ_widely_between_agents(algorithm: str) -> None:
    """The agents have one, three and five thousand rows."""
    X = rows(5004, 6, 0.6 ** np.arange(6.0), 0, offset=1.0)
    X[:4] += 3.0
    ours = DecentralizedPCA(2, topology="path", algorithm=algorithm).fit_agents([X[:1], X[1:4], X[4:]])
    assert_pooled(ours, X, 2)


def test_a_single_agent_sends_nothing() -> None:
    X = dataset("wine")
    for ours in (DecentralizedPCA(2).fit_agents([X]), DecentralizedPCA(2, n_agents=1).fit(X)):
        assert_pooled(ours, X, 2)
        assert ours.traffic_.bytes_sent == ours.traffic_.messages == 0


def test_agents_may_have_rows_of_different_types(tmp_path: Path) -> None:
    """Rows may be dense, float32, CSR, memory-mapped, from a generator or function, in a list or in a file."""
    X = np.round(rows(200, 7, 0.6 ** np.arange(7.0), 0, offset=1.0) * 256.0) / 256.0  # exact in float32
    np.save(tmp_path / "map.npy", X[60:90])
    np.save(tmp_path / "file.npy", X[170:])
    parts: list[Any] = [
        X[:20],
        X[20:40].astype(np.float32),
        sparse.csr_array(X[40:60]),
        np.load(tmp_path / "map.npy", mmap_mode="r"),
        in_blocks(X[90:120]),
        lambda: in_blocks(sparse.csr_matrix(X[120:150])),
        X[150:170].tolist(),
        tmp_path / "file.npy",
    ]
    assert_pooled(DecentralizedPCA(3, topology="ring").fit_agents(parts), X, 3)
    parts[4] = in_blocks(X[90:120], 1)  # the other one has been read
    assert_pooled(DecentralizedPCA(3, topology="star").fit_agents(iter(parts)), X, 3)
    parts[4] = lambda: in_blocks(X[90:120], 11)
    sources = [as_source(part, f"agent {j}") for j, part in enumerate(parts)]
    found = fit(sources, SimulatedNetwork(deepca.topology.ring(8)), Settings(3, form="rows")).decomposition
    theirs = PCA(3, svd_solver="full").fit(X)
    close(found.components, theirs.components_, atol=1e-9)
    close(found.variances, theirs.explained_variance_, rtol=1e-9)


def test_tables_may_have_their_columns_in_different_orders() -> None:
    """Tables are data frames, blocks of data frames, and Arrow tables."""
    pd = pytest.importorskip("pandas")
    X = rows(90, 4, 0.5 ** np.arange(4.0), 0, offset=1.0)
    frame = pd.DataFrame(X, columns=list("abcd"))
    parts: list[Any] = [
        frame[:20],
        frame[20:40][list("dbca")],
        in_blocks(frame[40:60][list("badc")]),
        lambda: in_blocks(frame[60:75]),
        frame[75:],
    ]
    try:
        import pyarrow
    except ImportError:
        pass
    else:
        parts[4] = pyarrow.Table.from_pandas(frame[75:][list("cabd")], preserve_index=False)
    ours = DecentralizedPCA(2).fit_agents(parts)
    theirs = PCA(2, svd_solver="full").fit(X)
    close(ours.components_, theirs.components_, atol=1e-9)
    close(ours.explained_variance_, theirs.explained_variance_, rtol=1e-10)
    assert ours.feature_names_in_.tolist() == list("abcd")
    close(ours.transform(frame), theirs.transform(X), atol=1e-9)
    with pytest.raises(ValueError, match="feature names"):
        ours.transform(frame[list("dcba")])


def test_an_agent_may_have_dense_and_sparse_blocks() -> None:
    """Both forms of operators accept such blocks."""
    X = rows(60, 5, 0.5 ** np.arange(5.0), 0)
    theirs = PCA(2, svd_solver="full").fit(X)
    for form in ("covariance", "rows"):
        mixed = as_source(lambda: iter([X[20:40], sparse.csr_array(X[40:])]), "agent 1")
        sources = [as_source(X[:20], "agent 0"), mixed]
        found = fit(sources, SimulatedNetwork(deepca.topology.path(2)), Settings(2, form=form)).decomposition
        close(found.components, theirs.components_, atol=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 11])
def test_there_are_never_more_agents_than_rows(n: int) -> None:
    """The default is at most ten agents."""
    X = np.random.default_rng(0).standard_normal((n, 3)) * [3.0, 2.0, 1.0]
    ours = DecentralizedPCA(1).fit(X)
    assert ours.topology_.n_agents == min(n, 10)
    close(ours.components_, PCA(1, svd_solver="full").fit(X).components_, atol=1e-9)


def test_the_name_of_a_network_may_set_the_number_of_agents() -> None:
    """``ring:5`` has five agents, whatever the default is."""
    X = dataset("wine")
    assert DecentralizedPCA(2, topology="ring:5").fit(X).topology_.n_agents == 5
    assert DecentralizedPCA(2, topology="erdos-renyi:0.5:7").fit(X).topology_.n_agents == 7
    assert DecentralizedPCA(2, topology="torus:3x4").fit(X).topology_.n_agents == 12


# --------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("m", [1, 4, 9, 13])
def test_integer_weights_repeat_rows(m: int, kind: Callable[[Array], Any]) -> None:
    """A row of weight 2 counts as two rows, and weight zero removes a row."""
    X = rows(39, 5, 0.6 ** np.arange(5.0), 0, offset=1.0)
    for seed in range(4):
        w = np.random.default_rng(seed).integers(0, 6, 39)
        repeated = np.repeat(X, w, axis=0)
        theirs = PCA(2, svd_solver="full").fit(repeated)
        ours = DecentralizedPCA(2, topology="star", n_agents=m).fit(kind(X), sample_weight=w)
        close(ours.components_, theirs.components_, atol=1e-9)
        close(ours.explained_variance_, theirs.explained_variance_, rtol=1e-10)
        close(ours.singular_values_, theirs.singular_values_, rtol=1e-10)
        close(ours.mean_, theirs.mean_, atol=1e-13)
        close(ours.noise_variance_, theirs.noise_variance_, rtol=1e-9)
        assert ours.n_samples_ == w.sum() == theirs.n_samples_


@pytest.mark.parametrize("scale", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_fractional_weights_give_the_weighted_covariance(form: Form, scale: bool) -> None:
    """The divisor is Σw − 1."""
    X = rows(60, 5, 0.6 ** np.arange(5.0), 0, offset=1.0)
    w = np.random.default_rng(0).uniform(0.2, 3.0, 60)
    parts = [slice(0, 10), slice(10, 12), slice(12, 60)]
    for kind in (np.asarray, sparse.csr_array):
        sources = [as_source(kind(X[part]), f"agent {j}") for j, part in enumerate(parts)]
        network = SimulatedNetwork(deepca.topology.path(3))
        settings = Settings(2, form=form, scale=scale)
        found = fit(sources, network, settings, weights=[w[part] for part in parts]).decomposition
        mean = w @ X / w.sum()
        Y = X - mean
        if scale:
            Y /= np.sqrt(w @ np.square(Y) / w.sum())
        values, vectors = np.linalg.eigh((Y * w[:, None]).T @ Y / (w.sum() - 1.0))
        close(found.variances, values[::-1][:2], rtol=1e-10)
        close(np.abs(np.vecdot(found.components, vectors[:, ::-1][:, :2].T)), 1.0, rtol=1e-12)
        close(found.mean, mean, atol=1e-13)
        close(found.total_variance, values.sum(), rtol=1e-10)
        close(found.weight, w.sum(), rtol=1e-13)


def test_the_scale_of_the_weights_does_not_matter() -> None:
    """Directions and shares stay the same."""
    X = rows(60, 5, 0.6 ** np.arange(5.0), 0, offset=1.0)
    w = np.random.default_rng(0).uniform(0.2, 3.0, 60)
    one = DecentralizedPCA(2).fit(X, sample_weight=w)
    for factor in (0.1, 7.0, 1e6):
        other = DecentralizedPCA(2).fit(X, sample_weight=factor * w)
        close(other.components_, one.components_, atol=1e-9)
        close(other.explained_variance_ratio_, one.explained_variance_ratio_, rtol=1e-9)
        close(other.mean_, one.mean_, atol=1e-13)


def test_weights_of_one_change_nothing() -> None:
    """The result is the same up to rounding."""
    X = dataset("wine")
    plain, ones = DecentralizedPCA(2).fit(X), DecentralizedPCA(2).fit(X, sample_weight=np.ones(len(X)))
    close(ones.components_, plain.components_, atol=1e-11)
    close(ones.explained_variance_, plain.explained_variance_, rtol=1e-12)
    assert ones.n_samples_ == plain.n_samples_ == len(X)


@pytest.mark.parametrize("shape", [(45, 5), (15, 30)], ids=["long", "wide"])
def test_rows_of_weight_zero_are_ignored(shape: tuple[int, int]) -> None:
    """Neither ``fit`` nor ``fit_agents`` counts them as rows."""
    X = rows(*shape, 0.6 ** np.arange(5.0), 0, offset=1.0)
    w = np.ones(len(X))
    w[::4] = 0.0
    theirs = PCA(2, svd_solver="full").fit(X[w > 0])
    thirds = np.array_split(np.arange(len(X)), 3)
    for ours in (
        DecentralizedPCA(2, n_agents=3).fit(X, sample_weight=w),
        DecentralizedPCA(2).fit_agents([X[i] for i in thirds], sample_weight=[w[i] for i in thirds]),
    ):
        close(ours.components_, theirs.components_, atol=1e-9)
        close(ours.explained_variance_, theirs.explained_variance_, rtol=1e-10)
        assert ours.n_samples_ == theirs.n_samples_
        close(ours.noise_variance_, theirs.noise_variance_, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("form", ["rows", "covariance"])
def test_an_agent_may_have_only_rows_of_weight_zero(form: Form) -> None:
    """Such an agent communicates, but its rows do not count."""
    X = rows(60, 5, 0.6 ** np.arange(5.0), 0, offset=1.0)
    X[20:40] += 1e3
    theirs = PCA(2, svd_solver="full").fit(np.delete(X, np.s_[20:40], axis=0))
    weights = [np.ones(20), np.zeros(20), np.ones(20)]
    for kind in (np.asarray, sparse.csr_array):
        parts = [kind(X[:20]), kind(X[20:40]), kind(X[40:])]
        sources = [as_source(part, f"agent {j}") for j, part in enumerate(parts)]
        network = SimulatedNetwork(deepca.topology.path(3))
        found = fit(sources, network, Settings(2, form=form), weights=weights).decomposition
        close(found.components, theirs.components_, atol=1e-9)
        close(found.variances, theirs.explained_variance_, rtol=1e-10)
    ours = DecentralizedPCA(2).fit(X, agents=np.repeat([0, 1, 2], 20), sample_weight=np.concatenate(weights))
    close(ours.components_, theirs.components_, atol=1e-9)
    assert ours.n_samples_ == 40


def test_weights_can_be_passed_through_a_pipeline() -> None:
    """Weights are passed with the name of the step, as usual in scikit-learn."""
    X = dataset("wine")
    w = np.random.default_rng(0).integers(1, 4, len(X))
    fitted = Pipeline([("pca", DecentralizedPCA(2))]).fit(X, pca__sample_weight=w)
    theirs = PCA(2, svd_solver="full").fit(np.repeat(X, w, axis=0))
    close(fitted[-1].components_, theirs.components_, atol=1e-9)


# ------------------------------------------------------------------------------------------- whitening and conversions


@pytest.mark.parametrize("scale", [False, True], ids=["plain", "scaled"])
def test_whitened_scores_equal_those_of_scikit_learn(scale: bool) -> None:
    """The scores have variance one and can be transformed back."""
    X = dataset("wine")
    ours = DecentralizedPCA(3, whiten=True, scale=scale).fit(X)
    steps = [StandardScaler()] if scale else []
    theirs = make_pipeline(*steps, PCA(3, whiten=True, svd_solver="full")).fit(X)
    close(ours.transform(X), theirs.transform(X), atol=1e-8)
    close(ours.transform(X).var(axis=0, ddof=1), 1.0, rtol=1e-8)
    scores = theirs.transform(X)
    close(ours.inverse_transform(scores), theirs.inverse_transform(scores), rtol=1e-8)
    # scikit-learn inverts the covariance through whitened components: its own solvers differ by 4e-8 here
    close(ours.score_samples(X), theirs.score_samples(X), rtol=1e-6)
    close(ours.get_covariance(), theirs[-1].get_covariance(), rtol=1e-8, atol=1e-8)
    close(ours.to_sklearn_pipeline().transform(X), scores, atol=1e-8)


def test_whiten_may_be_changed_after_fitting() -> None:
    """As in scikit-learn, ``whiten`` is read by ``transform``."""
    X = dataset("wine")
    ours, theirs = DecentralizedPCA(2).fit(X), PCA(2, svd_solver="full").fit(X)
    close(ours.set_params(whiten=True).transform(X), theirs.set_params(whiten=True).transform(X), atol=1e-8)
    close(ours.to_sklearn().transform(X), theirs.transform(X), atol=1e-8)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_conversion_gives_a_pca_of_scikit_learn(dtype: type, whiten: bool) -> None:
    """The PCA has the attributes, types and scores of one fitted by scikit-learn, and shares no arrays with ours."""
    X: npt.NDArray[Any] = rows(60, 6, 0.6 ** np.arange(6.0), 0, offset=1.0).astype(dtype)
    ours = DecentralizedPCA(3, whiten=whiten).fit(X)
    theirs = PCA(3, whiten=whiten, svd_solver="full").fit(X)
    given = ours.to_sklearn()
    assert type(given) is PCA
    limit = 1e-9 if dtype == np.float64 else 1e-4
    fitted = {name for name in vars(theirs) if name.endswith("_") and not name.startswith("_")}
    assert fitted <= set(vars(given))
    for name in fitted:
        one, other = getattr(given, name), getattr(theirs, name)
        assert np.asarray(one).dtype == np.asarray(other).dtype, name
        close(one, other, rtol=limit, atol=limit, err_msg=name)
    close(given.transform(X), ours.transform(X), atol=1e-12 if dtype == np.float64 else 1e-5)
    close(given.inverse_transform(given.transform(X)), theirs.inverse_transform(theirs.transform(X)), atol=limit)
    close(given.score(X), theirs.score(X), rtol=1e-6 if dtype == np.float64 else 1e-3)
    close(given.get_covariance(), theirs.get_covariance(), atol=limit)
    assert given.get_feature_names_out().tolist() == ["pca0", "pca1", "pca2"]
    given.components_[:] = 0.0
    assert ours.components_.any()


def test_conversion_keeps_column_names() -> None:
    """Both the PCA and the pipeline have them."""
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(dataset("wine"), columns=[f"c{j}" for j in range(13)])
    plain = DecentralizedPCA(2).fit(X)
    assert plain.to_sklearn().feature_names_in_.tolist() == X.columns.tolist()
    close(plain.to_sklearn().transform(X), plain.transform(X), atol=1e-9)
    scaled = DecentralizedPCA(2, scale=True).fit(X)
    close(scaled.to_sklearn_pipeline().transform(X), scaled.transform(X), atol=1e-9)


# ------------------------------------------------------------------------------------------ conventions of scikit-learn


def test_a_grid_search_over_a_pipeline_finds_the_same_k() -> None:
    """The scores equal those with scikit-learn's PCA."""
    X, y = load_wine(return_X_y=True)

    def search(pca: Any) -> GridSearchCV:
        steps = Pipeline([("scale", StandardScaler()), ("pca", pca), ("classify", LogisticRegression(max_iter=500))])
        return GridSearchCV(steps, {"pca__n_components": [1, 2, 3, 5, 0.9]}, cv=3).fit(X, y)

    ours, theirs = search(DecentralizedPCA()), search(PCA(svd_solver="full"))
    assert ours.best_params_ == theirs.best_params_
    close(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"], atol=1e-12)


def test_a_grid_search_by_likelihood_finds_the_same_k() -> None:
    """Without labels, k is selected by ``score``."""
    X = rows(150, 8, np.array([9.0, 6.0, 4.0, 0.1, 0.1, 0.1, 0.1, 0.1]), 0)
    grid = {"n_components": [1, 2, 3, 4, 5]}
    ours = GridSearchCV(DecentralizedPCA(n_agents=4), grid, cv=3).fit(X)
    theirs = GridSearchCV(PCA(svd_solver="full"), grid, cv=3).fit(X)
    assert ours.best_params_ == theirs.best_params_
    close(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"], rtol=1e-8)


def test_scores_are_named_after_the_class() -> None:
    """As in scikit-learn, names are the lower-case class name and a number."""
    ours = DecentralizedPCA(2).fit(dataset("wine"))
    assert ours.get_feature_names_out().tolist() == ["decentralizedpca0", "decentralizedpca1"]


def test_output_as_a_data_frame_keeps_names_and_index() -> None:
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(dataset("wine"), columns=[f"c{j}" for j in range(13)]).set_index(np.arange(178) * 2)
    ours = DecentralizedPCA(2).set_output(transform="pandas")
    scores = ours.fit_transform(X)
    assert scores.columns.tolist() == ["decentralizedpca0", "decentralizedpca1"]
    assert scores.index.equals(X.index)
    close(scores.to_numpy(), PCA(2, svd_solver="full").fit_transform(X), atol=1e-8)
    assert ours.feature_names_in_.tolist() == X.columns.tolist()
    assert ours.model_.columns == tuple(X.columns)
    with pytest.raises(ValueError, match="feature names"):
        ours.transform(X.rename(columns={"c0": "other"}))


def test_the_next_fit_replaces_the_column_names() -> None:
    """Both ``fit`` and ``fit_agents`` replace them, and the number of columns."""
    pd = pytest.importorskip("pandas")
    X = dataset("wine")
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(13)])
    ours = DecentralizedPCA(2).fit(frame)
    ours.fit_agents([X[:90, :6], X[90:, :6]])
    assert not hasattr(ours, "feature_names_in_")
    assert ours.n_features_in_ == 6
    assert_pooled(ours, X[:, :6], 2)
    ours.fit_agents([frame[:90], frame[90:]])
    assert ours.feature_names_in_.tolist() == frame.columns.tolist()
    assert_pooled(ours.fit(X[:, :4]), X[:, :4], 2)
    assert not hasattr(ours, "feature_names_in_")
    with pytest.raises(ValueError, match="4 features"):
        ours.transform(X)


def test_parameters_are_stored_unchanged_and_cloned() -> None:
    """Every argument of the constructor is a parameter."""
    given: dict[str, Any] = {
        "n_components": 0.9,
        "whiten": True,
        "center": False,
        "scale": True,
        "topology": deepca.topology.ring(4),
        "n_agents": 4,
        "rounds": 7,
        "algorithm": "deepca",
        "messages": "float32",
        "tol": 1e-6,
        "max_iter": 123,
        "random_state": 5,
        "warm_start": True,
        "forgetting": 0.5,
        "verbose": 1,
        "engine": "mpi",
        "allreduce": True,
        "checkpoints": "kept",
    }
    pca = DecentralizedPCA(**given)
    assert pca.get_params() == given
    copy = clone(pca)
    assert {name: value for name, value in copy.get_params().items() if name != "topology"} == {
        name: value for name, value in given.items() if name != "topology"
    }
    assert not hasattr(clone(DecentralizedPCA(2).fit(dataset("wine"))), "components_")
    assert repr(DecentralizedPCA(2, topology="ring")) == "DecentralizedPCA(n_components=2, topology='ring')"
    assert DecentralizedPCA().set_params(tol=1e-3).tol == 1e-3


@pytest.mark.parametrize("settings", [{}, {"topology": deepca.topology.ring(5)}, {"scale": True, "warm_start": True}])
def test_estimators_can_be_pickled(settings: dict[str, Any]) -> None:
    """Fitted and unfitted estimators can be pickled, and fitted again."""
    X = dataset("wine")
    pickle.loads(pickle.dumps(DecentralizedPCA(2, **settings)))
    ours = DecentralizedPCA(2, **settings).fit(X)
    again = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again.transform(X), ours.transform(X))
    assert again.result_.certificate == ours.result_.certificate
    assert again.traffic_ == ours.traffic_
    assert again.topology_.n_agents == ours.topology_.n_agents
    close(again.fit(X).components_, ours.components_, atol=1e-9)


@pytest.mark.parametrize("method", ["transform", "inverse_transform", "score", "score_samples"])
def test_methods_raise_before_fit(method: str) -> None:
    """The error is scikit-learn's NotFittedError."""
    with pytest.raises(NotFittedError):
        getattr(DecentralizedPCA(2), method)(np.zeros((3, 2)))
    for other in ("get_covariance", "get_precision", "to_sklearn", "to_sklearn_pipeline", "get_feature_names_out"):
        with pytest.raises(NotFittedError):
            getattr(DecentralizedPCA(2), other)()


def test_input_is_not_modified() -> None:
    """Read-only arrays are accepted, too."""
    X = rows(50, 5, 0.6 ** np.arange(5.0), 0, offset=1.0)
    kept = X.copy()
    X.flags.writeable = False
    ours = DecentralizedPCA(2, scale=True).fit(X)
    ours.transform(X)
    DecentralizedPCA(2, scale=True).fit_agents([X[:20], sparse.csr_array(X[20:])])
    np.testing.assert_array_equal(X, kept)


# -------------------------------------------------------------------------------------- accuracy, warnings and progress


@pytest.mark.parametrize("algorithm", ["auto", "deepca"])
def test_the_seed_changes_no_more_than_the_tolerance(algorithm: str) -> None:
    """Another random network and another start give the same result."""
    X = rows(80, 8, 0.5 ** np.arange(8.0), 0)
    found = [
        DecentralizedPCA(3, random_state=seed, algorithm=algorithm).fit(X)
        for seed in (0, 1, np.random.RandomState(3), None, np.int64(7))
    ]
    for other in found[1:]:
        close(other.components_, found[0].components_, atol=1e-9)
        close(other.explained_variance_, found[0].explained_variance_, rtol=1e-11)
    again = DecentralizedPCA(3, random_state=0, algorithm=algorithm).fit(X)
    np.testing.assert_array_equal(again.components_, found[0].components_)
    assert again.traffic_ == found[0].traffic_


@pytest.mark.parametrize("tol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("algorithm", ["auto", "deepca"])
def test_the_certificate_proves_the_tolerance(algorithm: str, tol: float) -> None:
    """The bound holds for the angle computed by scipy, and the certificate covers all agents and rows."""
    X = rows(120, 10, 0.7 ** np.arange(10.0), 0, offset=3.0)
    ours = DecentralizedPCA(3, algorithm=algorithm, tol=tol, n_agents=6).fit(X)
    proof = ours.result_.certificate
    assert proof is not None
    assert ours.result_.status.code == "converged"
    assert proof.proves(tol)
    theirs = PCA(3, svd_solver="full").fit(X)
    angle = scipy.linalg.subspace_angles(ours.components_.T, theirs.components_.T).max()
    assert np.tan(angle) <= proof.angle + 1e-14
    assert (proof.n_agents, proof.n_rows) == (6, 120)
    close(proof.eigenvalues, ours.explained_variance_)
    outside = float(np.linalg.eigvalsh(np.cov(X.T))[-4])
    assert outside <= proof.bound * (1 + 1e-12)
    close(proof.next_eigenvalue, outside, rtol=0.1)


@pytest.mark.parametrize("gap", [0.02, 0.01, 0.003])
def test_a_small_gap_is_proven_too(gap: float) -> None:
    """The leading eigenvalue is only slightly above hundreds of others."""
    tail = (1.0 - gap) * (1.0 - 0.5 * np.arange(199) / 199)
    X = rows(400, 200, np.concatenate([[1.0], tail]), 0)
    ours = DecentralizedPCA(1, topology="complete", n_agents=4).fit(X)
    assert_pooled(ours, X, 1)
    assert ours.result_.certificate is not None
    assert ours.result_.certificate.proves(1e-10), ours.result_.status


def test_traffic_grows_with_the_network() -> None:
    """More agents send more messages, and longer paths take more rounds."""
    X = rows(120, 8, 0.6 ** np.arange(8.0), 0)
    found = [DecentralizedPCA(2, topology="ring", n_agents=m).fit(X).traffic_ for m in (2, 4, 8, 16)]
    for small, large in pairwise(found):
        assert large.bytes_sent > small.bytes_sent
        assert large.messages > small.messages
        assert large.rounds > small.rounds
    first = DecentralizedPCA(2, topology="ring", n_agents=8).fit(X)
    inner = first.result_.traffic.bytes_sent
    assert first.result_.certificate is not None
    # counting, centring and rotating the axes take traffic in addition to iterating and proving
    assert first.traffic_.bytes_sent > inner + first.result_.certificate.traffic.bytes_sent


@pytest.mark.parametrize("algorithm", ["deepca", "auto"])
def test_too_few_iterations_warn(algorithm: str) -> None:
    """The warning names the parameter to increase."""
    X = rows(200, 120, 0.995 ** np.arange(120.0), 0)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        ours = DecentralizedPCA(2, algorithm=algorithm, max_iter=3).fit(X)
    assert ours.result_.status.code == StatusCode.OUT_OF_ITERATIONS
    assert ours.n_iter_ == 3
    assert ours.components_.shape == (2, 120)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DecentralizedPCA(2, algorithm="auto").fit(X)


def test_a_missing_gap_after_k_warns() -> None:
    """The components are not unique; the advice names k for which they are."""
    X = rows(60, 8, np.array([4.0, 2.0, 2.0, 2.0, 1.0, 0.5, 0.25, 0.1]), 0)
    with pytest.warns(ConvergenceWarning, match="k = 1 or k = 4"):
        ours = DecentralizedPCA(2).fit(X)
    assert ours.result_.status.code == StatusCode.NOT_UNIQUE


def test_the_warning_points_at_the_callers_line() -> None:
    """Its file is this one, not a module of the library."""
    X = rows(200, 120, 0.995 ** np.arange(120.0), 0)
    with pytest.warns(ConvergenceWarning) as heard:
        DecentralizedPCA(2, algorithm="deepca", max_iter=3).fit(X)
    assert heard[0].filename == __file__
    with pytest.warns(ConvergenceWarning) as heard:
        DecentralizedPCA(2, algorithm="deepca", max_iter=3).fit_agents([X[:100], X[100:]])
    assert heard[0].filename == __file__


def test_a_fixed_number_of_rounds_gives_the_pooled_pca() -> None:
    """The paper uses a fixed number of rounds."""
    X = rows(80, 8, 0.5 ** np.arange(8.0), 0)
    ours = DecentralizedPCA(3, algorithm="deepca", rounds=12, topology="ring", n_agents=6).fit(X)
    assert_pooled(ours, X, 3)


def test_progress_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    """By default it is not shown."""
    pytest.importorskip("rich")
    X = dataset("wine")
    DecentralizedPCA(2).fit(X)
    assert capsys.readouterr() == ("", "")
    DecentralizedPCA(2, verbose=True).fit(X)
    shown = capsys.readouterr()
    assert "Krylov" in shown.out + shown.err


# ------------------------------------------------------------------------------------------------------ warm starts


@pytest.mark.parametrize("algorithm", ["auto", "deepca"])
def test_a_warm_start_on_the_same_rows_takes_fewer_iterations(algorithm: str) -> None:
    """The same search from a random start takes more iterations."""
    warm = cold = 0
    for seed in range(3):
        X = rows(300, 30, 0.8 ** np.arange(30.0), seed)
        ours = DecentralizedPCA(5, warm_start=True, algorithm=algorithm).fit(X)
        cold += ours.n_iter_
        ours.fit(X)
        warm += ours.n_iter_
        assert_pooled(ours, X, 5)
    assert warm < cold


@pytest.mark.parametrize("algorithm", ["auto", "deepca"])
def test_a_warm_start_with_more_components_takes_fewer_iterations(algorithm: str) -> None:
    """The same search from a random start takes more iterations, and gives the same result."""
    warm = cold = 0
    for seed in range(3):
        X = rows(300, 30, np.array([10.0, 9.0, 8.0, 7.0, 6.0, 5.0, *(0.9 ** np.arange(24.0))]), seed)
        ours = DecentralizedPCA(5, warm_start=True, algorithm=algorithm).fit(X)
        ours.set_params(n_components=6).fit(X)
        fresh = DecentralizedPCA(6, algorithm=algorithm).fit(X)
        assert_pooled(ours, X, 6)
        warm, cold = warm + ours.n_iter_, cold + fresh.n_iter_
    assert warm < cold


def test_a_warm_start_does_not_change_the_result() -> None:
    """With fewer components, or with other rows, the result depends on the current rows only."""
    X = rows(100, 8, 0.6 ** np.arange(8.0), 0)
    other = rows(100, 8, 0.6 ** np.arange(8.0), 1)
    wide = rows(100, 11, 0.6 ** np.arange(8.0), 1)
    ours = DecentralizedPCA(5, warm_start=True).fit(X)
    assert_pooled(ours.set_params(n_components=2).fit(X), X, 2)
    assert_pooled(ours.set_params(n_components=4).fit(other), other, 4)
    assert_pooled(ours.fit(wide), wide, 4)
    assert_pooled(ours.set_params(n_components=0.9).fit(X), X, PCA(0.9, svd_solver="full").fit(X).n_components_)
    assert_pooled(
        ours.set_params(n_components=3).fit(X.astype(np.float32).astype(np.float64)),
        X.astype(np.float32).astype(np.float64),
        3,
    )


def test_a_warm_start_without_useful_directions_gives_the_right_result() -> None:
    """The new rows vary only in columns that were constant before, equally in each of five directions."""
    rng = np.random.default_rng(0)
    first, second = np.zeros((60, 12)), np.zeros((60, 12))
    first[:, :6] = rows(60, 6, 0.6 ** np.arange(6.0), 0)
    Q = rng.standard_normal((60, 5))
    second[:, 6:11] = np.linalg.qr(Q - Q.mean(axis=0))[0]
    ours = DecentralizedPCA(5, warm_start=True).fit(first)
    ours.fit(second)
    assert ours.result_.status.ok, ours.result_.status
    close(ours.explained_variance_, np.full(5, 1.0 / 59.0), rtol=1e-9)
    assert not np.abs(ours.components_[:, :6]).max() > 1e-9


def test_sparse_rows_never_become_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Centring 2,000 × 100,000 rows with 40,000 entries takes two products and no dense block."""
    rng = np.random.default_rng(0)
    places = (rng.integers(0, 2000, 40_000), rng.integers(0, 100_000, 40_000))
    places[1][:300] = 7  # one column that stands out
    X: Any = sparse.csr_array((rng.uniform(1.0, 2.0, 40_000), places), shape=(2000, 100_000))

    fill = sparse.csr_array.toarray

    def narrow(self: Any, *given: Any, **options: Any) -> Any:
        assert self.shape[1] < 100_000, "rows were made dense"
        return fill(self, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sparse.csr_array, "toarray", narrow)
        ours = DecentralizedPCA(1, n_agents=5).fit(X)
    theirs = PCA(1, svd_solver="arpack").fit(X)
    close(ours.explained_variance_, theirs.explained_variance_, rtol=1e-9)
    close(ours.components_, theirs.components_, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "ranks", "agents"),
    [("ring", 1, 10), ("ring", 10, 10), ("ring", 12, 12), ("torus", 13, 14)],
)
def test_the_default_number_of_agents_is_at_least_the_number_of_ranks(name: str, ranks: int, agents: int) -> None:
    """With more than ten ranks, the default is their number, or the next number for which the network exists."""
    assert default_topology(name, most=500, seed=0, ranks=ranks).n_agents == agents


def test_the_default_number_of_agents_is_at_most_the_number_of_rows() -> None:
    assert default_topology("ring", most=8, seed=0, ranks=12).n_agents == 8


def test_a_number_of_agents_in_the_name_of_a_network_is_used() -> None:
    X = np.random.default_rng(0).standard_normal((30, 4))
    assert DecentralizedPCA(1, topology="ring:7").fit(X).topology_.n_agents == 7


@pytest.mark.parametrize(
    ("given", "parameter", "value"), [({"Xs": 3}, "Xs", int), ({"sample_weight": 2.0}, "sample_weight", float)]
)
def test_arguments_without_an_entry_per_agent_are_rejected(given: dict[str, Any], parameter: str, value: type) -> None:
    """The error has the type of the argument, not its value, which could be rows."""
    asked = {"Xs": [np.eye(4), np.eye(4)], **given}
    for method in (DecentralizedPCA(1).fit_agents, DecentralizedPCA(1).partial_fit_agents):
        with raises(deepca.errors.DataError, parameter=parameter, value=value):
            method(**asked)
