"""Limits of float64, the precision of all computations."""

from __future__ import annotations

import numpy as np

__all__ = ["EPS", "LARGEST", "SMALLEST"]

EPS = float(np.finfo(np.float64).eps)
"""Distance from 1 to the next larger number."""
LARGEST = float(np.finfo(np.float64).max)
"""Largest finite number."""
SMALLEST = float(np.finfo(np.float64).tiny)
"""Smallest normal number; smaller ones have fewer digits."""
