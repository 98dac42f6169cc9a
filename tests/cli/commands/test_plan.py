"""Test ``deepca plan``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine

from deepca._util.units import format_duration
from deepca.planning import rehearsal
from deepca.planning.planner import PLANNED_ALGORITHMS, plan
from tests.support.helpers import json_of, run_cli

LINK = ("--latency", "30ms", "--bandwidth", "30Mbit")
SMALL = ("--topology", "ring:6", "--dim", "20", "-k", "2", *LINK)


def _run(*arguments: str, columns: int = 100) -> Any:
    return run_cli("plan", *arguments, columns=columns)


def _json(*arguments: str) -> dict[str, Any]:
    return json_of("plan", *arguments)


def _row(printed: str, method: str) -> str:
    return next(line for line in printed.splitlines() if line.lstrip(" ▸").startswith(method))


# --------------------------------------------------------------------------------------------------------- table


def test_the_table_agrees_with_the_function() -> None:
    done = _run(*SMALL, "--quiet")
    assert done.exit_code == 0, done.stderr
    made = plan("ring:6", 2, dim=20, latency="30ms", bandwidth="30Mbit", tol=1e-10)
    for prediction in made.predictions:
        cells = _row(done.stdout, prediction.algorithm).replace("▸", "").split()
        assert cells[1:5] == [
            str(prediction.iterations),
            str(prediction.iteration_cost.rounds),
            str(prediction.iteration_cost.control_rounds),
            str(prediction.certificate_cost.all_rounds),
        ]
        assert done.stdout.count(format_duration(prediction.total.seconds))
    marked = [line for line in done.stdout.splitlines() if "▸" in line]
    assert len(marked) == 1
    assert str(made.recommended) in marked[0]
    assert f"✔ {made.recommended}: least time" in done.stdout
    assert "6 agents, 6 links of 30 ms and 30 Mbit/s" in done.stdout
    assert "2 components of 20 columns, tolerance 1e-10" in done.stdout


@pytest.mark.parametrize("columns", [80, 100])
def test_the_table_fits_the_terminal(columns: int) -> None:
    """Even the largest numbers are shown in full."""
    done = _run(
        "--topology", "ring:30", "--dim", "60000", "-k", "3", "--latency", "2s", "--bandwidth", "9kbit", columns=columns
    )
    assert done.exit_code == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert "…" not in done.stdout
    assert "of the 60,000 columns" in " ".join(done.stdout.split())


def test_methods_are_sorted_by_time() -> None:
    done = _run(*SMALL)
    order = [
        line.lstrip(" ▸").split()[0]
        for line in done.stdout.splitlines()
        if line.lstrip(" ▸").startswith(PLANNED_ALGORITHMS)
    ]
    made = plan("ring:6", 2, dim=20, latency="30ms", bandwidth="30Mbit", tol=1e-10)
    assert order[: len(PLANNED_ALGORITHMS)] == sorted(PLANNED_ALGORITHMS, key=lambda method: made[method].total.seconds)


def test_a_guessed_spectrum_is_marked_as_a_guess() -> None:
    printed = " ".join(_run(*SMALL).stdout.split())
    assert "λ_i = 1/i" in printed
    assert "guess" in printed
    assert "--eigenvalues" in printed
    assert "1,000 rows each" in printed


def test_covariance_is_recommended_only_if_allowed() -> None:
    printed = " ".join(_run(*SMALL).stdout.split())
    assert "reveals every site's covariance" in printed
    assert _json("--topology", "ring:6", "--dim", "4", "-k", "1", *LINK)["recommended"] != "covariance"
    done = _json("--topology", "ring:6", "--dim", "4", "-k", "1", *LINK, "--allow-covariance")
    times = {one["method"]: one["total"]["seconds"] for one in done["predictions"]}
    assert done["recommended"] == min(times, key=lambda method: times[method])


def test_sums_along_trees_are_not_recommended_for_unreliable_networks() -> None:
    assert _json(*SMALL)["recommended"] == "krylov"
    done = _run(*SMALL, "--unreliable")
    assert "▸" not in _row(done.stdout, "krylov")
    assert "tolerance 1e-10, messages may be lost" in done.stdout


# ---------------------------------------------------------------------------------------------------------- JSON


def test_json_is_complete() -> None:
    found = _json(*SMALL, "--tolerance", "1e-6", "--rows-per-agent", "50", "--messages", "float32")
    assert (found["topology"], found["agents"], found["dim"], found["components"]) == ("ring(6)", 6, 20, 2)
    assert (found["latency_seconds"], found["bandwidth_bits_per_second"]) == (0.03, 30e6)
    assert (found["tol"], found["rows_per_agent"], found["messages"]) == (1e-6, 50, "float32")
    assert [one["method"] for one in found["predictions"]] == list(PLANNED_ALGORITHMS)
    for one in found["predictions"]:
        assert one["reaches"]
        rounds = one["total"]["rounds"] + one["total"]["control_rounds"]
        assert rounds == sum(one[part][kind] for part in ("running", "proof") for kind in ("rounds", "control_rounds"))
        assert 0.03 * rounds < one["total"]["seconds"]
        assert one["total"]["bytes_per_agent"] <= one["total"]["busiest_bytes"]
    assert found["recommended"] in PLANNED_ALGORITHMS
    assert found["reason"]


def test_a_process_prints_nothing_but_json(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", "from deepca.cli import main; main()", "plan", *SMALL, "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["recommended"] in PLANNED_ALGORITHMS
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------- the spectrum


def test_eigenvalues_are_read_from_a_file(tmp_path: Path) -> None:
    values = 0.5 ** np.arange(8.0)
    (tmp_path / "values.txt").write_text("\n".join(map(str, values[::-1])))
    found = _json("--topology", "ring:6", "-k", "2", *LINK, "--eigenvalues", str(tmp_path / "values.txt"))
    made = plan("ring:6", 2, eigenvalues=values, latency="30ms", bandwidth="30Mbit", tol=1e-10)
    assert found["spectrum"] == "8 from values.txt"
    assert [one["iterations"] for one in found["predictions"]] == [one.iterations for one in made.predictions]
    more = _json("--topology", "ring:6", "-k", "2", "--dim", "30", *LINK, "--eigenvalues", str(tmp_path / "values.txt"))
    assert more["dim"] == 30
    assert more["spectrum"] == "8 from values.txt, 22 more continued geometrically"


def test_eigenvalues_are_computed_from_a_probe(tmp_path: Path) -> None:
    X = load_wine().data
    np.save(tmp_path / "wine.npy", X)
    found = _json("--topology", "ring:6", "-k", "2", *LINK, "--probe", str(tmp_path / "wine.npy"))
    assert (found["dim"], found["rows_per_agent"]) == (13, 178)
    assert "wine.npy, 178 rows × 13 columns" in found["spectrum"]
    values = np.linalg.eigvalsh(np.cov(X.T))
    made = plan("ring:6", 2, eigenvalues=values, latency="30ms", bandwidth="30Mbit", rows_per_agent=178, tol=1e-10)
    counted = {one["method"]: one["total"]["rounds"] for one in found["predictions"]}
    assert counted == {one.algorithm: one.total.rounds for one in made.predictions}
    scaled = _json("--topology", "ring:6", "-k", "2", *LINK, "--probe", str(tmp_path / "wine.npy"), "--scale")
    assert scaled["spectrum"].endswith(", scaled")
    assert {one["method"]: one["total"]["rounds"] for one in scaled["predictions"]} != counted


def test_the_label_column_of_a_probe_is_excluded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{a},{b},{c},site" for a, b, c in rng.standard_normal((40, 3)) * [3.0, 2.0, 1.0]]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,where", *rows]))
    probe = ("--topology", "ring:4", "-k", "1", *LINK, "--probe", str(tmp_path / "rows.csv"))
    assert _json(*probe, "--label-column", "where")["dim"] == 3
    assert _run(*probe).exit_code == 2


# ---------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--topology", "ring:6", "--dim", "20", "-k", "2", "--latency", "30", "--bandwidth", "1Gbit"), "30ms"),
        (("--topology", "ring:6", "--dim", "20", "-k", "2", "--latency", "1s", "--bandwidth", "fast"), "30Mbit"),
        (("--topology", "rnig:6", "--dim", "20", "-k", "2", *LINK), "ring"),
        (("--topology", "ring", "--dim", "20", "-k", "2", *LINK), "agents"),
        (("--topology", "ring:6", "--dim", "20", "-k", "20", *LINK), "20"),
        (("--topology", "ring:6", "-k", "2", *LINK), "--dim"),
        ((*SMALL, "--tolerance", "2"), "--tolerance 2"),
        ((*SMALL, "--messages", "int8"), "float32"),
        ((*SMALL, "--rows-per-agent", "0"), "row"),
        ((*SMALL, "--eigenvalues", "a.txt", "--probe", "b.npy"), "give one of them"),
        ((*SMALL, "--eigenvalues", "missing.txt"), "missing.txt"),
        ((*SMALL, "--probe", "missing.npy"), "missing.npy"),
        ((*SMALL, "--scale"), "--probe"),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = _run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert words in " ".join(done.stderr.split())
    assert done.stderr.startswith("error:")
    assert "Traceback" not in done.stderr


def test_a_dimension_that_contradicts_the_probe_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "wine.npy", load_wine().data)
    done = _run(*SMALL, "--probe", str(tmp_path / "wine.npy"))
    assert done.exit_code == 2
    assert "--dim 20: " in " ".join(done.stderr.split())


def test_without_a_recommendation_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MIN_REHEARSED_ITERATIONS", 16), ("MAX_REHEARSED_ITERATIONS", 16), ("MAX_ITERATIONS", 0)):
        monkeypatch.setattr(rehearsal, name, value)
    done = _run("--topology", "ring:6", "--dim", "60", "-k", "20", *LINK, "--unreliable", "--quiet")
    assert done.exit_code == 1
    assert "▸" not in done.stdout
    assert "✘" in done.stdout
    assert _row(done.stdout, "deepca").split()[1:] == ["—"] * 7


def test_help_shows_options_and_examples() -> None:
    done = _run("--help")
    assert done.exit_code == 0
    assert done.stdout.count("  deepca plan --topology") == 2
    for option in ("--eigenvalues", "--probe", "--latency", "--bandwidth", "--allow-covariance", "--unreliable"):
        assert option in done.stdout
