"""Lists of revoked certificates: numbered, with an end, and never replaced by an older one.

The authority signs each list with the next number (the CRL number of RFC 5280) and a date until which it can be relied
on. A site records the highest number that it has seen in its state folder; from then on a missing or older list is
refused, and so is one that has expired. Lists are public and signed, so they may come from anybody.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from deepca._util.files import alone, write_whole
from deepca.errors import InvalidInput, RevocationListError
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.keys import UNREADABLE, fingerprint, public_key

__all__ = [
    "LARGEST_LIST",
    "LIST_DAYS",
    "WARN_AHEAD",
    "RevocationList",
    "SeenLists",
    "current_list",
    "expiry_warning",
    "load_list",
    "parse_list",
]

LIST_DAYS = 365
"""How long a list can be relied on, unless the keeper of the authority says otherwise."""
WARN_AHEAD = timedelta(days=30)
"""Before a list expires, agents and the doctor warn for so long."""
LARGEST_LIST = 1 << 20
"""Bytes of a list (DER) that a neighbour may send: some 25,000 revoked certificates."""
_MOST = 1 << 62  # numbers travel as 64 bits
_AGAIN = "fetch it again from whoever keeps the authority"


@dataclass(frozen=True)
class RevocationList:
    """A list that this network's authority has signed. ends : when it expires.  der : as it travels."""

    number: int
    ends: datetime
    der: bytes = field(repr=False)
    _entries: x509.CertificateRevocationList = field(repr=False)

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return True  # also with no entries

    def revokes(self, certificate: x509.Certificate) -> bool:
        """Tell whether a certificate is on it."""
        return self._entries.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None

    def expired(self, now: datetime) -> bool:
        """Tell whether it can no longer be relied on."""
        return now > self.ends

    @property
    def pem(self) -> bytes:
        """As it is written to a file."""
        return self._entries.public_bytes(serialization.Encoding.PEM)


def parse_list(content: bytes, authority: x509.Certificate, path: Path | None = None) -> RevocationList:
    """Read a list, PEM from a file or DER from a neighbour, and verify the authority's signature.

    Raises
    ------
    RevocationListError
        With reason "unreadable", "foreign" or "unnumbered".
    """
    where = "" if path is None else str(path)
    said = f"{where}: this" if where else "the list that was passed on"

    def error(what: str, reason: str) -> RevocationListError:
        return RevocationListError(f"{said} {what}", reason=reason, path=where)

    try:
        found = x509.load_der_x509_crl(content) if path is None else x509.load_pem_x509_crl(content)
        genuine = found.issuer == authority.subject and found.is_signature_valid(public_key(authority))
    except UNREADABLE:
        raise error(f"is no list of revoked certificates, or it is damaged; {_AGAIN}", "unreadable") from None
    if not genuine:  # nothing more of it is read
        raise error(f"list of revoked certificates is not of this network's authority; {_AGAIN}", "foreign")
    try:
        extensions = list(found.extensions)
        ends = found.next_update_utc
    except (*UNREADABLE, x509.DuplicateExtension):
        raise error(f"is no list of revoked certificates, or it is damaged; {_AGAIN}", "unreadable") from None
    numbers = [one.value.crl_number for one in extensions if isinstance(one.value, x509.CRLNumber)]
    if ends is None or any(one.critical for one in extensions) or any(not 0 <= one < _MOST for one in numbers):
        raise error(f"list of revoked certificates is of a kind that is not used here; {_AGAIN}", "unreadable")
    if not numbers:
        raise error(
            "list of revoked certificates has no number, so that nobody can tell whether it is the newest; whoever "
            "keeps the authority signs one that has (deepca join --reissue), and deepca join SITE --revoked FILE "
            "installs it",
            "unnumbered",
        )
    return RevocationList(numbers[0], ends, found.public_bytes(serialization.Encoding.DER), found)


def load_list(path: Path, authority: x509.Certificate) -> RevocationList | None:
    """Read a list from a PEM file; None if there is no such file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None
    return parse_list(content, authority, path)


@dataclass(frozen=True)
class SeenLists:
    """The highest number of an authority's lists that a site has seen.

    path : where that is kept.  authority : fingerprint of its key, so that another authority starts anew.
    """

    path: Path
    authority: str

    @classmethod
    def of(cls, site: SiteFile, authority: x509.Certificate) -> SeenLists:
        return cls(site.state / "revocations.json", fingerprint(authority))

    def number(self) -> int:
        """Return it; 0 if there was none so far."""
        return self._read().get(self.authority, 0)

    def note(self, number: int) -> None:
        """Record a number, unless it is not the highest; may raise an OSError."""
        if number <= self.number():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with alone(self.path.parent):
            known = self._read()
            if number > known.get(self.authority, 0):
                said = json.dumps({**known, self.authority: number}, indent=2)
                write_whole(self.path, f"{said}\n".encode(), mode=0o600)

    def _read(self) -> dict[str, int]:
        try:
            said = json.loads(self.path.read_text(encoding="utf-8"))
            return {str(authority): int(number) for authority, number in said.items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, TypeError, AttributeError):
            raise RevocationListError(
                f"{self.path}: damaged; it records which lists of revoked certificates this site has seen. Ask whoever "
                "keeps the authority for the number of the newest list, install that, and remove this file",
                reason="memory",
                path=str(self.path),
            ) from None


def current_list(site: SiteFile, authority: x509.Certificate, now: datetime | None = None) -> RevocationList | None:
    """Return the list that a site has to go by; None if it has never had one.

    Raises
    ------
    RevocationListError
        If the list is missing or older although one was seen, has expired, has no number, or cannot be read.
    """
    seen = SeenLists.of(site, authority).number()
    found = load_list(site.revoked, authority)
    newest = (
        f"copy the newest from whoever keeps the authority, or from a neighbour, and install it: "
        f"deepca join {site.path} --revoked FILE"
    )
    if found is None:
        if not seen:
            return None
        raise RevocationListError(
            f"{site.revoked}: the list of revoked certificates is missing; this site has seen number {seen}; {newest}",
            reason="missing",
            path=str(site.revoked),
            seen=seen,
        )
    if found.number < seen:
        raise RevocationListError(
            f"{site.revoked}: this list of revoked certificates is number {found.number}, and this site has seen "
            f"number {seen}; {newest}",
            reason="older",
            path=str(site.revoked),
            number=found.number,
            seen=seen,
        )
    if found.expired(now or datetime.now(UTC)):
        raise RevocationListError(
            f"{site.revoked}: list {found.number} of revoked certificates expired on {found.ends:%Y-%m-%d}; whoever "
            f"keeps the authority signs the next (deepca join --reissue), and deepca join {site.path} --revoked FILE "
            "installs it",
            reason="expired",
            path=str(site.revoked),
            number=found.number,
            seen=seen,
        )
    return found


def expiry_warning(found: RevocationList | None, now: datetime) -> str:
    """Say that a list will expire soon; empty if it will not."""
    if found is None or found.ends - now > WARN_AHEAD:
        return ""
    days = max((found.ends - now).days, 0)
    return (
        f"list {found.number} of revoked certificates expires on {found.ends:%Y-%m-%d}, in {days} days, and from then "
        "on nobody is let in; whoever keeps the authority signs the next with deepca join --reissue"
    )
