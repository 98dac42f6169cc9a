"""The verdict page: claims, figures and tables, as one HTML file or as Markdown."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np

from deepca.errors import InvalidInput
from deepca.reproduction.cells import Cell, Outcome
from deepca.reproduction.studies import Study, Value

__all__ = [
    "Claim",
    "Picture",
    "Report",
    "Table",
    "Verdict",
    "by_row_and_column",
    "name_of",
    "row_name",
    "study_table",
    "summary",
    "to_html",
    "to_markdown",
]

Verdict = Literal["holds", "partly", "differs", "not judged"]
Rows = dict[tuple[Any, ...], dict[Any, list[Outcome]]]


@dataclass(frozen=True)
class Claim:
    """What is said where, what was measured, and whether the two agree."""

    where: str
    statement: str
    measured: str
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Table:
    """Text in rows; the first ``heads`` entries of a row name it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    heads: int = 1


@dataclass(frozen=True)
class Picture:
    """A PNG file, its title and what to see in it."""

    title: str
    path: Path
    note: str


@dataclass(frozen=True)
class Report:
    """Everything on the page. A blank line in ``intro`` begins a new paragraph."""

    title: str
    intro: str
    command: str
    settings: tuple[tuple[str, str], ...]
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    seconds: float


def summary(claims: Sequence[Claim]) -> str:
    """One line: ``9 of 12 claims hold, 2 hold partly, 1 differs.``"""
    if not claims:
        return "No claims were judged."
    count = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in _MARKS}
    parts = [f"{count['holds']} of {len(claims)} claim{_s(len(claims))} hold{_s(count['holds'], verb=True)}"]
    if count["partly"]:
        parts.append(f"{count['partly']} hold{_s(count['partly'], verb=True)} partly")
    if count["differs"]:
        parts.append(f"{count['differs']} differ{_s(count['differs'], verb=True)}")
    if count["not judged"]:
        parts.append(f"{count['not judged']} could not be judged")
    return ", ".join(parts) + "."


def _s(count: int, *, verb: bool = False) -> str:
    return "s" if (count == 1) is verb else ""


def _duration(seconds: float) -> str:
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


# --- tables of studies ---------------------------------------------------------------------------------------------

_NAMES: dict[str, dict[Any, str]] = {
    "graph": {
        "paper": "paper's graph",
        "erdos-renyi": "Erdős–Rényi",
        "random-regular": "random regular",
    },
    "alignment": {"sign-adjust": "SignAdjust", "qr": "QR, R > 0", "polar": "polar"},
    "order": {"file": "file order", "label": "sorted by label"},
}
_FIELDS = {"alignment": "sign rule", "order": "rows"}
_MEASURES: dict[Value, str] = {
    "iterations": "Iterations until the mean tan θ is at most {accuracy} and stays there",
    "rounds": "Rounds of communication until the mean tan θ is at most {accuracy} and stays there",
    "converged": "Iterations until the mean tan θ is at most {accuracy} and stays there",
    "plateau": "Where the mean tan θ ends",
}


def name_of(field: str, value: Any, *, bare: bool = False) -> str:
    """How tables and figures call a value of a field of a cell; ``bare`` leaves the name of the field away."""
    if field in _NAMES or isinstance(value, str):
        return _NAMES.get(field, {}).get(value, str(value))
    if bare:
        return str(value)
    return f"draw {value}" if field == "draw" else f"{_FIELDS.get(field, field)} = {value}"


def row_name(study: Study, row: tuple[Any, ...]) -> str:
    """``torus, k = 3``; for a study without rows, how many draws it has."""
    names = [name_of(field, value) for field, value in zip(study.row_names, row, strict=True)]
    return ", ".join(names) or f"{study.draws} draw{_s(study.draws)}"


