"""Declare the values that a parameter accepts, and check them.

``check("rounds", K, Whole(1), OneOf("auto"))`` raises :class:`~deepca.errors.ParameterError` unless one of them accepts
K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from deepca.errors import ParameterError

__all__ = ["NOTHING", "Constraint", "Nothing", "OneOf", "Real", "Whole", "check", "is_integer"]


class Constraint(Protocol):
    """A set of values and its description."""

    def accepts(self, value: Any, /) -> bool:
        """Return whether value is in the set."""
        ...

    def __str__(self) -> str:
        """Describe the set for a message."""
        ...


@dataclass(frozen=True)
class Whole:
    """Integers from ``low`` to ``high``, both included; bools do not count."""

    low: int
    high: int | None = None

    def accepts(self, value: Any, /) -> bool:
        """Return whether value is one of them."""
        return is_integer(value) and self.low <= value and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        """Describe the accepted values."""
        if self.high is None:
            return f"a whole number of at least {self.low}"
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Real:
    """Numbers above ``low`` and below ``high``, or at most ``high`` with ``up_to``."""

    low: float
    high: float = math.inf
    up_to: bool = False

    def accepts(self, value: Any, /) -> bool:
        """Return whether value is one of them."""
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            return False
        return bool(self.low < value < self.high or (self.up_to and value == self.high))

    def __str__(self) -> str:
        """Describe the accepted values."""
        if self.high == math.inf:
            return f"a number above {self.low:g}"
        return f"a number above {self.low:g} and {'at most' if self.up_to else 'below'} {self.high:g}"


@dataclass(frozen=True, init=False)
class OneOf:
    """One of several strings."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)

    def accepts(self, value: Any, /) -> bool:
        """Return whether value is one of them."""
        return isinstance(value, str) and value in self.words

    def __str__(self) -> str:
        """Describe the accepted values."""
        if len(self.words) == 1:
            return repr(self.words[0])
        return f"choose one of {', '.join(self.words)}"


@dataclass(frozen=True)
class Nothing:
    """None, with its meaning, such as "for all", for the description."""

    meaning: str = ""

    def accepts(self, value: Any, /) -> bool:
        """Return whether value is None."""
        return value is None

    def __str__(self) -> str:
        """Describe the accepted values."""
        return f"None {self.meaning}".rstrip()


NOTHING = Nothing()
"""None, without a particular meaning."""


def is_integer(value: Any) -> bool:
    """Return whether value is a Python or numpy integer."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check(parameter: str, value: Any, *allowed: Constraint, meaning: str = "") -> None:
    """Raise ParameterError unless one of the constraints accepts the value.

    Parameters
    ----------
    parameter : str
        Name of the parameter.
    value : object
        The value given.
    *allowed : Constraint
        Sets of accepted values.
    meaning : str
        Text appended to the description: what the parameter is for, or what follows from its value.
    """
    if not any(constraint.accepts(value) for constraint in allowed):
        expected = ", or ".join(map(str, allowed))
        raise ParameterError(parameter, value, f"{expected}; {meaning}" if meaning else expected)
