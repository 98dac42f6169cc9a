"""``deepca fit``: files in, model out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

from deepca.cli.common import check_named_once, check_output, print_json, say
from deepca.cli.options import (
    AlgorithmOption,
    CenterOption,
    ComponentsOrShareOption,
    DatasetOption,
    LabelColumnOption,
    MessagesOption,
    ScaleOption,
    SeedOption,
    SummaryOption,
    ToleranceOption,
    TopologyOption,
    parse_components,
)
from deepca.cli.ranks import consoles, ending_together
from deepca.cli.view.model import show_model, show_status, summary
from deepca.data.allocation import by_label, in_equal_shares
from deepca.data.columns import common_columns
from deepca.data.readers import open_source, open_sources, spool
from deepca.data.sources import Source
from deepca.decomposition.fit import Decomposition
from deepca.decomposition.fit import fit as fit_rows
from deepca.decomposition.model import Model
from deepca.decomposition.settings import Settings, check_settings
from deepca.engines.keeping import Keeping
from deepca.engines.local import ENGINES, Engine
from deepca.engines.shards import agree_on_files, expanded, open_shares
from deepca.errors import DataError, InvalidInput
from deepca.network.compression import Messages
from deepca.solver.observers import Start, Step
from deepca.solver.progress import ProgressBar, ProgressLines, bars
from deepca.solver.result import Result
from deepca.topology.names import from_name

__all__ = ["fit"]


_FilesArgument = Annotated[
    list[Path],
    typer.Argument(help="One file per agent; or any files, together with --agents or --agent-column."),
]
_OutOption = Annotated[Path, typer.Option("--out", "-o", help="Where the model goes, an .npz file.")]
_AgentsOption = Annotated[int | None, typer.Option(help="Spread all rows over that many agents, to try things out.")]
_AgentColumnOption = Annotated[str | None, typer.Option(help="Column that says which agent holds a row.")]
_WhitenOption = Annotated[bool, typer.Option("--whiten", help="Scores with variance one.")]
_MaxIterOption = Annotated[int, typer.Option(help="Iterations at most.")]
_RoundsOption = Annotated[str, typer.Option(help="Rounds of gossip per iteration, or 'auto'.")]
_EngineOption = Annotated[
    str,
    typer.Option(
        help="Where it runs: simulator (this process), or mpi (all ranks that mpiexec has started).",
        autocompletion=lambda: list(ENGINES),
    ),
]
_AllreduceOption = Annotated[
    bool, typer.Option("--allreduce", help="With mpi: exact averages by MPI_Allreduce, over all ranks at once.")
]
_TimeoutOption = Annotated[
    float | None,
    typer.Option(min=1.0, help="With mpi: seconds that a rank waits for others before the job is ended. [600]"),
]
_CheckpointsOption = Annotated[
    Path | None,
    typer.Option(help="Folder for checkpoints; the same command goes on from them after an interruption."),
]
_CheckpointEveryOption = Annotated[int, typer.Option(min=1, help="Iterations from one checkpoint to the next.")]
_AcceptUnprovenOption = Annotated[
    bool, typer.Option("--accept-unproven", help="Write the model even if the tolerance was not reached.")
]
_QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, and nothing but errors.")]


def fit(
    files: _FilesArgument,
    components: ComponentsOrShareOption,
    out: _OutOption,
    agents: _AgentsOption = None,
    agent_column: _AgentColumnOption = None,
    label_column: LabelColumnOption = None,
    topology: TopologyOption = "erdos-renyi:0.5",
    center: CenterOption = True,
    scale: ScaleOption = False,
    whiten: _WhitenOption = False,
    tol: ToleranceOption = 1e-10,
    max_iter: _MaxIterOption = 10_000,
    rounds: _RoundsOption = "auto",
    algorithm: AlgorithmOption = "auto",
    messages: MessagesOption = "float64",
    engine: _EngineOption = "simulator",
    allreduce: _AllreduceOption = False,
    timeout: _TimeoutOption = None,
    checkpoints: _CheckpointsOption = None,
    checkpoint_every: _CheckpointEveryOption = 10,
    dataset: DatasetOption = None,
    seed: SeedOption = 0,
    accept_unproven: _AcceptUnprovenOption = False,
    as_json: SummaryOption = False,
    quiet: _QuietOption = False,
) -> None:
    """Principal components of rows that stay in their files: each file is an agent, and talks to its neighbours only.

    Reads .npy, .npz, CSV, Parquet, svmlight, HDF5 and AnnData files, larger than memory if need be.

    The model is written when the tolerance is proven, or as much as rounding allows; else exit code 1 says why not.
    """
    with ending_together(engine, allreduce=allreduce, timeout=timeout, resumes=checkpoints is not None) as ranks:
        settings = Settings(
            n_components=parse_components(components),
            center=center,
            scale=scale,
            algorithm=algorithm,
            rounds="auto" if rounds == "auto" else _whole(rounds, "--rounds"),
            tol=tol,
            max_iter=max_iter,
            seed=seed,
            messages=cast("Messages", messages),
        )
        check_settings(settings)
        rows = _checked(ranks, _Rows(files, agents, agent_column, label_column, dataset), out)
        view = _View(*consoles(ranks), as_json=as_json, quiet=quiet or not ranks.speaks)
        keeping = None if checkpoints is None else _keeping(view, ranks, checkpoints, checkpoint_every)
        found, model = _fitted(ranks, rows, topology, settings, whiten=whiten, view=view, keeping=keeping)
        _finish(ranks, found, model, out, accept_unproven=accept_unproven, view=view)
        if not model.status.ok:
            raise typer.Exit(1)


@dataclass(frozen=True)
class _Rows:
    """Where the rows are, and what says which agent holds them; by default a file is an agent."""

    files: Sequence[Path]
    agents: int | None
    agent_column: str | None
    label_column: str | None
    dataset: str | None


@dataclass(frozen=True)
class _View:
    """Where a run is shown, and how much of it. ``notes`` : stderr.  ``console`` : stdout, for the result."""

    notes: Console
    console: Console
    as_json: bool
    quiet: bool


def _checked(ranks: Engine, rows: _Rows, out: Path) -> _Rows:
    """Return the rows with patterns replaced by files, or say what the options contradict."""
    if out.suffix != ".npz":
        raise InvalidInput(f"--out {out}: a model file ends in .npz")
    if rows.agents is not None and rows.agent_column is not None:
        raise InvalidInput("--agents and --agent-column both say who holds the rows; give one of them")
    if rows.agent_column is not None and rows.agent_column == rows.label_column:
        raise InvalidInput(f"--agent-column and --label-column both name {rows.agent_column!r}; leave the latter out")
    with ranks.together():
        files = expanded(rows.files)
    agree_on_files(ranks, files)
    with ranks.together():
        if ranks.speaks:
            check_output(out, "--out", files)
    return replace(rows, files=files)


def _keeping(view: _View, ranks: Engine, folder: Path, every: int) -> Keeping:
    who = "" if ranks.speaks else f"rank {ranks.rank}: "

    def tell(line: str) -> None:
        view.notes.print(f"{who}{line}", highlight=False, soft_wrap=True, markup=False)

    return Keeping(folder, every, tell, tell)


def _fitted(
    ranks: Engine,
    rows: _Rows,
    topology: str,
    settings: Settings,
    *,
    whiten: bool,
    view: _View,
    keeping: Keeping | None,
) -> tuple[Decomposition, Model]:
    """Read the rows and decompose them, with progress."""
    in_lines = ranks.ranks > 1 and not view.notes.is_terminal and not (view.quiet or view.as_json)
    with bars(view.notes, disable=view.quiet or view.as_json or in_lines) as progress:
        held = _sources(ranks, rows)
        net = from_name(topology, sum(held.shares), seed=settings.seed)
        network = ranks.network(net, held.shares)
        sources = held.sources
        n = None if any(s.n is None for s in sources) else sum(s.n or 0 for s in sources)
        task = progress.add_task("reading", total=n, iteration="—", note=_who(net.n_agents, ranks))
        lines = [ProgressLines(lambda line: view.notes.print(line, highlight=False))] if in_lines else []
        fitted = fit_rows(
            sources,
            network,
            settings,
            observers=[_ReadingDone(progress, task), ProgressBar(progress), *lines],
            tell=lambda read: progress.advance(task, read),
            engine=ranks,
            keeping=keeping,
            whiten=whiten,
        )
        ranks.close(network)
    model = fitted.model
    if (first := sources[0].first_index) is not None:  # how svmlight counts columns, for transform
        model = replace(model, about={**model.about, "first_index": first})
    return fitted.found, model


def _finish(
    ranks: Engine, found: Decomposition, model: Model, out: Path, *, accept_unproven: bool, view: _View
) -> None:
    """Write the model if it may be written, remove the checkpoints, and show what came out."""
    written = model.status.ok or accept_unproven
    with ranks.together():
        if written and ranks.speaks:
            model.save(out)
    if found.keeper is not None and written:
        found.keeper.clear()
    if ranks.speaks:
        _say(view, model, out if written else None)


def _say(view: _View, model: Model, written: Path | None) -> None:
    """Show the model, or why none was written."""
    if written is None:
        show_status(view.notes, model)
        say(view.notes, "No model was written. --accept-unproven writes it all the same.")
    if view.as_json:
        print_json({**summary(model), "model": None if written is None else str(written)})
    elif written is not None and not view.quiet:
        show_model(view.console, model)
        say(view.console, f"\nModel: [bold]{escape(str(written))}[/]")


def _who(agents: int, ranks: Engine) -> str:
    return f"{agents} agents" if ranks.ranks == 1 else f"rank 0's share of {agents} agents on {ranks.ranks} ranks"


class _ReadingDone:
    """Fills the bar of reading when iterations begin: how many rows there are may be known only then."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def begin(self, start: Start) -> None:
        done = self._progress.tasks[self._task].completed
        self._progress.update(self._task, total=done, completed=done, note=f"{done:,.0f} rows")

    def observe(self, step: Step) -> None:
        pass

    def end(self, result: Result[Any]) -> None:
        pass