def by_row_and_column(study: Study, outcomes: Mapping[Cell, Outcome]) -> Rows:
    """The outcomes of a study as its table has them; what was not run is an empty list, other cells are left out."""
    axes = dict(study.axes)
    fixed = [(field, value) for field, value in study.changes if field not in axes]
    own = [
        cell
        for cell in outcomes
        if all(getattr(cell, field) == value for field, value in fixed)
        and all(getattr(cell, field) in values for field, values in axes.items())
        and ("draw" in axes or cell.draw < study.draws)
    ]
    if not own:
        raise InvalidInput(f"no outcome belongs to the study {study.name!r}")
    first = {field: values[0] for field, values in axes.items()}
    if "k" in axes:
        first["iterations"] = 0  # each k has a length of its own
    points = {(cell.draw, *(getattr(cell, field) for field in axes)) for cell in own}
    if len({cell.at(**{"draw": 0, **first}) for cell in own}) > 1 or len(points) < len(own):
        raise InvalidInput(
            f"the outcomes hold the study {study.name!r} more than once (other data, method, k or iterations): pass one"
        )
    rows: Rows = {
        row: {column: [] for column in axes[study.columns]}
        for row in product(*(values for field, values in study.axes if field != study.columns))
    }
    for cell in sorted(own, key=lambda cell: cell.draw):
        row = tuple(getattr(cell, field) for field in study.row_names)
        rows[row][getattr(cell, study.columns)].append(outcomes[cell])
    return rows


def study_table(study: Study, outcomes: Mapping[Cell, Outcome]) -> Table:
    """The median over the draws, with the share that converged where it was not all of them."""
    columns = dict(study.axes)[study.columns]
    heads = tuple(_FIELDS.get(field, field) for field in study.row_names) or ("draws",)
    rows = []
    for row, entries in by_row_and_column(study, outcomes).items():
        names = tuple(name_of(field, value, bare=True) for field, value in zip(study.row_names, row, strict=True))
        rows.append((names or (str(study.draws),)) + tuple(_entry(study, entries[column]) for column in columns))
    draws = "" if study.columns == "draw" else f"; median over {study.draws} draw{_s(study.draws)}"
    note = _MEASURES[study.value].format(accuracy=_short(study.accuracy)) + draws + "."
    if study.value != "plateau":
        seen = [entry for row in rows for entry in row[len(heads) :]]
        if any("(" in entry for entry in seen):
            note += " In brackets: how many of the draws got there, where not all did."
        if "–" in seen:
            note += " –: it did not get there." if study.columns == "draw" else " –: none got there."
    title = f"{study.name.capitalize()}: {study.question}"
    return Table(title, heads + tuple(name_of(study.columns, c) for c in columns), tuple(rows), note, len(heads))


def _short(number: float) -> str:
    """``1e-8``, without the zero that Python puts into exponents."""
    return re.sub(r"e([+-])0+", r"e\1", f"{number:g}")


def _entry(study: Study, outcomes: Sequence[Outcome]) -> str:
    """``312``, ``312 (4/5)``, ``–`` where none converged, nothing where none was run."""
    values = study.measure(outcomes)
    reached = [value for value in values if value is not None]
    if not reached:
        return "–" if values else ""
    median = float(np.median(reached))
    if study.value == "plateau":
        text = _short(float(f"{median:.1e}"))
    else:
        text = f"{median:.0f}" if median == int(median) else f"{median:.1f}"
    return text if len(reached) == len(values) else f"{text} ({len(reached)}/{len(values)})"


# --- HTML ----------------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --card: #f6f7f9; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --link: #0b5cad; --holds: #04694c; --partly: #7d4e00; --differs: #a63a00; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --card: #1d2228; --ink: #e6e9ed; --soft: #a3adb8;
  --line: #39424c; --link: #7cb8f2; --holds: #4fcfa5; --partly: #f0b84c; --differs: #ff9a66; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
header, main, footer { max-width: 72rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2rem; } footer { padding-bottom: 3rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .75rem; text-wrap: balance; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 2.75rem 0 1rem; padding-bottom: .35rem;
  border-bottom: 1px solid var(--line); }
p { margin: 0 0 .8rem; max-width: 46rem; }
a { color: var(--link); }
a:focus-visible, [tabindex]:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -999rem; } .skip:focus { left: 1rem; top: .5rem; }
.summary { font-size: 1.2rem; font-weight: 650; margin-bottom: .8rem; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 1rem 0 0; padding: 0; }
.soft, .note, figcaption, .where { color: var(--soft); }
.note { font-size: .92rem; margin: .5rem 0 0; }
.scroll { overflow-x: auto; margin: 0; }
.block { margin: 0 0 2.25rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .94rem; }
caption { text-align: left; font-weight: 650; padding-bottom: .5rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .8rem; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; }
thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; }
tbody th { font-weight: 500; }
.numbers td, .numbers thead th.value { text-align: right; white-space: nowrap; padding: .35rem .7rem; }
.numbers th { white-space: nowrap; padding: .35rem .7rem; }
.numbers { min-width: min(36rem, 100%); }
.claims { width: 100%; table-layout: fixed; }
.claims col.c1 { width: 31%; } .claims col.c2 { width: 8rem; } .claims col.c3 { width: 29%; }
.where { display: block; font-size: .85rem; font-weight: 400; }
.verdict { font-weight: 650; white-space: nowrap; }
.verdict svg { width: 1.05em; height: 1.05em; vertical-align: -.15em; margin-right: .4em; }
.holds { color: var(--holds); } .partly { color: var(--partly); } .differs { color: var(--differs); }
figure { margin: 0 0 2.25rem; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; padding: .6rem;
  border: 1px solid var(--line); border-radius: .4rem; }
