"""Define the content of a verdict page (claims, figures, tables), and render it as Markdown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from deepca._util.units import plural

__all__ = ["Claim", "Picture", "Report", "Table", "Verdict", "summary", "to_markdown"]

Verdict = Literal["holds", "partly", "differs", "not judged"]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what was measured, the verdict and the reason for it.

    ``name`` identifies the claim in JSON, where wording may change.
    """

    name: str
    where: str
    statement: str
    measured: str
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Table:
    """A table of text; the first ``heads`` entries of a row are its label."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    heads: int = 1


@dataclass(frozen=True)
class Picture:
    """A PNG file with its title and a note on what it shows."""

    title: str
    path: Path
    note: str


@dataclass(frozen=True)
class Report:
    """Content of a page. A blank line in ``intro`` starts a new paragraph."""

    title: str
    intro: str
    command: str
    settings: tuple[tuple[str, str], ...]
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    seconds: float


def summary(claims: Sequence[Claim]) -> str:
    """Summarize the verdicts: "9 of 12 claims hold, 2 hold partly, 1 differs."."""
    if not claims:
        return "No claims were judged."
    count = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in _MARKS}
    parts = [f"{count['holds']} of {len(claims)} claim{plural(len(claims))} hold{plural(count['holds'], verb=True)}"]
    if count["partly"]:
        parts.append(f"{count['partly']} hold{plural(count['partly'], verb=True)} partly")
    if count["differs"]:
        parts.append(f"{count['differs']} differ{plural(count['differs'], verb=True)}")
    if count["not judged"]:
        parts.append(f"{count['not judged']} could not be judged")
    return ", ".join(parts) + "."


def duration_text(seconds: float) -> str:
    """Format a duration as "12.3 s" or "2 min 5 s"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def paragraphs(text: str) -> list[str]:
    """Split text at blank lines."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


# --- Markdown ------------------------------------------------------------------------------------------------------

_MARKS: dict[Verdict, str] = {
    "holds": "✔ holds",
    "partly": "◐ partly",
    "differs": "✘ differs",
    "not judged": "○ not judged",
}


def to_markdown(report: Report, folder: Path | None = None) -> str:
    """Render the page as Markdown, with links relative to ``folder`` (by default, the folder of the pictures)."""
    parts = [f"# {_plain(report.title)}", f"**{_plain(summary(report.claims))}**"]
    parts += map(_plain, paragraphs(report.intro))
    if report.claims:
        rows = [(c.where, c.statement, _MARKS[c.verdict], c.measured, c.why) for c in report.claims]
        parts += ["## Claims", _markdown_table(("Where", "Claim", "Verdict", "Measured", "Why"), rows)]
    if report.pictures:
        parts.append("## Figures")
    for picture in report.pictures:
        link = picture.path.name if folder is None else Path(os.path.relpath(picture.path, folder)).as_posix()
        parts.append(f"![{_plain(picture.title)}]({quote(link)})")
        parts.append(f"**{_plain(picture.title)}** {_plain(picture.note)}".strip())
    if report.tables:
        parts.append("## Tables")
    for table in report.tables:
        parts += [f"### {_plain(table.title)}", _markdown_table(table.header, table.rows, numbers_from=table.heads)]
        parts += [_plain(table.note)] if table.note else []
    if report.settings:
        parts += ["## Settings", _markdown_table(("Setting", "Value"), report.settings)]
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", report.command)), default=0))
    parts += ["## How to reproduce this page", f"{ticks}sh\n{report.command}\n{ticks}"]
    parts.append(f"Made in {duration_text(report.seconds)}.")
    return "\n\n".join(parts) + "\n"


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int | None = None) -> str:
    rule = ["---:" if numbers_from is not None and i >= numbers_from else "---" for i in range(len(header))]
    lines = [[_plain(text) for text in header], rule, *([_plain(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Escape text so that Markdown shows it verbatim on one line, inside tables too."""
    text = re.sub(r"([\\`*\[\]|~]|(?<!\w)_)", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
