"""Compute fingerprints of everything that must be the same at all sites, and compare those of two sites."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from deepca import __version__
from deepca.data.sources import Source
from deepca.decomposition.settings import Settings
from deepca.sites.config.network_file import NetworkFile
from deepca.sites.protocol.handshake import PROTOCOL

__all__ = ["as_printable", "count_columns", "differing_columns", "fingerprint_of", "network_digest", "schema_of"]

_HASH_BYTES = 4  # length of the hash of a column name
_MAX_LISTED_COLUMNS = 16_384  # their hashes take 64 KB; for more columns, one hash stands for all
_MAX_SHOWN_CHARACTERS = 64  # longer values are not shown in messages


def network_digest(network: NetworkFile) -> bytes:
    """Return a digest (32 bytes) of the protocol version, the network's name and its list of sites."""
    content = [PROTOCOL, network.name, [site.name for site in network.sites]]
    return hashlib.sha256(json.dumps(content).encode()).digest()


def fingerprint_of(network: NetworkFile, source: Source) -> dict[str, bytes]:
    """Return what must be the same at all sites before a run: short values or hashes, keyed by name."""
    return {
        "version of deepca": __version__.encode(),
        "privacy": network.privacy.encode(),
        "on_loss": network.on_loss.encode(),
        "patience": repr(float(network.patience)).encode(),
        "checkpoint_every": str(network.checkpoint_every).encode(),
        "run": network.run.encode(),
        "topology": hashlib.sha256(json.dumps(network.links).encode()).digest(),
        **schema_of(source, network.settings),
    }


def schema_of(source: Source, settings: Settings) -> dict[str, bytes]:
    """Return the part of the fingerprint that describes settings and columns, the latter as hashes only."""
    names = source.columns if source.columns is not None else tuple(f"#{i}" for i in range(source.d))
    parts = b"".join(hashlib.sha256(name.encode()).digest()[:_HASH_BYTES] for name in names)
    # one hash for very many columns: it shows that some differ, but not which
    columns = parts if source.d <= _MAX_LISTED_COLUMNS else hashlib.sha256(parts).digest()
    given = settings.n_components
    return {
        "columns": columns,
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


def count_columns(prints: Mapping[str, bytes]) -> int | None:
    """Return how many columns a fingerprint lists; None if one hash stands for all, or it is malformed."""
    count, rest = divmod(len(prints.get("columns", b"")), _HASH_BYTES)
    return count if not rest and prints.get("number of columns", b"%d" % count) == b"%d" % count else None


def differing_columns(here: Mapping[str, bytes], there: Mapping[str, bytes]) -> tuple[int, ...] | None:
    """Return the indices of columns that differ, empty if only their order does; None if they cannot be compared."""
    count = count_columns(here)
    if count is None or count != count_columns(there):
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
