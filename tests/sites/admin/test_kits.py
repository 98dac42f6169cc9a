"""Test that kits are created completely or not at all, and never overwrite files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from deepca.errors import InvalidInput
from deepca.sites.admin.kits import make_kits
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import read_site
from deepca.sites.pki.column_key import column_key_of
from tests.support.errors import raises

SITES = (SiteEntry("north", "127.0.0.1:1"), SiteEntry("south", "127.0.0.1:2"))


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "network.toml"
    write_network(path, NetworkFile("trial", SITES, 2, topology_name="ring", privacy="open"))
    return path


def test_every_site_gets_a_folder_that_can_be_read(network: Path, tmp_path: Path) -> None:
    made = make_kits(network, tmp_path / "kits")
    assert [(kit.site, kit.neighbours, kit.complete) for kit in made.sites] == [
        ("north", ("south",), False),
        ("south", ("north",), False),
    ]
    for kit in made.sites:
        assert read_site(kit.folder).site == kit.site
        assert not (kit.folder / "site.key").exists()


@pytest.mark.parametrize("trial", [False, True])
def test_all_kits_and_the_authority_have_the_same_key_for_column_names(
    network: Path, tmp_path: Path, trial: bool
) -> None:
    made, others = (make_kits(network, tmp_path / name, trial=trial) for name in ("kits", "others"))
    files = [folder / "columns.key" for folder in (made.authority, *(kit.folder for kit in made.sites))]
    [key] = {column_key_of(read_site(kit.folder)) for kit in made.sites}
    assert [file.read_text("ascii") for file in files] == [f"{key.hex()}\n"] * 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert key != column_key_of(read_site(others.sites[0].folder))


@pytest.mark.parametrize(
    "name", ["authority/authority.key", "south/site.toml", "north/revoked.pem", "north/columns.key"]
)
def test_an_existing_file_is_not_overwritten(network: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "kits" / name
    file.parent.mkdir(parents=True)
    file.write_text("precious", encoding="utf-8")
    with raises(InvalidInput, file=str(file)):
        make_kits(network, tmp_path / "kits")
    assert [path for path in (tmp_path / "kits").rglob("*") if path.is_file()] == [file]
    assert file.read_text("utf-8") == "precious"


def test_the_folder_of_kits_cannot_be_a_file(network: Path, tmp_path: Path) -> None:
    out = tmp_path / "kits"
    out.write_text("a file", encoding="utf-8")
    with raises(InvalidInput, file=str(out)):
        make_kits(network, out)
