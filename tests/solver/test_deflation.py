"""Test that variances below the rounding of the largest are found from the rows, and count as known only if proven."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

import deepca
from deepca import DecentralizedPCA, DecentralizedSVD, Tolerance
from deepca._util.typing import Array
from deepca.algorithms import AcceleratedDeEPCA, BlockKrylov, DeEPCA
from deepca.cli.view.model import summary
from deepca.decomposition.svd import Partition
from deepca.errors import DataError
from deepca.operators import DenseRows, Operator, SparseRows, from_rows
from deepca.solver.deflation import count_independent, graded_axes
from tests.support.graded import graded_rows, long_svd, tangent_of
from tests.support.seeds import law_seeds

pytestmark = pytest.mark.simulator("estimators with all agents in one process")

EPS = float(np.finfo(np.float64).eps)
STEEP = [1e7, 1.0, 0.01]
SPECTRA: dict[str, Any] = {
    "three steps": STEEP,
    "far apart": [1e12, 1e4, 1e-1],
    "plateaus": np.r_[1e8, 1e8, 1.0, 0.9, 1e-4, 1e-4],
    "dense": np.geomspace(1.0, 1e-12, 9),
    "close pairs": np.repeat([1.0, 1e-6, 1e-11], 2) * [1.0, 0.7, 1.0, 0.7, 1.0, 0.7],
}


def centred(X: Array) -> Any:
    L = X.astype(np.longdouble)
    return L - L.mean(axis=0)


def assert_as_pooled(values: Array, vectors: Array, sigma: Any, V: Any, proof: deepca.Certificate | None) -> None:
    """Assert values to eps σ₁ (or six digits), and angles of all leading parts within what is proven."""
    assert proof is not None
    k = values.size
    allowed = np.maximum(64.0 * EPS * float(sigma[0]), 1e-6 * sigma[:k].astype(np.float64))
    assert (np.abs(values - sigma[:k].astype(np.float64)) <= allowed).all()
    for p in range(1, min(k, len(V) - 1) + 1):
        if np.isfinite(bound := proof.leading(p)):
            assert tangent_of(V[:, :p], vectors[:, :p]) <= max(bound, 8.0 * EPS), p
            # as for a pooled SVD: not much more than eps σ₁ over the gap behind that part
            gap = float((sigma[p - 1] - (sigma[p] if p < sigma.size else 0.0)) / sigma[0])
            assert proof.parts == () or bound <= 1e3 * EPS / gap or bound <= 1e-10, p


@pytest.mark.parametrize("seed", law_seeds(6))
def test_all_components_of_rows_with_a_steep_spectrum_are_found(seed: int) -> None:
    """Here k = d: three rotated columns over four agents."""
    X = graded_rows(60, STEEP, seed)
    pca = DecentralizedPCA(None, n_agents=4).fit(X)
    sigma, V = long_svd(centred(X))
    assert pca.result_.status.ok
    assert pca.result_.rank == 3
    assert pca.model_.n_known == 3
    assert_as_pooled(pca.singular_values_, pca.components_.T, sigma, V, pca.result_.certificate)
    assert tangent_of(V[:, :2], pca.components_[:2].T) <= 1e-7


@pytest.mark.parametrize("seed", law_seeds(3))
def test_partitioned_columns_with_a_much_longer_one_are_decomposed(seed: int) -> None:
    X = np.random.default_rng(seed).standard_normal((500, 4)) * [1e7, 1.0, 0.5, 0.2]
    svd = DecentralizedSVD(2, partition="columns", n_agents=4).fit(X)
    sigma, V = long_svd(X)
    assert svd.result_.status.ok
    np.testing.assert_allclose(svd.singular_values_, sigma[:2].astype(np.float64), atol=64.0 * EPS * float(sigma[0]))
    assert tangent_of(V[:, :2], svd.components_.T) <= 1e-6


@pytest.mark.parametrize("kind", ["dense", "sparse", "rows", "columns"])
@pytest.mark.parametrize("m", [2, 6])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_spectra_match_extended_precision(spectrum: str, m: int, kind: str) -> None:
    values = np.asarray(SPECTRA[spectrum], dtype=np.float64)
    d = values.size
    X = graded_rows(50, values, d + m)
    for k in (d, d - 1, max(d // 2, 1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind in ("dense", "sparse"):
                pca = DecentralizedPCA(k, n_agents=m).fit(X if kind == "dense" else sparse.csr_array(X))
                sigma, V = long_svd(centred(X))
                proof, status = pca.result_.certificate, pca.result_.status
                assert_as_pooled(pca.singular_values_, pca.components_.T, sigma, V, proof)
            else:
                partition: Partition = "rows" if kind == "rows" else "columns"
                svd = DecentralizedSVD(k, partition=partition, n_agents=min(m, d)).fit(X)
                sigma, V = long_svd(X)
                status, U = svd.result_.status, (X.astype(np.longdouble) @ V) / sigma
                vectors, true = (svd.components_.T, V) if kind == "rows" else (svd.left_singular_vectors_, U)
                assert_as_pooled(svd.singular_values_, vectors, sigma, true, svd.certificate_)
        assert status.code in ("converged", "rounding_floor"), status


@pytest.mark.parametrize("algorithm", ["accelerated", "deepca", "covariance"])
def test_every_method_finds_small_variances(algorithm: str) -> None:
    X = graded_rows(60, [1e7, 1.0, 0.01, 1e-3], 5)
    pca = DecentralizedPCA(None, n_agents=4, algorithm=algorithm, max_iter=2000).fit(X)
    sigma, V = long_svd(centred(X))
    assert pca.result_.status.ok
    assert_as_pooled(pca.singular_values_, pca.components_.T, sigma, V, pca.result_.certificate)


@pytest.mark.parametrize("form", ["scaled", "weighted", "file", "share"])
def test_small_variances_are_found_however_the_rows_are_given(form: str, tmp_path: Path) -> None:
    """Rows may be scaled, weighted, or read again from a file, and a small share of the variance may be requested."""
    X, w = graded_rows(60, STEEP, 3), np.random.default_rng(3).uniform(0.5, 2.0, 60)
    L, W = X.astype(np.longdouble), np.ones(60, dtype=np.longdouble)
    pca = DecentralizedPCA(0.999999 if form == "share" else None, n_agents=4, scale=form == "scaled")
    if form == "weighted":
        W = w.astype(np.longdouble)
        pca.fit(X, sample_weight=w)
    elif form == "file":
        paths = [tmp_path / f"{j}.npy" for j in range(4)]
        for path, part in zip(paths, np.array_split(X, 4), strict=True):
            np.save(path, part)
        pca.set_params(n_agents=None).fit_agents(paths)
    else:
        pca.fit(X)
    L = (L - (W @ L) / W.sum()) * np.sqrt(W)[:, None]
    if form == "scaled":
        L = L / np.sqrt((L**2).sum(axis=0) / W.sum())
    sigma, V = long_svd(L)
    assert pca.result_.status.ok
    assert_as_pooled(pca.singular_values_, pca.components_.T, sigma, V, pca.result_.certificate)


def test_variances_of_exactly_zero_are_reported_as_zero() -> None:
    """The data have rank 2 of 5 to within the rounding of the rows: further variances are zero, not noise."""
    X = graded_rows(60, [1e6, 1.0], 1, d=5)
    pca = DecentralizedPCA(None, n_agents=4).fit(X)
    assert pca.result_.status.code == "rank_deficient"
    assert pca.result_.status.ok
    assert pca.result_.rank == 2
    assert not pca.explained_variance_[2:].any()
    np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(5), atol=1e-14)
    _, V = long_svd(centred(X))
    assert tangent_of(V[:, :2], pca.components_[:2].T) <= 1e-8


@pytest.mark.parametrize("smallest", [3e-15, 1e-18, 1e-40])
def test_variances_below_the_rounding_of_the_rows_are_bounded_not_zero(smallest: float) -> None:
    """The certificate has a bound on the third variance, which is below the rounding of the rows."""
    X = np.random.default_rng(0).standard_normal((60, 3)) * [1.0, 1e-3, smallest]
    pca = DecentralizedPCA(None, n_agents=4).fit(X)
    sigma, _ = long_svd(centred(X))
    proof = pca.result_.certificate
    assert proof is not None
    assert pca.result_.status.code == "rank_deficient"
    assert proof.bound > 0.0
    assert pca.model_.n_known == 2
    assert 0.0 < float(sigma[2]) ** 2 / 59 <= proof.eigenvalue_bound(3) <= 1e-20 * proof.scale
    few = DecentralizedPCA(None, n_agents=2).fit(X[:3] * [1.0, 1.0, 1e12])  # three rows have exactly two directions
    assert few.result_.status.code == "rank_deficient"
    assert few.model_.n_known == 3
    assert few.result_.certificate is not None
    assert few.result_.certificate.bound == 0.0


@pytest.mark.parametrize("tol", [1e-4, 1e-6, 1e-10])
def test_inexact_components_do_not_leave_spurious_ones(tol: float) -> None:
    """Inexact components leave a remainder in the deflated rows, which must not count as a seventh of rank 6."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        low = np.rint(1e6 * graded_rows(80, 10.0 ** -rng.uniform(0.0, 4.0, 6), seed, d=6))
        X = low @ rng.integers(-3, 4, (6, 14)).astype(np.float64)
        pca = DecentralizedPCA(None, n_agents=3, tol=tol).fit(X)
        sigma, _ = long_svd(centred(X))
        assert pca.result_.status.code == "rank_deficient", (seed, pca.result_.status)
        assert pca.model_.n_known == 6
        np.testing.assert_allclose(pca.singular_values_[:6], sigma[:6].astype(np.float64), rtol=1e-6)


