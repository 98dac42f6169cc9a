"""Run the reduced leakage study, and compare its page with the published one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import deepca
from studies.leakage.__main__ import REDUCED
from studies.leakage.figure import draw
from studies.leakage.report import sections
from studies.leakage.study import Plan, Results, leaves, run
from studies.shared.report import page
from tests.support.paths import ROOT


@cache
def results() -> Results:
    return run(REDUCED, jobs=1)


def test_all_assertions_hold_on_the_reduced_study(tmp_path: Path) -> None:
    parts = sections(results(), None, "")
    judged = [assertion for part in parts for assertion in part.assertions]
    assert len(judged) == 5
    assert all(assertion.holds for assertion in judged), page("Leakage", parts, "")
    draw(results(), tmp_path / "figures" / "leakage.png")
    assert (tmp_path / "figures" / "leakage.png").read_bytes().startswith(b"\x89PNG")


def test_leaves_have_no_children_in_the_tree() -> None:
    assert leaves(deepca.topology.star(5)) == {1, 2, 3, 4}
    assert leaves(deepca.topology.path(5)) == {0, 4}
    assert len(results().by_parents("star", 2)) == 4 * REDUCED.draws


def test_the_published_page_matches_the_report() -> None:
    """Only headings and assertions are compared, since the last digits of numbers may differ between machines."""
    published = (ROOT / "docs" / "leakage.md").read_text(encoding="utf-8")
    made = page("Leakage", sections(results(), "figures/leakage.png", ""), "")
    heads = [line for line in made.splitlines() if line.startswith(("#", "![", "| network"))]
    heads += [line.split("|")[1] for line in made.splitlines() if "✔" in line]
    assert [head for head in heads if head not in published] == []
    assert "✘" not in published
    assert f"{Plan().draws} draws of each" in published
    assert Plan().draws >= 50
    assert {2, 3, 50, 1000} <= set(Plan().rows)
    assert "at commit " in published
