"""``deepca privacy``: measure what sites learn about each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import TaskID

from deepca._util.units import plural
from deepca.cli.common import check_agents_in_name, check_distinct, errors, print_json, require
from deepca.cli.options import (
    ALGORITHM,
    DATA,
    TOPOLOGY,
    CenterOption,
    DatasetOption,
    JsonOption,
    LabelColumnOption,
    QuietOption,
    ScaleOption,
    TopologyOption,
    parse_components,
)
from deepca.cli.view.leakage import as_plain, show_leakage
from deepca.data.allocation import split_equally
from deepca.data.columns import align_columns
from deepca.data.readers import open_sources, spool
from deepca.data.sources import Source
from deepca.decomposition.settings import Settings
from deepca.engines.shards import expand_patterns
from deepca.errors import DataError, InvalidInput, ParameterError
from deepca.planning.leakage import MAX_COLUMNS, MAX_SITES, PRIVATE_ALGORITHMS, measure_leakage, random_sites
from deepca.sites.config.network_file import NetworkFile, read_network
from deepca.solver.progress import ProgressBar, bars
from deepca.topology.graph import Topology
from deepca.topology.names import from_name

__all__ = ["privacy"]

_ROWS, _COLUMNS = 50, 12  # defaults of random rows: per site, and in all
_COLUMNS_PER_COMPONENT = 3  # with many components, there are more columns by default

_TargetArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="TARGET",
        help="A network.toml, of which sites, links and settings are taken; or files of rows as for deepca fit: one "
        "per site, or any number with --agents.",
    ),
]
_ComponentsOption = Annotated[
    str | None,
    typer.Option(
        "--components",
        "-k",
        metavar="K",
        rich_help_panel="Components",
        help="Number of principal components, a share of variance such as 0.95, or all. Required with files of rows.",
    ),
]
_AgentsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="M", rich_help_panel=DATA, help="Split all rows over this many sites."),
]
_DataOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=DATA,
        help="Rows of a site of network.toml; may be repeated. Files named after sites belong to these, other files to "
        "the sites in their order; patterns in quotes are expanded.",
    ),
]
_RowsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel=DATA,
        help="Instead of files: random rows per site of network.toml.",
        show_default=str(_ROWS),
    ),
]
_ColumnsOption = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=MAX_COLUMNS,
        metavar="D",
        rich_help_panel=DATA,
        help="Instead of files: columns of random rows.",
        show_default=f"{_COLUMNS}, or more with many components",
    ),
]
_SeedOption = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        rich_help_panel=ALGORITHM,
        help="Seed of random rows; with files of rows, of random networks and of the starting point.",
    ),
]


def privacy(
    targets: _TargetArgument,
    components: _ComponentsOption = None,
    agents: _AgentsOption = None,
    data: _DataOption = None,
    rows: _RowsOption = None,
    columns: _ColumnsOption = None,
    label_column: LabelColumnOption = None,
    dataset: DatasetOption = None,
    topology: TopologyOption = TOPOLOGY,
    center: CenterOption = True,
    scale: ScaleOption = False,
    seed: _SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure what sites learn about each other.

    The fit runs in an open network and in a private one, in this process, with one thread per site, and all messages
    are recorded. Then each site's mean, covariance and rows are rebuilt by least squares from all that others have
    seen: its parent in the spanning tree, one neighbour, all neighbours, all sites but two. The table shows the
    relative errors, beside those of the same sites if they knew the sums over all sites only. An error of about 1 means
    that nothing has been learned.

    Networks have 3 to 24 sites, and rows at most 400 columns. The exit code is 1 if anybody learns more from a private
    network than from the sums.
    """
    with errors():
        require("cryptography", extra="agent")
        files = _Files(label_column, dataset)
        if any(target.suffix == ".toml" for target in targets):
            _check_decided_by_file(components, agents, topology, scale=scale, center=center)
            setting = _of_network_file(targets, files, _Random(data or [], rows, columns, seed))
        else:
            if data or rows is not None or columns is not None:
                raise InvalidInput("--data, --rows and --columns need a network.toml; give one, or omit them")
            if components is None:
                raise InvalidInput("--components is required with files of rows", parameter="components")
            settings = Settings(parse_components(components), center, scale, seed=seed)
            setting = _of_rows(expand_patterns(targets), files, agents, topology, settings)
        with ExitStack() as showing:
            progress = _Progress(showing, disable=quiet or as_json)
            found = measure_leakage(
                setting.sources,
                setting.topology,
                setting.settings,
                names=setting.names,
                on_rows=progress.on_rows,
                observer_factory=progress.observer_factory,
                progress=progress.advance,
            )
        if as_json:
            print_json(as_plain(found))
        else:
            show_leakage(Console(emoji=False), found)
        if found.private_excess > 0.0:
            raise typer.Exit(1)


@dataclass(frozen=True)
class _Files:
    """How to read files of rows."""

    label_column: str | None
    dataset: str | None

    def open(self, files: Sequence[Path]) -> tuple[Source, ...]:
        """Open files, with their columns in the same order."""
        check_distinct(files)
        return align_columns(open_sources(files, label_column=self.label_column, dataset=self.dataset))


