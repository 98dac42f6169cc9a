"""Certificate revocation lists, which are numbered, expire, and are never replaced by an older one.

The authority signs each list with the next number (the CRL number of RFC 5280) and the date at which it expires. A site
records the highest number that it has seen in its state folder; from then on it refuses a missing or older list, and
one that has expired. Lists are public and signed, so it does not matter who delivers them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from deepca._util.files import exclusive_lock, write_atomic
from deepca._util.units import plural
from deepca.errors import InvalidInput, RevocationListError
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.keys import PARSE_ERRORS, fingerprint, public_key

__all__ = [
    "EXPIRY_WARNING_PERIOD",
    "MAX_REVOCATION_LIST_BYTES",
    "REVOCATION_LIST_DAYS",
    "RevocationList",
    "SeenRevocationLists",
    "current_revocation_list",
    "expiry_warning",
    "load_revocation_list",
    "parse_revocation_list",
]

REVOCATION_LIST_DAYS = 365
"""Default number of days for which a revocation list is valid."""
EXPIRY_WARNING_PERIOD = timedelta(days=30)
"""Agents warn about revocation lists, and the doctor also about certificates, that expire within this time."""
MAX_REVOCATION_LIST_BYTES = 1 << 20
"""Maximum size of a list from a neighbour, in bytes of DER: enough for about 25,000 revoked certificates."""
_MAX_LIST_NUMBER = 1 << 62  # messages carry list numbers as 64-bit integers
_FETCH_AGAIN = "ask the operator of the authority for the newest list"


@dataclass(frozen=True)
class RevocationList:
    """A revocation list that this network's authority has signed.

    Parameters
    ----------
    number : int
        CRL number.
    ends : datetime
        When it expires.
    der : bytes
        The list in DER, as messages carry it.
    """

    number: int
    ends: datetime
    der: bytes = field(repr=False)
    _entries: x509.CertificateRevocationList = field(repr=False)

    def __len__(self) -> int:
        """Return the number of revoked certificates."""
        return len(self._entries)

    def __bool__(self) -> bool:
        """Return True, even for a list without entries."""
        return True

    def revokes(self, certificate: x509.Certificate) -> bool:
        """Return whether the list revokes a certificate."""
        return self._entries.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None

    def expired(self, now: datetime) -> bool:
        """Return whether the list has expired."""
        return now > self.ends

    @property
    def pem(self) -> bytes:
        """The list in PEM, the format of files."""
        return self._entries.public_bytes(serialization.Encoding.PEM)


def parse_revocation_list(content: bytes, authority: x509.Certificate, path: Path | None = None) -> RevocationList:
    """Parse a revocation list (PEM if it has a ``path``, else DER), and verify the authority's signature.

    Raises
    ------
    RevocationListError
        With reason "unreadable", "foreign" or "unnumbered".
    """
    where = "" if path is None else str(path)
    subject = f"{where}: this revocation list" if where else "the revocation list that a neighbour sent"

    def error(what: str, reason: str) -> RevocationListError:
        return RevocationListError(f"{subject} {what}", reason=reason, path=where)

    try:
        found = x509.load_der_x509_crl(content) if path is None else x509.load_pem_x509_crl(content)
        genuine = found.issuer == authority.subject and found.is_signature_valid(public_key(authority))
    except PARSE_ERRORS:
        raise error(f"cannot be read; {_FETCH_AGAIN}", "unreadable") from None
    if not genuine:  # so nothing more of it is read
        raise error(f"is not signed by this network's authority; {_FETCH_AGAIN}", "foreign")
    try:
        extensions = list(found.extensions)
        ends = found.next_update_utc
    except (*PARSE_ERRORS, x509.DuplicateExtension):
        raise error(f"cannot be read; {_FETCH_AGAIN}", "unreadable") from None
    numbers = [one.value.crl_number for one in extensions if isinstance(one.value, x509.CRLNumber)]
    if (
        ends is None
        or any(one.critical for one in extensions)
        or any(not 0 <= one < _MAX_LIST_NUMBER for one in numbers)
    ):
        raise error(f"is of an unsupported kind; {_FETCH_AGAIN}", "unreadable")
    if not numbers:
        raise error(
            "has no number, so it cannot be compared with others; the operator of the authority has to sign one with a "
            "number (deepca join --reissue); then install it with deepca join SITE --revocation-list FILE",
            "unnumbered",
        )
    return RevocationList(numbers[0], ends, found.public_bytes(serialization.Encoding.DER), found)


def load_revocation_list(path: Path, authority: x509.Certificate) -> RevocationList | None:
    """Read a revocation list from a PEM file; return None if the file is missing.

    Raises
    ------
    InvalidInput
        If the file cannot be read; RevocationListError if its content cannot be used.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read ({error.strerror}); check its permissions", file=str(path)
        ) from None
    return parse_revocation_list(content, authority, path)


