"""Read and write TOML, with errors that name the file, the line, the key, and what to write instead."""

from __future__ import annotations

import copy
import difflib
import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from deepca.errors import InvalidInput, ParameterError
from deepca.sites.config.toml_lines import Keys, find_line, find_syntax_error

__all__ = [
    "COMPONENTS",
    "TomlFile",
    "TomlTable",
    "as_toml",
    "duration",
    "duration_text",
    "join_names",
    "load_toml",
    "suggestion",
]

_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_NAMES = 20  # maximum number of names listed in an error; more would bury the rest of the message
_MAX_VALUE_CHARACTERS = 60  # maximum length at which an error shows a value
_REQUIRED: Any = object()

COMPONENTS = 'a whole number of at least 1, a share of variance below 1 such as 0.95, or "all"'
"""Values that the key ``components`` accepts."""


def duration(text: str) -> float:
    """Convert a duration such as ``"500ms"``, ``"30s"``, ``"5min"``, ``"2h"`` or ``"1d"`` to seconds.

    Raises
    ------
    ParameterError
        If the text is not a positive finite number followed by a unit.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", text)
    if found is None or found[2] not in _UNITS:
        raise ParameterError("duration", text, "write a number and its unit, such as 500ms, 30s, 5min, 2h or 1d")
    value = float(found[1]) * _UNITS[found[2]]
    if not 0.0 < value < math.inf:
        raise ParameterError("duration", text, "a duration must be positive and finite, such as 30s")
    return value


def duration_text(seconds: float) -> str:
    """Format seconds in the largest unit that gives a whole number; the inverse of :func:`duration`."""
    for unit in ("d", "h", "min", "s"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0.0:
            return f"{int(seconds // _UNITS[unit])}{unit}"
    thousandths = round(seconds * 1e3)
    if thousandths * _UNITS["ms"] == seconds:
        return f"{thousandths}ms"
    return f"{np.format_float_positional(seconds, trim='0')}s"


@dataclass(frozen=True)
class TomlFile:
    """A TOML file: its path, its text and the values in it."""

    path: Path
    text: str
    values: dict[str, Any]

    def error(self, keys: Keys, message: str, *, value: object = None) -> InvalidInput:
        """Return an error about the value at ``keys``, with file, line, key and value as attributes."""
        return self.located(InvalidInput(message, parameter=str(keys[-1]), value=value), keys)

    def located(self, error: InvalidInput, keys: Keys) -> InvalidInput:
        """Return a copy of an error about the value at ``keys``, with file and line in its message and attributes."""
        file, line = str(self.path), find_line(self.text, keys)
        if isinstance(error, ParameterError):
            key = str(keys[-1]) if keys else error.parameter
            return ParameterError(key, error.value, error.expected, file=file, line=line)
        located = copy.copy(error)
        located.file, located.line = file, line
        located.args = (f"{file if line is None else f'{file}:{line}'}: {error}",)
        return located


def load_toml(path: Path) -> TomlFile:
    """Read a TOML file.

    Raises
    ------
    InvalidInput
        If it cannot be read, or is not valid TOML in UTF-8. The error has ``file`` and, unless the file cannot be read,
        ``line``.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(f"{path}: file not found; check the path", file=str(path)) from None
    except IsADirectoryError:
        raise InvalidInput(f"{path}: this is a folder; give the name of a file", file=str(path)) from None
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read ({error.strerror}); check its permissions", file=str(path)
        ) from None
    try:
        text = content.decode("utf-8-sig")  # some editors put a byte order mark in front
        return TomlFile(path, text, tomllib.loads(text))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"{path}:{line}: the file is not UTF-8; save it as UTF-8", file=str(path), line=line
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        wrong = find_syntax_error(text)
        found = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        if at := re.search(r" \(at line (\d+), column (\d+)\)$", found):  # tomllib ends its messages with the place
            found = found[: at.start()] + (f" (column {at[2]})" if int(at[1]) == wrong else "")
        raise InvalidInput(
            f"{path}:{wrong}: not valid TOML: {found}; write one `key = value` per line, and text in quotes",
            file=str(path),
            line=wrong,
        ) from None


