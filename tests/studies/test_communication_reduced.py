"""Run the comparison of rounds and bytes on a sample of cases; `make bench-communication` runs all of them."""

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
def test_all_assertions_hold_on_the_sample(
    data: Data, other: Data, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = sample().without(other)
    source = DataSource(FOLDER if data == "a9a" else None, tmp_path / "cache")
    results = study(Setting(source, tmp_path / "store", jobs=1, reduced=True), scope)
    judged = assertions(results)
    assert len(judged) == expected
    assert {assertion.statement: assertion.measured for assertion in judged if not assertion.holds} == {}
    for case in scope.cases:
        # exact averages give the products of the pooled matrix; float32 messages are half as large as float64
        pooled, tree = (
            results.group(case, method).marks(LIMITS[-1]) for method in ("pooled block Krylov", "block Krylov")
        )
        assert [mark.iterations for mark in pooled] == [mark.iterations for mark in tree]
        double, single = (
            results.group(case, name).marks(LIMITS[-1]) for name in ("accelerated", "accelerated, float32")
        )
        for a, b in zip(double, single, strict=True):
            assert b.bytes / b.rounds == pytest.approx(0.5 * a.bytes / a.rounds, rel=0.15)
    monkeypatch.setattr("studies.communication.study.work", _refuse)  # the second call must only read stored runs
    again = study(Setting(source, tmp_path / "store", jobs=1, reduced=True), scope)
    assert again.outcomes == results.outcomes


def _refuse(source: DataSource, task: Run) -> Record:
    raise AssertionError(f"{task} is stored but was run again")
