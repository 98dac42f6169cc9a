"""Networks by name: ``from_name("torus:5x10")``.

A name may be followed by a parameter and by the number of agents m, ``NAME[:parameter][:m]``:

=====================  =======================  =================================================
written                also                     agents
=====================  =======================  =================================================
``ring:50``
``path:50``
``star:50``                                     the first one in the middle
``complete:50``
``grid:5x10``          ``grid:50``              of 50 agents, the rectangle nearest to a square
``torus:5x10``         ``torus:50``             likewise
``hypercube:32``                                a power of two
``erdos-renyi:50``     ``erdos-renyi:0.5:50``   p = 0.5 unless told
``random-regular:50``  ``random-regular:4:50``  4 neighbours unless told; fewer if m is below 5
=====================  =======================  =================================================

The last number is m. Where m is given apart, as in ``from_name("erdos-renyi:0.3", 50)``, the number after a name that
takes a parameter is that parameter.

Networks whose messages go one way (:mod:`deepca.topology.directed`) are written alike:

===========================  ==========================  =====================================================
written                      also                        who sends to whom
===========================  ==========================  =====================================================
``directed-ring:50``                                     j to j + 1
``directed-exponential:50``                              j to j + 1, j + 2, j + 4, …
``random-digraph:50``        ``random-digraph:0.3:50``   everyone to everyone else with probability 0.5 or p
===========================  ==========================  =====================================================

Networks that change from round to round (:mod:`deepca.topology.time_varying`) are made of others,
``NAME[:parameter]:NETWORK``; m is that of the network inside, and may be given apart as well:

==============================  ==================================================================================
written                         in every round
==============================  ==================================================================================
``one-peer:50``                 everyone sends to one other agent, 1, 2, 4, … ahead in turn
``matchings:torus:5x10``        agents pair up at random along links of the network, and each pair takes its mean
``failing:0.2:ring:50``         each link of the network is down with probability 0.2; 0.1 unless told
``periodic:ring:50+star:50``    one of these networks after the other, directed ones too
==============================  ==================================================================================
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from deepca._util.validation import Whole
from deepca.errors import TopologyError
from deepca.topology import directed, generators, graph, time_varying
from deepca.topology.graph import Rule, Topology, check_agents

if TYPE_CHECKING:
    from deepca.topology.graph import Seed

__all__ = ["CHANGING", "DIRECTED", "EXAMPLES", "NAMES", "from_name", "named_agents"]

EXAMPLES: dict[str, str] = {
    "ring": "ring:50",
    "path": "path:50",
    "star": "star:50",
    "complete": "complete:50",
    "grid": "grid:5x10",
    "torus": "torus:5x10",
    "hypercube": "hypercube:32",
    "erdos-renyi": "erdos-renyi:0.5:50",
    "random-regular": "random-regular:4:50",
}
"""Every name of a network whose links stay and go both ways, as it may be written in full."""
DIRECTED: dict[str, str] = {
    "directed-ring": "directed-ring:50",
    "directed-exponential": "directed-exponential:50",
    "random-digraph": "random-digraph:0.3:50",
}
"""The same for networks whose messages go one way."""
CHANGING: dict[str, str] = {
    "one-peer": "one-peer:50",
    "matchings": "matchings:torus:5x10",
    "failing": "failing:0.2:erdos-renyi:0.5:50",
    "periodic": "periodic:ring:50+star:50",
}
"""The same for networks that change from round to round."""
NAMES: tuple[str, ...] = tuple(EXAMPLES)
"""All names of networks whose links stay and go both ways."""

_ALL = EXAMPLES | DIRECTED | CHANGING
_MADE_OF_OTHERS = ("matchings", "failing", "periodic")
_PARAMETERS = {
    "grid": "shape",
    "torus": "shape",
    "erdos-renyi": "probability",
    "random-digraph": "probability",
    "random-regular": "degree",
}
_P, _DEGREE, _DOWN = 0.5, 4, 0.1
_MOST_CHANGING = 1000  # agents; rounds are drawn and multiplied out to see how they mix
_MOST_LINKS = 5_000_000  # some gigabytes while building; more is a slip of the keyboard
_SIMPLE: dict[str, Callable[[int, Rule], Topology]] = {
    "ring": lambda m, rule: generators.ring(m, rule=rule),
    "path": lambda m, rule: generators.path(m, rule=rule),
    "star": lambda m, rule: generators.star(m, rule=rule),
    "complete": lambda m, rule: generators.complete(m, rule=rule),
}


def from_name(spec: str, m: int | None = None, *, seed: Seed = None, rule: Rule = "paper") -> Topology:
    """The network that ``spec`` names, with m agents; see the head of this module for what may be written.

    ``seed`` is for the random ones. A number of agents in ``spec`` that differs from ``m`` is an error.
    """
    if (head := _head(spec)) in _MADE_OF_OTHERS:
        return _made_of_others(head, spec, m, seed, rule)
    name, parameter, count = _read(spec, m)
    if name in ("grid", "torus"):
        rows, columns = _shape(name, parameter, count)
        return (generators.grid if name == "grid" else generators.torus)(rows, columns, rule=rule)
    if count is None:
        raise TopologyError(f"{spec!r} does not say how many agents; write {_ALL[name]}, or give their number apart")
    if name in DIRECTED or name in CHANGING:
        if rule != "paper":
            raise TopologyError(
                f"{name} with {rule} weights: what agents send has weights of its own; leave the rule out"
            )
        return _one_way(spec, name, parameter, count, seed)
    if name == "hypercube":
        return generators.hypercube(_dimension(count), rule=rule)
    if name == "erdos-renyi":
        p = _P if parameter is None else _probability(spec, parameter)
        _check_links(name, count, p * count * (count - 1) / 2)
        return generators.erdos_renyi(count, p, seed=seed, rule=rule)
    if name == "random-regular":
        degree = min(_DEGREE, count - 1) if parameter is None else _whole(spec, parameter, "number of neighbours")
        if count == 1 and parameter is None:
            return graph.from_edges(1, [], rule=rule, name="random-regular(1, 0)")
        _check_links(name, count, count * degree / 2)
        return generators.random_regular(count, degree, seed=seed, rule=rule)
    _check_links(name, count, count * (count - 1) / 2 if name == "complete" else count)
    return _SIMPLE[name](count, rule)


def named_agents(spec: str) -> int | None:
    """How many agents a name asks for by itself; None where it leaves that open.

    A single number after ``erdos-renyi``, ``random-digraph`` or ``random-regular`` is taken for their parameter.
    """
    name, *numbers = _parts(spec)
    if name in _MADE_OF_OTHERS:
        found = [named_agents(part) for part in _inside(name, spec)[1] if _head(part) not in _MADE_OF_OTHERS]
        return next((m for m in found if m is not None), None)
    if name in ("grid", "torus") and numbers and "x" in numbers[0]:
        return from_name(spec).n_agents
    if not numbers or (len(numbers) == 1 and _PARAMETERS.get(name) in ("probability", "degree")):
        return None
    return _read(spec, None)[2]


def _one_way(spec: str, name: str, parameter: str | None, m: int, seed: Seed) -> Topology:
    """Directed networks, and the one that changes without being made of another."""
    if name == "random-digraph":
        p = _P if parameter is None else _probability(spec, parameter)
        _check_links(name, m, max(p, 0.25) * m * (m - 1))  # all pairs are looked at, however few are drawn
        return directed.random_digraph(m, p, seed=seed)
    if name == "one-peer":
        _check_changing(name, m)
        return time_varying.one_peer(m)
    _check_links(name, m, m * max(m.bit_length() if name == "directed-exponential" else 1, 1))
    return directed.exponential(m) if name == "directed-exponential" else directed.ring(m)


def _made_of_others(name: str, spec: str, m: int | None, seed: Seed, rule: Rule) -> Topology:
    parameter, inside = _inside(name, spec)
    for part in inside:
        if not part:
            raise TopologyError(f"{spec!r} does not say of which network; write {CHANGING[name]}")
        allowed = EXAMPLES if name != "periodic" else EXAMPLES | DIRECTED
        if _head(part) in _ALL and _head(part) not in allowed:
            kind = "whose links stay" if name == "periodic" else "whose links stay and go both ways"
            raise TopologyError(f"{name} of {_head(part)}: give a network {kind}, such as {CHANGING[name]}")
    agents = m if m is not None else named_agents(spec)
    if agents is not None and Whole(1).accepts(agents):
        _check_changing(name, agents)
    rng = seed if isinstance(seed, np.random.Generator) or seed is None else int(seed)
    graphs = [
        from_name(part, agents, seed=rng + i if isinstance(rng, int) else rng, rule=_rule(part, rule))
        for i, part in enumerate(inside)
    ]
    if name == "periodic":
        return time_varying.periodic(graphs)
    drawn = rng if isinstance(rng, int) else int(np.random.default_rng(rng).integers(2**31))
    if name == "matchings":
        return time_varying.matchings(graphs[0], seed=drawn)
    return time_varying.failing(graphs[0], _DOWN if parameter is None else _failure(spec, parameter), seed=drawn)


def _inside(name: str, spec: str) -> tuple[str | None, list[str]]:
    """The parameter, where there is one, and the names of the networks that this one is made of."""
    rest = ":".join(_parts(spec)[1:])
    if name == "periodic":
        return None, [part.strip() for part in rest.split("+")]
    first, _, after = rest.partition(":")
    if name == "failing" and first and not first[0].isalpha():
        return first, [after]
    return None, [rest]


def _rule(part: str, rule: Rule) -> Rule:
    """Directed parts of a schedule have weights of their own, whatever the others have."""
    return "paper" if _head(part) in DIRECTED else rule


def _failure(spec: str, text: str) -> float:
    p = _number(text)
    if not 0.0 <= p < 1.0:
        raise TopologyError(
            f"{spec!r}: {text!r} is read as the probability that a link is down, which lies in [0, 1); "
            f"write {CHANGING['failing']}"
        )
    return p


def _check_changing(name: str, m: int) -> None:
    if m > _MOST_CHANGING:
        raise TopologyError(
            f"{name} of {m:,} agents: networks that change are named for up to {_MOST_CHANGING:,} agents; make larger "
            "ones with deepca.topology.time_varying"
        )


def _parts(spec: str) -> list[str]:
    return [part.strip() for part in spec.lower().replace("_", "-").replace("×", "x").split(":")]


def _head(spec: str) -> str:
    return _parts(spec)[0] if isinstance(spec, str) else ""


def _read(spec: str, m: int | None) -> tuple[str, str | None, int | None]:
    """Name, parameter and number of agents, as far as they are given."""
    if not isinstance(spec, str):
        raise TopologyError(f"a network is named by a string such as 'ring:50', not by {type(spec).__name__}")
    if m is not None:
        check_agents(m)
    name, *numbers = _parts(spec)
    if name not in _ALL:
        near = difflib.get_close_matches(name, _ALL, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise TopologyError(f"there is no network called {name!r}; {meant}Known are {', '.join(_ALL)}")
    if len(numbers) > (2 if name in _PARAMETERS else 1):
        raise TopologyError(f"{spec!r} has too many numbers; write {_ALL[name]}")
    parameter = None
    if len(numbers) == 2 or (numbers and _is_parameter(name, numbers[0], m)):
        parameter = numbers.pop(0)
    if not numbers:
        return name, parameter, None if m is None else int(m)
    written = _whole(spec, numbers[0], "number of agents")
    if written < 1:
        raise TopologyError(f"{spec!r}: {written} agents; a network needs at least one")
    if m is not None and written != m:
        raise TopologyError(f"{spec!r} has {written} agents, but {m} are asked for; leave one of the numbers out")
    return name, parameter, written


def _is_parameter(name: str, number: str, m: int | None) -> bool:
    """Whether the only number after a name is its parameter rather than m."""
    kind = _PARAMETERS.get(name)
    return "x" in number if kind == "shape" else kind is not None and m is not None


def _whole(spec: str, text: str, what: str) -> int:
    if re.fullmatch("[0-9]{1,9}", text) is None:
        raise TopologyError(
            f"{spec!r}: {text!r} is not a {what}; write {_ALL[_head(spec)]}, or give the number of agents apart"
        )
    return int(text)


def _probability(spec: str, text: str) -> float:
    p = _number(text)
    if not 0.0 < p <= 1.0:
        raise TopologyError(
            f"{spec!r}: {text!r} is read as the probability of a link, which lies in (0, 1]; write {_ALL[_head(spec)]}"
        )
    return p


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _shape(name: str, text: str | None, m: int | None) -> tuple[int, int]:
    """Rows and columns, as written or as near to a square as m allows."""
    if text is not None:
        found = re.fullmatch("([0-9]{1,6})x([0-9]{1,6})", text)
        if found is None:
            raise TopologyError(f"{name}:{text}: rows and columns are written as in {EXAMPLES[name]}")
        rows, columns = int(found[1]), int(found[2])
        if m is not None and rows * columns != m:
            raise TopologyError(
                f"{name}:{text} has {rows * columns} agents, but {m} are asked for; leave one of the numbers out"
            )
        _check_links(name, rows * columns, 2 * rows * columns)
        return rows, columns
    if m is None:
        raise TopologyError(
            f"{name!r} does not say how many agents; write {EXAMPLES[name]}, or give their number apart"
        )
    _check_links(name, m, 2 * m)
    rows = next(r for r in range(math.isqrt(m), 0, -1) if m % r == 0)
    if rows == 1 and m > 3:  # up to three agents nobody expects a rectangle
        line = {"grid": "path", "torus": "ring"}[name]
        raise TopologyError(
            f"{name} of {m} agents: {m} is prime, so the only rectangle is 1x{m}, which is a {line}; "
            f"write {line}:{m}, or take {m - 1} or {m + 1} agents"
        )
    return rows, m // rows


def _dimension(m: int) -> int:
    dimension = m.bit_length() - 1
    if m != 1 << dimension:
        below, above = 1 << dimension, 2 << dimension
        first, second = (below, above) if m - below <= above - m else (above, below)
        raise TopologyError(
            f"hypercube of {m} agents: {m} is not a power of two; write hypercube:{first} or hypercube:{second}"
        )
    _check_links("hypercube", m, m * dimension / 2)
    return dimension


def _check_links(name: str, m: int, links: float) -> None:
    if links > _MOST_LINKS:
        raise TopologyError(
            f"{name} of {m:,} agents has about {links:,.0f} links, which names are not made for "
            f"(up to {_MOST_LINKS:,}); take fewer agents or fewer links each"
        )
