"""``deepca sample``: write example data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from deepca.cli.common import errors, require, say
from deepca.cli.options import SilentOption
from deepca.data.writers import open_writer
from deepca.errors import ParameterError
from deepca.operators.construction import split_rows

__all__ = ["sample"]

_DATA_SETS = {"wine": "load_wine", "digits": "load_digits", "breast-cancer": "load_breast_cancer", "iris": "load_iris"}
_FORMATS = ("csv", "parquet", "npy", "h5")


def sample(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help=f"One of {', '.join(_DATA_SETS)}.", autocompletion=lambda: list(_DATA_SETS)
        ),
    ],
    agents: Annotated[int, typer.Option(min=1, metavar="M", help="Number of files.")] = 3,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the files.")] = Path("sites"),
    kind: Annotated[str, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(_FORMATS)}.")] = "csv",
    quiet: SilentOption = False,
) -> None:
    """Write example data of scikit-learn, one file per agent.

    Each file has a column "class" beside the values, except .npy files, which cannot hold text.
    """
    with errors():
        require("sklearn", extra="sklearn")
        from sklearn import datasets

        if name not in _DATA_SETS:
            raise ParameterError("name", name, f"choose one of {', '.join(_DATA_SETS)}")
        if kind not in _FORMATS:
            raise ParameterError("kind", kind, f"choose one of {', '.join(_FORMATS)}")
        data = getattr(datasets, _DATA_SETS[name])()
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
