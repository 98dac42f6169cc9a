"""Limits of float64, the numbers that everything here is computed with."""

from __future__ import annotations

import numpy as np

__all__ = ["EPS", "LARGEST", "SMALLEST"]

EPS = float(np.finfo(np.float64).eps)
"""From 1 to the next number."""
LARGEST = float(np.finfo(np.float64).max)
"""The largest that is finite."""
SMALLEST = float(np.finfo(np.float64).tiny)
"""Numbers below this have lost digits, whoever computes them."""
