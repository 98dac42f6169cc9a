"""Declare the values that a parameter accepts, and check them.

``check("rounds", K, Integer(1), OneOf("auto"))`` raises :class:`~deepca.errors.ParameterError` unless K satisfies one
of the constraints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from deepca.errors import ParameterError

__all__ = ["NONE", "Constraint", "Integer", "NoneAs", "OneOf", "Real", "check", "format_limit", "is_integer"]

_MIN_EXPONENT = 6  # smallest exponent for which a power of ten is written as 10**n


class Constraint(Protocol):
    """Set of accepted values, with a description for error messages."""

    def accepts(self, value: Any, /) -> bool:
        """Return whether value is in the set."""
        ...

    def __str__(self) -> str:
        """Describe the set, to follow "expected"."""
        ...


@dataclass(frozen=True)
class Integer:
    """Integers from ``low`` to ``high``, both included; bools are rejected."""

    low: int
    high: int | None = None

    def accepts(self, value: Any, /) -> bool:
        """Return whether value is one of them."""
        return is_integer(value) and self.low <= value and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        """Describe the accepted values."""
        if self.high is None:
            return f"a whole number of at least {format_limit(self.low)}"
        return f"a whole number from {format_limit(self.low)} to {format_limit(self.high)}"


@dataclass(frozen=True)
class Real:
    """Numbers above ``low`` and below ``high``, or at most ``high`` with ``up_to``; ``example`` is one of them."""

    low: float
    high: float = math.inf
    up_to: bool = False
    example: str = ""

    def accepts(self, value: Any, /) -> bool:
        """Return whether value is one of them."""
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            return False
        return bool(self.low < value < self.high or (self.up_to and value == self.high))

    def __str__(self) -> str:
        """Describe the accepted values."""
        most = "" if self.high == math.inf else f" and {'at most' if self.up_to else 'below'} {self.high:g}"
        example = f", such as {self.example}" if self.example else ""
        return f"a number above {self.low:g}{most}{example}"


@dataclass(frozen=True, init=False)
class OneOf:
    """One of the given strings."""

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
        return f"one of {', '.join(self.words)}"


@dataclass(frozen=True)
class NoneAs:
    """None, described with its meaning, such as "None for all"."""

    meaning: str = ""

    def accepts(self, value: Any, /) -> bool:
        """Return whether value is None."""
        return value is None

    def __str__(self) -> str:
        """Describe the accepted values."""
        return f"None {self.meaning}".rstrip()


NONE = NoneAs()
"""None, without a particular meaning."""


def format_limit(value: int) -> str:
    """Format a limit for messages and help; large powers of ten as such, since zeros are hard to count."""
    exponent = len(str(value)) - 1
    return f"10**{exponent}" if exponent >= _MIN_EXPONENT and value == 10**exponent else str(value)


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
        Its value.
    *allowed : Constraint
        Constraints, at least one of which must accept the value.
    meaning : str
        Text appended to the message, such as what the parameter is for.
    """
    if not any(constraint.accepts(value) for constraint in allowed):
        elsewhere = [constraint for constraint in allowed if not isinstance(constraint, NoneAs)]  # options are not None
        expected, in_python = (_expected(constraints, meaning) for constraints in (elsewhere, allowed))
        raise ParameterError(parameter, value, expected, in_python=in_python)


def _expected(constraints: Sequence[Constraint], meaning: str) -> str:
    return "expected " + ", or ".join(map(str, constraints)) + (f"; {meaning}" if meaning else "")
