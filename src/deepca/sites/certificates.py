"""Who is who: a private authority, a certificate for every site, and what is checked before anybody is listened to.

All keys are ECDSA on P-256. A certificate names its site twice: as a DNS name, which TLS checks, and as
``deepca:<network>/<site>``. Keys are made at the site and stay there; the authority sees requests only, and signs each
key once, so that every certificate that replaces another one comes with a new key.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deepca._files import alone, write_whole
from deepca.errors import InvalidInput, Refused
from deepca.sites.config import SiteFile, is_network_name, is_site_name

__all__ = [
    "Authority",
    "Identity",
    "Issued",
    "Key",
    "check_peer",
    "fingerprint",
    "load_certificate",
    "load_key",
    "load_request",
    "load_revoked",
    "new_key",
    "pem",
    "pending",
    "request",
    "site_of",
    "verify_signature",
    "write_key",
]

Key = ec.EllipticCurvePrivateKey

_AUTHORITY_DAYS = 3650
_SKEW = timedelta(minutes=5)  # clocks of sites differ
_ATTEMPTS = 5  # to read files that are being replaced
_PREFIX = "deepca:"
_UNREADABLE = (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm)
_BROKEN_NAMES = (*_UNREADABLE, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


# ---------------------------------------------------------------------------------------------------------------- keys


def new_key() -> Key:
    """ECDSA on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def write_key(path: Path, key: Key) -> None:
    """Readable by its owner only."""
    write_whole(path, _key_pem(key), mode=0o600)


