"""Test directed and time-varying networks by name: in Python, on the command line, and in drawings."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import deepca
from deepca import topology as tp
from deepca.decomposition.settings import create_algorithm
from deepca.errors import InvalidInput, TopologyError
from deepca.plots import network as network_plots
from deepca.sites.config.example import EXAMPLE
from deepca.sites.config.network_file import read_network
from deepca.topology import Topology, directed, time_varying
from deepca.topology.directed import Digraph
from deepca.topology.names import DIRECTED, TIME_VARYING, agents_in_name, from_name
from deepca.topology.time_varying import TimeVarying
from tests.laws.strategies import quick
from tests.support.errors import raises
from tests.support.helpers import json_of, run_cli

Array = npt.NDArray[np.float64]
NETWORKS = [
    "directed-ring",
    "directed-exponential",
    "random-digraph:0.4",
    "one-peer",
    "matchings:ring",
    "failing:0.3:erdos-renyi:0.6",
    "periodic:path+star",
    "periodic:directed-ring+ring",
]


def _same(one: Topology, other: Topology) -> None:
    assert (one.name, type(one)) == (other.name, type(other))
    for r in range(20):
        np.testing.assert_array_equal(one.at(r).toarray(), other.at(r).toarray())


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("spec", "m", "expected"),
    [
        ("directed-ring:7", None, directed.ring(7)),
        ("Directed_Ring", 7, directed.ring(7)),
        ("directed-exponential:9", None, directed.exponential(9)),
        ("random-digraph:0.4:9", None, directed.random_digraph(9, 0.4, seed=3)),
        ("random-digraph:0.4", 9, directed.random_digraph(9, 0.4, seed=3)),
        ("random-digraph:9", None, directed.random_digraph(9, 0.5, seed=3)),
        ("one-peer:11", None, time_varying.one_peer(11)),
        ("one-peer", 11, time_varying.one_peer(11)),
        ("matchings:ring:9", None, time_varying.matchings(tp.ring(9), seed=3)),
        ("matchings:ring", 9, time_varying.matchings(tp.ring(9), seed=3)),
        (" matchings : torus : 3×4 ", None, time_varying.matchings(tp.torus(3, 4), seed=3)),
        ("matchings:torus:3x4", 12, time_varying.matchings(tp.torus(3, 4), seed=3)),
        ("failing:0.25:torus:3x4", None, time_varying.failing(tp.torus(3, 4), 0.25, seed=3)),
        ("failing:torus:3x4", None, time_varying.failing(tp.torus(3, 4), 0.1, seed=3)),
        (
            "failing:.5:erdos-renyi:0.6:9",
            None,
            time_varying.failing(tp.erdos_renyi(9, 0.6, seed=3), 0.5, seed=3),
        ),
        ("failing:0.5:erdos-renyi:0.6", 9, time_varying.failing(tp.erdos_renyi(9, 0.6, seed=3), 0.5, seed=3)),
        ("periodic:ring:8+star:8", None, time_varying.periodic([tp.ring(8), tp.star(8)])),
        ("periodic:ring:8 + star", None, time_varying.periodic([tp.ring(8), tp.star(8)])),
        ("periodic:ring+directed-ring+path", 6, time_varying.periodic([tp.ring(6), directed.ring(6), tp.path(6)])),
        (
            "periodic:erdos-renyi:0.5+erdos-renyi:0.5",
            9,
            time_varying.periodic([tp.erdos_renyi(9, 0.5, seed=3), tp.erdos_renyi(9, 0.5, seed=4)]),
        ),
    ],
)
def test_a_name_creates_the_same_network_as_the_function(spec: str, m: int | None, expected: Topology) -> None:
    _same(from_name(spec, m, seed=3), expected)
    _same(tp.from_name(spec, m, seed=3), expected)
    asked = agents_in_name(spec)
    assert asked == (expected.n_agents if m is None and spec != "random-digraph:9" else asked)


def test_every_name_has_an_example_that_works() -> None:
    for name, example in (DIRECTED | TIME_VARYING).items():
        made = from_name(example, seed=0)
        assert example.startswith(f"{name}:")
        assert made.name.startswith(f"{name}(")
        assert (made.n_agents, agents_in_name(example)) == (50, 50)
        assert isinstance(made, Digraph if name in DIRECTED else TimeVarying)


def test_seeds_determine_the_network_and_may_be_generators_or_none() -> None:
    for spec in ("matchings:complete:8", "failing:0.5:complete:8", "random-digraph:0.4:9"):
        first, again, other = (from_name(spec, seed=seed) for seed in (1, 1, 2))
        _same(first, again)
        assert any(not np.array_equal(first.at(r).toarray(), other.at(r).toarray()) for r in range(5))
        drawn = [from_name(spec, seed=np.random.default_rng(1)) for _ in range(2)]
        _same(*drawn)
        assert from_name(spec, seed=None).n_agents == first.n_agents


def test_weights_of_the_inner_network_follow_the_rule() -> None:
    found = from_name("failing:0.0:path:5", rule="metropolis")
    np.testing.assert_allclose(found.at(3).toarray(), tp.path(5, rule="metropolis").gossip_matrix, atol=1e-15)
    mixed = from_name("periodic:path:5+directed-ring", rule="metropolis")
    np.testing.assert_array_equal(mixed.at(0).toarray(), tp.path(5, rule="metropolis").gossip_matrix)
    np.testing.assert_array_equal(mixed.at(1).toarray(), directed.ring(5).gossip_matrix)


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("spec", NETWORKS)
def test_names_work_for_tiny_networks(spec: str, m: int) -> None:
    assert from_name(spec, m, seed=0).n_agents == m


def test_links_missing_from_the_first_rounds_are_included() -> None:
    many = time_varying.matchings(tp.complete(30))
    seen = sum((many.at(r) for r in range(64)), start=many.at(0))
    assert seen.nnz < 30 * 30
    assert len(many.edges) == 435
    assert time_varying.one_peer(50).n_edges == 50 * 6  # 1, 2, 4, 8, 16 and 32 ahead


def test_a_long_directed_ring_has_the_closed_form_eigenvalue() -> None:
    """On this graph Arnoldi iterations do not converge."""
    assert directed.ring(1600).lambda2 == pytest.approx(abs(1 + np.exp(2j * np.pi / 1600)) / 2, abs=1e-12)


@pytest.mark.parametrize(
    ("spec", "m", "parameter", "value"),
    [
        ("directed-rnig:5", None, "name", "directed-rnig"),
        ("matching:ring:5", None, "name", "matching"),
        ("directed-ring", None, "m", None),
        ("directed-ring:3:5", None, "spec", "directed-ring:3:5"),
        ("one-peer:0", None, "m", 0),
        ("one-peer:5", 6, "m", 6),
        ("random-digraph:1.5:9", None, "p", "1.5"),
        ("random-digraph:0.01:40", None, "p", 0.01),
        ("matchings", 5, "network", ""),
        ("matchings:", 5, "network", ""),
        ("matchings:ring", None, "m", None),
        ("matchings:rnig:5", None, "name", "rnig"),
        ("matchings:directed-ring:5", None, "network", "directed-ring"),
        ("matchings:one-peer:5", None, "network", "one-peer"),
        (":".join(["matchings"] * 5000) + ":ring:5", None, "network", "matchings"),
        ("matchings:ring:5", 6, "m", 6),
        ("failing:0.2", 5, "network", ""),
        ("failing:1.0:ring:5", None, "p", "1.0"),
        ("failing:-1:ring:5", None, "p", "-1"),
        ("failing:0.2:random-digraph:0.5:5", None, "network", "random-digraph"),
        ("periodic:ring:5+star:6", None, "m", 5),
        ("periodic:ring:5+", None, "network", ""),
        ("periodic:ring:5+one-peer:5", None, "network", "one-peer"),
        ("one-peer:5000", None, "m", 5000),
        ("matchings:ring:5000", None, "m", 5000),
        ("directed-ring:999999999", None, "links", 999_999_999),
        ("random-digraph:0.001:90000", None, "m", 90_000),
        ("random-digraph:1:2237", None, "m", 2237),
    ],
)
def test_invalid_names_are_rejected(spec: str, m: int | None, parameter: str, value: object) -> None:
    with raises(TopologyError, parameter=parameter, value=value):
        from_name(spec, m, seed=0)


def test_rules_apply_to_undirected_networks_only() -> None:
    for spec in ("directed-ring:5", "one-peer:5"):
        with raises(TopologyError, parameter="rule", value="metropolis"):
            from_name(spec, rule="metropolis")


@given(
    st.lists(st.sampled_from(["matchings", "failing", "periodic", "ring", "one-peer", "0.3", "4", "+", ":", ""])),
    st.none() | st.integers(-1, 9),
)
@quick(150)
def test_any_text_gives_a_network_or_a_topology_error(parts: list[str], m: int | None) -> None:
    try:
        made = from_name(":".join(parts), m, seed=0)
    except TopologyError:
        return
    assert m is None or made.n_agents == m


def test_plans_and_sites_reject_directed_and_time_varying_networks(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"one-peer\(8\)"):
        deepca.plan("one-peer:8", 2, dim=20, latency=0.01, bandwidth=1e6)
    file = tmp_path / "network.toml"
    file.write_text(re.sub(r'(?m)^topology = "[^"]*"', 'topology = "directed-ring"', EXAMPLE), encoding="utf-8")
    with pytest.raises(InvalidInput, match="directed-ring"):
        _ = read_network(file).topology


# ----------------------------------------------------------------------------------------------------- deepca topology


@pytest.mark.parametrize("spec", ["directed-ring:9", "directed-exponential:12", "random-digraph:0.2:15"])
def test_the_figures_of_a_digraph_match_networkx(spec: str) -> None:
    found = json_of("topology", spec)
    graph: nx.DiGraph[int] = nx.DiGraph(found["arcs"])
    m = found["agents"]
    assert (found["directed"], found["changing"]) == (True, False)
    assert graph.number_of_nodes() == m
    assert nx.is_strongly_connected(graph)
    assert found["messages_per_round"] == graph.number_of_edges() == len(found["arcs"])
    assert found["links"] == nx.Graph(graph).number_of_edges() == len(found["edges"])
    assert found["diameter"] == nx.diameter(graph)
    out = [degree for _, degree in graph.out_degree()]
    assert found["degree"] == {"min": min(out), "mean": pytest.approx(np.mean(out)), "max": max(out)}
    C = np.zeros((m, m))
    for i in range(m):
        C[[i, *graph.successors(i)], i] = 1 / (1 + graph.out_degree(i))
    modulus = np.sort(np.abs(np.linalg.eigvals(C)))
    assert found["lambda2"] == pytest.approx(modulus[-2], abs=1e-12)
    assert found["lambda_min"] is None
    gossip, *others = found["mixing"]
    assert gossip["contraction"] == found["lambda2"]
    power = np.linalg.matrix_power(C, gossip["rounds"])
    y = power.sum(axis=1)
    assert np.linalg.norm(power - y[:, None] / m, 2) / y.min() <= 1e-10 * (1 + 1e-6)
    for one in others:
        assert (one["contraction"], one["rounds"]) == (None, None)
        assert one["why_not"]


def test_the_table_of_a_digraph_is_complete() -> None:
    shown = run_cli("topology", "random-digraph:0.2:15", "--edges").stdout
    for pattern in (
        r"random-digraph\(15, 0\.2\) with out-degree weights",
        r"arcs +\d+",
        r"sends to +\d",
        r"receives from +\d",
        r"strongly connected +yes",
        r"\|λ₂\| of C +0\.\d+",
        r"push-sum weight +0\.\d+ … \d",
        r"FastMix +— +—",
        r"Chebyshev +— +—",
        r"along each arc, \d+ in total",
    ):
        assert re.search(pattern, shown), pattern
    listed = {(int(i), int(j)) for i, j in re.findall(r"(\d+) → (\d+)", shown)}
    assert listed == set(directed.random_digraph(15, 0.2, seed=0).to_networkx().edges())


def test_the_table_of_a_time_varying_network_is_complete() -> None:
    net = time_varying.matchings(tp.torus(3, 4), seed=2)
    shown = run_cli("topology", "matchings:torus:3x4", "--seed", "2", "--edges").stdout
    for pattern in (
        r"matchings\(torus\(3×4\)\), which changes from round to round",
        r"links +24 ",
        rf"flooding +{net.flood_rounds} ",
        rf"contraction +{net.lambda2:.6g}",
        r"rounds to 1e-10",
    ):
        assert re.search(pattern, shown), pattern
    assert len(re.findall(r"\d+ – \d+", shown)) == 24
    found = json_of("topology", "matchings:torus:3x4", "--seed", "2")
    assert found["messages_per_round"] == np.mean([net.messages_at(r) for r in range(64)])
    assert (found["directed"], found["changing"], "arcs" in found) == (False, True, False)
    product = np.eye(12)
    for r in range(found["mixing"][0]["rounds"]):
        product = net.at(r).toarray() @ product
    assert np.linalg.norm(product - 1 / 12, 2) <= 1e-10 * (1 + 1e-6)
    both = run_cli("topology", "periodic:directed-ring:5+ring").stdout
    assert "push-sum weight" in " ".join(both.split())


@pytest.mark.parametrize("spec", NETWORKS)
def test_a_single_agent_has_a_table(spec: str) -> None:
    done = run_cli("topology", spec, "--agents", "1")
    assert done.exit_code == 0, done.stderr
    assert "sends nothing" in done.stdout


@pytest.mark.parametrize("spec", ["directed-ring:5", "random-digraph:0.3:12", "one-peer:8", "matchings:torus:3x4"])
def test_the_drawing_is_a_valid_png(spec: str, tmp_path: Path) -> None:
    plot = tmp_path / "net.png"
    assert json_of("topology", spec, "--plot", str(plot))["plot"] == str(plot)
    data = plot.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1050
    assert 400 <= height <= 1600


def _drawn(net: Topology, path: Path, monkeypatch: pytest.MonkeyPatch) -> Figure:
    """Return the figure that is saved."""
    saved: list[Figure] = []
    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *args, **options: saved.append(figure))
        network_plots.draw(net, path)
    [figure] = saved
    return figure


def test_arrows_point_from_sender_to_receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is an arrow for an arc, a line where both agents send, and one panel per round of a schedule."""
    graph = directed.from_arcs(4, [(0, 1), (1, 2), (2, 3), (3, 0), (2, 1)])
    [axes] = _drawn(graph, tmp_path / "a.png", monkeypatch).axes
    at = network_plots.layout(graph)
    ends = {_ends(arrow, at) for arrow in axes.patches if isinstance(arrow, FancyArrowPatch)}
    assert ends == {(0, 1), (2, 3), (3, 0)}
    assert _segments(axes) == 1
    net = time_varying.one_peer(8)
    figure = _drawn(net, tmp_path / "a.png", monkeypatch)
    at = network_plots.layout(net)
    for r, panel in enumerate(figure.axes):
        drawn = {_ends(arrow, at) for arrow in panel.patches if isinstance(arrow, FancyArrowPatch)}
        hop = (1, 2, 4, 1)[r]
        assert drawn == (set() if hop == 4 else {(j, (j + hop) % 8) for j in range(8)})  # 4 ahead is 4 back
    texts = [text.get_text() for text in figure.texts]
    assert "round 1: 8 messages" in texts


