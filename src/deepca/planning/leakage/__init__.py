"""Measure what sites learn about each other: least squares over everything that a coalition sees."""

from deepca.planning.leakage.measure import (
    ADVERSARIES,
    MAX_COLUMNS,
    MAX_SITES,
    PRIVATE_ALGORITHMS,
    Exposure,
    Leakage,
    measure_leakage,
    random_sites,
)
from deepca.planning.leakage.scoring import Errors

__all__ = [
    "ADVERSARIES",
    "MAX_COLUMNS",
    "MAX_SITES",
    "PRIVATE_ALGORITHMS",
    "Errors",
    "Exposure",
    "Leakage",
    "measure_leakage",
    "random_sites",
]
