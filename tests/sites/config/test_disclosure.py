"""Test the disclosure rules in ``site.toml``: defaults, limits, overrides, and errors with the place of a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deepca.errors import DisclosureError, InvalidInput, ParameterError
from deepca.sites.config.disclosure import DEFAULT_RULES, NO_RULES, DisclosureRules
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import read_site, write_site
from tests.support.errors import raises


def network(sites: int, **changes: Any) -> NetworkFile:
    entries = tuple(SiteEntry(f"s{j}", f"10.0.0.{j + 1}:7400") for j in range(sites))
    given: dict[str, Any] = {"components": 3, "topology_name": "path" if sites > 1 else None, "privacy": "open"}
    return NetworkFile("net", entries, **{**given, **changes})


def read(folder: Path, table: str) -> DisclosureRules:
    write_network(folder / "network.toml", network(3))
    (folder / "site.toml").write_text(f'site = "s0"\ndata = "rows.csv"\n{table}', encoding="utf-8")
    return read_site(folder).rules


@pytest.mark.parametrize(
    ("d", "limit"), [(1, 1), (13, 13), (300, 300), (512, 512), (600, 512), (1024, 512), (1025, 513), (20_000, 10_000)]
)
def test_the_default_limits_directions_only_where_there_are_many_columns(d: int, limit: int) -> None:
    assert DEFAULT_RULES.direction_limit(d) == limit
    assert NO_RULES.direction_limit(d) == d


@pytest.mark.parametrize(
    ("given", "limit"), [(1, 1), (96, 96), (300, 300), (900, 300), (0.5, 150), (0.999, 299), (1e-9, 1), ("all", 300)]
)
def test_the_limit_is_a_number_a_share_or_all(given: Any, limit: int) -> None:
    assert DisclosureRules(max_directions=given).direction_limit(300) == limit


def test_a_site_without_a_table_has_the_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "") == DEFAULT_RULES == DisclosureRules(10, 3, None)
    assert read(tmp_path, "[disclosure]\n") == DEFAULT_RULES


@pytest.mark.parametrize("most", [40, 0.25, "all"])
def test_all_values_are_read(most: Any, tmp_path: Path) -> None:
    written = f'"{most}"' if isinstance(most, str) else most
    table = f"[disclosure]\nmin_rows = 25\nmin_sites = 4\nmax_directions = {written}\n"
    assert read(tmp_path, table) == DisclosureRules(25, 4, most)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("min_rows = 0", "min_rows"),
        ("min_rows = 2.5", "min_rows"),
        ("min_rows = true", "min_rows"),
        ("min_sites = -1", "min_sites"),
        ('min_sites = "three"', "min_sites"),
        ("max_directions = 0", "max_directions"),
        ("max_directions = 1.0", "max_directions"),
        ("max_directions = 1.5", "max_directions"),
        ("max_directions = -0.5", "max_directions"),
        ("max_directions = nan", "max_directions"),
        ("max_directions = false", "max_directions"),
        ('max_directions = "half"', "max_directions"),
        ("max_direction = 5", "max_direction"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_its_place(line: str, key: str, tmp_path: Path) -> None:
    with raises(InvalidInput, file=str(tmp_path / "site.toml"), line=4, parameter=key):
        read(tmp_path, f"[disclosure]\n{line}\n")


def test_rules_are_checked_in_python_as_well() -> None:
    for wrong in ({"min_rows": 0}, {"min_sites": 0}, {"max_directions": True}, {"max_directions": 0.0}):
        with raises(ParameterError, parameter=next(iter(wrong))):
            DisclosureRules(**wrong)


def test_only_weaker_rules_are_overrides() -> None:
    assert list(DEFAULT_RULES.overrides(2000)) == []
    assert list(DisclosureRules(11, 4, 0.2).overrides(2000)) == []
    assert list(DisclosureRules(max_directions="all").overrides(300)) == []  # the default allows all of 300
    assert [(one.rule, one.value, one.default) for one in DisclosureRules(5, 2, 0.9).overrides(2000)] == [
        ("min_rows", 5, 10),
        ("min_sites", 2, 3),
        ("max_directions", 0.9, 1000),
    ]


def test_kits_show_the_rules_commented_out_with_their_defaults(tmp_path: Path) -> None:
    write_network(tmp_path / "network.toml", network(3))
    write_site(tmp_path / "site.toml", "s0", "rows.csv")
    text = (tmp_path / "site.toml").read_text(encoding="utf-8")
    assert f"# min_rows = {DEFAULT_RULES.min_rows} " in text
    assert f"# min_sites = {DEFAULT_RULES.min_sites} " in text
    assert read_site(tmp_path).rules == DEFAULT_RULES
    for rules in (NO_RULES, DisclosureRules(20, 5, 0.5), DisclosureRules(20, 5)):
        write_site(tmp_path / "site.toml", "s0", "rows.csv", rules=rules)
        assert read_site(tmp_path).rules == rules


@pytest.mark.parametrize(
    ("sites", "on_loss", "fewest"), [(2, "wait", 2), (2, "shrink", 2), (3, "shrink", 2), (5, "shrink", 3)]
)
def test_the_number_of_sites_is_that_of_the_smallest_result(sites: int, on_loss: str, fewest: int) -> None:
    found = network(sites, on_loss=on_loss)
    DisclosureRules(min_sites=fewest).check_sites(found)
    with raises(DisclosureError, rule="min_sites", value=fewest):
        DisclosureRules(min_sites=fewest + 1).check_sites(found)


def test_a_single_site_discloses_nothing() -> None:
    alone = network(1, components=None)
    DisclosureRules(min_sites=9).check_sites(alone)
    DisclosureRules(max_directions=1).check_settings(alone, 8)


def test_too_few_rows_are_refused() -> None:
    DEFAULT_RULES.check_rows(10)
    with raises(DisclosureError, rule="min_rows", parameter="min_rows", value=9):
        DEFAULT_RULES.check_rows(9)


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"components": None}, 40),
        ({"algorithm": "covariance"}, 40),
        ({"algorithm": "deepca"}, 40),
        ({"messages": "float32"}, 40),
        ({"components": 30}, 30),
    ],
)
def test_settings_that_imply_too_many_directions_are_refused(settings: dict[str, Any], needed: int) -> None:
    found = network(3, **settings)
    with raises(DisclosureError, rule="max_directions", value=needed):
        DisclosureRules(max_directions=needed - 1).check_settings(found, 40)
    DisclosureRules(max_directions=needed).check_settings(found, 40)
    DisclosureRules(max_directions=1).check_settings(network(3, components=0.5), 40)  # the spectrum decides
