"""``deepca topology``: show a network and how fast it mixes."""

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

from deepca.cli.common import check_figure, errors
from deepca.cli.options import OUTPUT, JsonOption, PlotOption, complete_name
from deepca.consensus.mixers import Chebyshev, FastMix, Gossip, Mixer, fastmix_eta
from deepca.errors import MixingError
from deepca.topology.directed import Digraph
from deepca.topology.graph import MAX_DENSE_AGENTS, Rule, Topology
from deepca.topology.names import from_name

__all__ = ["complete_rule", "topology"]

_COUNTED_ROUNDS = 64  # rounds over which the messages of a time-varying network are averaged

_SAME_WEIGHTS = "the same symmetric weights in all rounds"


@dataclass(frozen=True)
class Mixing:
    """Speed of a mixer on a network, or the reason why it cannot be used there."""

    mixer: str
    contraction: float | None
    rounds: int | None
    why_not: str | None = None


def complete_rule(incomplete: str) -> list[str]:
    """Complete the name of a weight rule."""
    return [rule for rule in get_args(Rule) if rule.startswith(incomplete.lower())]


def topology(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The network, such as ring:50.", autocompletion=complete_name)
    ],
    agents: Annotated[
        int | None, typer.Option(min=1, metavar="M", help="Number of agents, unless NAME includes it.")
    ] = None,
    accuracy: Annotated[
        float,
        typer.Option(
            metavar="FRACTION",
            help="Count the rounds until disagreement falls to this fraction of its initial value.",
        ),
    ] = 1e-10,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of random networks.")] = 0,
    rule: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Rule for the weights: {', '.join(get_args(Rule))}.",
            autocompletion=complete_rule,
        ),
    ] = "paper",
    edges: Annotated[bool, typer.Option("--edges", rich_help_panel=OUTPUT, help="List the links.")] = False,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a network and how many rounds its agents need to agree.

    A name ends with the number of agents, unless --agents is given.

      ring:50, path:50, star:50, complete:50, hypercube:32
      grid:5x10, torus:5x10     rows and columns
      erdos-renyi:0.3:50        probability of a link (default 0.5)
      random-regular:6:50       number of neighbours (default 4)

    Directed networks, where messages go one way:

      directed-ring:50, directed-exponential:50
      random-digraph:0.3:50     probability of an arc (default 0.5)

    Networks that change from round to round:

      one-peer:32               each agent talks to one other agent per round
      matchings:torus:5x10      agents pair up at random along the links
      failing:0.2:ring:50       links fail with this probability (default 0.1)
      periodic:ring:50+star:50  the networks take turns, one per round
    """
    with errors():
        net = from_name(name, agents, seed=seed, rule=cast("Rule", rule))
        mixing = [_mixing(mixer, net, accuracy) for mixer in (Gossip(), FastMix(), Chebyshev())]
        if plot is not None:
            _draw(net, plot)
        if as_json:
            typer.echo(_json(net, mixing, accuracy, plot))
            return
        console = Console(emoji=False)
        _show(console, net, mixing, accuracy, edges=edges)
        if plot is not None:
            console.print(f"Figure: {escape(str(plot))}", soft_wrap=True)


def _draw(net: Topology, plot: Path) -> None:
    """Draw the network into a file, whose folder is created if it does not exist."""
    check_figure(plot)
    plot.parent.mkdir(parents=True, exist_ok=True)
    from deepca.plots.network import draw

    draw(net, plot)


def _mixing(mixer: Mixer, net: Topology, accuracy: float) -> Mixing:
    name = type(mixer).__name__
    try:
        mixer.check(net)
        return Mixing(name, _per_round(mixer, net), mixer.rounds_for(net, accuracy))
    except MixingError as error:
        kind = "directed" if net.directed and not net.time_varying else "time-varying"
        why_not = str(error) if net.static_undirected else f"{name} needs {_SAME_WEIGHTS}, but {net.name} is {kind}"
        return Mixing(name, None, None, why_not)


def _per_round(mixer: Mixer, net: Topology) -> float:
    """Return the asymptotic contraction per round: the K-th root of that of K rounds, for large K."""
    if not net.static_undirected:
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
    """Return pairs of sender and receiver."""
    links = sparse.coo_array(net.adjacency)
    return sorted((int(i), int(j)) for j, i in zip(links.row, links.col, strict=True))


def _messages(net: Topology) -> float:
    """Return the number of messages per round, on average if rounds differ."""
    return float(np.mean([net.messages_at(r) for r in range(_COUNTED_ROUNDS)])) if net.time_varying else net.n_messages


def _json(net: Topology, mixing: list[Mixing], accuracy: float, plot: Path | None) -> str:
    degrees = net.degrees
    facts = {
        "name": net.name,
        "rule": net.rule,
        "directed": net.directed,
        "changing": net.time_varying,
        "agents": net.n_agents,
        "links": net.n_edges,
        "messages_per_round": _messages(net),
        "degree": {"min": int(degrees.min()), "mean": float(degrees.mean()), "max": int(degrees.max())},
        "diameter": net.flood_rounds,
        "diameter_is_upper_bound": net.n_agents > MAX_DENSE_AGENTS,
        "lambda2": net.lambda2,
        "gap": 1.0 - net.lambda2,
        "lambda_min": net.lambda_min if net.static_undirected else None,
        "accuracy": accuracy,
        "mixing": [asdict(one) for one in mixing],
        "plot": None if plot is None else str(plot),
    }
    # all links on one line: with four lines per link, the other properties would be lost among them
    lists = {"edges": _edges(net)} | ({"arcs": _arcs(net)} if isinstance(net, Digraph) else {})
    ends = "".join(f',\n  "{name}": {json.dumps(pairs)}' for name, pairs in lists.items())
    return json.dumps(facts, indent=2, ensure_ascii=False)[:-2] + ends + "\n}"


def _span(numbers: npt.NDArray[np.int64]) -> tuple[str, str]:
    """Return the value that all agents have, or the range, and an explanation."""
    low, high = int(numbers.min()), int(numbers.max())
    return (str(low), "every agent") if low == high else (f"{low} … {high}", f"{numbers.mean():.4g} on average")


def _facts(net: Topology) -> list[tuple[str, str, str]]:
    """Return properties of a network: name, value and explanation."""
    farthest = f"{'≤ ' * (net.n_agents > MAX_DENSE_AGENTS)}{net.flood_rounds:,}"
    if isinstance(net, Digraph):
        rows = [
            ("arcs", f"{net.n_messages:,}", "from a sender to a receiver"),
            ("sends to", *_span(net.degrees)),
            ("receives from", *_span(np.diff(net.adjacency.indptr).astype(np.int64))),
            ("strongly connected", "yes", "every agent can reach every other"),
            ("diameter", farthest, "hops between the two agents farthest apart"),
            ("|λ₂| of C", f"{net.lambda2:.6g}", "second largest eigenvalue of the weights"),
            ("1 − |λ₂|", f"{1 - net.lambda2:.4g}", "near 0: agents agree slowly"),
        ]
        if net.n_agents > MAX_DENSE_AGENTS:
            return rows
        weights = net.stationary_distribution * net.n_agents
        return [
            *rows,
            ("push-sum weight", f"{weights.min():.3g} … {weights.max():.3g}", "in the limit; agents divide by it"),
        ]
    if net.time_varying:
        ways = "; some go one way, with a push-sum weight" if net.directed else ""
        return [
            ("links", f"{net.n_edges:,}", "used in some round"),
            ("messages", f"{_messages(net):,.4g}", f"per round, on average{ways}"),
            ("flooding", farthest, "rounds until the values of all agents have reached all others"),
            ("contraction", f"{net.lambda2:.6g}", "of disagreement per round, on average"),
        ]
    span, scope = _span(net.degrees)
    return [
        ("links", f"{net.n_edges:,}", ""),
        ("neighbours", span, scope.replace("every", "of every")),
        ("diameter", farthest, "hops between the two agents farthest apart"),
        ("λ₂ of 𝐋", f"{net.lambda2:.6g}", "second largest eigenvalue of the gossip matrix"),
        ("1 − λ₂", f"{1 - net.lambda2:.4g}", "near 0: agents agree slowly"),
        ("λ_min of 𝐋", f"{net.lambda_min:.6g}", "smallest eigenvalue; FastMix needs it to be ≥ 0"),
    ]


def _show(console: Console, net: Topology, mixing: list[Mixing], accuracy: float, *, edges: bool) -> None:
    kind = ", which changes from round to round" if net.time_varying else f" with {net.rule} weights"
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
        note = "A single agent sends nothing."
    elif net.time_varying:
        note = "The contraction is an average over rounds; the number of rounds was measured."
    elif net.directed:
        note = (
            f"A round sends one message along each arc, {net.n_messages:,} in total. Agents push shares of their value "
            "and of a weight; the ratio of the two tends to the mean (push-sum)."
        )
    else:
        note = (
            f"A round sends one message from every agent to each neighbour, {2 * net.n_edges:,} in total. "
            "The contraction is asymptotic; the number of rounds is proven to suffice."
        )
    console.print(f"[dim]{note}[/]", highlight=False)
    unusable = [one for one in mixing if one.why_not is not None]
    if unusable and not net.static_undirected:
        names = " and ".join(one.mixer for one in unusable)
        console.print(f"\n{names} need {_SAME_WEIGHTS}, so only Gossip can be used here.", highlight=False)
    else:
        for one in unusable:
            console.print(f"\n{escape(str(one.why_not))}.", highlight=False)
    console.print()
    if edges:
        _list(console, net)


def _list(console: Console, net: Topology) -> None:
    listed = [f"{i} → {j}" for i, j in _arcs(net)] if isinstance(net, Digraph) else []
    console.print("[bold]Arcs[/]" if listed else "[bold]Links[/]")
    console.print(Columns(listed or [f"{i} – {j}" for i, j in _edges(net)], padding=(0, 3)), highlight=False)
    console.print()
