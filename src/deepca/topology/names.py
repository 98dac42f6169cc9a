"""Create networks from names such as ``"torus:5x10"``.

A name may be followed by a parameter and by the number of agents m, ``NAME[:parameter][:m]``:

=====================  =======================  =================================================
syntax                 also                     network
=====================  =======================  =================================================
``ring:50``
``path:50``
``star:50``                                     agent 0 in the centre
``complete:50``
``grid:5x10``          ``grid:50``              for 50 agents, the rectangle nearest to a square
``torus:5x10``         ``torus:50``             likewise
``hypercube:32``                                m must be a power of two
``erdos-renyi:50``     ``erdos-renyi:0.5:50``   p = 0.5 by default
``random-regular:50``  ``random-regular:4:50``  4 neighbours by default; fewer if m is below 5
=====================  =======================  =================================================

The last number is m. If m is given separately, as in ``from_name("erdos-renyi:0.3", 50)``, a single number after a name
that takes a parameter is that parameter.

Directed networks (:mod:`deepca.topology.directed`) use the same syntax:

===========================  ==========================  =====================================================
syntax                       also                        arcs
===========================  ==========================  =====================================================
``directed-ring:50``                                     j to j + 1
``directed-exponential:50``                              j to j + 1, j + 2, j + 4, …
``random-digraph:50``        ``random-digraph:0.3:50``   every agent to every other with probability p (0.5)
===========================  ==========================  =====================================================

Time-varying networks (:mod:`deepca.topology.time_varying`) other than ``one-peer`` are built from inner networks,
``NAME[:parameter]:NETWORK``. Their m is that of the inner network, and may also be given separately:

==============================  ==================================================================================
syntax                          in every round
==============================  ==================================================================================
``one-peer:50``                 every agent sends to one other, 1, 2, 4, … positions ahead in turn
``matchings:torus:5x10``        agents pair up at random along links of the network, and each pair averages
``failing:0.2:ring:50``         each link of the network is down with probability 0.2 (0.1 by default)
``periodic:ring:50+star:50``    the next of these networks, in turn; they may be directed
==============================  ==================================================================================
"""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Callable

import numpy as np

from deepca._util.typing import Seed
from deepca._util.validation import Integer
from deepca.errors import TopologyError
from deepca.topology import directed, generators, graph, time_varying
from deepca.topology.adjacency import check_agents
from deepca.topology.graph import Rule, Topology
from deepca.topology.name_limits import check_links, check_pairs, check_time_varying_size

__all__ = ["DIRECTED", "EXAMPLES", "NAMES", "TIME_VARYING", "agents_in_name", "from_name"]

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
"""Names of undirected networks, each with an example in full syntax."""
DIRECTED: dict[str, str] = {
    "directed-ring": "directed-ring:50",
    "directed-exponential": "directed-exponential:50",
    "random-digraph": "random-digraph:0.3:50",
}
"""Names of directed networks, each with an example."""
TIME_VARYING: dict[str, str] = {
    "one-peer": "one-peer:50",
    "matchings": "matchings:torus:5x10",
    "failing": "failing:0.2:erdos-renyi:0.5:50",
    "periodic": "periodic:ring:50+star:50",
}
"""Names of time-varying networks, each with an example."""
NAMES: tuple[str, ...] = tuple(EXAMPLES)
"""Names of all undirected networks."""

_ALL_EXAMPLES = EXAMPLES | DIRECTED | TIME_VARYING
_COMPOSITE = ("matchings", "failing", "periodic")  # built from inner networks
_PARAMETERS = {
    "grid": "shape",
    "torus": "shape",
    "erdos-renyi": "probability",
    "random-digraph": "probability",
    "random-regular": "degree",
}
_DEFAULT_P, _DEFAULT_DEGREE, _DEFAULT_FAILURE_P = 0.5, 4, 0.1
_SIMPLE: dict[str, Callable[[int, Rule], Topology]] = {
    "ring": lambda m, rule: generators.ring(m, rule=rule),
    "path": lambda m, rule: generators.path(m, rule=rule),
    "star": lambda m, rule: generators.star(m, rule=rule),
    "complete": lambda m, rule: generators.complete(m, rule=rule),
}


