"""Reproduce the paper: run the cells, judge the claims, draw the figures and write the pages."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from deepca._util.files import write_atomic
from deepca._util.units import plural
from deepca.reproduction.cells import Cell, Outcome
from deepca.reproduction.claims.extensions import judge_extensions
from deepca.reproduction.claims.paper import claim_cells, judge
from deepca.reproduction.claims.proofs import judge_proofs
from deepca.reproduction.claims.setting import Setting
from deepca.reproduction.pages.figures import draw_study_figure, write_curves
from deepca.reproduction.pages.html import to_html
from deepca.reproduction.pages.paper_figure import draw_paper_figure
from deepca.reproduction.pages.report import Picture, Report, Table, to_markdown
from deepca.reproduction.pages.tables import study_table
from deepca.reproduction.problems import PAPER_GRAPHS, DataSource, checksum_of
from deepca.reproduction.runner import Outcomes, in_parallel, run_cells
from deepca.reproduction.studies import PAPER, PaperSetting, Study, paper_curves

__all__ = ["Request", "reproduce_paper", "run_study"]

Progress = Callable[[float, float], None]
Against = Literal["iterations", "rounds"]
Drawing = tuple[Outcomes, PaperSetting, int, Against, Path]
_FIGURES = {"w8a": 1, "a9a": 2}


@dataclass(frozen=True)
class Request:
    """Experiments to reproduce, their data, and where to write the results."""

    data: Sequence[str]
    out: Path
    source: DataSource
    k: int = 5
    draws: int = 2
    max_iterations: int | None = None
    jobs: int | None = None
    command: str = "deepca reproduce"

    def setting(self, data: str) -> Setting:
        """Return the setting of one data set."""
        return Setting(data, self.k, self.draws, self.source, self.max_iterations)

    @property
    def store(self) -> Path:
        """Folder of the completed outcomes."""
        return self.out / "cells"


def reproduce_paper(request: Request, progress: Progress | None = None) -> Report:
    """Run the paper's experiments, write the figures, the curves and the verdict page, and return the page."""
    began = time.perf_counter()
    settings = [request.setting(data) for data in request.data]
    cells = [cell for setting in settings for cell in claim_cells(setting)]
    outcomes = run_cells(cells, request.source, request.store, jobs=request.jobs, progress=progress)
    claims = [claim for setting in settings for claim in judge(setting, outcomes)]
    claims += judge_proofs(settings[0], outcomes)
    claims += judge_extensions(settings[-1])  # a9a, the smaller data set, if it was requested
    pictures = _draw_figures(settings, outcomes, request)
    write_curves(outcomes.values(), request.out / "curves.csv")
    report = Report(
        title="DeEPCA: the paper's experiments, claim by claim",
        intro="Every claim of Ye & Zhang, “DeEPCA: Decentralized Exact PCA with Linear Convergence Rate”, next to what "
        "was measured here. Differences are reported, not smoothed over.",
        command=request.command,
        settings=(
            ("agents", f"50; {PAPER_GRAPHS}"),
            *((setting.data, _describe(setting, outcomes)) for setting in settings),
            ("draws", f"{request.draws} of graph and W⁰ (more where stated); the figures show draw 0"),
            ("growing K", "K + ⌊t/20⌋ on w8a, K + ⌊t/10⌋ on a9a; the paper states no schedule"),
            ("runs", f"{len(outcomes)} runs, {sum(o.seconds for o in outcomes.values()):.0f} s of computation"),
        ),
        claims=tuple(claims),
        tables=tuple(_summary(setting, outcomes) for setting in settings),
        pictures=tuple(pictures),
        seconds=time.perf_counter() - began,
    )
    _write(report, request.out, "report")
    return report


