"""Enrol sites in a network, renew their certificates and revoke them.

A site creates a request (`request_certificate`). The operator of the authority examines it (`examine_request`),
compares its fingerprint with the one that the site reports, and signs it (`sign_request`). The site installs the
certificate (`install`); its key never leaves the site. Every certificate comes with the newest revocation list, which
can also be installed separately (`install_revocation_list`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from deepca._util.files import sync_folder, write_atomic
from deepca.errors import CertificateError, InvalidInput, Refused, RevocationListError
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.authority import Authority
from deepca.sites.pki.certificates import (
    build_request,
    check_peer,
    describe_refusal,
    load_certificate,
    now_utc,
    parse_certificate,
    pem,
    read_content,
    site_of,
)
from deepca.sites.pki.column_key import SharedColumnKey, share_column_key
from deepca.sites.pki.identity import Identity, load_authority, read_secured_site
from deepca.sites.pki.issued import IssuedCertificate
from deepca.sites.pki.keys import fingerprint, load_key, new_key, pending_key_path, write_key
from deepca.sites.pki.requests import PendingRequest, examine_request, read_request, with_file
from deepca.sites.pki.revocation import (
    REVOCATION_LIST_DAYS,
    RevocationList,
    SeenRevocationLists,
    current_revocation_list,
    load_revocation_list,
    parse_revocation_list,
)

__all__ = [
    "CertificateRequest",
    "InstalledCertificate",
    "InstalledRevocationList",
    "PendingRequest",
    "Revocation",
    "SignedCertificate",
    "examine_request",
    "install",
    "install_revocation_list",
    "reissue",
    "request_certificate",
    "revoke",
    "sign_request",
]

REQUEST_FILE = "request.csr"
"""Name of the file that contains a site's certificate request."""
_LIST_HEADER = b"-----BEGIN X509 CRL-----"


@dataclass(frozen=True)
class CertificateRequest:
    """A request that the authority has yet to sign; ``fresh`` is True if its key was created for this request."""

    site: str
    request: Path
    key: Path
    fingerprint: str
    fresh: bool


@dataclass(frozen=True)
class SignedCertificate:
    """A certificate to return to its site, with its serial number in hexadecimal and the revocation list.

    A site that lacks the key for column names needs a copy of ``column_key`` as well, which is secret.
    """

    site: str
    serial: str
    certificate: Path
    fingerprint: str
    not_after: datetime
    revocation_list: RevocationList
    column_key: SharedColumnKey


@dataclass(frozen=True)
class InstalledCertificate:
    """An installed certificate; ``renewed`` is True if a new key replaced the old one."""

    site: str
    certificate: Path
    not_after: datetime
    renewed: bool


@dataclass(frozen=True)
class InstalledRevocationList:
    """An installed revocation list; ``replaced`` is True if it replaced another one."""

    site: str
    path: Path
    revocation_list: RevocationList
    replaced: bool


@dataclass(frozen=True)
class Revocation:
    """Newly revoked certificates, and the revocation list to hand out to all sites."""

    certificates: tuple[IssuedCertificate, ...]
    path: Path
    revocation_list: RevocationList


# ------------------------------------------------------------------------------------------------------------- the site


def request_certificate(path: Path, *, renew: bool = False) -> CertificateRequest:
    """Create a site's key, and its certificate request in ``request.csr`` next to ``site.toml``.

    A key that still waits for its certificate is reused, so that a certificate already on its way can be installed.

    Parameters
    ----------
    path : Path
        ``site.toml``, or its folder.
    renew : bool, default False
        Whether to request another certificate while the current one stays in use.
    """
    site = read_secured_site(path)
    if not renew and site.certificate.exists():
        until = load_certificate(site.certificate).not_valid_after_utc
        raise InvalidInput(
            f"{site.site} already has a certificate, valid until {until:%Y-%m-%d}; to request another, run deepca join "
            f"{site.path} --renew",
            file=str(site.certificate),
            parameter="certificate",
        )
    _finish_installation(site)
    place = pending_key_path(site.key) if renew else site.key
    fresh = not place.exists()
    key = new_key() if fresh else load_key(place)
    file = site.folder / REQUEST_FILE
    if fresh:
        write_key(place, key)
    try:
        write_atomic(file, pem(build_request(site.site, site.network.name, key)))
    except BaseException:
        if fresh:
            place.unlink(missing_ok=True)
        raise
    return CertificateRequest(site.site, file, place, fingerprint(key), fresh)


def install(path: Path, certificate: Path) -> InstalledCertificate:
    """Install a certificate and the key that was created for it; a running agent starts to use them.

    The change takes effect when the certificate file is replaced: until then the old key and certificate are in use,
    from then on the new ones, even if the process is interrupted before the key file is replaced as well.

    Raises
    ------
    CertificateError
        If the certificate is not accepted, for example because it has expired or is for another site.
    RevocationListError
        If the revocation list in the file, or the one in force, cannot be used.
    InvalidInput
        If a file cannot be used, or the certificate is for another key.
    """
    site = read_secured_site(path)
    content = read_content(certificate)
    found = parse_certificate(content, certificate)
    authority = load_authority(site)
    if _LIST_HEADER in content:
        _install_if_newest(site, authority, parse_revocation_list(content, authority, certificate))
    revoked = current_revocation_list(site, authority)
    try:
        check_peer(found.public_bytes(Encoding.DER), site.site, site.network.name, authority, revoked)
    except Refused as error:
        remedy = _remedy(site, found, error.reason)
        raise CertificateError(f"{certificate}: {describe_refusal(error, remedy)}", reason=error.reason) from None
    wanted = fingerprint(found)
    waiting = pending_key_path(site.key)
    renewed = waiting.exists() and fingerprint(load_key(waiting)) == wanted
    if not renewed and not (site.key.exists() and fingerprint(load_key(site.key)) == wanted):
        raise InvalidInput(
            f"{certificate}: this certificate is not for the key {site.key}; create the request at this site with "
            f"deepca join {site.path}{' --renew' if site.certificate.exists() else ''}",
            file=str(certificate),
            parameter="key",
        )
    write_atomic(site.certificate, pem(found))
    if renewed:
        waiting.replace(site.key)
        sync_folder(site.key.parent)
    (site.folder / REQUEST_FILE).unlink(missing_ok=True)
    return InstalledCertificate(site.site, site.certificate, Identity.load(site).not_after, renewed)


