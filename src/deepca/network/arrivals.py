"""Check received arrays against what the step expects: shape, dtype, finite values, plausible counts.

Arrays are checked before they are used, so the agent blamed is the one that sent the array. An honest agent whose
numbers overflow raises an error instead of sending them, so it is not blamed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepca._util.typing import Array

__all__ = ["MAX_COUNT", "SAME_SETTINGS", "ExpectedPart", "describe", "describe_fault", "is_finite"]

MAX_COUNT = 1 << 53
"""Largest count: float64 represents every integer up to it."""
SAME_SETTINGS = " (all agents need the same columns, components, rounds, message precision and stop rule)"


@dataclass(frozen=True)
class ExpectedPart:
    """Consecutive entries of an array, and what is known about them.

    Parameters
    ----------
    name : str
        What the entries are called in error messages.
    size : int
        Number of entries.
    nonnegative : bool
        Whether no entry is negative.
    whole : bool
        Whether all entries are counts.
    repeats : bool
        Whether the entries repeat the `size` entries before them.
    zero : bool
        Whether all entries are zero.
    """

    name: str
    size: int
    nonnegative: bool = False
    whole: bool = False
    repeats: bool = False
    zero: bool = False


def describe_fault(
    got: npt.NDArray[Any] | None,
    like: npt.NDArray[Any] | None,
    parts: Sequence[ExpectedPart] = (),
    *,
    unit: float = 1.0,
    infinities: tuple[float, ...] = (),
) -> str:
    """Describe what is wrong with a received array; return an empty string if nothing is.

    Parameters
    ----------
    got : ndarray or None
        The array received.
    like : ndarray or None
        The array that this agent sent in the same exchange; shape and dtype must be the same.
    parts : sequence of ExpectedPart
        What is known about the entries; entries beyond the last part may be any finite numbers.
    unit : float
        Unit of which counts are integer multiples.
    infinities : tuple of float
        Infinities that are allowed. NaN never is.
    """
    if got is None or like is None:
        return "" if got is like else f"{describe(got)} instead of {describe(like)}{SAME_SETTINGS}"
    if got.shape != like.shape or got.dtype != like.dtype:
        return f"{describe(got)} instead of {describe(like)}{SAME_SETTINGS}"
    if is_finite(got):
        return _describe_part_fault(got, parts, unit)
    flat = got.ravel()
    wrong = np.flatnonzero(~(np.isfinite(flat) | np.isin(flat, infinities)))
    if not wrong.size:
        return _describe_part_fault(got, parts, unit)
    at = int(wrong[0])
    return f"{'NaN' if np.isnan(flat[at]) else 'infinity'} in its {_part_name(parts, at)}"


def is_finite(array: npt.NDArray[Any]) -> bool:
    """Return whether all numbers are finite. A finite sum proves it in one pass."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(array.sum(dtype=np.float64))) or bool(np.isfinite(array).all())


def _describe_part_fault(got: Array, parts: Sequence[ExpectedPart], unit: float) -> str:
    flat, at = got.ravel(), 0
    for part in parts:
        values, before = flat[at : at + part.size], flat[max(at - part.size, 0) : at]
        at += part.size
        if part.nonnegative and (values < 0.0).any():
            return f"a negative number in its {part.name}"
        if part.whole:
            counts = values / unit
            if (counts > MAX_COUNT).any():
                return f"a number too large to be a count in its {part.name}"
            if (np.abs(counts - np.rint(counts)) > 1e-9 * np.maximum(counts, 1.0)).any():
                return f"a number that is not an integer in its {part.name}"
        if part.repeats and not np.array_equal(values, before):
            return f"{part.name} that do not repeat the numbers before them"
        if part.zero and values.any():
            return f"a nonzero number in its {part.name}, which must be zero"
    return ""


def _part_name(parts: Sequence[ExpectedPart], at: int) -> str:
    for part in parts:
        if at < part.size:
            return part.name
        at -= part.size
    return "numbers"


def describe(array: npt.NDArray[Any] | None) -> str:
    """Describe dtype and shape for a message."""
    return "no array" if array is None else f"{array.dtype} numbers of shape {array.shape}"
