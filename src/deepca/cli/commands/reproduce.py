"""``deepca reproduce``: run the paper's experiments, or one of the further studies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepca.cli.common import errors, print_json, require
from deepca.cli.options import COMPONENTS, NUMBER_OF_COMPONENTS, OUTPUT, JsonOption, QuietOption
from deepca.errors import InvalidInput, ParameterError
from deepca.solver.progress import bars

if TYPE_CHECKING:
    from deepca.reproduction.pages.report import Report
    from deepca.reproduction.pages.report import Table as ReportTable
    from deepca.reproduction.reproduce import Request
    from deepca.reproduction.studies import Study

__all__ = ["reproduce"]

_NO_FOLDER = "folder not found; check the path, or omit the option to download the data"
_MARKS = {
    "holds": "[green]✔ holds[/]",
    "partly": "[yellow]◐ partly[/]",
    "differs": "[red]✘ differs[/]",
    "not judged": "○ not judged",
}

_SEEDS = 2  # random graphs and starting points by default

_DataArgument = Annotated[str, typer.Argument(metavar="DATASET", help="Data set: w8a, a9a or all (both).")]
_FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        help="Folder with the LIBSVM files (plain, .bz2 or .gz); by default, they are downloaded.",
    ),
]
_OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        metavar="FOLDER",
        rich_help_panel=OUTPUT,
        help="Folder for pages, figures, curves and finished runs.",
    ),
]
_ComponentsOption = Annotated[
    int,
    typer.Option(
        "--components",
        "-k",
        metavar="K",
        rich_help_panel=COMPONENTS,
        help="Number of principal components, which the paper does not state.",
    ),
]
_SeedsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Number of random graphs and starting points, without --study.", show_default=str(_SEEDS)
    ),
]
_StudyOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Run one of the studies above instead of the paper's experiments.")
]
_MaxIterOption = Annotated[
    int | None,
    typer.Option("--max-iter", metavar="N", help="Maximum number of iterations per run.", show_default="as needed"),
]
_JobsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Number of parallel processes.", show_default="all usable cores")
]


def reproduce(
    data: _DataArgument,
    folder: _FolderOption = None,
    out: _OutOption = Path("reproduced"),
    components: _ComponentsOption = NUMBER_OF_COMPONENTS,
    seeds: _SeedsOption = None,
    study: _StudyOption = None,
    max_iter: _MaxIterOption = None,
    jobs: _JobsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the paper's experiments and judge its claims.

    Writes report.html (self-contained) and report.md, the figures in the paper's layout (PNG and SVG, against
    iterations and against rounds) and all curves as CSV. Finished runs are kept, so that the same command resumes after
    an interruption.

    Studies: topology, heterogeneity, spread, agents, components, threshold, signs, rounds.
    """
    with errors(resumes=True):
        require("sklearn", "matplotlib", "pooch", extra="experiments")
        from deepca.reproduction.problems import DataSource
        from deepca.reproduction.reproduce import Request
        from deepca.reproduction.studies import study_named

        names = _names(data)
        for parameter, value, least in (("components", components, 1), ("seeds", seeds, 1), ("max_iter", max_iter, 20)):
            if value is not None and value < least:
                raise ParameterError(parameter, value, f"expected a whole number of at least {least}")
        if study is not None and seeds is not None:
            raise InvalidInput("--seeds applies to the paper's experiments only; omit it, or omit --study")
        seeds = _SEEDS if seeds is None else seeds
        if folder is not None and not folder.is_dir():
            missing = "this is a file; give the folder that contains it" if folder.exists() else _NO_FOLDER
            raise ParameterError("folder", folder, missing)
        chosen = study_named(study) if study is not None else None
        if jobs is not None and jobs < 1:
            raise ParameterError("jobs", jobs, "expected a whole number of at least 1")
        words = ["deepca reproduce", data, f"--study {study}" if study else f"--seeds {seeds}", f"-k {components}"]
        words += [f"--max-iter {max_iter}"] if max_iter else []
        request = Request(names, out, DataSource(folder), components, seeds, max_iter, jobs, " ".join(words))
        for name in names:
            request.setting(name)  # raises an error now if k is too large
        _make_folder(out)
        report = _run(request, chosen, quiet=quiet)
        if as_json:
            print_json(_plain(report))
        else:
            _show(Console(emoji=False), report, out / (f"study-{study}.html" if study else "report.html"))


def _names(data: str) -> list[str]:
    from deepca.reproduction.studies import PAPER

    names = list(PAPER) if data == "all" else [data]
    if not set(names) <= set(PAPER):
        raise ParameterError("data", data, f"choose {', '.join(PAPER)} or all")
    return names


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"--out {out}: cannot create this folder ({error.strerror}); give another one", parameter="out"
        ) from None


def _run(request: Request, study: Study | None, *, quiet: bool) -> Report:
    """Load the data, then run the study, or the paper's experiments without one, showing progress."""
    from deepca.data.libsvm import load
    from deepca.reproduction.reproduce import reproduce_paper, run_study

    progress = bars(Console(stderr=True, emoji=False), disable=quiet, details=())
    progress.live.transient = True  # so that no bar stays above an error
    with progress as bar:
        task = bar.add_task("reading data", total=None)

        for name in request.data:

            def fetch(done: int, total: int | None, name: str = name) -> None:
                bar.update(task, description=f"downloading {name}", completed=done, total=total)

            load(name, request.source.folder, progress=fetch)

        def tell(done: float, total: float) -> None:
            bar.update(task, description="runs", completed=done, total=total)

        return reproduce_paper(request, tell) if study is None else run_study(study, request, tell)


def _plain(report: Report) -> dict[str, object]:
    return {
        "title": report.title,
        "seconds": report.seconds,
        "claims": [asdict(claim) for claim in report.claims],
        "tables": [asdict(table) for table in report.tables],
    }


def _show(console: Console, report: Report, page: Path) -> None:
    if report.claims:
        console.print(_claims(report))
    for part in report.tables:
        console.print(_table(part))
    console.print(f"{report.seconds:.0f} s. Page: {escape(str(page))}")


def _claims(report: Report) -> Table:
    table = Table(title="Claims of the paper", title_justify="left", header_style="bold", show_lines=True)
    for column in ("where", "claim", "verdict", "measured"):
        table.add_column(column, no_wrap=column == "verdict")
    for claim in report.claims:
        table.add_row(escape(claim.where), escape(claim.statement), _MARKS[claim.verdict], escape(claim.measured))
    return table


def _table(part: ReportTable) -> Table:
    lines = [part.header, *part.rows]
    if len(part.header) > 12:  # too wide for a terminal: transpose it
        lines = [tuple(column) for column in zip(*lines, strict=True)]
    table = Table(title=escape(part.title), title_justify="left", header_style="bold")
    for i, column in enumerate(lines[0]):
        table.add_column(escape(column), justify="left" if i == 0 else "right")
    for row in lines[1:]:
        table.add_row(*map(escape, row))
    return table