def _finish_installation(site: SiteFile) -> None:
    """Replace the key by the pending one if the latter's certificate is installed, as after an interruption."""
    waiting = pending_key_path(site.key)
    with contextlib.suppress(InvalidInput):  # a file is missing or unusable
        if fingerprint(load_key(waiting)) == fingerprint(load_certificate(site.certificate)):
            waiting.replace(site.key)
            sync_folder(site.key.parent)


def _remedy(site: SiteFile, refused: x509.Certificate, reason: str) -> str:
    """Return what to do about a certificate that cannot be installed; the authority signs no key twice."""
    if reason not in ("expired", "revoked"):
        return f"ask the operator of the authority for the file {site.site}.pem that was signed for this site"
    another = f"request another with deepca join {site.path} --renew"
    waiting = pending_key_path(site.key)
    if waiting.exists() and fingerprint(load_key(waiting)) == fingerprint(refused):
        return f"remove its key, {waiting}, and {another}"
    return another


def install_revocation_list(path: Path, file: Path) -> InstalledRevocationList:
    """Install a revocation list, unless this site has seen a newer one.

    A list without a number, which earlier versions may have left, is replaced.
    """
    site = read_secured_site(path)
    authority = load_authority(site)
    found = parse_revocation_list(read_content(file), authority, file)
    if found.expired(now_utc()):
        raise RevocationListError(
            f"{file}: revocation list {found.number} expired on {found.ends:%Y-%m-%d}; the operator of the "
            "authority has to sign a new one (deepca join --reissue)",
            reason="expired",
            path=str(file),
            number=found.number,
        )
    seen = max(SeenRevocationLists.of(site, authority).number(), _installed_number(site, authority))
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
    return InstalledRevocationList(site.site, site.revoked, found, there)


def _install_if_newest(site: SiteFile, authority: x509.Certificate, found: RevocationList) -> None:
    """Install a list unless a newer one is known: a running agent may have received one in the meantime."""
    seen = SeenRevocationLists.of(site, authority)
    if found.number >= max(seen.number(), _installed_number(site, authority)):
        write_atomic(site.revoked, found.pem)
        seen.note(found.number)


def _installed_number(site: SiteFile, authority: x509.Certificate) -> int:
    """Return the number of the installed list; 0 if it is missing or unusable."""
    try:
        there = load_revocation_list(site.revoked, authority)
    except RevocationListError:
        return 0
    return 0 if there is None else there.number


# -------------------------------------------------------------------------------------------------------- the authority


def sign_request(
    path: Path,
    authority: Path,
    *,
    expected: str,
    renew: bool = False,
    days: int = 365,
    passphrase: bytes | None = None,
) -> SignedCertificate:
    """Sign a request and write the certificate and the newest revocation list to ``<site>.pem`` next to it.

    The request must have the ``expected`` fingerprint, which the operator of the site confirms over another channel. If
    the site already has a valid certificate, ``renew`` must be True.

    Raises
    ------
    EnrolmentError
        If the fingerprint differs, the site already has a valid certificate and ``renew`` is False, or the passphrase
        is missing or wrong.
    InvalidInput
        If the request cannot be signed, for example because its key was signed before, or a file cannot be used.
    """
    found, csr = read_request(path, authority)  # read once: the request compared is the one signed
    found.check(expected, renew=renew)
    signer = Authority.load(authority, passphrase)
    column_key = share_column_key(authority)
    out = path.parent / f"{found.site}.pem"
    if out.exists():
        _check_replaceable(out, found.site)
    probe = out.with_name(f".{out.name}.probe")
    write_atomic(probe, b"")  # a key is signed only once, so check that the folder is writable first
    probe.unlink()
    try:
        signed = signer.sign(csr, days)
    except InvalidInput as error:
        raise with_file(error, path) from None
    revoked = signer.up_to_date_revocation_list()
    write_atomic(out, pem(signed) + revoked.pem)
    return SignedCertificate(
        site=found.site,
        serial=f"{signed.serial_number:x}",
        certificate=out,
        fingerprint=fingerprint(signed),
        not_after=signed.not_valid_after_utc,
        revocation_list=revoked,
        column_key=column_key,
    )


def revoke(
    which: str, authority: Path, *, days: int = REVOCATION_LIST_DAYS, passphrase: bytes | None = None
) -> Revocation:
    """Revoke the certificates of a site, or the one with a serial number, and sign the next revocation list."""
    signer = Authority.load(authority, passphrase)
    newly = signer.revoke(which, days=days)
    return _with_list(signer, newly)


def reissue(authority: Path, *, days: int = REVOCATION_LIST_DAYS, passphrase: bytes | None = None) -> Revocation:
    """Sign the next revocation list with the same entries, to replace the current one before it expires."""
    signer = Authority.load(authority, passphrase)
    signer.reissue(days)
    return _with_list(signer, ())


def _with_list(signer: Authority, newly: tuple[IssuedCertificate, ...]) -> Revocation:
    found = signer.revocations()
    assert found is not None
    return Revocation(newly, signer.folder / "revoked.pem", found)


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
