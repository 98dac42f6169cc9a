"""Masked arrays: plain data where nothing is masked, refused where something is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deepca.errors import DataError

__all__ = ["all_unmasked", "unmasked"]


def unmasked(X: Any, name: str) -> Any:
    """X itself, or the array behind a masked one without masked entries; a DataError names the first that there is."""
    if isinstance(X, (list, tuple)):
        for i, row in enumerate(X):
            if np.ma.isMaskedArray(row):
                unmasked(row, f"{name}: row {i}")
    if not np.ma.isMaskedArray(X):
        return X
    places = np.argwhere(np.ma.getmaskarray(X))
    if len(places):
        place = ", ".join(map(str, places[0]))
        raise DataError(
            f"{name}: a masked array with {len(places):,} masked entries, the first at ({place}); fill them in, or "
            "drop their rows, first"
        )
    return np.ma.getdata(X)


def all_unmasked(given: Any) -> Any:
    """The same for a sequence, or an array, with one entry per agent."""
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return [unmasked(X, f"agent {j}") for j, X in enumerate(given)]
    if np.ma.isMaskedArray(given) and given.ndim == 3:
        return np.stack([unmasked(X, f"agent {j}") for j, X in enumerate(given)])
    return unmasked(given, "agent 0")
