"""``deepca simulate``: a network tried before it is built."""

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

from deepca._util.units import duration, size
from deepca.cli.common import check_named_once, check_output, errors, finite, require, say
from deepca.cli.options import (
    ComponentsOption,
    DatasetOption,
    LabelColumnOption,
    MessagesOption,
    QuietOption,
    ScaleOption,
    ToleranceOption,
)
from deepca.cli.view.methods import add_method, show_choice, watching
from deepca.cli.view.tables import columns
from deepca.data.allocation import in_equal_shares
from deepca.data.columns import common_columns
from deepca.data.readers import open_sources, spool
from deepca.data.sources import ArraySource, Source
from deepca.decomposition.settings import ALGORITHMS
from deepca.engines.shards import expanded
from deepca.errors import DataError, InvalidInput
from deepca.network.compression import Messages
from deepca.planning.inputs import ROWS_PER_AGENT, read_eigenvalues, spectrum_of
from deepca.planning.links import Links
from deepca.planning.links_csv import EXAMPLE, read_links
from deepca.planning.simulation import COMPARED, GFLOPS, Simulation, Trial, stand_in_rows
from deepca.planning.simulation import simulate as try_out

__all__ = ["simulate"]

_COMPARED = ",".join(COMPARED)
_PARTS = {
    "latency": "latency",
    "transmission": "sending",
    "losses": "losses",
    "compute": "computing",
    "stragglers": "stragglers",
}


_DataArgument = Annotated[
    list[Path] | None,
    typer.Argument(help="One file per agent, or one that is split; any that fit reads. Without: the digits."),
]
_NetworkOption = Annotated[
    Path | None, typer.Option(help="Links as CSV: from,to,latency_ms,mbit_per_s[,loss,jitter_ms].")
]
_AgentsOption = Annotated[
    Path | None, typer.Option(help="Agents as CSV: agent[,slowdown,stall,stall_ms,uplink_mbit_per_s].")
]
_AlgorithmsOption = Annotated[str, typer.Option(help=f"Which to try, with commas between: {', '.join(ALGORITHMS)}.")]
_MaxIterOption = Annotated[int, typer.Option(help="Iterations at most, of each.")]
_GflopsOption = Annotated[
    float, typer.Option(help="What an agent computes, in 10⁹ operations a second; inf: computing takes no time.")
]
_DimOption = Annotated[int | None, typer.Option(help="No data: Gaussian rows with so many columns.")]
_EigenvaluesOption = Annotated[
    Path | None, typer.Option(help="No data: of their covariance, in a text or .npy; the largest will do.")
]
_RowsPerAgentOption = Annotated[int | None, typer.Option(help=f"No data: rows of every agent. [{ROWS_PER_AGENT}]")]
_SeedOption = Annotated[int, typer.Option(min=0, help="Of the start, losses, jitter and stalls.")]
_PlotOption = Annotated[Path | None, typer.Option(help="Draw errors over time to this .png or .svg.")]
_ExampleOption = Annotated[bool, typer.Option("--example", help="Print a file for --network to start from.")]
_JsonOption = Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")]


