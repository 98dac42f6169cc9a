"""Test that the memory of a fit does not grow with the file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.memory import MEGABYTE, measure

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux reports RssAnon")
def test_anonymous_memory_stays_small(tmp_path: Path) -> None:
    """Fit a file of 0.25 GB; `make check-memory` uses 2 GB."""
    found = measure(0.25, 256, 10, tmp_path)
    assert found["rows"] == (1 << 28) // (8 * 256)
    assert found["growth"] < 100 * MEGABYTE
