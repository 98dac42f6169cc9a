"""How a site comes to its certificate, and loses it.

A site asks (`ask`); the keeper of the authority looks at the request (`examine_request`), compares its fingerprint with
what the site sees, and signs (`sign_request`); the site takes what it gets back (`install`). Its key never travels.
With every certificate comes the newest list of revoked ones; it can also be installed alone (`install_list`).
"""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from deepca._util.files import sync_folder, write_whole
from deepca.errors import EnrolmentError, InvalidInput, Refused, RevocationListError
from deepca.sites.config.network_file import read_network
from deepca.sites.config.site_file import SiteFile, read_site
from deepca.sites.pki.authority import Authority, Issued, check_request, load_own_certificate, network_of, read_issued
from deepca.sites.pki.certificates import (
    check_peer,
    load_certificate,
    load_request,
    now_utc,
    parse_certificate,
    pem,
    read_content,
    request,
    site_of,
)
from deepca.sites.pki.identity import Identity, load_authority
from deepca.sites.pki.keys import fingerprint, load_key, new_key, pending, write_key
from deepca.sites.pki.revocation import LIST_DAYS, RevocationList, SeenLists, current_list, load_list, parse_list

__all__ = [
    "Asked",
    "Installed",
    "InstalledList",
    "PendingRequest",
    "Revoked",
    "Signed",
    "ask",
    "examine_request",
    "install",
    "install_list",
    "reissue",
    "revoke",
    "sign_request",
]

REQUEST = "request.csr"
_LIST = b"-----BEGIN X509 CRL-----"


@dataclass(frozen=True)
class Asked:
    """A request that waits to be signed. ``fresh`` : whether its key was made just now."""

    site: str
    request: Path
    key: Path
    fingerprint: str
    fresh: bool


@dataclass(frozen=True)
class PendingRequest:
    """A request as the keeper sees it. ``valid`` : certificates of the same site that can still be used."""

    site: str
    network: str
    fingerprint: str
    valid: tuple[Issued, ...]

    def check(self, expected: str, *, renewal: bool) -> None:
        """Raise an EnrolmentError if the fingerprint is another than expected, or there is a valid certificate.

        renewal : whether there may be one.
        """
        if self.fingerprint != expected:
            raise EnrolmentError(
                f"the fingerprint of this request of {self.site} is {self.fingerprint}, not {expected}; somebody "
                "may have put in another request: nothing was signed",
                reason="fingerprint",
                site=self.site,
                fingerprint=self.fingerprint,
            )
        if self.valid and not renewal:
            last = self.valid[-1]
            raise EnrolmentError(
                f"{self.site} has a certificate that is valid until {last.not_after[:10]} (serial {last.serial}); "
                "if the site has asked for a renewal, give --renew as well; if not, somebody else asks in its name",
                reason="certificate exists",
                site=self.site,
                fingerprint=self.fingerprint,
            )


@dataclass(frozen=True)
class Signed:
    """A certificate to hand back to its site. ``serial`` : in hexadecimal. ``list`` : the one that goes with it."""

    site: str
    serial: str
    certificate: Path
    fingerprint: str
    not_after: datetime
    list: RevocationList


@dataclass(frozen=True)
class Installed:
    """A certificate in its place. ``renewed`` : whether it came with a new key in place of an old one."""

    site: str
    certificate: Path
    not_after: datetime
    renewed: bool


@dataclass(frozen=True)
class InstalledList:
    """A list of revoked certificates in its place. ``replaced`` : whether there was another one."""

    site: str
    path: Path
    list: RevocationList
    replaced: bool


@dataclass(frozen=True)
class Revoked:
    """What is newly revoked, and the list to hand to all sites."""

    certificates: tuple[Issued, ...]
    path: Path
    list: RevocationList


# ------------------------------------------------------------------------------------------------------------- the site


