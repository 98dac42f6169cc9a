"""Test enrolment: requests, signatures and installation, and the facts of their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from deepca.errors import CertificateError, EnrolmentError, InvalidInput, ParameterError
from deepca.sites.admin.kits import make_kits
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import pem, request
from deepca.sites.pki.enrolment import Asked, ask, examine_request, install, sign_request
from deepca.sites.pki.keys import fingerprint, new_key
from tests.support.errors import raises

SITES = (SiteEntry("north", "127.0.0.1:1"), SiteEntry("south", "127.0.0.1:2"))


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    write_network(tmp_path / "network.toml", NetworkFile("trial", SITES, 2, topology_name="ring"))
    make_kits(tmp_path / "network.toml", tmp_path)
    return tmp_path


def sign(kits: Path, asked: Asked, **options: object) -> Path:
    """Sign a request as the keeper, and return the file of the certificate."""
    authority = kits / "authority"
    return sign_request(asked.request, authority, expected=asked.fingerprint, **options).certificate  # type: ignore[arg-type]


def test_a_site_enrols_and_renews(kits: Path) -> None:
    north = kits / "north"
    asked = ask(north)
    assert asked.fresh
    assert not ask(north).fresh  # the key is used again
    assert not install(north, sign(kits, asked)).renewed
    with raises(InvalidInput, file=str(north / "site.pem"), parameter="certificate"):
        ask(north)
    again = ask(north, renew=True)
    with raises(EnrolmentError, reason="certificate exists", site="north", fingerprint=again.fingerprint):
        sign(kits, again)
    assert install(north, sign(kits, again, renew=True)).renewed


def test_a_request_with_another_fingerprint_is_not_signed(kits: Path) -> None:
    asked = ask(kits / "north")
    with raises(EnrolmentError, reason="fingerprint", site="north", fingerprint=asked.fingerprint):
        sign_request(asked.request, kits / "authority", expected="0" * 64)
    assert Authority.load(kits / "authority").issued() == ()


def test_errors_of_a_request_name_its_file(kits: Path, tmp_path: Path) -> None:
    file, authority = tmp_path / "request.csr", kits / "authority"
    with raises(InvalidInput, file=str(file), parameter=None):
        examine_request(file, authority)
    file.write_bytes(b"x")
    with raises(InvalidInput, file=str(file), parameter="request"):
        examine_request(file, authority)
    file.write_bytes(pem(request("north", "other", new_key())))
    with raises(InvalidInput, file=str(file), parameter="network", value="other"):
        examine_request(file, authority)
    file.write_bytes(pem(request("nort", "trial", new_key())))
    with raises(InvalidInput, file=str(authority / "network.toml"), parameter="site", value="nort"):
        examine_request(file, authority)
    key = new_key()
    file.write_bytes(pem(request("north", "trial", key)))
    with raises(ParameterError, file=str(file), parameter="days", value=0):
        sign_request(file, authority, expected=fingerprint(key), days=0)
    (tmp_path / "north.pem").write_bytes(b"precious")
    with raises(InvalidInput, file=str(tmp_path / "north.pem"), value="north"):
        sign_request(file, authority, expected=fingerprint(key))
    assert (tmp_path / "north.pem").read_bytes() == b"precious"


def test_a_certificate_that_does_not_match_is_not_installed(kits: Path, tmp_path: Path) -> None:
    north, came = kits / "north", tmp_path / "came.pem"
    ask(north)
    authority = Authority.load(kits / "authority")
    came.write_bytes(pem(authority.sign(request("south", "trial", new_key()))))
    with raises(CertificateError, reason="site"):
        install(north, came)
    came.write_bytes(pem(authority.sign(request("north", "trial", new_key()))))
    with raises(InvalidInput, file=str(came), parameter="key"):
        install(north, came)
    assert not (north / "site.pem").exists()


def test_a_plaintext_site_does_not_enrol(kits: Path) -> None:
    path = kits / "north" / "site.toml"
    path.write_text(path.read_text("utf-8") + "plaintext = true\n", encoding="utf-8")
    with raises(InvalidInput, file=str(path), parameter="plaintext", value=True):
        ask(kits / "north")
