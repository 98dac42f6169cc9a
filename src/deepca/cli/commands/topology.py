"""``deepca topology``: a network, how well it mixes, and what it looks like."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, cast, get_args

import numpy as np
import numpy.typing as npt
import typer
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scipy import sparse

from deepca.cli.common import errors, require
from deepca.cli.options import complete_name
from deepca.consensus.mixers import Chebyshev, FastMix, Gossip, Mixer, fastmix_eta
from deepca.errors import MixingError
from deepca.topology.directed import Digraph
from deepca.topology.graph import SMALL, Rule, Topology
from deepca.topology.names import from_name

__all__ = ["complete_rule", "topology"]

_LOOKED_AT = 64  # rounds of which messages are counted, where they differ


@dataclass(frozen=True)
class Mixing:
    """What one mixer makes of a network; without numbers where it does not work."""

    mixer: str
    contraction: float | None
    rounds: int | None
    why_not: str | None = None


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

    Messages that go one way: directed-ring, directed-exponential,
    random-digraph:0.3:50 (the probability of an arc, else 0.5).

    Networks that change from round to round: one-peer, or made of another:

    matchings:torus:5x10 — agents pair up at random along its links

    failing:0.2:ring:50 — its links are down with that probability, else 0.1

    periodic:ring:50+star:50 — one after the other
    """
    with errors():
        net = from_name(name, agents, seed=seed, rule=cast("Rule", rule))
        mixing = [_mixing(mixer, net, accuracy) for mixer in (Gossip(), FastMix(), Chebyshev())]
        if plot is not None:
            require("matplotlib", extra="plot")
            from deepca.plots.network import draw

            draw(net, plot)
        if as_json:
            typer.echo(_json(net, mixing, accuracy, plot))
            return
        _show(Console(emoji=False), net, mixing, accuracy)
        if edges:
            _list(Console(emoji=False), net)
        if plot is not None:
            Console(emoji=False).print(f"Drawing: {escape(str(plot))}", soft_wrap=True)


def _mixing(mixer: Mixer, net: Topology, accuracy: float) -> Mixing:
    name = type(mixer).__name__
    try:
        mixer.check(net)
        return Mixing(name, _per_round(mixer, net), mixer.rounds_for(net, accuracy))
    except MixingError as error:
        return Mixing(name, None, None, str(error))


def _per_round(mixer: Mixer, net: Topology) -> float:
    """The factor of one more round when many were made: the K-th root of the contraction of K rounds, K → ∞."""
    if not net.stays:
        return net.lambda2
    once = mixer.contraction(net, 1)
    if net.n_agents == 1 or isinstance(mixer, Gossip):
        return once
    if isinstance(mixer, FastMix):
        return math.sqrt(fastmix_eta(net.lambda2))
    return once / (1.0 + math.sqrt(1.0 - once * once))  # Chebyshev: 1/T_1 = μ, and T_K grows like (1/μ + √(1/μ²−1))^K


def _edges(net: Topology) -> list[tuple[int, int]]:
    return [(int(i), int(j)) for i, j in net.edges]


def _arcs(net: Topology) -> list[tuple[int, int]]:
    """From who sends to who receives."""
    links = sparse.coo_array(net.adjacency)
    return sorted((int(i), int(j)) for j, i in zip(links.row, links.col, strict=True))


def _messages(net: Topology) -> float:
    """Of a round; on average where rounds differ."""
    return float(np.mean([net.messages_at(r) for r in range(_LOOKED_AT)])) if net.changing else net.n_messages


def _json(net: Topology, mixing: list[Mixing], accuracy: float, plot: Path | None) -> str:
    degrees = net.degrees
    facts = {
        "name": net.name,
        "rule": net.rule,
        "directed": net.directed,
        "changing": net.changing,
        "agents": net.n_agents,
        "links": net.n_edges,
        "messages_per_round": _messages(net),
        "degree": {"min": int(degrees.min()), "mean": float(degrees.mean()), "max": int(degrees.max())},
        "diameter": net.flood_rounds,
        "diameter_is_upper_bound": net.n_agents > SMALL,
        "lambda2": net.lambda2,
        "gap": 1.0 - net.lambda2,
        "lambda_min": net.lambda_min if net.stays else None,
        "accuracy": accuracy,
        "mixing": [asdict(one) for one in mixing],
        "plot": None if plot is None else str(plot),
    }
    # the links on one line: four lines for each would bury the rest
    lists = {"edges": _edges(net)} | ({"arcs": _arcs(net)} if isinstance(net, Digraph) else {})
    ends = "".join(f',\n  "{name}": {json.dumps(pairs)}' for name, pairs in lists.items())
    return json.dumps(facts, indent=2, ensure_ascii=False)[:-2] + ends + "\n}"