def test_columns_found_twice_are_not_counted_as_independent() -> None:
    Z = np.random.default_rng(0).standard_normal((30, 3))
    again = np.column_stack([Z, 1e-9 * (Z @ [1.0, 2.0, 3.0])])
    assert count_independent(again.T @ again, 1e-16)[0] == 3
    assert count_independent(Z.T @ Z, 1e-16)[0] == 3
    mixed = np.column_stack([Z, 1e-9 * (Z @ [1.0, 2.0, 3.0]) + 1e-11 * np.random.default_rng(1).standard_normal(30)])
    count, least = count_independent(mixed.T @ mixed, 1e-16)
    assert count == 4
    assert least < 1e-3


def test_rows_too_small_to_deflate_are_reported_as_underflow() -> None:
    """The advice must not be to compute from rows, since the estimator already did."""
    X = 1e-142 * graded_rows(60, [1e7, 1.0, 0.5], 0)
    with pytest.warns(ConvergenceWarning):
        pca = DecentralizedPCA(None, n_agents=4).fit(X)
    assert pca.result_.status.code == "below_rounding"
    assert "at_most" not in pca.result_.status.numbers  # unlike in the advice for lost digits
    assert pca.model_.n_known == 1
    assert DecentralizedPCA(None, n_agents=4).fit(X * 1e30).result_.status.ok


