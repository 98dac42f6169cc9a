"""Pack the numbers of an exact sum into messages of integers, and check the messages received."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array
from deepca.network.arrivals import MAX_COUNT
from deepca.network.sums.integers import (
    COUNT,
    WIDE,
    Unit,
    Words,
    add_words,
    carry,
    carry_free,
    negated,
    weighted_sum,
)

__all__ = ["Addend", "SumLayout", "Total"]

_ALTERED = " (no unaltered deepca of this version sends that)"


@dataclass(frozen=True, eq=False)
class Addend:
    """Numbers of the local agents to be summed over all agents.

    Parameters
    ----------
    name : str
        What the numbers are called in error messages.
    x : ndarray of shape (*B, n)
        The numbers.
    more : tuple of ndarrays of shape (*B, n), optional
        Further numbers, which are added to x exactly.
    unit : Unit, optional
        Unit in which the total must not overflow, unless there are ``limits``. By default, one is found in which no
        number loses digits.
    limits : ndarray of shape (*B, r), optional
        Absolute values up to which the total cannot overflow in ``unit``, for r parts of equal length. If a number of
        any agent is larger, another unit is found.
    guess : Unit, default=WIDE
        The unit that is tried first, if none is given.
    digits : int, default=53
        Binary digits that every number must keep, if no unit is given.
    nonnegative : bool, default=False
        Whether no agent may contribute a negative number.
    directions : int, default=0
        Number of directions in which the total shows the mean of the ``A_j``: the columns of a product.
    """

    name: str
    x: Array
    more: tuple[Array, ...] = ()
    _: KW_ONLY
    unit: Unit | None = None
    limits: Array | None = None
    guess: Unit = WIDE
    digits: int = 53
    nonnegative: bool = False
    directions: int = 0

    @property
    def terms(self) -> tuple[Array, ...]:
        """The arrays that each agent contributes the sum of."""
        return self.x, *self.more

    @property
    def has_final_unit(self) -> bool:
        """True if the unit is given and suits all numbers."""
        return self.unit is not None and self.limits is None

    def in_unit(self, unit: Unit, suits: npt.NDArray[np.bool_] | bool = True) -> Addend:
        """Return an addend with the given unit, and with zeros in place of numbers that it does not suit."""
        terms = self.terms if np.all(suits) else tuple(np.where(suits, x, 0.0) for x in self.terms)
        return replace(self, x=terms[0], more=terms[1:], unit=unit, limits=None)

    def fitted(self, agents: int) -> tuple[Addend, Array]:
        """Return the addend with a unit, and for each local agent how many numbers the unit does not suit, ``(*B,)``.

        Such numbers are replaced by zeros.
        """
        if self.has_final_unit:
            return self, np.zeros(self.x.shape[:-1])
        size = np.asarray(sum(map(np.abs, self.terms)))
        if self.limits is None:
            suits = self.guess.suits(size, agents, self.digits)
        else:
            parts = size.reshape(*self.limits.shape, -1)
            suits = (parts <= self.limits[..., None]).reshape(size.shape)
        return self.in_unit(self.unit or self.guess, suits), np.sum(~suits, axis=-1, dtype=np.float64)

    def encode(self) -> Words:
        """Return the sum of the terms, as integers."""
        assert self.unit is not None
        first, *more = map(self.unit.encode, self.terms)
        for term in more:
            first = add_words(first, term)
        return first


@dataclass(frozen=True)
class Total:
    """Sum over all agents.

    Parameters
    ----------
    value : ndarray of shape (n,)
        The sum, rounded once; infinite if it overflows.
    rest : ndarray of shape (n,)
        What rounding removed, itself rounded.
    """

    value: Array
    rest: Array


@dataclass(frozen=True)
class SumLayout:
    """Consecutive parts of the messages of a sum, which begin with the number of agents summed so far.

    Parameters
    ----------
    names : tuple of str
        What the parts are called in error messages.
    units : tuple of Unit
        Their units.
    sizes : tuple of int
        Numbers in each part.
    nonnegative : tuple of bool
        Whether no number of the part is negative.
    masked : bool, default=False
        Whether messages are masked: then every part but the first ends with a check number, and only a total can be
        read.
    provisional : bool, default=False
        Whether the second part counts the numbers that the parts after it lack. Those of which some are lacking are
        summed again.
    """

    names: tuple[str, ...]
    units: tuple[Unit, ...]
    sizes: tuple[int, ...]
    nonnegative: tuple[bool, ...]
    masked: bool = False
    provisional: bool = False

    @classmethod
    def of(cls, addends: Sequence[Addend], *, masked: bool = False, provisional: bool = False) -> SumLayout:
        """Return the layout for addends with units."""
        units = [addend.unit for addend in addends if addend.unit is not None]
        return cls(
            ("number of agents", *(addend.name for addend in addends)),
            (COUNT, *units),
            (1, *(addend.x.shape[-1] + masked for addend in addends)),
            (True, *(addend.nonnegative for addend in addends)),
            masked,
            provisional,
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of units and sizes."""
        digest = hashlib.sha256()
        for unit, n in self._parts:
            exponents = np.atleast_1d(np.asarray(unit.exponent, dtype="<i8"))
            digest.update(np.array([unit.words, n, exponents.size], dtype="<i8").tobytes() + exponents.tobytes())
        return digest.digest()

    @cached_property
    def n_words(self) -> int:
        """Number of words of a message, N."""
        return sum(unit.words * n for unit, n in self._parts)

    @cached_property
    def _parts(self) -> list[tuple[Unit, int]]:
        return list(zip(self.units, self.sizes, strict=True))

    @cached_property
    def _places(self) -> list[tuple[slice, tuple[int, int]]]:
        """Position of each part in a message, and its shape ``(L, n)``."""
        ends = np.cumsum([unit.words * n for unit, n in self._parts]).tolist()
        return [
            (slice(start, end), (unit.words, n))
            for start, end, (unit, n) in zip([0, *ends], ends, self._parts, strict=False)
        ]

    def pack(self, parts: Sequence[Words]) -> Words:
        """Concatenate parts ``(…, L, n)`` into messages ``(…, N)``."""
        return np.concatenate([part.reshape(*part.shape[:-2], -1) for part in parts], axis=-1)

    def split(self, messages: Words) -> list[Words]:
        """Split messages ``(…, N)`` into parts ``(…, L, n)``."""
        return [messages[..., place].reshape(*messages.shape[:-1], *shape) for place, shape in self._places]

    def agents(self, message: Words) -> int:
        """Return the number of agents that a message sums over."""
        return int(message[0])

    def totals(self, message: Words) -> list[Total]:
        """Decode the message of a whole sum."""
        parts = zip(self.units[1:], self.split(message)[1:], strict=True)
        return [Total(*unit.decode(part[:, :-1] if self.masked else part)) for unit, part in parts]

    def with_checks(self, parts: Sequence[Words], weights: Words) -> list[Words]:
        """Append a check number ``Σ_e ρ_e q_e`` to each part ``(…, L, n)`` but the first; ``weights`` are the ρ."""
        starts = np.cumsum([0, *self.sizes[1:]])
        return [
            np.concatenate([part, weighted_sum(part, weights[start : start + part.shape[-1]])], axis=-1)
            for part, start in zip(parts, starts, strict=False)
        ]

    def describe_total_fault(self, total: Words, weights: Words) -> str:
        """Describe what is wrong with a total, whose addends were masked; return an empty string if nothing is."""
        if not self.masked:
            return ""
        parts = self.split(total)[1:]
        expected = self.with_checks([part[:, :-1] for part in parts], weights)
        for name, part, right in zip(self.names[1:], parts, expected, strict=True):
            if not np.array_equal(part, right):
                return name
        lacking = np.flatnonzero(parts[0][0, :-1]).tolist() if self.provisional else []
        return self._describe_values(total, frozenset(2 + part for part in lacking))

    def add(self, own: Words, more: Words) -> Words:
        """Add two messages ``(N,)``."""
        found = own.copy()
        self.add_to(found, more)
        return found

    def add_to(self, total: Words, more: Words, *, negative: bool = False) -> None:
        """Add a message ``(N,)`` to ``total``, or subtract it."""
        carried = [(place, total[place].reshape(shape)) for place, shape in self._places if shape[0] > 1]
        sums = [
            add_words(part, negated(other) if negative else other)
            for place, part in carried
            for other in [more[place].reshape(part.shape)]
        ]
        (np.subtract if negative else np.add)(total, more, out=total)
        for (place, _), part in zip(carried, sums, strict=True):
            total[place] = part.ravel()

    def carry_free_sum(self, messages: Words) -> Words:
        """Add the messages ``(m, N)`` of the local agents without carrying; such sums can be added one by one."""
        return np.concatenate([carry_free(part).sum(axis=0, dtype=np.uint64).ravel() for part in self.split(messages)])

    def carry(self, sums: Words) -> Words:
        """Return the message ``(N,)`` of which ``sums`` are the sums of :meth:`carry_free_sum`."""
        shapes = [(unit.words if unit.words == 1 else 2 * unit.words, n) for unit, n in self._parts]
        parts = np.split(sums, np.cumsum([words * n for words, n in shapes])[:-1])
        return self.pack([carry(part.reshape(shape)) for part, shape in zip(parts, shapes, strict=True)])

    def describe_fault(self, message: Words, agents: int | None) -> str:
        """Describe what is wrong with a received message ``(N,)``; return an empty string if nothing is.

        Parameters
        ----------
        message : ndarray of shape (N,)
            The message.
        agents : int or None
            Number of agents that its sums must include; None if it is unknown.
        """
        if agents is not None and self.agents(message) != agents:
            return f"sums over {self.agents(message)} agents instead of {agents}{_ALTERED}"
        return "" if self.masked else self._describe_values(message)

    def _describe_values(self, message: Words, without: frozenset[int] = frozenset()) -> str:
        parts = zip(self.names, self.units, self.nonnegative, self.split(message), strict=True)
        for i, (name, unit, nonnegative, words) in enumerate(parts):
            if i in without:
                continue
            highest = (words[-1, :-1] if self.masked and i else words[-1]).view(np.int64)
            if nonnegative and (highest < 0).any():
                return f"a negative number in its {name}{_ALTERED}"
            if unit.is_count and (highest > MAX_COUNT).any():
                return f"a number too large to be a count in its {name}{_ALTERED}"
        return ""
