"""Register all subcommands of ``deepca`` and define ``deepca demo``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deepca import __version__
from deepca._util.machine import launched_ranks
from deepca._util.typing import Array
from deepca._util.units import counted, format_bytes, plural
from deepca.cli.command import MAX_WIDTH, Command, Group, examples, in_options
from deepca.cli.commands.agent import agent
from deepca.cli.commands.audit import audit
from deepca.cli.commands.doctor import doctor
from deepca.cli.commands.fit import fit
from deepca.cli.commands.init import init
from deepca.cli.commands.join import join
from deepca.cli.commands.model import inspect, transform
from deepca.cli.commands.plan import plan
from deepca.cli.commands.privacy import privacy
from deepca.cli.commands.reproduce import reproduce
from deepca.cli.commands.sample import sample
from deepca.cli.commands.simulate import simulate
from deepca.cli.commands.topology import topology
from deepca.cli.commands.trial import EXAMPLES as TRIAL_EXAMPLES
from deepca.cli.commands.trial import cluster, real_demo, trial
from deepca.cli.common import check_output, errors, finite, require
from deepca.cli.options import (
    ALGORITHM,
    MAX_ROUNDS,
    OUTPUT,
    TOLERANCE,
    ComponentsOption,
    EngineOption,
    JsonOption,
    QuietOption,
    SeedOption,
    ToleranceOption,
)
from deepca.cli.ranks import consoles, run_on_ranks, running_engine
from deepca.cli.view.tables import columns
from deepca.errors import InvalidInput, ParameterError
from deepca.solver.result import StatusCode

if TYPE_CHECKING:
    from deepca.reproduction.demo import Demo, Row

__all__ = ["app"]

_DEMO_RANKS = 4  # ranks that `deepca demo --engine mpi` starts if it was not started by mpiexec
_DEMO_ROUNDS = 5  # per iteration, of the methods as printed in the paper
_FIXED_ROUNDS = ("DeEPCA, as printed", "DePCA")  # methods of the demonstration that use --rounds
_DEMO_FOLDER = Path("demo-out")
_DIGITS_FEATURES = 64
_SUMMARY = "Exact PCA over data that stays where it is, without a central server."

app = typer.Typer(
    cls=Group,
    name="deepca",
    help=_SUMMARY,
    epilog=examples(
        "deepca demo",
        "deepca sample wine --agents 3 --out sites",
        "deepca fit sites/*.csv -k 3 --scale --label-column class -o model.npz",
        "deepca fit --help",
    ),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_WIDTH},
    rich_markup_mode=None,  # plain text: square brackets and colons are not markup
    pretty_exceptions_show_locals=False,  # local variables include rows and keys
)


_COMMANDS: dict[Callable[..., None], tuple[str, ...]] = {
    fit: (
        "deepca fit sites/*.csv -k 3 --label-column class -o model.npz",
        "deepca fit sites/*.csv -k 0.95 --scale --label-column class --topology ring -o model.npz",
        "deepca fit all.npy -k 10 --agents 50 --topology torus:5x10 -o model.npz",
        "deepca fit cells.h5ad -k 20 --agent-column donor -o model.npz --json | jq '.certificate'",
        "mpiexec -n 8 deepca fit --engine mpi 'shards/*.npy' -k 5 --checkpoints checkpoints -o model.npz",
    ),
    transform: (
        "deepca transform model.npz sites/site0.csv --label-column class -o scores.csv",
        "deepca transform model.npz sites/site0.csv --ignore-extra -o scores.npy",
    ),
    inspect: (
        "deepca inspect model.npz",
        "deepca inspect model.npz --plot scree.png",
        "deepca inspect model.npz --json | jq '.explained_variance_ratio'",
    ),
    sample: (
        "deepca sample wine --agents 3 --out sites",
        "deepca sample digits --agents 20 --format npy --out digits",
    ),
    reproduce: (
        "deepca reproduce a9a --data ~/libsvm",
        "deepca reproduce all --components 3 --seeds 5 --out results",
        "deepca reproduce a9a --study signs",
    ),
    topology: (
        "deepca topology ring:50",
        "deepca topology erdos-renyi:0.3 --agents 50 --seed 1 --plot network.png",
        "deepca topology torus:5x10 --rule best-constant --accuracy 1e-6 --edges",
        "deepca topology hypercube:32 --json | jq '.mixing'",
        "deepca topology random-digraph:0.1:30 --edges",
        "deepca topology matchings:torus:5x10 --plot network.png",
    ),
    plan: (
        "deepca plan --topology ring:9 --probe sites/site0.csv --label-column class -k 3 --latency 9ms --bandwidth 1MB",
        "deepca plan --topology ring:50 --dim 300 -k 10 --latency 500us --bandwidth 1Gbit --json | jq '.recommended'",
    ),
    simulate: (
        "deepca simulate --example > links.csv",
        "deepca simulate --links links.csv -k 5 --plot simulated.png",
        "deepca simulate sites/site0.csv --links links.csv --label-column class -k 3 --algorithms krylov,accelerated",
        "deepca simulate --links links.csv --dim 300 -k 10 --json | jq '.trials[] | {algorithm, seconds}'",
    ),
    privacy: (
        "deepca privacy sites/*.csv -k 3 --scale --label-column class --topology star",
        "deepca privacy network.toml --rows 20",
        "deepca privacy network.toml --data 'sites/*.csv' --label-column class --json | jq '.summary[]'",
    ),
    trial: TRIAL_EXAMPLES,
    init: (
        "deepca init --example > network.toml",
        "deepca init network.toml --out kits",
        "deepca init network.toml --out kits --trial",
    ),
    join: (
        "deepca join site.toml",
        "deepca join --sign request.csr --authority kits/authority",
        "deepca join site.toml --certificate north.pem",
        "deepca join --revoke north --authority kits/authority",
        "deepca join site.toml --revocation-list revoked.pem",
    ),
    doctor: (
        "deepca doctor site.toml",
        "deepca doctor site.toml --json | jq -r '.findings[] | select(.verdict != \"ok\") | .text'",
    ),
    audit: (
        "deepca audit site.toml",
        "deepca audit north/audit south/audit --authority authority.pem",
        "deepca audit site.toml --json | jq '.sent[] | select(.open > 0)'",
    ),
}
"""Command functions with their examples, in the order of the help."""
for _command, _examples in _COMMANDS.items():
    app.command(cls=Command, epilog=examples(*_examples))(_command)
app.add_typer(agent)
app.add_typer(cluster)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deepca {__version__}")
        raise typer.Exit


@app.callback(help=_SUMMARY)
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Accept the options of ``deepca`` itself."""


_AgentsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="M",
        rich_help_panel=ALGORITHM,
        help="Split all rows over this many agents.",
        show_default="50, or 5 with --real",
    ),
]
_RoundsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_ROUNDS,
        metavar="N",
        rich_help_panel=ALGORITHM,
        help="Gossip rounds per iteration for DePCA and for DeEPCA as printed in the paper.",
        show_default=str(_DEMO_ROUNDS),
    ),
]
_OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FOLDER",
        rich_help_panel=OUTPUT,
        help="Folder for the figure.",
        show_default=str(_DEMO_FOLDER),
    ),
]
_RealOption = Annotated[
    bool,
    typer.Option(
        "--real",
        rich_help_panel=ALGORITHM,
        help="Run only the default algorithm, with one process per agent and real connections between them.",
    ),
]


@app.command(
    cls=Command,
    epilog=examples(
        "deepca demo",
        "deepca demo --real",
        "mpiexec -n 4 deepca demo --engine mpi",
        "deepca demo --agents 20 --components 3 --rounds 8 --out results",
        "deepca demo --json --quiet | jq '.rows[0]'",
    ),
)
def demo(
    agents: _AgentsOption = None,
    components: ComponentsOption = 4,  # the digits have close eigenvalues there, which the figure shows
    rounds: _RoundsOption = None,
    tol: ToleranceOption = TOLERANCE,
    seed: SeedOption = 0,
    out: _OutOption = None,
    real: _RealOption = False,
    engine: EngineOption = "simulator",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare DeEPCA with other methods on the digits data.

    Splits scikit-learn's digits data over agents. DeEPCA, its predecessor DePCA and the centralized power method
    start from the same point. The table shows the angle between each result and scikit-learn's PCA of the pooled rows.

    Without mpiexec, --engine mpi starts four ranks on this machine.
    """
    if engine == "mpi" and launched_ranks() == 1 and not real:
        with errors():
            require("mpi4py", extra="mpi")
            raise typer.Exit(run_on_ranks(min(_DEMO_RANKS, agents or _DEMO_RANKS), sys.argv[1:]))
    with running_engine(engine) as ranks:
        if not 1 <= components <= _DIGITS_FEATURES:
            expected = f"expected a number from 1 to {_DIGITS_FEATURES}, the number of features of the digits"
            raise ParameterError("components", components, expected)
        if real:
            _check_real(engine, out, rounds)
            require("sklearn", extra="demo")
            code = real_demo(
                agents=5 if agents is None else agents, k=components, tol=tol, seed=seed, as_json=as_json, quiet=quiet
            )
            raise typer.Exit(code)
        require("sklearn", "matplotlib", extra="demo")
        from deepca.reproduction import demo as demonstration
        from deepca.solver.progress import ProgressBar, bars

        figure = (_DEMO_FOLDER if out is None else out) / "convergence.png"
        with ranks.raise_on_all_ranks():
            if ranks.is_root:
                check_output(figure, "--out")
        notes, console = consoles(ranks)
        with bars(notes, disable=quiet or not ranks.is_root) as progress:
            found = demonstration.run(
                agents=50 if agents is None else agents,
                k=components,
                K=_DEMO_ROUNDS if rounds is None else rounds,
                tol=tol,
                seed=seed,
                watch=lambda label: ProgressBar(progress, description=label),
                engine=ranks,
            )
        if ranks.is_root:
            _report(console, found, figure, ranks.ranks, as_json=as_json)


def _check_real(engine: str, out: Path | None, rounds: int | None) -> None:
    """Raise InvalidInput if an option excludes --real."""
    if engine != "simulator":
        raise InvalidInput("--real starts its own processes and cannot be combined with --engine mpi; omit one of them")
    for option, value in (("--out", out), ("--rounds", rounds)):
        if value is not None:
            raise InvalidInput(
                f"--real runs the default algorithm only and draws no figure; omit {option}, or omit --real"
            )


def _report(console: Console, found: Demo, figure: Path, ranks: int, *, as_json: bool) -> None:
    """Draw the figure and print the table or its numbers as JSON."""
    from deepca.plots.curves import convergence

    figure.parent.mkdir(parents=True, exist_ok=True)
    convergence(
        found.curves,
        figure,
        title=f"Digits, {counted(found.topology.n_agents, 'agent')}, k = {found.k}: worst agent compared with the "
        "pooled result",
        ylabel="largest tan θ over all agents",
    )
    if as_json:
        rows = [{**asdict(row), "proven": finite(row.proven), "advice": _advice(row, found.K)} for row in found.rows]
        typer.echo(json.dumps({"figure": str(figure), "rows": rows}, indent=2))
        return
    _show(console, found, ranks)
    console.print(f"Figure: {escape(str(figure))}")


def _show(console: Console, found: Demo, ranks: int) -> None:
    net = found.topology
    where = f" on {ranks} ranks" if ranks > 1 else ""
    console.print(
        f"\n[bold]{found.n_rows} rows × {found.n_features} features[/bold] on "
        f"{counted(net.n_agents, 'agent')}{where} with {counted(net.n_edges, 'link')} "
        f"(1 − λ₂ = {1 - net.lambda2:.3f}). The agents agreed on the mean first, by gossip.\n"
        f"DeEPCA chooses its number of rounds for the tolerance {found.tol:.0e}; DePCA and DeEPCA as printed use "
        f"K = {found.K} round{plural(found.K)} per iteration.\n"
    )
    table = columns(
        ["method"],
        ["iter.", "rounds", "proof", "sent", "tan θ", "proven"],
        title=f"Top {counted(found.k, 'component')}; tan θ between the worst agent and scikit-learn's PCA of the "
        "pooled rows",
        title_justify="left",
    )
    table.add_column("status")
    for row in found.rows:
        table.add_row(
            row.method.replace("DeEPCA, as", "  as"),
            str(row.iterations),
            f"{row.rounds:,}" if row.rounds else "—",
            f"{row.proof_rounds:,}" if row.rounds else "—",
            format_bytes(row.bytes_per_agent) if row.rounds else "—",
            f"[{'green' if row.tan_theta <= 10 * found.tol else 'red'}]{row.tan_theta:.1e}[/]",
            f"{row.proven:.1e}" if math.isfinite(row.proven) else "nothing",
            row.status.replace("_", " "),
        )
    console.print(table)
    console.print(
        "[dim]rounds: of the iterations; proof: rounds needed to prove the result; sent: per agent, without the "
        "proof[/]\n"
    )
    for row in found.rows:
        if row.status != "converged":
            console.print(f"  {row.method}: {_advice(row, found.K)}")
    console.print(
        f"\nExplained variance at agent 0: {_numbers(found.variance)}\n"
        f"scikit-learn, pooled rows:     {_numbers(found.pooled_variance)}"
    )


def _advice(row: Row, K: int) -> str:
    """Return what happened to a method, and what to do about it with the options of the demonstration."""
    if row.status not in (StatusCode.OUT_OF_ITERATIONS, StatusCode.DISAGREEMENT, StatusCode.DIVERGING):
        return in_options(row.advice)
    ended = f"not converged after {row.iterations} iteration{plural(row.iterations)}"
    if row.method in _FIXED_ROUNDS:
        return f"{ended} with K = {K} round{plural(K)}; give more --rounds"
    return f"{ended}; give a larger --tolerance, or another number of --components"


def _numbers(values: Array, most: int = 6) -> str:
    return ", ".join(f"{value:.4f}" for value in values[:most]) + (", …" if len(values) > most else "")