@pytest.mark.parametrize("seed", law_seeds(4))
def test_converged_requires_accurate_variances_where_nothing_lies_outside(seed: int) -> None:
    """With k = d the angle says nothing about the last variance, so its accuracy decides."""
    X = graded_rows(60, [1.0, 1e-3, 3e-14], seed)
    pca = DecentralizedPCA(None, n_agents=4).fit(X)
    sigma, _ = long_svd(centred(X))
    exact = np.square(sigma).astype(np.float64) / 59
    off = np.abs(pca.explained_variance_ / exact - 1.0)
    assert pca.result_.certificate is not None
    assert (off <= max(1e-6, pca.result_.certificate.smallest_relative_error)).all()
    if pca.result_.status.code == "converged":
        assert off.max() <= 1e-6
    else:
        assert pca.result_.status.code == "rounding_floor"
        assert pca.result_.certificate.smallest_relative_error > 1e-6


def test_columns_with_a_proven_bound_are_kept() -> None:
    """Variances of 1 beside one of about 1e13, above rounding but below 4 d times rounding: their bounds hold."""
    d, r, kept = 26, 10, 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        low = rng.standard_normal((50, r)) * np.sqrt(np.r_[np.full(r - 1, 2.0), 0.35])
        X = low @ Q[:, :r].T + 1.2e6 * (np.arange(50)[:, None] >= 40) * rng.standard_normal(d)
        pca = DecentralizedPCA(None, n_agents=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pca.partial_fit(X[:40]).partial_fit(X[40:])
        proof, (_, V) = pca.result_.certificate, long_svd(centred(X))
        assert proof is not None
        clear = int((np.array(proof.eigenvalues) > 4.0 * d * EPS * proof.scale).sum())
        kept += proof.n_bounded > clear
        for p in range(1, d):
            if np.isfinite(proof.leading(p)):
                assert tangent_of(V[:, :p], pca.components_[:p].T) <= proof.leading(p), (seed, p)
    assert kept > 0  # otherwise the test would be vacuous


def test_flat_spectra_cost_no_extra_pass() -> None:
    """There is no additional run, and no additional pass over the rows."""
    passes: list[int] = []
    X = graded_rows(60, [3.0, 2.0, 1.0], 1)

    def rows() -> Any:
        passes.append(1)
        return iter([X[:30]])

    pca = DecentralizedPCA(None).fit_agents([rows, X[30:]])
    assert pca.result_.status.code == "converged"
    assert pca.result_.certificate is not None
    assert pca.result_.certificate.parts == ()
    assert len(passes) == 2  # once for the first block's columns, once for the rows


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("offset", [0.0, 3.0, 30.0, 300.0, 1e6])
def test_rounding_beyond_the_rank_is_not_reported_as_zero(offset: float, scale: bool) -> None:
    """If rows lie on a line up to rounding, variances are known or bounded, but not zero."""
    rng = np.random.default_rng(4)
    X = np.outer(rng.standard_normal(12), [1.0, 0.7, -0.4, 0.2]) + offset * np.array([0.3, -0.7, 1.9, 1.1])
    pca = DecentralizedPCA(3, n_agents=3, scale=scale).fit(X)
    Y = centred(X)
    if scale:
        Y = Y / np.sqrt(np.square(Y).mean(axis=0))
    sigma, _ = long_svd(Y)
    exact, known, proof = (
        np.square(sigma).astype(np.float64) / (len(X) - 1),
        pca.model_.n_known,
        pca.result_.certificate,
    )
    assert proof is not None
    assert pca.result_.status.ok
    if offset == 0.0:
        assert known == 1
    np.testing.assert_allclose(pca.explained_variance_[:known], exact[:known], rtol=1e-2)
    for r in range(known, 3):
        assert exact[r] <= proof.eigenvalue_bound(r + 1) <= 1e-10 * exact[0]


# ------------------------------------------------------------------------------------------- covariances without rows


@pytest.mark.parametrize("method", [BlockKrylov, DeEPCA, AcceleratedDeEPCA])
def test_covariances_alone_leave_small_variances_unknown(method: Any) -> None:
    """Nothing is reported as zero or as equal, and only the first component is reported as known."""
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    A = (Q * [1e14, 1.0, 0.25, 0.1, 0.05, 0.01]) @ Q.T
    stack = np.stack([(A + A.T) / 2.0] * 4)
    network = deepca.SimulatedNetwork(deepca.topology.ring(4))
    W0 = deepca.operators.linalg.random_orthonormal(6, 2, seed=0)
    result = deepca.solve(method(stack, W0, network), max_iter=2000, stop=Tolerance(1e-10))
    assert result.status.code == "below_rounding"
    assert not result.status.ok
    assert result.certificate is not None
    assert result.certificate.n_known(1e-6) == 1
    pairs = deepca.eigenpairs(stack, network, 2)
    assert pairs.status.code == "below_rounding"


@pytest.mark.parametrize("seed", law_seeds(6))
def test_a_gap_hidden_by_rounding_is_not_reported_as_a_tie(seed: int) -> None:
    """Eigenvalues differ by a relative 0.08, and by 1e-12 of the largest."""
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((20, 20)))[0]
    values = np.r_[1.0, np.linspace(2.6e-11, 1.26e-11, 16), 1.16e-11, 9e-12, 3e-12]
    stack = np.stack([(Q * values) @ Q.T] * 2)
    network = deepca.SimulatedNetwork(deepca.topology.complete(2))
    pairs = deepca.eigenpairs(stack, network, 3, which="SA", tol=1e-11)
    assert pairs.status.code in ("rounding_floor", "below_rounding")