def _segments(axes: Any) -> int:
    """Return the lines without an arrowhead."""
    return sum(len(lines.get_segments()) for lines in axes.collections if isinstance(lines, LineCollection))


def _ends(arrow: FancyArrowPatch, at: Array) -> tuple[int, int]:
    line = np.asarray(arrow.get_path().vertices)  # three points of a curve, then those of its head
    one, other = line[0], line[2]
    return int(np.abs(at - one).sum(axis=1).argmin()), int(np.abs(at - other).sum(axis=1).argmin())


def test_many_arrows_are_drawn_as_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = directed.exponential(512)
    [axes] = _drawn(graph, tmp_path / "a.png", monkeypatch).axes
    assert not axes.patches
    assert _segments(axes) == graph.n_edges == 512 * 8 + 256  # half way round goes both ways


# ----------------------------------------------------------------------------------------------- fit and the estimator


@pytest.fixture(scope="module")
def digits() -> Array:
    return np.asarray(load_digits().data)


@pytest.mark.parametrize("spec", NETWORKS)
def test_fit_gives_the_certified_result_of_pooled_pca(spec: str, digits: Array, tmp_path: Path) -> None:
    """The command chooses an algorithm for the network, and gives the result of the estimator."""
    np.save(tmp_path / "all.npy", digits)
    out = tmp_path / "model.npz"
    found = json_of("fit", str(tmp_path / "all.npy"), "--agents", "10", "-k", "5", "--topology", spec, "-o", str(out))
    pooled = PCA(5, svd_solver="covariance_eigh").fit(digits)
    model = deepca.load(out)
    np.testing.assert_allclose(model.components, pooled.components_, atol=1e-9)
    np.testing.assert_allclose(model.explained_variance, pooled.explained_variance_, rtol=1e-10)
    assert model.certificate is not None
    assert model.certificate.proves(1e-10)
    assert found["status"]["code"] == "converged"
    estimator = deepca.DecentralizedPCA(5, topology=spec, n_agents=10).fit(digits)
    np.testing.assert_allclose(estimator.components_, pooled.components_, atol=1e-9)
    assert estimator.topology_.name == from_name(spec, 10, seed=0).name


