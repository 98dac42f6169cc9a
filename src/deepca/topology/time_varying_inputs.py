"""Check the arguments of the functions that create time-varying networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepca._util.validation import Integer, check
from deepca.errors import InvalidInput
from deepca.topology.graph import Topology

__all__ = ["check_base", "check_graphs", "check_probability", "check_seed"]


def check_graphs(graphs: Sequence[Topology]) -> None:
    """Raise InvalidInput unless the graphs are static and have the same number of agents."""
    if not isinstance(graphs, Sequence) or not all(isinstance(graph, Topology) for graph in graphs):
        raise InvalidInput(
            f"graphs is a {type(graphs).__name__}, not a sequence of topologies; give a list such as "
            "[deepca.topology.ring(5), deepca.topology.star(5)]",
            parameter="graphs",
            value=graphs,
        )
    if not graphs:
        raise InvalidInput("graphs is empty; give one or more graphs", parameter="graphs", value=graphs)
    sizes = sorted({graph.n_agents for graph in graphs})
    if len(sizes) != 1:
        raise InvalidInput(
            f"the graphs have {' and '.join(map(str, sizes))} agents; give graphs with equal numbers of agents",
            parameter="graphs",
            value=sizes,
        )
    for graph in graphs:
        if graph.time_varying:
            raise InvalidInput(
                f"{graph.name} is time-varying; a periodic network needs graphs that do not change",
                parameter="graphs",
                value=graph.name,
            )


def check_base(base: Topology) -> None:
    """Raise InvalidInput unless a graph is undirected and static."""
    if not isinstance(base, Topology):
        raise InvalidInput(
            f"base is {base!r}, not a topology; give one such as deepca.topology.ring(5)", parameter="base", value=base
        )
    if base.directed or base.time_varying:
        kind = "directed" if base.directed else "time-varying"
        raise InvalidInput(
            f"{base.name} is {kind}; give an undirected graph that does not change", parameter="base", value=base.name
        )


def check_probability(p: float) -> None:
    """Raise InvalidInput unless p is a number in [0, 1)."""
    if not isinstance(p, (int, float, np.number)) or not 0.0 <= p < 1.0:
        raise InvalidInput(f"p = {p!r}: the probability of a failure must be in [0, 1)", parameter="p", value=p)


def check_seed(seed: int) -> None:
    """Raise ParameterError unless the seed is a nonnegative integer."""
    check("seed", seed, Integer(0), meaning="the same at all agents")
