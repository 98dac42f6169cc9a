"""Test what the doctor says about privacy, the disclosure rules, and what a run will disclose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from deepca.data.sources import ArraySource
from deepca.sites.admin.disclosure_checks import check_disclosure
from deepca.sites.admin.doctor import examine
from deepca.sites.admin.findings import NETWORK_AUTHOR, THIS_SITE, Finding
from deepca.sites.config.disclosure import DisclosureRules
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import read_site, write_site

CHECKS = ["privacy", "min_sites", "min_rows", "max_directions", "disclosed"]


def found(
    folder: Path, shape: tuple[int, int], *, sites: int = 3, table: dict[str, Any], **settings: Any
) -> list[Finding]:
    entries = tuple(SiteEntry(f"s{j}", f"10.0.0.{j + 1}:7400") for j in range(sites))
    given: dict[str, Any] = {"components": 3, "topology_name": "path" if sites > 1 else None, **settings}
    write_network(folder / "network.toml", NetworkFile("net", entries, **given))
    write_site(folder / "site.toml", "s0", "rows.npy", rules=DisclosureRules(**table))
    np.save(folder / "rows.npy", np.ones(shape))
    return list(check_disclosure(read_site(folder), ArraySource(np.ones(shape), "rows")))


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {one.check: one.verdict for one in findings}


def test_rules_in_force_and_what_is_disclosed_are_shown(tmp_path: Path) -> None:
    findings = found(tmp_path, (50, 300), table={})
    assert verdicts(findings) == dict.fromkeys(CHECKS, "ok")
    privacy, *_, disclosed = findings
    assert privacy.text == "private: only sums over all sites can be read"
    for fact in ("number", "mean", "sum of squares", "of 300 directions", "certificate"):
        assert fact in disclosed.text
    assert "neighbours" not in disclosed.text
    assert [one for one in examine(tmp_path, seconds=0.1, patience=0.1) if one.check in CHECKS] == findings


def test_an_open_network_is_a_warning(tmp_path: Path) -> None:
    privacy, *_, disclosed = found(tmp_path, (50, 30), table={}, privacy="open")
    assert (privacy.verdict, privacy.who) == ("warning", NETWORK_AUTHOR)
    assert privacy.text.startswith("open: neighbours can learn")
    assert "of this site alone" in disclosed.text


def test_overrides_are_warnings(tmp_path: Path) -> None:
    table = {"min_rows": 5, "min_sites": 2, "max_directions": "all"}
    findings = found(tmp_path, (7, 600), table=table)
    assert verdicts(findings) == {**dict.fromkeys(CHECKS, "ok"), **dict.fromkeys(table, "warning")}
    assert all(one.who == THIS_SITE for one in findings if one.verdict == "warning")
    stricter = found(tmp_path, (50, 600), table={"min_rows": 20, "max_directions": 300})
    assert verdicts(stricter) == dict.fromkeys(CHECKS, "ok")


@pytest.mark.parametrize(
    ("check", "table", "settings"),
    [
        ("min_sites", {"min_sites": 4}, {}),
        ("min_sites", {}, {"sites": 2, "privacy": "open"}),
        ("min_rows", {"min_rows": 51}, {}),
        ("max_directions", {"max_directions": 29}, {"algorithm": "covariance"}),
        ("max_directions", {"max_directions": 0.5}, {"components": None}),
    ],
)
def test_rules_that_forbid_the_run_are_wrong(
    check: str, table: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    findings = found(tmp_path, (50, 30), table=table, **settings)
    assert [one.check for one in findings if one.verdict == "wrong"] == [check]
    assert all(THIS_SITE in one.who for one in findings if one.verdict == "wrong")


@pytest.mark.parametrize("components", [5, 0.9])
def test_a_limit_that_the_run_will_probably_exceed_is_a_warning(components: Any, tmp_path: Path) -> None:
    findings = found(tmp_path, (50, 300), table={"max_directions": 40}, components=components)
    assert verdicts(findings)["max_directions"] == "warning"


def test_a_single_site_has_nothing_to_disclose(tmp_path: Path) -> None:
    [finding] = found(tmp_path, (5, 30), sites=1, table={"min_sites": 9})
    assert (finding.check, finding.verdict) == ("privacy", "ok")


def test_rules_that_need_no_rows_are_checked_without_them(tmp_path: Path) -> None:
    found(tmp_path, (50, 30), table={"min_sites": 4})
    assert verdicts(list(check_disclosure(read_site(tmp_path), None))) == {"privacy": "ok", "min_sites": "wrong"}