def from_name(spec: str, m: int | None = None, *, seed: Seed = None, rule: Rule = "paper") -> Topology:
    """Create a network from its name; see :func:`deepca.topology.from_name`."""
    try:
        return _create(spec, m, seed, rule)
    except TopologyError as error:
        if error.spec is not None or error.parameter == "rule" or not isinstance(spec, str):
            raise
        located = copy.copy(error)  # with all its attributes
        located.args, located.spec = (f"{spec}: {error}",), spec
        raise located from None


def _create(spec: str, m: int | None, seed: Seed, rule: Rule) -> Topology:
    """Create a network from its name; the message of an error does not name it."""
    if (head := _head(spec)) in _COMPOSITE:
        return _composite(head, spec, m, seed, rule)
    name, parameter, count = _parse(spec, m)
    if name in ("grid", "torus"):
        rows, columns = _shape(name, parameter, count)
        return (generators.grid if name == "grid" else generators.torus)(rows, columns, rule=rule)
    if count is None:
        raise _missing_number_error(_ALL_EXAMPLES[name])
    if name in DIRECTED or name in TIME_VARYING:
        if rule != "paper":
            raise _invalid_error(f"rule = {rule!r}: the weights of {name} do not follow a rule; omit it", "rule", rule)
        return _directed_or_one_peer(spec, name, parameter, count, seed)
    if name == "hypercube":
        return generators.hypercube(_dimension(count), rule=rule)
    if name == "erdos-renyi":
        p = _DEFAULT_P if parameter is None else _probability(spec, parameter)
        check_links(name, count, p * count * (count - 1) / 2)
        return generators.erdos_renyi(count, p, seed=seed, rule=rule)
    if name == "random-regular":
        degree = (
            min(_DEFAULT_DEGREE, count - 1) if parameter is None else _whole(spec, parameter, "number of neighbours")
        )
        if count == 1 and parameter is None:
            return graph.from_edges(1, [], rule=rule, name="random-regular(1, 0)")
        check_links(name, count, count * degree / 2)
        return generators.random_regular(count, degree, seed=seed, rule=rule)
    check_links(name, count, count * (count - 1) / 2 if name == "complete" else count)
    return _SIMPLE[name](count, rule)


def agents_in_name(spec: str) -> int | None:
    """Return the number of agents that a name contains, or None.

    A single number after ``erdos-renyi``, ``random-digraph`` or ``random-regular`` is read as their parameter.
    """
    name, *numbers = _parts(spec)
    if name in _COMPOSITE:
        found = [agents_in_name(part) for part in _inner(name, spec)[1] if _head(part) not in _COMPOSITE]
        return next((m for m in found if m is not None), None)
    if name in ("grid", "torus") and numbers and "x" in numbers[0]:
        return from_name(spec).n_agents
    if not numbers or (len(numbers) == 1 and _PARAMETERS.get(name) in ("probability", "degree")):
        return None
    return _parse(spec, None)[2]


def _directed_or_one_peer(spec: str, name: str, parameter: str | None, m: int, seed: Seed) -> Topology:
    """Create a directed network or ``one-peer``, the time-varying network that has no inner network."""
    if name == "random-digraph":
        p = _DEFAULT_P if parameter is None else _probability(spec, parameter)
        check_pairs(name, m, p)
        return directed.random_digraph(m, p, seed=seed)
    if name == "one-peer":
        check_time_varying_size(name, m)
        return time_varying.one_peer(m)
    check_links(name, m, m * max(m.bit_length() if name == "directed-exponential" else 1, 1))
    return directed.exponential(m) if name == "directed-exponential" else directed.ring(m)


