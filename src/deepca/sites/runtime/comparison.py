"""Compare a proposed model file, byte for byte, with the model that this site computed.

Everything in a model is either one member's numbers, which all members have adopted, or the outcome of arithmetic that
gives the same bits on every processor (:mod:`deepca._util.portable`), and models are serialised the same way everywhere
(:meth:`deepca.Model.to_bytes`). A member therefore signs exactly one file: the one that it would have written itself.
Without a tolerance no second file can pass, and without padding, comments or unknown fields no data can hide in it.
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

_MAX_SHOWN = 60  # maximum number of characters to quote from text that another site has written


def difference(mine: Model, content: bytes) -> str:
    """Describe how a model file differs from the model computed here; return an empty string if it does not."""
    own = mine.to_bytes()
    if content == own:
        return ""
    try:
        return next(_differences(own, content))
    except Exception as error:  # malicious bytes can raise anything
        return _shortened(f"it cannot be read: {type(error).__name__}: {error}", 3 * _MAX_SHOWN)


def _differences(own: bytes, content: bytes) -> Iterator[str]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        parts = file.infolist()
    if any(one.compress_type for one in parts) or sum(one.file_size for one in parts) > len(content):
        yield "its parts are compressed, which model files never are"
    ours, theirs = _fields(own), _fields(content)
    for path in [*ours, *(path for path in theirs if path not in ours)]:
        name = _shortened(" of ".join(reversed(path)))
        if path not in theirs:
            yield f"{name} is missing"
        elif path not in ours:
            yield f"it has an unknown field {name!r}"
        elif not _same(ours[path], theirs[path]):
            yield f"{name} {_described(ours[path], theirs[path])}"
    yield "every field is the same, but the file contains extra bytes or is serialised differently"


def _fields(content: bytes) -> dict[tuple[str, ...], Any]:
    """Return everything in a file except its checksum, by path: arrays first, then the entries of its JSON text."""
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


def _described(own: Any, other: Any) -> str:
    """Describe how two values differ, with the largest difference where both are numbers."""
    a, b = np.asarray(own), np.asarray(other)
    if a.shape != b.shape:
        return f"has shape {b.shape}, not {a.shape}"
    shown = [_shortened(json.dumps(value, ensure_ascii=False)) for value in (other, own)] if not a.ndim else []
    what = f"is {shown[0]}, not {shown[1]}" if shown else "differs"
    if not {a.dtype.kind, b.dtype.kind} <= set("iuf"):
        return what
    with np.errstate(all="ignore"):
        apart = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0))
    return f"{what}, by {apart:.1e}" if 0.0 < apart < np.inf else what


def _shortened(text: str, longest: int = _MAX_SHOWN) -> str:
    """Return text from another site as one short line, fit for logs, terminals and other sites."""
    line = one_line(text, longest)
    return line if len(text) <= longest else f"{line}…"
