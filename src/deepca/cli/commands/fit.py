"""``deepca fit``: compute a model from files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

from deepca._util.units import plural
from deepca.cli.common import check_agents_in_name, check_distinct, check_output, errors, print_json, print_unwrapped
from deepca.cli.options import (
    ALGORITHM,
    COMPONENTS,
    DATA,
    OUTPUT,
    TOLERANCE,
    TOPOLOGY,
    AlgorithmOption,
    CenterOption,
    ComponentsOrShareOption,
    DatasetOption,
    EngineOption,
    JsonOption,
    LabelColumnOption,
    MessagesOption,
    ScaleOption,
    SeedOption,
    SilentOption,
    ToleranceOption,
    TopologyOption,
    parse_components,
    parse_duration,
    parse_rounds,
)
from deepca.cli.ranks import TIMEOUT, consoles, running_engine
from deepca.cli.view.model import show_model, show_status, summary
from deepca.data.allocation import by_label, split_equally
from deepca.data.columns import align_columns
from deepca.data.readers import open_source, open_sources, spool
from deepca.data.sources import Source
from deepca.decomposition.fit import Decomposition
from deepca.decomposition.fit import fit as fit_rows
from deepca.decomposition.model import Model
from deepca.decomposition.settings import Settings, check_network, check_settings
from deepca.engines.checkpointing import CheckpointOptions
from deepca.engines.local import Engine
from deepca.engines.shards import agree_on_files, expand_patterns, open_local_files
from deepca.errors import DataError, InvalidInput, ParameterError
from deepca.network.compression import Messages
from deepca.sites.config.toml import duration_text
from deepca.solver.observers import Start, Step
from deepca.solver.progress import ProgressBar, ProgressLines, bars
from deepca.solver.result import Result
from deepca.topology.graph import Topology
from deepca.topology.names import from_name

__all__ = ["fit"]

_CHECKPOINT_EVERY = 10  # iterations between checkpoints by default

_FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="One file per agent, or any number of files with --agents or --agent-column; patterns in quotes are "
        "expanded.",
    ),
]
_OutOption = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="FILE", rich_help_panel=OUTPUT, help="Model file to write, ending in .npz."),
]
_AgentsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="M", rich_help_panel=DATA, help="Split all rows over this many agents."),
]
_AgentColumnOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", rich_help_panel=DATA, help="Column that names the agent of each row."),
]
_WhitenOption = Annotated[
    bool, typer.Option("--whiten", rich_help_panel=COMPONENTS, help="Scale the scores to unit variance.")
]
_MaxIterOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        rich_help_panel=ALGORITHM,
        help="Maximum number of iterations of each run of the algorithm; components with small variance "
        "may need further runs.",
    ),
]
_RoundsOption = Annotated[
    str,
    typer.Option(
        metavar="N",
        rich_help_panel=ALGORITHM,
        help="Gossip rounds per iteration of accelerated, deepca and depca, or auto.",
    ),
]
_AllreduceOption = Annotated[
    bool,
    typer.Option(
        "--allreduce",
        rich_help_panel="MPI",
        help="Broadcast the numbers of one agent with MPI_Bcast instead of along a tree.",
    ),
]
_TimeoutOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        rich_help_panel="MPI",
        help="How long a rank waits for other ranks before it ends the job, such as 90s or 10min.",
        show_default=duration_text(TIMEOUT),
    ),
]
_CheckpointsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        rich_help_panel="Checkpoints",
        help="Folder for checkpoints; after an interruption the same command resumes from them.",
    ),
]
_CheckpointEveryOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel="Checkpoints",
        help="Number of iterations between checkpoints.",
        show_default=str(_CHECKPOINT_EVERY),
    ),
]
_AcceptUnprovenOption = Annotated[
    bool,
    typer.Option(
        "--accept-unproven",
        rich_help_panel=OUTPUT,
        help="Write the model even if it does not reach the tolerance; the exit code is still 1.",
    ),
]


def fit(
    files: _FilesArgument,
    components: ComponentsOrShareOption,
    out: _OutOption,
    agents: _AgentsOption = None,
    agent_column: _AgentColumnOption = None,
    label_column: LabelColumnOption = None,
    topology: TopologyOption = TOPOLOGY,
    center: CenterOption = True,
    scale: ScaleOption = False,
    whiten: _WhitenOption = False,
    tol: ToleranceOption = TOLERANCE,
    algorithm: AlgorithmOption = "auto",
    rounds: _RoundsOption = "auto",
    max_iter: _MaxIterOption = 10_000,
    messages: MessagesOption = "float64",
    engine: EngineOption = "simulator",
    allreduce: _AllreduceOption = False,
    timeout: _TimeoutOption = None,
    checkpoints: _CheckpointsOption = None,
    checkpoint_every: _CheckpointEveryOption = None,
    dataset: DatasetOption = None,
    seed: SeedOption = 0,
    accept_unproven: _AcceptUnprovenOption = False,
    as_json: JsonOption = False,
    quiet: SilentOption = False,
) -> None:
    """Compute the principal components of rows in several files.

    By default, each file belongs to one agent, which exchanges messages with its neighbours only; rows are never sent.
    Reads .npy, .npz, CSV, Parquet, svmlight, HDF5 and AnnData files, which may be larger than memory.

    The model is written if the tolerance is proven, or if rounding allows no smaller error. Otherwise the exit code is
    1, and a message explains why.
    """
    with errors():
        if checkpoints is None and checkpoint_every is not None:
            raise InvalidInput("--checkpoint-every needs --checkpoints; add that, or omit --checkpoint-every")
        limit = None if timeout is None else parse_duration(timeout, "timeout", seconds=True, least=1.0)
    with running_engine(engine, allreduce=allreduce, timeout=limit, resumes=checkpoints is not None) as ranks:
        settings = Settings(
            n_components=parse_components(components),
            center=center,
            scale=scale,
            algorithm=algorithm,
            rounds="auto" if rounds == "auto" else parse_rounds(rounds),
            tol=tol,
            max_iter=max_iter,
            seed=seed,
            messages=cast("Messages", messages),
        )
        check_settings(settings)
        rows = _check(ranks, _Rows(files, agents, agent_column, label_column, dataset), out)
        view = _View(*consoles(ranks), as_json=as_json, quiet=quiet or not ranks.is_root)
        every = checkpoint_every or _CHECKPOINT_EVERY
        checkpointing = None if checkpoints is None else _checkpoint_options(view, ranks, checkpoints, every)
        found, model = _fitted(ranks, rows, topology, settings, whiten=whiten, view=view, checkpointing=checkpointing)
        _finish(ranks, found, model, out, accept_unproven=accept_unproven, view=view)
        if not model.status.ok:
            raise typer.Exit(1)


@dataclass(frozen=True)
class _Rows:
    """Files of rows, and how the rows are assigned to agents (by default, each file to one agent)."""

    files: Sequence[Path]
    agents: int | None
    agent_column: str | None
    label_column: str | None
    dataset: str | None


@dataclass(frozen=True)
class _View:
    """Consoles for notes (stderr) and for the result (stdout), and how much to show."""

    notes: Console
    console: Console
    as_json: bool
    quiet: bool


def _check(ranks: Engine, rows: _Rows, out: Path) -> _Rows:
    """Check that the options are compatible, and return the rows with patterns expanded to files."""
    if out.suffix != ".npz":
        raise ParameterError("out", out, "give the name of a file that ends in .npz")
    if rows.agents is not None and rows.agent_column is not None:
        raise InvalidInput("--agents and --agent-column both assign rows to agents; give one of them")
    if rows.agent_column is not None and rows.agent_column == rows.label_column:
        raise InvalidInput(f"--agent-column and --label-column both name {rows.agent_column!r}; omit --label-column")
    with ranks.raise_on_all_ranks():
        files = expand_patterns(rows.files)
    agree_on_files(ranks, files)
    with ranks.raise_on_all_ranks():
        if ranks.is_root:
            check_output(out, "--out", files)
    return replace(rows, files=files)


def _checkpoint_options(view: _View, ranks: Engine, folder: Path, every: int) -> CheckpointOptions:
    prefix = "" if ranks.is_root else f"rank {ranks.rank}: "

    def tell(line: str) -> None:
        view.notes.print(f"{prefix}{line}", highlight=False, soft_wrap=True, markup=False)

    return CheckpointOptions(folder, every, tell, tell)


def _fitted(
    ranks: Engine,
    rows: _Rows,
    topology: str,
    settings: Settings,
    *,
    whiten: bool,
    view: _View,
    checkpointing: CheckpointOptions | None,
) -> tuple[Decomposition, Model]:
    """Read the rows and decompose them, showing progress."""
    net = None
    if rows.agent_column is None:  # the number of agents is known, and so is the network, before anything is read
        check_agents_in_name(topology, rows.agents, len(rows.files))
        net = _network(topology, len(rows.files) if rows.agents is None else rows.agents, settings)
    assigned = _assign(ranks, rows)
    net = _network(topology, sum(assigned.shares), settings) if net is None else net
    network = ranks.network(net, assigned.shares)
    sources = assigned.sources
    in_lines = ranks.ranks > 1 and not view.notes.is_terminal and not (view.quiet or view.as_json)
    with bars(view.notes, disable=view.quiet or view.as_json or in_lines) as progress:
        n = None if any(s.n is None for s in sources) else sum(s.n or 0 for s in sources)
        task = progress.add_task("reading", total=n, iteration="—", note=_scope(net.n_agents, ranks))
        lines = [ProgressLines(lambda line: view.notes.print(line, highlight=False))] if in_lines else []
        fitted = fit_rows(
            sources,
            network,
            settings,
            observers=[_ReadingDone(progress, task), ProgressBar(progress), *lines],
            on_rows=lambda read: progress.advance(task, read),
            engine=ranks,
            checkpointing=checkpointing,
            whiten=whiten,
        )
        ranks.close(network)
    model = fitted.model
    if (first := sources[0].first_index) is not None:  # transform must count svmlight columns the same way
        model = replace(model, about={**model.about, "first_index": first})
    return fitted.decomposition, model


def _network(topology: str, agents: int, settings: Settings) -> Topology:
    net = from_name(topology, agents, seed=settings.seed)
    check_network(settings, net)
    return net


def _finish(
    ranks: Engine, found: Decomposition, model: Model, out: Path, *, accept_unproven: bool, view: _View
) -> None:
    """Write the model and remove the checkpoints if the result is proven or accepted, then show it."""
    written = model.status.ok or accept_unproven
    with ranks.raise_on_all_ranks():
        if written and ranks.is_root:
            model.save(out)
    if found.checkpointer is not None and written:
        found.checkpointer.clear()
    if ranks.is_root:
        _report(view, model, out if written else None)


def _report(view: _View, model: Model, written: Path | None) -> None:
    """Show the model, or why it was not written."""
    if written is None:
        show_status(view.notes, model)
        print_unwrapped(view.notes, "No model was written; --accept-unproven writes it regardless.")
    if view.as_json:
        print_json({**summary(model), "model": None if written is None else str(written)})
    elif written is not None and not view.quiet:
        show_model(view.console, model)
        print_unwrapped(view.console, f"\nModel: [bold]{escape(str(written))}[/]")


def _scope(agents: int, ranks: Engine) -> str:
    count = f"{agents} agent{plural(agents)}"
    return count if ranks.ranks == 1 else f"rank 0's share of {count} on {ranks.ranks} ranks"


class _ReadingDone:
    """Observer that completes the progress bar for reading when the run begins and the number of rows is known."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def begin(self, start: Start) -> None:
        """Complete the bar with the number of rows read."""
        done = self._progress.tasks[self._task].completed
        self._progress.update(self._task, total=done, completed=done, note=f"{done:,.0f} row{plural(int(done))}")

    def observe(self, step: Step) -> None:
        """Do nothing."""

    def end(self, result: Result[Any]) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class _Assignment:
    """The sources of this rank's agents, and the number of agents of each rank."""

    sources: tuple[Source, ...]
    shares: tuple[int, ...]


