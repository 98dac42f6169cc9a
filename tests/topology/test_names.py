"""Compare networks that are created by name with those of the functions and with networkx."""

from __future__ import annotations

import math
import time
from typing import Any, get_args

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deepca
from deepca import topology as tp
from deepca.errors import DisconnectedError, ParameterError, TopologyError
from deepca.topology.names import EXAMPLES, NAMES, from_name
from tests.laws.strategies import quick, seeds
from tests.support.errors import raises

RULES: tuple[tp.Rule, ...] = get_args(tp.Rule)
ANY_M = ("ring", "path", "star", "complete", "erdos-renyi", "random-regular")
agents = st.integers(1, 40)


def _same(a: tp.Topology, b: tp.Topology) -> None:
    assert (a.name, a.rule) == (b.name, b.rule)
    np.testing.assert_array_equal(a.gossip_matrix, b.gossip_matrix)


def _composite(m: int) -> bool:
    return any(m % r == 0 for r in range(2, m))


@pytest.mark.parametrize(
    ("spec", "m", "expected"),
    [
        ("ring:50", None, tp.ring(50)),
        ("ring", 50, tp.ring(50)),
        ("ring:50", 50, tp.ring(50)),
        ("path:7", None, tp.path(7)),
        ("star:7", None, tp.star(7)),
        ("complete:7", None, tp.complete(7)),
        ("grid:3x4", None, tp.grid(3, 4)),
        ("grid:4x3", 12, tp.grid(4, 3)),
        ("grid:12", None, tp.grid(3, 4)),
        ("grid", 12, tp.grid(3, 4)),
        ("grid:3x4:12", None, tp.grid(3, 4)),
        ("torus:5x10", None, tp.torus(5, 10)),
        ("torus:5×10", None, tp.torus(5, 10)),
        ("torus:1x7", None, tp.torus(1, 7)),
        ("torus:50", None, tp.torus(5, 10)),
        ("torus:36", None, tp.torus(6, 6)),
        ("hypercube:16", None, tp.hypercube(4)),
        ("hypercube", 1, tp.hypercube(0)),
        ("erdos-renyi:50", None, tp.erdos_renyi(50, 0.5, seed=3)),
        ("erdos-renyi", 50, tp.erdos_renyi(50, 0.5, seed=3)),
        ("erdos-renyi:0.3:50", None, tp.erdos_renyi(50, 0.3, seed=3)),
        ("erdos-renyi:0.3", 50, tp.erdos_renyi(50, 0.3, seed=3)),
        ("erdos-renyi:0.3:50", 50, tp.erdos_renyi(50, 0.3, seed=3)),
        ("erdos-renyi:1", 20, tp.erdos_renyi(20, 1.0, seed=3)),
        ("random-regular:50", None, tp.random_regular(50, 4, seed=3)),
        ("random-regular:6:50", None, tp.random_regular(50, 6, seed=3)),
        ("random-regular:6", 50, tp.random_regular(50, 6, seed=3)),
        (" Erdos_Renyi : 0.3 : 50 ", None, tp.erdos_renyi(50, 0.3, seed=3)),
    ],
)
def test_a_name_creates_the_same_network_as_the_function(spec: str, m: int | None, expected: tp.Topology) -> None:
    _same(from_name(spec, m, seed=3), expected)


@given(st.sampled_from(ANY_M), agents, seeds, st.sampled_from(RULES), st.booleans())
@quick(80)
def test_most_names_work_for_every_number_of_agents(name: str, m: int, seed: int, rule: tp.Rule, apart: bool) -> None:
    made = from_name(name, m, seed=seed, rule=rule) if apart else from_name(f"{name}:{m}", seed=seed, rule=rule)
    graph = made.to_networkx()
    assert (made.n_agents, made.rule) == (m, rule)
    assert nx.is_connected(graph)
    assert made.flood_rounds == nx.diameter(graph)
    degrees = sorted(degree for _, degree in graph.degree())
    if name == "ring":
        assert degrees == [min(2, m - 1)] * m
    elif name == "path":
        assert (nx.is_tree(graph), degrees[-1] <= 2) == (True, True)
    elif name == "star":
        assert (nx.is_tree(graph), degrees[-1]) == (True, m - 1)
    elif name == "complete":
        assert made.n_edges == m * (m - 1) // 2
    elif name == "random-regular":
        assert degrees == [min(4, m - 1)] * m


