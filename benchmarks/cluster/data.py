"""Provide the rows for timed fits: generated dense rows, and the data set w8a."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from deepca._util.typing import Array
from deepca.data.libsvm import load
from deepca.errors import DeepcaError

__all__ = ["AGENTS", "DENSE", "blocks", "dense_rows", "is_available", "rows_of"]

AGENTS = 2  # independent of the number of cores, so that all engines solve the same problem
DENSE = (40_000, 1_000)
_W8A_ROWS = 40_000
_BLOCK_ROWS = 1_000  # rows per generated block
_SPREAD = (20.0, 10.0)  # standard deviations of the first and the last dominant direction


def rows_of(data: str, quick: bool) -> int:
    """Return the total number of rows."""
    return (DENSE[0] if data == "dense" else _W8A_ROWS) // (10 if quick else 1)


def is_available(data: str, folder: Path | None) -> bool:
    """Return whether a data set can be loaded: dense rows are generated, w8a is read from a folder or downloaded."""
    if data == "dense":
        return True
    try:
        load(data, folder)
    except DeepcaError:
        return False
    return True


def blocks(data: str, rows: int, agents: list[int], folder: Path | None) -> list[Any]:
    """Return the blocks of rows of the given agents, out of the first ``rows`` rows."""
    bounds = list(pairwise(rows * j // AGENTS for j in range(AGENTS + 1)))
    if data == "dense":
        return [dense_rows(*bounds[j]) for j in agents]
    X = load(data, folder).X
    return [X[first:last] for first, last in (bounds[j] for j in agents)]


def dense_rows(first: int, last: int) -> Array:
    """Generate rows ``first`` to ``last``, with five dominant directions in noise of variance 1.

    A row depends only on its index, so that ranks can generate their own rows.
    """
    d, k = DENSE[1], 5
    axes = np.linalg.qr(np.random.default_rng(0).standard_normal((d, k)))[0] * np.geomspace(*_SPREAD, k)
    X = np.empty((last - first, d))
    for block in range(first // _BLOCK_ROWS, -(-last // _BLOCK_ROWS)):
        rng = np.random.default_rng([1, block])
        drawn = rng.standard_normal((_BLOCK_ROWS, d))
        drawn += rng.standard_normal((_BLOCK_ROWS, k)) @ axes.T
        begin = block * _BLOCK_ROWS
        a, b = max(first, begin), min(last, begin + _BLOCK_ROWS)
        X[a - first : b - first] = drawn[a - begin : b - begin]
    return X
