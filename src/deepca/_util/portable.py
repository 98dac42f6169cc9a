"""Arithmetic with bit-identical results on every processor, for decisions that all agents must make alike.

Sums, products, quotients and square roots of single numbers are rounded in the same way everywhere (IEEE 754), and so
are ``math.fsum``, ``math.frexp`` and ``math.ldexp``. Logarithms, powers and hyperbolic functions of a C library are
not: their last digit depends on the library and on the instructions it uses. The functions below use only operations
that are rounded alike everywhere. They are accurate to a few units in the last place but a thousand times slower than
vectorized functions, so use them only for the few numbers that determine how many rounds to run or when to stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deepca._util.floats import SMALLEST
from deepca._util.typing import Array

__all__ = ["acosh", "cosh", "eigenvalues", "exp", "hypot", "log", "median", "norm", "power", "total"]

# log 2 in two parts: the product of the first with any exponent is exact
_LOG2 = (0.6931471803691238, 1.9082149292705877e-10)
_LOG_TERMS = 14  # number of terms of the series of artanh z; enough for double precision with z² ≤ 0.0295
_SQRT_HALF = math.sqrt(0.5)
_SECTIONS = 32  # parts into which each step divides the interval that contains an eigenvalue


def log(x: float) -> float:
    """Return the natural logarithm of a nonnegative number; −inf for zero."""
    if not 0.0 < x < math.inf:
        return -math.inf if x == 0.0 else math.nan if not x > 0.0 else math.inf
    mantissa, exponent = math.frexp(x)
    if mantissa < _SQRT_HALF:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    z = (mantissa - 1.0) / (mantissa + 1.0)  # log m = 2 artanh z
    square, series = z * z, 0.0
    for n in range(2 * _LOG_TERMS + 1, 1, -2):
        series = (series + 1.0 / n) * square
    return exponent * _LOG2[0] + (2.0 * z + (2.0 * z * series + exponent * _LOG2[1]))


def exp(x: float) -> float:
    """Return ``e^x``; 0 or inf on underflow or overflow."""
    if not -746.0 < x < 710.0:
        return math.nan if math.isnan(x) else math.inf if x > 0.0 else 0.0
    n = round(x / (_LOG2[0] + _LOG2[1]))
    rest = (x - n * _LOG2[0]) - n * _LOG2[1]
    series = 1.0
    for i in range(20, 0, -1):
        series = 1.0 + series * rest / i
    half = n // 2  # in two steps, since 2^n may overflow where the result does not
    try:
        return math.ldexp(math.ldexp(series, half), n - half)
    except OverflowError:
        return math.inf


def power(x: float, y: float) -> float:
    """Return ``x^y`` for nonnegative x."""
    if y == 0.0:
        return 1.0
    if x == 0.0:
        return 0.0 if y > 0.0 else math.inf
    return exp(y * log(x))


def acosh(x: float) -> float:
    """Return ``log(x + √(x²−1))`` for ``x ≥ 1``."""
    above = x - 1.0
    if above > 1e8:
        return log(x) + _LOG2[0] + _LOG2[1]
    y = above + math.sqrt(above) * math.sqrt(above + 2.0)  # x + √(x²−1) = 1 + y
    around = 1.0 + y
    return log(around) * (y / (around - 1.0)) if around > 1.0 else y


def cosh(x: float) -> float:
    """Return ``(e^x + e^{−x})/2``."""
    grown = exp(abs(x))
    return grown / 2.0 + 0.5 / grown


def hypot(x: float, y: float) -> float:
    """Return ``√(x² + y²)`` without overflow of the squares."""
    large, small = max(abs(x), abs(y)), min(abs(x), abs(y))
    if large == 0.0 or not math.isfinite(large):
        return large
    ratio = small / large
    return large * math.sqrt(1.0 + ratio * ratio)


def total(values: Array | Sequence[float]) -> float:
    """Return the exact sum of all values, rounded once."""
    try:
        return math.fsum(np.asarray(values, dtype=np.float64).ravel().tolist())
    except (OverflowError, ValueError):  # overflow, or infinities of both signs
        return float(np.sum(values))


def norm(x: npt.NDArray[np.float64]) -> float:
    """Return the Euclidean norm of all entries, without overflow of the squares."""
    peak = float(np.abs(x).max(initial=0.0))
    if peak == 0.0 or not math.isfinite(peak):
        return peak
    _, exponent = math.frexp(peak)
    scaled = np.ldexp(x, -exponent)
    return math.ldexp(math.sqrt(math.fsum((scaled * scaled).ravel().tolist())), exponent)


def median(values: Sequence[float]) -> float:
    """Return the median: the middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0


