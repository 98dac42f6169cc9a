"""What every site is handed, and how a site comes to its certificate.

``make_kits`` makes the authority and a folder per site. A site then asks (`ask`), the keeper of the authority signs
(`sign_request`), and the site takes what it gets back (`install`); its key never travels.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.serialization import Encoding

from deepca._files import sync_folder, write_whole
from deepca.errors import InvalidInput, Refused
from deepca.sites.certificates import (
    Authority,
    Identity,
    Issued,
    Key,
    check_peer,
    fingerprint,
    load_certificate,
    load_key,
    load_request,
    load_revoked,
    new_key,
    pem,
    pending,
    request,
    site_of,
    write_key,
)
from deepca.sites.config import NetworkFile, SiteFile, read_network, read_site, write_site

__all__ = [
    "Asked",
    "Installed",
    "Kit",
    "Kits",
    "Revoked",
    "Signed",
    "ask",
    "install",
    "make_kits",
    "revoke",
    "sign_request",
]

REQUEST = "request.csr"
_PLACEHOLDER = "rows.csv"


@dataclass(frozen=True)
class Kit:
    """The folder of one site. ``complete`` : whether key and certificate are in it."""

    site: str
    address: str | None
    neighbours: tuple[str, ...]
    folder: Path
    complete: bool


@dataclass(frozen=True)
class Kits:
    """Everything that was made for a network. ``authority`` : the folder to keep."""

    network: NetworkFile
    authority: Path
    sites: tuple[Kit, ...]


@dataclass(frozen=True)
class Asked:
    """A request that waits to be signed. ``fresh`` : whether its key was made just now."""

    site: str
    request: Path
    key: Path
    fingerprint: str
    fresh: bool


@dataclass(frozen=True)
class Signed:
    """A certificate to hand back to its site. ``serial`` : in hexadecimal."""

    site: str
    serial: str
    certificate: Path
    fingerprint: str
    not_after: datetime


@dataclass(frozen=True)
class Installed:
    """A certificate in its place. ``renewed`` : whether it came with a new key in place of an old one."""

    site: str
    certificate: Path
    not_after: datetime
    renewed: bool


@dataclass(frozen=True)
class Revoked:
    """What is revoked now, and the list to hand to all sites."""

    certificates: tuple[Issued, ...]
    list: Path


def make_kits(network: Path, out: Path, *, trial: bool = False, days: int = 365) -> Kits:
    """The authority and one folder per site below ``out``; all of it or nothing.

    network : the ``network.toml``.  trial : keys and certificates of all sites are made here, for ``days``.
    """
    found = read_network(network)
    text = network.read_bytes()  # with its remarks
    _check_free(found, out, trial=trial)
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(dir=out, prefix=".kits-") as folder:
            stage = Path(folder)
            authority = Authority.create(stage / "authority", found.name)
            write_whole(stage / "authority" / "network.toml", text)
            for site in found.sites:
                kit = stage / site.name
                write_whole(kit / "network.toml", text)
                write_whole(kit / "authority.pem", pem(authority.certificate))
                write_site(kit / "site.toml", site.name, _PLACEHOLDER, edit_data=True)
                if trial:
                    key = new_key()
                    write_whole(kit / "site.pem", pem(authority.sign(request(site.name, found.name, key), days)))
                    write_key(kit / "site.key", key)
            _move(stage, out)
    except BaseException:
        if new:
            with contextlib.suppress(OSError):
                out.rmdir()
        raise
    names = [site.name for site in found.sites]
    kits = [
        Kit(site.name, site.address, tuple(names[j] for j in found.neighbors(site.name)), out / site.name, trial)
        for site in found.sites
    ]
    return Kits(found, out / "authority", tuple(kits))


def ask(path: Path, *, renew: bool = False) -> Asked:
    """Make a key at its site, and a request for its certificate in ``request.csr`` beside ``site.toml``.

    renew : while the certificate in use stays as it is. A key that waits for its certificate already is asked for
    again, so that a certificate that is on its way remains of use.
    """
    site = read_site(path)
    _needs_certificates(site)
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


def sign_request(path: Path, authority: Path, *, days: int = 365) -> Signed:
    """Sign a request; the certificate is written next to it, as ``<site>.pem``."""
    keeper = Authority.load(authority)
    asked = load_request(path)
    try:
        _, site = site_of(asked)
    except ValueError:
        raise InvalidInput(f"{path}: this request names no site; make it with deepca join") from None
    _check_member(site, authority / "network.toml")
    out = path.parent / f"{site}.pem"
    if out.exists():
        _check_replaceable(out, site)
    probe = out.with_name(f".{out.name}.probe")
    write_whole(probe, b"")  # a key is signed once: better know now that nothing can be written
    probe.unlink()
    try:
        signed = keeper.sign(asked, days)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    write_whole(out, pem(signed))
    return Signed(site, f"{signed.serial_number:x}", out, fingerprint(signed), signed.not_valid_after_utc)


def install(path: Path, certificate: Path) -> Installed:
    """Put a certificate in its place, with the key that was made for it; a running agent finds both.

    What counts is the moment at which the certificate gets its name: until then the old key and certificate are in use,
    and from then on the new ones, even if this is cut short before the key has its name, too.
    """
    site = read_site(path)
    _needs_certificates(site)
    found = load_certificate(certificate)
    authority = load_certificate(site.authority, hint="it comes with the kit that deepca init made")
    try:
        check_peer(
            found.public_bytes(Encoding.DER),
            site.site,
            site.network.name,
            authority,
            load_revoked(site.revoked, authority),
        )
    except Refused as error:
        raise InvalidInput(f"{certificate}: {error}; ask whoever keeps the authority for another one") from None
    wanted = fingerprint(found)
    waiting = pending(site.key)
    renewed = waiting.exists() and _is(load_key(waiting), wanted)
    if not renewed and not (site.key.exists() and _is(load_key(site.key), wanted)):
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


def revoke(which: str, authority: Path) -> Revoked:
    """Certificates of a site (or the one with this serial number) are no longer valid."""
    keeper = Authority.load(authority)
    return Revoked(keeper.revoke(which), authority / "revoked.pem")


def _is(key: Key, wanted: str) -> bool:
    return fingerprint(key) == wanted


def _needs_certificates(site: SiteFile) -> None:
    if site.plaintext:
        raise InvalidInput(f"{site.path}: plaintext = true: this site uses no certificates")


def _check_free(network: NetworkFile, out: Path, *, trial: bool) -> None:
    """Nothing is overwritten."""
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"{out}: this is a file; give the name of a folder")
    names = ["authority/authority.pem", "authority/authority.key", "authority/issued.json", "authority/network.toml"]
    for site in network.sites:
        files = ("network.toml", "authority.pem", "site.toml", *(("site.pem", "site.key") if trial else ()))
        names += [f"{site.name}/{file}" for file in files]
    for name in names:
        if (out / name).exists():
            raise InvalidInput(
                f"{out / name} is there already and is not overwritten; give another --out, or remove it"
            )


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


def _move(stage: Path, out: Path) -> None:
    """Files of ``stage`` to the same places below ``out``; taken back if that does not work for all of them."""
    with _undone() as made:
        for source in sorted(stage.rglob("*")):
            target = out / source.relative_to(stage)
            if source.is_dir():
                if not target.is_dir():
                    target.mkdir(mode=source.stat().st_mode & 0o777)
                    made.append(target)
            elif target.exists():
                raise InvalidInput(f"{target} is there already and is not overwritten")
            else:
                source.replace(target)
                made.append(target)
        for folder in {path.parent for path in made}:
            sync_folder(folder)


@contextlib.contextmanager
def _undone() -> Iterator[list[Path]]:
    """Files and folders named in the list are removed, the latest first, if anything goes wrong."""
    made: list[Path] = []
    try:
        yield made
    except BaseException:
        for path in reversed(made):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        raise
