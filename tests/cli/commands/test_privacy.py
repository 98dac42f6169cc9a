"""Test ``deepca privacy``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepca.cli.commands import privacy
from deepca.planning.leakage import Leakage, measure_leakage, random_sites
from tests.support.helpers import json_of, run_cli

NETWORK = """
name = "trial"
components = 2
topology = "star"
seed = 3

[[sites]]
name = "north"
address = "127.0.0.1:7400"

[[sites]]
name = "south"

[[sites]]
name = "west"

[[sites]]
name = "east"
"""


def _files(folder: Path, n: int = 3, names: tuple[str, ...] = ("a", "b", "c", "d")) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name, source in zip(names, random_sites(len(names), n, 6, seed=1), strict=True):
        np.save(folder / f"{name}.npy", np.asarray(source.matrix()))
    return [str(folder / f"{name}.npy") for name in names]


def _network(folder: Path, text: str = NETWORK) -> str:
    path = folder / "network.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _by_kind(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [one for one in found["exposures"] if one["adversary"] == kind]


# --------------------------------------------------------------------------------------------------------- answers


def test_json_contains_all_errors_of_files_of_rows(tmp_path: Path) -> None:
    found = json_of("privacy", *_files(tmp_path), "-k", "2", "--topology", "star")
    assert found["sites"] == [{"name": name, "rows": 3} for name in "abcd"]
    assert found["private_excess"] == 0.0
    assert len(found["summary"]) >= 3
    parents = _by_kind(found, "parent")
    assert [(one["site"], one["members"]) for one in parents] == [(name, ["a"]) for name in "bcd"]
    for one in parents:
        assert max(one["open"].values()) < 1e-10
        assert one["private"] == one["totals"]
        assert min(one["private"].values()) > 1e-3
    [centre] = [one for one in _by_kind(found, "all neighbours") if one["site"] == "a"]
    assert centre["isolates"]
    assert max(centre["private"].values()) < 1e-10


def test_the_table_and_the_sentences_fit_the_terminal(tmp_path: Path) -> None:
    files = _files(tmp_path, n=2)
    done = run_cli("privacy", *files, "-k", "2", "--topology", "star", "--quiet", columns=80)
    assert done.exit_code == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    shown = [line.split() for line in done.stdout.splitlines()]
    assert ["b,", "2", "rows"] in shown
    parent = next(line for line in shown if line[:1] == ["parent"])
    assert len(parent) == 10  # three quantities: open, private, totals
    assert all(float(parent[i]) < 1e-10 for i in (1, 4, 7))
    assert parent[2:4] == parent[2:3] * 2
    words = " ".join(done.stdout.split())
    assert "a, the parent of" in words
    assert "nobody learns more than the sums over all sites" in words


def test_rows_are_left_out_where_there_are_many(tmp_path: Path) -> None:
    done = run_cli("privacy", *_files(tmp_path, n=30), "-k", "2", "--topology", "ring", "--quiet", columns=80)
    parent = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["parent"])
    assert len(parent) == 7


def test_a_network_file_determines_sites_and_settings(tmp_path: Path) -> None:
    found = json_of("privacy", _network(tmp_path), "--rows", "2", "--columns", "7")
    assert [one["name"] for one in found["sites"]] == ["north", "south", "west", "east"]
    assert (found["dim"], found["components"], found["topology"]) == (7, 2, "star(4)")
    assert {tuple(one["members"]) for one in _by_kind(found, "parent")} == {("north",)}
    again = json_of("privacy", _network(tmp_path), "--rows", "2", "--columns", "7", "--seed", "0")
    for one, other in zip(found["exposures"], again["exposures"], strict=True):
        assert one["totals"] == other["totals"]


def test_files_named_after_sites_belong_to_them(tmp_path: Path) -> None:
    files = _files(tmp_path / "rows", names=("west", "south", "north", "east"))
    np.save(tmp_path / "rows" / "south.npy", np.load(tmp_path / "rows" / "south.npy")[:2])
    found = json_of("privacy", _network(tmp_path), *(word for file in files for word in ("--data", file)))
    assert [one["rows"] for one in found["sites"]] == [3, 2, 3, 3]
    patterns = json_of("privacy", _network(tmp_path), "--data", str(tmp_path / "rows" / "*.npy"))
    assert patterns["sites"] == found["sites"]


def test_rows_can_be_split(tmp_path: Path) -> None:
    found = json_of("privacy", *_files(tmp_path, n=10), "-k", "2", "--agents", "5", "--topology", "ring")
    assert found["sites"] == [{"name": f"site{j}", "rows": 8} for j in range(5)]


def test_the_exit_code_is_1_if_masks_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: Any, **more: Any) -> Leakage:
        return replace(measure_leakage(*given, **more), private_excess=0.5)

    monkeypatch.setattr(privacy, "measure_leakage", failing)
    done = run_cli("privacy", *_files(tmp_path), "-k", "2", "--topology", "star", "--quiet")
    assert done.exit_code == 1
    assert "MORE" in done.stdout


# --------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((), "--components"),
        (("-k", "2", "--rows", "5"), "--rows"),
        (("-k", "2", "--data", "rows.npy"), "--data"),
        (("-k", "2", "--agents", "30"), "--agents"),
        (("-k", "2", "--agents", "2", "--topology", "path"), "2 sites"),
        (("-k", "2", "--topology", "directed-ring"), "--topology"),
        (("-k", "2", "--topology", "ring:9"), "--topology"),
        (("-k", "9"), "--components"),
    ],
)
def test_mistakes_with_files_name_the_option(tmp_path: Path, options: tuple[str, ...], named: str) -> None:
    done = run_cli("privacy", *_files(tmp_path), *options)
    assert done.exit_code == 2
    assert named in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("-k", "2"), "--components"),
        (("--topology", "ring"), "--topology"),
        (("--scale", "--no-center"), "--scale, --no-center"),
        (("--label-column", "class"), "--label-column"),
        (("--data", "{rows}"), "north, south, west, east"),
        (("--data", "{rows}", "--rows", "3"), "--rows"),
        (("{rows}",), "2 targets"),
    ],
)
def test_mistakes_with_a_network_file_name_the_option(tmp_path: Path, options: tuple[str, ...], named: str) -> None:
    [rows, *_] = _files(tmp_path)
    done = run_cli("privacy", _network(tmp_path), *(option.format(rows=rows) for option in options))
    assert done.exit_code == 2
    assert named in done.stderr


def test_a_network_that_gossips_is_refused_with_its_file(tmp_path: Path) -> None:
    text = NETWORK.replace("seed = 3", 'algorithm = "deepca"\nprivacy = "open"')
    done = run_cli("privacy", _network(tmp_path, text))
    assert done.exit_code == 2
    assert "network.toml" in done.stderr
    assert "algorithm" in done.stderr
