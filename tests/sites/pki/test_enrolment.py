"""Test enrolment: requests, signatures and installation, and the facts of their errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from deepca.errors import CertificateError, EnrolmentError, InvalidInput, ParameterError
from deepca.sites.admin.kits import make_kits
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import read_site
from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import build_request, load_request, pem
from deepca.sites.pki.enrolment import CertificateRequest, examine_request, install, request_certificate, sign_request
from deepca.sites.pki.identity import Identity
from deepca.sites.pki.keys import fingerprint, load_key, new_key
from tests.support.errors import raises

SITES = (SiteEntry("north", "127.0.0.1:1"), SiteEntry("south", "127.0.0.1:2"))


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    write_network(tmp_path / "network.toml", NetworkFile("trial", SITES, 2, topology_name="ring", privacy="open"))
    make_kits(tmp_path / "network.toml", tmp_path)
    return tmp_path


def sign(kits: Path, asked: CertificateRequest, **options: object) -> Path:
    """Sign a request as the operator of the authority, and return the file of the certificate."""
    authority = kits / "authority"
    return sign_request(asked.request, authority, expected=asked.fingerprint, **options).certificate  # type: ignore[arg-type]


def test_a_site_enrols_and_renews(kits: Path) -> None:
    north = kits / "north"
    asked = request_certificate(north)
    assert asked.fresh
    assert not request_certificate(north).fresh  # the key is used again
    assert not install(north, sign(kits, asked)).renewed
    with raises(InvalidInput, file=str(north / "site.pem"), parameter="certificate"):
        request_certificate(north)
    again = request_certificate(north, renew=True)
    with raises(EnrolmentError, reason="certificate exists", site="north", fingerprint=again.fingerprint):
        sign(kits, again)
    assert install(north, sign(kits, again, renew=True)).renewed


def test_a_request_with_another_fingerprint_is_not_signed(kits: Path) -> None:
    asked = request_certificate(kits / "north")
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
    file.write_bytes(pem(build_request("north", "other", new_key())))
    with raises(InvalidInput, file=str(file), parameter="network", value="other"):
        examine_request(file, authority)
    file.write_bytes(pem(build_request("nort", "trial", new_key())))
    with raises(InvalidInput, file=str(authority / "network.toml"), parameter="site", value="nort"):
        examine_request(file, authority)
    key = new_key()
    file.write_bytes(pem(build_request("north", "trial", key)))
    with raises(ParameterError, file=str(file), parameter="days", value=0):
        sign_request(file, authority, expected=fingerprint(key), days=0)
    (tmp_path / "north.pem").write_bytes(b"precious")
    with raises(InvalidInput, file=str(tmp_path / "north.pem"), value="north"):
        sign_request(file, authority, expected=fingerprint(key))
    assert (tmp_path / "north.pem").read_bytes() == b"precious"


def test_a_certificate_that_does_not_match_is_not_installed(kits: Path, tmp_path: Path) -> None:
    north, came = kits / "north", tmp_path / "came.pem"
    request_certificate(north)
    authority = Authority.load(kits / "authority")
    came.write_bytes(pem(authority.sign(build_request("south", "trial", new_key()))))
    with raises(CertificateError, reason="site"):
        install(north, came)
    came.write_bytes(pem(authority.sign(build_request("north", "trial", new_key()))))
    with raises(InvalidInput, file=str(came), parameter="key"):
        install(north, came)
    assert not (north / "site.pem").exists()


@pytest.mark.parametrize("enrolled", [False, True])
def test_a_site_whose_new_certificate_has_expired_can_request_another_as_the_error_says(
    kits: Path, enrolled: bool
) -> None:
    """The authority signs no key twice, so the key of the expired certificate has to be replaced."""
    north, authority = kits / "north", kits / "authority"
    if enrolled:
        install(north, sign(kits, request_certificate(north)))
    asked, file = request_certificate(north, renew=enrolled), kits / "expired.pem"
    csr, before = load_request(asked.request), datetime.now(UTC) - timedelta(days=9)
    file.write_bytes(pem(Authority.load(authority).sign(csr, 1, now=before)))
    with raises(CertificateError, reason="expired") as caught:
        install(north, file)
    assert "--renew" in str(caught.value)
    assert (str(asked.key) in str(caught.value)) == enrolled
    if enrolled:
        asked.key.unlink()
    another = request_certificate(north, renew=True)
    assert another.fresh
    assert install(north, sign(kits, another, renew=True)).renewed


def test_a_site_that_lost_its_key_can_renew(kits: Path) -> None:
    north = kits / "north"
    asked = request_certificate(north)
    install(north, sign(kits, asked))
    asked.key.unlink()
    with raises(InvalidInput, file=str(asked.key), parameter="key") as caught:
        Identity.load(read_site(north))
    assert "--renew" in str(caught.value)
    assert install(north, sign(kits, request_certificate(north, renew=True), renew=True)).renewed
    assert Identity.load(read_site(north)).site == "north"


def test_a_renewal_after_an_interrupted_installation_creates_another_key(kits: Path) -> None:
    north = kits / "north"
    install(north, sign(kits, request_certificate(north)))
    asked = request_certificate(north, renew=True)
    content = sign(kits, asked, renew=True).read_bytes()
    (north / "site.pem").write_bytes(content[: content.index(b"-----BEGIN X509 CRL-----")])  # the key is still pending
    another = request_certificate(north, renew=True)
    assert another.fresh
    assert another.fingerprint != asked.fingerprint
    assert Identity.load(read_site(north)).site == "north"
    assert fingerprint(load_key(north / "site.key")) == asked.fingerprint


def test_a_plaintext_site_does_not_enrol(kits: Path) -> None:
    path = kits / "north" / "site.toml"
    path.write_text(path.read_text("utf-8") + "plaintext = true\n", encoding="utf-8")
    with raises(InvalidInput, file=str(path), parameter="plaintext", value=True):
        request_certificate(kits / "north")