def ask(path: Path, *, renew: bool = False) -> Asked:
    """Make a key at its site, and a request for its certificate in ``request.csr`` beside ``site.toml``.

    renew : while the certificate in use stays as it is. A key that waits for its certificate already is asked for
    again, so that a certificate that is on its way remains of use.
    """
    site = _read_site(path)
    if not renew and site.certificate.exists():
        until = load_certificate(site.certificate).not_valid_after_utc
        raise InvalidInput(
            f"{site.site} has a certificate, until {until:%Y-%m-%d}; deepca join {site.path} --renew asks for another"
        )
    place = pending(site.key) if renew else site.key
    fresh = not place.exists()
    key = new_key() if fresh else load_key(place)
    asked = site.folder / REQUEST
    if fresh:
        write_key(place, key)
    try:
        write_whole(asked, pem(request(site.site, site.network.name, key)))
    except BaseException:
        if fresh:
            place.unlink(missing_ok=True)
        raise
    return Asked(site.site, asked, place, fingerprint(key), fresh)


def install(path: Path, certificate: Path) -> Installed:
    """Put a certificate in its place, with the key that was made for it; a running agent finds both.

    What counts is the moment at which the certificate gets its name: until then the old key and certificate are in use,
    and from then on the new ones, even if this is cut short before the key has its name, too.
    """
    site = _read_site(path)
    content = read_content(certificate)
    found = parse_certificate(content, certificate)
    authority = load_authority(site)
    if _LIST in content:
        _take_list(site, authority, parse_list(content, authority, certificate))
    revoked = current_list(site, authority)
    try:
        check_peer(found.public_bytes(Encoding.DER), site.site, site.network.name, authority, revoked)
    except Refused as error:
        raise InvalidInput(f"{certificate}: {error}; ask whoever keeps the authority for another one") from None
    wanted = fingerprint(found)
    waiting = pending(site.key)
    renewed = waiting.exists() and fingerprint(load_key(waiting)) == wanted
    if not renewed and not (site.key.exists() and fingerprint(load_key(site.key)) == wanted):
        raise InvalidInput(
            f"{certificate}: it is for another key than {site.key}; the request has to be made here, with "
            f"deepca join {site.path}"
        )
    write_whole(site.certificate, pem(found))
    if renewed:
        waiting.replace(site.key)
        sync_folder(site.key.parent)
    (site.folder / REQUEST).unlink(missing_ok=True)
    return Installed(site.site, site.certificate, Identity.load(site).not_after, renewed)


def install_list(path: Path, file: Path) -> InstalledList:
    """Put a list of revoked certificates in its place, unless it is older than one that was seen here.

    A list without a number, as earlier versions may have left it, is replaced.
    """
    site = _read_site(path)
    authority = load_authority(site)
    found = parse_list(read_content(file), authority, file)
    if found.expired(now_utc()):
        raise RevocationListError(
            f"{file}: list {found.number} expired on {found.ends:%Y-%m-%d}; whoever keeps the authority signs the next "
            "with deepca join --reissue",
            reason="expired",
            path=str(file),
            number=found.number,
        )
    seen = max(SeenLists.of(site, authority).number(), _number_of(site, authority))
    if found.number < seen:
        raise RevocationListError(
            f"{file}: this is list {found.number}, and this site has seen number {seen}; ask whoever keeps the "
            "authority for the newest",
            reason="older",
            path=str(file),
            number=found.number,
            seen=seen,
        )
    there = site.revoked.exists()
    _take_list(site, authority, found)
    return InstalledList(site.site, site.revoked, found, there)


def _take_list(site: SiteFile, authority: x509.Certificate, found: RevocationList) -> None:
    """Put a list in its place if it is the newest; a running agent may have been passed a newer one."""
    seen = SeenLists.of(site, authority)
    if found.number >= max(seen.number(), _number_of(site, authority)):
        write_whole(site.revoked, found.pem)
        seen.note(found.number)


def _number_of(site: SiteFile, authority: x509.Certificate) -> int:
    """Return the number of the list that is in place; 0 for one that cannot be used."""
    try:
        there = load_list(site.revoked, authority)
    except RevocationListError:
        return 0
    return 0 if there is None else there.number


