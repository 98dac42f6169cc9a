"""``deepca plan``: predict rounds, bytes and time of each method on a network."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepca._util.typing import Array
from deepca._util.units import counted, format_bit_rate, format_bytes, format_duration
from deepca.cli.command import in_options
from deepca.cli.common import errors, print_json
from deepca.cli.options import (
    ALGORITHM,
    COMPONENTS,
    DATA,
    TOLERANCE,
    ComponentsOption,
    FixedTopologyOption,
    JsonOption,
    MessagesOption,
    QuietOption,
    ToleranceOption,
)
from deepca.cli.view.methods import add_method, method_progress, show_recommendation
from deepca.cli.view.tables import columns
from deepca.data.readers import open_source
from deepca.errors import InvalidInput, ParameterError
from deepca.network.compression import Messages
from deepca.planning import Plan, Prediction, bits_per_second, probed_eigenvalues, read_eigenvalues, seconds
from deepca.planning import plan as make_plan
from deepca.planning.inputs import MAX_DIM, MAX_ROWS_PER_AGENT, ROWS_PER_AGENT
from deepca.topology.names import from_name

__all__ = ["plan"]

# keys in JSON that differ from the names of attributes of Prediction
_PREDICTION_KEYS = {
    "algorithm": "method",
    "iteration_cost": "running",
    "certificate_cost": "proof",
    "reaches_tol": "reaches",
}


_LatencyOption = Annotated[
    str, typer.Option(metavar="TIME", rich_help_panel=ALGORITHM, help="Latency of a message, such as 30ms or 500us.")
]
_BandwidthOption = Annotated[
    str,
    typer.Option(
        metavar="RATE",
        rich_help_panel=ALGORITHM,
        help="Amount of data that an agent can send per second, such as 30Mbit, 1Gbit or 2MB.",
    ),
]
_DimOption = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=MAX_DIM,
        metavar="D",
        rich_help_panel=DATA,
        help="Number of columns of the data; by default, that of --eigenvalues or --probe.",
    ),
]
_AgentsOption = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="M", rich_help_panel=ALGORITHM, help="Number of agents, unless --topology includes it."
    ),
]
_EigenvaluesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=DATA,
        help="Text or .npy file of the expected eigenvalues of the covariance; the K + 1 largest are enough.",
    ),
]
_ProbeOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=DATA,
        help="Sample of similar data, from which eigenvalues are computed, in any format that deepca fit reads.",
    ),
]
_ScaleOption = Annotated[
    bool,
    typer.Option(
        "--scale", rich_help_panel=COMPONENTS, help="Divide each column of the probe by its standard deviation."
    ),
]
_LabelColumnOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", rich_help_panel=DATA, help="Column of the probe to exclude (labels, identifiers)."),
]
_DatasetOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", rich_help_panel=DATA, help="Array to read from an .npz or HDF5 probe."),
]
_RowsPerAgentOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_ROWS_PER_AGENT,
        metavar="N",
        rich_help_panel=DATA,
        help="Rows per agent; with fewer rows, agents differ more.",
        show_default=f"those of the probe, or {ROWS_PER_AGENT}",
    ),
]
_AllowCovarianceOption = Annotated[
    bool,
    typer.Option(
        "--allow-covariance",
        rich_help_panel=ALGORITHM,
        help="Also consider averaging covariances, which reveals the covariance of each site to the others.",
    ),
]
_UnreliableOption = Annotated[
    bool,
    typer.Option(
        "--unreliable",
        rich_help_panel=ALGORITHM,
        help="Messages may be lost; do not recommend methods that sum along a tree.",
    ),
]
_PrivateOption = Annotated[
    bool,
    typer.Option(
        "--private",
        rich_help_panel=ALGORITHM,
        help="Agents mask what they add to sums, as between sites; do not recommend methods that gossip.",
    ),
]
_SeedOption = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", rich_help_panel=ALGORITHM, help="Seed of random networks and of the synthetic data."
    ),
]


def plan(
    topology: FixedTopologyOption,
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
    tol: ToleranceOption = TOLERANCE,
    messages: MessagesOption = "float64",
    allow_covariance: _AllowCovarianceOption = False,
    unreliable: _UnreliableOption = False,
    private: _PrivateOption = False,
    seed: _SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predict what each method costs if all links are equally fast.

    Each method runs on synthetic data with the expected eigenvalues, and its rounds and bytes are counted. The time
    covers communication only: in each round, the latency and the transmission time of the busiest sender.

    The exit code is 1 if no method can be recommended.
    """
    with errors():
        given = _Given(dim, eigenvalues, probe, scale, label_column, dataset)
        given.check()
        time, rate = seconds(latency), bits_per_second(bandwidth)
        net = from_name(topology, agents, seed=seed)
        expected = given.spectrum()
        with method_progress(disable=quiet or as_json) as observer_factory:
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
                private=private,
                seed=seed,
                observer_factory=observer_factory,
            )
        _report(made, net.n_edges, guessed=expected.values is None, as_json=as_json)
        if made.recommended is None:
            raise typer.Exit(1)


@dataclass(frozen=True)
class _Spectrum:
    """Expected eigenvalues, their source, and the number of rows of the probe; None if unknown."""

    values: Array | None = None
    source: str | None = None
    rows: int | None = None


