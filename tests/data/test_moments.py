"""Compare count, mean and scatter of one agent's rows with exact sums (math.fsum, long doubles, fractions)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from deepca.data.moments import Moments, check_finite, moments
from deepca.data.sources import ArraySource, Source, as_source
from deepca.errors import DataError
from tests.laws.strategies import quick
from tests.support.errors import raises
from tests.support.problems import close

Array = npt.NDArray[np.float64]


def exact_mean(X: Array, w: Array | None = None) -> Array:
    """Return column means, rounded once at the end."""
    weights = np.ones(len(X)) if w is None else w
    total = math.fsum(weights)
    return np.array([math.fsum(_products(weights, column)) / total for column in X.T])


def _products(a: Array, b: Array) -> Iterator[float]:
    """Return terms whose sum is exactly that of the products: each product and its rounding error."""
    for x, y in zip(a, b, strict=True):
        product = float(x) * float(y)
        yield product
        yield float(Fraction(float(x)) * Fraction(float(y)) - Fraction(product))


def exact_scatter(X: Array, w: Array | None = None) -> Array:
    """Return ``Σ w (x − mean)(x − mean)ᵀ``, computed in rational numbers."""
    n, d = X.shape
    weights = [Fraction(1)] * n if w is None else [Fraction(float(value)) for value in w]
    rows = [[Fraction(float(value)) for value in row] for row in X]
    total = sum(weights, Fraction(0))
    mean = [sum((c * row[i] for c, row in zip(weights, rows, strict=True)), Fraction(0)) / total for i in range(d)]
    apart = [[row[i] - mean[i] for i in range(d)] for row in rows]
    scatter = np.empty((d, d))
    for i in range(d):
        for j in range(d):
            terms = (c * row[i] * row[j] for c, row in zip(weights, apart, strict=True))
            scatter[i, j] = float(sum(terms, Fraction(0)))
    return scatter


def in_blocks(X: Any, sizes: Sequence[int]) -> Source:
    """Return a source that delivers X in blocks of these sizes, in every pass."""
    ends = np.cumsum([0, *sizes])
    assert ends[-1] == X.shape[0]
    return as_source(lambda: (X[a:b] for a, b in pairwise(ends)), "agent 0")


def assert_exact(found: Moments, X: Array, w: Array | None = None, *, rtol: float = 1e-13) -> None:
    """Check all fields of ``found`` to a few units of rounding of the centred data."""
    scatter = exact_scatter(X, w)
    sizes = np.sqrt(np.diagonal(scatter))
    eps = np.finfo(np.float64).eps
    assert found.n == (len(X) if w is None else np.count_nonzero(w))
    close(found.weight, len(X) if w is None else math.fsum(w), rtol=1e-14)
    mean = exact_mean(X, w)
    assert (np.abs(found.mean - mean) <= 4.0 * eps * np.abs(X).max(axis=0)).all()
    # a mean of large numbers is rounded to their spacing, which the squares then contain
    spacing = len(X) * np.square(4.0 * eps * np.abs(X).max(axis=0))
    assert (np.abs(found.squares - np.square(sizes)) <= rtol * np.square(sizes) + spacing).all()
    if found.scatter is not None:
        limit = rtol * np.outer(sizes, sizes) + np.sqrt(np.outer(spacing, spacing))
        assert (np.abs(found.scatter - scatter) <= limit).all()
        close(np.diagonal(found.scatter), found.squares, rtol=1e-11, atol=float(spacing.max()))


def rows(n: int, d: int, seed: int) -> Array:
    """Return correlated columns of unequal size, in multiples of 2⁻¹²: offsets up to 2⁴⁰ are added without rounding."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) * np.geomspace(1.0, 0.05, d)
    return np.asarray(np.round(X * 4096.0) / 4096.0)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, 1e6, 1e8, -1e8])
