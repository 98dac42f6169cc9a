"""Run real agents, one of which lies although its kit is genuine: the others refuse its lies and name it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
pytest.importorskip("sklearn")

from studies.faults.cases.lying_agents import (
    LEADER_OF_PATH,
    expect_liar_named,
    expect_lie_without_effect,
    old_result,
)
from studies.faults.harness import Scale

pytestmark = pytest.mark.xdist_group("real")


@pytest.mark.parametrize("what", ["mean", "counts", "variance", "columns", "status"])
def test_a_site_that_proposes_an_altered_result_is_named(what: str, tmp_path: Path) -> None:
    assert expect_liar_named(tmp_path / "f", f"model:{what}", 0).problems == []


@pytest.mark.parametrize("what", ["same epoch", "later epoch", "fewer members"])
def test_a_site_that_announces_a_fabricated_result_is_named(what: str, tmp_path: Path) -> None:
    assert expect_liar_named(tmp_path / "f", f"claim:{what}", 2).problems == []


@pytest.mark.parametrize("what", ["forged record", "replayed"])
def test_forged_and_replayed_messages_have_no_effect(what: str, tmp_path: Path) -> None:
    verdict = expect_lie_without_effect(tmp_path / "f", f"claim:{what}")
    assert verdict.problems == []
    assert verdict.results == 4


@pytest.mark.parametrize(
    "lie",
    [
        "array:number of agents",
        "array:negative count",
        "array:dtype",
        "array:NaN in a product",
        "tag:round",
        "tag:plan",
    ],
)
def test_a_site_that_sends_invalid_messages_is_named(lie: str, tmp_path: Path) -> None:
    assert expect_liar_named(tmp_path / "f", lie, 2).problems == []


@pytest.mark.parametrize("what", ["next block", "a bound", "eigenvalues", "number of probes", "axes"])
def test_a_leader_that_sends_false_numbers_is_named(what: str, tmp_path: Path) -> None:
    """All sites name the leader, including one that received its numbers from another site."""
    assert expect_liar_named(tmp_path / "f", f"leader:{what}", LEADER_OF_PATH).problems == []


def test_a_site_that_alters_forwarded_numbers_of_the_leader_is_named(tmp_path: Path) -> None:
    assert expect_liar_named(tmp_path / "f", "relay:certificate", 2).problems == []


def test_a_result_of_other_rows_is_not_reused(tmp_path: Path) -> None:
    found = old_result(Scale(tmp_path, full=False))
    assert found.problems == ()
    assert found.passed == 1
