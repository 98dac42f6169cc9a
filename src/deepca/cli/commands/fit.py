"""``deepca fit``: files in, model out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

from deepca.cli.commands.topology import complete_name
from deepca.cli.common import check_output
from deepca.cli.ranks import consoles, ending_together
from deepca.cli.view.model import show_model, show_status, summary
from deepca.data.allocation import by_label, in_equal_shares
from deepca.data.columns import common_columns
from deepca.data.readers import open_source, open_sources, spool
from deepca.data.sources import Source
from deepca.decomposition.fit import decompose, model_of
from deepca.decomposition.model import Model
from deepca.decomposition.settings import ALGORITHMS, Settings, check_settings
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


def fit(
    files: Annotated[
        list[Path],
        typer.Argument(help="One file per agent; or any files, together with --agents or --agent-column."),
    ],
    components: Annotated[
        str, typer.Option("--components", "-k", help="How many; or a share of variance such as 0.95; or 'all'.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the model goes, an .npz file.")],
    agents: Annotated[
        int | None, typer.Option(help="Spread all rows over that many agents, to try things out.")
    ] = None,
    agent_column: Annotated[str | None, typer.Option(help="Column that says which agent holds a row.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column that is no data (a class, an id): left out.")] = None,
    topology: Annotated[
        str, typer.Option(help="Who talks to whom; see deepca topology.", autocompletion=complete_name)
    ] = "erdos-renyi:0.5",
    center: Annotated[bool, typer.Option(help="Subtract the agreed mean.")] = True,
    scale: Annotated[bool, typer.Option("--scale", help="Divide columns by their agreed standard deviation.")] = False,
    whiten: Annotated[bool, typer.Option("--whiten", help="Scores with variance one.")] = False,
    tol: Annotated[float, typer.Option(help="Largest acceptable tangent of the angle, at any agent.")] = 1e-10,
    max_iter: Annotated[int, typer.Option(help="Iterations at most.")] = 10_000,
    rounds: Annotated[str, typer.Option(help="Rounds of gossip per iteration, or 'auto'.")] = "auto",
    algorithm: Annotated[
        str,
        typer.Option(help=f"One of {', '.join(ALGORITHMS)}.", autocompletion=lambda: list(ALGORITHMS)),
    ] = "auto",
    messages: Annotated[
        str, typer.Option(help="What a number takes in a message of gossip: float64, float32 or float16.")
    ] = "float64",
    engine: Annotated[
        str,
        typer.Option(
            help="Where it runs: simulator (this process), or mpi (all ranks that mpiexec has started).",
            autocompletion=lambda: list(ENGINES),
        ),
    ] = "simulator",
    allreduce: Annotated[
        bool, typer.Option("--allreduce", help="With mpi: exact averages by MPI_Allreduce, over all ranks at once.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=1.0, help="With mpi: seconds that a rank waits for others before the job is ended. [600]"),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="Folder for checkpoints; the same command goes on from them after an interruption."),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Iterations from one checkpoint to the next.")] = 10,
    dataset: Annotated[str | None, typer.Option(help="Which array of an .npz or HDF5 file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For random networks and the start.")] = 0,
    accept_unproven: Annotated[
        bool, typer.Option("--accept-unproven", help="Write the model even if the tolerance was not reached.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON instead.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, and nothing but errors.")] = False,
) -> None:
    """Principal components of rows that stay in their files: each file is an agent, and talks to its neighbours only.

    Reads .npy, .npz, CSV, Parquet, svmlight, HDF5 and AnnData files, larger than memory if need be.

    The model is written when the tolerance is proven, or as much as rounding allows; else exit code 1 says why not.
    """
    with ending_together(engine, allreduce=allreduce, timeout=timeout, resumes=checkpoints is not None) as ranks:
        settings = Settings(
            n_components=_components(components),
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
        if out.suffix != ".npz":
            raise InvalidInput(f"--out {out}: a model file ends in .npz")
        if agents is not None and agent_column is not None:
            raise InvalidInput("--agents and --agent-column both say who holds the rows; give one of them")
        if agent_column is not None and agent_column == label_column:
            raise InvalidInput(f"--agent-column and --label-column both name {agent_column!r}; leave the latter out")
        with ranks.together():
            files = expanded(files)
        agree_on_files(ranks, files)
        with ranks.together():
            if ranks.speaks:
                check_output(out, "--out", files)
        notes, console = consoles(ranks)
        quiet = quiet or not ranks.speaks
        in_lines = ranks.ranks > 1 and not notes.is_terminal and not (quiet or as_json)
        keeping = None
        if checkpoints is not None:
            tell = _teller(notes, ranks)
            keeping = Keeping(checkpoints, checkpoint_every, tell, tell)
        with bars(notes, disable=quiet or as_json or in_lines) as progress:
            held = _sources(ranks, files, agents, agent_column, label_column, dataset)
            net = from_name(topology, sum(held.shares), seed=seed)
            network = ranks.network(net, held.shares)
            sources = held.sources
            n = None if any(s.n is None for s in sources) else sum(s.n or 0 for s in sources)
            task = progress.add_task("reading", total=n, iteration="—", note=_who(net.n_agents, ranks))
            lines = [ProgressLines(lambda line: notes.print(line, highlight=False))] if in_lines else []
            found = decompose(
                sources,
                network,
                settings,
                observers=[_ReadingDone(progress, task), ProgressBar(progress), *lines],
                tell=lambda rows: progress.advance(task, rows),
                engine=ranks,
                keeping=keeping,
            )
            found = replace(found, traffic=ranks.summed(found.traffic))
            ranks.close(network)
        single = min(ranks.counted(all(source.dtype == "float32" for source in sources))) == 1
        model = model_of(found, net, settings, whiten=whiten, single=single)
        if (first := sources[0].first_index) is not None:  # how svmlight counts columns, for transform
            model = replace(model, about={**model.about, "first_index": first})
        written = model.status.ok or accept_unproven
        with ranks.together():
            if written and ranks.speaks:
                model.save(out)
        if found.keeper is not None and written:
            found.keeper.clear()
        if ranks.speaks:
            _say(model, out if written else None, notes, console, as_json=as_json, quiet=quiet)
        if not model.status.ok:
            raise typer.Exit(1)


def _say(model: Model, written: Path | None, notes: Console, console: Console, *, as_json: bool, quiet: bool) -> None:
    """What came out."""
    if written is None:
        show_status(notes, model)
        notes.print("No model was written. --accept-unproven writes it all the same.", highlight=False, soft_wrap=True)
    if as_json:
        said = {**summary(model), "model": None if written is None else str(written)}
        typer.echo(json.dumps(said, indent=2, ensure_ascii=False))
    elif written is not None and not quiet:
        show_model(console, model)
        console.print(f"\nModel: [bold]{escape(str(written))}[/]", highlight=False, soft_wrap=True)


def _teller(notes: Console, ranks: Engine) -> Callable[[str], None]:
    who = "" if ranks.speaks else f"rank {ranks.rank}: "
    return lambda line: notes.print(f"{who}{line}", highlight=False, soft_wrap=True, markup=False)


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


def _sources(
    ranks: Engine,
    files: Sequence[Path],
    agents: int | None,
    agent_column: str | None,
    label_column: str | None,
    dataset: str | None,
) -> _Held:
    """What each agent of this rank holds. A rank opens no file of others, unless one file is spread over agents."""
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise DataError(f"{file} is named twice: its rows would count double")
        seen.add(file.resolve())
    if agents is None and agent_column is None:
        shares = ranks.shares(len(files))
        return _Held(open_shares(ranks, files, shares, label_column=label_column, dataset=dataset), shares)
    with ranks.together():
        every = _spread(files, agents, agent_column, label_column, dataset)
    shares = ranks.shares(len(every))
    first = sum(shares[: ranks.rank])
    return _Held(every[first : first + shares[ranks.rank]], shares)


def _spread(
    files: Sequence[Path],
    agents: int | None,
    agent_column: str | None,
    label_column: str | None,
    dataset: str | None,
) -> tuple[Source, ...]:
    """The rows of all files, dealt to agents evenly or by a column."""
    if agent_column is None:
        opened = common_columns(open_sources(files, label_column=label_column, dataset=dataset))
        return in_equal_shares([spool(source) for source in opened], agents or 0)
    kept = []
    for file in files:
        source = open_source(file, label_column=agent_column, dataset=dataset)
        if label_column is not None:
            if source.columns is None or label_column not in source.columns:
                raise DataError(f"{file}: there is no column {label_column!r}")
            names = [name for name in source.columns if name != label_column]
            source = open_source(file, label_column=agent_column, dataset=dataset, columns=names)
        kept.append(source)
    return by_label([spool(source) for source in common_columns(kept)])


def _components(given: str) -> int | float | None:
    if given == "all":
        return None
    try:
        return int(given)
    except ValueError:
        pass
    try:
        return float(given)
    except ValueError:
        raise InvalidInput(f"-k {given}: give a number, a share of variance such as 0.95, or 'all'") from None


def _whole(given: str, option: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise InvalidInput(f"{option} {given}: give a whole number, or 'auto'") from None