def _assign(ranks: Engine, rows: _Rows) -> _Assignment:
    """Open the sources of this rank's agents; a rank reads the files of other ranks only to split or regroup rows."""
    check_distinct(rows.files)
    if rows.agents is None and rows.agent_column is None:
        shares = ranks.agents_per_rank(len(rows.files))
        opened = open_local_files(ranks, rows.files, shares, label_column=rows.label_column, dataset=rows.dataset)
        return _Assignment(opened, shares)
    with ranks.raise_on_all_ranks():
        every = _split(rows)
    shares = ranks.agents_per_rank(len(every))
    first = sum(shares[: ranks.rank])
    return _Assignment(every[first : first + shares[ranks.rank]], shares)


def _split(rows: _Rows) -> tuple[Source, ...]:
    """Assign the rows of all files to agents, evenly or by a column."""
    label, dataset = rows.label_column, rows.dataset
    if rows.agent_column is None:
        opened = align_columns(open_sources(rows.files, label_column=label, dataset=dataset))
        return split_equally([spool(source) for source in opened], rows.agents or 0)
    kept = []
    for file in rows.files:
        source = open_source(file, label_column=rows.agent_column, dataset=dataset)
        if label is not None:
            if source.columns is None or label not in source.columns:
                raise DataError(f"{file} has no column {label!r}; check --label-column", file=str(file), column=label)
            names = [name for name in source.columns if name != label]
            source = open_source(file, label_column=rows.agent_column, dataset=dataset, columns=names)
        kept.append(source)
    return by_label([spool(source) for source in align_columns(kept)])