def _composite(name: str, spec: str, m: int | None, seed: Seed, rule: Rule) -> Topology:
    """Create a time-varying network that is built from inner networks."""
    parameter, inner = _inner(name, spec)
    for part in inner:
        if not part:
            raise _invalid_error(
                f"the name of the inner network is missing; write {TIME_VARYING[name]}",
                "network",
                part,
                TIME_VARYING[name],
            )
        allowed = EXAMPLES if name != "periodic" else EXAMPLES | DIRECTED
        if _head(part) in _ALL_EXAMPLES and _head(part) not in allowed:
            kind = "static" if name == "periodic" else "static undirected"
            raise _invalid_error(
                f"{_head(part)} cannot be the inner network, which must be {kind}, as in {TIME_VARYING[name]}",
                "network",
                _head(part),
                TIME_VARYING[name],
            )
    agents = m if m is not None else agents_in_name(spec)
    if agents is not None and Integer(1).accepts(agents):
        check_time_varying_size(name, agents)
    rng = seed if isinstance(seed, np.random.Generator) or seed is None else int(seed)
    graphs = [
        from_name(part, agents, seed=rng + i if isinstance(rng, int) else rng, rule=_rule(part, rule))
        for i, part in enumerate(inner)
    ]
    if name == "periodic":
        return time_varying.periodic(graphs)
    drawn = rng if isinstance(rng, int) else int(np.random.default_rng(rng).integers(2**31))
    if name == "matchings":
        return time_varying.matchings(graphs[0], seed=drawn)
    return time_varying.failing(
        graphs[0], _DEFAULT_FAILURE_P if parameter is None else _failure_probability(spec, parameter), seed=drawn
    )


def _inner(name: str, spec: str) -> tuple[str | None, list[str]]:
    """Return the parameter (None if absent) and the names of the inner networks."""
    rest = ":".join(_parts(spec)[1:])
    if name == "periodic":
        return None, [part.strip() for part in rest.split("+")]
    first, _, after = rest.partition(":")
    if name == "failing" and first and not first[0].isalpha():
        return first, [after]
    return None, [rest]


def _rule(part: str, rule: Rule) -> Rule:
    """Return the weight rule for an inner network; directed networks do not take one."""
    return "paper" if _head(part) in DIRECTED else rule


def _failure_probability(spec: str, text: str) -> float:
    p = _number(text)
    if not 0.0 <= p < 1.0:
        raise _invalid_error(
            f"{text!r} is read as the probability that a link is down, which must be in [0, 1); "
            f"write {TIME_VARYING['failing']}",
            "p",
            text,
            TIME_VARYING["failing"],
        )
    return p


def _parts(spec: str) -> list[str]:
    return [part.strip() for part in spec.lower().replace("_", "-").replace("×", "x").split(":")]


def _head(spec: str) -> str:
    return _parts(spec)[0] if isinstance(spec, str) else ""


def _parse(spec: str, m: int | None) -> tuple[str, str | None, int | None]:
    """Split a name into network, parameter and number of agents; parameter and number are None if absent."""
    if not isinstance(spec, str):
        raise _invalid_error(
            f"spec is a {type(spec).__name__}; give the name of a network, such as 'ring:50'", "spec", spec, "ring:50"
        )
    if m is not None:
        check_agents(m)
    name, *numbers = _parts(spec)
    if name not in _ALL_EXAMPLES:
        near = difflib.get_close_matches(name, _ALL_EXAMPLES, n=1)
        meant = f"did you mean {near[0]}? The " if near else "the "
        known = ", ".join(_ALL_EXAMPLES)
        raise _invalid_error(f"unknown network; {meant}known names are {known}", "name", name, *near)
    if len(numbers) > (2 if name in _PARAMETERS else 1):
        example = _ALL_EXAMPLES[name]
        raise _invalid_error(f"too many numbers; write {example}", "spec", spec, example)
    parameter = None
    if len(numbers) == 2 or (numbers and _is_parameter(name, numbers[0], m)):
        parameter = numbers.pop(0)
    if not numbers:
        return name, parameter, None if m is None else int(m)
    written = _whole(spec, numbers[0], "number of agents")
    if written < 1:
        raise _invalid_error(f"{written} agents; a network needs at least one", "m", written)
    if m is not None and written != m:
        raise _conflict_error(written, m)
    return name, parameter, written


