"""Options that several commands share, with their defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from deepca.decomposition.settings import ALGORITHMS
from deepca.engines.local import ENGINES
from deepca.errors import ParameterError
from deepca.network.compression import Messages
from deepca.sites.config.toml import duration
from deepca.topology.names import DIRECTED, EXAMPLES, TIME_VARYING

__all__ = [
    "ALGORITHM",
    "COMPONENTS",
    "DATA",
    "MAX_ROUNDS",
    "NUMBER_OF_COMPONENTS",
    "OUTPUT",
    "TOLERANCE",
    "TOPOLOGY",
    "VALIDITY_DAYS",
    "AlgorithmOption",
    "CenterOption",
    "ComponentsOption",
    "ComponentsOrShareOption",
    "DatasetOption",
    "EngineOption",
    "FixedTopologyOption",
    "JsonOption",
    "LabelColumnOption",
    "MessagesOption",
    "PlotOption",
    "QuietOption",
    "ScaleOption",
    "SeedOption",
    "SilentOption",
    "SiteArgument",
    "ToleranceOption",
    "TopologyOption",
    "complete_name",
    "parse_components",
    "parse_duration",
    "parse_rounds",
]

TOLERANCE = 1e-10
TOPOLOGY = "erdos-renyi:0.5"
MAX_ROUNDS = 100_000  # gossip rounds per iteration; more would run for hours
VALIDITY_DAYS = 365  # of certificates and revocation lists
NUMBER_OF_COMPONENTS = 5  # default of commands that can run without files; others require --components

# Sections of the help.
DATA, COMPONENTS, ALGORITHM, OUTPUT = "Data", "Components", "Algorithm and network", "Output"


def complete_name(incomplete: str) -> list[str]:
    """Complete the name of a network; once a colon is typed, offer full examples such as ``torus:5x10``."""
    known = EXAMPLES | DIRECTED | TIME_VARYING
    choices = known.values() if ":" in incomplete else known
    return [choice for choice in choices if choice.startswith(incomplete.lower())]


def parse_components(given: str) -> int | float | None:
    """Parse a number of components or a share of variance; None stands for ``"all"``."""
    if given == "all":
        return None
    value: int | float
    try:
        value = int(given)
        valid = value >= 1
    except ValueError:
        try:
            value = float(given)
        except ValueError:
            value = 0.0
        valid = 0.0 < value < 1.0
    if not valid:
        expected = "expected a whole number of at least 1, a share of variance between 0 and 1, or all"
        raise ParameterError("components", given, expected)
    return value


def parse_duration(given: str, parameter: str, *, seconds: bool = False, least: float = 0.0) -> float:
    """Parse a duration such as 90s or 2h, in seconds.

    Parameters
    ----------
    given : str
        The text.
    parameter : str
        Parameter of the command that it was given for.
    seconds : bool, default=False
        Whether a number without a unit is accepted, in seconds.
    least : float, default=0.0
        Smallest accepted value, in seconds.
    """
    try:
        found = duration(f"{given}s" if seconds and re.fullmatch(r"[0-9.]+", given) else given)
    except ParameterError as error:
        raise ParameterError(parameter, given, error.expected) from None
    if found < least:
        raise ParameterError(parameter, given, f"expected a duration of at least {least:g}s")
    return found


def _complete_fixed_name(incomplete: str) -> list[str]:
    """Complete the name of a fixed, undirected network."""
    return [choice for choice in complete_name(incomplete) if choice.split(":")[0] in EXAMPLES]


def _option(*names: str, metavar: str | None = None, section: str | None = None, help: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, metavar=metavar, rich_help_panel=section, help=help, **more)


# ---------------------------------------------------------------------------------------------------------- arguments

SiteArgument = Annotated[
    Path, typer.Argument(metavar="SITE", help="The site.toml of this site, or the folder that contains it.")
]

# --------------------------------------------------------------------------------------------------------- components

ComponentsOption = Annotated[
    int, _option("--components", "-k", metavar="K", section=COMPONENTS, help="Number of principal components.")
]
ComponentsOrShareOption = Annotated[
    str,
    _option(
        "--components",
        "-k",
        metavar="K",
        section=COMPONENTS,
        help="Number of principal components, a share of variance such as 0.95, or all.",
    ),
]
ToleranceOption = Annotated[
    float,
    _option(
        "--tolerance",
        metavar="TAN",
        section=COMPONENTS,
        help="Largest acceptable tangent of the angle between any agent's result and the exact components.",
    ),
]
CenterOption = Annotated[
    bool, _option("--center/--no-center", section=COMPONENTS, help="Subtract the mean of all rows.")
]
ScaleOption = Annotated[
    bool, _option("--scale", section=COMPONENTS, help="Divide each column by its standard deviation over all rows.")
]

# --------------------------------------------------------------------------------------------------------------- data

DatasetOption = Annotated[
    str | None, _option("--dataset", metavar="NAME", section=DATA, help="Array to read from an .npz or HDF5 file.")
]
LabelColumnOption = Annotated[
    str | None,
    _option("--label-column", metavar="NAME", section=DATA, help="Column to exclude (labels, identifiers)."),
]

# --------------------------------------------------------------------------------------------- algorithm and network

TopologyOption = Annotated[
    str,
    _option(
        "--topology",
        metavar="NAME",
        section=ALGORITHM,
        help="Network of the agents, such as ring or torus:5x10; see deepca topology --help.",
        autocompletion=complete_name,
    ),
]
FixedTopologyOption = Annotated[
    str,
    _option(
        "--topology",
        metavar="NAME",
        section=ALGORITHM,
        help="Fixed, undirected network of the agents, such as ring:50 or torus:5x10.",
        autocompletion=_complete_fixed_name,
    ),
]
AlgorithmOption = Annotated[
    str,
    _option(
        "--algorithm",
        metavar="NAME",
        section=ALGORITHM,
        help=f"Algorithm: {', '.join(ALGORITHMS)}.",
        autocompletion=lambda: list(ALGORITHMS),
    ),
]
MessagesOption = Annotated[
    str,
    _option(
        "--messages",
        metavar="DTYPE",
        section=ALGORITHM,
        help="Precision of gossip messages: float64, float32, float16.",
        autocompletion=lambda: list(get_args(Messages)),
    ),
]
SeedOption = Annotated[
    int,
    _option("--seed", metavar="N", section=ALGORITHM, min=0, help="Seed of random networks and of the starting point."),
]
EngineOption = Annotated[
    str,
    _option(
        "--engine",
        metavar="NAME",
        section="MPI",
        help="Where to run: simulator (this process) or mpi (the ranks started by mpiexec).",
        autocompletion=lambda: list(ENGINES),
    ),
]

# ------------------------------------------------------------------------------------------------------------- output

PlotOption = Annotated[
    Path | None, _option("--plot", metavar="FILE", section=OUTPUT, help="Save a figure, as .png or .svg.")
]
JsonOption = Annotated[bool, _option("--json", section=OUTPUT, help="Print the result as JSON.")]
QuietOption = Annotated[bool, _option("--quiet", "-q", section=OUTPUT, help="Show no progress.")]
SilentOption = Annotated[bool, _option("--quiet", "-q", section=OUTPUT, help="Print errors only.")]


def parse_rounds(given: str) -> int:
    """Return a number of gossip rounds; raise ParameterError unless it is positive and not excessive."""
    expected = f"expected a whole number from 1 to {MAX_ROUNDS}, or auto"
    try:
        rounds = int(given)
    except ValueError:
        raise ParameterError("rounds", given, expected) from None
    if not 1 <= rounds <= MAX_ROUNDS:
        raise ParameterError("rounds", given, expected)
    return rounds
