"""Seeds of the laws that draw their cases with numpy: fixed ones, or fresh ones in ``make test-laws``."""

from __future__ import annotations

import os

import pytest
from _pytest.mark import ParameterSet

__all__ = ["SHIFT", "law_seeds"]

SHIFT = int(os.environ.get("LAW_SEED", "0"))
"""Added to the seeds of all laws; ``make test-laws`` draws it at random."""


def law_seeds(count: int, start: int = 0) -> list[ParameterSet]:
    """Return ``count`` values of a parameter ``seed`` for a test that must hold for any of them.

    The seed is part of the test's name, so that a failure names it.
    """
    first = start + SHIFT
    return [pytest.param(seed, marks=pytest.mark.law) for seed in range(first, first + count)]