def eigenvalues(A: Array, *places: int) -> Array:
    """Return the eigenvalues of a symmetric matrix in ascending order, for up to a few hundred rows.

    Householder reflections reduce A to a tridiagonal matrix. Each eigenvalue is then enclosed in ever smaller intervals
    by counting the eigenvalues below a value (Sturm sequences). All operations act on single entries, and sums have a
    fixed order.

    Parameters
    ----------
    A : ndarray of shape (n, n)
        The matrix.
    *places : int
        Indices of the eigenvalues to return, negative ones from the end; all by default.
    """
    n = len(A)
    diagonal, subdiagonal = _tridiagonal(np.array(A, dtype=np.float64))
    wanted = np.array([place % n for place in places] if places else range(n))
    reach = np.abs(diagonal) + np.append(np.abs(subdiagonal), 0.0) + np.append(0.0, np.abs(subdiagonal))
    span = 1.0001 * float(reach.max()) + SMALLEST
    low, step = np.full(wanted.size, -span), np.full(wanted.size, 2.0 * span / _SECTIONS)
    inner = np.arange(1.0, _SECTIONS)
    for _ in range(12):  # 5 bits each
        below = _count_below(diagonal, np.square(subdiagonal), low[:, None] + step[:, None] * inner)
        low = low + step * np.count_nonzero(below <= wanted[:, None], axis=1)
        step = step / _SECTIONS
    near = [low]  # neighbouring floats, from which the last step chooses
    for _ in range(4):
        near = [np.nextafter(near[0], -np.inf), *near, np.nextafter(near[-1], np.inf)]
    around = np.stack(near, axis=1)
    fit = np.count_nonzero(_count_below(diagonal, np.square(subdiagonal), around) <= wanted[:, None], axis=1)
    return np.asarray(np.take_along_axis(around, np.maximum(fit - 1, 0)[:, None], axis=1)[:, 0])


def _tridiagonal(A: Array) -> tuple[Array, Array]:
    """Return diagonal and subdiagonal of a tridiagonal matrix with the eigenvalues of A; overwrite A."""
    n = len(A)
    subdiagonal = np.zeros(max(n - 1, 0))
    for j in range(n - 1):
        v, rest = A[j + 1 :, j].copy(), A[j + 1 :, j + 1 :]
        size = norm(v)
        subdiagonal[j] = -math.copysign(size, v[0])
        v[0] -= subdiagonal[j]
        half = total(v * v) / 2.0
        if half == 0.0:
            continue
        p = np.add.accumulate(rest * v[:, None], axis=0)[-1] / half
        q = p - (total(p * v) / (2.0 * half)) * v
        rest -= v[:, None] * q + q[:, None] * v
    return np.diag(A).copy(), subdiagonal


def _count_below(diagonal: Array, squares: Array, x: Array) -> npt.NDArray[np.int64]:
    """Count the eigenvalues of a tridiagonal matrix below each entry of x, given its squared subdiagonal."""
    count = np.zeros(x.shape, dtype=np.int64)
    pivot = np.ones_like(x)
    for i, entry in enumerate(diagonal.tolist()):
        pivot = (entry - x) - (squares[i - 1] / pivot if i else 0.0)
        pivot = np.where(pivot == 0.0, 1e-300, pivot)
        count += pivot < 0.0
    return count
