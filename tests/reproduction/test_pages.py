"""Test figures, CSV files and verdict pages of the experiments with synthetic outcomes."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from deepca.errors import InvalidInput
from deepca.reproduction.cells import Cell, Outcome
from deepca.reproduction.pages.figures import draw_study_figure, write_curves
from deepca.reproduction.pages.html import to_html
from deepca.reproduction.pages.paper_figure import draw_paper_figure
from deepca.reproduction.pages.report import Claim, Picture, Report, Table, summary, to_markdown
from deepca.reproduction.pages.tables import study_table
from deepca.reproduction.studies import PAPER, STUDIES, Study, base_cell, paper_cells
from tests.support.errors import raises

NASTY = "a <b>&amp; \"quoted\" 'text' | with a pipe"
GAPS = {"ring": 0.0024, "torus": 0.07, "star": 0.016, "hypercube": 0.17}


def outcome(cell: Cell, needs: int | None = None, *, accuracy: float = 1e-8) -> Outcome:
    """Return a run whose error falls to ``accuracy`` in ``needs`` iterations, or that stalls if None."""
    t = np.arange(1.0, cell.iterations + 1)
    tangent = np.full(t.size, 0.1) if needs is None else np.maximum(accuracy ** (t / needs), 1e-14)
    rounds = np.cumsum([cell.K + (i // cell.growth if cell.growth else 0) for i in range(cell.iterations)])
    disagreement = np.zeros(t.size) if cell.method == "CPCA" else 50.0 * tangent
    gap = GAPS.get(cell.graph, 0.4563)
    return Outcome(cell, tangent, disagreement, disagreement / 9, rounds.astype(np.int64), 8.0, 1.0 - gap, 7.5, 0.1)


def paper_outcomes(data: str = "a9a") -> dict[Cell, Outcome]:
    needs = {("DeEPCA", 0): 40, ("CPCA", 0): 40, ("DePCA", 0): None, ("DePCA", 10): 55}
    cells = paper_cells(data, 5, 90, 1)
    return {cell: outcome(cell, needs[(cell.method, cell.growth)]) for cell in cells}


def study_outcomes(study: Study) -> dict[Cell, Outcome]:
    """Return outcomes; every seventh run stalls, and the others need 20 to 49 iterations."""
    made = {}
    for i, cell in enumerate(study.cells(base_cell("a9a", 5, 60))):
        made[cell] = outcome(cell, None if i % 7 == 0 else 20 + i % 30, accuracy=study.accuracy)
    return made


def check_figure(path: Path) -> tuple[bytes, bytes]:
    """Check the formats of both files and return their contents."""
    png, svg = path.with_name(path.name + ".png").read_bytes(), path.with_name(path.name + ".svg").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert png.endswith(b"IEND\xaeB`\x82")
    assert int.from_bytes(png[16:20], "big") > 600
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    return png, svg


@pytest.mark.parametrize("against", ["iterations", "rounds"])
def test_the_paper_figure_is_written_as_png_and_svg(tmp_path: Path, against: Literal["iterations", "rounds"]) -> None:
    draw_paper_figure(paper_outcomes(), PAPER["a9a"], 5, draw=0, against=against, path=tmp_path / "new" / "a9a.k5")
    check_figure(tmp_path / "new" / "a9a.k5")


def test_a_figure_is_the_same_every_time(tmp_path: Path) -> None:
    study = STUDIES["rounds"]
    for name in ("one", "two"):
        draw_study_figure(study, study_outcomes(study), tmp_path / name)
    assert check_figure(tmp_path / "one") == check_figure(tmp_path / "two")


def test_the_paper_figure_without_its_outcomes_is_refused(tmp_path: Path) -> None:
    for outcomes in ({}, paper_outcomes("a9a")):
        with raises(InvalidInput, parameter="outcomes", value="w8a"):
            draw_paper_figure(outcomes, PAPER["w8a"], 5, draw=0, against="rounds", path=tmp_path / "page")


def test_the_paper_figure_tolerates_runs_that_diverged(tmp_path: Path) -> None:
    broken = {
        cell: replace(run, tan_theta=np.full(run.tan_theta.size, np.nan)) if cell.method == "DePCA" else run
        for cell, run in paper_outcomes().items()
    }
    draw_paper_figure(broken, PAPER["a9a"], 5, draw=0, against="rounds", path=tmp_path / "page")
    check_figure(tmp_path / "page")


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES.keys())
def test_every_study_has_a_figure_and_a_table(tmp_path: Path, study: Study) -> None:
    outcomes = study_outcomes(study)
    draw_study_figure(study, outcomes, tmp_path / study.name)
    check_figure(tmp_path / study.name)
    table = study_table(study, outcomes)
    assert {len(row) for row in table.rows} == {len(table.header)}
    assert study.question in table.title


@pytest.mark.parametrize("value", ["iterations", "rounds"])
@pytest.mark.parametrize("needs", [None, 20])
def test_every_value_can_be_drawn_whether_all_or_no_runs_converge(
    tmp_path: Path, value: Any, needs: int | None
) -> None:
    for name in ("topology", "signs"):
        study = replace(STUDIES[name], value=value)
        outcomes = {cell: outcome(cell, needs) for cell in study.cells(base_cell("a9a", 5, 30))}
        draw_study_figure(study, outcomes, tmp_path / name)
        check_figure(tmp_path / name)


def test_the_csv_file_contains_the_curves_of_the_outcomes(tmp_path: Path) -> None:
    outcomes = list(paper_outcomes().values())
    write_curves(outcomes, tmp_path / "curves.csv")
    with (tmp_path / "curves.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert list(tmp_path.iterdir()) == [tmp_path / "curves.csv"]
    assert len(lines) == sum(run.tan_theta.size for run in outcomes)
    start = 0
    for run in outcomes:
        part = lines[start : start + run.tan_theta.size]
        start += len(part)
        for name in ("data", "method", "label", "k", "K", "growth", "graph", "order", "alignment", "spread", "draw"):
            assert {line[name] for line in part} == {str(getattr(run.cell, name))}
        assert [int(line["iteration"]) for line in part] == list(range(1, len(part) + 1))
        for name in ("rounds", "tan_theta", "S_disagreement", "W_disagreement"):
            np.testing.assert_array_equal([float(line[name]) for line in part], getattr(run, name))


def test_a_csv_that_fails_halfway_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "curves.csv"
    target.write_text("old")
    good = next(iter(paper_outcomes().values()))
    with pytest.raises(ValueError):  # noqa: PT011 - of zip
        write_curves([good, replace(good, rounds=good.rounds[:-1])], target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


SMALL = Study("small", "Does it?", (("graph", ("ring", "paper")), ("K", (1, 3))), "K", "iterations", draws=3)


def small_outcomes() -> dict[Cell, Outcome]:
    needs = {
        ("ring", 1): (None, None, None),
        ("ring", 3): (30, None, 20),
        ("paper", 1): (10, 12, 17),
        ("paper", 3): (5, 5, 5),
    }
    cells = SMALL.cells(base_cell("a9a", 5, 40))
    return {cell: outcome(cell, needs[(cell.graph, cell.K)][cell.draw]) for cell in cells}


def test_a_study_table_has_medians_and_numbers_of_failures() -> None:
    table = study_table(SMALL, small_outcomes())
    assert table.header == ("graph", "K = 1", "K = 3")
    assert table.rows == (("ring", "–", "25 (2/3)"), ("paper's graph", "12", "5"))
    assert "1e-8 " in table.note
    assert "median over 3 draws" in table.note
    rounds = study_table(replace(SMALL, value="rounds"), small_outcomes())
    assert rounds.rows == (("ring", "–", "75 (2/3)"), ("paper's graph", "12", "15"))


def test_a_study_table_can_have_draws_as_columns_or_a_single_row() -> None:
    signs = replace(SMALL, axes=(("alignment", ("sign-adjust", "qr")), ("draw", (0, 1))), columns="draw", draws=1)
    cells = signs.cells(base_cell("a9a", 5, 40))
    table = study_table(signs, dict(zip(cells, map(outcome, cells, (None, 9, 8, 7)), strict=True)))
    assert table.header == ("sign rule", "draw 0", "draw 1")
    assert table.rows == (("SignAdjust", "–", "9"), ("QR, R > 0", "8", "7"))
    single = replace(SMALL, axes=(("K", (1, 3)),), draws=2)
    cells = single.cells(base_cell("a9a", 5, 40))
    table = study_table(single, dict(zip(cells, map(outcome, cells, (4, 5, 6, None)), strict=True)))
    assert (table.header, table.rows) == (("draws", "K = 1", "K = 3"), (("2", "4.5", "6 (1/2)"),))


def test_a_study_table_ignores_other_cells_and_refuses_ambiguous_ones() -> None:
    outcomes = small_outcomes()
    foreign = next(iter(outcomes)).with_fields(K=77)
    some = {cell: run for cell, run in outcomes.items() if (cell.graph, cell.K) != ("paper", 3)}
    table = study_table(SMALL, {**some, foreign: outcome(foreign, 3)})
    assert table.rows == (("ring", "–", "25 (2/3)"), ("paper's graph", "12", ""))
    other = {cell.with_fields(data="w8a"): run for cell, run in outcomes.items()}
    with raises(InvalidInput, parameter="outcomes", value=2 * len(outcomes)):
        study_table(SMALL, outcomes | other)
    with raises(InvalidInput, parameter="outcomes", value=0):
        study_table(SMALL, {})


def claim(verdict: Literal["holds", "partly", "differs"], text: str = NASTY) -> Claim:
    return Claim(f"name {text}", f"where {text}", f"statement {text}", f"measured {text}", verdict, f"why {text}")


def report(folder: Path) -> Report:
    draw_study_figure(SMALL, small_outcomes(), folder / "figures" / "a small study")
    return Report(
        title=f"Report {NASTY}",
        intro=f"One paragraph {NASTY}\nthat goes on.\n\nAnother one.",
        command="deepca reproduce all --data '<folder>'",
        settings=((f"name {NASTY}", f"value {NASTY}"),),
        claims=(claim("holds"), claim("holds", "plain"), claim("partly"), claim("differs")),
        tables=(
            Table(f"table {NASTY}", ("row |", "K = 1"), ((f"cell {NASTY}", "3"),), f"table note {NASTY}"),
            study_table(SMALL, small_outcomes()),
        ),
        pictures=(Picture(f"figure {NASTY}", folder / "figures" / "a small study.png", f"figure note {NASTY}"),),
        seconds=95.2,
    )


class Page(HTMLParser):
    """Check that tags nest, and collect tags, attributes and text."""

    VOID = frozenset({"meta", "link", "img", "col", "br", "path", "circle"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_summary_counts_verdicts_in_plain_english() -> None:
    assert summary([]) == "No claims were judged."
    assert summary([claim("holds")]) == "1 of 1 claim holds."
    assert summary([claim("holds"), claim("differs")]) == "1 of 2 claims holds, 1 differs."
    many = [claim("holds")] * 9 + [claim("partly")] * 2 + [claim("differs")]
    assert summary(many) == "9 of 12 claims hold, 2 hold partly, 1 differs."


def test_html_is_a_well_formed_page_that_contains_every_text(tmp_path: Path) -> None:
    made = report(tmp_path)
    text = to_html(made)
    page = Page(text)
    assert "<b>" not in text
    words = "\n".join(page.texts)
    for shown in made.claims:
        for part in (shown.where, shown.statement, shown.measured, shown.verdict, shown.why):
            assert part in words
    for table in made.tables:
        for part in (table.title, table.note, *table.header, *(entry for row in table.rows for entry in row)):
            assert part in words
    for part in (made.title, made.command, *made.settings[0], "1 min 35 s", "2 of 4 claims hold, 1 holds partly"):
        assert part in words
    assert f"One paragraph {NASTY} that goes on." in words
    assert [image["alt"] for image in page.all("img")] == [made.pictures[0].title]
    assert str(tmp_path) not in text


def test_html_is_self_contained(tmp_path: Path) -> None:
    text = to_html(report(tmp_path))
    page = Page(text)
    assert not re.search(r"https?://|url\(|@import", text)
    assert page.all("script") == []
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))


def test_html_tables_work_with_screen_readers(tmp_path: Path) -> None:
    page = Page(to_html(report(tmp_path)))
    assert len(page.all("caption")) == len(page.all("table")) == 4
    assert {attributes.get("scope") for attributes in page.all("th")} == {"row", "col"}
    assert page.all("html")[0]["lang"] == "en"
    ids = {attributes.get("id") for _, attributes in page.tags}
    for link in page.all("a"):
        assert (link["href"] or "").removeprefix("#") in ids


def test_an_empty_report_is_still_a_page() -> None:
    empty = Report("Empty", "", "deepca", (), (), (), (), 0.4)
    page = Page(to_html(empty))
    assert page.all("table") == []
    assert "0.4 s" in to_markdown(empty)


def test_markdown_has_the_same_content(tmp_path: Path) -> None:
    made = report(tmp_path)
    text = to_markdown(made, tmp_path)
    escaped = "a &lt;b&gt;&amp;amp; \"quoted\" 'text' \\| with a pipe"
    for kind in ("where", "statement", "measured", "why", "table", "table note", "figure", "figure note", "cell"):
        assert f"{kind} {escaped}" in text
    assert "(figures/a%20small%20study.png)" in text
    assert "(a%20small%20study.png)" in to_markdown(made)
    assert str(tmp_path) not in text + to_markdown(made)
    for mark in ("✔ holds", "◐ partly", "✘ differs"):
        assert f"| {mark} |" in text
    assert "deepca reproduce all --data '<folder>'" in text
    width = None
    for line in text.splitlines():  # every line of a table has as many cells as its first
        if not line.startswith("|"):
            width = None
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        assert cells == width


CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH (Debian: apt install chromium)")


def visit(page: Path, folder: Path) -> tuple[str, list[str], list[str]]:
    """Open a file in a new Chromium; return the document, the lines of the console, and every address requested.

    Whatever its flags, the browser itself requests updates; only requests of a page have an origin in the log.
    """
    log = folder / "net.json"
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --disable-dev-shm-usage --disable-extensions "
        "--enable-logging=stderr --v=0 --virtual-time-budget=5000 --dump-dom"
    )
    nobody = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    done = subprocess.run(
        [
            str(CHROMIUM),
            *flags.split(),
            nobody,
            f"--user-data-dir={folder}/profile",
            f"--log-net-log={log}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    events = json.loads(log.read_text())["events"]
    started = [event["params"] for event in events if "initiator" in event.get("params", {})]
    asked = [request["url"] for request in started if request["initiator"] != "not an origin"]
    return done.stdout, console, asked


@needs_chromium
def test_chromium_shows_the_page_without_an_error_or_a_request(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(to_html(report(tmp_path)), encoding="utf-8")
    document, console, asked = visit(page, tmp_path)
    assert "2 of 4 claims hold" in document
    assert console == []
    assert asked == []


@needs_chromium
def test_chromium_detects_errors_and_requests(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<img src='http://127.0.0.1:9/picture.png'><script>throw new Error('seen')</script>")
    _, console, asked = visit(page, tmp_path)
    assert any("seen" in line for line in console)
    assert "http://127.0.0.1:9/picture.png" in asked
