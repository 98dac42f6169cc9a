"""Tests of integer encodings against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepca.network.sums.integers import (
    BINS,
    COUNT,
    WIDE,
    Unit,
    Words,
    add_words,
    bins_of,
    carry,
    carry_free,
    sum_words,
)

UNITS = [COUNT, WIDE, Unit(-61), Unit(-125, 2), Unit(40, 3), Unit(-1074, 35), Unit(900, 2)]
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def integers_of(words: Words) -> list[int]:
    """Return the signed integers ``(L, n)`` as Python integers."""
    n_words = len(words)
    unsigned = [sum(int(word) << (64 * level) for level, word in enumerate(column)) for column in words.T]
    return [q - (1 << 64 * n_words) if q >> (64 * n_words - 1) else q for q in unsigned]


def rounded_multiple(x: float, unit: Unit) -> int:
    """Return ``round(x / u)`` modulo ``2^(64 L)``, as a signed integer."""
    q = round(Fraction(x) / power(unit)) % (1 << 64 * unit.words)
    return q - (1 << 64 * unit.words) if q >> (64 * unit.words - 1) else q


def power(unit: Unit) -> Fraction:
    """Return a unit as a fraction."""
    assert isinstance(unit.exponent, int)
    return Fraction(2) ** unit.exponent


def nearest(value: Fraction) -> float:
    """Return the nearest float64."""
    return value.numerator / value.denominator


def numbers(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw numbers of all magnitudes, with many that lie halfway between multiples of a unit."""
    wild = rng.standard_normal(n) * np.exp2(rng.integers(-1070, 1020, n))
    tame = rng.standard_normal(n) * np.exp2(rng.integers(-140, 130, n))
    halfway = (rng.integers(-100, 100, n) + 0.5) * np.exp2(rng.choice([0, -128, -61, -125, 40], n))
    edges = [0.0, -0.0, 1.0, -1.0, 2.0**63, -(2.0**63), 2.0**63 - 1024, 5e-324, -5e-324, 1.7e308, -1.7e308]
    return np.concatenate([wild, tame, halfway, edges])


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_numbers_are_rounded_to_multiples_of_the_unit(unit: Unit) -> None:
    x = numbers(np.random.default_rng(1), 300)
    assert integers_of(unit.encode(x)) == [rounded_multiple(float(v), unit) for v in x]


@given(st.lists(FINITE, min_size=1, max_size=5), st.sampled_from(UNITS))
def test_any_number_is_rounded_to_a_multiple_of_the_unit(values: list[float], unit: Unit) -> None:
    assert integers_of(unit.encode(np.array(values))) == [rounded_multiple(v, unit) for v in values]


@pytest.mark.parametrize("unit", UNITS[:5], ids=str)
def test_decoding_rounds_to_nearest_and_returns_the_remainder(unit: Unit) -> None:
    rng = np.random.default_rng(2)
    words = rng.integers(0, 2**64, (unit.words, 400), dtype=np.uint64)
    for level in range(unit.words):  # short integers, negative ones, and long runs of ones
        words[level:, 40 * level : 40 * level + 20] = 0
        words[level:, 40 * level + 20 : 40 * level + 40] = np.uint64(2**64 - 1)
    words[0, ::7] >>= np.uint64(11)
    value, rest = unit.decode(words)
    for q, v, r in zip(integers_of(words), value.tolist(), rest.tolist(), strict=True):
        exact = Fraction(q) * power(unit)
        assert v == nearest(exact)
        assert abs(Fraction(v) + Fraction(r) - exact) <= abs(exact) * Fraction(2) ** -105


def test_ties_are_rounded_to_even() -> None:
    words = np.array([[2**53 + 1, 2**53 + 3, 2**54 + 2, 2**54 + 6, 2**63 - 1]], dtype=np.uint64)
    value, rest = COUNT.decode(words)
    assert value.tolist() == [float(int(q)) for q in words[0]]
    assert rest[:2].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("unit", UNITS[:5], ids=str)
def test_sums_are_exact_in_any_order(unit: Unit) -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 2**64, (7, unit.words, 50), dtype=np.uint64)
    words[rng.random(words.shape) < 0.3] = np.uint64(2**64 - 1)  # long carries
    expected = [sum(column) % (1 << 64 * unit.words) for column in zip(*map(integers_of, words), strict=True)]
    one_by_one = words[0]
    for term in words[1:]:
        one_by_one = add_words(one_by_one, term)
    backwards = words[-1]
    for term in words[-2::-1]:
        backwards = add_words(term, backwards)
    combined = carry(np.asarray(carry_free(words).sum(axis=0)))
    for found in (one_by_one, backwards, sum_words(words), combined):
        assert [q % (1 << 64 * unit.words) for q in integers_of(found)] == expected


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=20))
def test_sums_of_ordinary_numbers_are_as_accurate_as_exact_sums(values: list[float]) -> None:
    x = np.array(values)[:, None]
    fits = WIDE.suits(x, len(values))
    x = np.where(fits, x, 0.0)
    value, _ = WIDE.decode(sum_words(WIDE.encode(x)))
    error = abs(Fraction(float(value[0])) - sum(map(Fraction, x.ravel().tolist())))
    assert error <= Fraction(len(values), 2) * Fraction(2) ** -128 + abs(Fraction(float(value[0]))) * Fraction(2) ** -53


@given(st.lists(FINITE, min_size=1, max_size=20))
def test_a_spanning_unit_adds_numbers_of_any_magnitude_exactly(values: list[float]) -> None:
    x = np.array(values)[:, None]
    occupied = np.flatnonzero(bins_of(x).sum(axis=0))
    if not occupied.size:
        return
    unit = Unit.spanning(int(occupied[0]), int(occupied[-1]), len(values))
    exact = sum(map(Fraction, values), Fraction(0))
    value, _ = unit.decode(sum_words(unit.encode(x)))
    if abs(exact) < Fraction(2) ** 1023:
        assert float(value[0]) == nearest(exact)


def test_bins_cover_all_numbers() -> None:
    x = np.array([5e-324, 1.0, 1.7976931348623157e308, 0.0])
    occupied = np.flatnonzero(bins_of(x))
    assert occupied.tolist() == [0, 1074 // 32, BINS - 1]
    assert not bins_of(np.zeros(3)).any()


def test_a_unit_does_not_suit_numbers_that_would_lose_digits_or_overflow() -> None:
    x = np.array([0.0, 2.0**-75, 2.0**-75 * (1 - 2**-53), 2.0**123, -(2.0**125), math.pi])
    assert WIDE.suits(x, 10).tolist() == [True, True, False, False, False, True]
