"""Seeds of the laws that draw their cases with numpy: the same in every run, or fresh ones in ``make test-laws``."""

from __future__ import annotations

import os

import pytest
from _pytest.mark import ParameterSet

__all__ = ["SHIFT", "law_seeds"]

SHIFT = int(os.environ.get("LAW_SEED", "0"))
"""What is added to the seeds of all laws; ``make test-laws`` draws it."""


def law_seeds(count: int, start: int = 0) -> list[ParameterSet]:
    """``count`` values of a parameter ``seed``, for a test that has to hold for any of them.

    The number that is used is part of the test's name, so a failure says which one it was.
    """
    first = start + SHIFT
    return [pytest.param(seed, marks=pytest.mark.law) for seed in range(first, first + count)]
