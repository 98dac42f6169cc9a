"""Encode numbers as integers, whose sums are exact and do not depend on the order of addition.

A number x is sent as the integer ``q = round(x / u) mod 2^(64 L)`` in L words of 64 bits, with a unit ``u = 2^e``. Sums
are taken modulo ``2^(64 L)`` and decoded as signed, so only the total has to fit: intermediate overflow cancels.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array

__all__ = [
    "BINS",
    "COUNT",
    "WIDE",
    "Unit",
    "Words",
    "add_words",
    "bins_of",
    "carry",
    "carry_free",
    "negated",
    "random_words",
    "sum_words",
    "weighted_sum",
]

Exponents = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
"""Integers ``(…, L, n)`` in two's complement; the first of the L words holds the lowest 64 bits."""

_DIGITS = 53  # bits of the significand of a float64
_LOWEST, _HIGHEST = -1074, 1024  # exponents between which all numbers lie: 2^−1074 ≤ |x| < 2^1024
_MAX_SPLIT_WORDS = 15  # the largest number of words whose integers are all less than 2^1024
_BIN = 32  # exponents per bin; narrower bins would need more counts, wider ones longer integers

BINS = -(-(_HIGHEST - _LOWEST) // _BIN)
"""Number of bins of :func:`bins_of`."""


@dataclass(frozen=True, eq=False)
class Unit:
    """Integers that numbers are converted to: multiples of ``2^exponent``, in ``words`` words of 64 bits.

    Parameters
    ----------
    exponent : int or ndarray of int of shape (r,)
        Exponent of the unit, or those of the units of r parts of equal length: of n numbers, n / r share one.
    words : int, default=1
        Words per number.

    Examples
    --------
    >>> import numpy as np
    >>> unit = Unit(-3)
    >>> encoded = unit.encode(np.array([[1.5, -0.25], [2.0, 0.5]]))
    >>> unit.decode(sum_words(encoded))[0].tolist()
    [3.5, 0.25]
    """

    exponent: int | Exponents
    words: int = 1

    @classmethod
    def spanning(cls, lowest: int, highest: int, terms: int) -> Unit:
        """Return a unit for sums of numbers in these bins.

        Parameters
        ----------
        lowest, highest : int
            First and last bin of :func:`bins_of` that contains a number.
        terms : int
            Number of terms.

        Returns
        -------
        Unit
            Unit in which every number keeps all its digits, and sums do not overflow.
        """
        exponent = max(_LOWEST + _BIN * lowest - _DIGITS, _LOWEST)
        bits = _LOWEST + _BIN * (highest + 1) - exponent + terms.bit_length() + 1
        return cls(exponent, -(-bits // 64))

    @classmethod
    def holding(cls, bounds: Array, words: int = 1) -> Unit:
        """Return units, one per entry of ``bounds``, ``(r,)``, whose capacity is at least eight times the bounds.

        The unit of an entry with the bound zero is the smallest of the others.
        """
        exponents = np.frexp(bounds)[1].astype(np.int64)
        exponents[bounds == 0.0] = exponents[bounds != 0.0].min(initial=exponents.max(initial=0))
        return cls(exponents + 4 - 64 * words, words)

    @property
    def is_count(self) -> bool:
        """True for the unit of counts."""
        return isinstance(self.exponent, int) and (self.exponent, self.words) == (0, 1)

    def rounding(self, n: int) -> float:
        """Bound the norm of the rounding error of the mean of any number of vectors ``(n,)``: half that of all units.

        Roundings of different agents may be the same, so nothing is gained by averaging.
        """
        if n == 0:
            return 0.0
        exponents = np.atleast_1d(self.exponent)
        highest = int(exponents.max())
        counts = enumerate(np.bincount(highest - exponents).tolist())
        squares = math.fsum(math.ldexp(count, -2 * lower) for lower, count in counts)  # has the same bits everywhere
        return math.ldexp(0.5 * math.sqrt(squares * (n // exponents.size)), highest)

    def _exponents(self, n: int) -> int | Exponents:
        """Return the exponent of the units of n numbers, or one for each of them."""
        return self.exponent if isinstance(self.exponent, int) else np.repeat(self.exponent, n // self.exponent.size)

    def suits(self, x: Array, terms: int, digits: int = _DIGITS) -> npt.NDArray[np.bool_]:
        """Return which numbers keep so many binary digits, and cannot overflow in a sum of as many ``terms``."""
        size = np.abs(x)
        exponent = self._exponents(x.shape[-1])
        smallest = np.ldexp(1.0, exponent + digits)
        largest = np.ldexp(1.0, exponent + 64 * self.words - 1 - terms.bit_length())
        return np.asarray((size == 0.0) | ((size >= smallest) & (size < largest)))

    def encode(self, x: Array) -> Words:
        """Round finite numbers ``(…, n)`` to multiples of the unit, ties to even.

        Parameters
        ----------
        x : ndarray of shape (..., n)
            Finite numbers.

        Returns
        -------
        ndarray of shape (..., L, n)
            The multiples, modulo ``2^(64 L)``.
        """
        exponent = self._exponents(x.shape[-1])
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scaled = np.multiply(x, np.ldexp(1.0, -np.asarray(exponent)))  # exact unless it overflows or underflows
        largest = max(float(scaled.max(initial=0.0)), -float(scaled.min(initial=0.0)))
        if self.words == 1 and largest < 2.0**63:
            return np.asarray(np.rint(scaled, out=scaled).astype(np.int64).view(np.uint64)[..., None, :])
        if self.words <= _MAX_SPLIT_WORDS and largest < math.ldexp(1.0, 64 * self.words - 1):
            return _negate_where(x < 0.0, _split(np.rint(np.abs(scaled)), self.words))
        mantissa, power = np.frexp(np.abs(x))
        digits = np.ldexp(mantissa, _DIGITS).astype(np.uint64)
        shift = power.astype(np.int64) - (_DIGITS + exponent)
        return _negate_where(x < 0.0, _shifted_left(_shifted_right(digits, -shift), shift, self.words))

    def decode(self, words: Words) -> tuple[Array, Array]:
        """Convert integers to numbers.

        Parameters
        ----------
        words : ndarray of shape (L, n)
            The integers, modulo ``2^(64 L)``.

        Returns
        -------
        value : ndarray of shape (n,)
            Their values, rounded; infinite if they overflow.
        rest : ndarray of shape (n,)
            What rounding removed, itself rounded: ``value + rest`` has 106 correct bits.
        """
        exponent = self._exponents(words.shape[-1])
        if self.words == 1:
            q = words[0].view(np.int64)
            value = q.astype(np.float64)
            rest = (np.ldexp((q >> 32).astype(np.float64), 32) - value) + (q & 0xFFFFFFFF).astype(np.float64)
            with np.errstate(over="ignore"):
                return np.ldexp(value, exponent), np.ldexp(rest, exponent)
        negative = _sign_bits(words)
        left, length = _left_aligned(_negate_where(negative, words))
        top, below = left[-1], left[-2]
        spare = 64 - _DIGITS
        digits, cut = top >> np.uint64(spare), top & np.uint64((1 << spare) - 1)
        half = np.uint64(1 << (spare - 1))
        beyond = left[:-1].any(axis=0)
        up = (cut > half) | ((cut == half) & (beyond | ((digits & np.uint64(1)) == 1)))
        place = exponent + length - 64
        with np.errstate(over="ignore"):
            value = np.ldexp((digits + up).astype(np.float64), place + spare)
        removed = cut.astype(np.int64) - (up.astype(np.int64) << spare)
        rest = np.ldexp(removed.astype(np.float64) + np.ldexp(below.astype(np.float64), -64), place)
        sign = np.where(negative, -1.0, 1.0)
        return np.where(value == 0.0, 0.0, sign * value), np.where(rest == 0.0, 0.0, sign * rest)


COUNT = Unit(0)
"""Unit of counts."""
WIDE = Unit(-128, 4)
"""Unit of numbers of unknown, but ordinary magnitude: all digits from 3e-23, totals up to 1e38."""


def bins_of(x: Array) -> Array:
    """Return which bins of 32 binary exponents contain numbers, as ones and zeros.

    Parameters
    ----------
    x : ndarray of shape (*B, n)
        Finite numbers.

    Returns
    -------
    ndarray of shape (*B, BINS)
        One for every bin that contains a nonzero number.
    """
    _, exponent = np.frexp(x)
    bins = np.where(x == 0.0, BINS, (exponent - 1 - _LOWEST) // _BIN)
    found = np.zeros((*x.shape[:-1], BINS + 1))
    np.put_along_axis(found, bins.astype(np.int64), 1.0, axis=-1)
    return found[..., :BINS]


def add_words(a: Words, b: Words) -> Words:
    """Add integers ``(…, L, n)`` modulo ``2^(64 L)``."""
    found = a + b
    if a.shape[-2] > 1:
        carried = (found[..., 0, :] < a[..., 0, :]).astype(np.uint64)
        for level in range(1, a.shape[-2]):
            overflown = found[..., level, :] < a[..., level, :]
            found[..., level, :] += carried
            carried = (overflown | (found[..., level, :] < carried)).astype(np.uint64)
    return found


def sum_words(words: Words) -> Words:
    """Add integers ``(m, L, n)`` over the first axis, modulo ``2^(64 L)``; m must be less than 2³²."""
    return carry(np.asarray(carry_free(words).sum(axis=0, dtype=np.uint64)))


def carry_free(words: Words) -> Words:
    """Return integers ``(…, L, n)`` as numbers that can be added one by one: ``(…, 2L, n)`` of 32 bits if L > 1."""
    if words.shape[-2] == 1:
        return words
    halves = np.stack([words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)], axis=-2)
    return np.asarray(halves.reshape(*words.shape[:-2], 2 * words.shape[-2], words.shape[-1]))


def carry(sums: Words) -> Words:
    """Return the integers ``(L, n)`` of which ``sums`` are the sums of :func:`carry_free`."""
    if len(sums) == 1:
        return sums
    carried = sums.copy()
    for level in range(len(carried) - 1):
        carried[level + 1] += carried[level] >> np.uint64(32)
    carried &= np.uint64(0xFFFFFFFF)
    return np.asarray(carried[::2] | (carried[1::2] << np.uint64(32)))


def negated(words: Words) -> Words:
    """Return the negatives of integers ``(…, L, n)``, modulo ``2^(64 L)``."""
    return _negate_where(np.ones((*words.shape[:-2], words.shape[-1]), dtype=np.bool_), words)


def random_words(shape: tuple[int, ...]) -> Words:
    """Return uniformly random words that nobody can predict."""
    return np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), dtype=np.uint64).reshape(shape)


def weighted_sum(words: Words, weights: Words) -> Words:
    """Return ``Σ_e ρ_e q_e`` modulo ``2^(64 L)`` for integers ``(…, L, n)``, ``(…, L, 1)``.

    The weights ρ ``(n,)`` have 64 bits if L = 1. Otherwise their lower halves are used, so that products fit into 64
    bits. All are made odd: then no change of a single number leaves the sum as it was.
    """
    odd = weights | np.uint64(1)
    if words.shape[-2] == 1:
        return np.asarray((words * odd).sum(axis=-1, keepdims=True, dtype=np.uint64))
    low = np.uint64(0xFFFFFFFF)
    products = carry_free(words) * (odd & low)
    sums = (products & low).sum(axis=-1, dtype=np.uint64)
    sums[..., 1:] += (products >> np.uint64(32)).sum(axis=-1, dtype=np.uint64)[..., :-1]
    flat = sums.reshape(-1, sums.shape[-1])
    return np.asarray(carry(flat.T.copy()).T.reshape(*words.shape[:-2], words.shape[-2], 1))


def _sign_bits(words: Words) -> npt.NDArray[np.bool_]:
    return np.asarray(words[..., -1, :] >> np.uint64(63) == 1)


def _negate_where(negative: npt.NDArray[np.bool_], words: Words) -> Words:
    """Return the negative of the integers ``(…, L, n)`` selected by ``negative``, ``(…, n)``."""
    flipped = np.where(negative[..., None, :], ~words, words)
    one = np.zeros_like(words)
    one[..., 0, :] = negative
    return add_words(flipped, one)


def _split(integers: Array, n_words: int) -> Words:
    """Split nonnegative integers ``(…, n)``, stored as float64, into words ``(…, L, n)``."""
    found = np.empty((*integers.shape[:-1], n_words, integers.shape[-1]), dtype=np.uint64)
    for level in range(n_words - 1, 0, -1):
        word = np.floor(np.ldexp(integers, -64 * level))
        found[..., level, :] = word.astype(np.uint64)
        integers = integers - np.ldexp(word, 64 * level)  # exact, since it removes leading digits
    found[..., 0, :] = integers.astype(np.uint64)
    return found


def _shifted_right(digits: Words, bits: npt.NDArray[np.int64]) -> Words:
    """Divide by ``2^bits`` and round, ties to even, where ``bits`` is positive; ``digits`` have at most 53 bits."""
    by = np.clip(bits, 0, _DIGITS + 1).astype(np.uint64)
    one = np.uint64(1)
    quotient, remainder = digits >> by, digits & ((one << by) - one)
    half = np.where(by > 0, one << (np.maximum(by, one) - one), np.uint64(2**63))
    return np.asarray(quotient + ((remainder > half) | ((remainder == half) & ((quotient & one) == one))))


def _shifted_left(digits: Words, bits: npt.NDArray[np.int64], n_words: int) -> Words:
    """Multiply ``(…, n)`` by ``2^bits`` modulo ``2^(64 L)``, where ``bits`` is positive; return ``(…, L, n)``."""
    by = np.maximum(bits, 0)
    level, offset = by // 64, (by % 64).astype(np.uint64)
    low = digits << offset
    high = (digits >> np.uint64(1)) >> (np.uint64(63) - offset)
    found = np.zeros((*digits.shape[:-1], n_words, digits.shape[-1]), dtype=np.uint64)
    for at in range(n_words):
        found[..., at, :] = np.where(level == at, low, np.where(level == at - 1, high, np.uint64(0)))
    return found


def _left_aligned(words: Words) -> tuple[Words, npt.NDArray[np.int64]]:
    """Shift integers ``(L, n)`` left until the top bit is set; return them and the original number of bits."""
    n_words = len(words)
    left, length = words.copy(), np.full(words.shape[1], 64 * n_words, dtype=np.int64)
    for _ in range(n_words - 1):  # by whole words
        empty = left[-1] == 0
        left = np.where(empty, np.concatenate([np.zeros_like(left[:1]), left[:-1]]), left)
        length -= np.where(empty, 64, 0)
    for bits in (32, 16, 8, 4, 2, 1):
        short = left[-1] >> np.uint64(64 - bits) == 0
        up = np.uint64(bits)
        shifted = left << up
        shifted[1:] |= left[:-1] >> np.uint64(64 - bits)
        left = np.where(short, shifted, left)
        length -= np.where(short, bits, 0)
    return left, length