def _is_parameter(name: str, number: str, m: int | None) -> bool:
    """Return whether a single number after a name is its parameter rather than m."""
    kind = _PARAMETERS.get(name)
    return "x" in number if kind == "shape" else kind is not None and m is not None


def _whole(spec: str, text: str, what: str) -> int:
    if re.fullmatch("[0-9]{1,9}", text) is None:
        example = _ALL_EXAMPLES[_head(spec)]
        raise _invalid_error(
            f"{text!r} is not a valid {what}; write {example}, or give the number of agents separately",
            "degree" if what == "number of neighbours" else "m",
            text,
            example,
        )
    return int(text)


def _probability(spec: str, text: str) -> float:
    p = _number(text)
    if not 0.0 < p <= 1.0:
        example = _ALL_EXAMPLES[_head(spec)]
        raise _invalid_error(
            f"{text!r} is read as the probability of a link, which must be in (0, 1]; write {example}",
            "p",
            text,
            example,
        )
    return p


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _shape(name: str, text: str | None, m: int | None) -> tuple[int, int]:
    """Return rows and columns: those given, or the rectangle of m agents nearest to a square.

    Raises TopologyError if ``text`` is not a shape of m agents, if both are None, or for a line or too many links.
    """
    if text is not None:
        found = re.fullmatch("([0-9]{1,6})x([0-9]{1,6})", text)
        if found is None:
            raise _invalid_error(
                f"{text!r} is not a shape; write rows and columns as in {EXAMPLES[name]}",
                "shape",
                text,
                EXAMPLES[name],
            )
        rows, columns = int(found[1]), int(found[2])
        if m is not None and rows * columns != m:
            raise _conflict_error(rows * columns, m)
        check_links(name, rows * columns, 2 * rows * columns)
        return rows, columns
    if m is None:
        raise _missing_number_error(EXAMPLES[name])
    check_links(name, m, 2 * m)
    rows = next(r for r in range(math.isqrt(m), 0, -1) if m % r == 0)
    if rows == 1 and m > 3:  # two or three agents form a line anyway
        line = {"grid": "path", "torus": "ring"}[name]
        raise _invalid_error(
            f"{m} is prime, so the only rectangle is 1x{m}, which is a {line}; "
            f"write {line}:{m}, or use {m - 1} or {m + 1} agents",
            "m",
            m,
            f"{line}:{m}",
            f"{name}:{m - 1}",
            f"{name}:{m + 1}",
        )
    return rows, m // rows


def _dimension(m: int) -> int:
    dimension = m.bit_length() - 1
    if m != 1 << dimension:
        below, above = 1 << dimension, 2 << dimension
        first, second = (below, above) if m - below <= above - m else (above, below)
        raise _invalid_error(
            f"{m} is not a power of two; write hypercube:{first} or hypercube:{second}",
            "m",
            m,
            f"hypercube:{first}",
            f"hypercube:{second}",
        )
    check_links("hypercube", m, m * dimension / 2)
    return dimension


def _missing_number_error(example: str) -> TopologyError:
    text = f"the number of agents is missing; write {example}, or give the number separately"
    return _invalid_error(text, "m", None, example)


def _conflict_error(written: int, m: int) -> TopologyError:
    return _invalid_error(f"the name has {written} agents, but {m} are requested; omit one of the numbers", "m", m)


def _invalid_error(message: str, parameter: str, value: object, *suggestions: str) -> TopologyError:
    return TopologyError(message, parameter=parameter, value=value, suggestions=suggestions)
