"""Test whom the doctor asks to correct a configuration file that it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from deepca.sites.admin.doctor import examine
from deepca.sites.admin.findings import NETWORK_AUTHOR, THIS_SITE
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import write_site

SITES = (SiteEntry("north", "127.0.0.1:1"), SiteEntry("south", "127.0.0.1:2"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_network(tmp_path / "network.toml", NetworkFile("trial", SITES, 2, topology_name="ring", privacy="open"))
    write_site(tmp_path / "site.toml", "north", "rows.csv")
    return tmp_path


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def who_must_act(path: Path) -> str:
    """Return who must act on the only finding about a site."""
    [finding] = examine(path)
    assert (finding.check, finding.verdict) == ("site.toml", "wrong")
    return finding.who


def test_a_site_must_correct_its_own_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(folder / "site.toml", 'site = "north"', 'site = "nort"')
    assert who_must_act(folder) == who_must_act(folder / "site.toml") == THIS_SITE
    monkeypatch.chdir(folder)
    assert who_must_act(Path("site.toml")) == THIS_SITE
    replace(folder / "network.toml", "components = 2", "components = 0")  # site.toml is read first
    assert NETWORK_AUTHOR in who_must_act(folder)


def test_the_author_must_correct_network_toml(folder: Path) -> None:
    replace(folder / "network.toml", "components = 2", "components = 0")
    assert NETWORK_AUTHOR in who_must_act(folder)
    replace(folder / "site.toml", 'site = "north"', 'site = "north"\nunknown = 1')  # read before the network
    assert who_must_act(folder) == THIS_SITE


def test_a_site_must_restore_a_missing_network_toml(folder: Path) -> None:
    (folder / "network.toml").unlink()
    assert who_must_act(folder) == THIS_SITE
