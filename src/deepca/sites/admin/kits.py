"""Create the authority of a network, and a kit for every site.

:mod:`deepca.sites.pki.enrolment` then gives every site its certificate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from deepca._util.files import sync_folder, write_atomic
from deepca.errors import InvalidInput
from deepca.sites.config.network_file import NetworkFile, read_network
from deepca.sites.config.site_file import write_site
from deepca.sites.pki.authority import LEDGER, Authority
from deepca.sites.pki.certificates import build_request, pem
from deepca.sites.pki.column_key import COLUMN_KEY_FILE, share_column_key, write_column_key
from deepca.sites.pki.keys import new_key, write_key

__all__ = ["Kit", "Kits", "make_kits"]

_DATA_PLACEHOLDER = "rows.csv"  # which operators replace with the name of their own file


@dataclass(frozen=True)
class Kit:
    """The folder of one site; ``complete`` is True if it contains a key and certificate."""

    site: str
    address: str | None
    neighbours: tuple[str, ...]
    folder: Path
    complete: bool


@dataclass(frozen=True)
class Kits:
    """Everything that was created for a network; ``authority`` is the folder to keep secret."""

    network: NetworkFile
    authority: Path
    sites: tuple[Kit, ...]


def make_kits(
    network: Path, out: Path, *, trial: bool = False, days: int = 365, passphrase: bytes | None = None
) -> Kits:
    """Create the authority and one folder per site below ``out``, or nothing if an error occurs.

    Parameters
    ----------
    network : Path
        The ``network.toml``.
    out : Path
        Where to create the folders.
    trial : bool, default False
        Whether to create the keys and certificates of all sites as well.
    days : int, default 365
        Days for which those certificates are valid.
    passphrase : bytes, optional
        Encrypts the key of the authority.

    Raises
    ------
    InvalidInput
        If a file already exists; ``file`` names it.
    """
    found = read_network(network)
    text = network.read_bytes()  # including its comments
    _check_free(found, out, trial=trial)
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(dir=out, prefix=".kits-") as folder:
            stage = Path(folder)
            authority = Authority.create(stage / "authority", found.name, passphrase=passphrase)
            revoked = (authority.folder / "revoked.pem").read_bytes()
            write_atomic(stage / "authority" / "network.toml", text)
            column_key = share_column_key(authority.folder).key
            for site in found.sites:
                kit = stage / site.name
                write_atomic(kit / "network.toml", text)
                write_atomic(kit / "authority.pem", pem(authority.certificate))
                write_atomic(kit / "revoked.pem", revoked)
                write_column_key(kit / COLUMN_KEY_FILE, column_key)
                write_site(kit / "site.toml", site.name, _DATA_PLACEHOLDER, edit_data=True)
                if trial:
                    key = new_key()
                    write_atomic(kit / "site.pem", pem(authority.sign(build_request(site.name, found.name, key), days)))
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
    """Raise InvalidInput if a file would be overwritten."""
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"{out}: this is a file; give the name of a folder", file=str(out))
    kept = ("authority.pem", "authority.key", "issued.json", "network.toml", "revoked.pem", COLUMN_KEY_FILE, LEDGER)
    names = [f"authority/{file}" for file in kept]
    for site in network.sites:
        files = ("network.toml", "authority.pem", "revoked.pem", COLUMN_KEY_FILE, "site.toml")
        names += [f"{site.name}/{file}" for file in ("site.pem", "site.key") if trial]
        names += [f"{site.name}/{file}" for file in files]
    for name in names:
        if (out / name).exists():
            raise InvalidInput(
                f"{out / name} already exists and is not overwritten; choose another folder, or remove the file",
                file=str(out / name),
            )


def _move(stage: Path, out: Path) -> None:
    """Move all files of ``stage`` to the same places below ``out``; undo everything if one cannot be moved."""
    with _undo_on_error() as made:
        for source in sorted(stage.rglob("*")):
            target = out / source.relative_to(stage)
            if source.is_dir():
                if not target.is_dir():
                    target.mkdir(mode=source.stat().st_mode & 0o777)
                    made.append(target)
            elif target.exists():
                raise InvalidInput(
                    f"{target} already exists and is not overwritten; choose another folder, or remove the file",
                    file=str(target),
                )
            else:
                source.replace(target)
                made.append(target)
        for folder in {path.parent for path in made}:
            sync_folder(folder)


@contextlib.contextmanager
def _undo_on_error() -> Iterator[list[Path]]:
    """Yield a list; if an error occurs, remove the files and folders that were added to it, latest first."""
    made: list[Path] = []
    try:
        yield made
    except BaseException:
        for path in reversed(made):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        raise