def load_key(path: Path) -> Key:
    """A key that nobody else on this machine can read."""
    try:
        with path.open("rb") as file:
            loose = os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            content = b"" if loose else file.read()
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no key; deepca join makes one at the site it belongs to") from None
    except OSError as error:
        raise InvalidInput(f"{path}: the key cannot be read ({error.strerror})") from None
    if loose:
        raise InvalidInput(f"{path}: others on this machine may read or change this key; run chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except _UNREADABLE:
        raise InvalidInput(f"{path}: this is no key that can be read; it has to be PEM without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidInput(f"{path}: only keys for ECDSA on P-256 are used here; deepca join makes one")
    return key


def pending(key: Path) -> Path:
    """Where the key waits whose certificate is asked for while the old one is in use."""
    return key.with_name(f"{key.name}.new")


def fingerprint(of: Key | x509.Certificate | x509.CertificateSigningRequest) -> str:
    """SHA-256 of the public key, in hexadecimal."""
    public = of.public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _key_pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# -------------------------------------------------------------------------------------------- requests and certificates


def request(site: str, network: str, key: Key) -> x509.CertificateSigningRequest:
    """What a site hands to the authority; proves that it has the key, and does not contain it."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(site, network))
    return builder.add_extension(_alternatives(site, network), critical=False).sign(key, hashes.SHA256())


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
    return _certificate(_content(path, hint), path)


def load_request(path: Path) -> x509.CertificateSigningRequest:
    """A request for a certificate, from a PEM file."""
    content = _content(path)
    try:
        return x509.load_pem_x509_csr(content)
    except _UNREADABLE:
        raise InvalidInput(f"{path}: this is no request for a certificate, or it is damaged") from None


def load_revoked(path: Path, authority: x509.Certificate) -> x509.CertificateRevocationList | None:
    """The authority's list of certificates that are no longer valid; None if there is no such file."""
    if not path.exists():
        return None
    content = _content(path)
    again = "fetch it again from whoever keeps the authority"
    try:
        found = x509.load_pem_x509_crl(content)
        genuine = found.issuer == authority.subject and found.is_signature_valid(_public(authority))
    except _UNREADABLE:
        raise InvalidInput(f"{path}: this is no list of revoked certificates, or it is damaged; {again}") from None
    if not genuine:
        raise InvalidInput(f"{path}: this list of revoked certificates is not of this network's authority; {again}")
    return found


def _certificate(content: bytes, path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(content)[0]
    except _UNREADABLE:
        raise InvalidInput(f"{path}: this is no certificate, or it is damaged") from None


def _content(path: Path, hint: str = "") -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file" + (f"; {hint}" if hint else "")) from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None


def _subject(name: str, network: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, network), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _alternatives(site: str, network: str) -> x509.SubjectAlternativeName:
    uri = x509.UniformResourceIdentifier(f"{_PREFIX}{network}/{site}")
    return x509.SubjectAlternativeName([x509.DNSName(site), uri])


def _usage(*, authority: bool) -> x509.KeyUsage:
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


def _public(certificate: x509.Certificate | x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    """Its key; a ValueError unless that is ECDSA on P-256."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("another kind of key")  # noqa: TRY004 - what is wrong is a file, not a type
    return key


def _now() -> datetime:
    return datetime.now(UTC)


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


# ----------------------------------------------------------------------------------------------------------- authority


@dataclass(frozen=True)
class Issued:
    """What the authority remembers of a certificate. Times as ISO 8601; ``serial`` and ``key`` in hexadecimal.

    key : fingerprint of the public key.  revoked : when, or None.
    """

    serial: str
    site: str
    key: str
    not_before: str
    not_after: str
    revoked: str | None = None


@dataclass(frozen=True)
class Authority:
    """Signs for one network. A folder: ``authority.pem``, ``authority.key``, ``issued.json``, and ``revoked.pem``."""

    folder: Path
    certificate: x509.Certificate
    key: Key = field(repr=False)

    @classmethod
    def create(cls, folder: Path, network: str, *, now: datetime | None = None) -> Authority:
        """A new one, for ten years."""
        for name in ("authority.pem", "authority.key", "issued.json"):
            if (folder / name).exists():
                raise InvalidInput(f"{folder / name}: there is an authority already; it is not replaced")
        now = now or _now()
        key = new_key()
        subject = _subject("authority", network)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + timedelta(days=_AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = cls(folder, certificate, key)
        write_key(folder / "authority.key", key)
        write_whole(folder / "authority.pem", pem(certificate))
        made._remember([])
        return made

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """The one in a folder."""
        if not folder.is_dir():
            raise InvalidInput(f"{folder}: there is no such folder; deepca init makes one called authority")
        certificate = load_certificate(folder / "authority.pem", hint="deepca init makes a folder called authority")
        key = load_key(folder / "authority.key")
        if fingerprint(key) != fingerprint(certificate):
            raise InvalidInput(f"{folder}: authority.key and authority.pem do not belong together")
        return cls(folder, certificate, key)

    @property
    def network(self) -> str:
        """Whose authority this is."""
        return str(self.certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value)

    def issued(self) -> tuple[Issued, ...]:
        """All certificates so far, in order."""
        path = self.folder / "issued.json"
        try:
            return tuple(Issued(**entry) for entry in json.loads(_content(path, "restore it from a copy"))["issued"])
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(
                f"{path}: damaged; restore it from a copy, as it says which certificates exist"
            ) from None

    def sign(
        self, asked: x509.CertificateSigningRequest, days: int = 365, *, now: datetime | None = None
    ) -> x509.Certificate:
        """A certificate for the site that the request names, not longer than the authority itself lasts."""
        now = now or _now()
        try:
            network, site = site_of(asked)
            public = _public(asked)
            genuine = asked.is_signature_valid
        except _UNREADABLE:
            raise InvalidInput("the request does not name a site as deepca join does; make it with that") from None
        if not genuine:
            raise InvalidInput(f"the request of {site} is not signed with its own key; make a new one with deepca join")
        if network != self.network:
            raise InvalidInput(
                f"the request of {site} is for the network {network}; this authority is of {self.network}"
            )
        if days < 1:
            raise InvalidInput(f"{days} days: a certificate lasts at least one")
        end = min(now + timedelta(days=min(days, _AUTHORITY_DAYS)), self.certificate.not_valid_after_utc)
        if end <= now:
            raise InvalidInput(f"the authority itself ended on {_day(end)}; make a new one with deepca init")
        with alone(self.folder):  # nothing that was issued may be forgotten
            issued = self.issued()
            print_ = fingerprint(asked)
            for one in issued:
                if one.key == print_:
                    raise InvalidInput(
                        f"the key in this request was signed before (for {one.site}, {one.not_before[:10]}); every "
                        "certificate needs a new key: deepca join --renew at the site makes one, once the file "
                        "site.key.new there is removed, if there is one"
                    )
            if print_ == fingerprint(self.certificate):
                raise InvalidInput("the key in this request is the authority's own; make another at the site")
            signed = (
                x509.CertificateBuilder()
                .subject_name(_subject(site, network))
                .issuer_name(self.certificate.subject)
                .public_key(public)
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - _SKEW)
                .not_valid_after(end)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(_usage(authority=False), critical=True)
                .add_extension(
                    x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                    critical=False,
                )
                .add_extension(_alternatives(site, network), critical=False)
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
                .add_extension(self._identifier(), critical=False)
                .sign(self.key, hashes.SHA256())
            )
            dates = (signed.not_valid_before_utc.isoformat(), signed.not_valid_after_utc.isoformat())
            # remembered before anybody has it: what is not in the list cannot be revoked
            self._remember([*issued, Issued(f"{signed.serial_number:x}", site, print_, *dates)])
        return signed

    def revoke(self, which: str, *, now: datetime | None = None) -> tuple[Issued, ...]:
        """All certificates of a site, or the one with this serial number, are no longer valid: ``revoked.pem``.

        Returns those that were not revoked before.
        """
        now = now or _now()
        with alone(self.folder):  # nothing that was issued may be forgotten
            issued = self.issued()
            chosen = [one for one in issued if one.site == which]
            chosen = chosen or [one for one in issued if one.serial == which.lower().replace(":", "").lstrip("0")]
            if not chosen:
                known = ", ".join(sorted({one.site for one in issued})) or "none at all"
                raise InvalidInput(f"no certificate was issued to {which!r}; there are some of {known}")
            newly = tuple(replace(one, revoked=now.isoformat()) for one in chosen if one.revoked is None)
            serials = {one.serial: one for one in newly}
            self._remember(after := [serials.get(one.serial, one) for one in issued])
            builder = (
                x509.CertificateRevocationListBuilder()
                .issuer_name(self.certificate.subject)
                .last_update(now)
                .next_update(max(self.certificate.not_valid_after_utc, now + timedelta(days=1)))
                .add_extension(x509.CRLNumber(sum(one.revoked is not None for one in after)), critical=False)
                .add_extension(self._identifier(), critical=False)
            )
            for one in after:
                if one.revoked is not None:
                    entry = x509.RevokedCertificateBuilder().serial_number(int(one.serial, 16))
                    builder = builder.add_revoked_certificate(
                        entry.revocation_date(datetime.fromisoformat(one.revoked)).build()
                    )
            write_whole(self.folder / "revoked.pem", pem(builder.sign(self.key, hashes.SHA256())))
        return newly

    def _identifier(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())

    def _remember(self, issued: list[Issued]) -> None:
        text = json.dumps({"issued": [asdict(one) for one in issued]}, indent=2)
        write_whole(self.folder / "issued.json", f"{text}\n".encode(), mode=0o600)


# ------------------------------------------------------------------------------------------------------------ checking


def check_peer(
    certificate_der: bytes,
    expected_site: str,
    network: str,
    authority: x509.Certificate,
    crl: x509.CertificateRevocationList | None,
    *,
    now: datetime | None = None,
) -> None:
    """Raises :class:`Refused` unless this is a valid certificate of the expected site of this network."""
    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
    except _UNREADABLE:
        raise Refused(f"what was shown for {expected_site} is not a certificate") from None
    _check(certificate, expected_site, network, authority, crl, now or _now())


def verify_signature(certificate_der: bytes, signature: bytes, data: bytes) -> bool:
    """Whether the owner of the certificate's key has signed this; ECDSA with SHA-256."""
    try:
        public = _public(x509.load_der_x509_certificate(certificate_der))
        public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except (*_UNREADABLE, InvalidSignature):
        return False
    return True


def _check(
    certificate: x509.Certificate,
    expected_site: str,
    network: str,
    authority: x509.Certificate,
    crl: x509.CertificateRevocationList | None,
    now: datetime,
) -> None:
    shown = f"the certificate shown for {expected_site}"
    try:
        certificate.verify_directly_issued_by(authority)
        _public(certificate)
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except (*_UNREADABLE, InvalidSignature):
        raise Refused(f"{shown} is not signed by the authority of {network}") from None
    if now > end:
        raise Refused(f"{shown} ended on {_day(end)}; it is {_day(now)} here")
    if now < begin:
        raise Refused(f"{shown} is not valid before {_day(begin)}; it is {_day(now)} here, if this clock is right")
    try:
        its_network, its_site = site_of(certificate)
    except ValueError:
        raise Refused(f"{shown} names no site") from None
    if its_network != network:
        raise Refused(f"{shown} is for the network {its_network}, not for {network}")
    if its_site != expected_site:
        raise Refused(f"{shown} is that of {its_site}")
    if crl is not None and crl.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
        raise Refused(f"{shown} was revoked by the authority of {network}")


# ------------------------------------------------------------------------------------------------------------ identity


@dataclass(frozen=True)
class Identity:
    """What a running agent shows of itself, and judges others by.

    authority, certificate, key : PEM.  certificate_der : the own certificate alone.  stamp : of the files it is from.
    """

    site: str
    network: str
    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    certificate_der: bytes = field(repr=False)
    not_after: datetime
    stamp: tuple[tuple[int, ...] | None, ...] = field(repr=False)
    _source: SiteFile = field(repr=False)
    _authority: x509.Certificate = field(repr=False)
    _revoked: x509.CertificateRevocationList | None = field(repr=False)
    _private: Key = field(repr=False)

    @classmethod
    def load(cls, site: SiteFile) -> Identity:
        """From the files that ``site.toml`` names; each thing that is wrong with them is an InvalidInput."""
        for _ in range(_ATTEMPTS):
            stamp = _stamp(site)
            try:
                return cls._read(site, stamp)
            except InvalidInput:
                if _stamp(site) == stamp:
                    raise
        raise InvalidInput(f"{site.certificate}: the files beside it change all the time; stop what writes them")

    @classmethod
    def _read(cls, site: SiteFile, stamp: tuple[tuple[int, ...] | None, ...]) -> Identity:
        network = site.network.name
        authority = load_certificate(site.authority, hint="it comes with the kit that deepca init made")
        try:
            _public(authority)
        except ValueError:
            raise InvalidInput(f"{site.authority}: this is not an authority that deepca init made") from None
        if _now() > authority.not_valid_after_utc:
            raise InvalidInput(f"{site.authority}: the authority ended on {_day(authority.not_valid_after_utc)}")
        revoked = load_revoked(site.revoked, authority)
        content = _content(site.certificate, f"ask for one with deepca join {site.path}")
        certificate = _certificate(content, site.certificate)
        try:
            _check(certificate, site.site, network, authority, revoked, _now())
        except Refused as error:
            raise InvalidInput(
                f"{site.certificate}: {error}; a new one is asked for with deepca join {site.path} --renew"
            ) from None
        key = _key_of(site, certificate)
        return cls(
            site=site.site,
            network=network,
            authority=pem(authority),
            certificate=content,
            key=_key_pem(key),
            certificate_der=certificate.public_bytes(serialization.Encoding.DER),
            not_after=certificate.not_valid_after_utc,
            stamp=stamp,
            _source=site,
            _authority=authority,
            _revoked=revoked,
            _private=key,
        )

    def sign(self, data: bytes) -> bytes:
        """ECDSA with SHA-256."""
        return self._private.sign(data, ec.ECDSA(hashes.SHA256()))

    def check_peer(self, certificate_der: bytes, expected_site: str) -> None:
        """Raises :class:`Refused`; see :func:`check_peer`."""
        check_peer(certificate_der, expected_site, self.network, self._authority, self._revoked)

    def verify_signature(self, certificate_der: bytes, signature: bytes, data: bytes) -> bool:
        """See :func:`verify_signature`."""
        return verify_signature(certificate_der, signature, data)

    def changed(self) -> bool:
        """Whether the files that this was read from are others by now."""
        return _stamp(self._source) != self.stamp

    def reload(self) -> Identity:
        """What is in the files now."""
        return Identity.load(self._source)


def _key_of(site: SiteFile, certificate: x509.Certificate) -> Key:
    """The key that belongs to a certificate; the pending one where a renewal was cut short."""
    wanted = fingerprint(certificate)
    key = load_key(site.key)
    if fingerprint(key) == wanted:
        return key
    if pending(site.key).exists() and fingerprint(key := load_key(pending(site.key))) == wanted:
        return key
    raise InvalidInput(
        f"{site.key} and {site.certificate} do not belong together; ask for a new certificate with "
        f"deepca join {site.path} --renew"
    )


def _stamp(site: SiteFile) -> tuple[tuple[int, ...] | None, ...]:
    """Tells replaced files from those that were read."""
    found: list[tuple[int, ...] | None] = []
    for path in (site.authority, site.certificate, site.key, site.revoked):
        try:
            now = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((now.st_mtime_ns, now.st_size, now.st_ino, now.st_mode))
    return tuple(found)
