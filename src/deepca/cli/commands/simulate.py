"""``deepca simulate``: run each method on a simulated network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepca._util.units import counted, format_bytes, format_duration, plural
from deepca.cli.command import in_options
from deepca.cli.common import check_distinct, check_figure, errors, finite, print_unwrapped, require
from deepca.cli.options import (
    ALGORITHM,
    DATA,
    NUMBER_OF_COMPONENTS,
    TOLERANCE,
    ComponentsOption,
    DatasetOption,
    JsonOption,
    LabelColumnOption,
    MessagesOption,
    PlotOption,
    QuietOption,
    ScaleOption,
    ToleranceOption,
)
from deepca.cli.view.methods import add_method, method_progress, show_recommendation
from deepca.cli.view.tables import columns
from deepca.data.allocation import split_equally
from deepca.data.columns import align_columns
from deepca.data.readers import open_sources, spool
from deepca.data.sources import ArraySource, Source
from deepca.decomposition.settings import ALGORITHMS
from deepca.engines.shards import expand_patterns
from deepca.errors import DataError, InvalidInput
from deepca.network.compression import Messages
from deepca.planning.inputs import MAX_DIM, MAX_ROWS_PER_AGENT, ROWS_PER_AGENT, read_eigenvalues, spectrum_of
from deepca.planning.links import Links
from deepca.planning.links_csv import EXAMPLE, read_links
from deepca.planning.simulation import DEFAULT_ALGORITHMS, GFLOPS, SimulatedRun, Simulation, surrogate_rows
from deepca.planning.simulation import simulate as run_simulation

__all__ = ["simulate"]

_PARTS = {
    "latency": "latency",
    "transmission": "sending",
    "losses": "losses",
    "compute": "computing",
    "stragglers": "stragglers",
}


_DataArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE",
        help="One file per agent, or one file to split, in any format that deepca fit reads; by default, "
        "scikit-learn's digits data.",
    ),
]
_LinksOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=ALGORITHM,
        help="CSV file of the links, with the columns from, to, latency_ms and mbit_per_s, and optionally loss and "
        "jitter_ms. Required unless --example is given.",
    ),
]
_MachinesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=ALGORITHM,
        help="CSV file of the agents, with the column agent, and optionally slowdown, stall, stall_ms and "
        "uplink_mbit_per_s.",
    ),
]
_AlgorithmsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        show_default=",".join(DEFAULT_ALGORITHMS),
        rich_help_panel=ALGORITHM,
        help=f"Algorithms to compare, separated by commas: {', '.join(ALGORITHMS)}.",
    ),
]
_MaxIterOption = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=ALGORITHM, help="Maximum number of iterations of each method.")
]
_GflopsOption = Annotated[
    float,
    typer.Option(
        metavar="GFLOPS",
        rich_help_panel=ALGORITHM,
        help="Speed of an agent in 10⁹ operations per second; inf if computation takes no time.",
    ),
]
_DimOption = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=MAX_DIM,
        metavar="D",
        rich_help_panel=DATA,
        help="Instead of files: Gaussian rows with this many columns.",
    ),
]
_EigenvaluesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=DATA,
        help="Instead of files: text or .npy file of the eigenvalues of the covariance; the K + 1 largest are enough.",
    ),
]
_RowsPerAgentOption = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=MAX_ROWS_PER_AGENT,
        metavar="N",
        rich_help_panel=DATA,
        help="Instead of files: rows per agent.",
        show_default=str(ROWS_PER_AGENT),
    ),
]
_PrivateOption = Annotated[
    bool,
    typer.Option(
        "--private",
        rich_help_panel=ALGORITHM,
        help="Agents mask what they add to sums, as between sites; only krylov and covariance are possible.",
    ),
]
_SeedOption = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        rich_help_panel=ALGORITHM,
        help="Seed of the starting point, losses, jitter, stalls and Gaussian rows.",
    ),
]
_ExampleOption = Annotated[
    bool,
    typer.Option("--example", rich_help_panel=ALGORITHM, help="Print an example --links file and exit."),
]


def simulate(
    data: _DataArgument = None,
    links: _LinksOption = None,
    components: ComponentsOption = NUMBER_OF_COMPONENTS,
    machines: _MachinesOption = None,
    algorithms: _AlgorithmsOption = None,
    scale: ScaleOption = False,
    tol: ToleranceOption = TOLERANCE,
    max_iter: _MaxIterOption = 10_000,
    compute_gflops: _GflopsOption = GFLOPS,
    messages: MessagesOption = "float64",
    private: _PrivateOption = False,
    dim: _DimOption = None,
    eigenvalues: _EigenvaluesOption = None,
    rows_per_agent: _RowsPerAgentOption = None,
    label_column: LabelColumnOption = None,
    dataset: DatasetOption = None,
    seed: _SeedOption = 0,
    plot: PlotOption = None,
    example: _ExampleOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Simulate how long each method takes over given links.

    The methods run in full on the rows, including the proof. Only time is simulated: latency and bandwidth of each
    link, jitter, retransmission of lost messages, and slow agents. --plot saves the error of each method over time.

    The exit code is 1 if no method can be recommended.
    """
    with errors():
        if example:
            typer.echo(EXAMPLE, nl=False)
            return
        rows = _Rows(data or [], label_column, dataset, dim, eigenvalues, rows_per_agent)
        network = _read_links(links, machines, rows, plot)
        names = [name.strip() for name in ",".join(algorithms or ()).split(",") if name.strip()]
        sources, of = rows.sources(network, components, seed)
        with method_progress(disable=quiet or as_json) as observer_factory:
            found = run_simulation(
                sources,
                network,
                components,
                algorithms=names if algorithms else None,
                tol=tol,
                max_iter=max_iter,
                messages=cast("Messages", messages),
                scale=scale,
                gflops=compute_gflops,
                private=private,
                seed=seed,
                observer_factory=observer_factory,
            )
        _report(found, of, plot, as_json=as_json)
        if found.recommended is None:
            raise typer.Exit(1)


