"""Test the key for column names: its file, how the authority hands it out, and how a site installs it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from deepca.errors import InvalidInput
from deepca.sites.admin.kits import make_kits
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import read_site
from deepca.sites.pki.authority import LEDGER
from deepca.sites.pki.column_key import (
    column_key_of,
    install_column_key,
    load_column_key,
    share_column_key,
    write_column_key,
)
from deepca.sites.pki.enrolment import request_certificate, sign_request
from deepca.sites.protocol.fingerprints import COLUMN_KEY_BYTES, column_key_identifier, public_column_key
from tests.support.errors import raises

SITES = (SiteEntry("north", "127.0.0.1:1"), SiteEntry("south", "127.0.0.1:2"))
KEY = bytes(range(COLUMN_KEY_BYTES))


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    write_network(tmp_path / "network.toml", NetworkFile("trial", SITES, 2, topology_name="ring", privacy="open"))
    make_kits(tmp_path / "network.toml", tmp_path)
    return tmp_path


@pytest.fixture
def earlier(kits: Path) -> Path:
    """Return kits as earlier versions made them, without the key."""
    for name in ("authority", "north", "south"):
        (kits / name / "columns.key").unlink()
    (kits / "authority" / LEDGER).unlink()
    return kits


def load(path: Path) -> bytes:
    return load_column_key(path, missing="", malformed="")


def ledger(kits: Path) -> list[str]:
    """Return the identifiers of the keys in the ledger."""
    lines = [json.loads(line) for line in (kits / "authority" / LEDGER).read_text().splitlines()]
    return [line["identifier"] for line in lines if line["event"] == "column key"]


def test_the_file_is_a_line_of_text_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "columns.key"
    write_column_key(path, KEY)
    assert path.read_text("ascii") == f"{KEY.hex()}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load(path) == KEY
    path.write_bytes(KEY.hex().upper().encode() + b"\r\n")  # as edited on another system
    assert load(path) == KEY


@pytest.mark.parametrize("content", [b"", b"\n", KEY, KEY.hex().encode()[:-1], KEY.hex().encode() * 2, b"\xff" * 64])
def test_a_malformed_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "columns.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with raises(InvalidInput, file=str(path), parameter="key for column names", value=None):
        load(path)


@pytest.mark.skipif(os.name != "posix", reason="permissions")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_use_is_refused(kits: Path, mode: int) -> None:
    for path in (kits / "north" / "columns.key", kits / "authority" / "columns.key"):
        path.chmod(mode)
    with raises(InvalidInput, file=str(kits / "north" / "columns.key"), value=mode):
        column_key_of(read_site(kits / "north"))
    with raises(InvalidInput, file=str(kits / "authority" / "columns.key"), value=mode):
        share_column_key(kits / "authority")
    with raises(InvalidInput, file=str(kits / "authority" / "columns.key"), value=mode):
        install_column_key(kits / "south", kits / "authority" / "columns.key")


def test_the_key_of_a_site_is_the_file_that_site_toml_names(kits: Path) -> None:
    toml = kits / "north" / "site.toml"
    toml.write_text(toml.read_text("utf-8").replace('"columns.key"', '"keys/columns"'), encoding="utf-8")
    missing = kits / "north" / "keys" / "columns"
    with raises(InvalidInput, file=str(missing), value=None):
        column_key_of(read_site(toml))
    write_column_key(missing, KEY)
    assert column_key_of(read_site(toml)) == KEY


def test_the_key_of_a_plaintext_site_is_public(kits: Path) -> None:
    keys = set()
    for name in ("north", "south"):
        with (kits / name / "site.toml").open("a") as file:
            file.write("plaintext = true\n")
        keys.add(column_key_of(read_site(kits / name)))
        with raises(InvalidInput, parameter="plaintext"):
            install_column_key(kits / name, kits / "authority" / "columns.key")
    assert keys == {public_column_key(read_site(kits / "north").network)}


def test_a_network_has_one_key_that_is_handed_out_again(kits: Path) -> None:
    found = share_column_key(kits / "authority")
    assert (found.made, found.key) == (False, column_key_of(read_site(kits / "north")))
    assert ledger(kits) == [found.identifier] == [column_key_identifier(found.key)]
    assert found.key.hex() not in repr(found)
    assert found.key.hex() not in (kits / "authority" / LEDGER).read_text()


def test_kits_of_earlier_versions_receive_a_key(earlier: Path) -> None:
    with raises(InvalidInput, file=str(earlier / "north" / "columns.key"), value=None):
        column_key_of(read_site(earlier / "north"))
    made = share_column_key(earlier / "authority")
    assert made.made
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    for name in ("north", "south"):
        done = install_column_key(earlier / name, made.path)
        assert (done.site, done.identifier, done.replaced) == (name, made.identifier, False)
        assert stat.S_IMODE(done.path.stat().st_mode) == 0o600
        assert column_key_of(read_site(earlier / name)) == made.key
    assert ledger(earlier) == [made.identifier]


def test_a_new_key_replaces_the_old_one(kits: Path) -> None:
    """Move the old key away, share another, and install it, for example when a site has left the network."""
    before = share_column_key(kits / "authority")
    before.path.unlink()
    after = share_column_key(kits / "authority")
    assert after.made
    assert install_column_key(kits / "north", after.path).replaced
    assert column_key_of(read_site(kits / "north")) == after.key != column_key_of(read_site(kits / "south"))
    assert ledger(kits) == [before.identifier, after.identifier]


def test_signing_makes_sure_that_there_is_a_key(earlier: Path) -> None:
    asked = request_certificate(earlier / "north")
    signed = sign_request(asked.request, earlier / "authority", expected=asked.fingerprint)
    assert signed.column_key.made
    assert signed.column_key.path == earlier / "authority" / "columns.key"
    assert signed.column_key.key.hex().encode() not in signed.certificate.read_bytes()
    again = request_certificate(earlier / "south")
    assert not sign_request(again.request, earlier / "authority", expected=again.fingerprint).column_key.made


def test_only_an_authority_has_a_key_to_share(kits: Path, tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with raises(InvalidInput, file=str(folder if folder.name == "none" else folder / "authority.pem")):
            share_column_key(folder)
    assert not (tmp_path / "columns.key").exists()
    with raises(InvalidInput, file=str(tmp_path / "missing")):
        install_column_key(kits / "north", tmp_path / "missing")
