"""The credentials of a running agent: its certificate and key, and what it needs to check other certificates."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deepca._util.files import write_atomic
from deepca._util.logs import EventLogger
from deepca.errors import CertificateError, InvalidInput, Refused, RevocationListError
from deepca.sites.config.site_file import SiteFile, read_site
from deepca.sites.pki.certificates import (
    check_certificate,
    check_peer,
    describe_refusal,
    format_time,
    load_certificate,
    now_utc,
    parse_certificate,
    pem,
    read_content,
    verify_signature,
)
from deepca.sites.pki.keys import Key, fingerprint, key_pem, load_key, pending_key_path, public_key
from deepca.sites.pki.revocation import (
    MAX_REVOCATION_LIST_BYTES,
    RevocationList,
    SeenRevocationLists,
    current_revocation_list,
    expiry_warning,
    parse_revocation_list,
)

__all__ = ["Identity", "load_authority", "read_secured_site"]

_logger = logging.getLogger(__name__)

_MAX_READS = 5  # attempts to read files that change while they are read
_Stamp = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True)
class Identity:
    """Credentials of a running agent.

    Parameters
    ----------
    site, network : str
        Names of the site and of its network.
    authority, certificate, key : bytes
        Contents of the files, in PEM.
    certificate_der : bytes
        The site's own certificate, in DER.
    not_after : datetime
        When that certificate expires.
    revocations : RevocationList or None
        The revocation list in force.
    stamp : tuple
        State of the files when they were read, to detect changes.
    """

    site: str
    network: str
    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    certificate_der: bytes = field(repr=False)
    not_after: datetime
    revocations: RevocationList | None
    stamp: _Stamp = field(repr=False)
    _source: SiteFile = field(repr=False)
    _authority: x509.Certificate = field(repr=False)
    _private: Key = field(repr=False)
    _writes: bool = field(repr=False)

    @classmethod
    def load(cls, site: SiteFile) -> Identity:
        """Load the files that ``site.toml`` names, and record which revocation list was seen.

        Raises
        ------
        InvalidInput
            If a file cannot be used: CertificateError for the certificate, RevocationListError for the list.
        """
        found = cls._load(site, writes=True)
        found._note()
        return found

    @classmethod
    def load_read_only(cls, site: SiteFile) -> Identity:
        """Load the files without writing any, to find out whether an agent could use them."""
        return cls._load(site, writes=False)

    @classmethod
    def _load(cls, site: SiteFile, *, writes: bool) -> Identity:
        for _ in range(_MAX_READS):
            stamp = _stamp(site)
            try:
                return cls._read(site, stamp, writes=writes)
            except InvalidInput:
                if _stamp(site) == stamp:
                    raise
        raise InvalidInput(
            f"{site.certificate}: this file, or a file next to it, keeps changing while it is read; stop the program "
            "that writes it",
            file=str(site.certificate),
        )

    @classmethod
    def _read(cls, site: SiteFile, stamp: _Stamp, *, writes: bool) -> Identity:
        network, authority = site.network.name, load_authority(site)
        revocations = current_revocation_list(site, authority)
        content = read_content(site.certificate, f"request one with deepca join {site.path}")
        certificate = parse_certificate(content, site.certificate)
        try:
            check_certificate(certificate, site.site, network, authority, revocations, now_utc())
        except Refused as error:
            why = describe_refusal(error, f"request another with deepca join {site.path} --renew")
            raise CertificateError(f"{site.certificate}: {why}", reason=error.reason) from None
        key = _key_of(site, certificate)
        return cls(
            site=site.site,
            network=network,
            authority=pem(authority),
            certificate=content,
            key=key_pem(key),
            certificate_der=certificate.public_bytes(serialization.Encoding.DER),
            not_after=certificate.not_valid_after_utc,
            revocations=revocations,
            stamp=stamp,
            _source=site,
            _authority=authority,
            _private=key,
            _writes=writes,
        )

    def sign(self, data: bytes) -> bytes:
        """Sign with ECDSA and SHA-256."""
        return self._private.sign(data, ec.ECDSA(hashes.SHA256()))

    def check_peer(self, certificate_der: bytes, expected_site: str) -> None:
        """Raise :class:`Refused` unless a certificate is accepted, as :func:`.certificates.check_peer` describes."""
        check_peer(certificate_der, expected_site, self.network, self._authority, self.revocations)

    def verify_signature(self, certificate_der: bytes, signature: bytes, data: bytes) -> bool:
        """Return whether ``data`` was signed with the key of this certificate (DER)."""
        return verify_signature(certificate_der, signature, data)

    def changed(self) -> bool:
        """Return whether the files have changed since they were read."""
        return _stamp(self._source) != self.stamp

    def reload(self) -> Identity:
        """Load the files again, but never replace a revocation list by an older one."""
        found = Identity.load(self._source) if self._writes else Identity.load_read_only(self._source)
        if found.authority == self.authority and found.revocation_list_number < self.revocation_list_number:
            return replace(found, revocations=self.revocations)  # the newer list could neither be written nor recorded
        return found

    # ------------------------------------------------------------------------------------------------ revocation lists

    @property
    def revocation_list_number(self) -> int:
        """Number of the revocation list in force; 0 without one."""
        return 0 if self.revocations is None else self.revocations.number

    @property
    def revocation_list_der(self) -> bytes:
        """The revocation list in force, to send to neighbours; empty without one, or if it is too large."""
        found = b"" if self.revocations is None else self.revocations.der
        return found if len(found) <= MAX_REVOCATION_LIST_BYTES else b""

    def warning(self) -> str:
        """Return a warning about the revocation list if it expires soon; else an empty string."""
        return expiry_warning(self.revocations, now_utc())

    def adopt(self, der: bytes) -> Identity:
        """Adopt a revocation list from a neighbour if it is newer and has not expired, and write it to its file.

        Raises
        ------
        Refused
            With reason "list" if this network's authority did not sign it, or it is too large.
        """
        if len(der) > MAX_REVOCATION_LIST_BYTES:
            size = f"{len(der):,} bytes, more than the limit of {MAX_REVOCATION_LIST_BYTES:,}"
            raise Refused(f"the revocation list that a neighbour sent has {size}", reason="list")
        try:
            found = parse_revocation_list(der, self._authority)
        except RevocationListError as error:
            raise Refused(str(error), reason="list") from None
        if found.number <= self.revocation_list_number or found.expired(now_utc()):
            return self
        if not self._writes:
            return replace(self, revocations=found)
        path = self._source.revoked
        try:
            write_atomic(path, found.pem)
        except OSError as error:
            self._log_warning(
                f"cannot write revocation list {found.number} to {path} ({error.strerror}); it is in force, but check "
                "the disk space and permissions of that folder"
            )
        adopted = replace(self, revocations=found, stamp=(*self.stamp[:-1], _stamp_of(path)))
        adopted._note()
        return adopted

    def _note(self) -> None:
        if not self.revocation_list_number:
            return
        try:
            SeenRevocationLists.of(self._source, self._authority).note(self.revocation_list_number)
        except OSError as error:
            self._log_warning(
                f"cannot record in {self._source.state} that revocation list {self.revocation_list_number} was seen "
                f"({error.strerror}); check the disk space and permissions of that folder"
            )

    def _log_warning(self, text: str) -> None:
        EventLogger(_logger, self.site).warning(text, event="revocations")


def read_secured_site(path: Path) -> SiteFile:
    """Read the ``site.toml`` of a site that uses certificates."""
    site = read_site(path)
    if site.plaintext:
        raise InvalidInput(
            f"{site.path}: plaintext = true, so this site does not use certificates; remove that line to use them",
            file=str(site.path),
            parameter="plaintext",
            value=True,
        )
    return site


def load_authority(site: SiteFile) -> x509.Certificate:
    """Load the certificate of a site's authority; raise InvalidInput if it cannot be used."""
    authority = load_certificate(site.authority, hint="copy it from the kit that deepca init created")
    try:
        public_key(authority)
    except ValueError:
        raise InvalidInput(
            f"{site.authority}: this is not the certificate of an authority created by deepca init; copy it "
            "from the kit",
            file=str(site.authority),
            parameter="authority",
        ) from None
    if now_utc() > (end := authority.not_valid_after_utc):
        raise InvalidInput(
            f"{site.authority}: the authority expired on {format_time(end)}; its operator has to create another "
            "(deepca init)",
            file=str(site.authority),
            parameter="authority",
            value=end,
        )
    return authority


def _key_of(site: SiteFile, certificate: x509.Certificate) -> Key:
    """Return the key of a certificate, which is the pending one if a renewal was interrupted.

    Raises InvalidInput if neither key is that of the certificate.
    """
    wanted = fingerprint(certificate)
    key = load_key(site.key)
    if fingerprint(key) == wanted:
        return key
    if pending_key_path(site.key).exists() and fingerprint(key := load_key(pending_key_path(site.key))) == wanted:
        return key
    raise InvalidInput(
        f"{site.key} is not the key of {site.certificate}; request a new certificate with deepca join {site.path} "
        "--renew",
        file=str(site.key),
        parameter="key",
        value=str(site.certificate),
    )


def _stamp(site: SiteFile) -> _Stamp:
    """Return the state of the files, by which changes are detected; the revocation list comes last."""
    return tuple(_stamp_of(path) for path in (site.authority, site.certificate, site.key, site.revoked))


def _stamp_of(path: Path) -> tuple[int, ...] | None:
    try:
        now = path.stat()
    except OSError:
        return None
    return now.st_mtime_ns, now.st_size, now.st_ino, now.st_mode
