"""Find the line of a value in a TOML file, which ``tomllib`` does not report.

A TOML file is a sequence of statements (``key = value``, ``[table]``, ``[[array]]``), each of which is valid by itself
and begins on a line of its own. Where a statement ends is found by parsing, so that a string or list that spans lines
counts as one statement.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Keys", "find_line", "find_syntax_error"]

Keys = tuple[str | int, ...]
"""Keys and indices that lead to a value, from the outermost table."""

_MAX_STATEMENT_LINES = 1000  # maximum number of lines of a statement, which bounds the search in malformed files


def find_line(text: str, keys: Keys) -> int | None:
    """Return the line where a value begins or, if it is missing, where the innermost table around it begins.

    Parameters
    ----------
    text : str
        A valid TOML document.
    keys : tuple of str and int
        Keys and indices that lead to the value, such as ``("sites", 1, "name")``.

    Returns
    -------
    int or None
        Line, counted from 1; None if neither the value nor a table around it is in the file.
    """
    found, depth = None, 0
    header: Keys = ()
    entries: dict[Keys, int] = {}
    lines = _lines(text)
    for line, statement in _statements(lines):
        if lines[line - 1].lstrip().startswith("["):
            header = _header(statement, entries)
            reached = len(header) if keys[: len(header)] == header else 0
        elif keys[: len(header)] == header:
            reached = len(header) + _matched(statement, keys[len(header) :])
        else:
            reached = 0
        if reached > depth:
            found, depth = line, reached
    return found


def find_syntax_error(text: str) -> int | None:
    """Return the line, counted from 1, of the first invalid statement of a TOML document, or None if it is valid."""
    lines = _lines(text)
    starts = [line for line, _ in _statements(lines)]
    valid, invalid = 0, len(starts)  # bisect the number of leading statements: one may contradict those before it
    ends = [*starts[1:], len(lines) + 1]
    while valid < invalid:
        middle = (valid + invalid) // 2
        if _parse("\n".join(lines[: ends[middle] - 1])) is None:
            invalid = middle
        else:
            valid = middle + 1
    return starts[valid] if valid < len(starts) else None


def _lines(text: str) -> list[str]:
    """Split a document into lines as TOML does, since ``str.splitlines`` also splits at characters within strings."""
    return text.replace("\r\n", "\n").split("\n")


def _statements(lines: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every statement with its first line; the last one is empty if the rest of the file cannot be parsed."""
    start = 0
    while start < len(lines):
        for end in range(start + 1, min(start + _MAX_STATEMENT_LINES, len(lines)) + 1):
            statement = _parse("\n".join(lines[start:end]))
            if statement is not None:
                break
        else:
            yield start + 1, {}
            return
        if statement:
            yield start + 1, statement
        start = end


def _parse(text: str) -> dict[str, Any] | None:
    """Return the values in a document, or None if it is invalid."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _header(statement: dict[str, Any], entries: dict[Keys, int]) -> Keys:
    """Return the keys of the table that a header opens, and update ``entries``, the last index of each array."""
    keys: Keys = ()
    node: Any = statement
    while node:
        if isinstance(node, list):
            entries[keys] = entries.get(keys, -1) + 1
            keys, node = (*keys, entries[keys]), node[0]
        else:
            ((key, node),) = node.items()
            keys = (*keys, key)
    return keys


def _matched(node: Any, keys: Keys) -> int:
    """Return how many leading keys exist below a node."""
    for count, key in enumerate(keys):
        if isinstance(key, int):
            there = isinstance(node, list) and key < len(node)
        else:
            there = isinstance(node, dict) and key in node
        if not there:
            return count
        node = node[key]
    return len(keys)
