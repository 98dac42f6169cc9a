"""Format numbers and names in the same way in all sections of the page."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["GRAPHS", "between", "in_bytes", "in_microseconds", "in_milliseconds", "power"]

GRAPHS = {"ring": "ring", "erdos-renyi": "Erdős–Rényi", "torus": "torus"}


def between(values: Sequence[float]) -> str:
    """Format a range as ``1.10 to 1.32``, or ``1.10`` if both ends are equal."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def in_bytes(count: float) -> str:
    """Format a size as ``12 KB`` or ``1.5 MB``."""
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} KB"


def in_milliseconds(seconds: npt.ArrayLike) -> str:
    """Format the median in milliseconds."""
    return f"{float(np.median(np.asarray(seconds, dtype=np.float64))) * 1e3:.3g}"


def in_microseconds(seconds: float) -> str:
    """Format microseconds with three digits."""
    return f"{seconds * 1e6:.3g}"


def power(value: float) -> str:
    """Format a number as ``1e-8``, without the leading zero of Python's exponents."""
    return re.sub(r"e([+-])0+", r"e\1", f"{value:.0e}")
