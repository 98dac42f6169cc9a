"""``deepca sample``: write example data."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from deepca._util.units import plural
from deepca.cli.common import errors, print_unwrapped, require
from deepca.cli.options import OUTPUT, SilentOption
from deepca.data.writers import open_writer
from deepca.errors import InvalidInput, ParameterError
from deepca.operators.construction import split_rows

__all__ = ["sample"]

_DATA_SETS = {"wine": "load_wine", "digits": "load_digits", "breast-cancer": "load_breast_cancer", "iris": "load_iris"}
_FORMATS = ("csv", "parquet", "npy", "h5")


def sample(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help=f"Data set: {', '.join(_DATA_SETS)}.", autocompletion=lambda: list(_DATA_SETS)
        ),
    ],
    agents: Annotated[int, typer.Option(min=1, metavar="M", help="Number of agents, with one file each.")] = 3,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", rich_help_panel=OUTPUT, help="Folder for the files.")
    ] = Path("sites"),
    kind: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help=f"File format: {', '.join(_FORMATS)}.")
    ] = "csv",
    quiet: SilentOption = False,
) -> None:
    """Write a scikit-learn example data set, one file per agent.

    A column "class" contains the label of each row, except in .npy files, which cannot store text.
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
        parts = zip(split_rows(X, agents), split_rows(classes, agents), strict=True)
        _check_folder(out, agents, kind)
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out) as unfinished:
            for j, (rows, labels) in enumerate(parts):
                with open_writer(
                    Path(unfinished) / f"site{j}.{kind}", columns, dtype=np.float64, label="class"
                ) as writer:
                    writer.write(rows, labels if kind != "npy" else None)
            for path in sorted(Path(unfinished).iterdir()):
                path.replace(out / path.name)
        if not quiet:
            print_unwrapped(
                Console(emoji=False),
                f"{len(X):,} rows × {X.shape[1]} columns in {agents} file{plural(agents)}: "
                f"[bold]{escape(str(out))}/site*.{kind}[/]",
            )


def _check_folder(out: Path, agents: int, kind: str) -> None:
    """Raise InvalidInput if files of an earlier run would remain beside the new ones, so that rows count twice."""
    if out.exists() and not out.is_dir():
        raise ParameterError("out", out, "this is a file; give the name of a folder")
    written = {f"site{j}.{kind}" for j in range(agents)}
    earlier = [file.name for file in sorted(out.glob(f"site*.{kind}")) if re.fullmatch(r"site\d+", file.stem)]
    left = [name for name in earlier if name not in written]
    if left:
        more = f" and {len(left) - 1} more file{plural(len(left) - 1)}" if len(left) > 1 else ""
        raise InvalidInput(
            f"--out {out} contains {left[0]}{more} of an earlier run; remove {'them' if more else 'it'}, or give "
            "another folder",
            parameter="out",
            value=out,
        )
