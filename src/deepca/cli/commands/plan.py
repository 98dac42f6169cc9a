"""``deepca plan``: what every method would take on a network, before anything is sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepca._util.typing import Array
from deepca._util.units import bit_rate, duration, size
from deepca.cli.common import errors, print_json
from deepca.cli.options import ComponentsOption, MessagesOption, QuietOption, ToleranceOption, complete_name
from deepca.cli.view.methods import add_method, show_choice, watching
from deepca.cli.view.tables import columns
from deepca.data.readers import open_source
from deepca.errors import InvalidInput
from deepca.network.compression import Messages
from deepca.planning import Plan, Prediction, bits_per_second, probed_eigenvalues, read_eigenvalues, seconds
from deepca.planning import plan as make_plan
from deepca.topology.names import from_name

__all__ = ["plan"]


_TopologyOption = Annotated[
    str,
    typer.Option(help="Who talks to whom, such as ring:50; see deepca topology.", autocompletion=complete_name),
]
_LatencyOption = Annotated[str, typer.Option(help="Until a message arrives: 30ms, 0.03s, 500us.")]
_BandwidthOption = Annotated[str, typer.Option(help="What an agent can send a second: 30Mbit, 1Gbit, 2MB.")]
_DimOption = Annotated[int | None, typer.Option(help="Columns of the data; known from --probe.")]
_AgentsOption = Annotated[int | None, typer.Option(help="How many, if the name of the network does not say it.")]
_EigenvaluesOption = Annotated[
    Path | None, typer.Option(help="The expected ones: numbers in a text, or .npy; the largest will do.")
]
_ProbeOption = Annotated[
    Path | None, typer.Option(help="Data like those to come: any file that fit reads. Its eigenvalues are taken.")
]
_ScaleOption = Annotated[
    bool, typer.Option("--scale", help="Columns of the probe are divided by their standard deviation.")
]
_LabelColumnOption = Annotated[str | None, typer.Option(help="Column of the probe that is no data.")]
_DatasetOption = Annotated[str | None, typer.Option(help="Which array of an .npz or HDF5 probe.")]
_RowsPerAgentOption = Annotated[
    int | None, typer.Option(help="Fewer rows, more different agents. Those of the probe, or 1000.")
]
_AllowCovarianceOption = Annotated[
    bool,
    typer.Option(
        "--allow-covariance", help="Recommend averaging covariances, too: every site's becomes known to others."
    ),
]
_UnreliableOption = Annotated[
    bool, typer.Option("--unreliable", help="Messages may get lost: recommend nothing that sums along a tree.")
]
_SeedOption = Annotated[int, typer.Option(min=0, help="For random networks and the stand-ins.")]
_JsonOption = Annotated[bool, typer.Option("--json", help="Print the plan as JSON instead.")]


def plan(
    topology: _TopologyOption,
    components: ComponentsOption,
    latency: _LatencyOption,
    bandwidth: _BandwidthOption,
    dim: _DimOption = None,
    agents: _AgentsOption = None,
    eigenvalues: _EigenvaluesOption = None,
    probe: _ProbeOption = None,
    scale: _ScaleOption = False,
    label_column: _LabelColumnOption = None,
    dataset: _DatasetOption = None,
    rows_per_agent: _RowsPerAgentOption = None,
    tol: ToleranceOption = 1e-8,
    messages: MessagesOption = "float64",
    allow_covariance: _AllowCovarianceOption = False,
    unreliable: _UnreliableOption = False,
    seed: _SeedOption = 0,
    as_json: _JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Rounds, bytes and time that every method would take on a network, and which one to use.

    The methods are tried on stand-ins with the eigenvalues expected, and what they send is counted.

    Time is that of the network: a latency per round, and what its busiest sender has to send.

    Exit code 1 if no method can be recommended.
    """
    with errors():
        given = _Given(dim, eigenvalues, probe, scale, label_column, dataset)
        given.check()
        time, rate = seconds(latency), bits_per_second(bandwidth)
        net = from_name(topology, agents, seed=seed)
        expected = given.spectrum()
        with watching(disable=quiet or as_json) as watch:
            made = make_plan(
                net,
                components,
                latency=time,
                bandwidth=rate,
                dim=dim,
                eigenvalues=expected.values,
                spectrum=expected.source,
                tol=tol,
                rows_per_agent=expected.rows if rows_per_agent is None else rows_per_agent,
                messages=cast("Messages", messages),
                allow_covariance=allow_covariance,
                unreliable=unreliable,
                seed=seed,
                watch=watch,
            )
        _report(made, net.n_edges, guessed=expected.values is None, as_json=as_json)
        if made.recommended is None:
            raise typer.Exit(1)


@dataclass(frozen=True)
class _Spectrum:
    """Eigenvalues to expect and where they come from, and the rows of the probe, as far as anything is known."""

    values: Array | None = None
    source: str | None = None
    rows: int | None = None


