"""``deepca topology``: a network, how well it mixes, and what it looks like."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepca.cli.common import errors, require
from deepca.errors import MixingError
from deepca.mixing import Chebyshev, FastMix, Gossip, Mixer, fastmix_eta
from deepca.topology import SMALL, Rule, Topology
from deepca.topology_names import EXAMPLES, from_name

__all__ = ["complete_name", "complete_rule", "topology"]


@dataclass(frozen=True)
class Mixing:
    """What one mixer makes of a network; without numbers where it does not work."""

    mixer: str
    contraction: float | None
    rounds: int | None
    why_not: str | None = None


def complete_name(incomplete: str) -> list[str]:
    """Names of networks; after the colon, an example written in full."""
    choices = EXAMPLES.values() if ":" in incomplete else EXAMPLES
    return [choice for choice in choices if choice.startswith(incomplete.lower())]


def complete_rule(incomplete: str) -> list[str]:
    """Weight rules."""
    return [rule for rule in get_args(Rule) if rule.startswith(incomplete.lower())]


def topology(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME:m", help="The network, such as [bold]ring:50[/].", autocompletion=complete_name),
    ],
    agents: Annotated[int | None, typer.Option(help="m, if the name does not say it.")] = None,
    accuracy: Annotated[float, typer.Option(help="What disagreement has to shrink by, for the rounds.")] = 1e-10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random networks.")] = 0,
    rule: Annotated[
        str, typer.Option(help=f"Weights: {', '.join(get_args(Rule))}.", autocompletion=complete_rule)
    ] = "paper",
    edges: Annotated[bool, typer.Option("--edges", help="List the links.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Save a drawing: a name that ends in .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, with the links.")] = False,
) -> None:
    """Show a network: how fast its agents agree, and how many rounds that takes.

    Names: ring, path, star, complete, grid, torus, hypercube, erdos-renyi,
    random-regular. Three kinds have a parameter:

    torus:5x10, grid:5x10 — rows and columns, instead of m

    erdos-renyi:0.3:50 — the probability of a link, else 0.5

    random-regular:6:50 — the number of neighbours, else 4
    """
    with errors():
        net = from_name(name, agents, seed=seed, rule=cast("Rule", rule))
        mixing = [_mixing(mixer, net, accuracy) for mixer in (Gossip(), FastMix(), Chebyshev())]
        if plot is not None:
            require("matplotlib", extra="plot")
            from deepca.plots_network import draw

            draw(net, plot)
        if as_json:
            typer.echo(_json(net, mixing, accuracy, plot))
            return
        _show(Console(), net, mixing, accuracy)
        if edges:
            _list(Console(), net)
        if plot is not None:
            Console().print(f"Drawing: {escape(str(plot))}", soft_wrap=True)


def _mixing(mixer: Mixer, net: Topology, accuracy: float) -> Mixing:
    name = type(mixer).__name__
    try:
        return Mixing(name, _per_round(mixer, net), mixer.rounds_for(net, accuracy))
    except MixingError as error:
        return Mixing(name, None, None, str(error))


def _per_round(mixer: Mixer, net: Topology) -> float:
    """The factor of one more round when many were made: the K-th root of the contraction of K rounds, K → ∞."""
    once = mixer.contraction(net, 1)
    if net.n_agents == 1 or isinstance(mixer, Gossip):
        return once
    if isinstance(mixer, FastMix):
        return math.sqrt(fastmix_eta(net.lambda2))
    return once / (1.0 + math.sqrt(1.0 - once * once))  # Chebyshev: 1/T_1 = μ, and T_K grows like (1/μ + √(1/μ²−1))^K


def _edges(net: Topology) -> list[tuple[int, int]]:
    return [(i, j) for i in range(net.n_agents) for j in net.neighbors(i) if i < j]


def _json(net: Topology, mixing: list[Mixing], accuracy: float, plot: Path | None) -> str:
    degrees = net.degrees
    facts = {
        "name": net.name,
        "rule": net.rule,
        "agents": net.n_agents,
        "links": net.n_edges,
        "degree": {"min": int(degrees.min()), "mean": float(degrees.mean()), "max": int(degrees.max())},
        "diameter": net.flood_rounds,
        "diameter_is_upper_bound": net.n_agents > SMALL,
        "lambda2": net.lambda2,
        "gap": 1.0 - net.lambda2,
        "lambda_min": net.lambda_min,
        "accuracy": accuracy,
        "mixing": [asdict(one) for one in mixing],
        "plot": None if plot is None else str(plot),
    }
    # the links on one line: four lines for each would bury the rest
    return json.dumps(facts, indent=2, ensure_ascii=False)[:-2] + f',\n  "edges": {json.dumps(_edges(net))}\n}}'


def _show(console: Console, net: Topology, mixing: list[Mixing], accuracy: float) -> None:
    console.print(f"\n[bold]{escape(net.name)}[/] with {net.rule} weights\n", highlight=False)
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(no_wrap=True)
    facts.add_column(justify="right", no_wrap=True)
    facts.add_column(style="dim")
    degrees, bound = net.degrees, net.n_agents > SMALL
    low, mean, high = int(degrees.min()), float(degrees.mean()), int(degrees.max())
    facts.add_row("agents", f"{net.n_agents:,}", "")
    facts.add_row("links", f"{net.n_edges:,}", "")
    if low == high:
        facts.add_row("neighbours", str(low), "of every agent")
    else:
        facts.add_row("neighbours", f"{low} … {high}", f"{mean:.4g} on average")
    facts.add_row("diameter", f"{'≤ ' * bound}{net.flood_rounds:,}", "hops between the two agents farthest apart")
    facts.add_row("λ₂ of 𝐋", f"{net.lambda2:.6g}", "second largest eigenvalue of the gossip matrix")
    facts.add_row("1 − λ₂", f"{1 - net.lambda2:.4g}", "near 0: agents agree slowly")
    facts.add_row("λ_min of 𝐋", f"{net.lambda_min:.6g}", "smallest eigenvalue; below 0 it forbids FastMix")
    console.print(facts, highlight=False)
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("mixer", no_wrap=True)
    table.add_column("contraction per round", justify="right", no_wrap=True)
    table.add_column(f"rounds to {accuracy:g}", justify="right", no_wrap=True)
    for one in mixing:
        factor = "—" if one.contraction is None else f"{one.contraction:.6g}"
        table.add_row(one.mixer, factor, "—" if one.rounds is None else f"{one.rounds:,}")
    console.print(table, highlight=False)
    if net.n_agents == 1:
        note = "One agent has nobody to agree with: nothing is sent."
    else:
        note = (
            f"In a round every agent sends one message to each neighbour: {2 * net.n_edges:,} messages in all. "
            "The contraction is that of a late round; the rounds are those proven to be enough."
        )
    console.print(f"[dim]{note}[/]", highlight=False)
    for one in mixing:
        if one.why_not is not None:
            console.print(f"\n{escape(one.why_not)}.", highlight=False)
    console.print()


def _list(console: Console, net: Topology) -> None:
    console.print("[bold]Links[/]")
    console.print(Columns([f"{i} – {j}" for i, j in _edges(net)], padding=(0, 3)), highlight=False)
    console.print()