def run_study(study: Study, request: Request, progress: Progress | None = None) -> Report:
    """Run one study on each requested data set and write its page."""
    began, pictures, tables, count = time.perf_counter(), [], [], 0
    for data in request.data:
        setting = request.setting(data)
        changed = setting.base.with_fields(**dict(study.changes))
        cells = [
            cell
            if request.max_iterations
            else cell.with_fields(iterations=max(setting.iterations(cell.k), cell.iterations))
            for cell in study.cells(changed)
        ]
        outcomes = run_cells(cells, request.source, request.store, jobs=request.jobs, progress=progress)
        count += len(outcomes)
        picture = request.out / f"study-{study.name}-{data}"
        draw_study_figure(study, outcomes, picture)
        write_curves(outcomes.values(), request.out / f"study-{study.name}-{data}.csv")
        pictures.append(Picture(f"{study.name}, {data}", picture.with_name(picture.name + ".png"), study.question))
        table = study_table(study, outcomes)
        tables.append(replace(table, title=f"{data}: {table.title}"))
    report = Report(
        title=f"Study: {study.name}",
        intro=study.question,
        command=request.command,
        settings=(
            *((("k", str(request.k)),) if "k" not in dict(study.axes) else ()),
            ("accuracy", f"mean tan θ ≤ {study.accuracy:.0e}"),
            ("changed", ", ".join(f"{name} = {value}" for name, value in study.changes) or "nothing"),
            ("runs", str(count)),
        ),
        claims=(),
        tables=tuple(tables),
        pictures=tuple(pictures),
        seconds=time.perf_counter() - began,
    )
    _write(report, request.out, f"study-{study.name}")
    return report


def _draw_figures(settings: Sequence[Setting], outcomes: Outcomes, request: Request) -> list[Picture]:
    """Draw the paper's figures, in parallel because a page of nine panels takes seconds."""
    pictures: list[Picture] = []
    drawings: list[Drawing] = []
    axes: tuple[Against, ...] = ("iterations", "rounds")
    for setting in settings:
        for against in axes:
            path = request.out / f"{setting.data}-{against}"
            shown = {
                cell: outcome for cell, outcome in outcomes.items() if cell.data == setting.data and cell.draw == 0
            }
            drawings.append((shown, PAPER[setting.data], setting.k, against, path))
            pictures.append(
                Picture(
                    f"{setting.data}, k = {setting.k}, against {against}",
                    path.with_name(path.name + ".png"),
                    f"As Figure {_FIGURES[setting.data]} of the paper: rows are K, columns the two disagreements and "
                    "the mean tangent.",
                )
            )
    for _ in in_parallel(_draw, drawings, request.jobs):
        pass
    return pictures


def _draw(drawing: Drawing) -> None:
    outcomes, paper, k, against, path = drawing
    draw_paper_figure(outcomes, paper, k, draw=0, against=against, path=path)


def _summary(setting: Setting, outcomes: Mapping[Cell, Outcome]) -> Table:
    """Tabulate iterations and rounds of every curve in the figures, as medians over the draws."""
    rows = []
    for kind in paper_curves(setting.base):
        found = [outcomes[kind.with_fields(draw=i)] for i in range(setting.draws)]
        rows.append(
            (
                kind.label,
                str(kind.K) if kind.K else "–",
                _median([o.iterations_to(1e-6) for o in found]),
                _median([o.iterations_to(1e-10) for o in found]),
                _median([o.rounds_to(1e-10) for o in found]) if kind.K else "–",
                f"{statistics.median(o.plateau for o in found):.1e}",
            )
        )
    return Table(
        f"{setting.data}, k = {setting.k}: median over {setting.draws} draw{plural(setting.draws)}",
        ("method", "K", "iterations to 1e-6", "to 1e-10", "rounds to 1e-10", "ends at"),
        tuple(rows),
        "A dash: the accuracy was not reached, or CPCA has no rounds. “Ends at” is the median of the last tenth of the "
        "mean tangent.",
    )


def _median(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{statistics.median(known):,g}" + (f" ({len(known)}/{len(values)})" if len(known) < len(values) else "")


def _describe(setting: Setting, outcomes: Mapping[Cell, Outcome]) -> str:
    paper, outcome = PAPER[setting.data], outcomes[setting.base]
    return (
        f"{paper.agents} × {paper.rows} rows in file order, k = {setting.k}, {setting.base.iterations} iterations, "
        f"K ∈ {{{', '.join(map(str, paper.rounds))}}}, 1 − λ₂ = {1 - outcome.lambda2:.4f} in draw 0; checksum of the "
        f"features {checksum_of(setting.data, setting.source)[:12]}…"
    )


def _write(report: Report, out: Path, name: str) -> None:
    for suffix, text in ((".html", to_html(report)), (".md", to_markdown(report, out))):
        write_atomic(out / f"{name}{suffix}", text.encode())
