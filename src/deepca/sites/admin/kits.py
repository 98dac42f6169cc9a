"""The authority of a network, and what every site is handed.

How a site then comes to its certificate is in :mod:`deepca.sites.pki.enrolment`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from deepca._util.files import sync_folder, write_whole
from deepca.errors import InvalidInput
from deepca.sites.config.network_file import NetworkFile, read_network
from deepca.sites.config.site_file import write_site
from deepca.sites.pki.authority import LEDGER, Authority
from deepca.sites.pki.certificates import pem, request
from deepca.sites.pki.keys import new_key, write_key

__all__ = ["Kit", "Kits", "make_kits"]

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


def make_kits(
    network: Path, out: Path, *, trial: bool = False, days: int = 365, passphrase: bytes | None = None
) -> Kits:
    """Make the authority and one folder per site below ``out``; all of it or nothing.

    network : the ``network.toml``.  trial : keys and certificates of all sites are made here, for ``days``.
    passphrase : protects the authority's key.
    """
    found = read_network(network)
    text = network.read_bytes()  # with its remarks
    _check_free(found, out, trial=trial)
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(dir=out, prefix=".kits-") as folder:
            stage = Path(folder)
            authority = Authority.create(stage / "authority", found.name, passphrase=passphrase)
            revoked = (authority.folder / "revoked.pem").read_bytes()
            write_whole(stage / "authority" / "network.toml", text)
            for site in found.sites:
                kit = stage / site.name
                write_whole(kit / "network.toml", text)
                write_whole(kit / "authority.pem", pem(authority.certificate))
                write_whole(kit / "revoked.pem", revoked)
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


def _check_free(network: NetworkFile, out: Path, *, trial: bool) -> None:
    """Nothing is overwritten."""
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"{out}: this is a file; give the name of a folder")
    kept = ("authority.pem", "authority.key", "issued.json", "network.toml", "revoked.pem", LEDGER)
    names = [f"authority/{file}" for file in kept]
    for site in network.sites:
        files = ("network.toml", "authority.pem", "revoked.pem", "site.toml")
        names += [f"{site.name}/{file}" for file in ("site.pem", "site.key") if trial]
        names += [f"{site.name}/{file}" for file in files]
    for name in names:
        if (out / name).exists():
            raise InvalidInput(
                f"{out / name} is there already and is not overwritten; give another --out, or remove it"
            )


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
