"""Check received arrays against what the step expects: shape, dtype, finite values.

Arrays are checked before they are used, so the agent blamed is the one that sent the array. An honest agent whose
numbers overflow raises an error instead of sending them, so it is not blamed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_COUNT", "SAME_SETTINGS", "describe", "describe_fault", "is_finite"]

MAX_COUNT = 1 << 53
"""Largest count: float64 represents every integer up to it."""
SAME_SETTINGS = " (all agents need the same columns, components, rounds, message precision and stop rule)"


def describe_fault(
    got: npt.NDArray[Any] | None,
    like: npt.NDArray[Any] | None,
    name: str = "numbers",
    *,
    infinities: tuple[float, ...] = (),
) -> str:
    """Describe what is wrong with a received array; return an empty string if nothing is.

    Parameters
    ----------
    got : ndarray or None
        The array received.
    like : ndarray or None
        The array that this agent sent in the same exchange; shape and dtype must be the same.
    name : str, default="numbers"
        What the entries are called.
    infinities : tuple of float
        Infinities that are allowed. NaN never is.
    """
    if got is None or like is None:
        return "" if got is like else f"{describe(got)} instead of {describe(like)}{SAME_SETTINGS}"
    if got.shape != like.shape or got.dtype != like.dtype:
        return f"{describe(got)} instead of {describe(like)}{SAME_SETTINGS}"
    if is_finite(got):
        return ""
    flat = got.ravel()
    wrong = flat[~(np.isfinite(flat) | np.isin(flat, infinities))]
    return f"{'NaN' if np.isnan(wrong[0]) else 'infinity'} in its {name}" if wrong.size else ""


def is_finite(array: npt.NDArray[Any]) -> bool:
    """Return whether all numbers are finite. A finite sum proves it in one pass."""
    if array.dtype.kind != "f":
        return True  # integers
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(array.sum(dtype=np.float64))) or bool(np.isfinite(array).all())


def describe(array: npt.NDArray[Any] | None) -> str:
    """Describe dtype and shape for a message."""
    return "no array" if array is None else f"{array.dtype} numbers of shape {array.shape}"