figcaption { margin-top: .5rem; max-width: 46rem; font-size: .94rem; } figcaption strong { color: var(--ink); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .4rem; padding: .7rem .9rem;
  overflow-x: auto; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .92em; }
@media (max-width: 46rem) {
  .claims, .claims tbody, .claims tr, .claims th, .claims td { display: block; width: auto; }
  .claims caption { display: block; }
  .claims thead, .claims colgroup { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); }
  .claims tr { border: 1px solid var(--line); border-radius: .4rem; padding: .7rem .9rem; margin-bottom: .9rem; }
  .claims tbody th, .claims td { border: 0; padding: .15rem 0; } .claims tbody th { font-weight: 600; }
  .claims td[data-name]::before { content: attr(data-name); display: block; font-size: .82rem; color: var(--soft);
    margin-top: .3rem; }
}
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --soft: #333; --line: #999; --link: #000;
    --holds: #000; --partly: #000; --differs: #000; }
  body { font-size: 10pt; } header, main, footer { max-width: none; padding: 0; } nav, .skip { display: none; }
  .scroll { overflow: visible; } .numbers.wide { font-size: 6.5pt; }
  .numbers.wide td, .numbers.wide th { padding: .2rem .15rem; white-space: normal; }
  h2, caption { break-after: avoid; } tr, figure, pre { break-inside: avoid; } thead { display: table-header-group; }
  figure img { border: 0; padding: 0; max-height: 23cm; } pre { white-space: pre-wrap; }
}
"""
_SHAPES: dict[Verdict, str] = {  # a full disc with a tick, a half disc, a ring with a cross: told apart without colour
    "holds": '<circle cx="8" cy="8" r="7.5" fill="currentColor"/>'
    '<path d="M4.4 8.4l2.4 2.5 4.8-5.4" fill="none" stroke="var(--page)" stroke-width="1.9"/>',
    "partly": '<circle cx="8" cy="8" r="6.7" fill="none" stroke="currentColor" stroke-width="1.6"/>'
    '<path d="M8 1.3a6.7 6.7 0 0 0 0 13.4z" fill="currentColor"/>',
    "differs": '<circle cx="8" cy="8" r="6.7" fill="none" stroke="currentColor" stroke-width="1.6"/>'
    '<path d="M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6" stroke="currentColor" stroke-width="1.9"/>',
    "not judged": '<circle cx="8" cy="8" r="6.7" fill="none" stroke="currentColor" stroke-width="1.6"/>',
}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # the page can ask for nothing outside itself


def to_html(report: Report) -> str:
    """One page that needs nothing else: no script, no request, pictures inside."""
    sections = [
        ("claims", "Claims", _html_claims(report.claims)),
        ("figures", "Figures", "".join(map(_html_picture, report.pictures))),
        ("tables", "Tables", "".join(map(_html_table, report.tables))),
        ("settings", "Settings", _html_settings(report.settings)),
        ("again", "How to run this again", f"<pre tabindex='0'><code>{escape(report.command)}</code></pre>\n"),
    ]
    present = [section for section in sections if section[2]]
    links = "".join(f"<li><a href='#{name}'>{title}</a></li>" for name, title, _ in present)
    body = "".join(
        f"<section id='{name}' aria-labelledby='{name}-title'>\n<h2 id='{name}-title'>{title}</h2>\n{content}"
        "</section>\n"
        for name, title, content in present
    )
    intro = "".join(f"<p>{escape(paragraph)}</p>\n" for paragraph in _paragraphs(report.intro))
    return (
        "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(report.title)}</title>\n<link rel='icon' href='data:,'>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<a class='skip' href='#main'>Skip to the claims</a>\n<header>\n<h1>{escape(report.title)}</h1>\n"
        f"<p class='summary'>{escape(summary(report.claims))}</p>\n{intro}"
        f"<nav aria-label='On this page'><ul>{links}</ul></nav>\n</header>\n<main id='main'>\n{body}</main>\n"
        f"<footer><p class='soft'>Made in {_duration(report.seconds)}.</p></footer>\n</body>\n</html>\n"
    )


def _html_claims(claims: Iterable[Claim]) -> str:
    # roles are written out: narrow screens show rows as cards, and display: block would hide the table from readers
    rows = "".join(
        f"<tr role='row'><th scope='row' role='rowheader'><span class='where'>{escape(claim.where)}</span> "
        f"{escape(claim.statement)}</th>"
        f"<td role='cell' class='verdict {claim.verdict.split()[0]}'>"
        f"<svg viewBox='0 0 16 16' aria-hidden='true'>{_SHAPES[claim.verdict]}</svg>{claim.verdict}</td>"
        f"<td role='cell' data-name='Measured'>{escape(claim.measured)}</td>"
        f"<td role='cell' data-name='Why'>{escape(claim.why)}</td></tr>\n"
        for claim in claims
    )
    if not rows:
        return ""
    head = "".join(
        f"<th scope='col' role='columnheader'>{title}</th>" for title in ("Claim", "Verdict", "Measured", "Why")
    )
    return (
        "<table class='claims' role='table'>\n<caption>What is claimed, and what was measured</caption>\n"
        "<colgroup><col class='c1'><col class='c2'><col class='c3'><col class='c4'></colgroup>\n"
        f"<thead role='rowgroup'><tr role='row'>{head}</tr></thead>\n"
        f"<tbody role='rowgroup'>\n{rows}</tbody>\n</table>\n"
    )


def _html_picture(picture: Picture) -> str:
    content = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    return (
        f"<figure>\n<img src='data:image/png;base64,{content}' alt='{escape(picture.title)}'>\n"
        f"<figcaption><strong>{escape(picture.title)}</strong> {escape(picture.note)}</figcaption>\n</figure>\n"
    )


def _html_table(table: Table) -> str:
    def line(row: tuple[str, ...]) -> str:
        names = "".join(f"<th scope='row'>{escape(text)}</th>" for text in row[: table.heads])
        return f"<tr>{names}{''.join(f'<td>{escape(text)}</td>' for text in row[table.heads :])}</tr>\n"

    head = "".join(f"<th scope='col'>{escape(text)}</th>" for text in table.header[: table.heads])
    head += "".join(f"<th scope='col' class='value'>{escape(text)}</th>" for text in table.header[table.heads :])
    kind = "numbers wide" if len(table.header) > 12 else "numbers"
    note = f"<p class='note'>{escape(table.note)}</p>\n" if table.note else ""
    return (
        f"<div class='block'>\n<div class='scroll' role='region' tabindex='0' aria-label='{escape(table.title)}'>\n"
        f"<table class='{kind}'>\n<caption>{escape(table.title)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{''.join(map(line, table.rows))}</tbody>\n</table>\n</div>\n{note}</div>\n"
    )


def _html_settings(settings: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>\n" for name, value in settings
    )
    if not rows:
        return ""
    head = "<thead><tr><th scope='col'>Setting</th><th scope='col'>Value</th></tr></thead>"
    return f"<table>\n<caption>What was run</caption>\n{head}\n<tbody>\n{rows}</tbody>\n</table>\n"


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


# --- Markdown ------------------------------------------------------------------------------------------------------

_MARKS: dict[Verdict, str] = {
    "holds": "✔ holds",
    "partly": "◐ partly",
    "differs": "✘ differs",
    "not judged": "○ not judged",
}


def to_markdown(report: Report, folder: Path | None = None) -> str:
    """The same page as Markdown; links to pictures are relative to ``folder``, the page's (default: the pictures')."""
    parts = [f"# {_plain(report.title)}", f"**{_plain(summary(report.claims))}**"]
    parts += map(_plain, _paragraphs(report.intro))
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
    parts += ["## How to run this again", f"{ticks}sh\n{report.command}\n{ticks}"]
    parts.append(f"Made in {_duration(report.seconds)}.")
    return "\n\n".join(parts) + "\n"


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int | None = None) -> str:
    rule = ["---:" if numbers_from is not None and i >= numbers_from else "---" for i in range(len(header))]
    lines = [[_plain(text) for text in header], rule, *([_plain(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line, also inside a table."""
    text = re.sub(r"([\\`*\[\]|~]|(?<!\w)_)", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
