"""Sections of a study, with assertions, measurements and tables, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepca.reproduction.pages.report import Table
from deepca.reproduction.problems import DataSource

__all__ = ["Assertion", "Section", "Setting", "Study", "Table", "page"]


@dataclass(frozen=True)
class Setting:
    """How to run a study.

    Parameters
    ----------
    source : DataSource
        Where data sets are read.
    store : Path
        Folder in which finished runs are stored.
    jobs : int or None
        Number of processes; None for all usable cores.
    reduced : bool
        Whether to make fewer draws, for quick checks.
    progress : callable, optional
        Called with the cost done and the total cost.
    """

    source: DataSource
    store: Path
    jobs: int | None = None
    reduced: bool = False
    progress: Callable[[float, float], None] | None = None


@dataclass(frozen=True)
class Assertion:
    """A statement about the method, the measurement, and whether the statement holds."""

    statement: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Section:
    """One study's section of the page; paragraphs of ``text`` are separated by blank lines."""

    title: str
    text: str
    assertions: tuple[Assertion, ...]
    tables: tuple[Table, ...]

    @property
    def holds(self) -> bool:
        """Whether all assertions hold."""
        return all(assertion.holds for assertion in self.assertions)


@dataclass(frozen=True)
class Study:
    """A named study and the function that runs it."""

    name: str
    run: Callable[[Setting], Section]


def page(title: str, sections: Sequence[Section], command: str) -> str:
    """Render the page as Markdown, including the command that reproduces it."""
    judged = [assertion for section in sections for assertion in section.assertions]
    n_true = sum(assertion.holds for assertion in judged)
    parts = [f"# {title}", f"**{n_true} of {len(judged)} assertions hold.**"]
    for section in sections:
        parts += [f"## {section.title}", section.text.strip()]
        rows = [(a.statement, a.measured, "✔ yes" if a.holds else "✘ no") for a in section.assertions]
        parts.append(_table(("Assertion", "Measured", "Holds"), rows, heads=3) if rows else "")
        for table in section.tables:
            parts += [f"### {table.title}", _table(table.header, table.rows, table.heads), table.note]
    parts += ["## How to run this again", f"```text\n{command}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], heads: int) -> str:
    rule = ["---" if i < heads else "---:" for i in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in line)} |" for line in lines)