def _read_site(path: Path) -> SiteFile:
    """Read the ``site.toml`` of a site that uses certificates."""
    site = read_site(path)
    if site.plaintext:
        raise InvalidInput(f"{site.path}: plaintext = true: this site uses no certificates")
    return site


# ----------------------------------------------------------------------------------------------------------- the keeper


def examine_request(path: Path, authority: Path) -> PendingRequest:
    """Read a request for the keeper to decide on; an InvalidInput if it could not be signed anyway."""
    return _examined(path, authority)[0]


def _examined(path: Path, authority: Path) -> tuple[PendingRequest, x509.CertificateSigningRequest]:
    own = load_own_certificate(authority)
    asked = load_request(path)
    try:
        site, _ = check_request(asked, network_of(own))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    _check_member(site, authority / "network.toml")
    now = now_utc()
    valid = tuple(one for one in read_issued(authority) if one.site == site and one.valid(now))
    return PendingRequest(site, network_of(own), fingerprint(asked), valid), asked


def sign_request(
    path: Path,
    authority: Path,
    *,
    expected: str,
    renewal: bool = False,
    days: int = 365,
    passphrase: bytes | None = None,
) -> Signed:
    """Sign a request; the certificate and the list that goes with it are written next to it, as ``<site>.pem``.

    expected : the fingerprint that the site has told the keeper.  renewal : sign although the site has a certificate
    that is valid.

    Raises
    ------
    EnrolmentError
        If the fingerprint is another, the site has a certificate already, or the passphrase is wrong.
    """
    found, asked = _examined(path, authority)  # read once: what is compared is what is signed
    found.check(expected, renewal=renewal)
    keeper = Authority.load(authority, passphrase)
    out = path.parent / f"{found.site}.pem"
    if out.exists():
        _check_replaceable(out, found.site)
    probe = out.with_name(f".{out.name}.probe")
    write_whole(probe, b"")  # a key is signed once: better know now that nothing can be written
    probe.unlink()
    try:
        signed = keeper.sign(asked, days)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    revoked = keeper.up_to_date_list()
    write_whole(out, pem(signed) + revoked.pem)
    return Signed(
        found.site, f"{signed.serial_number:x}", out, fingerprint(signed), signed.not_valid_after_utc, revoked
    )


def revoke(which: str, authority: Path, *, days: int = LIST_DAYS, passphrase: bytes | None = None) -> Revoked:
    """Revoke the certificates of a site (or the one with this serial number), and sign the next list."""
    keeper = Authority.load(authority, passphrase)
    newly = keeper.revoke(which, days=days)
    return _handed_out(keeper, newly)


def reissue(authority: Path, *, days: int = LIST_DAYS, passphrase: bytes | None = None) -> Revoked:
    """Sign the next list, with the same certificates on it, before the last one expires."""
    keeper = Authority.load(authority, passphrase)
    keeper.reissue(days)
    return _handed_out(keeper, ())


def _handed_out(keeper: Authority, newly: tuple[Issued, ...]) -> Revoked:
    found = keeper.revocations()
    assert found is not None
    return Revoked(newly, keeper.folder / "revoked.pem", found)


def _check_member(site: str, network: Path) -> None:
    """Whether the keeper's own ``network.toml`` knows the site."""
    if not network.exists():
        return
    names = [entry.name for entry in read_network(network).sites]
    if site not in names:
        near = difflib.get_close_matches(site, names, n=1)
        meant = f"did {near[0]} misspell its name? " if near else ""
        raise InvalidInput(f"{site} is no site of {network}; {meant}Add it there if it has become one")


def _check_replaceable(out: Path, site: str) -> None:
    """Whether a file is an earlier certificate of the same site."""
    with contextlib.suppress(InvalidInput, ValueError):
        if site_of(load_certificate(out))[1] == site:
            return
    raise InvalidInput(f"{out} is there already and is no certificate of {site}; it is not overwritten")
