"""Fingerprints of what has to be the same at all sites, and in what those of two sites differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from deepca import __version__
from deepca.data.sources import Source
from deepca.decomposition.settings import Settings
from deepca.sites.config.network_file import NetworkFile
from deepca.sites.protocol.handshake import PROTOCOL

__all__ = ["count_columns", "fingerprint_of", "other_columns", "readable", "run_of", "schema_of"]

_HASH = 4  # bytes per column
_LISTED = 16_384  # columns at most whose hashes are sent one by one: 64 KB of them
_LONGEST = 64  # characters of a value that is shown


def run_of(network: NetworkFile) -> bytes:
    """32 bytes: equal for sites that can understand each other at all."""
    said = [PROTOCOL, network.name, [site.name for site in network.sites]]
    return hashlib.sha256(json.dumps(said).encode()).digest()


def fingerprint_of(network: NetworkFile, source: Source) -> dict[str, bytes]:
    """What has to be the same at all sites before anything is done, by name."""
    return {
        "version of deepca": __version__.encode(),
        "on_loss": network.on_loss.encode(),
        "patience": repr(float(network.patience)).encode(),
        "checkpoint_every": str(network.checkpoint_every).encode(),
        "run": network.run.encode(),
        "topology": hashlib.sha256(json.dumps(network.links).encode()).digest(),
        **schema_of(source, network.settings),
    }


def schema_of(source: Source, settings: Settings) -> dict[str, bytes]:
    """What has to be the same everywhere, by name; names of columns only as hashes."""
    names = source.columns if source.columns is not None else tuple(f"#{i}" for i in range(source.d))
    parts = b"".join(hashlib.sha256(name.encode()).digest()[:_HASH] for name in names)
    # of very many columns only that some differ can be told
    columns = parts if source.d <= _LISTED else hashlib.sha256(parts).digest()
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
    """Return how many columns a site's fingerprints list; None where one hash stands for very many, or for nonsense."""
    count, rest = divmod(len(prints.get("columns", b"")), _HASH)
    return count if not rest and prints.get("number of columns", b"%d" % count) == b"%d" % count else None


def other_columns(here: Mapping[str, bytes], there: Mapping[str, bytes]) -> tuple[int, ...] | None:
    """Return the places of columns that differ, none for another order; None where columns cannot be compared."""
    count = count_columns(here)
    if count is None or count != count_columns(there):
        return None
    mine, other = (
        [prints.get("columns", b"")[_HASH * i : _HASH * (i + 1)] for i in range(count)] for prints in (here, there)
    )
    if sorted(mine) == sorted(other):
        return ()
    return tuple(i for i in range(count) if mine[i] != other[i])


def readable(mine: bytes, other: bytes) -> tuple[str, str] | None:
    """Return two values as texts if both are short texts; None for hashes."""
    try:
        texts = mine.decode("ascii"), other.decode("ascii")
    except UnicodeDecodeError:
        return None
    return texts if all(text.isprintable() and len(text) <= _LONGEST for text in texts) else None
