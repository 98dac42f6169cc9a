"""Numbers with units, for people."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["bit_rate", "size"]


def size(nbytes: float) -> str:
    """Bytes."""
    return _in_units(nbytes, ("B", "kB", "MB", "GB"), 3)


def bit_rate(bits: float) -> str:
    """Bits per second."""
    return _in_units(bits, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"), 4)


def _in_units(value: float, units: Sequence[str], digits: int) -> str:
    """With the unit that suits, each a thousand times the one before."""
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.{digits}g} {unit}"
        value /= 1000
    return f"{value:.{digits}g} {units[-1]}"