@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("sizes", [(60,), (1,) * 60, (7, 1, 30, 22)], ids=["whole", "row by row", "blocks"])
def test_moments_are_exact_far_from_zero(sizes: tuple[int, ...], kind: str, offset: float) -> None:
    """The distance from zero costs no more accuracy than the rounding of the mean itself."""
    X = rows(60, 4, 0) + offset
    assert np.array_equal(X - offset, rows(60, 4, 0))
    given = sparse.csr_array(X) if kind == "csr" else X
    # joining blocks takes differences of means, which are as exact as the mean is
    rtol = 1e-12 + (len(sizes) > 1) * 8.0 * np.finfo(np.float64).eps * abs(offset) * len(sizes)
    found = moments(in_blocks(given, sizes))
    assert_exact(found, X, rtol=rtol)


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_weighted_moments_are_exact(kind: str, offset: float) -> None:
    """Weights have very different sizes, and some are zero."""
    X = rows(50, 4, 1) + offset
    w = np.random.default_rng(2).uniform(0.0, 3.0, 50)
    w[[0, 7, 49]] = 0.0
    given = sparse.csr_array(X) if kind == "csr" else X
    for sizes in ((50,), (20, 30), (8, 1, 41)):
        assert_exact(moments(in_blocks(given, sizes), w), X, w, rtol=1e-12 + 1e-14 * abs(offset))


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_integer_weights_are_repetitions(kind: str) -> None:
    """A row of weight 3 counts as three equal rows."""
    X, w = rows(30, 3, 3), np.random.default_rng(0).integers(0, 4, 30)
    given = sparse.csr_array(X) if kind == "csr" else X
    found = moments(as_source(given, "agent 0"), w.astype(np.float64))
    assert found.weight == w.sum()
    repeated = np.repeat(X, w, axis=0)
    close(found.mean, exact_mean(repeated), rtol=1e-14)
    assert found.scatter is not None
    close(found.scatter, exact_scatter(repeated), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [(40,), (13, 27)], ids=["whole", "blocks"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_moments_of_sparse_rows_are_exact(weighted: bool, sizes: tuple[int, ...]) -> None:
    """The rows have constant columns, columns far from zero, an empty row, and explicitly stored zeros."""
    rng = np.random.default_rng(5)
    X = np.where(rng.random((40, 7)) < 0.2, rng.standard_normal((40, 7)), 0.0)
    X[:, 1], X[:, 3], X[:, 5] = 1.0, 0.0, 1e5 + np.round(rng.standard_normal(40) * 1024.0) / 1024.0
    X[17] = 0.0
    given = sparse.csr_array(X)
    given.data[:2] = 0.0
    dense = given.toarray()
    w = rng.uniform(0.1, 2.0, 40) if weighted else None
    found = moments(in_blocks(given, sizes), w)
    scatter = exact_scatter(dense, w)
    assert found.scatter is not None
    sizes_of = np.sqrt(np.diagonal(scatter))
    assert (np.abs(found.scatter - scatter) <= 1e-10 * np.outer(sizes_of, sizes_of) + 1e-12).all()
    assert (np.abs(found.squares - np.diagonal(scatter)) <= 1e-10 * np.diagonal(scatter) + 1e-12).all()
    close(found.mean, exact_mean(dense, w), rtol=1e-13)


def test_duplicate_entries_are_added() -> None:
    """A CSR matrix may have several entries at one place, which stand for their sum."""
    entries = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    twice = sparse.csr_array((entries, np.array([0, 0, 1, 1, 0]), np.array([0, 2, 4, 5])), shape=(3, 2))
    assert not twice.has_canonical_format
    for scatter in (True, False):
        found = moments(ArraySource(twice, "agent 0"), scatter=scatter)
        assert_exact(found, twice.toarray())


@pytest.mark.parametrize("ratio", [3.0, 10.0, 30.0, 60.0, 90.0, 300.0])
def test_moments_of_sparse_columns_near_zero_are_exact(ratio: float) -> None:
    """Moments are as exact as those of dense rows, on both sides of the switch between two formulas."""
    rng = np.random.default_rng(0)
    n, d = 100, 4
    X = np.round((rng.standard_normal((n, d)) + ratio) * 4096.0) / 4096.0
    found = moments(as_source(sparse.csr_array(X), "agent 0"))
    scatter = exact_scatter(X)
    assert found.scatter is not None
    assert np.abs(found.scatter - scatter).max() <= 1e-13 * float(np.diagonal(scatter).max())


def test_float32_is_summed_in_double_precision() -> None:
    """In single precision, the sum of a million equal numbers would be wrong in the third digit."""
    X = np.full((400_000, 2), 16_777.217, dtype=np.float32)
    X[::2, 1] += 1.0
    found = moments(ArraySource(X, "agent 0"))
    close(found.mean, X.astype(np.float64).mean(axis=0), rtol=1e-13)
    close(found.squares[1], 100_000.0 * float(np.float64(X[0, 1]) - np.float64(X[1, 1])) ** 2, rtol=1e-9)
    assert found.squares[0] <= 1e-12


def test_scatter_can_be_taken_about_another_centre() -> None:
    """An agent contributes its scatter about the agreed mean to the pooled scatter."""
    X = rows(25, 3, 8)
    centre = np.array([0.5, -2.0, 1e3])
    found = moments(as_source(X, "agent 0"))
    wide = (X.astype(np.longdouble) - centre).T @ (X.astype(np.longdouble) - centre)
    close(found.scatter_about(centre, np.zeros_like(centre)), wide.astype(np.float64), rtol=1e-13)
    close(found.squares_about(centre, np.zeros_like(centre)), np.diagonal(wide).astype(np.float64), rtol=1e-13)


def test_without_scatter_only_squares_are_computed() -> None:
    """Wide data need this, where a d × d matrix does not fit into memory."""
    X = rows(25, 3, 8)
    found = moments(as_source(X, "agent 0"), scatter=False)
    assert found.scatter is None
    assert_exact(found, X)
    with pytest.raises(ValueError, match="scatter=True"):
        found.scatter_about(np.zeros(3), np.zeros(3))


def test_every_block_is_reported() -> None:
    """Progress counts rows, block by block."""
    heard: list[int] = []
    moments(in_blocks(rows(20, 3, 0), (5, 14, 1)), on_rows=heard.append)
    assert heard == [5, 14, 1]


def test_a_block_without_weight_changes_nothing() -> None:
    """Nor does a first block without weight, before there is a mean."""
    X = rows(30, 3, 4)
    w = np.ones(30)
    w[:10] = w[15:20] = 0.0
    found = moments(in_blocks(X, (10, 5, 5, 10)), w)
    kept = X[w > 0.0]
    close(found.mean, exact_mean(kept), rtol=1e-13, atol=1e-14)
    close(found.squares, np.diagonal(exact_scatter(kept)), rtol=1e-12)


# ------------------------------------------------------------------------------------------------ arbitrary blocks


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Array, list[int], Array | None, bool]:
    """Draw rows of any size, offset and sparsity, split anywhere, with or without weights."""
    n, d = draw(st.integers(1, 14)), draw(st.integers(1, 3))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    offset = draw(st.sampled_from([0.0, 1.0, -100.0, 2.0**20, 1e8]))
    X = np.round(rng.standard_normal((n, d)) * 1024.0) / 1024.0 + offset
    X[rng.random((n, d)) < draw(st.sampled_from([0.0, 0.5]))] = 0.0
    cuts = sorted(draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    sizes = [int(size) for size in np.diff([0, *cuts, n])]
    w = rng.integers(0, 4, n).astype(np.float64) if draw(st.booleans()) else None
    return X, sizes, w, draw(st.booleans())


@quick(150)
@given(partitions())
def test_any_partition_into_blocks_gives_the_same(case: tuple[Array, list[int], Array | None, bool]) -> None:
    """The error is at most the rounding of the largest entry, compared with rational arithmetic."""
    X, sizes, w, as_csr = case
    found = moments(in_blocks(sparse.csr_array(X) if as_csr else X, sizes), w)
    if w is not None and w.sum() == 0.0:
        assert found.weight == 0.0
        assert not found.squares.any()
        return
    scatter = exact_scatter(X, w)
    eps = float(np.finfo(np.float64).eps)
    weight = float(len(X) if w is None else w.sum())
    assert found.weight == weight
    largest = np.abs(X).max(axis=0)
    assert (np.abs(found.mean - exact_mean(X, w)) <= 8.0 * len(sizes) * eps * largest).all()
    # (x + δ)² with δ the rounding of a mean; never eps·x², which is what squaring before centring would lose
    spread = np.sqrt(np.diagonal(scatter))
    slip = 16.0 * len(sizes) * eps * largest * math.sqrt(weight)
    limit = 1e-12 * np.outer(spread, spread) + np.outer(spread, slip) + np.outer(slip, spread) + np.outer(slip, slip)
    assert found.scatter is not None
    assert (np.abs(found.scatter - scatter) <= limit).all()
    assert (np.abs(found.squares - np.diagonal(scatter)) <= np.diagonal(limit)).all()


# ---------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_value_that_is_not_finite_is_located(value: float, kind: Callable[[Array], Any]) -> None:
    """Rows are counted over all blocks, or from the given first row."""
    X = rows(20, 3, 0)
    X[13, 2] = value
    with raises(DataError, row=13, column=2) as caught:
        moments(in_blocks(kind(X), (5, 5, 10)))
    np.testing.assert_equal(caught.value.value, value)
    with raises(DataError, agent=0, row=3, column=2):
        check_finite(ArraySource(kind(X), "agent 0", agent=0), kind(X)[10:], 0)
    check_finite(ArraySource(kind(X), "agent 0"), kind(X)[:10], 0)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("scatter", [True, False], ids=["scatter", "squares"])
@pytest.mark.parametrize(
    "X",
    [
        np.array([[1.7e308, 1.0], [1.7e308, 2.0], [0.0, 1.0]]),
        np.array([[1.7e308, 1.0], [-1.7e308, 2.0], [-1.7e308, 1.0]]),
        np.array([[1e200, 1.0], [-1e200, 2.0], [0.0, 1.0]]),
        np.array([[3e160, 1.0], [1.0, 2.0], [0.0, 1.0]]),
    ],
    ids=["sum", "difference", "square", "square of one"],
)
@pytest.mark.parametrize("sizes", [(3,), (1, 1, 1)], ids=["whole", "row by row"])
def test_overflow_is_an_error(sizes: tuple[int, ...], X: Array, scatter: bool, kind: Callable[[Array], Any]) -> None:
    """The error names no row, and numpy does not warn."""
    with raises(DataError, parameter=None, row=None, value=None) as caught:
        moments(in_blocks(kind(X), sizes), scatter=scatter)
    assert caught.value.column in (None, 0)  # None if already the sums overflow


@pytest.mark.parametrize("size", [19, 21])
def test_weights_for_another_number_of_rows_are_rejected(size: int) -> None:
    """A source of unknown length is checked while it is read."""
    with raises(DataError, parameter="sample_weight", value=size):
        moments(in_blocks(rows(20, 3, 0), (5, 15)), np.ones(size))


def test_the_stated_rounding_covers_means_whose_parts_cancel() -> None:
    """A weighted mean of equal values is not exact, and its correction is rounded, too."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        value = float(rng.uniform(0.5, 1.0) * 10.0 ** rng.integers(-8, 9))
        w = rng.uniform(0.0, 1.0, int(rng.integers(2, 12)))
        found = moments(ArraySource(np.full((w.size, 1), value), "rows"), w)
        error = Fraction(float(found.reference[0])) + Fraction(float(found.shift[0])) - Fraction(value)
        assert abs(float(error)) <= found.mean_rounding[0]
        assert np.sqrt(found.squares[0]) <= found.rounding[0]
