"""Format numbers with units, and nouns after numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["counted", "format_bit_rate", "format_bytes", "format_duration", "plural"]


def format_bytes(nbytes: float) -> str:
    """Format a number of bytes."""
    return _in_units(nbytes, ("B", "kB", "MB", "GB"), 3)


def format_bit_rate(bits: float) -> str:
    """Format a number of bits per second."""
    return _in_units(bits, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"), 4)


def _in_units(value: float, units: Sequence[str], digits: int) -> str:
    """Format a number in the largest suitable unit; each unit is a thousand times the previous one."""
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.{digits}g} {unit}"
        value /= 1000
    return f"{value:.{digits}g} {units[-1]}"


def format_duration(time: float) -> str:
    """Format a duration given in seconds, with three significant digits and a suitable unit."""
    if time == 0.0:
        return "0 s"
    for unit, length in (("µs", 1e-6), ("ms", 1e-3)):
        if time < 999.5 * length:
            return f"{_three_digits(time / length)} {unit}"
    for unit, length, most in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 259_200.0)):
        if time < most:
            return f"{_three_digits(time / length)} {unit}"
    return f"{_three_digits(time / 86_400.0)} days"


def plural(count: int, *, verb: bool = False) -> str:
    """Return "s" for a plural noun, or for a singular verb; otherwise nothing."""
    return "s" if (count == 1) is verb else ""


def counted(count: int, noun: str) -> str:
    """Format a number and its noun, such as "1 agent" or "1,797 rows"."""
    return f"{count:,} {noun}{plural(count)}"


def _three_digits(value: float) -> str:
    """Format a number with three significant digits, without an exponent."""
    return np.format_float_positional(float(f"{value:.3g}"), trim="-")