@dataclass(frozen=True)
class _Rows:
    """Files with rows, or a description of synthetic rows."""

    files: Sequence[Path]
    label_column: str | None
    dataset: str | None
    dim: int | None
    eigenvalues: Path | None
    rows_per_agent: int | None

    def check(self) -> None:
        """Raise InvalidInput if options for files are given without files, or options for synthetic rows with them."""
        synthetic = self.dim is not None or self.eigenvalues is not None or self.rows_per_agent is not None
        if self.files and synthetic:
            raise InvalidInput(
                "--dim, --eigenvalues and --rows-per-agent describe synthetic rows; omit them, or the files"
            )
        if not self.files and (self.label_column is not None or self.dataset is not None):
            raise InvalidInput("--label-column and --dataset apply to files only; give files, or omit them")

    def sources(self, links: Links, k: int, seed: int) -> tuple[Sequence[Source], str]:
        """Return the rows of each agent, and a description of them.

        Raises InvalidInput if ``rows_per_agent`` is given without ``dim`` or ``eigenvalues``.
        """
        if self.files:
            return _open_files(expand_patterns(self.files), links, self.label_column, self.dataset)
        if self.dim is not None or self.eigenvalues is not None:
            return self._gaussian(len(links.names), k, seed)
        if self.rows_per_agent is not None:
            raise InvalidInput("--rows-per-agent needs --dim or --eigenvalues; add one of them")
        return _digits(links), "the digits of scikit-learn, in equal shares"

    def _gaussian(self, m: int, k: int, seed: int) -> tuple[Sequence[Source], str]:
        values = None if self.eigenvalues is None else read_eigenvalues(self.eigenvalues)
        name = None if self.eigenvalues is None else self.eigenvalues.name
        spectrum, source = spectrum_of(values, self.dim, k, name)
        rows = ROWS_PER_AGENT if self.rows_per_agent is None else self.rows_per_agent
        return surrogate_rows(spectrum, m, rows, seed), f"Gaussian rows, eigenvalues {source}"


def _read_links(links: Path | None, machines: Path | None, rows: _Rows, plot: Path | None) -> Links:
    """Check that the options are compatible, and read the links."""
    if links is None:
        raise InvalidInput(
            "--links is required: a CSV file of the links of the network. For an example of this file, run: deepca "
            "simulate --example > links.csv",
            parameter="links",
        )
    if plot is not None:
        check_figure(plot, [links, *rows.files])
    rows.check()
    return read_links(links, machines)


def _report(found: Simulation, of: str, plot: Path | None, *, as_json: bool) -> None:
    """Draw the figure and print the result."""
    if plot is not None:
        from deepca.plots.simulation import draw

        plot.parent.mkdir(parents=True, exist_ok=True)
        draw(found, plot)
    if as_json:
        typer.echo(json.dumps(_plain(found, of, plot), indent=2, ensure_ascii=False, allow_nan=False))
        return
    _show(Console(emoji=False), found, of)
    if plot is not None:
        print_unwrapped(Console(emoji=False), f"Figure: {escape(str(plot))}")


