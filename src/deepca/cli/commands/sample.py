"""``deepca sample``: files to try things with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from deepca.cli.common import errors, require, say
from deepca.data.writers import open_writer
from deepca.errors import InvalidInput
from deepca.operators.construction import split_rows

__all__ = ["sample"]

_SETS = {"wine": "load_wine", "digits": "load_digits", "breast-cancer": "load_breast_cancer", "iris": "load_iris"}
_FORMATS = ("csv", "parquet", "npy", "h5")


def sample(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(_SETS)}.", autocompletion=lambda: list(_SETS))],
    agents: Annotated[int, typer.Option(min=1, help="Number of files.")] = 3,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files.")] = Path("sites"),
    kind: Annotated[str, typer.Option("--format", help=f"One of {', '.join(_FORMATS)}.")] = "csv",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but errors.")] = False,
) -> None:
    """Write a data set that ships with scikit-learn as one file per agent, with a column "class" beside the values."""
    with errors():
        require("sklearn", extra="sklearn")
        from sklearn import datasets

        if name not in _SETS:
            raise InvalidInput(f"{name}: there is no such sample; choose {', '.join(_SETS)}")
        if kind not in _FORMATS:
            raise InvalidInput(f"--format {kind}: choose {', '.join(_FORMATS)}")
        data = getattr(datasets, _SETS[name])()
        columns = [str(column).replace("/", "_per_").replace(" ", "_") for column in data.feature_names]
        classes = np.asarray(data.target_names).astype(str)[data.target]
        X = np.asarray(data.data, dtype=np.float64)
        out.mkdir(parents=True, exist_ok=True)
        parts = zip(split_rows(X, agents), split_rows(classes, agents), strict=True)
        for j, (rows, labels) in enumerate(parts):
            with open_writer(out / f"site{j}.{kind}", columns, dtype=np.float64, label="class") as writer:
                writer.write(rows, labels if kind != "npy" else None)
        if not quiet:
            say(
                Console(emoji=False),
                f"{len(X):,} rows × {X.shape[1]} columns in {agents} files: [bold]{escape(str(out))}/site*.{kind}[/]",
            )