class TomlTable:
    """A table of a TOML file, whose values are read by key and checked for their type.

    Parameters
    ----------
    file : TomlFile
        The file.
    known : sequence of str
        Keys that the table may have.
    keys : tuple of str and int
        Keys and indices that lead to the table; empty for the whole file.

    Raises
    ------
    InvalidInput
        If the table has an unknown key; ``parameter`` is that key.
    """

    def __init__(self, file: TomlFile, known: Sequence[str], keys: Keys = ()) -> None:
        values: Any = file.values
        for key in keys:
            values = values[key] if isinstance(key, int) else values.get(key, {})
        self._file, self._keys, self._values = file, keys, values
        for key in values:
            if key not in known:
                raise self.error(key, f"unknown key {key!r}{self._inside}; {suggestion(key, known)}")

    @property
    def _inside(self) -> str:
        """The table's place as the end of a clause, such as " in [security]"; empty for the top level."""
        if not self._keys:
            return ""
        if isinstance(self._keys[-1], int):
            return f" in [[{self._keys[0]}]] number {self._keys[-1] + 1}"
        return f" in [{self._keys[0]}]"

    def error(self, key: str, message: str, *, value: object = None) -> InvalidInput:
        """Return an error about one key of this table, with file, line, key and value as attributes."""
        return self._file.error((*self._keys, key), message, value=value)

    def located(self, error: InvalidInput, key: str) -> InvalidInput:
        """Return a copy of an error about one key of this table, with file and line in its message and attributes."""
        return self._file.located(error, (*self._keys, key))

    def _value_error(self, key: str, value: object, words: str) -> InvalidInput:
        return self.error(key, f"{key} = {_shorten(value)}{self._inside}: write {words}", value=value)

    def _get(self, key: str, kind: type | tuple[type, ...], words: str, default: Any) -> Any:
        if key not in self._values:
            if default is _REQUIRED:
                raise self.error(key, f"{key} is missing{self._inside}; add `{key} = …`: {words}")
            return default
        value = self._values[key]
        allowed = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in allowed):
            raise self._value_error(key, value, words)
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return a string."""
        return self._get(key, str, "text in quotes", default)

    def flag(self, key: str, default: Any = _REQUIRED) -> bool | None:
        """Return true or false."""
        return cast("bool | None", self._get(key, bool, "true or false", default))

    def flag_or_word(self, key: str, word: str, default: Any = _REQUIRED) -> bool | str:
        """Return true, false or one word; raise InvalidInput for any other value."""
        words = f'true, false or "{word}"'
        value = self._get(key, (bool, str), words, default)
        if isinstance(value, str) and value != word:
            raise self._value_error(key, value, words)
        return cast("bool | str", value)

    def whole(self, key: str, default: Any = _REQUIRED) -> int | None:
        """Return a whole number."""
        return cast("int | None", self._get(key, int, "a whole number", default))

    def number(self, key: str, default: Any = _REQUIRED) -> float | None:
        """Return a number as a float."""
        value = self._get(key, (int, float), "a number", default)
        return None if value is None else float(value)

    def duration(self, key: str, default: Any = _REQUIRED) -> float | None:
        """Return a duration, written with its unit, in seconds; raise InvalidInput if it is missing or malformed."""
        value = self._get(key, str, 'a number with its unit in quotes, such as "30s", "5min" or "2h"', default)
        if not isinstance(value, str):
            return cast("float | None", value)
        try:
            return duration(value)
        except ParameterError as error:
            raise self.located(error, key) from None

    def components(self, key: str) -> int | float | None:
        """Return the number of components, or the share of variance to explain; None for "all".

        Raises InvalidInput if the key is missing, or the value is any other text or of another type.
        """
        value = self.number_or_all(key, COMPONENTS)
        return None if isinstance(value, str) else value

    def number_or_all(self, key: str, words: str, default: Any = _REQUIRED) -> Any:
        """Return a number or the text "all"; raise InvalidInput, which tells to write ``words``, for anything else."""
        value = self._get(key, (int, float, str), words, default)
        if isinstance(value, str) and value != "all":
            raise self._value_error(key, value, words)
        return value

    def table(self, key: str, known: Sequence[str]) -> TomlTable:
        """Return a subtable, empty if the file lacks it; ``known`` lists the keys that it may have."""
        self._get(key, dict, f"a table: a line [{key}] with its keys below", {})
        return TomlTable(self._file, known, (*self._keys, key))

    def tables(self, key: str, known: Sequence[str]) -> list[TomlTable]:
        """Return an array of tables; ``known`` lists the keys that each may have.

        Raises InvalidInput if the value is not an array of tables.
        """
        words = f"one [[{key}]] table for each entry"
        value = self._get(key, list, words, [])
        if not all(isinstance(entry, dict) for entry in value):
            raise self._value_error(key, value, words)
        return [TomlTable(self._file, known, (*self._keys, key, number)) for number in range(len(value))]

    def pairs(self, key: str) -> tuple[tuple[str, str], ...] | None:
        """Return pairs of names, or None if the key is missing; raise InvalidInput for any other value."""
        words = 'pairs of sites, such as [["north", "south"], ["south", "west"]]'
        value = self._get(key, list, words, None)
        if value is None:
            return None
        for pair in value:
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
                raise self.error(key, f"{key}: {_shorten(pair)} is not a pair; write {words}", value=pair)
        return tuple((a, b) for a, b in value)


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return the end of an error message about an unknown name: the closest known name, or else all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {join_names(known)}"


def join_names(names: Sequence[str]) -> str:
    """Join names with commas, leaving out those beyond the first ``_MAX_NAMES``."""
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{shown}, …" if len(names) > _MAX_NAMES else shown


def _shorten(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[: _MAX_VALUE_CHARACTERS - 3]}…"


def as_toml(value: object) -> str:
    """Format a value as TOML."""
    if isinstance(value, str):
        # JSON leaves U+007F unescaped, which TOML forbids; ensure_ascii would write surrogate pairs, which TOML lacks
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)