def test_small_variances_are_unknown_after_partial_fit(tmp_path: Path) -> None:
    """No rows are left to examine after partial_fit: status and model say how many components are known."""
    X = graded_rows(60, STEEP, 0)
    with pytest.warns(ConvergenceWarning):
        pca = DecentralizedPCA(None, n_agents=4).partial_fit(X)
    assert pca.result_.status.code == "below_rounding"
    assert pca.model_.n_known == 1
    assert summary(pca.model_)["n_known"] == 1
    pca.model_.save(tmp_path / "model.npz")
    assert deepca.load(tmp_path / "model.npz").n_known == 1


@pytest.mark.parametrize("seed", law_seeds(20))
def test_only_accurate_variances_count_as_known(seed: int) -> None:
    """Variances whose second digit is wrong, because they are close to rounding, do not count."""
    X = graded_rows(60, [2e5, 1.0, 5e-3], seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pca = DecentralizedPCA(None, n_agents=4, tol=1e-6).partial_fit(X)
    sigma, _ = long_svd(centred(X))
    exact = np.square(sigma).astype(np.float64) / (len(X) - 1)
    known = pca.model_.n_known
    np.testing.assert_allclose(pca.explained_variance_[:known], exact[:known], rtol=1e-3)
    assert pca.result_.status.ok == (known == 3)
    assert any(issubclass(one.category, ConvergenceWarning) for one in caught) == (known < 3)
    assert pca.result_.certificate is not None
    for i in range(known, 3):
        assert pca.result_.certificate.eigenvalue_bound(i + 1) * 60 / 59 >= exact[i]


def test_the_proven_angle_is_not_trivial_where_nothing_lies_outside() -> None:
    """With k = d the angle of all components together is always zero, so the angle of leading parts is reported."""
    pca = DecentralizedPCA(None, n_agents=4).fit(graded_rows(60, STEEP, 0))
    proof = pca.result_.certificate
    assert proof is not None
    assert 0.0 < proof.worst_leading_angle == proof.proven_angle
    assert summary(pca.model_)["certificate"]["tan_theta"] == proof.worst_leading_angle


def test_few_rows_in_a_stream_are_rank_deficient() -> None:
    """Five rows have four directions about their mean: rounding cannot hide any more."""
    pca = DecentralizedPCA(None, n_agents=2).partial_fit(np.random.default_rng(0).standard_normal((5, 8)))
    assert (pca.result_.status.code, pca.result_.rank) == ("rank_deficient", 4)


@pytest.mark.parametrize("k", [3, 2])
def test_every_leading_part_of_explicit_matrices_has_a_bound(k: int) -> None:
    """Leading parts have upper bounds even where nothing lies outside."""
    for seed in range(5):
        X = graded_rows(60, [1e3, 1.0, 0.02], seed)
        A = from_rows(np.array_split(X, 4), form="covariance")
        W0 = deepca.operators.linalg.random_orthonormal(3, k, seed=0)
        network = deepca.SimulatedNetwork(deepca.topology.ring(4))
        result = deepca.solve(BlockKrylov(A, W0, network), max_iter=200, stop=Tolerance(1e-10))
        _, V = long_svd(X)
        assert result.certificate is not None
        for p in range(1, 3):
            true = tangent_of(V[:, :p], result.components[0][:, :p])
            assert true <= result.certificate.leading(p) < np.inf
        assert result.certificate.leading(2) > 1e-10
        assert result.status.code == "rounding_floor"


# ------------------------------------------------------------------------------------------------ building blocks


@pytest.mark.parametrize("kind", ["dense", "sparse", "prepared"])
def test_deflated_rows_match_extended_precision(kind: str) -> None:
    """Both ``deflated`` and ``gram`` are compared."""
    X = graded_rows(40, STEEP, 2)
    V = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 1)))[0]
    parts = np.array_split(X, 4)
    A: Operator = from_rows([sparse.csr_array(part) for part in parts] if kind == "sparse" else parts, form="rows")
    assert isinstance(A, SparseRows if kind == "sparse" else DenseRows)
    L = X.astype(np.longdouble)
    rest = L - (L @ V) @ V.T
    close = 1e-14 * float((rest**2).sum())
    np.testing.assert_allclose(A.deflated(V).mean() * 4.0, (rest.T @ rest).astype(np.float64), atol=close)
    true = ((L @ V).T @ (L @ V)).astype(np.float64)
    np.testing.assert_allclose(A.gram(V).sum(axis=0), true, rtol=1e-13)


