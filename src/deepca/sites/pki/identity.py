"""What a running agent shows of itself, and judges others by."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deepca._util.files import write_whole
from deepca._util.logs import EventLogger
from deepca.errors import CertificateError, InvalidInput, Refused, RevocationListError
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.certificates import (
    check_certificate,
    check_peer,
    day,
    load_certificate,
    now_utc,
    parse_certificate,
    pem,
    read_content,
    verify_signature,
)
from deepca.sites.pki.keys import Key, fingerprint, key_pem, load_key, pending, public_key
from deepca.sites.pki.revocation import (
    LARGEST_LIST,
    RevocationList,
    SeenLists,
    current_list,
    expiry_warning,
    parse_list,
)

__all__ = ["Identity", "load_authority"]

_logger = logging.getLogger(__name__)

_ATTEMPTS = 5  # to read files that are being replaced
_Stamp = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True)
class Identity:
    """What a running agent shows of itself, and judges others by.

    authority, certificate, key : PEM.  certificate_der : the own certificate alone.  revocations : the list in force.
    stamp : of the files it is from.
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
        """Load the files that ``site.toml`` names, and record which list of revoked certificates was seen.

        Each thing that is wrong with the files is an InvalidInput.
        """
        found = cls._load(site, writes=True)
        found._note()
        return found

    @classmethod
    def look(cls, site: SiteFile) -> Identity:
        """Load the files without ever writing any, to see whether an agent could use them."""
        return cls._load(site, writes=False)

    @classmethod
    def _load(cls, site: SiteFile, *, writes: bool) -> Identity:
        for _ in range(_ATTEMPTS):
            stamp = _stamp(site)
            try:
                return cls._read(site, stamp, writes=writes)
            except InvalidInput:
                if _stamp(site) == stamp:
                    raise
        raise InvalidInput(f"{site.certificate}: the files beside it change all the time; stop what writes them")

    @classmethod
    def _read(cls, site: SiteFile, stamp: _Stamp, *, writes: bool) -> Identity:
        network, authority = site.network.name, load_authority(site)
        revocations = current_list(site, authority)
        content = read_content(site.certificate, f"ask for one with deepca join {site.path}")
        certificate = parse_certificate(content, site.certificate)
        try:
            check_certificate(certificate, site.site, network, authority, revocations, now_utc())
        except Refused as error:
            raise CertificateError(
                f"{site.certificate}: {error}; a new one is asked for with deepca join {site.path} --renew",
                reason=error.reason,
            ) from None
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
        """Raise :class:`Refused` for a certificate that is not accepted; see :func:`check_peer`."""
        check_peer(certificate_der, expected_site, self.network, self._authority, self.revocations)

    def verify_signature(self, certificate_der: bytes, signature: bytes, data: bytes) -> bool:
        """See :func:`verify_signature`."""
        return verify_signature(certificate_der, signature, data)

    def changed(self) -> bool:
        """Tell whether the files that this was read from are others by now."""
        return _stamp(self._source) != self.stamp

    def reload(self) -> Identity:
        """Load what is in the files now, except that a list of revoked certificates never gives way to an older one."""
        found = Identity.load(self._source) if self._writes else Identity.look(self._source)
        if found.authority == self.authority and found.list_number < self.list_number:
            return replace(found, revocations=self.revocations)  # it could neither be written nor recorded
        return found

    # ------------------------------------------------------------------------------------ lists of revoked certificates

    @property
    def list_number(self) -> int:
        """Number of the list in force; 0 if there is none."""
        return 0 if self.revocations is None else self.revocations.number

    @property
    def list_der(self) -> bytes:
        """The list in force, to be passed on; empty if there is none, or it is too large."""
        found = b"" if self.revocations is None else self.revocations.der
        return found if len(found) <= LARGEST_LIST else b""

    def warning(self) -> str:
        """Say what will have to be done soon; empty if nothing has to be."""
        return expiry_warning(self.revocations, now_utc())

    def adopt(self, der: bytes) -> Identity:
        """Take over a list that a neighbour passed on, if it is newer, and write it beside ``site.toml``.

        Raises :class:`Refused` for one that this network's authority has not signed. One that has expired is ignored.
        """
        if len(der) > LARGEST_LIST:
            why = f"a list of revoked certificates of {len(der):,} bytes; at most {LARGEST_LIST:,} are read"
            raise Refused(why, reason="list")
        try:
            found = parse_list(der, self._authority)
        except RevocationListError as error:
            raise Refused(str(error), reason="list") from None
        if found.number <= self.list_number or found.expired(now_utc()):
            return self
        if not self._writes:
            return replace(self, revocations=found)
        path = self._source.revoked
        try:
            write_whole(path, found.pem)
        except OSError as error:
            self._log_warning(
                f"list {found.number} of revoked certificates cannot be written to {path} ({error.strerror})"
            )
        adopted = replace(self, revocations=found, stamp=(*self.stamp[:-1], _stamp_of(path)))
        adopted._note()
        return adopted

    def _note(self) -> None:
        if not self.list_number:
            return
        try:
            SeenLists.of(self._source, self._authority).note(self.list_number)
        except OSError as error:
            self._log_warning(
                f"that list {self.list_number} of revoked certificates was seen cannot be recorded ({error.strerror})"
            )

    def _log_warning(self, text: str) -> None:
        EventLogger(_logger, self.site).warning(text, event="revocations")


def load_authority(site: SiteFile) -> x509.Certificate:
    """Load the authority's certificate of a site; an InvalidInput if it is of no use."""
    authority = load_certificate(site.authority, hint="it comes with the kit that deepca init made")
    try:
        public_key(authority)
    except ValueError:
        raise InvalidInput(f"{site.authority}: this is not an authority that deepca init made") from None
    if now_utc() > authority.not_valid_after_utc:
        raise InvalidInput(f"{site.authority}: the authority ended on {day(authority.not_valid_after_utc)}")
    return authority


def _key_of(site: SiteFile, certificate: x509.Certificate) -> Key:
    """Return the key that belongs to a certificate; the pending one where a renewal was cut short."""
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


def _stamp(site: SiteFile) -> _Stamp:
    """Tell replaced files from those that were read; the list of revoked certificates comes last."""
    return tuple(_stamp_of(path) for path in (site.authority, site.certificate, site.key, site.revoked))


def _stamp_of(path: Path) -> tuple[int, ...] | None:
    try:
        now = path.stat()
    except OSError:
        return None
    return now.st_mtime_ns, now.st_size, now.st_ino, now.st_mode
