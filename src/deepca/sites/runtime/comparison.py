"""Comparison of a proposed model file with what this site computed itself: to the last byte.

Whatever enters a model is one member's numbers, which all have taken, or arithmetic that has the same bits on every
processor (:mod:`deepca._util.portable`), and a model is written the same way everywhere
(:meth:`deepca.Model.to_bytes`). So there is one file that a member can sign: the one it would have written itself. No
tolerance leaves room for a second one, and no gap, comment or unknown field for anything to hide in.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from deepca._util.logs import one_line
from deepca.decomposition.model import Model

__all__ = ["difference"]

_LONG = 60  # letters that are shown of what others have written


def difference(mine: Model, content: bytes) -> str:
    """Say in what a model file differs from the model computed here; empty if it does not."""
    own = mine.to_bytes()
    if content == own:
        return ""
    try:
        return next(_differences(own, content))
    except Exception as error:  # bytes that were made to do harm can make anything raise
        return _shown(f"it cannot be read: {type(error).__name__}: {error}", 3 * _LONG)


def _differences(own: bytes, content: bytes) -> Iterator[str]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        parts = file.infolist()
    if any(one.compress_type for one in parts) or sum(one.file_size for one in parts) > len(content):
        yield "its parts are packed, and may unpack to anything"
    ours, theirs = _fields(own), _fields(content)
    for path in [*ours, *(path for path in theirs if path not in ours)]:
        name = _shown(" of ".join(reversed(path)))
        if path not in theirs:
            yield f"{name} is missing"
        elif path not in ours:
            yield f"it has a field {name!r}, which is not known here"
        elif not _same(ours[path], theirs[path]):
            yield f"{name} {_unlike(ours[path], theirs[path])}"
    yield "every field is the same, but there is more in the file, or it is written in another way"


def _fields(content: bytes) -> dict[tuple[str, ...], Any]:
    """Everything in a file but its checksum, by the path that leads to it: arrays, then what the text in it says."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: np.asarray(file[name]) for name in file.files}
    about = json.loads(str(arrays.pop("about")))
    if isinstance(about, dict):
        about.pop("checksum", None)
    return {**{(name,): array for name, array in arrays.items()}, **dict(_flat(about))}


def _flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, entry in value.items():
        yield from _flat(entry, (*path, name))


def _same(own: Any, other: Any) -> bool:
    if isinstance(own, np.ndarray) and isinstance(other, np.ndarray):
        return (own.shape, own.dtype, own.tobytes()) == (other.shape, other.dtype, other.tobytes())
    return type(own) is type(other) and json.dumps(own) == json.dumps(other)


def _unlike(own: Any, other: Any) -> str:
    """In what they differ, and by how much, where that can be said."""
    a, b = np.asarray(own), np.asarray(other)
    if a.shape != b.shape:
        return f"has shape {b.shape}, not {a.shape}"
    said = [_shown(json.dumps(value, ensure_ascii=False)) for value in (other, own)] if not a.ndim else []
    what = f"is {said[0]}, not {said[1]}" if said else "is not the same"
    if not {a.dtype.kind, b.dtype.kind} <= set("iuf"):
        return what
    with np.errstate(all="ignore"):
        apart = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0))
    return f"{what}, by {apart:.1e}" if 0.0 < apart < np.inf else what


def _shown(text: str, longest: int = _LONG) -> str:
    """One line, not long: it goes to logs and terminals, and to other sites."""
    line = one_line(text, longest)
    return line if len(text) <= longest else f"{line}…"
