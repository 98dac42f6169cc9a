"""Test the analysis of private and open runs, run a small study between real agents, and read the published page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deepca.network.sums import Words
from studies.private_sums.comparison import BYTES_GOAL, WALL_GOAL, Comparison, Quartiles
from studies.private_sums.costs import mask_costs
from studies.private_sums.figure import draw
from studies.private_sums.report import sections
from studies.private_sums.results import QUICK, ROUND_GOAL, Results, Rounds, run
from studies.private_sums.trials import TOLERANCE, Case, Run, draw_rows
from studies.private_sums.uniformity import Uniformity, blocks, byte_pvalues, repeated_blocks, upward
from studies.shared.report import Assertion, page
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "private-sums.md"
OPEN = Run("aa", 1e-12, True, 7, 9, seconds=2.0, cpu=3.0, others=0.1, numbers=1000.0, frames=(600, 500, 700))
PRIVATE = replace(OPEN, seconds=2.2, cpu=3.3, numbers=1010.0, frames=(606, 505, 707))


def comparison(*pairs: tuple[Run, Run], m: int = 3) -> Comparison:
    return Comparison(Case(m, 20, 30, len(pairs)), pairs or ((PRIVATE, OPEN),))


def uniformity(pvalue: float = 0.3, shared: int = 0, repeated: int = 0) -> Uniformity:
    pvalues = np.vstack([np.full((2, 8), pvalue), np.zeros((1, 8))])
    return Uniformity(QUICK.recorded, (4, 4, 3), (800, 800, 600), pvalues, (repeated, 0, 9), shared, 50)


def assertions(one: Comparison, *, rounds: float = 2.0, masked: Uniformity | None = None) -> list[Assertion]:
    times = np.ones((3, 4)) * [[1.0], [rounds], [1.5]]
    results = Results((one,), (Rounds(3, times),), (mask_costs(3, 4),), masked or uniformity())
    return [assertion for section in sections(results, None, "") for assertion in section.assertions]


# ------------------------------------------------------------------------------------------------------------- analysis


def test_ratios_are_taken_within_pairs() -> None:
    slow = (replace(PRIVATE, seconds=9.0), replace(OPEN, seconds=10.0))
    one = comparison((PRIVATE, OPEN), slow, (replace(PRIVATE, seconds=2.6), OPEN))
    assert one.wall == pytest.approx((1.0, 1.1, 1.2))
    assert one.cpu == pytest.approx((1.1,) * 3)
    assert one.numbers == pytest.approx((1.01,) * 3)
    assert one.frames == pytest.approx((1.01,) * 3)
    assert one.seconds(1).median == 2.0
    assert Quartiles.of([1.0, 2.0, 3.0]).text() == "2.00 (1.50 – 2.50)"


def test_all_goals_are_met_where_they_are_and_each_is_missed_alone() -> None:
    assert all(one.holds for one in assertions(comparison()))
    missed = [
        assertions(comparison((replace(PRIVATE, digest="bb"), OPEN))),
        assertions(comparison((replace(PRIVATE, angle=2 * TOLERANCE), OPEN))),
        assertions(comparison((PRIVATE, replace(OPEN, proven=False)))),
        assertions(comparison((replace(PRIVATE, seconds=2.0 * WALL_GOAL + 0.1), OPEN))),
        assertions(comparison((replace(PRIVATE, numbers=1000.0 * BYTES_GOAL + 1.0), OPEN))),
        assertions(comparison((replace(PRIVATE, frames=(700, 600, 800)), OPEN))),
        assertions(comparison(), rounds=ROUND_GOAL + 0.1),
        assertions(comparison(), masked=uniformity(pvalue=1e-5)),
        assertions(comparison(), masked=uniformity(shared=1)),
        assertions(comparison(), masked=uniformity(repeated=1)),
    ]
    assert [sum(not one.holds for one in found) for found in missed] == [1] * len(missed)


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    draw([comparison(), comparison(m=5)], tmp_path / "figures" / "one.png")
    assert (tmp_path / "figures" / "one.png").read_bytes().startswith(b"\x89PNG")


def test_bytes_that_are_not_uniform_are_found_at_their_position() -> None:
    words = np.random.default_rng(3).integers(0, 2**64, 20_000, dtype=np.uint64)
    assert byte_pvalues([words[:9_000], words[9_000:]]).min() > 1e-9
    found = byte_pvalues([words & ~np.uint64(1 << 47)])  # a bit of the sixth byte
    assert found[5] < 1e-12
    assert np.delete(found, 5).min() > 1e-9


def test_only_partial_sums_are_tested() -> None:
    messages: list[Words] = [np.array([count, 8, 9], dtype=np.uint64) for count in (1, 2, 3)]
    assert [one.tolist() for one in upward(messages, 3)] == [[8, 9], [8, 9]]  # the third is a total


def test_blocks_overlap_and_do_not_cross_messages() -> None:
    messages: list[Words] = [np.array(words, dtype=np.uint64) for words in ([1, 2, 3], [2, 3], [3])]
    found = blocks(messages)
    assert [len(one) for one in found] == [16, 16, 16]
    assert repeated_blocks(found) == 1


def test_rows_have_a_clear_gap_after_the_components() -> None:
    pooled = np.concatenate(draw_rows(Case(3, 60, 200, 0)))
    values = np.linalg.eigvalsh(np.cov(pooled.T))[::-1]
    assert values[4] > 5.0 * values[5]


# ------------------------------------------------------------------------------------------------------- real agents


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_study_between_real_agents(tmp_path: Path) -> None:
    found = run(QUICK, tmp_path)
    [one] = found.comparisons
    assert one.same_digests == len(one.pairs)
    assert one.proven
    assert {private.seed for private, _ in one.pairs} == {opened.seed for _, opened in one.pairs}
    assert len({private.seed for private, _ in one.pairs}) == len(one.pairs)
    for private, opened in one.pairs:  # a private run sends a check number with each part, and a few short sums
        assert opened.numbers < private.numbers < 2.0 * opened.numbers
        assert min(*private.frames, *opened.frames) > 0
    masked = found.uniformity
    assert masked.shared == 0
    assert masked.repeated[:2] == (0, 0)
    assert masked.pvalues[:2].min() > 1e-9
    assert masked.pvalues[2].max() < 1e-9  # the test tells open numbers from masked ones
    assert masked.shared_open > 0
    assert found.rounds[0].seconds.shape == (3, QUICK.repetitions)
    draw(found.comparisons, tmp_path / "one.png")
    assert page("Private sums in figures", sections(found, "one.png", ""), "").count("### ") == 5


# ------------------------------------------------------------------------------------------------------------- the page


def test_the_published_page_matches_the_report() -> None:
    """Headings, statements and headers are compared; numbers are those of the published run."""
    published = PAGE.read_text(encoding="utf-8")
    results = Results((comparison(),), (Rounds(3, np.ones((3, 2))),), (mask_costs(3, 4),), uniformity())
    made = sections(results, "figures/private-sums.png", "")
    shown = published.splitlines()
    heads = [line for line in page("Private sums in figures", made, "").splitlines() if line.startswith(("#", "!"))]
    assert [line for line in heads if line not in shown] == []
    for statement in (one.statement for section in made for one in section.assertions):
        assert f"| {statement} |" in published
    assert re.search(r"Measured at commit [0-9a-f]{7,} on \d{4}-\d\d-\d\d", published)
    assert "make study-privacy" in shown
    assert (PAGE.parent / "figures" / "private-sums.png").exists()


def test_the_published_page_has_every_case_and_states_goals_as_measured() -> None:
    published = PAGE.read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in published.splitlines() if line[:2] == "| "
    ]
    timed = [row for row in rows if len(row) == 10 and row[0].isdigit()]
    assert [row[:2] for row in timed] == [[m, d] for m in ("5", "10") for d in ("300", "3,000", "50,000")]
    for row in timed:
        assert (float(row[6].split()[0]) <= WALL_GOAL) == (row[7] == "met"), row
    held = {row[0]: row[2] for row in rows if row[-1] in ("✔ yes", "✘ no")}
    wall = f"A private run takes at most {WALL_GOAL:g} times as long."
    assert held[wall] == ("✔ yes" if all(row[7] == "met" for row in timed) else "✘ no")
    for sure in ("The digest is the same at the same seed.", f"Every run proves the tolerance {TOLERANCE:g}."):
        assert held[sure] == "✔ yes"
    assert held["Two private runs over the same rows share no masked block."] == "✔ yes"
