"""The comparison of rounds and bytes with few cases and the same assertions; `make bench-communication` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepca.reproduction.problems import DataSource
from studies.communication.cells import LIMITS, Data, Run, sample
from studies.communication.report import assertions
from studies.communication.study import study
from studies.shared.report import Setting
from studies.shared.store import Record
from tests.support.paths import SHARED

pytestmark = pytest.mark.slow

FOLDER = SHARED
needs_data = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not (FOLDER / "a9a.bz2").exists(), reason="needs a9a.bz2 in ../shared/data"),
]


@pytest.mark.parametrize(
    ("data", "other", "expected"),
    [("close", "a9a", 1), pytest.param("a9a", "close", 2, marks=needs_data)],
)
def test_every_assertion_holds_on_the_sample(
    data: Data, other: Data, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = sample().without(other)
    source = DataSource(FOLDER if data == "a9a" else None, tmp_path / "cache")
    results = study(Setting(source, tmp_path / "store", jobs=1, reduced=True), scope)
    judged = assertions(results)
    assert len(judged) == expected
    assert {assertion.statement: assertion.measured for assertion in judged if not assertion.holds} == {}
    for case in scope.cases:
        # products averaged exactly are those of the pooled matrix, and float32 messages half as large as float64 ones
        pooled, tree = (
            results.group(case, method).marks(LIMITS[-1]) for method in ("pooled block Krylov", "block Krylov")
        )
        assert [mark.iterations for mark in pooled] == [mark.iterations for mark in tree]
        double, single = (
            results.group(case, name).marks(LIMITS[-1]) for name in ("accelerated", "accelerated, float32")
        )
        for a, b in zip(double, single, strict=True):
            assert b.bytes / b.rounds == pytest.approx(0.5 * a.bytes / a.rounds, rel=0.15)
    monkeypatch.setattr("studies.communication.study.work", _refuse)  # the second time nothing is run
    again = study(Setting(source, tmp_path / "store", jobs=1, reduced=True), scope)
    assert again.outcomes == results.outcomes


def _refuse(source: DataSource, task: Run) -> Record:
    raise AssertionError(f"{task} is made anew")
