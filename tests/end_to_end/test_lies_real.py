"""Run real processes, one of which has a valid kit and lies: its claims are rejected and the site is named."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
pytest.importorskip("sklearn")

from studies.faults.lies import (
    LEADER_OF_PATH,
    named_and_nothing_written,
    old_result,
    refused_and_right,
)
from studies.faults.playing import Scale

pytestmark = pytest.mark.xdist_group("real")


@pytest.mark.parametrize("what", ["mean", "counts", "variance", "columns", "status"])
def test_an_altered_result_of_the_site_that_proposes_it(what: str, tmp_path: Path) -> None:
    assert named_and_nothing_written(tmp_path / "f", f"model:{what}", 0).problems == []


@pytest.mark.parametrize("what", ["same epoch", "later epoch", "fewer members"])
def test_a_fabricated_result_of_another_site(what: str, tmp_path: Path) -> None:
    assert named_and_nothing_written(tmp_path / "f", f"claim:{what}", 2).problems == []


@pytest.mark.parametrize("what", ["forged record", "replayed"])
def test_what_is_not_signed_for_this_run_has_no_effect(what: str, tmp_path: Path) -> None:
    verdict = refused_and_right(tmp_path / "f", f"claim:{what}")
    assert verdict.problems == []
    assert verdict.results == 4


@pytest.mark.parametrize(
    "lie",
    ["array:NaN", "array:fractional count", "array:dtype", "array:NaN in a product", "tag:round", "tag:plan"],
)
def test_numbers_that_a_step_cannot_have(lie: str, tmp_path: Path) -> None:
    assert named_and_nothing_written(tmp_path / "f", lie, 2).problems == []


@pytest.mark.parametrize("what", ["next block", "a bound", "eigenvalues", "number of probes", "axes"])
def test_numbers_of_the_leader_that_do_not_follow(what: str, tmp_path: Path) -> None:
    """All sites name it, including one that received the numbers from another site."""
    assert named_and_nothing_written(tmp_path / "f", f"leader:{what}", LEADER_OF_PATH).problems == []


def test_numbers_of_the_leader_that_are_changed_on_their_way(tmp_path: Path) -> None:
    assert named_and_nothing_written(tmp_path / "f", "relay:certificate", 2).problems == []


def test_an_old_result_is_not_a_new_one(tmp_path: Path) -> None:
    found = old_result(Scale(tmp_path, full=False))
    assert found.problems == ()
    assert found.success == 1
