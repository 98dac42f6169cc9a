"""Test ``deepca topology``."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import Any, get_args

import networkx as nx
import numpy as np
import pytest
from typer.testing import CliRunner

from deepca import Chebyshev, FastMix, Gossip
from deepca import topology as tp
from deepca.cli.app import app
from deepca.cli.commands.topology import complete_rule
from deepca.cli.options import complete_name
from deepca.consensus.mixers import Mixer
from deepca.consensus.rates import response
from deepca.errors import InvalidInput
from deepca.plots import network as network_plots
from deepca.topology.names import DIRECTED, EXAMPLES, NAMES, TIME_VARYING, from_name
from tests.support.helpers import json_of, run_cli

PNG = b"\x89PNG\r\n\x1a\n"


def _run(*arguments: str, columns: int = 100) -> Any:
    return run_cli("topology", *arguments, columns=columns)


def _json(*arguments: str) -> dict[str, Any]:
    return json_of("topology", *arguments)


def _graph(found: dict[str, Any]) -> nx.Graph[Any]:
    graph: nx.Graph[Any] = nx.empty_graph(found["agents"])
    graph.add_edges_from(found["edges"])
    return graph


# ------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("spec", [*EXAMPLES.values(), "ring:2", "star:3", "grid:1x4", "random-regular:3:10"])
def test_numbers_agree_with_networkx_and_a_dense_eigensolver(spec: str) -> None:
    found = _json(spec)
    graph = _graph(found)
    degrees = [degree for _, degree in graph.degree()]
    assert found["links"] == graph.number_of_edges() == len(found["edges"])
    assert found["degree"] == {"min": min(degrees), "mean": pytest.approx(np.mean(degrees)), "max": max(degrees)}
    assert found["diameter"] == nx.diameter(graph)
    assert not found["diameter_is_upper_bound"]
    M = nx.laplacian_matrix(graph).toarray().astype(np.float64)
    mu = np.linalg.eigvalsh(M)
    lambda2 = 1 - mu[1] / mu[-1]
    assert found["lambda2"] == pytest.approx(lambda2, abs=1e-13)
    assert found["gap"] == pytest.approx(mu[1] / mu[-1], abs=1e-13)
    root = math.sqrt(1 - lambda2**2)
    x = (
        2 * mu[-1] / (mu[-1] - mu[1]) - 1 if mu[-1] - mu[1] > 1e-9 else math.inf
    )  # the image of 1 when [0, λ₂] is mapped to [−1, 1]
    rates = {
        "Gossip": lambda2,
        "FastMix": math.sqrt((1 - root) / (1 + root)),
        "Chebyshev": 1 / (x + math.sqrt(x * x - 1)),
    }
    for one in found["mixing"]:
        assert one["contraction"] == pytest.approx(rates[one["mixer"]], abs=1e-7)


@pytest.mark.parametrize("spec", ["ring:11", "erdos-renyi:0.3:15", "torus:3x5"])
@pytest.mark.parametrize("accuracy", [1e-3, 1e-10])
def test_the_number_of_rounds_reaches_the_accuracy(spec: str, accuracy: float) -> None:
    found = _json(spec, "--accuracy", str(accuracy))
    net = tp.from_edges(found["agents"], found["edges"])
    mixers: dict[str, type[Mixer]] = {"Gossip": Gossip, "FastMix": FastMix, "Chebyshev": Chebyshev}
    rounds = {one["mixer"]: one["rounds"] for one in found["mixing"]}
    assert rounds["Chebyshev"] <= rounds["FastMix"] <= rounds["Gossip"]
    assert rounds["Gossip"] == math.ceil(math.log(accuracy) / math.log(found["lambda2"]))
    values = np.linalg.eigvalsh(net.gossip_matrix)[:-1]
    for name, K in rounds.items():
        assert np.abs(response(mixers[name](), net, K, values)).max() <= accuracy * (1 + 1e-6)


@pytest.mark.parametrize("mixer", [FastMix(), Chebyshev()])
def test_the_contraction_per_round_is_that_of_a_late_round(mixer: Mixer) -> None:
    net = tp.torus(5, 10)
    shown = {one["mixer"]: one["contraction"] for one in _json("torus:5x10")["mixing"]}
    late = mixer.contraction(net, 401) / mixer.contraction(net, 400)
    assert shown[type(mixer).__name__] == pytest.approx(late, rel=3e-3)


def test_seed_rule_and_agents_are_used() -> None:
    found = _json("erdos-renyi:0.3", "--agents", "25", "--seed", "4", "--rule", "lazy-metropolis")
    net = tp.erdos_renyi(25, 0.3, seed=4, rule="lazy-metropolis")
    assert (found["name"], found["rule"], found["agents"]) == ("erdos-renyi(25, 0.3)", "lazy-metropolis", 25)
    assert found["lambda2"] == net.lambda2
    assert {tuple(edge) for edge in found["edges"]} == {tuple(sorted(edge)) for edge in net.to_networkx().edges()}
    assert _json("erdos-renyi:0.3", "--agents", "25")["edges"] == _json("erdos-renyi:0.3:25", "--seed", "0")["edges"]


def test_a_mixer_that_does_not_work_is_shown_with_the_reason() -> None:
    found = _json("ring:10", "--rule", "metropolis")
    gossip, fastmix, chebyshev = found["mixing"]
    assert found["lambda_min"] < 0
    assert (fastmix["contraction"], fastmix["rounds"]) == (None, None)
    assert "𝐋" in fastmix["why_not"]
    assert gossip["rounds"] > chebyshev["rounds"] > 1
    shown = _run("ring:10", "--rule", "metropolis")
    assert shown.exit_code == 0
    assert re.search(r"FastMix +— +—", shown.stdout)
    assert "Chebyshev" in " ".join(shown.stdout.split()).rpartition(fastmix["why_not"][:9])[2]


# ------------------------------------------------------------------------------------------------ table


def test_the_table_is_complete() -> None:
    done = _run("star:12", "--accuracy", "1e-6")
    assert done.exit_code == 0
    for pattern in (
        r"star\(12\) with paper weights",
        r"agents +12",
        r"links +11",
        r"neighbours +1 … 11 +1\.833 on average",
        r"diameter +2 ",
        r"λ₂ of 𝐋 +0\.916667",
        r"1 − λ₂ +0\.08333",
        r"rounds to 1e-06",
        r"Gossip +0\.916667 +159",
        r"FastMix +0\.654924",
        r"Chebyshev +0\.551982",
        r"neighbour, 22 in total",
    ):
        assert re.search(pattern, done.stdout), pattern
    assert "Links" not in done.stdout


def test_the_option_edges_lists_every_link_once() -> None:
    done = _run("erdos-renyi:0.4:12", "--edges")
    listed = {(int(i), int(j)) for i, j in re.findall(r"(\d+) – (\d+)", done.stdout)}
    net = tp.erdos_renyi(12, 0.4, seed=0)
    assert listed == {tuple(sorted(edge)) for edge in net.to_networkx().edges()}
    assert len(re.findall(r"\d+ – \d+", done.stdout)) == net.n_edges


@pytest.mark.parametrize("name", NAMES)
def test_a_single_agent_is_a_network(name: str) -> None:
    done = _run(name, "--agents", "1")
    assert done.exit_code == 0, done.stderr
    assert re.search(r"agents +1\b", done.stdout)
    found = _json(f"{name}:1")
    assert (found["links"], found["edges"], found["diameter"]) == (0, [], 0)


def test_the_diameter_of_a_large_network_is_marked_as_a_bound() -> None:
    done = _run("ring:1600", "--accuracy", "0.1")
    bound = re.search(r"diameter +≤ ([\d,]+)", done.stdout)
    assert bound is not None
    assert 800 <= int(bound[1].replace(",", "")) <= 1600


def test_the_examples_of_the_help_run() -> None:
    shown = _run("--help", columns=200).stdout
    for name in (*NAMES, *DIRECTED, *TIME_VARYING):
        assert name in shown
    commands = [line.strip(" │").split("|")[0].split() for line in shown.splitlines() if "deepca topology " in line]
    commands = [words[2:] for words in commands if words[:2] == ["deepca", "topology"]]
    assert len(commands) == 6
    for words in commands:
        arguments = [word for word in words if word not in ("--plot", "network.png")]
        assert _run(*arguments).exit_code == 0, words
    assert "topology" in CliRunner().invoke(app, ["--help"]).stdout


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rnig:5",), "ring"),
        (("ring",), "ring:"),
        (("ring:50", "--agents", "40"), "40"),
        (("ring", "--agents", "0"), "agent"),
        (("hypercube:12",), "hypercube:8 or hypercube:16"),
        (("torus:13",), "ring:13"),
        (("ring:5", "--rule", "equal"), "lazy-metropolis"),
        (("ring:5", "--accuracy", "2"), "accuracy"),
        (("ring:5", "--accuracy", "0"), "accuracy"),
        (("ring:5", "--accuracy", "nan"), "nan"),
        (("ring:5", "--plot", "net.pdf"), ".png or .svg"),
        (("ring:5", "--plot", "net"), ".png or .svg"),
        (("path:1001", "--plot", "net.png"), "1,000"),
        (("[/]:5",), "[/]"),
        (("periodic:ring:5+",), "periodic:ring:50+star:50"),  # not an emoji for :ring:
    ],
)
def test_a_mistake_is_reported_in_one_line_with_exit_code_2(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = _run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir()), "nothing may be left half-written"


def test_a_figure_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken.png").mkdir()
    (tmp_path / "file").write_text("a file", encoding="utf-8")
    for plot in ("taken.png", "file/net.png"):
        done = _run("ring:5", "--plot", str(tmp_path / plot))
        assert (done.exit_code, done.stdout) == (2, "")
        assert plot.split("/")[0] in done.stderr


# ------------------------------------------------------------------------------------------------ drawings


@pytest.mark.parametrize("spec", [*EXAMPLES.values(), "ring:1", "path:2", "torus:1x5", "hypercube:128"])
def test_the_figure_is_a_png(spec: str, tmp_path: Path) -> None:
    plot = tmp_path / "folder" / "net.png"
    assert _json(spec, "--plot", str(plot))["plot"] == str(plot)
    data = plot.read_bytes()
    assert data.startswith(PNG)
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1050
    assert 150 <= height <= 1200
    assert 2_000 < len(data) < 2_000_000


def test_the_figure_is_named_below_the_table(tmp_path: Path) -> None:
    plot = tmp_path / "net.PNG"
    done = _run("ring:5", "--plot", str(plot))
    assert f"Figure: {plot}" in done.stdout
    assert plot.read_bytes().startswith(PNG)


def test_svg_files_are_reproducible_and_number_up_to_sixty_agents(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert _run("random-regular:60", "--plot", str(tmp_path / f"{name}.svg")).exit_code == 0
    first = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert first == (tmp_path / "b.svg").read_text(encoding="utf-8")
    assert "<svg" in first
    assert all(f"<!-- {j} -->" in first for j in range(60))
    network_plots.draw(tp.ring(61), tmp_path / "c.svg")
    assert "<!-- 5 -->" not in (tmp_path / "c.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("m", [2, 5, 16, 64])
@pytest.mark.parametrize("name", NAMES)
def test_agents_are_drawn_apart_from_each_other(name: str, m: int) -> None:
    if name in ("grid", "torus", "hypercube") and m == 5:
        m = 4
    at = network_plots.layout(from_name(name, m, seed=0))
    assert at.shape == (m, 2)
    assert np.isfinite(at).all()
    between = np.linalg.norm(at[:, None] - at[None], axis=-1) + np.diag(np.full(m, np.inf))
    assert between.min() > 0.008 * np.ptp(at, axis=0).max()


def test_drawn_shapes_look_like_their_names() -> None:
    ring = network_plots.layout(tp.ring(8))
    np.testing.assert_allclose(np.linalg.norm(ring, axis=1), 1.0)
    star = network_plots.layout(tp.star(8))
    np.testing.assert_allclose(np.linalg.norm(star, axis=1), [0.0] + [1.0] * 7, atol=1e-15)
    grid = network_plots.layout(tp.grid(3, 4))
    assert [tuple(map(int, at)) for at in grid[[0, 3, 4, 11]]] == [(0, 0), (3, 0), (0, -1), (3, -2)]
    for topology in (tp.path(9), tp.path(40), tp.grid(3, 4)):  # neighbours lie side by side
        at = network_plots.layout(topology)
        for i, j in topology.to_networkx().edges():
            assert np.linalg.norm(at[i] - at[j]) == pytest.approx(1.0)


def test_custom_networks_can_be_drawn(tmp_path: Path) -> None:
    for net in (tp.from_edges(4, [(0, 1), (1, 2), (2, 3)], name="grid(9×9)"), tp.from_gossip_matrix([[1.0]])):
        network_plots.draw(net, tmp_path / "net.png")
        assert (tmp_path / "net.png").read_bytes().startswith(PNG)
    with pytest.raises(InvalidInput, match="100,000"):
        network_plots.draw(tp.complete(500), tmp_path / "many.png")
    assert not (tmp_path / "many.png").exists()


# ------------------------------------------------------------------------------------------------ completion


def test_names_and_rules_are_completed() -> None:
    assert complete_name("") == [*NAMES, *DIRECTED, *TIME_VARYING]
    assert complete_name("r") == ["ring", "random-regular", "random-digraph"]
    assert complete_name("matchings:") == ["matchings:torus:5x10"]
    assert complete_name("ring:") == ["ring:50"]
    assert complete_name("erdos-renyi:0") == ["erdos-renyi:0.5:50"]
    assert complete_name("nothing") == []
    assert complete_rule("") == list(get_args(tp.Rule))
    assert complete_rule("m") == ["metropolis", "max-degree"]


@pytest.mark.parametrize(
    ("words", "offered"), [("topology hyp", ["hypercube"]), ("topology ring --rule la", ["lazy-metropolis"])]
)
def test_the_shell_completes_names_and_rules(words: str, offered: list[str]) -> None:
    environment = {
        "_DEEPCA_COMPLETE": "complete_bash",
        "COMP_WORDS": f"deepca {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="deepca")
    assert done.stdout.split() == offered