def test_axes_of_columns_of_different_length_stay_accurate() -> None:
    """Short columns keep their accuracy, which the eigenvectors of the Gram matrix would lose."""
    rng = np.random.default_rng(0)
    U = np.linalg.qr(rng.standard_normal((30, 4)))[0]
    lengths = np.array([1.0, 1e-6, 1e-12, 1e-14])
    Z = U * lengths
    Z[:, 1:] += 1e-9 * Z[:, :1] * lengths[1:]
    turn, sigma = graded_axes(Z.T @ Z)
    np.testing.assert_allclose(sigma, lengths, rtol=1e-9)
    np.testing.assert_allclose(turn.T @ turn, np.eye(4), atol=1e-14)


@pytest.mark.parametrize("partition", ["rows", "columns"])
def test_underflow_and_overflow_are_named(partition: Any) -> None:
    X = np.random.default_rng(1).standard_normal((40, 5))
    for scale in (1e-150, 1e-160):
        with pytest.raises(DataError, match="underflow"):
            DecentralizedSVD(2, n_agents=4, partition=partition).fit(scale * X)
        with pytest.raises(DataError, match="underflow"):
            DecentralizedPCA(2, n_agents=4, center=partition == "rows").fit(scale * X)
    with pytest.raises(DataError, match="overflow"):
        DecentralizedSVD(2, n_agents=4, partition=partition).fit(1e160 * X)
