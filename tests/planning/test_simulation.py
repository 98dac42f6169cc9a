"""Test simulations of networks in time, from Python and from the command line."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from sklearn.datasets import load_digits

import deepca
from deepca import Links, Machines, Simulation, simulate
from deepca import topology as tp
from deepca._util.units import format_duration
from deepca.data.sources import ArraySource, Source
from deepca.errors import DataError, InvalidInput, ParameterError, PooledDataError
from deepca.planning.clock import TIME_PARTS
from deepca.planning.links_csv import EXAMPLE
from deepca.planning.simulation import DEFAULT_ALGORITHMS, surrogate_rows
from tests.support.errors import raises
from tests.support.helpers import json_of, run_cli
from tests.support.paths import ROOT

Array = npt.NDArray[np.float64]
HEADER = "from,to,latency_ms,mbit_per_s"
TRIANGLE = f"{HEADER}\na,b,10,100\nb,c,20,50\nc,a,30,25\n"


def _rows(m: int, n: int = 60, d: int = 10, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, d)) * 0.7 ** np.arange(d) + rng.standard_normal(d) for _ in range(m)]


def _sources(rows: list[Array]) -> list[Source]:
    return [ArraySource(X, f"agent {j}", None) for j, X in enumerate(rows)]


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "links.csv"
    path.write_text(TRIANGLE, encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------------- Python


def test_every_method_is_certified_and_has_the_pooled_answer() -> None:
    """Losses, jitter, stragglers and little bandwidth cost time but no accuracy."""
    rows = _rows(6)
    machines = Machines.of(6, slowdown=[1, 1, 5, 1, 1, 1], stall=0.1, pause=0.05)
    links = Links.of(tp.ring(6), latency=0.02, bandwidth=1e6, loss=0.05, jitter=0.01, machines=machines)
    found = simulate(_sources(rows), links, 3, gflops=0.01)
    assert [run.algorithm for run in found.runs] == list(DEFAULT_ALGORITHMS)
    values, vectors = scipy.linalg.eigh(np.cov(np.concatenate(rows).T))
    assert values[-3] > values[-4]
    for run in found.runs:
        network = deepca.TimedNetwork(links, gflops=0.01)
        model = deepca.decomposition.fit.fit(
            _sources(rows),
            network,
            deepca.decomposition.settings.Settings(n_components=3, algorithm=run.algorithm),
        ).decomposition
        assert scipy.linalg.subspace_angles(vectors[:, -3:], model.components.T).max() < 1e-8
        assert model.result.iterations == run.iterations
        assert run.certified
        assert run.error < 1e-8
        assert run.retransmissions > 0
        assert sum(run.parts.values()) == pytest.approx(run.seconds, rel=1e-9)
        assert sum(run.phases.values()) == pytest.approx(run.seconds, rel=1e-9)
        times, errors = np.array(run.curve).T
        assert len(times) == run.iterations
        assert (np.diff(times) >= 0.0).all()
        assert times[-1] <= run.seconds
        assert errors[-1] < 1e-8
    fastest = min(found.runs, key=lambda run: run.seconds)
    assert found.recommended == fastest.algorithm
    assert found[fastest.algorithm] is fastest


def test_a_slow_link_is_reported() -> None:
    topology = tp.ring(6)
    links = Links.of(topology)
    slow = ((links.senders == 2) & (links.receivers == 3)) | ((links.senders == 3) & (links.receivers == 2))
    names = ("a", "b", "c", "d", "e", "f")
    links = Links.of(topology, latency=np.where(slow, 0.5, 0.001), names=names)
    for run in simulate(_sources(_rows(6)), links, 2, algorithms=["accelerated", "deepca"]).runs:
        assert run.bottlenecks[0].kind == "link"
        assert run.bottlenecks[0].agents == ("c", "d")
        assert run.bottlenecks[0].seconds > 0.9 * run.seconds


def test_a_straggler_is_reported() -> None:
    machines = Machines.of(5, slowdown=[1, 1, 1, 30, 1])
    links = Links.of(tp.complete(5), latency=1e-4, machines=machines)
    [run] = simulate(_sources(_rows(5)), links, 2, algorithms=["krylov"], gflops=1e-4).runs
    assert str(run.bottlenecks[0]) == "agent 3"
    assert run.parts["stragglers"] > 0.9 * run.seconds


def test_the_parts_of_the_time_depend_on_the_links() -> None:
    """With latency only there is no transmission time; with bandwidth only there is no latency."""
    sources = _sources(_rows(8))
    far = simulate(sources, Links.of(tp.complete(8), latency=0.1), 2, algorithms=["krylov", "deepca"])
    assert far["krylov"].seconds < far["deepca"].seconds
    assert far["krylov"].parts["transmission"] == 0.0
    thin = simulate(sources, Links.of(tp.complete(8), bandwidth=1e5), 2, algorithms=["krylov", "deepca"])
    assert thin["deepca"].parts["latency"] == 0.0
    assert thin["deepca"].seconds == pytest.approx(thin["deepca"].parts["transmission"], rel=1e-3)


@pytest.mark.parametrize("name", ["torus:3x4", "star:12"])
def test_a_plan_and_a_simulation_agree_on_a_uniform_network(name: str) -> None:
    """A plan uses surrogates instead of rows, and omits computing and preparation."""
    values, topology = 0.8 ** np.arange(20.0), tp.from_name(name)
    planned = deepca.plan(topology, 3, eigenvalues=values, latency=0.05, bandwidth=1e9, rows_per_agent=400)
    links = Links.of(topology, latency=0.05, bandwidth=1e9)
    found = simulate(surrogate_rows(values, 12, 400, 0), links, 3, algorithms=["krylov", "accelerated", "deepca"])
    for run in found.runs:
        seconds = run.phases["iterations"] + run.phases["proof"]
        assert seconds == pytest.approx(planned[run.algorithm].total.seconds, rel=0.3), run.algorithm
    assert found.recommended == planned.recommended


def test_covariance_is_tried_on_request_and_never_recommended() -> None:
    links = Links.of(tp.complete(4), latency=0.1)
    found = simulate(_sources(_rows(4)), links, 2, algorithms=["covariance", "deepca"])
    assert found["covariance"].certified
    assert found["covariance"].seconds < found["deepca"].seconds
    assert found.recommended == "deepca"


def test_compressed_messages_save_bytes() -> None:
    """They save bytes in the iterations; a proof needs full precision."""
    links = Links.of(tp.ring(5), bandwidth=1e5)
    rows = _sources(_rows(5, d=60))
    plain, coded = (
        simulate(rows, links, 2, algorithms=["krylov", "deepca"], messages=messages)
        for messages in ("float64", "float32")
    )
    before, after = (found["deepca"] for found in (plain, coded))
    assert after.iterations <= before.iterations + 3
    assert after.phases["iterations"] < 0.7 * before.phases["iterations"]
    assert after.phases["proof"] == pytest.approx(before.phases["proof"], rel=1e-9)
    assert coded["krylov"].seconds == plain["krylov"].seconds


@pytest.mark.parametrize(
    ("more", "error", "parameter", "value"),
    [
        ({"n_components": 2.5}, ParameterError, "n_components", 2.5),
        ({"n_components": 11}, PooledDataError, "n_components", 11),
        ({"algorithms": []}, InvalidInput, "algorithms", None),
        ({"algorithms": ["magic"]}, ParameterError, "algorithm", "magic"),
        ({"tol": 2.0}, ParameterError, "tol", 2.0),
        ({"gflops": 0.0}, ParameterError, "gflops", 0.0),
        ({"gflops": 1e301}, ParameterError, "gflops", 1e301),
        ({"gflops": 1e-301}, ParameterError, "gflops", 1e-301),
        ({"gflops": 10**400}, ParameterError, "gflops", 10**400),
        ({"gflops": "fast"}, ParameterError, "gflops", "fast"),
    ],
)
def test_invalid_arguments_are_rejected(
    more: dict[str, Any], error: type[Exception], parameter: str, value: object
) -> None:
    given = {"n_components": 2, **more}
    with raises(error, parameter=parameter, value=value):
        simulate(_sources(_rows(4)), Links.of(tp.ring(4)), **given)


def test_every_agent_needs_rows() -> None:
    with raises(DataError, parameter="sources", value=3):
        simulate(_sources(_rows(3)), Links.of(tp.ring(4)), 2)
    with raises(InvalidInput, parameter="rows_per_agent", value=1):
        surrogate_rows(np.ones(3), 2, 1, 0)


def test_an_algorithm_that_was_not_simulated_raises() -> None:
    with raises(ParameterError, parameter="algorithm", value="deepca"):
        simulate(_sources(_rows(3)), Links.of(tp.ring(3)), 2, algorithms=["krylov"])["deepca"]


def test_names_of_version_0_1_still_work() -> None:
    simulation: Any = simulate(_sources(_rows(3)), Links.of(tp.ring(3)), 2, algorithms=["krylov"])
    with pytest.deprecated_call():
        assert simulation.trials is simulation.runs
    with pytest.deprecated_call():
        assert simulation.runs[0].resent == simulation.runs[0].retransmissions == 0


def test_rounds_apply_to_algorithms_that_gossip() -> None:
    rows = surrogate_rows(0.5 ** np.arange(6.0), 4, 50, 1)
    links = deepca.Links.of(deepca.topology.ring(4), latency=0.03)
    found = deepca.simulate(rows, links, 2, algorithms=["krylov", "deepca"], rounds=8)
    assert all(run.certified for run in found.runs)


def test_surrogate_rows_have_the_given_spectrum() -> None:
    values = 0.5 ** np.arange(6.0)
    rows = [source.matrix() for source in surrogate_rows(values, 4, 5000, 1)]
    pooled = np.concatenate([X for X in rows if isinstance(X, np.ndarray)])
    assert pooled.shape == (20_000, 6)
    found = scipy.linalg.eigh(np.cov(pooled.T))[0][::-1]
    np.testing.assert_allclose(found, values, rtol=5.0 * math.sqrt(2.0 / 20_000))


# ------------------------------------------------------------------------------------------------- command line


def _advice(found: dict[str, Any]) -> list[str]:
    return [run["advice"] for run in found["trials"]]


def _names(found: dict[str, Any]) -> list[str]:
    return [run["algorithm"] for run in found["trials"]]


def test_the_table_agrees_with_json(network: Path) -> None:
    arguments = ("simulate", "--links", str(network), "-k", "3")
    done = run_cli(*arguments, "--quiet", columns=80)
    assert done.exit_code == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    found = json_of(*arguments)
    assert _names(found) == list(DEFAULT_ALGORITHMS)
    for run in found["trials"]:
        line = next(row for row in done.stdout.splitlines() if row.lstrip(" ▸").startswith(f"{run['algorithm']} "))
        cells = line.replace("▸", "").split()
        assert cells[1:4] == [run["status"], str(run["iterations"]), f"{run['rounds'] + run['control_rounds']:,}"]
        assert format_duration(run["seconds"]) in line
        assert " – ".join(run["bottlenecks"][0]["agents"]) in line
    assert f"✔ {found['recommended']}: least simulated time" in done.stdout
    assert "links: 3 agents, 3 links" in done.stdout
    assert "3 components of 1,797 rows × 64 columns" in done.stdout


def test_json_has_every_field(network: Path) -> None:
    found = json_of(
        "simulate", "--links", str(network), "-k", "2", "--algorithms", "krylov, deepca", "--tolerance", "1e-6"
    )
    assert found.keys() == {*Simulation.__dataclass_fields__, "trials", "data", "plot"} - {"runs"}
    assert found["agents"] == ["a", "b", "c"]
    assert (found["dim"], found["n_rows"], found["components"], found["tol"]) == (64, 1797, 2, 1e-6)
    assert _names(found) == ["krylov", "deepca"]
    for run in found["trials"]:
        assert run["parts"].keys() == set(TIME_PARTS)
        assert run["phases"].keys() == {"preparation", "iterations", "proof"}
        assert run["status"] == "converged"
        assert run["bottlenecks"][0].keys() == {"kind", "agents", "seconds"}
        assert len(run["curve"]) == run["iterations"]


def test_the_printed_example_can_be_simulated(tmp_path: Path) -> None:
    shown = run_cli("simulate", "--example")
    assert shown.exit_code == 0
    assert shown.stdout == EXAMPLE
    (tmp_path / "links.csv").write_text(shown.stdout, encoding="utf-8")
    found = json_of("simulate", "--links", str(tmp_path / "links.csv"), "--algorithms", "krylov")
    assert found["agents"] == ["north", "south", "west", "coast", "island"]
    assert found["trials"][0]["bottlenecks"][0]["agents"] == ["coast", "island"]


def test_files_are_assigned_to_agents_by_name(network: Path, tmp_path: Path) -> None:
    """Their order does not matter: the slow agent is the one with many rows."""
    rows = _rows(3, n=50, d=6)
    for name, X in zip("abc", rows, strict=True):
        np.save(tmp_path / f"{name}.npy", np.tile(X, (200, 1)) if name == "c" else X)
    files = [str(tmp_path / f"{name}.npy") for name in "cab"]
    words = ("simulate", "--links", str(network), "-k", "2", "--algorithms", "krylov", "--compute-gflops", "1e-4")
    found = json_of(*words, *files)
    assert found["n_rows"] == 50 + 50 + 10_000
    worst = found["trials"][0]["bottlenecks"][0]
    assert (worst["kind"], worst["agents"]) == ("agent", ["c"])


def test_one_file_is_split_and_agents_may_be_slow(network: Path, tmp_path: Path) -> None:
    X = load_digits().data
    np.save(tmp_path / "all.npy", X)
    (tmp_path / "agents.csv").write_text("agent,slowdown\nb,1000\n", encoding="utf-8")
    words = ("simulate", str(tmp_path / "all.npy"), "--links", str(network), "--algorithms", "krylov")
    fast, slow = json_of(*words), json_of(*words, "--machines", str(tmp_path / "agents.csv"))
    assert fast["n_rows"] == len(X)
    assert slow["trials"][0]["seconds"] > fast["trials"][0]["seconds"]
    assert slow["trials"][0]["parts"]["stragglers"] > 0.0
    assert fast["trials"][0]["parts"]["stragglers"] == 0.0


def test_a_spectrum_replaces_data(network: Path, tmp_path: Path) -> None:
    (tmp_path / "values.txt").write_text("8\n4\n2\n1\n", encoding="utf-8")
    words = ("simulate", "--links", str(network), "-k", "2", "--algorithms", "krylov")
    found = json_of(*words, "--eigenvalues", str(tmp_path / "values.txt"), "--dim", "12", "--rows-per-agent", "50")
    assert (found["dim"], found["n_rows"]) == (12, 150)
    assert "values.txt" in found["data"]
    assert json_of(*words, "--dim", "9")["n_rows"] == 3000


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_figure_is_written_and_named(network: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"picture.{suffix}"
    words = ("simulate", "--links", str(network), "-k", "2", "--algorithms", "krylov,deepca", "--plot", str(path))
    done = run_cli(*words, "--quiet")
    assert done.exit_code == 0, done.stderr
    assert path.stat().st_size > 10_000
    assert f"Figure: {path}" in done.stdout.replace("\n", "")


def test_a_network_without_latency_takes_no_time(tmp_path: Path) -> None:
    """Names are not interpreted as markup."""
    (tmp_path / "zero.csv").write_text(f'{HEADER}\n[red]a,b,0,inf\nb,"c,d",0,inf\n', encoding="utf-8")
    words = ("simulate", "--links", str(tmp_path / "zero.csv"), "--algorithms", "krylov", "--compute-gflops", "inf")
    found = json_of(*words)
    assert found["agents"] == ["[red]a", "b", "c,d"]
    assert found["trials"][0]["seconds"] == 0.0
    assert found["trials"][0]["bottlenecks"] == []
    assert run_cli(*words, "--quiet").exit_code == 0
    done = run_cli(*words, "--plot", str(tmp_path / "zero.png"), "--quiet")
    assert done.exit_code == 2
    assert done.stderr.startswith("error:")
    assert not (tmp_path / "zero.png").exists()


def test_without_a_certificate_the_exit_code_is_1(network: Path) -> None:
    done = run_cli("simulate", "--links", str(network), "--algorithms", "deepca", "--max-iter", "3", "--quiet")
    assert done.exit_code == 1
    assert "✘ no method" in done.stdout
    assert "out of iterations" in done.stdout
    assert "--max-iter" in done.stdout
    assert "max_iter" not in done.stdout
    assert "▸" not in done.stdout
    printed = json.loads(run_cli("simulate", "--links", str(network), "--max-iter", "2", "--json").stdout)
    assert all("max_iter" not in text and "deepca." not in text for text in (printed["reason"], *_advice(printed)))


def test_covariance_reaches_the_tolerance_but_is_not_recommended(network: Path) -> None:
    done = run_cli("simulate", "--links", str(network), "--algorithms", "covariance", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["recommended"] is None
    assert found["trials"][0]["certified"]
    assert "covariance" in found["reason"]


def test_a_missing_file_of_agents_is_reported_with_its_columns(network: Path) -> None:
    done = run_cli("simulate", "--links", str(network), "--machines", "nowhere.csv")
    assert done.exit_code == 2
    assert "agent,slowdown" in done.stderr
    assert "--example" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--links"),
        (("--links", "nowhere.csv"), "nowhere.csv"),
        (("--links", "{links}", "-k", "65"), "at most 64"),
        (("--links", "{links}", "--algorithms", "magic"), "magic"),
        (("--links", "{links}", "--algorithms", ","), "algorithms"),
        (("--links", "{links}", "--plot", "a.pdf"), "a.pdf"),
        (("--links", "{links}", "--dim", "5", "rows.npy"), "--dim"),
        (("--links", "{links}", "--label-column", "class"), "--label-column"),
        (("--links", "{links}", "--rows-per-agent", "5"), "--dim"),
        (("--links", "{links}", "--dim", "5", "-k", "2", "--rows-per-agent", "0"), "--rows-per-agent 0"),
        (("--links", "{links}", "rows.npy"), "rows.npy"),
        (("--links", "{links}", "rows.npy", "more.npy"), "2 files for 3 agents"),
        (("--links", "{links}", "rows.npy", "rows.npy", "more.npy"), "twice"),
        (("--links", "{links}", "--machines", "nowhere.csv"), "nowhere.csv"),
        (("--links", "{links}", "--compute-gflops", "0"), "--compute-gflops 0"),
        (("--links", "{links}", "--messages", "int8"), "float32"),
        (("--links", "{bad}"), "line 2, column latency_ms"),
    ],
)
def test_errors_are_printed_with_exit_code_2(
    arguments: tuple[str, ...], words: str, network: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text(f"{HEADER}\na,b,-3,1\n", encoding="utf-8")
    places = {"links": str(network), "bad": str(tmp_path / "bad.csv")}
    done = run_cli("simulate", *(word.format(**places) for word in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error:")
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_help_shows_examples_and_options() -> None:
    done = run_cli("simulate", "--help")
    assert done.exit_code == 0
    assert done.stdout.count("  deepca simulate") == 4
    for option in ("--links", "--machines", "--algorithms", "--compute-gflops", "--example", "--plot", "--json"):
        assert option in done.stdout


def test_a_separate_process_prints_json_only(network: Path, tmp_path: Path) -> None:
    call = ["simulate", "--links", str(network), "--algorithms", "krylov", "--compute-gflops", "inf", "--json"]
    command = [sys.executable, "-W", "error", "-c", "from deepca.cli import main; main()", *call]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["gflops"] is None


# ------------------------------------------------------------------------------------------------------ the page


def test_the_documented_output_is_correct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    [commands] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    [agents] = re.findall(r"```csv\n(.*?)```", page, re.DOTALL)
    documented = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    Path("agents.csv").write_text(agents, encoding="utf-8")
    example, run = (shlex.split(line)[1:] for line in commands.splitlines())
    assert example[-2:] == [">", "links.csv"]
    Path("links.csv").write_text(run_cli(*example[:-2]).stdout, encoding="utf-8")
    done = run_cli(*run, "--quiet", columns=90)
    assert done.exit_code == 0, done.stderr
    printed = [line.split() for line in done.stdout.splitlines() if line.strip(" ─")]
    shown = [line.split() for line in documented.splitlines() if line.strip(" ─")]
    for there, here in zip(shown, printed, strict=False):
        assert len(there) == len(here), there
        for word, other in zip(there, here, strict=True):
            assert word == other or _number(word) == pytest.approx(_number(other), rel=0.1, abs=2.0), there
    assert Path("simulate.png").exists()


def _number(word: str) -> float:
    """Return the number in a cell of a table, or NaN for other text."""
    return float(word.strip("%").replace(",", "")) if re.fullmatch(r"[\d.,]+%?", word) else math.nan


def test_private_sums_are_simulated() -> None:
    links = deepca.Links.of(deepca.topology.ring(4), latency=0.03)
    rows = surrogate_rows(0.5 ** np.arange(6.0), 4, 50, seed=0)
    found, private = (deepca.simulate(rows, links, 2, private=private) for private in (False, True))
    assert [run.algorithm for run in private.runs] == ["krylov"]
    assert private.recommended == "krylov"
    assert (private["krylov"].error, private["krylov"].rounds) == (found["krylov"].error, found["krylov"].rounds)
    assert private["krylov"].bytes_per_agent > found["krylov"].bytes_per_agent
    with raises(ParameterError, parameter="algorithms", value="deepca"):
        deepca.simulate(rows, links, 2, private=True, algorithms=["krylov", "deepca"])
