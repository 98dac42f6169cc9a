"""Checks of what a neighbour sent against what the step expects: shape, dtype, finite, counts that rows can have.

Whoever receives an array checks it before using it, so that the one that is named is the one that sent it; and nobody
sends what is not finite, so that an honest agent whose numbers overflow is not named for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array

__all__ = ["MOST_ROWS", "SAME", "Part", "described", "fault_in", "is_finite"]

MOST_ROWS = 1 << 53
"""Rows that can be counted: beyond, one more makes no difference to a float64."""
SAME = " (all agents need the same columns, components, rounds, kind of messages and stop rule)"


@dataclass(frozen=True)
class Part:
    """``size`` numbers of an array, in their order, and what they are.

    whole : they count something.  repeats : they are the numbers before them once more.  zero : they are zero.
    """

    name: str
    size: int
    nonnegative: bool = False
    whole: bool = False
    repeats: bool = False
    zero: bool = False


def fault_in(
    got: npt.NDArray[Any] | None,
    like: npt.NDArray[Any] | None,
    parts: Sequence[Part] = (),
    *,
    unit: float = 1.0,
    infinities: tuple[float, ...] = (),
) -> str:
    """Say what is wrong with an array that should be like one of this agent's; empty if nothing is.

    parts : what its numbers are; what they do not cover is numbers.  unit : counts are whole multiples of it.
    infinities : those that may occur; NaN never may.
    """
    if got is None or like is None:
        return "" if got is like else f"{described(got)} where {described(like)} was due{SAME}"
    if got.shape != like.shape or got.dtype != like.dtype:
        return f"{described(got)} where {described(like)} was due{SAME}"
    if is_finite(got):
        return _miscounted(got, parts, unit)
    flat = got.ravel()
    wrong = np.flatnonzero(~(np.isfinite(flat) | np.isin(flat, infinities)))
    if not wrong.size:
        return _miscounted(got, parts, unit)
    at = int(wrong[0])
    return f"{'NaN' if np.isnan(flat[at]) else 'infinity'} in its {_named(parts, at)}"


def is_finite(array: npt.NDArray[Any]) -> bool:
    """Whether all numbers are finite. A sum that is finite has no other parts."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(array.sum(dtype=np.float64))) or bool(np.isfinite(array).all())


def _miscounted(got: Array, parts: Sequence[Part], unit: float) -> str:
    flat, at = got.ravel(), 0
    for part in parts:
        values, before = flat[at : at + part.size], flat[max(at - part.size, 0) : at]
        at += part.size
        if part.nonnegative and (values < 0.0).any():
            return f"a negative number in its {part.name}"
        if part.whole:
            counts = values / unit
            if (counts > MOST_ROWS).any():
                return f"a number that is too large to count anything in its {part.name}"
            if (np.abs(counts - np.rint(counts)) > 1e-9 * np.maximum(counts, 1.0)).any():
                return f"a number that is not whole in its {part.name}"
        if part.repeats and not np.array_equal(values, before):
            return f"other numbers in its {part.name} than before them"
        if part.zero and values.any():
            return f"a number in its {part.name} where there are none"
    return ""


def _named(parts: Sequence[Part], at: int) -> str:
    for part in parts:
        if at < part.size:
            return part.name
        at -= part.size
    return "numbers"


def described(array: npt.NDArray[Any] | None) -> str:
    """Dtype and shape, for people."""
    return "no array" if array is None else f"{array.dtype} numbers of shape {array.shape}"
