"""Enrol sites in a network, renew their certificates and revoke them.

A site creates a request (`ask`). The operator of the authority examines it (`examine_request`), compares its
fingerprint with the one that the site reports, and signs it (`sign_request`). The site installs the certificate
(`install`); its key never leaves the site. Every certificate comes with the newest revocation list, which can also be
installed on its own (`install_list`).
"""

from __future__ import annotations

import contextlib
import copy
import difflib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from deepca._util.files import sync_folder, write_atomic
from deepca.errors import CertificateError, EnrolmentError, InvalidInput, Refused, RevocationListError
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
from deepca.sites.pki.keys import fingerprint, load_key, new_key, pending_key_path, write_key
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
"""Name of the file with a site's request."""
_LIST_HEADER = b"-----BEGIN X509 CRL-----"


@dataclass(frozen=True)
class Asked:
    """A request that the authority has yet to sign; ``fresh`` is True if its key is new."""

    site: str
    request: Path
    key: Path
    fingerprint: str
    fresh: bool


@dataclass(frozen=True)
class PendingRequest:
    """A request to review before signing it; ``valid`` lists the valid certificates that the site already has."""

    site: str
    network: str
    fingerprint: str
    valid: tuple[Issued, ...]

    def check(self, expected: str, *, renew: bool) -> None:
        """Raise EnrolmentError if the fingerprint is not the expected one or the site already has a valid certificate.

        With ``renew``, the site may already have one.
        """
        if self.fingerprint != expected:
            raise EnrolmentError(
                f"the request of {self.site} has the fingerprint {self.fingerprint}, not {expected}; nothing was "
                f"signed. Somebody may have replaced the request: ask the operator of {self.site} for it again",
                reason="fingerprint",
                site=self.site,
                fingerprint=self.fingerprint,
            )
        if self.valid and not renew:
            last = self.valid[-1]
            raise EnrolmentError(
                f"{self.site} already has a certificate, valid until {last.not_after[:10]} (serial {last.serial}); "
                "give renew=True if its operator asked for it; if not, do not sign: somebody else asks in its name",
                reason="certificate exists",
                site=self.site,
                fingerprint=self.fingerprint,
            )


@dataclass(frozen=True)
class Signed:
    """A certificate to return to its site, with its serial number in hexadecimal and the revocation list."""

    site: str
    serial: str
    certificate: Path
    fingerprint: str
    not_after: datetime
    list: RevocationList


@dataclass(frozen=True)
class Installed:
    """An installed certificate; ``renewed`` is True if a new key replaced the old one."""

    site: str
    certificate: Path
    not_after: datetime
    renewed: bool


@dataclass(frozen=True)
class InstalledList:
    """An installed revocation list; ``replaced`` is True if it replaced another one."""

    site: str
    path: Path
    list: RevocationList
    replaced: bool


@dataclass(frozen=True)
class Revoked:
    """Newly revoked certificates, and the revocation list to hand out to all sites."""

    certificates: tuple[Issued, ...]
    path: Path
    list: RevocationList


# ------------------------------------------------------------------------------------------------------------- the site


def ask(path: Path, *, renew: bool = False) -> Asked:
    """Create a site's key, and its certificate request in ``request.csr`` next to ``site.toml``.

    A key that still waits for its certificate is reused, so that a certificate already on its way can be installed.

    Parameters
    ----------
    path : Path
        ``site.toml``, or its folder.
    renew : bool, default False
        Whether to request another certificate while the current one stays in use.
    """
    site = _read_site(path)
    if not renew and site.certificate.exists():
        until = load_certificate(site.certificate).not_valid_after_utc
        raise InvalidInput(
            f"{site.site} already has a certificate, valid until {until:%Y-%m-%d}; to request another, run deepca join "
            f"{site.path} --renew",
            file=str(site.certificate),
            parameter="certificate",
        )
    place = pending_key_path(site.key) if renew else site.key
    fresh = not place.exists()
    key = new_key() if fresh else load_key(place)
    file = site.folder / REQUEST
    if fresh:
        write_key(place, key)
    try:
        write_atomic(file, pem(request(site.site, site.network.name, key)))
    except BaseException:
        if fresh:
            place.unlink(missing_ok=True)
        raise
    return Asked(site.site, file, place, fingerprint(key), fresh)


