"""Convert masked arrays without masked entries to plain arrays and reject others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deepca.errors import DataError

__all__ = ["all_unmasked", "unmasked"]


def unmasked(X: Any, name: str) -> Any:
    """Return X as a plain array; raise DataError naming the first masked entry, if any entry is masked."""
    if isinstance(X, (list, tuple)):
        for i, row in enumerate(X):
            if np.ma.isMaskedArray(row):
                unmasked(row, f"{name}: row {i}")
    if not np.ma.isMaskedArray(X):
        return X
    places = np.argwhere(np.ma.getmaskarray(X))
    if len(places):
        place = [int(index) for index in places[0]]
        first = ", ".join(map(str, place))
        raise DataError(
            f"{name}: {len(places):,} entries are masked, the first at ({first}); fill them in, or drop their rows",
            row=place[0],
            column=place[1] if len(place) == 2 else None,
        )
    return np.ma.getdata(X)


def all_unmasked(given: Any) -> Any:
    """Apply :func:`unmasked` to every agent's entry of a sequence or array."""
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return [unmasked(X, f"agent {j}") for j, X in enumerate(given)]
    if np.ma.isMaskedArray(given) and given.ndim == 3:
        return np.stack([unmasked(X, f"agent {j}") for j, X in enumerate(given)])
    return unmasked(given, "agent 0")
