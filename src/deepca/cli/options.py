"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from deepca.decomposition.settings import ALGORITHMS
from deepca.errors import InvalidInput
from deepca.network.compression import Messages
from deepca.topology.names import CHANGING, DIRECTED, EXAMPLES

__all__ = [
    "AlgorithmOption",
    "CenterOption",
    "ComponentsOption",
    "ComponentsOrShareOption",
    "DatasetOption",
    "LabelColumnOption",
    "MessagesOption",
    "QuietOption",
    "ScaleOption",
    "SeedOption",
    "SummaryOption",
    "ToleranceOption",
    "TopologyOption",
    "complete_name",
    "parse_components",
]


def complete_name(incomplete: str) -> list[str]:
    """Names of networks; after the colon, an example written in full."""
    known = EXAMPLES | DIRECTED | CHANGING
    choices = known.values() if ":" in incomplete else known
    return [choice for choice in choices if choice.startswith(incomplete.lower())]


def parse_components(given: str) -> int | float | None:
    """Read what :data:`ComponentsOrShareOption` takes: a number, a share of variance, or None for ``"all"``."""
    if given == "all":
        return None
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    raise InvalidInput(f"-k {given}: give a number, a share of variance such as 0.95, or 'all'")


# ------------------------------------------------------------------------------------------------- what is asked for

ComponentsOption = Annotated[int, typer.Option("--components", "-k", help="Principal components wanted.")]
ComponentsOrShareOption = Annotated[
    str, typer.Option("--components", "-k", help="How many; or a share of variance such as 0.95; or 'all'.")
]
ToleranceOption = Annotated[float, typer.Option(help="Largest acceptable tangent of the angle, at any agent.")]

# ---------------------------------------------------------------------------------------------------------- the data

DatasetOption = Annotated[str | None, typer.Option(help="Which array of an .npz or HDF5 file.")]
LabelColumnOption = Annotated[str | None, typer.Option(help="Column that is no data (a class, an id): left out.")]
CenterOption = Annotated[bool, typer.Option(help="Subtract the agreed mean.")]
ScaleOption = Annotated[bool, typer.Option("--scale", help="Divide columns by their agreed standard deviation.")]

# ------------------------------------------------------------------------------------------------------------ the run

TopologyOption = Annotated[
    str, typer.Option(help="Who talks to whom; see deepca topology.", autocompletion=complete_name)
]
AlgorithmOption = Annotated[
    str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}.", autocompletion=lambda: list(ALGORITHMS))
]
MessagesOption = Annotated[
    str,
    typer.Option(
        help="What a number takes in a message of gossip: float64, float32 or float16.",
        autocompletion=lambda: list(get_args(Messages)),
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, help="For random networks and the start.")]

# ---------------------------------------------------------------------------------------------------- what is shown

SummaryOption = Annotated[bool, typer.Option("--json", help="Print a summary as JSON instead.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
