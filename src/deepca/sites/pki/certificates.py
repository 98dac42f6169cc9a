"""Requests and certificates of sites, and what is checked before anybody is listened to.

A certificate names its site twice: as a DNS name, which TLS checks, and as ``deepca:<network>/<site>``. Keys are made
at the site and stay there; the authority (:mod:`deepca.sites.pki.authority`) sees requests only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deepca.errors import InvalidInput, Refused
from deepca.sites.config.addresses import is_network_name, is_site_name
from deepca.sites.pki.keys import UNREADABLE, Key, public_key
from deepca.sites.pki.revocation import RevocationList

__all__ = [
    "SKEW",
    "alternatives",
    "check_certificate",
    "check_peer",
    "day",
    "key_usage",
    "load_certificate",
    "load_request",
    "now_utc",
    "parse_certificate",
    "pem",
    "read_content",
    "request",
    "site_of",
    "subject",
    "verify_signature",
]

SKEW = timedelta(minutes=5)
"""By so much the clocks of sites may differ."""
_PREFIX = "deepca:"
_BROKEN_NAMES = (*UNREADABLE, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


# -------------------------------------------------------------------------------------------- requests and certificates


def request(site: str, network: str, key: Key) -> x509.CertificateSigningRequest:
    """What a site hands to the authority; proves that it has the key, and does not contain it."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject(site, network))
    return builder.add_extension(alternatives(site, network), critical=False).sign(key, hashes.SHA256())


def site_of(named: x509.Certificate | x509.CertificateSigningRequest) -> tuple[str, str]:
    """Network and site that a certificate or request names; a ValueError if it does not, or not clearly."""
    try:
        names = named.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        hosts = names.get_values_for_type(x509.DNSName)
    except _BROKEN_NAMES:
        raise ValueError("it names no site") from None
    if len(uris) != 1 or len(hosts) != 1 or len(names) != 2 or not uris[0].startswith(_PREFIX):
        raise ValueError("it names no site")
    network, _, site = uris[0].removeprefix(_PREFIX).partition("/")
    if not is_network_name(network) or not is_site_name(site) or hosts[0] != site:
        raise ValueError("it names no site")
    return network, site


def pem(of: x509.Certificate | x509.CertificateSigningRequest | x509.CertificateRevocationList) -> bytes:
    """As it is written to a file."""
    return of.public_bytes(serialization.Encoding.PEM)


def load_certificate(path: Path, *, hint: str = "") -> x509.Certificate:
    """The first certificate of a PEM file. ``hint`` : what to do if there is no such file."""
    return parse_certificate(read_content(path, hint), path)


def load_request(path: Path) -> x509.CertificateSigningRequest:
    """A request for a certificate, from a PEM file."""
    content = read_content(path)
    try:
        return x509.load_pem_x509_csr(content)
    except UNREADABLE:
        raise InvalidInput(f"{path}: this is no request for a certificate, or it is damaged") from None


def parse_certificate(content: bytes, path: Path) -> x509.Certificate:
    """Return the first certificate of a PEM file's content."""
    try:
        return x509.load_pem_x509_certificates(content)[0]
    except UNREADABLE:
        raise InvalidInput(f"{path}: this is no certificate, or it is damaged") from None


def read_content(path: Path, hint: str = "") -> bytes:
    """Read a file; an InvalidInput if that does not work. ``hint`` : what to do if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file" + (f"; {hint}" if hint else "")) from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None


def subject(name: str, network: str) -> x509.Name:
    """Build the name of a certificate's owner."""
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, network), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def alternatives(site: str, network: str) -> x509.SubjectAlternativeName:
    """Build the two names of a site: for TLS, and with its network."""
    uri = x509.UniformResourceIdentifier(f"{_PREFIX}{network}/{site}")
    return x509.SubjectAlternativeName([x509.DNSName(site), uri])


def key_usage(*, authority: bool) -> x509.KeyUsage:
    """Say what a key is for: signing certificates and lists, or taking part."""
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def now_utc() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def day(moment: datetime) -> str:
    """Format a moment for messages."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


# ------------------------------------------------------------------------------------------------------------ checking


def check_peer(
    certificate_der: bytes,
    expected_site: str,
    network: str,
    authority: x509.Certificate,
    revocations: RevocationList | None,
    *,
    now: datetime | None = None,
) -> None:
    """Raise :class:`Refused` unless this is a valid certificate of the expected site of this network."""
    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
    except UNREADABLE:
        raise Refused(f"what was shown for {expected_site} is not a certificate", reason="unreadable") from None
    check_certificate(certificate, expected_site, network, authority, revocations, now or now_utc())


def check_certificate(
    certificate: x509.Certificate,
    expected_site: str,
    network: str,
    authority: x509.Certificate,
    revocations: RevocationList | None,
    now: datetime,
) -> None:
    """Raise :class:`Refused` unless a certificate is valid now, that of the expected site, and not revoked."""
    shown = f"the certificate shown for {expected_site}"
    try:
        certificate.verify_directly_issued_by(authority)
        public_key(certificate)
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except (*UNREADABLE, InvalidSignature):
        raise Refused(f"{shown} is not signed by the authority of {network}", reason="issuer") from None
    if now > end:
        raise Refused(f"{shown} ended on {day(end)}; it is {day(now)} here", reason="expired")
    if now < begin:
        why = f"{shown} is not valid before {day(begin)}; it is {day(now)} here, if this clock is right"
        raise Refused(why, reason="early")
    try:
        its_network, its_site = site_of(certificate)
    except ValueError:
        raise Refused(f"{shown} names no site", reason="nameless") from None
    if its_network != network:
        raise Refused(f"{shown} is for the network {its_network}, not for {network}", reason="network")
    if its_site != expected_site:
        raise Refused(f"{shown} is that of {its_site}", reason="site")
    if revocations is None:
        return
    if revocations.revokes(certificate):
        why = f"{shown} was revoked by the authority of {network} (list {revocations.number})"
        raise Refused(why, reason="revoked")
    if revocations.expired(now):
        raise Refused(
            f"nobody can tell whether {shown} was revoked: list {revocations.number} of revoked certificates here "
            f"expired on {day(revocations.ends)}; whoever keeps the authority signs the next (deepca join --reissue)",
            reason="list expired",
        )


def verify_signature(certificate_der: bytes, signature: bytes, data: bytes) -> bool:
    """Tell whether the owner of the certificate's key has signed this; ECDSA with SHA-256."""
    try:
        public = public_key(x509.load_der_x509_certificate(certificate_der))
        public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except (*UNREADABLE, InvalidSignature):
        return False
    return True