@pytest.mark.parametrize("name", ANY_M)
@pytest.mark.parametrize("m", range(1, 8))
def test_names_work_for_tiny_networks(name: str, m: int) -> None:
    assert from_name(f"{name}:{m}", seed=0).n_agents == m


@given(st.integers(1, 400), st.sampled_from(["grid", "torus"]))
@quick(50)
def test_rectangles_are_as_square_as_the_number_of_agents_allows(m: int, name: str) -> None:
    if m > 3 and not _composite(m):
        line = "path" if name == "grid" else "ring"
        suggestions = (f"{line}:{m}", f"{name}:{m - 1}", f"{name}:{m + 1}")
        with raises(TopologyError, parameter="m", value=m, suggestions=suggestions):
            from_name(f"{name}:{m}")
        return
    rows = max(r for r in range(1, m + 1) if m % r == 0 and r * r <= m)
    graph: nx.Graph[Any] = nx.grid_2d_graph(rows, m // rows)
    if name == "torus":
        graph = nx.cartesian_product(*(nx.path_graph(n) if n < 3 else nx.cycle_graph(n) for n in (rows, m // rows)))
    made = from_name(name, m)
    assert made.name == f"{name}({rows}×{m // rows})"
    assert (made.n_agents, made.n_edges) == (m, graph.number_of_edges())
    if m <= 60:
        assert nx.is_isomorphic(made.to_networkx(), graph)


@given(st.integers(1, 300))
@quick(50)
def test_a_hypercube_needs_a_power_of_two_and_suggests_the_nearest(m: int) -> None:
    if m.bit_count() == 1:
        made = from_name(f"hypercube:{m}")
        assert (made.n_agents, made.degrees.tolist()) == (m, [round(math.log2(m))] * m)
        return
    below, above = 2 ** math.floor(math.log2(m)), 2 ** math.ceil(math.log2(m))
    nearest_first = tuple(f"hypercube:{n}" for n in sorted((below, above), key=lambda n: abs(n - m)))
    with raises(TopologyError, parameter="m", value=m, suggestions=nearest_first):
        from_name("hypercube", m)


def test_every_name_has_an_example_that_works() -> None:
    assert tuple(EXAMPLES) == NAMES
    for name, example in EXAMPLES.items():
        assert example.startswith(f"{name}:")
        assert from_name(example, seed=0).name.startswith(f"{name}(")


def test_from_name_is_exported_by_deepca_topology() -> None:
    _same(deepca.topology.from_name("erdos-renyi:0.4:12", seed=5), from_name("erdos-renyi:0.4:12", seed=5))
    _same(deepca.topology.from_name("ring", 6, rule="metropolis"), tp.ring(6, rule="metropolis"))


def test_seeds_determine_the_network_and_may_be_generators() -> None:
    for spec in ("erdos-renyi:30", "random-regular:30"):
        _same(from_name(spec, seed=1), from_name(spec, seed=np.random.default_rng(1)))
        different = from_name(spec, seed=2).gossip_matrix
        assert not np.array_equal(from_name(spec, seed=1).gossip_matrix, different)


def test_numpy_integers_are_accepted() -> None:
    assert from_name("grid", np.int64(12)).n_agents == 12  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("spec", "m", "parameter", "value"),
    [
        ("", None, "name", ""),
        ("rnig:5", None, "name", "rnig"),
        ("ring50", None, "name", "ring50"),
        ("erdos:50", None, "name", "erdos"),
        ("hyper-cube:8", None, "name", "hyper-cube"),
        ("qqq:5", None, "name", "qqq"),
        ("ring", None, "m", None),
        ("torus", None, "m", None),
        ("erdos-renyi", None, "m", None),
        ("erdos-renyi:0.5", None, "m", "0.5"),
        ("ring:", None, "m", ""),
        ("ring:five", None, "m", "five"),
        ("ring:-3", None, "m", "-3"),
        ("ring:2.5", None, "m", "2.5"),
        ("ring:٣", None, "m", "٣"),
        ("ring:" + "9" * 5000, None, "m", "9" * 5000),
        ("ring:0", None, "m", 0),
        ("ring:3:50", None, "spec", "ring:3:50"),
        ("erdos-renyi:1:2:3", None, "spec", "erdos-renyi:1:2:3"),
        ("ring:50", 40, "m", 40),
        ("erdos-renyi:0.5:50", 40, "m", 40),
        ("torus:5x10", 40, "m", 40),
        ("torus:5x10:40", None, "m", 40),
        ("torus:50", 40, "m", 40),
        ("torus:5x", None, "shape", "5x"),
        ("torus:5x10x2", None, "shape", "5x10x2"),
        ("grid:7:50", None, "shape", "7"),
        ("erdos-renyi:50", 50, "p", "50"),
        ("erdos-renyi:0:50", None, "p", "0"),
        ("erdos-renyi:nan:50", None, "p", "nan"),
        ("erdos-renyi:half:50", None, "p", "half"),
        ("random-regular:3:5", None, "degree", 3),
        ("random-regular:5:5", None, "degree", 5),
        ("random-regular:2.5:8", None, "degree", "2.5"),
        (50, None, "spec", 50),
    ],
)
def test_invalid_names_are_rejected(spec: Any, m: Any, parameter: str, value: object) -> None:
    with raises(TopologyError, parameter=parameter, value=value):
        from_name(spec, m, seed=0)


@pytest.mark.parametrize(
    ("spec", "m", "value"),
    [("ring", 0, 0), ("grid", -4, -4), ("ring", True, True), ("ring", 2.0, 2.0), ("torus:0x5", None, 0)],
)
def test_invalid_numbers_of_agents_are_rejected(spec: str, m: Any, value: object) -> None:
    with raises(TopologyError, value=value):
        from_name(spec, m)


@pytest.mark.parametrize(
    ("spec", "suggestions"),
    [
        ("rnig:5", ("ring",)),
        ("ring50", ("ring",)),
        ("erdos:50", ("erdos-renyi",)),
        ("hyper-cube:8", ("hypercube",)),
        ("qqq:5", ()),
        ("ring", ("ring:50",)),
        ("torus", ("torus:5x10",)),
        ("erdos-renyi:0.5", ("erdos-renyi:0.5:50",)),
        ("torus:5x", ("torus:5x10",)),
    ],
)
def test_errors_suggest_valid_names(spec: str, suggestions: tuple[str, ...]) -> None:
    with raises(TopologyError, suggestions=suggestions) as caught:
        from_name(spec)
    assert all(suggestion in str(caught.value) for suggestion in suggestions)


@pytest.mark.parametrize(
    "spec", ["complete:10000", "erdos-renyi:10000", "random-regular:100:999999", "torus:9999x9999", "ring:999999999"]
)
def test_a_network_too_large_for_memory_is_rejected_at_once(spec: str) -> None:
    start = time.perf_counter()
    with raises(TopologyError, parameter="links"):
        from_name(spec)
    assert time.perf_counter() - start < 1.0


def test_an_unknown_rule_and_a_sparse_draw_raise_as_without_a_name() -> None:
    with raises(ParameterError, parameter="rule", value="equal"):
        from_name("ring:5", rule="equal")  # type: ignore[arg-type]
    with raises(DisconnectedError, parameter="p", value=0.001):
        from_name("erdos-renyi:0.001:50", seed=0)


@given(st.text(st.sampled_from("ring:x0159.- torusedyal"), max_size=16), st.none() | st.integers(-2, 30))
@quick(120)
def test_any_text_gives_a_network_or_a_topology_error(text: str, m: int | None) -> None:
    try:
        made = from_name(text, m, seed=0)
    except TopologyError:
        return
    assert m is None or made.n_agents == m