@dataclass(frozen=True)
class _Given:
    """What is said about the data to come."""

    dim: int | None
    eigenvalues: Path | None
    probe: Path | None
    scale: bool
    label_column: str | None
    dataset: str | None

    def check(self) -> None:
        """Refuse options that contradict each other, or that say too little."""
        if self.eigenvalues is not None and self.probe is not None:
            raise InvalidInput("--eigenvalues and --probe both say what the spectrum is; give one of them")
        if self.probe is None and (self.scale or self.label_column is not None or self.dataset is not None):
            raise InvalidInput(
                "--scale, --label-column and --dataset speak of the probe; give --probe, or leave them out"
            )
        if self.dim is None and self.eigenvalues is None and self.probe is None:
            raise InvalidInput("how many columns? Give --dim, or data as --probe")

    def spectrum(self) -> _Spectrum:
        """Read the eigenvalues, or those of the probe."""
        if self.eigenvalues is not None:
            values = read_eigenvalues(self.eigenvalues)
            return _Spectrum(values, f"{values.size:,} from {self.eigenvalues.name}")
        if self.probe is None:
            return _Spectrum()
        source = open_source(self.probe, label_column=self.label_column, dataset=self.dataset)
        values, n = probed_eigenvalues(source, scale=self.scale)
        if self.dim not in (None, values.size):
            raise InvalidInput(f"--dim {self.dim}, but {self.probe} has {values.size} columns; leave --dim out")
        scaled = ", scaled" if self.scale else ""
        return _Spectrum(values, f"those of {self.probe.name}, {n:,} rows × {values.size:,} columns{scaled}", n)


def _report(made: Plan, links: int, *, guessed: bool, as_json: bool) -> None:
    if as_json:
        print_json(_plain(made))
    else:
        _show(Console(emoji=False), made, links, guessed=guessed)


def _plain(made: Plan) -> dict[str, Any]:
    facts = asdict(made)
    link = facts.pop("link")
    return {
        **facts,
        "latency_seconds": link["latency"],
        "bandwidth_bits_per_second": link["bandwidth"],
    }


def _show(console: Console, made: Plan, links: int, *, guessed: bool) -> None:
    console.print(
        f"\n[bold]{escape(made.topology)}[/]: {made.agents} agents, {links:,} links of {duration(made.link.latency)} "
        f"and {bit_rate(made.link.bandwidth)}\n{made.components} components of {made.dim:,} columns, tolerance "
        f"{made.tol:.0e}{'' if made.messages == 'float64' else f', {made.messages} messages'}"
        f"{', messages may get lost' if made.unreliable else ''}",
        highlight=False,
    )
    console.print(_table(made))
    show_choice(console, made.recommended, made.reason)
    remarks = Table.grid(padding=(0, 2))
    for prediction in made.predictions:
        if prediction.remark:
            remarks.add_row(f"  {prediction.method}", prediction.remark, style="dim")
    if remarks.row_count:
        console.print(remarks)
    console.print(f"\n{_assumed(made, guessed)}", highlight=False)
    console.print(
        "[dim]rounds: of the iterations; control: extra ones, to agree when to stop; proof: all rounds of the "
        "certificate; sent: by an agent on average, and at most; time: on the network, without computing[/]",
        highlight=False,
    )


def _table(made: Plan) -> Table:
    table = columns(["  method"], ["iter.", "rounds", "control", "proof", "sent", "at most", "time"])
    for one in sorted(made.predictions, key=lambda one: (not one.reaches, one.total.seconds)):
        add_method(table, one.method, *_numbers(one), recommended=made.recommended, reaches=one.reaches)
    return table


def _numbers(one: Prediction) -> list[str]:
    if not one.reaches:
        return ["—"] * 7
    total = one.total
    about = "~" if one.extrapolated else ""
    return [
        f"{about}{one.iterations:,}",
        f"{about}{one.running.rounds:,}",
        f"{one.running.control_rounds:,}",
        f"{one.proof.all_rounds:,}",
        size(total.bytes_per_agent),
        size(total.busiest_bytes),
        f"{about}{duration(total.seconds)}",
    ]


def _assumed(made: Plan, guessed: bool) -> str:
    """What the plan rests on."""
    lines = [f"Eigenvalues: {escape(made.spectrum)}."]
    if guessed:
        lines[0] += " [yellow]The plan is only as good as that guess:[/] give --eigenvalues, or data as --probe."
    lines.append(f"Agents: as different from each other as {made.rows_per_agent:,} rows each make them in real data.")
    if made.tried_dim < made.dim:
        lines.append(f"Tried with {made.tried_dim:,} columns that stand for all {made.dim:,}; bytes are those of all.")
    first = made.preparation
    lines.append(
        f"Not included: counts, mean and spread, agreed before any method: {first.all_rounds:,} rounds, "
        f"{duration(first.seconds)}."
    )
    return "\n".join(lines)