def simulate(
    data: _DataArgument = None,
    network: _NetworkOption = None,
    components: ComponentsOption = 5,
    agents: _AgentsOption = None,
    algorithms: _AlgorithmsOption = _COMPARED,
    tol: ToleranceOption = 1e-8,
    max_iter: _MaxIterOption = 2000,
    compute_gflops: _GflopsOption = GFLOPS,
    messages: MessagesOption = "float64",
    dim: _DimOption = None,
    eigenvalues: _EigenvaluesOption = None,
    rows_per_agent: _RowsPerAgentOption = None,
    scale: ScaleOption = False,
    label_column: LabelColumnOption = None,
    dataset: DatasetOption = None,
    seed: _SeedOption = 0,
    plot: _PlotOption = None,
    example: _ExampleOption = False,
    as_json: _JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """How long every method takes over your links, from the first message to the proof, and which one to use.

    The real algorithms run on the rows; time alone is simulated: latency and bandwidth of each link, lost messages that
    are sent again, jitter, and agents that compute slowly.

    Exit code 1 if no method reaches the tolerance.
    """
    with errors():
        if example:
            typer.echo(EXAMPLE, nl=False)
            return
        rows = _Rows(data or [], label_column, dataset, dim, eigenvalues, rows_per_agent)
        links = _checked_links(network, agents, rows, plot)
        sources, of = rows.sources(links, components, seed)
        with watching(disable=quiet or as_json) as watch:
            found = try_out(
                sources,
                links,
                components,
                algorithms=[name.strip() for name in algorithms.split(",") if name.strip()],
                tol=tol,
                max_iter=max_iter,
                messages=cast("Messages", messages),
                scale=scale,
                gflops=compute_gflops,
                seed=seed,
                watch=watch,
            )
        _report(found, of, plot, as_json=as_json)
        if found.recommended is None:
            raise typer.Exit(1)


@dataclass(frozen=True)
class _Rows:
    """Files with rows, or what stands in for them."""

    files: Sequence[Path]
    label_column: str | None
    dataset: str | None
    dim: int | None
    eigenvalues: Path | None
    rows_per_agent: int | None

    def check(self) -> None:
        """Refuse options that speak of files where there are none, or the other way round."""
        stand_in = self.dim is not None or self.eigenvalues is not None or self.rows_per_agent is not None
        if self.files and stand_in:
            raise InvalidInput(
                "--dim, --eigenvalues and --rows-per-agent stand in for data; leave them out, or the data"
            )
        if not self.files and (self.label_column is not None or self.dataset is not None):
            raise InvalidInput("--label-column and --dataset speak of data; give some, or leave them out")

    def sources(self, links: Links, k: int, seed: int) -> tuple[Sequence[Source], str]:
        """The rows of each agent, and what they are, in words."""
        if self.files:
            return _sources(expanded(self.files), links, self.label_column, self.dataset)
        if self.dim is not None or self.eigenvalues is not None:
            return self._gaussian(len(links.names), k, seed)
        if self.rows_per_agent is not None:
            raise InvalidInput("--rows-per-agent: the digits have as many as they have; give --dim as well")
        return _digits(links), "the digits of scikit-learn, in equal shares"

    def _gaussian(self, m: int, k: int, seed: int) -> tuple[Sequence[Source], str]:
        values = None if self.eigenvalues is None else read_eigenvalues(self.eigenvalues)
        name = None if self.eigenvalues is None else self.eigenvalues.name
        spectrum, source = spectrum_of(values, self.dim, k, name)
        rows = ROWS_PER_AGENT if self.rows_per_agent is None else self.rows_per_agent
        return stand_in_rows(spectrum, m, rows, seed), f"Gaussian rows, eigenvalues {source}"


def _checked_links(network: Path | None, agents: Path | None, rows: _Rows, plot: Path | None) -> Links:
    """Read the links once the options are known to go together."""
    if network is None:
        raise InvalidInput(
            "which network? Give its links as --network links.csv; deepca simulate --example > links.csv "
            "makes one to start from"
        )
    if plot is not None:
        require("matplotlib", extra="plot")
        if plot.suffix.lower() not in (".png", ".svg"):
            raise InvalidInput(f"--plot {plot}: a picture is saved as PNG or SVG; let its name end in .png or .svg")
        check_output(plot, "--plot", [network, *rows.files])
    rows.check()
    return read_links(network, agents)


def _report(found: Simulation, of: str, plot: Path | None, *, as_json: bool) -> None:
    """Draw the figure, and print what was found."""
    if plot is not None:
        from deepca.plots.simulation import draw

        plot.parent.mkdir(parents=True, exist_ok=True)
        draw(found, plot)
    if as_json:
        typer.echo(json.dumps(_plain(found, of, plot), indent=2, ensure_ascii=False, allow_nan=False))
        return
    _show(Console(emoji=False), found, of)
    if plot is not None:
        say(Console(emoji=False), f"Figure: {escape(str(plot))}")


def _sources(
    files: Sequence[Path], links: Links, label_column: str | None, dataset: str | None
) -> tuple[Sequence[Source], str]:
    """The rows of each agent: files named as the agents are theirs, others are taken in their order."""
    m = len(links.names)
    check_named_once(files)
    if len(files) not in (1, m):
        raise DataError(
            f"{len(files)} files for {m} agents ({', '.join(links.names)}); give one for each, or one in all"
        )
    by_name = {file.stem: file for file in files}
    if by_name.keys() == set(links.names):
        files = [by_name[name] for name in links.names]
    opened = common_columns(open_sources(files, label_column=label_column, dataset=dataset))
    if len(files) == m:
        return opened, f"{m} file{'s' if m > 1 else ''}, one per agent"
    return in_equal_shares([spool(opened[0])], m), f"{files[0].name}, in equal shares"


def _digits(links: Links) -> tuple[Source, ...]:
    require("sklearn", extra="sklearn")
    from sklearn.datasets import load_digits

    return in_equal_shares(
        [ArraySource(np.asarray(load_digits().data, dtype=np.float64), "digits", None)], len(links.names)
    )


def _plain(found: Simulation, of: str, plot: Path | None) -> dict[str, Any]:
    """For JSON, which knows no infinity."""
    said = asdict(found)
    said["gflops"] = finite(found.gflops)
    for trial in said["trials"]:
        trial["curve"] = [[seconds, finite(error)] for seconds, error in trial["curve"]]
        trial["error"] = finite(trial["error"])
    return {**said, "data": of, "plot": None if plot is None else str(plot)}


def _show(console: Console, found: Simulation, of: str) -> None:
    console.print(
        f"\n[bold]{escape(found.network)}[/]: {len(found.agents)} agents, {found.links:,} links\n"
        f"{found.components} components of {found.n_rows:,} rows × {found.dim:,} columns ({escape(of)}), "
        f"tolerance {found.tol:.0e}",
        highlight=False,
    )
    console.print(_table(found))
    show_choice(console, found.recommended, found.reason)
    for trial in found.trials:
        if not trial.certified:
            console.print(f"  {trial.algorithm}: {escape(trial.advice)}", highlight=False)
    console.print("\nWhat the last agent waited for:")
    console.print(_waits(found))
    speed = f"computing at {found.gflops:g} GFLOP/s" if np.isfinite(found.gflops) else "computing takes no time"
    console.print(
        f"[dim]sent: by an agent on average; time: simulated, until the last agent has the proof; {speed}[/]",
        highlight=False,
    )


def _table(found: Simulation) -> Table:
    table = columns(["  method", "status"], ["iter.", "rounds", "sent", "time"])
    table.add_column("waits most for", overflow="fold")
    for trial in _fastest_first(found):
        add_method(
            table,
            trial.algorithm,
            "certified" if trial.certified else trial.status.replace("_", " "),
            f"{trial.iterations:,}",
            f"{trial.rounds + trial.control_rounds:,}",
            size(trial.bytes_per_agent),
            duration(trial.seconds),
            escape(_most(trial)),
            recommended=found.recommended,
            reaches=trial.certified,
        )
    return table


def _waits(found: Simulation) -> Table:
    parts = [part for part in _PARTS if any(trial.parts[part] > 0.0 for trial in found.trials)]
    table = columns(["  method"], [_PARTS[part] for part in parts])
    for trial in _fastest_first(found):
        table.add_row(f"  {trial.algorithm}", *(_share(trial.parts[part], trial) for part in parts))
    return table


def _most(trial: Trial) -> str:
    """The link or agent that took most of the time."""
    if not trial.bottlenecks:
        return "nothing"
    worst = trial.bottlenecks[0]
    return f"{' – '.join(worst.agents)} {_share(worst.seconds, trial)}"


def _fastest_first(found: Simulation) -> list[Trial]:
    return sorted(found.trials, key=lambda one: (not one.certified, one.seconds))


def _share(seconds: float, trial: Trial) -> str:
    percent = 100.0 * seconds / max(trial.seconds, 1e-300)
    return "<1 %" if 0.0 < percent < 0.5 else f"{percent:.0f} %"
