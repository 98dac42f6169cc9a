"""``deepca inspect`` and ``deepca transform``: commands on a model file."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from deepca.cli.common import check_output, errors, print_json, require, say
from deepca.cli.options import DatasetOption
from deepca.cli.view.model import show_model, summary
from deepca.data.columns import Reordered
from deepca.data.moments import check_finite
from deepca.data.readers import open_source, open_sources
from deepca.data.sources import Source
from deepca.data.writers import open_writer
from deepca.decomposition.model import Model
from deepca.decomposition.model.file import load
from deepca.errors import DataError, InvalidInput
from deepca.solver.progress import bars

__all__ = ["inspect", "transform"]

ModelArgument = Annotated[Path, typer.Argument(help="A model that deepca fit wrote.")]


def inspect(
    model: ModelArgument,
    plot: Annotated[Path | None, typer.Option(help="Draw the scree plot into this file, .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything but the large arrays as JSON.")] = False,
) -> None:
    """Variances, their scree plot, the columns that matter, and what is proven about them."""
    with errors():
        fitted = load(model)
        if plot is not None:
            if plot.suffix.lower() not in (".png", ".svg"):
                raise InvalidInput(f"--plot {plot}: a figure ends in .png or .svg")
            check_output(plot, "--plot", [model])
            require("matplotlib", extra="plot")
            plot.parent.mkdir(parents=True, exist_ok=True)
            from deepca.plots.curves import scree

            scree(fitted.explained_variance_ratio, plot, title=f"{model.name}: {fitted.n_samples:,} rows")
        if as_json:
            print_json({**summary(fitted), "model": str(model)})
            return
        console = Console(emoji=False)
        say(console, f"[bold]{escape(str(model))}[/]")
        show_model(console, fitted)
        if plot is not None:
            say(console, f"\nFigure: {escape(str(plot))}")


def transform(
    model: ModelArgument,
    file: Annotated[Path, typer.Argument(help="Rows, in any format that deepca fit reads.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Scores: .parquet, .csv, .npy or .h5.")],
    label_column: Annotated[
        str | None, typer.Option(help="Column that is no data; it is carried over to the scores.")
    ] = None,
    ignore_extra: Annotated[
        bool, typer.Option("--ignore-extra", help="Leave out columns that the model does not know.")
    ] = False,
    dataset: DatasetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, and nothing but errors.")] = False,
) -> None:
    """Scores of the rows of a file, block by block: it may be larger than memory. Nothing is sent anywhere."""
    with errors():
        fitted = load(model)
        check_output(out, "--out", [file, model])
        source = _matched(_opened(file, fitted, label_column, dataset, ignore_extra), fitted)
        labels = source.labels()
        names = [f"PC{i + 1}" for i in range(fitted.n_components)]
        dtype = np.dtype(np.float32 if source.dtype == np.float32 and fitted.dtype == np.float32 else np.float64)
        done = 0
        console = Console(stderr=True, emoji=False)
        carried = labels is not None and label_column is not None
        with (
            bars(console, disable=quiet or as_json, details=()) as progress,
            open_writer(out, names, dtype=dtype, label=label_column or "label") as writer,
        ):
            task = progress.add_task("rows", total=source.n)
            for block in source.blocks():
                check_finite(source, block, done)
                rows = int(block.shape[0])
                writer.write(
                    fitted.transform(block), labels[done : done + rows] if carried and labels is not None else None
                )
                done += rows
                progress.advance(task, rows)
            progress.update(task, total=done, completed=done)
        if as_json:
            typer.echo(json.dumps({"rows": done, "components": fitted.n_components, "out": str(out)}))
        elif not quiet:
            say(Console(emoji=False), f"{done:,} rows × {fitted.n_components} scores: [bold]{escape(str(out))}[/]")


def _opened(file: Path, model: Model, label_column: str | None, dataset: str | None, ignore_extra: bool) -> Source:
    if ignore_extra and model.columns is not None:  # columns that are not asked for may hold anything
        with suppress(DataError):
            return open_source(file, label_column=label_column, dataset=dataset, columns=model.columns)
    index = model.about.get("first_index")
    (source,) = open_sources(
        [file], label_column=label_column, dataset=dataset, n_features=model.n_features, first_index=index
    )
    return source


def _matched(source: Source, model: Model) -> Source:
    """The source with the columns of the model, in its order."""
    if model.columns is None or source.columns is None:
        if source.d != model.n_features:
            raise DataError(f"{source.name} has {source.d} columns, the model has {model.n_features}")
        return source
    have = {name: i for i, name in enumerate(source.columns)}
    missing = [name for name in model.columns if name not in have]
    extra = sorted(set(have) - set(model.columns))
    if missing:
        raise DataError(f"{source.name} has no column {_some(missing)}, which the model needs")
    if extra:
        raise DataError(
            f"{source.name} has {_some(extra)}, which the model does not know; --label-column carries a column over, "
            "--ignore-extra leaves all such columns out"
        )
    order = np.array([have[name] for name in model.columns])
    return source if source.columns == model.columns else Reordered(source, model.columns, order)


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:6])) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
