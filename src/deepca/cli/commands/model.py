"""``deepca inspect`` and ``deepca transform``: show and apply a model."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from deepca._util.units import counted
from deepca.cli.common import check_figure, check_output, errors, print_json, print_unwrapped
from deepca.cli.options import DATA, OUTPUT, DatasetOption, JsonOption, PlotOption, SilentOption
from deepca.cli.view.model import show_model, summary
from deepca.data.columns import Reordered
from deepca.data.moments import check_finite
from deepca.data.readers import open_source, open_sources
from deepca.data.sources import Source
from deepca.data.writers import SUFFIXES, open_writer
from deepca.decomposition.model import Model
from deepca.decomposition.model.file import load
from deepca.errors import DataError, ParameterError
from deepca.solver.progress import bars

__all__ = ["inspect", "transform"]

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file written by deepca.")]


def inspect(
    model: ModelArgument,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the variances of a model and what is proven about it.

    The table lists each component with its share of the variance and the columns with the largest weights. --plot saves
    a scree plot.
    """
    with errors():
        fitted = load(model)
        if plot is not None:
            check_figure(plot, [model])
            plot.parent.mkdir(parents=True, exist_ok=True)
            from deepca.plots.curves import scree

            scree(fitted.explained_variance_ratio, plot, title=f"{model.name}: {counted(fitted.n_samples, 'row')}")
        if as_json:
            print_json({**summary(fitted), "model": str(model)})
            return
        console = Console(emoji=False)
        print_unwrapped(console, f"[bold]{escape(str(model))}[/]")
        show_model(console, fitted)
        if plot is not None:
            print_unwrapped(console, f"\nFigure: {escape(str(plot))}")


def transform(
    model: ModelArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rows, in any format that deepca fit reads.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help="File for the scores: .parquet, .csv, .npy or .h5.",
        ),
    ],
    label_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=DATA,
            help="Column to exclude (labels, identifiers) and to copy to the scores.",
        ),
    ] = None,
    ignore_extra: Annotated[
        bool, typer.Option("--ignore-extra", rich_help_panel=DATA, help="Ignore columns that are not in the model.")
    ] = False,
    dataset: DatasetOption = None,
    as_json: JsonOption = False,
    quiet: SilentOption = False,
) -> None:
    """Compute the scores of the rows of a file.

    The file is read block by block and may be larger than memory. Nothing is sent anywhere.
    """
    with errors():
        fitted = load(model)
        check_output(out, "--out", [file, model])
        _check_format(out, label_column)
        source = _match_columns(_open(file, fitted, label_column, dataset, ignore_extra), fitted)
        done = _write_scores(fitted, source, out, label_column, show_progress=not (quiet or as_json))
        if as_json:
            typer.echo(json.dumps({"rows": done, "components": fitted.n_components, "out": str(out)}))
        elif not quiet:
            scores = counted(fitted.n_components, "score")
            result = f"{counted(done, 'row')} × {scores}: [bold]{escape(str(out))}[/]"
            print_unwrapped(Console(emoji=False), result)


def _write_scores(fitted: Model, source: Source, out: Path, label_column: str | None, *, show_progress: bool) -> int:
    """Write the scores of all rows, with the labels if they are named; return the number of rows."""
    labels = None if label_column is None else source.labels()
    names = [f"PC{i + 1}" for i in range(fitted.n_components)]
    dtype = np.dtype(np.float32 if source.dtype == np.float32 and fitted.dtype == np.float32 else np.float64)
    done = 0
    with (
        bars(Console(stderr=True, emoji=False), disable=not show_progress, details=()) as progress,
        open_writer(out, names, dtype=dtype, label=label_column or "label") as writer,
    ):
        task = progress.add_task("rows", total=source.n)
        for block in source.blocks():
            check_finite(source, block, done)
            rows = int(block.shape[0])
            writer.write(fitted.transform(block), None if labels is None else labels[done : done + rows])
            done += rows
            progress.advance(task, rows)
        progress.update(task, total=done, completed=done)
    return done


def _check_format(out: Path, label_column: str | None) -> None:
    """Raise ParameterError unless scores, and labels if any, can be written to a file of this name."""
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise ParameterError("out", out, f"give the name of a file that ends in {', '.join(SUFFIXES)}")
    if suffix == ".npy" and label_column is not None:
        raise ParameterError(
            "out",
            out,
            f".npy files cannot store labels; write .parquet, .csv or .h5, or replace --label-column {label_column} by "
            "--ignore-extra",
        )


def _open(file: Path, model: Model, label_column: str | None, dataset: str | None, ignore_extra: bool) -> Source:
    if ignore_extra and model.columns is not None:  # so that text in other columns is not read
        with suppress(DataError):
            return open_source(file, label_column=label_column, dataset=dataset, columns=model.columns)
    index = model.about.get("first_index")
    (source,) = open_sources(
        [file], label_column=label_column, dataset=dataset, n_features=model.n_features, first_index=index
    )
    return source


def _match_columns(source: Source, model: Model) -> Source:
    """Return the source with the columns of the model, in their order; raise DataError unless it has just these."""
    if model.columns is None or source.columns is None:
        if source.d != model.n_features:
            raise DataError(
                f"{source.name} has {counted(source.d, 'column')}, but the model has {model.n_features}; give a file "
                "with the columns of the model"
            )
        return source
    have = {name: i for i, name in enumerate(source.columns)}
    missing = [name for name in model.columns if name not in have]
    extra = sorted(set(have) - set(model.columns))
    if missing:
        raise DataError(
            f"{source.name} lacks columns of the model: {_quoted(missing)}; add them to the file", column=missing[0]
        )
    if extra:
        raise DataError(
            f"{source.name} has columns that are not in the model: {_quoted(extra)}; use --label-column to copy one to "
            "the scores, or --ignore-extra to ignore them",
            column=extra[0],
        )
    order = np.array([have[name] for name in model.columns])
    return source if source.columns == model.columns else Reordered(source, model.columns, order)


def _quoted(names: list[str]) -> str:
    return ", ".join(map(repr, names[:6])) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
