"""Render the verdict page as one HTML file."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape

from deepca.reproduction.pages.report import Claim, Picture, Report, Table, Verdict, duration_text, paragraphs, summary

__all__ = ["to_html"]

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


_SHAPES: dict[Verdict, str] = {  # a full disc with a tick, a half disc, a ring with a cross: distinct without colour
    "holds": '<circle cx="8" cy="8" r="7.5" fill="currentColor"/>'
    '<path d="M4.4 8.4l2.4 2.5 4.8-5.4" fill="none" stroke="var(--page)" stroke-width="1.9"/>',
    "partly": '<circle cx="8" cy="8" r="6.7" fill="none" stroke="currentColor" stroke-width="1.6"/>'
    '<path d="M8 1.3a6.7 6.7 0 0 0 0 13.4z" fill="currentColor"/>',
    "differs": '<circle cx="8" cy="8" r="6.7" fill="none" stroke="currentColor" stroke-width="1.6"/>'
    '<path d="M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6" stroke="currentColor" stroke-width="1.9"/>',
    "not judged": '<circle cx="8" cy="8" r="6.7" fill="none" stroke="currentColor" stroke-width="1.6"/>',
}


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # the page may request nothing from outside


def to_html(report: Report) -> str:
    """Return a self-contained page: no scripts, no requests, embedded pictures."""
    sections = [
        ("claims", "Claims", _html_claims(report.claims)),
        ("figures", "Figures", "".join(map(_html_picture, report.pictures))),
        ("tables", "Tables", "".join(map(_html_table, report.tables))),
        ("settings", "Settings", _html_settings(report.settings)),
        ("again", "How to reproduce this page", f"<pre tabindex='0'><code>{escape(report.command)}</code></pre>\n"),
    ]
    present = [section for section in sections if section[2]]
    links = "".join(f"<li><a href='#{name}'>{title}</a></li>" for name, title, _ in present)
    body = "".join(
        f"<section id='{name}' aria-labelledby='{name}-title'>\n<h2 id='{name}-title'>{title}</h2>\n{content}"
        "</section>\n"
        for name, title, content in present
    )
    intro = "".join(f"<p>{escape(paragraph)}</p>\n" for paragraph in paragraphs(report.intro))
    return (
        "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(report.title)}</title>\n<link rel='icon' href='data:,'>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<a class='skip' href='#main'>Skip to the content</a>\n<header>\n<h1>{escape(report.title)}</h1>\n"
        f"<p class='summary'>{escape(summary(report.claims))}</p>\n{intro}"
        f"<nav aria-label='On this page'><ul>{links}</ul></nav>\n</header>\n<main id='main'>\n{body}</main>\n"
        f"<footer><p class='soft'>Made in {duration_text(report.seconds)}.</p></footer>\n</body>\n</html>\n"
    )


def _html_claims(claims: Iterable[Claim]) -> str:
    # explicit roles, because narrow screens show rows as cards, and display: block hides the table from screen readers
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