def _span(numbers: npt.NDArray[np.int64]) -> tuple[str, str]:
    """What every agent has, or from where to where it goes."""
    low, high = int(numbers.min()), int(numbers.max())
    return (str(low), "every agent") if low == high else (f"{low} … {high}", f"{numbers.mean():.4g} on average")


def _facts(net: Topology) -> list[tuple[str, str, str]]:
    """What is true of a network: name, value and explanation."""
    farthest = f"{'≤ ' * (net.n_agents > SMALL)}{net.flood_rounds:,}"
    if isinstance(net, Digraph):
        rows = [
            ("arcs", f"{net.n_messages:,}", "from an agent to one that hears it"),
            ("sends to", *_span(net.degrees)),
            ("hears", *_span(np.diff(net.adjacency.indptr).astype(np.int64))),
            ("strongly connected", "yes", "there is a way from every agent to every other"),
            ("diameter", farthest, "hops from an agent to the one farthest away"),
            ("|λ₂| of C", f"{net.lambda2:.6g}", "second largest eigenvalue of the weights"),
            ("1 − |λ₂|", f"{1 - net.lambda2:.4g}", "near 0: agents agree slowly"),
        ]
        if net.n_agents > SMALL:
            return rows
        held = net.limit * net.n_agents
        return [*rows, ("push-sum weight", f"{held.min():.3g} … {held.max():.3g}", "in the end; agents divide by it")]
    if net.changing:
        ways = "; some go one way, and a push-sum weight with them" if net.directed else ""
        return [
            ("links", f"{net.n_edges:,}", "in one round or another"),
            ("messages", f"{_messages(net):,.4g}", f"in a round, on average{ways}"),
            ("heard by all", farthest, "rounds until everyone has heard of everyone"),
            ("left by a round", f"{net.lambda2:.6g}", "of a disagreement, on average"),
        ]
    span, of_whom = _span(net.degrees)
    return [
        ("links", f"{net.n_edges:,}", ""),
        ("neighbours", span, of_whom.replace("every", "of every")),
        ("diameter", farthest, "hops between the two agents farthest apart"),
        ("λ₂ of 𝐋", f"{net.lambda2:.6g}", "second largest eigenvalue of the gossip matrix"),
        ("1 − λ₂", f"{1 - net.lambda2:.4g}", "near 0: agents agree slowly"),
        ("λ_min of 𝐋", f"{net.lambda_min:.6g}", "smallest eigenvalue; below 0 it forbids FastMix"),
    ]


def _show(console: Console, net: Topology, mixing: list[Mixing], accuracy: float) -> None:
    kind = ", which changes from round to round" if net.changing else f" with {net.rule} weights"
    console.print(f"\n[bold]{escape(net.name)}[/]{kind}\n", highlight=False)
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(no_wrap=True)
    facts.add_column(justify="right", no_wrap=True)
    facts.add_column(style="dim")
    for row in (("agents", f"{net.n_agents:,}", ""), *_facts(net)):
        facts.add_row(*row)
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
    elif net.changing:
        note = "The contraction is that of a round on average, and the rounds are those that were enough when tried."
    elif net.directed:
        note = (
            f"In a round one message goes along each arc: {net.n_messages:,} messages in all. Agents push parts of "
            "what they hold, and of a weight; the ratio of both tends to the mean (push-sum)."
        )
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
    listed = [f"{i} → {j}" for i, j in _arcs(net)] if isinstance(net, Digraph) else []
    console.print("[bold]Arcs[/]" if listed else "[bold]Links[/]")
    console.print(Columns(listed or [f"{i} – {j}" for i, j in _edges(net)], padding=(0, 3)), highlight=False)
    console.print()
