"""Test the authority, requests, certificates, keys and revocation lists: what is accepted, and why others are not."""

from __future__ import annotations

import json
import random
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deepca.errors import (
    CertificateError,
    EnrolmentError,
    InvalidInput,
    NetworkError,
    ParameterError,
    Refused,
    RevocationListError,
)
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import SiteFile, read_site, write_site
from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import build_request, check_peer, pem, site_of, verify_signature
from deepca.sites.pki.identity import Identity
from deepca.sites.pki.keys import Key, fingerprint, load_key, new_key, pending_key_path, write_key
from deepca.sites.pki.revocation import load_revocation_list
from tests.support.errors import raises

NET = "hospitals"
NOW = datetime.now(UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", NET)


def signed(authority: Authority, site: str = "north", key: Key | None = None, **options: object) -> x509.Certificate:
    return authority.sign(build_request(site, NET, key or new_key()), **options)  # type: ignore[arg-type]


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def damaged(whole: bytes, signature: bytes) -> Iterator[bytes]:
    """Yield a copy for each byte, with one bit of that byte flipped.

    One byte is skipped, which no signature covers: the number of unused bits in the last byte of the signature.
    """
    rng = random.Random(0)
    for at in range(len(whole)):
        if at != len(whole) - len(signature) - 1:
            broken = bytearray(whole)
            broken[at] ^= 1 << rng.randrange(8)
            yield bytes(broken)


@pytest.fixture
def kit(tmp_path: Path, authority: Authority) -> SiteFile:
    """Return a site with all files in place."""
    folder = tmp_path / "north"
    sites = (SiteEntry("north", "127.0.0.1:1"), SiteEntry("south", "127.0.0.1:2"))
    network = NetworkFile(NET, sites, 2, topology_name="ring", privacy="open")
    write_network(folder / "network.toml", network)
    write_site(folder / "site.toml", "north", "rows.csv")
    (folder / "authority.pem").write_bytes(pem(authority.certificate))
    place(folder, authority)
    return read_site(folder)


def place(folder: Path, authority: Authority, site: str = "north", **options: object) -> Key:
    key = new_key()
    (folder / "site.pem").write_bytes(pem(signed(authority, site, key, **options)))
    write_key(folder / "site.key", key)
    return key


# ----------------------------------------------------------------------------------------------------------- authority


def test_certificates_have_the_expected_extensions_and_validity(authority: Authority) -> None:
    own = authority.certificate
    constraints = own.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = own.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature) == (True, True, False)
    assert timedelta(days=3649) < own.not_valid_after_utc - NOW < timedelta(days=3651)
    assert authority.network == NET

    key = new_key()
    leaf = signed(authority, key=key)
    public = leaf.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert public.curve.name == "secp256r1"
    assert fingerprint(leaf) == fingerprint(key)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["north"]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"deepca:{NET}/north"]
    assert site_of(leaf) == (NET, "north")
    purposes = set(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert purposes == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert timedelta(days=364) < leaf.not_valid_after_utc - NOW < timedelta(days=366)
    assert timedelta(minutes=-6) < leaf.not_valid_before_utc - datetime.now(UTC) < timedelta(minutes=-4)


def test_an_authority_is_a_folder_that_only_its_owner_can_read(authority: Authority) -> None:
    assert sorted(file.name for file in authority.folder.iterdir()) == [
        "authority.key",
        "authority.pem",
        "issued.json",
        "ledger.jsonl",
        "revoked.pem",
    ]
    assert stat.S_IMODE((authority.folder / "authority.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(authority.folder.stat().st_mode) == 0o700
    again = Authority.load(authority.folder)
    check_peer(der(signed(again)), "north", NET, authority.certificate, None)
    assert "PRIVATE" not in repr(authority)
    with raises(InvalidInput, file=str(authority.folder / "authority.pem")):
        Authority.create(authority.folder, NET)


def test_an_incomplete_or_damaged_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    with raises(InvalidInput, file=str(tmp_path / "nowhere")):
        Authority.load(tmp_path / "nowhere")
    issued = authority.folder / "issued.json"
    for content in ("{", "[]", '{"issued": [{}]}', '{"issued": [1]}', "\xff"):
        issued.write_bytes(content.encode("latin-1"))
        with raises(InvalidInput, file=str(issued), parameter="issued"):
            signed(authority)
    issued.unlink()
    with raises(InvalidInput, file=str(issued), parameter=None):
        signed(authority)
    write_key(authority.folder / "authority.key", new_key())
    with raises(InvalidInput, file=str(authority.folder)):
        Authority.load(authority.folder)


def test_a_certificate_without_a_network_is_not_an_authority(authority: Authority) -> None:
    name, path = x509.Name([]), authority.folder / "authority.pem"
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(authority.key.public_key())
    builder = builder.serial_number(1).not_valid_before(NOW).not_valid_after(NOW + timedelta(days=1))
    path.write_bytes(pem(builder.sign(authority.key, hashes.SHA256())))
    with raises(InvalidInput, file=str(path), parameter="authority"):
        Authority.load(authority.folder)


def test_a_key_is_signed_once(authority: Authority) -> None:
    key = new_key()
    signed(authority, key=key)
    for site in ("north", "south"):
        with raises(InvalidInput, parameter="key", value=fingerprint(key)):
            signed(Authority.load(authority.folder), site, key)
    with raises(InvalidInput, parameter="key", value=fingerprint(authority.key)):
        signed(authority, key=authority.key)
    assert len(authority.issued()) == 1


def test_concurrent_signing_loses_no_record(authority: Authority) -> None:
    def work(site: str) -> None:
        for _ in range(5):
            signed(Authority.load(authority.folder), site)

    threads = [threading.Thread(target=work, args=(f"s{j}",)) for j in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.site for one in authority.issued()) == sorted(f"s{j}" for j in range(4) for _ in range(5))
    assert len({one.serial for one in authority.issued()}) == 20


def _request_with(names: list[x509.GeneralName] | None, key: Key | rsa.RSAPrivateKey | None = None) -> Any:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")])
    )
    if names is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key or new_key(), hashes.SHA256())


@pytest.mark.parametrize(
    "names",
    [
        None,
        [x509.DNSName("north")],
        [x509.DNSName("south"), x509.UniformResourceIdentifier(f"deepca:{NET}/north")],
        [x509.DNSName("north"), x509.DNSName("south"), x509.UniformResourceIdentifier(f"deepca:{NET}/north")],
        [x509.DNSName("north"), x509.UniformResourceIdentifier(f"other:{NET}/north")],
        [x509.DNSName("north"), x509.UniformResourceIdentifier(f"deepca:{NET}")],
        [x509.DNSName("*"), x509.UniformResourceIdentifier(f"deepca:{NET}/*")],
        [x509.DNSName("north/x"), x509.UniformResourceIdentifier(f"deepca:{NET}/north/x")],
    ],
)
def test_a_request_must_name_its_site(authority: Authority, names: list[x509.GeneralName] | None) -> None:
    with raises(InvalidInput, parameter="request"):
        authority.sign(_request_with(names))
    assert authority.issued() == ()


def test_a_request_that_cannot_be_signed_is_refused_with_the_reason(authority: Authority) -> None:
    with raises(InvalidInput, parameter="network", value="other"):
        authority.sign(build_request("north", "other", new_key()))
    names: list[x509.GeneralName] = [x509.DNSName("north"), x509.UniformResourceIdentifier(f"deepca:{NET}/north")]
    other = rsa.generate_private_key(65537, 2048)
    for key in (other, ec.generate_private_key(ec.SECP384R1())):
        with raises(InvalidInput, parameter="request"):
            authority.sign(_request_with(names, key))
    honest = build_request("north", NET, new_key()).public_bytes(serialization.Encoding.DER)
    forged = x509.load_der_x509_csr(honest.replace(b"north", b"sarth"))
    with raises(InvalidInput, parameter="signature"):
        authority.sign(forged)
    with raises(ParameterError, parameter="days", value=0):
        signed(authority, days=0)
    with raises(InvalidInput, file=str(authority.folder / "authority.pem")):
        signed(authority, now=NOW + timedelta(days=3651))
    assert authority.issued() == ()


def test_no_certificate_outlives_its_authority(authority: Authority) -> None:
    assert signed(authority, days=10**6).not_valid_after_utc == authority.certificate.not_valid_after_utc


# ------------------------------------------------------------------------------------------------------------ checking


def test_the_expected_site_is_accepted(authority: Authority) -> None:
    check_peer(der(signed(authority)), "north", NET, authority.certificate, None)


def test_a_certificate_is_refused_with_the_reason(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", NET)
    foreign = Authority.create(tmp_path / "foreign", "elsewhere")
    good, twin = signed(authority), signed(authority)
    authority.revoke(f"{good.serial_number:x}")
    crl = load_revocation_list(authority.folder / "revoked.pem", authority.certificate)
    cases = [
        (der(signed(other)), "issuer"),
        (der(foreign.sign(build_request("north", "elsewhere", new_key()))), "issuer"),
        (der(signed(authority, now=NOW - timedelta(days=400))), "expired"),
        (der(signed(authority, now=NOW + timedelta(days=1))), "early"),
        (der(signed(authority, "south")), "site"),
        (der(authority.certificate), "nameless"),
        (der(good), "revoked"),
        (b"", "unreadable"),
        (b"garbage", "unreadable"),
        (pem(twin), "unreadable"),
    ]
    for presented, reason in cases:
        with raises(Refused, reason=reason) as error:
            check_peer(presented, "north", NET, authority.certificate, crl)
        assert isinstance(error.value, NetworkError)
        assert "north" in error.value.why
    with raises(Refused, reason="network"):
        check_peer(der(twin), "north", "elsewhere", authority.certificate, crl)
    check_peer(der(twin), "north", NET, authority.certificate, crl)


def test_a_certificate_is_valid_from_its_first_to_its_last_second(authority: Authority) -> None:
    leaf = signed(authority, days=1)
    begin, end, second = leaf.not_valid_before_utc, leaf.not_valid_after_utc, timedelta(seconds=1)
    for moment in (begin, end):
        check_peer(der(leaf), "north", NET, authority.certificate, None, now=moment)
    for moment, reason in ((begin - second, "early"), (end + second, "expired")):
        with raises(Refused, reason=reason):
            check_peer(der(leaf), "north", NET, authority.certificate, None, now=moment)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_damaged_certificates_are_refused_without_other_errors(authority: Authority) -> None:
    certificate = signed(authority)
    whole = der(certificate)
    for broken in damaged(whole, certificate.signature):
        with pytest.raises(Refused):
            check_peer(broken, "north", NET, authority.certificate, None)
        assert verify_signature(broken, b"x", b"y") is False
    for at in range(len(whole)):
        with pytest.raises(Refused):
            check_peer(whole[:at], "north", NET, authority.certificate, None)


def test_a_signature_is_valid_for_its_certificate_and_data_only(authority: Authority, kit: SiteFile) -> None:
    me = Identity.load(kit)
    signature = me.sign(b"nonce")
    assert verify_signature(me.certificate_der, signature, b"nonce")
    assert me.verify_signature(me.certificate_der, signature, b"nonce")
    assert not verify_signature(me.certificate_der, signature, b"other")
    assert not verify_signature(me.certificate_der, signature[:-1], b"nonce")
    assert not verify_signature(der(signed(authority)), signature, b"nonce")
    assert not verify_signature(b"", signature, b"nonce")


def test_openssl_accepts_the_certificates(kit: SiteFile, authority: Authority, tmp_path: Path) -> None:
    """Client and server check the name of each other's site."""
    south = tmp_path / "south"
    south.mkdir()
    place(south, authority, "south")
    server, client = (ssl.SSLContext(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    for context, folder in ((server, kit.folder), (client, south)):
        context.load_cert_chain(folder / "site.pem", folder / "site.key")
        context.load_verify_locations(kit.authority)
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert _handshake(client, server, "north") == "south"
    with raises(ssl.SSLCertVerificationError, verify_code=62):  # X509_V_ERR_HOSTNAME_MISMATCH
        _handshake(client, server, "west")


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> str:
    """Return the DNS name of the client that the server sees."""
    ways = [ssl.MemoryBIO() for _ in range(2)]
    ends = [
        client.wrap_bio(ways[0], ways[1], server_hostname=name),
        server.wrap_bio(ways[1], ways[0], server_side=True),
    ]
    left = list(ends)
    for _ in range(10):
        for end in tuple(left):
            try:
                end.do_handshake()
                left.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not left
    seen = ends[1].getpeercert()
    assert seen is not None
    return str(dict(seen["subjectAltName"])["DNS"])  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- revocation


def test_revoking_a_site_revokes_all_its_certificates(authority: Authority) -> None:
    first, second, other = signed(authority), signed(authority), signed(authority, "south")
    assert {one.serial for one in authority.revoke("north")} == {f"{c.serial_number:x}" for c in (first, second)}
    assert authority.revoke("north") == ()
    later = signed(authority)
    path = authority.folder / "revoked.pem"

    def revoked() -> list[bool]:
        crl = load_revocation_list(path, authority.certificate)
        assert crl is not None
        return [crl.revokes(certificate) for certificate in (first, second, other, later)]

    assert revoked() == [True, True, False, False]
    text = f"{other.serial_number:X}"
    authority.revoke(":".join(text[i : i + 2] for i in range(0, len(text), 2)) if len(text) % 2 == 0 else text)
    assert revoked() == [True, True, True, False]
    with raises(InvalidInput, parameter="revoke", value="west"):
        authority.revoke("west")


def test_a_list_that_cannot_be_trusted_is_refused(authority: Authority, tmp_path: Path) -> None:
    assert load_revocation_list(tmp_path / "none.pem", authority.certificate) is None
    other = Authority.create(tmp_path / "other", NET)
    signed(other)
    other.revoke("north")
    with raises(RevocationListError, reason="foreign", path=str(other.folder / "revoked.pem")):
        load_revocation_list(other.folder / "revoked.pem", authority.certificate)
    signed(authority)
    authority.revoke("north")
    whole = load_revocation_list(authority.folder / "revoked.pem", authority.certificate)
    assert whole is not None
    path = tmp_path / "revoked.pem"
    signature = x509.load_der_x509_crl(whole.der).signature
    for broken in damaged(whole.der, signature):
        path.write_text(ssl.DER_cert_to_PEM_cert(broken).replace("CERTIFICATE", "X509 CRL"))
        with pytest.raises(RevocationListError):
            load_revocation_list(path, authority.certificate)
    path.write_bytes(b"")
    with raises(RevocationListError, reason="unreadable", path=str(path)):
        load_revocation_list(path, authority.certificate)


# ---------------------------------------------------------------------------------------------------------------- keys


def test_a_key_that_others_can_access_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    key = new_key()
    write_key(path, key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert fingerprint(load_key(path)) == fingerprint(key)
    path.chmod(0o400)
    load_key(path)
    for mode in (0o640, 0o604, 0o660, 0o620, 0o601, 0o777):
        path.chmod(mode)
        with raises(InvalidInput, file=str(path), parameter="key", value=mode) as error:
            load_key(path)
        assert f"chmod 600 {path}" in str(error.value)


def test_a_file_that_is_not_a_usable_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    with raises(InvalidInput, file=str(path), parameter="key"):
        load_key(path)
    secret = serialization.BestAvailableEncryption(b"word")
    none = serialization.NoEncryption()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)

    def put(content: bytes) -> None:
        path.write_bytes(content)
        path.chmod(0o600)

    for content in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        put(content)
        with pytest.raises(InvalidInput, match="not a private key"):
            load_key(path)
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        put(key.private_bytes(*form, none))
        with pytest.raises(InvalidInput, match="P-256"):
            load_key(path)
    put(new_key().private_bytes(*form, secret))
    for passphrase in (None, b"another"):
        with raises(EnrolmentError, reason="passphrase"):
            load_key(path, passphrase)
    load_key(path, b"word")


# ------------------------------------------------------------------------------------------------------------ identity


def test_an_identity_has_everything_that_an_agent_needs(kit: SiteFile, authority: Authority) -> None:
    me = Identity.load(kit)
    assert (me.site, me.network) == ("north", NET)
    assert me.authority == pem(authority.certificate)
    assert me.certificate == kit.certificate.read_bytes()
    assert me.key == kit.key.read_bytes()
    assert timedelta(days=364) < me.not_after - NOW < timedelta(days=366)
    me.check_peer(der(signed(authority, "south")), "south")
    with raises(Refused, reason="site"):
        me.check_peer(me.certificate_der, "south")
    assert "PRIVATE" not in repr(me)
    assert str(me.key) not in repr(me)


def _expired(kit: SiteFile, authority: Authority) -> None:
    place(kit.folder, authority, now=NOW - timedelta(days=400))


def _early(kit: SiteFile, authority: Authority) -> None:
    place(kit.folder, authority, now=NOW + timedelta(days=2))


def _named_south(kit: SiteFile, authority: Authority) -> None:
    place(kit.folder, authority, "south")


def _of_another(kit: SiteFile, authority: Authority) -> None:
    place(kit.folder, Authority.create(kit.folder / "x", NET))


def _revoked(kit: SiteFile, authority: Authority) -> None:
    authority.revoke("north")
    kit.revoked.write_bytes((authority.folder / "revoked.pem").read_bytes())


@pytest.mark.parametrize(
    ("damage", "kind", "facts"),
    [
        (_expired, CertificateError, {"reason": "expired"}),
        (_early, CertificateError, {"reason": "early"}),
        (_named_south, CertificateError, {"reason": "site"}),
        (_of_another, CertificateError, {"reason": "issuer"}),
        (_revoked, CertificateError, {"reason": "revoked"}),
        (lambda kit, _: write_key(kit.key, new_key()), InvalidInput, {"file": "site.key", "value": "site.pem"}),
        (lambda kit, _: kit.key.unlink(), InvalidInput, {"file": "site.key", "value": None}),
        (lambda kit, _: kit.key.chmod(0o644), InvalidInput, {"file": "site.key", "value": 0o644}),
        (lambda kit, _: kit.certificate.unlink(), InvalidInput, {"file": "site.pem", "parameter": None}),
        (
            lambda kit, _: kit.certificate.write_bytes(b"x"),
            InvalidInput,
            {"file": "site.pem", "parameter": "certificate"},
        ),
        (lambda kit, _: kit.authority.unlink(), InvalidInput, {"file": "authority.pem", "parameter": None}),
        (
            lambda kit, _: kit.authority.write_bytes(b"x"),
            InvalidInput,
            {"file": "authority.pem", "parameter": "certificate"},
        ),
        (lambda kit, _: kit.revoked.write_bytes(b"x"), RevocationListError, {"reason": "unreadable"}),
    ],
)
def test_each_fault_of_a_sites_own_files_is_reported(
    kit: SiteFile,
    authority: Authority,
    damage: Callable[[SiteFile, Authority], object],
    kind: type[InvalidInput],
    facts: dict[str, object],
) -> None:
    Identity.load(kit)
    damage(kit, authority)
    paths = {path.name: str(path) for path in (kit.key, kit.certificate, kit.authority)}
    with raises(kind, **{name: paths.get(str(fact), fact) for name, fact in facts.items()}):
        Identity.load(kit)


def test_replaced_files_are_noticed(kit: SiteFile, authority: Authority) -> None:
    me = Identity.load(kit)
    assert not me.changed()
    place(kit.folder, authority)
    assert me.changed()
    again = me.reload()
    assert not again.changed()
    assert again.certificate_der != me.certificate_der
    signed(authority, "south")
    authority.revoke("south")
    kit.revoked.write_bytes((authority.folder / "revoked.pem").read_bytes())
    assert again.changed()


def test_the_pending_key_is_used_as_soon_as_its_certificate_is_installed(kit: SiteFile, authority: Authority) -> None:
    key = new_key()
    write_key(pending_key_path(kit.key), key)
    before = Identity.load(kit)
    kit.certificate.write_bytes(pem(signed(authority, key=key)))
    between = Identity.load(kit)
    assert between.certificate_der != before.certificate_der
    assert verify_signature(between.certificate_der, between.sign(b"x"), b"x")
    pending_key_path(kit.key).replace(kit.key)
    assert Identity.load(kit).key == between.key


def test_files_that_are_replaced_while_they_are_read_are_read_again(
    kit: SiteFile, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old certificate is read, then both files are replaced, then the new key is read."""
    times: list[Path] = []

    def late(path: Path) -> Key:
        if not times:
            place(kit.folder, authority)
        times.append(path)
        return load_key(path)

    monkeypatch.setattr("deepca.sites.pki.identity.load_key", late)
    me = Identity.load(kit)
    assert verify_signature(me.certificate_der, me.sign(b"x"), b"x")
    assert len(times) == 2
    assert me.certificate == kit.certificate.read_bytes()


def test_an_expired_authority_is_refused(kit: SiteFile, tmp_path: Path) -> None:
    old = Authority.create(tmp_path / "old", NET, now=NOW - timedelta(days=4000))
    kit.authority.write_bytes(pem(old.certificate))
    with raises(InvalidInput, file=str(kit.authority), value=old.certificate.not_valid_after_utc):
        Identity.load(kit)


def test_the_record_of_issued_certificates_is_readable_json(authority: Authority) -> None:
    leaf = signed(authority)
    (entry,) = json.loads((authority.folder / "issued.json").read_text())["issued"]
    assert entry == {
        "serial": f"{leaf.serial_number:x}",
        "site": "north",
        "key": fingerprint(leaf),
        "not_before": leaf.not_valid_before_utc.isoformat(),
        "not_after": leaf.not_valid_after_utc.isoformat(),
        "revoked": None,
    }
