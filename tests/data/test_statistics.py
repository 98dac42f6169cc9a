"""Test pooled counts, means and squares against exact rational arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from deepca import topology
from deepca._util.typing import Array
from deepca.data.moments import moments, two_product
from deepca.data.sources import ArraySource
from deepca.data.statistics import PooledStatistics, agree_on_statistics
from deepca.network import SimulatedNetwork
from deepca.topology.time_varying import lossy

EPS = 2.0**-52
M = 5


def pooled(
    rows: Sequence[npt.NDArray[Any]], weights: list[Array] | None, *, changing: bool = False
) -> PooledStatistics:
    place = topology.ring(M)
    network = SimulatedNetwork(lossy(place, 1e-9, seed=0) if changing else place)
    local = [moments(ArraySource(X, "rows"), None if weights is None else weights[j]) for j, X in enumerate(rows)]
    return agree_on_statistics(network, local, weighted=weights is not None)


def exact(
    rows: Sequence[npt.NDArray[Any]], weights: list[Array] | None
) -> tuple[Fraction, list[Fraction], list[Fraction]]:
    """Return the sum of the weights, and the mean and the squares about it by column."""
    w = [Fraction(v) for one in weights for v in one.tolist()] if weights is not None else None
    X = np.concatenate(rows)
    w = [Fraction(1)] * len(X) if w is None else w
    total = sum(w, Fraction(0))
    columns = [[Fraction(v) for v in column] for column in X.T.tolist()]
    means = [sum((a * b for a, b in zip(w, column, strict=True)), Fraction(0)) / total for column in columns]
    squares = [
        sum((a * (b - mean) ** 2 for a, b in zip(w, column, strict=True)), Fraction(0))
        for column, mean in zip(columns, means, strict=True)
    ]
    return total, means, squares


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e9, 1e15])
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e-100, 1e120])
def test_means_and_squares_are_exact_to_their_stated_rounding(
    scale: float, offset: float, changing: bool, weighted: bool
) -> None:
    """The mean has an error of rounding relative to the spread, however far the data are from zero."""
    if changing and offset > 1e9:
        return  # averages by mixing have an error, which is not small compared with such a spread
    rng = np.random.default_rng(3)
    rows = [(offset + rng.standard_normal((4 + j, 3)) * [1.0, 1e-3, 10.0]) * scale for j in range(M)]
    weights = [rng.uniform(0.0, 1.0, len(X)) for X in rows] if weighted else None
    found, (total, means, squares) = pooled(rows, weights, changing=changing), exact(rows, weights)
    assert found.n_rows == sum(map(len, rows))
    assert abs(found.weight - float(total)) <= 4.0 * EPS * float(total)
    for i in range(3):
        spread = float(squares[i] / total) ** 0.5
        error = abs(float(Fraction(float(found.reference[i])) + Fraction(float(found.shift[i])) - means[i]))
        assert error <= 64.0 * EPS * spread + 2.0 * EPS * EPS * offset * scale * (1e3 if changing else 1.0)
        root = float(squares[i]) ** 0.5
        assert abs(float(found.squares[i]) ** 0.5 - root) <= found.rounding[i] + 4.0 * EPS * root


@pytest.mark.parametrize("scale", [3e-23, 1e-22, 1e-20, 1e-18, 1.0, 1e200, 1e305])
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_whose_values_differ_in_their_last_digits_keep_their_spread(scale: float, weighted: bool) -> None:
    rng = np.random.default_rng(1)
    same = scale >= 1e200
    if same and weighted:
        return  # rounding of the weighted mean has squares that overflow
    rows = [scale * (1.0 + (0.0 if same else 4.0 * EPS) * rng.integers(-3, 4, (6, 1))) for _ in range(M)]
    weights = [rng.uniform(0.1, 1.0, len(X)) for X in rows] if weighted else None
    found, (_, _, squares) = pooled(rows, weights), exact(rows, weights)
    if same:
        assert found.squares[0] == 0.0
    else:
        assert found.squares[0] == pytest.approx(float(squares[0]), rel=1e-13)


def test_products_are_split_into_their_value_and_their_rounding_error() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(2000), rng.standard_normal(2000) * 10.0 ** rng.integers(-150, 305, 2000)
    value, error = two_product(a, b)
    for x, y, u, v in zip(a.tolist(), b.tolist(), value.tolist(), error.tolist(), strict=True):
        assert Fraction(x) * Fraction(y) == Fraction(u) + Fraction(v)