@dataclass(frozen=True)
class _Held:
    """The sources of this rank's agents, and how many agents each rank has."""

    sources: tuple[Source, ...]
    shares: tuple[int, ...]


def _sources(ranks: Engine, rows: _Rows) -> _Held:
    """What each agent of this rank holds. A rank opens no file of others, unless one file is spread over agents."""
    check_named_once(rows.files)
    if rows.agents is None and rows.agent_column is None:
        shares = ranks.shares(len(rows.files))
        opened = open_shares(ranks, rows.files, shares, label_column=rows.label_column, dataset=rows.dataset)
        return _Held(opened, shares)
    with ranks.together():
        every = _spread(rows)
    shares = ranks.shares(len(every))
    first = sum(shares[: ranks.rank])
    return _Held(every[first : first + shares[ranks.rank]], shares)


def _spread(rows: _Rows) -> tuple[Source, ...]:
    """The rows of all files, dealt to agents evenly or by a column."""
    label, dataset = rows.label_column, rows.dataset
    if rows.agent_column is None:
        opened = common_columns(open_sources(rows.files, label_column=label, dataset=dataset))
        return in_equal_shares([spool(source) for source in opened], rows.agents or 0)
    kept = []
    for file in rows.files:
        source = open_source(file, label_column=rows.agent_column, dataset=dataset)
        if label is not None:
            if source.columns is None or label not in source.columns:
                raise DataError(f"{file}: there is no column {label!r}")
            names = [name for name in source.columns if name != label]
            source = open_source(file, label_column=rows.agent_column, dataset=dataset, columns=names)
        kept.append(source)
    return by_label([spool(source) for source in common_columns(kept)])


def _whole(given: str, option: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise InvalidInput(f"{option} {given}: give a whole number, or 'auto'") from None
