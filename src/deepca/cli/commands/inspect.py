"""``deepca inspect``: what is in a model file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deepca.cli.common import check_output, errors, require
from deepca.cli.view.model import show_model, summary
from deepca.decomposition.model.file import load
from deepca.errors import InvalidInput

__all__ = ["inspect"]


def inspect(
    model: Annotated[Path, typer.Argument(help="A model that deepca fit wrote.")],
    plot: Annotated[Path | None, typer.Option(help="Draw the scree plot into this file, .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything but the large arrays as JSON.")] = False,
) -> None:
    """Variances, their scree plot, the columns that matter, and what is proven about them."""
    with errors():
        fitted = load(model)
        if plot is not None:
            if plot.suffix not in (".png", ".svg"):
                raise InvalidInput(f"--plot {plot}: a figure ends in .png or .svg")
            check_output(plot, "--plot", [model])
            require("matplotlib", extra="plot")
            plot.parent.mkdir(parents=True, exist_ok=True)
            from deepca.plots.curves import scree

            scree(fitted.explained_variance_ratio, plot, title=f"{model.name}: {fitted.n_samples:,} rows")
        if as_json:
            typer.echo(json.dumps({**summary(fitted), "model": str(model)}, indent=2, ensure_ascii=False))
            return
        console = Console(emoji=False)
        console.print(f"[bold]{escape(str(model))}[/]", highlight=False, soft_wrap=True)
        show_model(console, fitted)
        if plot is not None:
            console.print(f"\nFigure: {escape(str(plot))}", highlight=False, soft_wrap=True)
