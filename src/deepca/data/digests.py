"""Compute digests of rows, which identify data without disclosing them."""

from __future__ import annotations

import hashlib

import numpy as np

from deepca.data.sources import Source, stored_parts

__all__ = ["update_digest"]


def update_digest(digest: hashlib._Hash, source: Source) -> None:
    """Update a digest with all values of a source, block by block."""
    for block in source.blocks():
        for part in stored_parts(block):
            digest.update(np.ascontiguousarray(part).data)