@dataclass(frozen=True)
class _Given:
    """Options that describe the data."""

    dim: int | None
    eigenvalues: Path | None
    probe: Path | None
    scale: bool
    label_column: str | None
    dataset: str | None

    def check(self) -> None:
        """Raise InvalidInput if options contradict each other, or do not define the number of columns."""
        if self.eigenvalues is not None and self.probe is not None:
            raise InvalidInput("--eigenvalues and --probe both define the spectrum; give one of them")
        if self.probe is None and (self.scale or self.label_column is not None or self.dataset is not None):
            raise InvalidInput(
                "--scale, --label-column and --dataset apply to the probe only; give --probe, or omit them"
            )
        if self.dim is None and self.eigenvalues is None and self.probe is None:
            raise InvalidInput(
                "the number of columns is unknown; give --dim, --eigenvalues or --probe", parameter="dim"
            )

    def spectrum(self) -> _Spectrum:
        """Return the eigenvalues that were given, or those of the probe.

        Raises ParameterError if ``dim`` is given but is not the number of columns of the probe.
        """
        if self.eigenvalues is not None:
            values = read_eigenvalues(self.eigenvalues)
            return _Spectrum(values, f"{values.size:,} from {self.eigenvalues.name}")
        if self.probe is None:
            return _Spectrum()
        source = open_source(self.probe, label_column=self.label_column, dataset=self.dataset)
        values, n = probed_eigenvalues(source, scale=self.scale)
        if self.dim not in (None, values.size):
            raise ParameterError("dim", self.dim, f"{self.probe} has {counted(values.size, 'column')}; omit --dim")
        scaled = ", scaled" if self.scale else ""
        return _Spectrum(
            values, f"those of {self.probe.name}, {counted(n, 'row')} × {values.size:,} columns{scaled}", n
        )


def _report(made: Plan, links: int, *, guessed: bool, as_json: bool) -> None:
    if as_json:
        print_json(_plain(made))
    else:
        _show(Console(emoji=False), made, links, guessed=guessed)


def _plain(made: Plan) -> dict[str, Any]:
    facts = asdict(made)
    link = facts.pop("link")
    for one in facts["predictions"]:
        for attribute, key in _PREDICTION_KEYS.items():
            one[key] = one.pop(attribute)
    return {
        **facts,
        "reason": in_options(made.reason),
        "latency_seconds": link["latency"],
        "bandwidth_bits_per_second": link["bandwidth"],
    }


def _show(console: Console, made: Plan, links: int, *, guessed: bool) -> None:
    console.print(
        f"\n[bold]{escape(made.topology)}[/]: {counted(made.agents, 'agent')}, "
        f"{counted(links, 'link')} of {format_duration(made.link.latency)} and {format_bit_rate(made.link.bandwidth)}\n"
        f"{counted(made.components, 'component')} of {made.dim:,} columns, tolerance "
        f"{made.tol:.0e}{'' if made.messages == 'float64' else f', {made.messages} messages'}"
        f"{', messages may be lost' if made.unreliable else ''}{', private sums' if made.private else ''}",
        highlight=False,
    )
    console.print(_table(made))
    show_recommendation(console, made.recommended, in_options(made.reason))
    remarks = Table.grid(padding=(0, 2))
    for prediction in made.predictions:
        if prediction.remark:
            remarks.add_row(f"  {prediction.algorithm}", prediction.remark, style="dim")
    if remarks.row_count:
        console.print(remarks)
    console.print(f"\n{_assumptions(made, guessed)}", highlight=False)
    console.print(
        "[dim]rounds: gossip rounds of the iterations; control: extra rounds, to agree when to stop; proof: rounds "
        "needed to prove the result; sent: per agent on average; at most: by the busiest agent; time: of communication "
        "only[/]",
        highlight=False,
    )


def _table(made: Plan) -> Table:
    table = columns(["  method"], ["iter.", "rounds", "control", "proof", "sent", "at most", "time"])
    for one in sorted(made.predictions, key=lambda one: (not one.reaches_tol, one.total.seconds)):
        add_method(table, one.algorithm, *_numbers(one), recommended=made.recommended, reaches=one.reaches_tol)
    return table


def _numbers(one: Prediction) -> list[str]:
    if not one.reaches_tol:
        return ["—"] * 7
    total = one.total
    about = "~" if one.extrapolated else ""
    return [
        f"{about}{one.iterations:,}",
        f"{about}{one.iteration_cost.rounds:,}",
        f"{one.iteration_cost.control_rounds:,}",
        f"{one.certificate_cost.all_rounds:,}",
        format_bytes(total.bytes_per_agent),
        format_bytes(total.busiest_bytes),
        f"{about}{format_duration(total.seconds)}",
    ]


def _assumptions(made: Plan, guessed: bool) -> str:
    """Describe the assumptions of the plan."""
    lines = [f"Eigenvalues: {escape(made.spectrum)}."]
    if guessed:
        lines[0] += (
            " [yellow]The plan is only as good as this guess;[/] give --eigenvalues or --probe for a better one."
        )
    lines.append(f"Agents: as different as in real data with {counted(made.rows_per_agent, 'row')} each.")
    if made.tried_dim < made.dim:
        lines.append(f"Columns: {made.tried_dim:,} of the {made.dim:,} columns were run; bytes are for all of them.")
    first = made.preparation
    lines.append(
        f"Not included: agreement on counts, mean and variances before any method ({first.all_rounds:,} rounds, "
        f"{format_duration(first.seconds)})."
    )
    return "\n".join(lines)
