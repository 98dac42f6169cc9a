"""Test ``deepca`` itself and ``deepca demo``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from typer.testing import CliRunner

import deepca.reproduction.demo
from deepca.cli.app import app

PNG = b"\x89PNG\r\n\x1a\n"


def deepca_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", "from deepca.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


def test_demo_prints_a_table_and_saves_a_figure(tmp_path: Path) -> None:
    """Run it as a process; the tests below call the same command within this one."""
    done = deepca_command("demo", "--agents", "20", "--components", "3", "--rounds", "6", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("DeEPCA", "DePCA", "CPCA", "iter.", "rounds", "proven", "converged", "Explained variance"):
        assert word in done.stdout
    assert (tmp_path / "demo-out" / "convergence.png").read_bytes().startswith(PNG)


def test_demo_prints_nothing_but_json_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["demo", "--agents", "10", "-k", "2", "--json", "--quiet", "--out", "here"])
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["method"] for row in rows] == ["DeEPCA", "DeEPCA, as printed", "DePCA", "CPCA, pooled"]
    assert rows[0]["tan_theta"] <= rows[0]["proven"] <= 1e-10
    assert done.stderr == ""


def test_demo_agrees_with_pooled_scikit_learn() -> None:
    found = deepca.reproduction.demo.run(agents=30, k=3, K=6, tol=1e-10)
    by_name = {row.method: row for row in found.rows}
    assert by_name["DeEPCA"].status == by_name["DeEPCA, as printed"].status == "converged"
    assert by_name["DeEPCA"].tan_theta <= by_name["DeEPCA"].proven <= 1e-10
    assert by_name["DePCA"].status == "disagreement"
    assert by_name["DePCA"].tan_theta <= by_name["DePCA"].proven
    assert by_name["DePCA"].tan_theta >= 1e-5
    assert by_name["DePCA"].rounds == 6 * by_name["DePCA"].iterations
    pooled = PCA(3, svd_solver="full").fit(load_digits().data)
    np.testing.assert_allclose(found.variance, pooled.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--components", "65"), "--components 65"),
        (("--components", "0"), "--components 0"),
        (("--agents", "1798"), "1798"),
        (("--agents", "0"), "agent"),
        (("--rounds", "0"), "--rounds 0"),
        (("--rounds", "1e20"), "--rounds 1e20: expected a whole number from 1 to 100000"),
        (("--tolerance", "2"), "--tolerance 2:"),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_exit_code_2(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["demo", "--quiet", *arguments])
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir()), "nothing may be left half-written"


def test_an_output_folder_that_cannot_be_created_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    done = CliRunner().invoke(app, ["demo", "--quiet", "--agents", "5", "--out", "taken"])
    assert done.exit_code == 2
    assert "taken" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_and_version_are_printed() -> None:
    assert "Examples" in CliRunner().invoke(app, ["demo", "--help"]).stdout
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == f"deepca {deepca.__version__}"
    assert "demo" in CliRunner().invoke(app, ["--help"]).stdout


def test_importing_the_library_imports_no_optional_package(tmp_path: Path) -> None:
    code = (
        "import sys, deepca; "
        "extras = {'typer', 'rich', 'matplotlib', 'sklearn', 'pandas'} & {name.split('.')[0] for name in sys.modules}; "
        "sys.exit(', '.join(sorted(extras)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_names_a_missing_extra(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('No module named typer', name='typer')")
    done = subprocess.run(
        [sys.executable, "-c", "from deepca.cli import main; main()", "demo"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "deepca[cli]" in done.stderr
