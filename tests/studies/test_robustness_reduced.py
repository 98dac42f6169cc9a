"""Run the robustness studies with fewer draws; `make study-robustness` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepca.reproduction.problems import DataSource
from studies.robustness import rounds, stopping
from studies.shared.report import Setting, Study, page

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("study", [stopping.STUDY, rounds.STUDY], ids=lambda study: study.name)
def test_all_assertions_hold_on_the_reduced_study(study: Study, tmp_path: Path) -> None:
    section = study.run(Setting(DataSource(None), tmp_path, jobs=1, reduced=True))
    assert section.assertions
    assert section.holds, page("Robustness", [section], "make study-robustness")
    # the second call reads the stored runs
    again = study.run(Setting(DataSource(None), tmp_path, jobs=1, reduced=True))
    assert again == section
