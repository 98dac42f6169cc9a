"""TOML with errors that say where and what to write instead; durations with their units."""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from deepca.errors import InvalidInput, ParameterError

__all__ = ["TomlTable", "as_toml", "duration", "duration_text", "listed", "load_toml", "meant"]

_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """``"500ms"``, ``"30s"``, ``"5min"``, ``"2h"`` or ``"1d"`` in seconds."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", text)
    if found is None or found[2] not in _UNITS:
        raise ParameterError("duration", text, "write a number and its unit, such as 500ms, 30s, 5min, 2h or 1d")
    value = float(found[1]) * _UNITS[found[2]]
    if not 0.0 < value < math.inf:
        raise ParameterError("duration", text, "it must be longer than nothing")
    return value


def duration_text(seconds: float) -> str:
    """Seconds in the largest unit that makes a whole number; :func:`duration` reads it back."""
    for unit in ("d", "h", "min", "s"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0.0:
            return f"{int(seconds // _UNITS[unit])}{unit}"
    thousandths = round(seconds * 1e3)
    if thousandths * _UNITS["ms"] == seconds:
        return f"{thousandths}ms"
    return f"{np.format_float_positional(seconds, trim='0')}s"


def load_toml(path: Path) -> dict[str, Any]:
    """A TOML file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InvalidInput(f"{path}: this is a folder; give the name of a file") from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return tomllib.loads(content.decode("utf-8-sig"))  # some editors put a mark in front
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}: not a text in UTF-8; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path}: not valid TOML: {error}; text stands in quotes") from None
    except RecursionError:
        raise InvalidInput(f"{path}: not valid TOML: brackets within brackets without end") from None


_NEEDED: Any = object()


class TomlTable:
    """Values of a TOML table by name and type; unknown names and wrong types are errors that say where."""

    def __init__(self, values: Mapping[str, Any], where: str, known: Sequence[str]) -> None:
        self._values, self.where = values, where
        for key in values:
            if key not in known:
                raise InvalidInput(f"{where}: there is nothing called {key!r} here; {meant(key, known)}")

    def _get(self, key: str, kind: type | tuple[type, ...], words: str, default: Any) -> Any:
        if key not in self._values:
            if default is _NEEDED:
                raise InvalidInput(f"{self.where}: {key} is missing; write {key} = {words}")
            return default
        value = self._values[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidInput(f"{self.where}: {key} = {_shown(value)}: write {key} = {words}")
        return value

    def text(self, key: str, default: Any = _NEEDED) -> Any:
        return self._get(key, str, '"…", a text in quotes', default)

    def flag(self, key: str, default: Any = _NEEDED) -> bool | None:
        return cast("bool | None", self._get(key, bool, "true or false", default))

    def whole(self, key: str, default: Any = _NEEDED) -> int | None:
        return cast("int | None", self._get(key, int, "a whole number", default))

    def number(self, key: str, default: Any = _NEEDED) -> float | None:
        value = self._get(key, (int, float), "a number", default)
        return None if value is None else float(value)

    def duration(self, key: str, default: Any = _NEEDED) -> float | None:
        value = self._get(key, str, 'a number with its unit in quotes, such as "30s", "5min" or "2h"', default)
        if not isinstance(value, str):
            return cast("float | None", value)
        try:
            return duration(value)
        except ParameterError as error:
            raise ParameterError(key, value, error.expected, file=str(self.where)) from None

    def components(self, key: str) -> int | float | None:
        words = 'a whole number, a share of variance such as 0.95, or "all"'
        value = self._get(key, (int, float, str), words, _NEEDED)
        if isinstance(value, str) and value != "all":
            raise InvalidInput(f"{self.where}: {key} = {_shown(value)}: write {key} = {words}")
        return None if isinstance(value, str) else cast("int | float", value)

    def table(self, key: str) -> dict[str, Any]:
        return cast("dict[str, Any]", self._get(key, dict, f"a table: a line [{key}] with its values below", {}))

    def tables(self, key: str) -> list[dict[str, Any]]:
        words = f"one [[{key}]] for each of them"
        value = self._get(key, list, words, [])
        if not all(isinstance(entry, dict) for entry in value):
            raise InvalidInput(f"{self.where}: {key} = {_shown(value)}: write {words}")
        return cast("list[dict[str, Any]]", value)

    def pairs(self, key: str) -> tuple[tuple[str, str], ...] | None:
        words = 'pairs of sites, such as [["north", "south"], ["south", "west"]]'
        value = self._get(key, list, words, None)
        if value is None:
            return None
        for pair in value:
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
                raise InvalidInput(f"{self.where}: {key}: {_shown(pair)} is not a pair; write {words}")
        return tuple((a, b) for a, b in value)


def meant(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {listed(known)}"


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown}, …" if len(names) > 20 else shown


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def as_toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):
        # U+007F is the one character that JSON leaves as it is and TOML forbids; beyond U+FFFF JSON writes two halves
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)
