"""The key with which sites hash their column names: all sites of a network and its authority have it, nobody else.

Its file, ``columns.key``, is one line of 64 hexadecimal digits that only its owner can read. ``deepca init`` makes it
in the folder of the authority and copies it to every kit; kits of earlier versions lack it, until their operators
install a copy that the operator of the authority gives them.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from deepca._util.files import exclusive_lock, write_atomic
from deepca.errors import InvalidInput
from deepca.sites.config.site_file import SiteFile
from deepca.sites.pki.authority import add_to_ledger, load_own_certificate
from deepca.sites.pki.certificates import now_utc
from deepca.sites.pki.identity import read_secured_site
from deepca.sites.pki.keys import read_private
from deepca.sites.protocol.fingerprints import COLUMN_KEY_BYTES, column_key_identifier, public_column_key

__all__ = [
    "COLUMN_KEY_FILE",
    "InstalledColumnKey",
    "SharedColumnKey",
    "column_key_of",
    "install_column_key",
    "load_column_key",
    "share_column_key",
    "write_column_key",
]

COLUMN_KEY_FILE = "columns.key"
"""Usual name of the file."""
_WHAT = "key for column names"


@dataclass(frozen=True)
class SharedColumnKey:
    """The key for column names in an authority's folder; ``made`` is True if it did not exist before."""

    path: Path
    key: bytes = field(repr=False)
    made: bool

    @property
    def identifier(self) -> str:
        """Identifier that reveals nothing about the key, in hexadecimal."""
        return column_key_identifier(self.key)


@dataclass(frozen=True)
class InstalledColumnKey:
    """An installed key for column names and its identifier; ``replaced`` is True if there was another file."""

    site: str
    path: Path
    identifier: str
    replaced: bool


def write_column_key(path: Path, key: bytes) -> None:
    """Write the key to a file that only its owner can read."""
    write_atomic(path, f"{key.hex()}\n".encode(), mode=0o600)


def load_column_key(path: Path, *, missing: str, malformed: str) -> bytes:
    """Load the key from a file that no other user of this machine may read.

    Parameters
    ----------
    path : Path
        The file.
    missing, malformed : str
        What to do if the file is missing, or contains anything else; for the message.

    Raises
    ------
    InvalidInput
        If the file cannot be used; ``file`` names it.
    """
    content = read_private(path, _WHAT, missing=missing)
    if not re.fullmatch(rb"\s*[0-9a-fA-F]{%d}\s*" % (2 * COLUMN_KEY_BYTES), content):
        raise InvalidInput(
            f"{path}: this is not a {_WHAT}, which has {2 * COLUMN_KEY_BYTES} hexadecimal digits; {malformed}",
            file=str(path),
            parameter=_WHAT,
        )
    return bytes.fromhex(content.decode("ascii"))


def column_key_of(site: SiteFile) -> bytes:
    """Return the key for column names of a site: that in its kit, or a public one if it uses no certificates.

    Raises
    ------
    InvalidInput
        If the file is missing, can be read by others, or is malformed; ``file`` names it.
    """
    if site.plaintext:  # everything that it sends can be read on this machine anyway
        return public_column_key(site.network)
    remedy = (
        f"ask the operator of the authority for {COLUMN_KEY_FILE} (deepca join --share-column-key shows where it is), "
        f"then run deepca join {site.path} --column-key FILE"
    )
    return load_column_key(
        site.column_key, missing=f"kits of earlier versions have none: {remedy}", malformed=f"replace it: {remedy}"
    )


def install_column_key(path: Path, file: Path) -> InstalledColumnKey:
    """Install the key for column names, which a running agent does not use before it is started again.

    Raises
    ------
    InvalidInput
        If the file is missing, can be read by others, or is malformed; ``file`` names it.
    """
    site = read_secured_site(path)
    remedy = "ask the operator of the authority for another copy"
    key = load_column_key(file, missing="check the path", malformed=remedy)
    replaced = site.column_key.exists()
    write_column_key(site.column_key, key)
    return InstalledColumnKey(site.site, site.column_key, column_key_identifier(key), replaced)


def share_column_key(authority: Path) -> SharedColumnKey:
    """Return the key for column names in an authority's folder, which sites without it need; make it if missing.

    Parameters
    ----------
    authority : Path
        Folder of the authority.

    Raises
    ------
    InvalidInput
        If the folder is not that of an authority, or the file in it cannot be used.
    """
    load_own_certificate(authority)
    path = authority / COLUMN_KEY_FILE
    with exclusive_lock(authority):  # a concurrent command must not make another
        made = not path.exists()
        if made:
            key = secrets.token_bytes(COLUMN_KEY_BYTES)
            write_column_key(path, key)
            add_to_ledger(authority, "column key", now_utc(), identifier=column_key_identifier(key))
        remedy = "restore it from a backup, or from the kit of a site"
        return SharedColumnKey(path, load_column_key(path, missing=remedy, malformed=remedy), made)
