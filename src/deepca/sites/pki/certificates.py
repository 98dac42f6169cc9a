"""Read and check the certificates of sites, and build and read the requests for them.

A certificate names its site twice: as a DNS name, which TLS checks, and as ``deepca:<network>/<site>``. Keys are
created at the site and stay there; the authority (:mod:`deepca.sites.pki.authority`) only sees requests.
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
from deepca.sites.pki.keys import PARSE_ERRORS, Key, public_key
from deepca.sites.pki.revocation import RevocationList

__all__ = [
    "CLOCK_TOLERANCE",
    "alternative_names",
    "build_request",
    "check_certificate",
    "check_peer",
    "describe_refusal",
    "format_time",
    "key_usage",
    "load_certificate",
    "load_request",
    "now_utc",
    "parse_certificate",
    "pem",
    "read_content",
    "site_of",
    "subject_name",
    "verify_signature",
]

CLOCK_TOLERANCE = timedelta(minutes=5)
"""Tolerated clock difference: certificates become valid this long before they are signed."""
_URI_PREFIX = "deepca:"
_NAME_ERRORS = (*PARSE_ERRORS, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


# -------------------------------------------------------------------------------------------- requests and certificates


def build_request(site: str, network: str, key: Key) -> x509.CertificateSigningRequest:
    """Build a site's certificate request, which proves possession of the key without containing it."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_name(site, network))
    return builder.add_extension(alternative_names(site, network), critical=False).sign(key, hashes.SHA256())


def site_of(named: x509.Certificate | x509.CertificateSigningRequest) -> tuple[str, str]:
    """Return the network and site that a certificate or request names; raise ValueError unless it names exactly one."""
    try:
        names = named.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        hosts = names.get_values_for_type(x509.DNSName)
    except _NAME_ERRORS:
        raise ValueError("the alternative names are missing or malformed") from None
    if len(uris) != 1 or len(hosts) != 1 or len(names) != 2 or not uris[0].startswith(_URI_PREFIX):
        raise ValueError("the alternative names are not those of exactly one site")
    network, _, site = uris[0].removeprefix(_URI_PREFIX).partition("/")
    if not is_network_name(network) or not is_site_name(site) or hosts[0] != site:
        raise ValueError("the names of the site or its network are invalid or differ")
    return network, site


def pem(of: x509.Certificate | x509.CertificateSigningRequest | x509.CertificateRevocationList) -> bytes:
    """Encode as PEM, the format of files."""
    return of.public_bytes(serialization.Encoding.PEM)


def load_certificate(path: Path, *, hint: str = "") -> x509.Certificate:
    """Load the first certificate of a PEM file; ``hint`` says what to do if it is missing."""
    return parse_certificate(read_content(path, hint), path)


def load_request(path: Path) -> x509.CertificateSigningRequest:
    """Load a certificate request from a PEM file."""
    content = read_content(path)
    try:
        return x509.load_pem_x509_csr(content)
    except PARSE_ERRORS:
        raise InvalidInput(
            f"{path}: this is not a certificate request, or it is damaged; ask the site for request.csr again",
            file=str(path),
            parameter="request",
        ) from None


def parse_certificate(content: bytes, path: Path) -> x509.Certificate:
    """Parse the first certificate of a PEM file's content; ``path`` is for messages."""
    try:
        return x509.load_pem_x509_certificates(content)[0]
    except PARSE_ERRORS:
        raise InvalidInput(
            f"{path}: this is not a certificate, or it is damaged; restore it from a backup, or ask the operator of "
            "the authority for it again",
            file=str(path),
            parameter="certificate",
        ) from None


def read_content(path: Path, hint: str = "") -> bytes:
    """Read a file, or raise InvalidInput; ``hint`` says what to do if it is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(f"{path}: file not found; {hint or 'check the path'}", file=str(path)) from None
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read ({error.strerror}); check its permissions", file=str(path)
        ) from None


def subject_name(name: str, network: str) -> x509.Name:
    """Build the subject name of a certificate or request."""
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, network), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def alternative_names(site: str, network: str) -> x509.SubjectAlternativeName:
    """Build the two alternative names of a site: the DNS name for TLS, and the URI with its network."""
    uri = x509.UniformResourceIdentifier(f"{_URI_PREFIX}{network}/{site}")
    return x509.SubjectAlternativeName([x509.DNSName(site), uri])


def key_usage(*, authority: bool) -> x509.KeyUsage:
    """Build the key-usage extension: an authority signs certificates and lists, a site signs data."""
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
    """Return the current time, in UTC."""
    return datetime.now(UTC)


def format_time(moment: datetime) -> str:
    """Format a time for error messages."""
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
    """Raise :class:`Refused` unless a certificate (DER) is valid and names the expected site of this network."""
    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
    except PARSE_ERRORS:
        raise Refused(f"{expected_site} presented data that is not a certificate", reason="unreadable") from None
    check_certificate(certificate, expected_site, network, authority, revocations, now or now_utc())


def check_certificate(
    certificate: x509.Certificate,
    expected_site: str,
    network: str,
    authority: x509.Certificate,
    revocations: RevocationList | None,
    now: datetime,
) -> None:
    """Raise :class:`Refused` unless a certificate is valid now, names the expected site, and is not revoked."""
    shown = f"the certificate for {expected_site}"
    try:
        certificate.verify_directly_issued_by(authority)
        public_key(certificate)
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except (*PARSE_ERRORS, InvalidSignature):
        raise Refused(f"{shown} is not signed by the authority of {network}", reason="issuer") from None
    if now > end:
        raise Refused(f"{shown} expired on {format_time(end)}; the time here is {format_time(now)}", reason="expired")
    if now < begin:
        raise Refused(
            f"{shown} is not valid before {format_time(begin)}, but the time here is {format_time(now)}; check this "
            "machine's clock (NTP)",
            reason="early",
        )
    try:
        its_network, its_site = site_of(certificate)
    except ValueError:
        raise Refused(f"{shown} does not name a site", reason="nameless") from None
    if its_network != network:
        raise Refused(f"{shown} is for the network {its_network}, not for {network}", reason="network")
    if its_site != expected_site:
        raise Refused(f"{shown} names another site, {its_site}", reason="site")
    if revocations is None:
        return
    if revocations.revokes(certificate):
        why = f"{shown} was revoked by the authority of {network} (revocation list {revocations.number})"
        raise Refused(why, reason="revoked")
    if revocations.expired(now):
        raise Refused(
            f"{shown} may have been revoked, and revocation list {revocations.number} at this site expired on "
            f"{format_time(revocations.ends)}; the operator of the authority has to sign a new list "
            "(deepca join --reissue)",
            reason="list expired",
        )


def describe_refusal(error: Refused, remedy: str) -> str:
    """Return the message of an error of :func:`check_certificate`, with a remedy unless the message contains one."""
    return str(error) if error.reason in ("early", "list expired") else f"{error}; {remedy}"


def verify_signature(certificate_der: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether ``data`` was signed with the key of this certificate (DER), by ECDSA with SHA-256."""
    try:
        public = public_key(x509.load_der_x509_certificate(certificate_der))
        public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except (*PARSE_ERRORS, InvalidSignature):
        return False
    return True
