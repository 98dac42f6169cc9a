"""Test that real agents with different BLAS kernels agree on one answer, equally fast and accurate."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
pytest.importorskip("sklearn")

from studies.faults.processes import kernels_here
from studies.faults.unlike import PROBLEMS, Problem, run_with

pytestmark = pytest.mark.xdist_group("real")

kernels = functools.cache(kernels_here)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))
def test_unlike_kernels_give_one_answer(tmp_path: Path, problem: Problem) -> None:
    """The answer takes as many iterations as with equal kernels and is signed by all; d = 300 and steep once failed."""
    several = kernels()
    if len(several) < 2:
        pytest.skip(f"this processor runs one kind of kernels only: {several}")
    alike = run_with(tmp_path / "alike", problem, several[:1])
    unlike = run_with(tmp_path / "unlike", problem, several)
    for verdict in (alike, unlike):
        assert verdict.problems == []  # status ok, one file, right, compared by all
        assert verdict.results == 3
    assert abs(unlike.iterations - alike.iterations) <= 1