def _open_files(
    files: Sequence[Path], links: Links, label_column: str | None, dataset: str | None
) -> tuple[Sequence[Source], str]:
    """Open the files, in the order of the agents if they are named after them, or split a single file."""
    m = len(links.names)
    check_distinct(files)
    if len(files) not in (1, m):
        raise DataError(
            f"{len(files)} files for {m} agent{plural(m)} ({', '.join(links.names)}); give one file per agent, or one "
            "to split"
        )
    by_name = {file.stem: file for file in files}
    if by_name.keys() == set(links.names):
        files = [by_name[name] for name in links.names]
    opened = align_columns(open_sources(files, label_column=label_column, dataset=dataset))
    if len(files) == m:
        return opened, f"{m} file{plural(m)}, one per agent"
    return split_equally([spool(opened[0])], m), f"{files[0].name}, in equal shares"


def _digits(links: Links) -> tuple[Source, ...]:
    require("sklearn", extra="sklearn")
    from sklearn.datasets import load_digits

    return split_equally(
        [ArraySource(np.asarray(load_digits().data, dtype=np.float64), "digits", None)], len(links.names)
    )


def _plain(found: Simulation, of: str, plot: Path | None) -> dict[str, Any]:
    """Return everything as plain data for JSON, with None for infinity."""
    facts = asdict(found)
    facts["gflops"] = finite(found.gflops)
    facts["trials"] = facts.pop("runs")
    for run in facts["trials"]:
        run["resent"] = run.pop("retransmissions")
        run["curve"] = [[seconds, finite(error)] for seconds, error in run["curve"]]
        run["error"] = finite(run["error"])
        run["advice"] = in_options(run["advice"])
    return {**facts, "reason": in_options(found.reason), "data": of, "plot": None if plot is None else str(plot)}


def _show(console: Console, found: Simulation, of: str) -> None:
    console.print(
        f"\n[bold]{escape(found.network)}[/]: {counted(len(found.agents), 'agent')}, "
        f"{counted(found.links, 'link')}\n"
        f"{counted(found.components, 'component')} of {found.n_rows:,} rows × {found.dim:,} columns "
        f"({escape(of)}), "
        f"tolerance {found.tol:.0e}",
        highlight=False,
    )
    console.print(_table(found))
    show_recommendation(console, found.recommended, in_options(found.reason))
    for run in found.runs:
        if not run.certified:
            console.print(f"  {run.algorithm}: {escape(in_options(run.advice))}", highlight=False)
    console.print("\nWhere the time of the last agent went:")
    console.print(_waits(found))
    speed = f"computation at {found.gflops:g} GFLOP/s" if np.isfinite(found.gflops) else "computation takes no time"
    console.print(
        f"[dim]sent: per agent on average; time: simulated, until the last agent has the proof; {speed}[/]",
        highlight=False,
    )


def _table(found: Simulation) -> Table:
    table = columns(["  method", "status"], ["iter.", "rounds", "sent", "time"])
    table.add_column("waits most for", overflow="fold")
    for run in _fastest_first(found):
        add_method(
            table,
            run.algorithm,
            run.status.replace("_", " "),
            f"{run.iterations:,}",
            f"{run.rounds + run.control_rounds:,}",
            format_bytes(run.bytes_per_agent),
            format_duration(run.seconds),
            escape(_bottleneck(run)),
            recommended=found.recommended,
            reaches=run.certified,
        )
    return table


def _waits(found: Simulation) -> Table:
    parts = [part for part in _PARTS if any(run.parts[part] > 0.0 for run in found.runs)]
    table = columns(["  method"], [_PARTS[part] for part in parts])
    for run in _fastest_first(found):
        table.add_row(f"  {run.algorithm}", *(_share(run.parts[part], run) for part in parts))
    return table


def _bottleneck(run: SimulatedRun) -> str:
    """Return the link or agent that took the most time, and its share."""
    if not run.bottlenecks:
        return "nothing"
    worst = run.bottlenecks[0]
    return f"{' – '.join(worst.agents)} {_share(worst.seconds, run)}"


def _fastest_first(found: Simulation) -> list[SimulatedRun]:
    return sorted(found.runs, key=lambda one: (not one.certified, one.seconds))


def _share(seconds: float, run: SimulatedRun) -> str:
    percent = 100.0 * seconds / max(run.seconds, 1e-300)
    return "<1%" if 0.0 < percent < 0.5 else f"{percent:.0f}%"
