"""Networks by name, compared with the functions that build them and with networkx."""

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
from deepca.errors import DisconnectedError, InvalidInput, TopologyError
from deepca.topology.names import EXAMPLES, NAMES, from_name
from tests.laws.strategies import quick, seeds

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
def test_a_name_builds_what_the_function_of_that_name_builds(spec: str, m: int | None, expected: tp.Topology) -> None:
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
def test_tiny_networks_have_names_too(name: str, m: int) -> None:
    assert from_name(f"{name}:{m}", seed=0).n_agents == m


@given(st.integers(1, 400), st.sampled_from(["grid", "torus"]))
@quick(50)
def test_rectangles_are_as_square_as_the_number_of_agents_allows(m: int, name: str) -> None:
    if m > 3 and not _composite(m):
        line = "path" if name == "grid" else "ring"
        with pytest.raises(TopologyError, match=rf"{m} is prime.*write {line}:{m}, or take {m - 1} or {m + 1} agents"):
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
def test_a_hypercube_takes_powers_of_two_and_names_the_nearest(m: int) -> None:
    if m.bit_count() == 1:
        made = from_name(f"hypercube:{m}")
        assert (made.n_agents, made.degrees.tolist()) == (m, [round(math.log2(m))] * m)
        return
    with pytest.raises(TopologyError, match="power of two") as caught:
        from_name("hypercube", m)
    below, above = 2 ** math.floor(math.log2(m)), 2 ** math.ceil(math.log2(m))
    nearest = min((below, above), key=lambda n: abs(n - m))
    assert f"write hypercube:{nearest} or" in str(caught.value)
    assert {int(word.split(":")[1]) for word in str(caught.value).split() if "hypercube:" in word} == {below, above}


def test_every_name_has_an_example_that_works() -> None:
    assert tuple(EXAMPLES) == NAMES
    for name, example in EXAMPLES.items():
        assert example.startswith(f"{name}:")
        assert from_name(example, seed=0).name.startswith(f"{name}(")


def test_the_same_from_the_module_of_topologies() -> None:
    _same(deepca.topology.from_name("erdos-renyi:0.4:12", seed=5), from_name("erdos-renyi:0.4:12", seed=5))
    _same(deepca.topology.from_name("ring", 6, rule="metropolis"), tp.ring(6, rule="metropolis"))


def test_seeds_decide_and_may_be_generators() -> None:
    for spec in ("erdos-renyi:30", "random-regular:30"):
        _same(from_name(spec, seed=1), from_name(spec, seed=np.random.default_rng(1)))
        different = from_name(spec, seed=2).gossip_matrix
        assert not np.array_equal(from_name(spec, seed=1).gossip_matrix, different)


def test_numpy_counts_are_counts() -> None:
    assert from_name("grid", np.int64(12)).n_agents == 12  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("spec", "m", "words"),
    [
        ("", None, "Known are ring, path"),
        ("rnig:5", None, r"no network called 'rnig'; did you mean ring\? Known are ring, path, star"),
        ("ring50", None, r"did you mean ring\?"),
        ("erdos:50", None, r"did you mean erdos-renyi\?"),
        ("hyper-cube:8", None, r"did you mean hypercube\?"),
        ("qqq:5", None, r"'qqq'; Known are"),
        ("ring", None, "does not say how many agents; write ring:50"),
        ("torus", None, "does not say how many agents; write torus:5x10"),
        ("erdos-renyi", None, "does not say how many"),
        ("erdos-renyi:0.5", None, r"'0.5' is not a number of agents; write erdos-renyi:0.5:50, or give"),
        ("ring:", None, "'' is not a number of agents"),
        ("ring:five", None, "'five' is not a number of agents"),
        ("ring:-3", None, "'-3' is not a number of agents"),
        ("ring:2.5", None, "'2.5' is not a number of agents"),
        ("ring:٣", None, "is not a number of agents"),
        ("ring:" + "9" * 5000, None, "is not a number of agents"),
        ("ring:0", None, "at least one"),
        ("ring", 0, "at least one"),
        ("grid", -4, "at least one"),
        ("ring", True, "at least one"),
        ("ring", 2.0, "at least one"),
        ("ring:3:50", None, "too many numbers; write ring:50"),
        ("erdos-renyi:1:2:3", None, "too many numbers"),
        ("ring:50", 40, "'ring:50' has 50 agents, but 40 are asked for"),
        ("erdos-renyi:0.5:50", 40, "has 50 agents, but 40"),
        ("torus:5x10", 40, "torus:5x10 has 50 agents, but 40"),
        ("torus:5x10:40", None, "torus:5x10 has 50 agents, but 40"),
        ("torus:50", 40, "has 50 agents, but 40"),
        ("torus:5x", None, "written as in torus:5x10"),
        ("torus:5x10x2", None, "written as in torus:5x10"),
        ("torus:0x5", None, "at least one"),
        ("grid:7:50", None, "written as in grid:5x10"),
        ("erdos-renyi:50", 50, "'50' is read as the probability"),
        ("erdos-renyi:0:50", None, "probability"),
        ("erdos-renyi:nan:50", None, "probability"),
        ("erdos-renyi:half:50", None, "'half' is read as the probability"),
        ("random-regular:3:5", None, "no graph of 5 agents with 3 neighbours"),
        ("random-regular:5:5", None, "no graph of 5 agents with 5 neighbours"),
        ("random-regular:2.5:8", None, "'2.5' is not a number of neighbours"),
        (50, None, "named by a string such as 'ring:50'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_way_out(spec: Any, m: Any, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        from_name(spec, m, seed=0)


@pytest.mark.parametrize(
    "spec", ["complete:10000", "erdos-renyi:10000", "random-regular:100:999999", "torus:9999x9999", "ring:999999999"]
)
def test_a_slip_that_would_fill_the_memory_is_refused_at_once(spec: str) -> None:
    start = time.perf_counter()
    with pytest.raises(TopologyError, match="links, which names are not made for"):
        from_name(spec)
    assert time.perf_counter() - start < 1.0


def test_an_unknown_rule_and_an_unlikely_draw_are_told_as_ever() -> None:
    with pytest.raises(InvalidInput, match="lazy-metropolis"):
        from_name("ring:5", rule="equal")  # type: ignore[arg-type]
    with pytest.raises(DisconnectedError, match="raise p"):
        from_name("erdos-renyi:0.001:50", seed=0)


@given(st.text(st.sampled_from("ring:x0159.- torusedyal"), max_size=16), st.none() | st.integers(-2, 30))
@quick(120)
def test_any_text_is_a_network_or_a_topology_error(text: str, m: int | None) -> None:
    try:
        made = from_name(text, m, seed=0)
    except TopologyError:
        return
    assert m is None or made.n_agents == m