def install(path: Path, certificate: Path) -> Installed:
    """Install a certificate and the key that was created for it; a running agent starts to use them.

    The change takes effect when the certificate file is replaced: until then the old key and certificate are in use,
    from then on the new ones, even if the process is interrupted before the key file is replaced as well.
    """
    site = _read_site(path)
    content = read_content(certificate)
    found = parse_certificate(content, certificate)
    authority = load_authority(site)
    if _LIST_HEADER in content:
        _install_if_newest(site, authority, parse_list(content, authority, certificate))
    revoked = current_list(site, authority)
    try:
        check_peer(found.public_bytes(Encoding.DER), site.site, site.network.name, authority, revoked)
    except Refused as error:
        raise CertificateError(
            f"{certificate}: {error}; ask the operator of the authority for another certificate", reason=error.reason
        ) from None
    wanted = fingerprint(found)
    waiting = pending_key_path(site.key)
    renewed = waiting.exists() and fingerprint(load_key(waiting)) == wanted
    if not renewed and not (site.key.exists() and fingerprint(load_key(site.key)) == wanted):
        raise InvalidInput(
            f"{certificate}: this certificate is not for the key {site.key}; create the request at this site with "
            f"deepca join {site.path}",
            file=str(certificate),
            parameter="key",
        )
    write_atomic(site.certificate, pem(found))
    if renewed:
        waiting.replace(site.key)
        sync_folder(site.key.parent)
    (site.folder / REQUEST).unlink(missing_ok=True)
    return Installed(site.site, site.certificate, Identity.load(site).not_after, renewed)


def install_list(path: Path, file: Path) -> InstalledList:
    """Install a revocation list, unless this site has seen a newer one.

    A list without a number, which earlier versions may have left, is replaced.
    """
    site = _read_site(path)
    authority = load_authority(site)
    found = parse_list(read_content(file), authority, file)
    if found.expired(now_utc()):
        raise RevocationListError(
            f"{file}: revocation list {found.number} expired on {found.ends:%Y-%m-%d}; the operator of the "
            "authority has to sign a new one (deepca join --reissue)",
            reason="expired",
            path=str(file),
            number=found.number,
        )
    seen = max(SeenLists.of(site, authority).number(), _installed_number(site, authority))
    if found.number < seen:
        raise RevocationListError(
            f"{file}: this is revocation list {found.number}, but this site has already seen number {seen}; ask the "
            "operator of the authority for the newest list",
            reason="older",
            path=str(file),
            number=found.number,
            seen=seen,
        )
    there = site.revoked.exists()
    _install_if_newest(site, authority, found)
    return InstalledList(site.site, site.revoked, found, there)


def _install_if_newest(site: SiteFile, authority: x509.Certificate, found: RevocationList) -> None:
    """Install a list unless a newer one is known: a running agent may have received one in the meantime."""
    seen = SeenLists.of(site, authority)
    if found.number >= max(seen.number(), _installed_number(site, authority)):
        write_atomic(site.revoked, found.pem)
        seen.note(found.number)


def _installed_number(site: SiteFile, authority: x509.Certificate) -> int:
    """Return the number of the installed list; 0 if it is missing or unusable."""
    try:
        there = load_list(site.revoked, authority)
    except RevocationListError:
        return 0
    return 0 if there is None else there.number


def _read_site(path: Path) -> SiteFile:
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


# -------------------------------------------------------------------------------------------------------- the authority


def examine_request(path: Path, authority: Path) -> PendingRequest:
    """Read a request for review before it is signed; raise InvalidInput if it could not be signed."""
    return _read_request(path, authority)[0]


