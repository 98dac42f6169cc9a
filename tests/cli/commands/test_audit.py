"""Test ``deepca audit``: verdicts, tables, comparisons and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from typer.testing import CliRunner

from deepca.cli.app import app
from deepca.sites.config.site_file import SiteFile
from tests.sites.audit.test_comparison import SESSION, pair, send
from tests.sites.audit.test_reader import kits, signed
from tests.sites.audit.test_writer import parcel, write


def audit(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["audit", *map(str, words)], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def as_json(*words: object) -> tuple[int, dict[str, Any]]:
    code, output = audit(*words, "--json")
    found: dict[str, Any] = json.loads(output)
    return code, found


@pytest.fixture
def north(tmp_path: Path) -> SiteFile:
    """Return a site with a signed log."""
    site = kits(tmp_path / "network")["north"]
    assert site.audit is not None
    signed(site.audit, site)
    return site


def test_a_site_a_folder_and_a_file_are_read(north: SiteFile) -> None:
    assert north.audit is not None
    [log] = north.audit.iterdir()
    for path, expected in (
        (north.path, "verified"),
        (north.folder, "verified"),
        (north.audit, "not checked"),
        (log, "not checked"),
    ):
        code, found = as_json(path)
        assert (code, found["ok"]) == (0, True)
        assert [one["signature"] for one in found["logs"]] == [expected]
        [row] = found["sent"]
        assert (row["neighbor"], row["kind"], row["messages"], row["masked"]) == ("south", "data: step", 3, 3)
    code, found = as_json(log, "--authority", north.authority)
    assert [one["signature"] for one in found["logs"]] == ["verified"]


def test_the_table_and_the_verdict_are_shown(north: SiteFile) -> None:
    code, output = audit(north.path)
    assert code == 0
    assert "signed by north" in output
    assert "data: step" in output


def test_a_broken_log_names_its_line(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace('"seq":2', '"seq":9', 1))
    code, found = as_json(path)
    assert (code, found["ok"]) == (1, False)
    assert found["logs"][0]["broken_at"] == 4
    code, output = audit(path)
    assert code == 1
    assert "line 4" in output


def test_a_missing_log_of_a_restart_is_reported_for_a_folder(tmp_path: Path) -> None:
    first, second = write(tmp_path), write(tmp_path)
    assert as_json(tmp_path)[0] == 0
    first.unlink()
    code, found = as_json(tmp_path)
    assert code == 1
    assert len(found["restarts"]) == 1
    assert first.name in audit(tmp_path)[1]
    assert as_json(second)[0] == 0


def test_logs_of_two_sites_are_compared(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    send(writers, [parcel(number) for number in range(3)])
    for one in writers:
        one.close(None)
    north, south = (one.path for one in writers)
    code, found = as_json(north, south)
    assert code == 0
    assert (found["comparison"]["ok"], found["comparison"]["equal"]) == (True, 3)
    assert audit(north.parent, south.parent)[0] == 0


def test_a_contradiction_names_both_lines(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    send(writers, [parcel(1)])
    writers[0].journal("south").sent(SESSION, 2, parcel(2))
    writers[1].journal("north").received(SESSION, 2, parcel(2).header, b"other")
    for one in writers:
        one.close(None)
    north, south = (one.path for one in writers)
    code, output = audit(north, south)
    assert code == 1
    assert f"{north}:3" in output
    assert f"{south}:3" in output
    code, found = as_json(north, south)
    assert (code, found["ok"]) == (1, False)
    assert found["comparison"]["differences"][0]["sent"] == [str(north), 3]


def test_a_broken_log_is_not_compared(tmp_path: Path) -> None:
    writers = pair(tmp_path)
    send(writers, [parcel(1)])
    for one in writers:
        one.close(None)
    north, south = (one.path for one in writers)
    south.write_text(south.read_text().replace('"seq":1', '"seq":2', 1))
    code, found = as_json(north, south)
    assert code == 1
    assert "comparison" not in found


def test_mistakes_end_with_exit_code_2(north: SiteFile, tmp_path: Path) -> None:
    assert north.audit is not None
    [log] = north.audit.iterdir()
    text = north.path.read_text()
    assert audit(tmp_path / "none.jsonl")[0] == 2
    assert audit(tmp_path)[0] == 2
    assert audit(north.certificate)[0] == 2
    assert audit(log, "--authority", north.key)[0] == 2
    assert audit(log, log)[0] == 2
    north.path.write_text(text.replace("audit = true ", "audit = false"))
    assert audit(north.path)[0] == 2


def test_logs_of_other_runs_are_left_out_for_a_site(north: SiteFile) -> None:
    network = north.folder / "network.toml"
    network.write_text('run = "9"\n' + network.read_text())
    assert audit(north.path)[0] == 2
    assert north.audit is not None
    assert audit(north.audit)[0] == 0
