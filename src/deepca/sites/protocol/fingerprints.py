"""Compute fingerprints of everything that must be the same at all sites, and compare those of two sites.

Column names are hashed with a key that only members have: a guessed name can be checked by members alone. Where keys
differ, so do all hashes, whatever the names; an identifier of the key therefore is an entry of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping

from deepca import __version__
from deepca.data.sources import Source
from deepca.decomposition.settings import Settings
from deepca.sites.config.network_file import NetworkFile
from deepca.sites.protocol.handshake import PROTOCOL

__all__ = [
    "COLUMN_KEY_BYTES",
    "COLUMN_KEY_ENTRY",
    "as_printable",
    "column_key_identifier",
    "comparable_entries",
    "count_columns",
    "differing_columns",
    "fingerprint_of",
    "network_digest",
    "public_column_key",
    "schema_of",
]

COLUMN_KEY_BYTES = 32
"""Length of the key for column names."""
COLUMN_KEY_ENTRY = "key for column names (columns.key)"
"""Name of the entry with the identifier of that key."""
_IDENTIFIER_BYTES = 8  # length of that identifier
# what is hashed with the key begins with one of these, so that no column name yields the identifier
_NAME_LABEL = b"deepca.v1 column name\0"
_ALL_NAMES_LABEL = b"deepca.v1 all column names\0"
_IDENTIFIER_LABEL = b"deepca.v1 identifier of the key for column names"
_PUBLIC_KEY_LABEL = b"deepca.v1 public key for column names\0"
_HASH_BYTES = 4  # length of the hash of a column name
_MAX_LISTED_COLUMNS = 16_384  # their hashes take 64 KB; for more columns, one hash stands for all
_MAX_SHOWN_CHARACTERS = 64  # longer values are not shown in messages


def network_digest(network: NetworkFile) -> bytes:
    """Return a digest (32 bytes) of the protocol version, the network's name and its list of sites."""
    content = [PROTOCOL, network.name, [site.name for site in network.sites]]
    return hashlib.sha256(json.dumps(content).encode()).digest()


def public_column_key(network: NetworkFile) -> bytes:
    """Return the key for column names of sites without certificates, which everybody can compute."""
    return hashlib.sha256(_PUBLIC_KEY_LABEL + network_digest(network)).digest()


def column_key_identifier(key: bytes) -> str:
    """Return what identifies a key for column names without revealing anything about it, in hexadecimal."""
    return _keyed(key, _IDENTIFIER_LABEL)[:_IDENTIFIER_BYTES].hex()


def _keyed(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")


def fingerprint_of(network: NetworkFile, source: Source, key: bytes) -> dict[str, bytes]:
    """Return what must be the same at all sites before a run: short values or hashes, by name of the entry.

    ``key`` is the key for column names.
    """
    return {
        "version of deepca": __version__.encode(),
        "privacy": network.privacy.encode(),
        "on_loss": network.on_loss.encode(),
        "patience": repr(float(network.patience)).encode(),
        "checkpoint_every": str(network.checkpoint_every).encode(),
        "run": network.run.encode(),
        "topology": hashlib.sha256(json.dumps(network.links).encode()).digest(),
        **schema_of(source, network.settings, key),
    }


def schema_of(source: Source, settings: Settings, key: bytes) -> dict[str, bytes]:
    """Return the part of the fingerprint that describes settings and columns, the latter as keyed hashes only."""
    names = source.columns if source.columns is not None else tuple(f"#{i}" for i in range(source.d))
    parts = b"".join(_keyed(key, _NAME_LABEL + name.encode())[:_HASH_BYTES] for name in names)
    # one hash for very many columns: it shows that some differ, but not which
    columns = parts if source.d <= _MAX_LISTED_COLUMNS else _keyed(key, _ALL_NAMES_LABEL + parts)
    given = settings.n_components
    return {
        "columns": columns,
        COLUMN_KEY_ENTRY: column_key_identifier(key).encode(),
        "number of columns": str(source.d).encode(),
        "components": ("all" if given is None else str(given)).encode(),
        "centring": str(settings.center).encode(),
        "scaling": str(settings.scale).encode(),
        "algorithm": settings.algorithm.encode(),
        "rounds": str(settings.rounds).encode(),
        "messages": settings.messages.encode(),
        "tolerance": repr(settings.tol).encode(),
        "largest number of iterations": str(settings.max_iter).encode(),
        "seed": str(settings.seed).encode(),
    }


def comparable_entries(differing: Iterable[str]) -> list[str]:
    """Return the entries, of those in which two sites differ, that say something about the sites; sorted by name.

    Hashes of columns say nothing if the keys or the numbers of columns differ.
    """
    names = sorted(differing)
    if COLUMN_KEY_ENTRY in names or "number of columns" in names:
        return [name for name in names if name != "columns"]
    return names


def count_columns(prints: Mapping[str, bytes]) -> int | None:
    """Return how many columns a fingerprint lists; None if one hash stands for all, or it is malformed."""
    count, rest = divmod(len(prints.get("columns", b"")), _HASH_BYTES)
    return count if not rest and prints.get("number of columns", b"%d" % count) == b"%d" % count else None


def differing_columns(here: Mapping[str, bytes], there: Mapping[str, bytes]) -> tuple[int, ...] | None:
    """Return the indices of columns that differ, empty if only their order does; None if they cannot be compared."""
    count = count_columns(here)
    if count is None or count != count_columns(there) or here.get(COLUMN_KEY_ENTRY) != there.get(COLUMN_KEY_ENTRY):
        return None
    mine, other = (
        [prints.get("columns", b"")[_HASH_BYTES * i : _HASH_BYTES * (i + 1)] for i in range(count)]
        for prints in (here, there)
    )
    if sorted(mine) == sorted(other):
        return ()
    return tuple(i for i in range(count) if mine[i] != other[i])


def as_printable(mine: bytes, other: bytes) -> tuple[str, str] | None:
    """Return two values of a fingerprint as text; None unless both are short and printable, as hashes are not."""
    try:
        texts = mine.decode("ascii"), other.decode("ascii")
    except UnicodeDecodeError:
        return None
    return texts if all(text.isprintable() and len(text) <= _MAX_SHOWN_CHARACTERS for text in texts) else None