@dataclass(frozen=True)
class _Random:
    """Rows for the sites of a network.toml: files, or how to draw them."""

    files: Sequence[Path]
    rows: int | None
    columns: int | None
    seed: int


@dataclass(frozen=True)
class _Setting:
    """What to measure."""

    sources: Sequence[Source]
    names: tuple[str, ...]
    topology: Topology
    settings: Settings


def _check_decided_by_file(
    components: str | None, agents: int | None, topology: str, *, scale: bool, center: bool
) -> None:
    """Raise InvalidInput if an option is given that network.toml decides."""
    given = {
        "--components": components is not None,
        "--agents": agents is not None,
        "--topology": topology != TOPOLOGY,
        "--scale": scale,
        "--no-center": not center,
    }
    if wrong := [option for option, is_given in given.items() if is_given]:
        raise InvalidInput(f"{', '.join(wrong)}: network.toml decides this; omit it, or change it there")


def _of_network_file(targets: Sequence[Path], files: _Files, given: _Random) -> _Setting:
    """Return the network of a network.toml, with rows from files, or random ones."""
    if len(targets) > 1:
        raise InvalidInput(
            f"{len(targets)} targets, and one is a .toml file: give either one network.toml, with files of rows as "
            "--data, or files of rows only"
        )
    network = read_network(targets[0])
    names, settings = tuple(site.name for site in network.sites), network.settings
    if settings.algorithm not in PRIVATE_ALGORITHMS:
        expected = (
            f"leakage is measured for {', '.join(PRIVATE_ALGORITHMS)}, which send exact sums only; choose one of them"
        )
        raise ParameterError("algorithm", settings.algorithm, expected, file=str(targets[0]))
    if given.files:
        if given.rows is not None or given.columns is not None:
            raise InvalidInput("--rows and --columns describe random rows; omit them, or omit --data")
        sources = files.open(_by_site(expand_patterns(given.files), network))
        return _Setting(sources, names, network.topology, settings)
    if files != _Files(None, None):
        raise InvalidInput("--label-column and --dataset apply to files only; give --data, or omit them")
    k, rows = settings.n_components, given.rows or _ROWS
    columns = given.columns or max(_COLUMNS, _COLUMNS_PER_COMPONENT * k if isinstance(k, int) else 0)
    sources = random_sites(len(names), rows, min(columns, MAX_COLUMNS), given.seed)
    return _Setting(sources, names, network.topology, settings)


def _by_site(files: Sequence[Path], network: NetworkFile) -> list[Path]:
    """Return one file per site, in the order of sites."""
    names = [site.name for site in network.sites]
    if len(files) != len(names):
        raise DataError(
            f"--data: {len(files)} file{plural(len(files))} for {len(names)} sites ({', '.join(names)}); give one per "
            "site, or none for random rows",
            parameter="data",
        )
    by_name = {file.stem: file for file in files}
    return [by_name[name] for name in names] if by_name.keys() == set(names) else list(files)


def _of_rows(files: Sequence[Path], options: _Files, agents: int | None, topology: str, settings: Settings) -> _Setting:
    """Return the network of files of rows."""
    check_agents_in_name(topology, agents, len(files))
    m = len(files) if agents is None else agents
    if m > MAX_SITES:
        raise InvalidInput(
            f"there are {m} sites, but leakage is measured for at most {MAX_SITES}; split the rows with --agents",
            parameter="agents",
        )
    net = from_name(topology, m, seed=settings.seed)
    sources: Sequence[Source] = options.open(files)
    names = tuple(file.stem for file in files)
    if agents is not None:
        sources = split_equally([spool(source) for source in sources], agents)
    if agents is not None or len(set(names)) < len(names):
        names = tuple(f"site{j}" for j in range(m))
    return _Setting(sources, names, net, settings)


class _Progress:
    """Progress bars for reading, the two runs and the coalitions; shown once rows are read, and removed at the end."""

    def __init__(self, showing: ExitStack, *, disable: bool) -> None:
        self._showing, self._progress = showing, bars(Console(stderr=True, emoji=False), disable=disable)
        self._progress.live.transient = True
        self._tasks: dict[str, TaskID] = {}

    def on_rows(self, read: int) -> None:
        """Count rows that have been read."""
        self._progress.update(self._task("reading", "rows"), advance=read)

    def observer_factory(self, name: str) -> ProgressBar:
        """Return a bar for a run."""
        return ProgressBar(self._progress, description=f"running, {name}")

    def advance(self, done: int, total: int) -> None:
        """Show how many coalitions are done."""
        self._progress.update(
            self._task("rebuilding", "coalitions"), completed=done, total=total, iteration=f"{done} of {total}"
        )

    def _task(self, name: str, note: str) -> TaskID:
        if name not in self._tasks:
            if not self._tasks:  # only once the input has been checked
                self._showing.enter_context(self._progress)
            self._tasks[name] = self._progress.add_task(name, total=None, iteration="—", note=note)
        return self._tasks[name]
