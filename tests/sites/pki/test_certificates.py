"""Who is accepted and who is not: the authority, requests, certificates, keys, and lists of what is revoked."""

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

from deepca.errors import InvalidInput, NetworkError, Refused
from deepca.sites.config.network_file import NetworkFile, SiteEntry, write_network
from deepca.sites.config.site_file import SiteFile, read_site, write_site
from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import check_peer, pem, request, site_of, verify_signature
from deepca.sites.pki.identity import Identity
from deepca.sites.pki.keys import Key, fingerprint, load_key, new_key, pending, write_key
from deepca.sites.pki.revocation import load_list

NET = "hospitals"
NOW = datetime.now(UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", NET)


def signed(authority: Authority, site: str = "north", key: Key | None = None, **options: object) -> x509.Certificate:
    return authority.sign(request(site, NET, key or new_key()), **options)  # type: ignore[arg-type]


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def damaged(whole: bytes, signature: bytes) -> Iterator[bytes]:
    """Each byte with one of its bits flipped.

    Left out is the one byte that no signature covers: how many bits of the signature's last byte are unused.
    """
    rng = random.Random(0)
    for at in range(len(whole)):
        if at != len(whole) - len(signature) - 1:
            broken = bytearray(whole)
            broken[at] ^= 1 << rng.randrange(8)
            yield bytes(broken)


@pytest.fixture
def kit(tmp_path: Path, authority: Authority) -> SiteFile:
    """A site with everything in place."""
    folder = tmp_path / "north"
    network = NetworkFile(
        NET, (SiteEntry("north", "127.0.0.1:1"), SiteEntry("south", "127.0.0.1:2")), 2, topology_name="ring"
    )
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


def test_what_is_in_the_certificates(authority: Authority) -> None:
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


def test_it_is_kept_in_a_folder_for_its_owner(authority: Authority) -> None:
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
    with pytest.raises(InvalidInput, match=r"authority\.pem: there is an authority already"):
        Authority.create(authority.folder, NET)


def test_an_authority_that_is_not_whole(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such folder"):
        Authority.load(tmp_path / "nowhere")
    issued = authority.folder / "issued.json"
    for content in ("{", "[]", '{"issued": [{}]}', '{"issued": [1]}', "\xff"):
        issued.write_bytes(content.encode("latin-1"))
        with pytest.raises(InvalidInput, match="damaged; restore"):
            signed(authority)
    issued.unlink()
    with pytest.raises(InvalidInput, match="restore it from a copy"):
        signed(authority)
    write_key(authority.folder / "authority.key", new_key())
    with pytest.raises(InvalidInput, match="do not belong together"):
        Authority.load(authority.folder)


def test_a_key_is_signed_once(authority: Authority) -> None:
    key = new_key()
    signed(authority, key=key)
    for site in ("north", "south"):
        with pytest.raises(InvalidInput, match=r"signed before \(for north"):
            signed(Authority.load(authority.folder), site, key)
    with pytest.raises(InvalidInput, match="authority's own"):
        signed(authority, key=authority.key)
    assert len(authority.issued()) == 1


def test_nothing_issued_is_forgotten_when_two_sign_at_once(authority: Authority) -> None:
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


def _crooked(names: list[x509.GeneralName] | None, key: Key | rsa.RSAPrivateKey | None = None) -> Any:
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
    with pytest.raises(InvalidInput, match="does not name a site"):
        authority.sign(_crooked(names))
    assert authority.issued() == ()


def test_requests_that_are_not_signed(authority: Authority) -> None:
    with pytest.raises(InvalidInput, match="is for the network other"):
        authority.sign(request("north", "other", new_key()))
    names: list[x509.GeneralName] = [x509.DNSName("north"), x509.UniformResourceIdentifier(f"deepca:{NET}/north")]
    other = rsa.generate_private_key(65537, 2048)
    for key in (other, ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(InvalidInput, match="as deepca join does"):
            authority.sign(_crooked(names, key))
    honest = request("north", NET, new_key()).public_bytes(serialization.Encoding.DER)
    forged = x509.load_der_x509_csr(honest.replace(b"north", b"sarth"))
    with pytest.raises(InvalidInput, match="not signed with its own key"):
        authority.sign(forged)
    with pytest.raises(InvalidInput, match="0 days"):
        signed(authority, days=0)
    with pytest.raises(InvalidInput, match="authority itself ended"):
        signed(authority, now=NOW + timedelta(days=3651))
    assert authority.issued() == ()


def test_no_certificate_outlives_its_authority(authority: Authority) -> None:
    assert signed(authority, days=10**6).not_valid_after_utc == authority.certificate.not_valid_after_utc


# ------------------------------------------------------------------------------------------------------------ checking


def test_the_expected_site_is_accepted(authority: Authority) -> None:
    check_peer(der(signed(authority)), "north", NET, authority.certificate, None)


def test_who_is_refused_and_why(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", NET)
    foreign = Authority.create(tmp_path / "foreign", "elsewhere")
    good, twin = signed(authority), signed(authority)
    authority.revoke(f"{good.serial_number:x}")
    crl = load_list(authority.folder / "revoked.pem", authority.certificate)
    cases = [
        (der(signed(other)), "not signed by the authority of hospitals"),
        (der(foreign.sign(request("north", "elsewhere", new_key()))), "not signed by"),
        (der(signed(authority, now=NOW - timedelta(days=400))), "ended on"),
        (der(signed(authority, now=NOW + timedelta(days=1))), "not valid before"),
        (der(signed(authority, "south")), "is that of south"),
        (der(authority.certificate), "names no site"),
        (der(good), "was revoked"),
        (b"", "not a certificate"),
        (b"garbage", "not a certificate"),
        (pem(twin), "not a certificate"),
    ]
    for shown, why in cases:
        with pytest.raises(Refused, match=why) as error:
            check_peer(shown, "north", NET, authority.certificate, crl)
        assert isinstance(error.value, NetworkError)
        assert "north" in error.value.why
    with pytest.raises(Refused, match="network hospitals, not for elsewhere"):
        check_peer(der(twin), "north", "elsewhere", authority.certificate, crl)
    check_peer(der(twin), "north", NET, authority.certificate, crl)


def test_the_moments_at_which_a_certificate_begins_and_ends(authority: Authority) -> None:
    leaf = signed(authority, days=1)
    begin, end, second = leaf.not_valid_before_utc, leaf.not_valid_after_utc, timedelta(seconds=1)
    for moment in (begin, end):
        check_peer(der(leaf), "north", NET, authority.certificate, None, now=moment)
    for moment in (begin - second, end + second):
        with pytest.raises(Refused):
            check_peer(der(leaf), "north", NET, authority.certificate, None, now=moment)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_damaged_certificates_are_refused_and_nothing_else_happens(authority: Authority) -> None:
    certificate = signed(authority)
    whole = der(certificate)
    for broken in damaged(whole, certificate.signature):
        with pytest.raises(Refused):
            check_peer(broken, "north", NET, authority.certificate, None)
        assert verify_signature(broken, b"x", b"y") is False
    for at in range(len(whole)):
        with pytest.raises(Refused):
            check_peer(whole[:at], "north", NET, authority.certificate, None)


def test_signatures(authority: Authority, kit: SiteFile) -> None:
    me = Identity.load(kit)
    signature = me.sign(b"nonce")
    assert verify_signature(me.certificate_der, signature, b"nonce")
    assert me.verify_signature(me.certificate_der, signature, b"nonce")
    assert not verify_signature(me.certificate_der, signature, b"other")
    assert not verify_signature(me.certificate_der, signature[:-1], b"nonce")
    assert not verify_signature(der(signed(authority)), signature, b"nonce")
    assert not verify_signature(b"", signature, b"nonce")


def test_tls_takes_them(kit: SiteFile, authority: Authority, tmp_path: Path) -> None:
    """Both ways, by the name of the site, as OpenSSL checks them."""
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
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _handshake(client, server, "west")


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> str:
    """The DNS name that the server sees of the client."""
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


# ------------------------------------------------------------------------------------------------------------- revoked


def test_a_site_is_revoked_with_all_it_has(authority: Authority) -> None:
    first, second, other = signed(authority), signed(authority), signed(authority, "south")
    assert {one.serial for one in authority.revoke("north")} == {f"{c.serial_number:x}" for c in (first, second)}
    assert authority.revoke("north") == ()
    later = signed(authority)
    path = authority.folder / "revoked.pem"

    def out() -> list[bool]:
        crl = load_list(path, authority.certificate)
        assert crl is not None
        return [crl.revokes(certificate) for certificate in (first, second, other, later)]

    assert out() == [True, True, False, False]
    text = f"{other.serial_number:X}"
    authority.revoke(":".join(text[i : i + 2] for i in range(0, len(text), 2)) if len(text) % 2 == 0 else text)
    assert out() == [True, True, True, False]
    with pytest.raises(InvalidInput, match=r"'west'; there are some of north, south"):
        authority.revoke("west")


def test_a_list_that_cannot_be_trusted_is_an_error(authority: Authority, tmp_path: Path) -> None:
    assert load_list(tmp_path / "none.pem", authority.certificate) is None
    other = Authority.create(tmp_path / "other", NET)
    signed(other)
    other.revoke("north")
    with pytest.raises(InvalidInput, match="not of this network's authority"):
        load_list(other.folder / "revoked.pem", authority.certificate)
    signed(authority)
    authority.revoke("north")
    whole = load_list(authority.folder / "revoked.pem", authority.certificate)
    assert whole is not None
    path = tmp_path / "revoked.pem"
    signature = x509.load_der_x509_crl(whole.der).signature
    for broken in damaged(whole.der, signature):
        path.write_text(ssl.DER_cert_to_PEM_cert(broken).replace("CERTIFICATE", "X509 CRL"))
        with pytest.raises(InvalidInput):
            load_list(path, authority.certificate)
    path.write_bytes(b"")
    with pytest.raises(InvalidInput, match="damaged"):
        load_list(path, authority.certificate)


# ---------------------------------------------------------------------------------------------------------------- keys


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    key = new_key()
    write_key(path, key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert fingerprint(load_key(path)) == fingerprint(key)
    path.chmod(0o400)
    load_key(path)
    for mode in (0o640, 0o604, 0o660, 0o620, 0o601, 0o777):
        path.chmod(mode)
        with pytest.raises(InvalidInput, match=f"chmod 600 {path}"):
            load_key(path)


def test_what_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    with pytest.raises(InvalidInput, match="there is no key"):
        load_key(path)
    secret = serialization.BestAvailableEncryption(b"word")
    none = serialization.NoEncryption()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    cases: list[tuple[bytes, str]] = [
        (b"", "no key that can be read"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "no key that can be read"),
        (new_key().private_bytes(*form, secret), "has a passphrase"),
        (rsa.generate_private_key(65537, 2048).private_bytes(*form, none), "P-256"),
        (ec.generate_private_key(ec.SECP384R1()).private_bytes(*form, none), "P-256"),
    ]
    for content, said in cases:
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(InvalidInput, match=said):
            load_key(path)


# ------------------------------------------------------------------------------------------------------------ identity


def test_an_identity_has_all_that_an_agent_needs(kit: SiteFile, authority: Authority) -> None:
    me = Identity.load(kit)
    assert (me.site, me.network) == ("north", NET)
    assert me.authority == pem(authority.certificate)
    assert me.certificate == kit.certificate.read_bytes()
    assert me.key == kit.key.read_bytes()
    assert timedelta(days=364) < me.not_after - NOW < timedelta(days=366)
    me.check_peer(der(signed(authority, "south")), "south")
    with pytest.raises(Refused, match="is that of north"):
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
    ("spoil", "said"),
    [
        (_expired, r"site\.pem: .* ended on .* --renew"),
        (_early, r"site\.pem: .* not valid before"),
        (_named_south, r"site\.pem: .* is that of south"),
        (_of_another, r"site\.pem: .* not signed by the authority of hospitals"),
        (_revoked, r"site\.pem: .* was revoked"),
        (lambda kit, _: write_key(kit.key, new_key()), r"site\.key and .*site\.pem do not belong together"),
        (lambda kit, _: kit.key.unlink(), r"site\.key: there is no key"),
        (lambda kit, _: kit.key.chmod(0o644), "chmod 600"),
        (lambda kit, _: kit.certificate.unlink(), r"site\.pem: there is no such file; ask for one with deepca join"),
        (lambda kit, _: kit.certificate.write_bytes(b"x"), r"site\.pem: this is no certificate"),
        (lambda kit, _: kit.authority.unlink(), r"authority\.pem: there is no such file; it comes with the kit"),
        (lambda kit, _: kit.authority.write_bytes(b"x"), r"authority\.pem: this is no certificate"),
        (lambda kit, _: kit.revoked.write_bytes(b"x"), r"revoked\.pem: .* damaged"),
    ],
)
def test_each_fault_of_the_own_files_is_named(
    kit: SiteFile, authority: Authority, spoil: Callable[[SiteFile, Authority], object], said: str
) -> None:
    Identity.load(kit)
    spoil(kit, authority)
    with pytest.raises(InvalidInput, match=said):
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


def test_the_pending_key_counts_as_soon_as_its_certificate_is_there(kit: SiteFile, authority: Authority) -> None:
    key = new_key()
    write_key(pending(kit.key), key)
    before = Identity.load(kit)
    kit.certificate.write_bytes(pem(signed(authority, key=key)))
    between = Identity.load(kit)
    assert between.certificate_der != before.certificate_der
    assert verify_signature(between.certificate_der, between.sign(b"x"), b"x")
    pending(kit.key).replace(kit.key)
    assert Identity.load(kit).key == between.key


def test_files_that_are_replaced_while_they_are_read(
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


def test_an_authority_that_has_ended(kit: SiteFile, tmp_path: Path) -> None:
    old = Authority.create(tmp_path / "old", NET, now=NOW - timedelta(days=4000))
    kit.authority.write_bytes(pem(old.certificate))
    with pytest.raises(InvalidInput, match="the authority ended on"):
        Identity.load(kit)


def test_the_list_of_issued_certificates_can_be_read_by_people(authority: Authority) -> None:
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