def _read_request(path: Path, authority: Path) -> tuple[PendingRequest, x509.CertificateSigningRequest]:
    own = load_own_certificate(authority)
    csr = load_request(path)
    try:
        site, _ = check_request(csr, network_of(own))
    except InvalidInput as error:
        raise _about_file(error, path) from None
    _check_member(site, authority / "network.toml")
    now = now_utc()
    valid = tuple(one for one in read_issued(authority) if one.site == site and one.valid(now))
    return PendingRequest(site, network_of(own), fingerprint(csr), valid), csr


def sign_request(
    path: Path,
    authority: Path,
    *,
    expected: str,
    renew: bool = False,
    days: int = 365,
    passphrase: bytes | None = None,
) -> Signed:
    """Sign a request, and write the certificate and the newest revocation list to ``<site>.pem`` next to it.

    The request must have the ``expected`` fingerprint, which the operator of the site confirms over another channel. If
    the site already has a valid certificate, ``renew`` must be True.

    Raises
    ------
    EnrolmentError
        If the fingerprint differs, the site already has a certificate, or the passphrase is wrong.
    """
    found, csr = _read_request(path, authority)  # read once: the request compared is the one signed
    found.check(expected, renew=renew)
    signer = Authority.load(authority, passphrase)
    out = path.parent / f"{found.site}.pem"
    if out.exists():
        _check_replaceable(out, found.site)
    probe = out.with_name(f".{out.name}.probe")
    write_atomic(probe, b"")  # a key is signed only once, so check that the folder is writable first
    probe.unlink()
    try:
        signed = signer.sign(csr, days)
    except InvalidInput as error:
        raise _about_file(error, path) from None
    revoked = signer.up_to_date_list()
    write_atomic(out, pem(signed) + revoked.pem)
    return Signed(
        found.site, f"{signed.serial_number:x}", out, fingerprint(signed), signed.not_valid_after_utc, revoked
    )


def revoke(which: str, authority: Path, *, days: int = LIST_DAYS, passphrase: bytes | None = None) -> Revoked:
    """Revoke the certificates of a site, or the one with a serial number, and sign the next revocation list."""
    signer = Authority.load(authority, passphrase)
    newly = signer.revoke(which, days=days)
    return _with_list(signer, newly)


def reissue(authority: Path, *, days: int = LIST_DAYS, passphrase: bytes | None = None) -> Revoked:
    """Sign the next revocation list with the same entries, to replace the current one before it expires."""
    signer = Authority.load(authority, passphrase)
    signer.reissue(days)
    return _with_list(signer, ())


def _with_list(signer: Authority, newly: tuple[Issued, ...]) -> Revoked:
    found = signer.revocations()
    assert found is not None
    return Revoked(newly, signer.folder / "revoked.pem", found)


def _check_member(site: str, network: Path) -> None:
    """Raise InvalidInput if the authority's ``network.toml`` does not list the site."""
    if not network.exists():
        return
    names = [entry.name for entry in read_network(network).sites]
    if site not in names:
        near = difflib.get_close_matches(site, names, n=1)
        advice = f"check whether {near[0]} misspelled its name, or " if near else ""
        raise InvalidInput(
            f"{site} is not a site in {network}; {advice}add it to that file if it is new",
            file=str(network),
            parameter="site",
            value=site,
        )


def _check_replaceable(out: Path, site: str) -> None:
    """Raise InvalidInput unless a file contains an earlier certificate of the same site."""
    with contextlib.suppress(InvalidInput, ValueError):
        if site_of(load_certificate(out))[1] == site:
            return
    raise InvalidInput(
        f"{out} already exists and is not a certificate of {site}, so it is not overwritten; move it away",
        file=str(out),
        value=site,
    )


def _about_file(error: InvalidInput, path: Path) -> InvalidInput:
    """Return a copy of an error with the file in its message and attributes."""
    located = copy.copy(error)
    located.file, located.args = str(path), (f"{path}: {error}",)
    return located
