"""Compare orthonormal bases, signs and angles with numpy, scipy and their definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from deepca.errors import InvalidInput, NotFiniteError, StartError
from deepca.operators.linalg import (
    check_start,
    numerical_rank,
    polar,
    qr,
    random_orthonormal,
    sign_adjust,
    signs_towards,
    tan_theta,
    top_eigenvectors,
)
from tests.laws.strategies import quick, seeds
from tests.support.errors import raises
from tests.support.problems import Array, close, orthogonal, spectrum_problem

EPS = float(np.finfo(np.float64).eps)
Factor = Callable[[Array], tuple[Array, Array]]


def _conditioned(d: int, k: int, condition: float, seed: int) -> Array:
    """Return a d × k matrix with singular values from 1 down to 1/condition, in random directions."""
    return (orthogonal(d, seed)[:, :k] * np.geomspace(1.0, 1.0 / condition, k)) @ orthogonal(k, seed + 1)


def _departure(W: Array) -> float:
    return float(np.abs(np.swapaxes(W, -1, -2) @ W - np.eye(W.shape[-1])).max())


def _householder(S: Array) -> tuple[Array, Array]:
    """Return LAPACK's QR with a positive diagonal of R."""
    Q, R = np.linalg.qr(S)
    signs = np.where(np.diagonal(R, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return Q * signs[..., None, :], R * signs[..., None]


# ------------------------------------------------------------------------------------------------ qr


@given(
    st.lists(st.floats(0.0, 14.0), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(0, 20),
    seeds,
)
@quick(80)
def test_qr_of_any_batch_is_a_qr_factorisation(conditions: list[float], k: int, more: int, seed: int) -> None:
    d = k + more
    S = np.stack([_conditioned(d, k, 10.0**c, seed % 10**6 + 7 * i) for i, c in enumerate(conditions)])
    W, R = qr(S)
    assert W.shape == S.shape
    assert R.shape == (len(S), k, k)
    assert _departure(W) < 2e-14
    close(W @ R, S, atol=2e-15 * k * 4)
    close(np.tril(R, -1), 0.0, atol=1e-14)
    for j, c in enumerate(conditions):  # the factors are only determined up to eps·κ
        expected_W, expected_R = _householder(S[j])
        close(R[j], expected_R, atol=1e-13)
        if c < 12.0:
            assert (np.diagonal(R[j]) > 0).all()
            close(W[j], expected_W, atol=1e-14 * 10.0**c + 1e-13)


@pytest.mark.parametrize("condition", [1.0, 3.0, 1e2, 1e4, 1e5, 1e6, 1e7, 1e8, 1e10, 1e12, 1e14])
def test_qr_stays_orthonormal_at_every_condition(condition: float) -> None:
    S = np.stack([_conditioned(60, 5, condition, seed) for seed in range(10)])
    W, R = qr(S)
    assert _departure(W) < 1e-14
    close(W @ R, S, atol=3e-15)


@pytest.mark.parametrize("power", [-12, -6, 6, 12])
def test_columns_of_very_different_length_lose_no_accuracy(power: int) -> None:
    rng = np.random.default_rng(0)
    S = rng.standard_normal((4, 30, 3)) * np.array([1.0, 10.0**power, 1.0])
    W, R = qr(S)
    expected_W, expected_R = _householder(S)
    assert _departure(W) < 1e-14
    close(W, expected_W, atol=1e-13)
    close(W @ R, S, rtol=1e-12, atol=1e-15 * np.abs(S).max())
    close(R, expected_R, rtol=1e-11, atol=1e-14 * np.abs(R).max())


@pytest.mark.parametrize("factor", [qr, polar])
@pytest.mark.parametrize("power", [-290, -200, -160, -155, -150, -24, -12, 12, 24, 150, 153, 155, 160, 200, 290])
def test_the_basis_does_not_depend_on_the_scale_of_the_data(power: int, factor: Factor) -> None:
    """It is the same from 1e-290 to 1e290, although squares overflow or underflow."""
    plain = np.random.default_rng(power + 300).standard_normal((3, 20, 4))
    S = plain * 10.0**power
    W, R = factor(S)
    assert _departure(W) < 1e-14
    close(W, factor(plain)[0], atol=1e-13)
    close(R / 10.0**power, factor(plain)[1], atol=1e-13 * np.abs(factor(plain)[1]).max())


def test_items_of_one_batch_may_differ_in_scale_by_three_hundred_orders() -> None:
    plain = np.random.default_rng(0).standard_normal((3, 20, 4))
    W, R = qr(plain * np.array([1e-150, 1.0, 1e150])[:, None, None])
    expected_W, expected_R = _householder(plain)
    close(W, expected_W, atol=1e-13)
    close(R / np.array([1e-150, 1.0, 1e150])[:, None, None], expected_R, atol=1e-13)


def _neighbours() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    deficient = rng.standard_normal((25, 2)) @ rng.standard_normal((2, 4))
    return {
        "orthonormal": orthogonal(25, 3)[:, :4],
        "condition 1e5": _conditioned(25, 4, 1e5, 4),
        "condition 1e9": _conditioned(25, 4, 1e9, 5),
        "condition 1e14": _conditioned(25, 4, 1e14, 6),
        "rank 2": deficient,
        "a repeated column": np.eye(25)[:, [0, 0, 1, 2]],
        "another of condition 1e14": _conditioned(25, 4, 1e14, 7),
        "zero": np.zeros((25, 4)),
        "a zero column": rng.standard_normal((25, 4)) * np.array([1.0, 0.0, 1.0, 1.0]),
        "huge": rng.standard_normal((25, 4)) * 1e150,
        "tiny": rng.standard_normal((25, 4)) * 1e-150,
    }


@pytest.mark.parametrize("other", _neighbours())
@pytest.mark.parametrize("factor", [qr, polar])
def test_an_agent_gets_the_same_basis_alone_and_in_a_batch(other: str, factor: Factor) -> None:
    for condition in (1.0, 50.0, 1e4, 1e5):
        S = _conditioned(25, 4, condition, 9)
        alone_W, alone_R = factor(S)
        W, R = factor(np.stack([_neighbours()[other], S, S]))
        for j in (1, 2):
            close(W[j], alone_W, atol=1e-14)
            close(R[j], alone_R, atol=1e-14)


def test_more_than_one_batch_axis_is_allowed() -> None:
    S = np.random.default_rng(0).standard_normal((2, 3, 10, 4))
    S[1, 2] = 0.0
    S[0, 1] = _conditioned(10, 4, 1e12, 0)
    W, R = qr(S)
    assert _departure(W) < 1e-14
    close(W @ R, S, atol=1e-14)


def test_square_and_single_column_matrices_work() -> None:
    for d, k in ((1, 1), (5, 5), (7, 1)):
        S = np.random.default_rng(d).standard_normal((2, d, k))
        W, R = qr(S)
        close(W, _householder(S)[0], atol=1e-13)
        close(W @ R, S, atol=1e-14)


# ------------------------------------------------------------------------------------------------ lower rank


def _deficient(d: int, k: int, rank: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal((d, rank)) @ rng.standard_normal((rank, k)), dtype=np.float64)


@given(st.integers(0, 4), st.integers(2, 5), st.integers(0, 10), seeds)
@quick(60)
def test_a_basis_for_lower_rank_is_completed(rank: int, k: int, more: int, seed: int) -> None:
    rank, d = min(rank, k - 1), k + more
    S = _deficient(d, k, rank, seed)
    for factor in (qr, polar):
        W, R = factor(S)
        assert _departure(W) < 1e-14
        close(W @ R, S, atol=1e-13 * max(1.0, np.abs(S).max()))
    W, _ = qr(S)
    assert int(numerical_rank(W, S)) == rank == int(np.linalg.matrix_rank(S))


@pytest.mark.parametrize(
    "columns",
    [
        ([1, 0, 0, 0], [2, 0, 0, 0], [0, 1, 0, 0]),
        ([0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]),
        ([1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]),
        ([1, 1, 0, 0], [1, 1, 0, 0], [1, -1, 0, 0]),
        ([1, 0, 0, 0], [1, 1e-18, 0, 0], [0, 1, 0, 0]),
    ],
)
def test_a_column_after_a_repeated_one_is_not_lost(columns: tuple[list[float], ...]) -> None:
    S = np.array(columns, dtype=np.float64).T
    W, R = qr(S)
    assert _departure(W) < 1e-14
    close(W @ R, S, atol=1e-15)
    assert int(numerical_rank(W, S)) == np.linalg.matrix_rank(S)


@pytest.mark.parametrize("factor", [qr, polar])
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_completed_bases_agree_if_S_differs_by_rounding(rank: int, factor: Factor) -> None:
    S = _deficient(20, 4, rank, 5)
    scale = max(1.0, float(np.abs(S).max()))
    W, _ = factor(S)
    for seed in range(20):
        noise = 0.2 * EPS * scale * np.random.default_rng(seed).standard_normal(S.shape) if rank else 0.0
        close(factor(S + noise)[0], W, atol=1e-11)


@pytest.mark.parametrize("factor", [qr, polar])
def test_full_rank_bases_depend_smoothly_on_S(factor: Factor) -> None:
    S = _conditioned(20, 4, 100.0, 3)
    for seed in range(5):
        noise = 1e-12 * np.random.default_rng(seed).standard_normal(S.shape)
        close(factor(S + noise)[0], factor(S)[0], atol=1e-8)


def test_the_zero_matrix_has_rank_zero_and_an_agreed_basis() -> None:
    W, R = qr(np.zeros((3, 8, 2)))
    assert _departure(W) < 1e-14
    np.testing.assert_array_equal(R, 0.0)
    np.testing.assert_array_equal(W[0], W[2])
    assert numerical_rank(W, np.zeros((3, 8, 2))).tolist() == [0, 0, 0]


def test_numerical_rank_counts_singular_values_above_rounding() -> None:
    W = orthogonal(30, 0)[:, :4]
    for small, rank in ((1e-10, 4), (1e-13, 4), (1e-16, 3), (0.0, 3)):
        S = W * np.array([1.0, 0.5, 0.1, small])
        assert int(numerical_rank(W, S)) == rank


# ------------------------------------------------------------------------------------------------ polar


@pytest.mark.parametrize("condition", [1.0, 10.0, 1e4, 1e8, 1e12])
def test_polar_is_the_polar_decomposition_of_scipy(condition: float) -> None:
    S = np.stack([_conditioned(30, 4, condition, seed) for seed in range(5)])
    W, H = polar(S)
    assert _departure(W) < 1e-14
    close(W @ H, S, atol=1e-14)
    close(H, np.swapaxes(H, -1, -2), atol=1e-15)
    assert (np.linalg.eigvalsh(H) > -1e-15).all()
    for j in range(len(S)):
        expected_W, expected_H = scipy.linalg.polar(S[j])
        close(H[j], expected_H, atol=1e-14)
        close(W[j], expected_W, atol=1e-14 * condition + 1e-13)


def test_polar_is_nearest_and_follows_a_change_of_basis() -> None:
    """``polar(S Q) = polar(S) Q`` holds for orthogonal Q, unlike for QR."""
    S, Q = _conditioned(20, 3, 30.0, 1), orthogonal(3, 8)
    close(polar(S @ Q)[0], polar(S)[0] @ Q, atol=1e-13)
    assert np.linalg.norm(S - polar(S)[0]) < np.linalg.norm(S - qr(S)[0])


# ------------------------------------------------------------------------------------------------ not finite


@pytest.mark.parametrize("factor", [qr, polar])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_raise_an_error_that_names_the_agent(bad: float, factor: Factor) -> None:
    S = np.random.default_rng(0).standard_normal((5, 8, 3))
    S[3, 2, 1] = bad
    for array, named in ((S, "agent 3"), (S[3:], "agent 0")):
        with pytest.raises(NotFiniteError) as caught:
            factor(array)
        assert named in str(caught.value)
    with pytest.raises(NotFiniteError) as caught:
        factor(S[3])
    assert "agent" not in str(caught.value)


# ------------------------------------------------------------------------------------------------ signs


@given(st.integers(1, 5), st.integers(0, 6), st.integers(1, 4), seeds)
@quick(40)
def test_sign_adjust_follows_its_definition(k: int, more: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    W, W0 = rng.standard_normal((m, k + more, k)), rng.standard_normal((k + more, k))
    adjusted = sign_adjust(W, W0)
    signs = signs_towards(W, W0)
    assert signs.shape == (m, k)
    for j in range(m):
        for i in range(k):
            flip = sum(W[j, row, i] * W0[row, i] for row in range(k + more)) < 0
            np.testing.assert_array_equal(adjusted[j, :, i], -W[j, :, i] if flip else W[j, :, i])
            assert signs[j, i] == (-1.0 if flip else 1.0)
        np.testing.assert_array_equal(sign_adjust(W[j], W0), adjusted[j])


def test_a_column_orthogonal_to_its_reference_is_left_alone() -> None:
    W, W0 = np.array([[0.0, -1.0], [1.0, 0.0]]), np.eye(2)
    np.testing.assert_array_equal(sign_adjust(W, W0), W)
    np.testing.assert_array_equal(sign_adjust(-W, W0), -W)


# ------------------------------------------------------------------------------------------------ angles


def _scipy_tangent(U: Array, X: Array) -> float:
    return float(np.tan(scipy.linalg.subspace_angles(U, X).max()))


@given(st.integers(1, 4), st.integers(0, 8), seeds)
@quick(60)
def test_tan_theta_is_the_tangent_of_the_largest_principal_angle(k: int, more: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((k + more, k)))[0]
    X = rng.standard_normal((k + more, k))
    expected = _scipy_tangent(U, X)
    found = float(tan_theta(U, X))
    assert np.arctan(found) == pytest.approx(np.arctan(expected), abs=1e-10)
    V = np.linalg.qr(X)[0]
    assert np.arctan(float(tan_theta(U, V))) == pytest.approx(np.arctan(expected), abs=1e-12)
    # the same number from the definition with an explicit inverse
    inverse = np.linalg.norm((V - U @ (U.T @ V)) @ np.linalg.inv(U.T @ V), 2)
    assert np.arctan(float(tan_theta(U, V))) == pytest.approx(np.arctan(inverse), abs=1e-10)


@pytest.mark.parametrize("angle", [1e-1, 1e-4, 1e-8, 1e-10, 1e-12])
def test_tiny_angles_are_accurate(angle: float) -> None:
    Q = orthogonal(40, 2)
    U, V = Q[:, :3], Q[:, 3:6]
    X = U * np.cos([0.0, angle / 2, angle]) + V * np.sin([0.0, angle / 2, angle])
    X = X @ orthogonal(3, 4)
    assert float(tan_theta(U, X)) == pytest.approx(np.tan(angle), rel=1e-10, abs=1e-15)
    assert float(tan_theta(U, X)) == pytest.approx(_scipy_tangent(U, X), rel=1e-6, abs=2e-15)


def test_the_same_subspace_has_angle_zero_in_any_basis() -> None:
    U = orthogonal(30, 1)[:, :4]
    assert float(tan_theta(U, U @ _conditioned(4, 4, 50.0, 3) * 1e-20)) < 1e-13


def test_a_direction_orthogonal_to_U_has_an_infinite_tangent() -> None:
    U = np.eye(5)[:, :2]
    assert float(tan_theta(U, np.eye(5)[:, 3:])) == np.inf
    assert float(tan_theta(U, np.eye(5)[:, [0, 4]])) == np.inf
    Q = orthogonal(20, 6)
    assert float(tan_theta(Q[:, :3], Q[:, [0, 1, 7]])) > 1e13


def test_a_direction_almost_orthogonal_to_U_has_a_huge_tangent_without_a_warning() -> None:
    assert float(tan_theta(np.eye(2)[:, :1], np.array([[1e-200], [1.0]]))) > 1e150


@pytest.mark.parametrize("scale", [1e-150, 1e-12, 1e12, 1e150])
def test_angles_do_not_depend_on_the_scale_of_X(scale: float) -> None:
    rng = np.random.default_rng(0)
    U, X = orthogonal(12, 0)[:, :3], rng.standard_normal((12, 3))
    assert float(tan_theta(U, scale * X)) == pytest.approx(_scipy_tangent(U, X), rel=1e-12)


def test_angles_are_batched_over_leading_axes() -> None:
    rng = np.random.default_rng(0)
    U, X = orthogonal(9, 0)[:, :2], rng.standard_normal((2, 4, 9, 2))
    X[1, 3] = orthogonal(9, 0)[:, 2:4]
    X[0, 0] = np.eye(9)[:, :2]
    found = tan_theta(U, X)
    assert found.shape == (2, 4)
    for index in np.ndindex(2, 4):
        assert found[index] == pytest.approx(float(tan_theta(U, X[index])), rel=1e-12)
    for index in ((0, 1), (1, 2)):
        assert found[index] == pytest.approx(_scipy_tangent(U, X[index]), rel=1e-10)


def test_items_that_are_not_finite_have_an_infinite_tangent_and_affect_no_other() -> None:
    U = np.eye(4)[:, :2]
    X = np.stack([np.eye(4)[:, :2], np.full((4, 2), np.nan), np.full((4, 2), np.inf)])
    np.testing.assert_array_equal(tan_theta(U, X), [0.0, np.inf, np.inf])


def test_angles_between_spaces_of_different_shape_are_an_error() -> None:
    for X in (np.eye(4)[:, :3], np.eye(5)[:, :2], np.ones(4)):
        with raises(InvalidInput, parameter="X", value=X.shape):
            tan_theta(np.eye(4)[:, :2], X)


def test_top_eigenvectors_are_accurate() -> None:
    stack = spectrum_problem(1, 9, np.arange(9, 0, -1.0), seed=3, heterogeneity=0.0)
    values, vectors = top_eigenvectors(stack[0], 3)
    close(values, [9.0, 8.0, 7.0], rtol=1e-13)
    close(stack[0] @ vectors, vectors * values, atol=1e-13)
    assert _departure(vectors) < 1e-14


# ------------------------------------------------------------------------------------------------ starts


@pytest.mark.parametrize(("d", "k"), [(1, 1), (8, 3), (6, 6)])
def test_random_starts_are_orthonormal_and_the_same_for_the_same_seed(d: int, k: int) -> None:
    W = random_orthonormal(d, k, seed=4)
    assert W.shape == (d, k)
    assert _departure(W) < 1e-14
    np.testing.assert_array_equal(W, random_orthonormal(d, k, seed=4))
    np.testing.assert_array_equal(W, random_orthonormal(d, k, seed=np.random.default_rng(4)))
    assert d == 1 or not np.allclose(W, random_orthonormal(d, k, seed=5))
    np.testing.assert_array_equal(check_start(W, d), W)


def test_random_starts_are_uniform() -> None:
    """The mean of ``W Wᵀ`` over many draws is ``k/d · I``."""
    draws = np.stack([random_orthonormal(4, 2, seed=s) for s in range(2000)])
    mean = np.einsum("nik,njk->ij", draws, draws) / 2000
    close(mean, 0.5 * np.eye(4), atol=0.05)
    close(draws.mean(axis=0), 0.0, atol=0.07)


@pytest.mark.parametrize(("d", "k"), [(4, 5), (4, 0), (4, -1)])
def test_invalid_numbers_of_components_are_refused(d: int, k: int) -> None:
    with raises(StartError, parameter="k", value=k):
        random_orthonormal(d, k, seed=0)


@pytest.mark.parametrize(
    "W0",
    [np.ones(4), np.zeros((2, 4, 1)), np.zeros((4, 0)), np.zeros((4, 5)), np.eye(5)[:, :2]],
    ids=["a vector", "one per agent", "no columns", "k > d", "other d"],
)
def test_starts_of_the_wrong_shape_are_refused(W0: Array) -> None:
    with raises(StartError, parameter="W0", value=W0.shape):
        check_start(W0, 4)


def test_a_start_with_nan_is_refused_with_its_place() -> None:
    W0 = np.eye(4)[:, :2]
    W0[3, 1] = np.nan
    with raises(StartError, parameter="W0", row=3, column=1):
        check_start(W0, 4)


@pytest.mark.parametrize(("W0", "departure"), [(np.ones((4, 2)), 4.0), (np.eye(4)[:, :2] * (1 + 1e-6), 2e-6)])
def test_a_start_that_is_not_orthonormal_is_refused(W0: Array, departure: float) -> None:
    with raises(StartError, parameter="W0") as caught:
        check_start(W0, 4)
    assert caught.value.value == pytest.approx(departure, rel=1e-5)


def test_a_start_that_is_orthonormal_to_rounding_is_accepted() -> None:
    W = np.eye(4)[:, :2] + 1e-10
    np.testing.assert_array_equal(check_start(W.tolist(), 4), W)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_top_eigenvectors_are_accurate_at_any_scale(scale: float) -> None:
    """Small eigenvalues beside a large one are as accurate as at scale 1."""
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))[0]
    A = (Q * np.r_[1.0, 1e-8 * np.arange(7.0, 0.0, -1.0)]) @ Q.T
    A = (A + A.T) / 2.0
    values, vectors = top_eigenvectors(scale * A, 5)
    np.testing.assert_allclose(values / scale, np.linalg.eigvalsh(A)[::-1][:5], atol=1e-15)
    assert np.linalg.norm(A @ vectors - vectors * (values / scale)) <= 1e-15 * 16