@dataclass(frozen=True)
class SeenRevocationLists:
    """The highest list number that a site has seen from its authority, recorded in a file.

    Parameters
    ----------
    path : Path
        File of the record.
    authority : str
        Fingerprint of the authority's key; each authority counts its own lists.
    """

    path: Path
    authority: str

    @classmethod
    def of(cls, site: SiteFile, authority: x509.Certificate) -> SeenRevocationLists:
        """Return the record that a site keeps in its state folder."""
        return cls(site.state / "revocations.json", fingerprint(authority))

    def number(self) -> int:
        """Return the highest number seen; 0 if none was seen."""
        return self._read().get(self.authority, 0)

    def note(self, number: int) -> None:
        """Record a number if it is the highest so far; may raise OSError."""
        if number <= self.number():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(self.path.parent):
            known = self._read()
            if number > known.get(self.authority, 0):
                text = json.dumps({**known, self.authority: number}, indent=2)
                write_atomic(self.path, f"{text}\n".encode(), mode=0o600)

    def _read(self) -> dict[str, int]:
        try:
            record = json.loads(self.path.read_text(encoding="utf-8"))
            return {str(authority): int(number) for authority, number in record.items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, TypeError, AttributeError):
            raise RevocationListError(
                f"{self.path}: unreadable or damaged; it records the newest revocation list that this site has seen. "
                "Ask the operator of the authority for the newest list, remove this file, and install the list: deepca "
                "join SITE --revocation-list FILE",
                reason="memory",
                path=str(self.path),
            ) from None


def current_revocation_list(
    site: SiteFile, authority: x509.Certificate, now: datetime | None = None
) -> RevocationList | None:
    """Return the revocation list in force at a site; None if the site has never had one.

    Raises
    ------
    RevocationListError
        If the list is missing or older although a newer one was seen, has expired, lacks a number, or is unreadable.
    """
    seen = SeenRevocationLists.of(site, authority).number()
    found = load_revocation_list(site.revoked, authority)
    newest = (
        f"get the newest list from the operator of the authority or from a neighbour, and install it: "
        f"deepca join {site.path} --revocation-list FILE"
    )
    if found is None:
        if not seen:
            return None
        raise RevocationListError(
            f"{site.revoked}: the revocation list is missing, but this site has already seen number {seen}; {newest}",
            reason="missing",
            path=str(site.revoked),
            seen=seen,
        )
    if found.number < seen:
        raise RevocationListError(
            f"{site.revoked}: this is revocation list {found.number}, but this site has already seen number {seen}; "
            f"{newest}",
            reason="older",
            path=str(site.revoked),
            number=found.number,
            seen=seen,
        )
    if found.expired(now or datetime.now(UTC)):
        raise RevocationListError(
            f"{site.revoked}: revocation list {found.number} expired on {found.ends:%Y-%m-%d}; the operator of the "
            f"authority has to sign a new one (deepca join --reissue); then install it with deepca join {site.path} "
            "--revocation-list FILE",
            reason="expired",
            path=str(site.revoked),
            number=found.number,
            seen=seen,
        )
    return found


def expiry_warning(found: RevocationList | None, now: datetime) -> str:
    """Return a warning that a revocation list has expired or will do so soon; empty if neither is the case."""
    if found is None or found.ends - now > EXPIRY_WARNING_PERIOD:
        return ""
    advice = "the operator of the authority has to sign a new one (deepca join --reissue)"
    if found.expired(now):
        return f"revocation list {found.number} expired on {found.ends:%Y-%m-%d}: no connection is accepted; {advice}"
    days = (found.ends - now).days
    return (
        f"revocation list {found.number} expires on {found.ends:%Y-%m-%d}, in {days} day{plural(days)}; after that all "
        f"connections are refused, so {advice} before then"
    )