@pytest.mark.parametrize("spec", ["matchings:ring:6", "directed-ring:6", "one-peer"])
def test_auto_chooses_a_method_that_supports_the_network(spec: str) -> None:
    net = from_name(spec, 6, seed=0)
    network = deepca.SimulatedNetwork(net)
    chosen = create_algorithm("auto", np.stack([np.eye(4)] * 6), np.eye(4)[:, :1], network)
    assert isinstance(chosen, deepca.AcceleratedDeEPCA if net.time_varying else deepca.BlockKrylov)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--topology", "directed-rnig"), "did you mean directed-ring?"),
        (("--topology", "matchings"), "write matchings:torus:5x10"),
        (("--topology", "random-digraph:0.01"), "increase p (p ≥ 0.46"),
        (("--topology", "matchings:ring", "--algorithm", "krylov"), "matchings(ring(10))"),
        (("--topology", "one-peer", "--algorithm", "covariance"), "one-peer(10)"),
        (("--topology", "directed-ring", "--messages", "float32"), "directed-ring(10)"),
    ],
)
def test_an_invalid_network_is_one_error_line_and_exit_code_2(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "all.npy", np.random.default_rng(0).standard_normal((60, 5)))
    done = run_cli(
        "fit", str(tmp_path / "all.npy"), "--agents", "10", "-k", "2", "-o", str(tmp_path / "m.npz"), "-q", *arguments
    )
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.output
    assert not (tmp_path / "m.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topology", "random-digraph:0.02:30"), "increase p (p ≥ 0.23"),
        (("topology", "directed-ring:5", "--rule", "metropolis"), "--rule metropolis: "),
        (("topology", "failing:2:ring:5"), "probability that a link is down"),
        (
            ("plan", "--topology", "one-peer:8", "--dim", "20", "-k", "2", "--latency", "1ms", "--bandwidth", "1Mbit"),
            "one-peer(8)",
        ),
    ],
)
def test_other_commands_report_an_invalid_network_in_the_same_way(arguments: tuple[str, ...], words: str) -> None:
    done = run_cli(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_mixers_that_need_a_symmetric_matrix_are_rejected() -> None:
    A, W0 = np.stack([np.eye(4)] * 6), np.eye(4)[:, :1]
    for spec in ("directed-ring:6", "one-peer:6", "matchings:ring:6"):
        network: Any = deepca.SimulatedNetwork(from_name(spec, seed=0))
        for mixer in (deepca.FastMix(3), deepca.Chebyshev(3), deepca.PositiveChebyshev(3)):
            with pytest.raises(deepca.errors.MixingError):
                deepca.DeEPCA(A, W0, network, mixer)
            with pytest.raises(deepca.errors.MixingError):
                mixer.contraction(network.topology, 3)


@pytest.mark.parametrize(
    ("name", "m", "spec"),
    [
        ("rign", None, "rign"),
        ("ring", None, "ring"),
        ("torus:5x10", 3, "torus:5x10"),
        ("erdos-renyi:0.01:50", None, "erdos-renyi:0.01:50"),
        ("random-regular:7:5", None, "random-regular:7:5"),
        ("failing:rign:5", None, "failing:rign:5"),
    ],
)
def test_errors_have_the_name_at_fault(name: str, m: int | None, spec: str) -> None:
    with pytest.raises(TopologyError) as caught:
        from_name(name, m, seed=1)
    assert caught.value.spec == spec
    assert str(caught.value).startswith(f"{spec}: ")
    for suggestion in caught.value.suggestions:
        assert from_name(suggestion, None if ":" in suggestion else 9).n_agents > 1
