"""Test that all snippets, examples and commands of the documentation run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from typer.testing import CliRunner

import deepca
from deepca.cli.app import app
from studies.adversary.__main__ import parser as options
from tests.support.mpi_jobs import Job, run_job
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for i, match in enumerate(
            re.finditer(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        ):
            found.append((f"{page.name}-{i}", match.group(1)))
    return found


PYTHON, SHELL = _blocks("python"), _blocks("sh")


def _run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


def test_the_pages_have_snippets() -> None:
    assert len(PYTHON) >= 5
    assert SHELL


@pytest.mark.parametrize(("name", "code"), PYTHON, ids=[name for name, _ in PYTHON])
def test_python_snippets_run(name: str, code: str, tmp_path: Path) -> None:
    done = _run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, f"{name}:\n{done.stderr}"


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script: Path, tmp_path: Path) -> None:
    done = _run(sys.executable, "-W", "error", str(script), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run them in order, in an empty folder, and check their output files."""
    monkeypatch.chdir(tmp_path)
    lines = [line for name, code in SHELL if name.startswith("README") for line in code.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith(("deepca ", "mpiexec "))]
    assert {words[1] for words in commands} >= {"sample", "fit", "inspect", "transform", "topology", "trial", "demo"}
    for words in commands:
        if "mpi" in words:
            job = _on_ranks(words, tmp_path)
            assert job.code == 0, job.said
        else:
            _invoke(*words[1:])
        for option in ("-o", "--out", "--plot"):
            if option in words:
                assert (tmp_path / words[words.index(option) + 1]).exists()


def test_the_setup_of_the_readme_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow it up to the start of the agent, which needs a certificate from the authority."""
    monkeypatch.chdir(tmp_path)
    blocks = [code for name, code in _blocks("text") if name.startswith("README") and "deepca init" in code]
    [example, init, join, run] = [shlex.split(line, comments=True)[1:] for line in blocks[0].splitlines()]
    assert example[-2:] == [">", "network.toml"]
    shown = CliRunner().invoke(app, example[:-2])
    Path("network.toml").write_text(shown.stdout, encoding="utf-8")
    _invoke(*init)
    _invoke(*join)
    started = CliRunner().invoke(app, run)
    assert started.exit_code == 2
    assert "site.pem" in started.output or "rows" in started.output


def test_the_plans_of_the_guides_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [code for name, code in SHELL if name.startswith("guides") and "deepca plan" in code]
    assert blocks
    for line in blocks[0].splitlines():
        done = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
        assert done.exit_code == 0, f"{line}:\n{done.output}"


def test_the_commands_of_the_sites_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run them from the example network file to the result of an agent, with keys created at the site."""
    monkeypatch.chdir(tmp_path)
    lines = [line for name, code in SHELL if name.startswith("sites") for line in code.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert [words[0] for words in commands][:3] == ["sample", "trial", "demo"]  # run by the test of the README
    network = """
        name = "two-hospitals"
        components = 2
        topology = "path"
        privacy = "open"
        patience = "10s"
        [[sites]]
        name = "north"
        address = "127.0.0.1:{}"
        [[sites]]
        name = "south"
        """
    Path("network.toml").write_text(network.format(_free_port()), encoding="utf-8")
    rows = np.random.default_rng(0).standard_normal((60, 5)) * np.arange(1.0, 6.0)
    monkeypatch.setattr("deepca.cli.commands.join.is_interactive", lambda: True)  # the operator confirms
    for words in commands[3:]:
        if words[0] in ("doctor", "agent", "audit"):
            continue
        _invoke(*words, typed="y\n")
        if words[:2] == ["init", "network.toml"]:
            for site, part in (("north", rows[:20]), ("south", rows[20:])):
                shutil.copytree(Path("kits", site), site)
                np.save(f"{site}/rows.npy", part)
                text = Path(site, "site.toml").read_text(encoding="utf-8")
                text = text.replace("# min_sites = 3", "min_sites = 2")
                Path(site, "site.toml").write_text(
                    re.sub(r"(?m)^data = .*$", 'data = "rows.npy"', text), encoding="utf-8"
                )
    _invoke("join", "south/site.toml")
    _invoke("join", "--sign", "south/request.csr", "--authority", "kits/authority", typed="y\n")
    _invoke("join", "south/site.toml", "--certificate", "south/south.pem")
    checked = CliRunner().invoke(app, ["doctor", "north/site.toml"])
    assert checked.exit_code in (0, 1), checked.output  # no other agent is running yet
    agents = [
        subprocess.Popen([sys.executable, "-m", "deepca", "agent", "run", f"{site}/site.toml", "--deadline", "120s"])
        for site in ("south", "north")
    ]
    assert [agent.wait(150) for agent in agents] == [0, 0]
    assert Path("north/model.npz").read_bytes() == Path("south/model.npz").read_bytes()
    shown = CliRunner().invoke(app, ["inspect", "north/model.npz"]).output
    assert "run 1: rows of north, south" in shown
    audits = [words for words in commands if words[0] == "audit"]
    assert len(audits) == 3
    for words in audits:
        _invoke(*words)
    pooled = PCA(2).fit(rows)
    assert np.abs(deepca.load("north/model.npz").components - pooled.components_).max() < 1e-10


def test_the_commands_of_the_cluster_page_run(tmp_path: Path) -> None:
    """Run them as in a container or on a laptop, with the environment that the page gives for those."""
    lines = [line for name, code in SHELL if name.startswith("cluster.md") for line in code.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert [words[:2] for words in commands][:2] == [
        ["deepca", "demo"],
        ["deepca", "sample"],
    ]  # demo: run by the test of the README
    for words in commands[1:]:
        if words[1] != "plan":
            job = _on_ranks(words, tmp_path)
            assert job.code == 0, job.said
    assert _from_digits(tmp_path / "model.npz", 5) < 1e-9
    assert not list((tmp_path / "checkpoints").rglob("*.checkpoint"))
    for line in _lines_of("cluster.md", "text", "python -m mpi4py --mpi"):
        job = _on_ranks(shlex.split(line), tmp_path)
        assert job.code == 0, job.said
        assert "mpi" in job.stdout.lower()


def test_the_plans_of_the_cluster_page_are_correct() -> None:
    commands = [shlex.split(line)[1:] for line in _lines_of("cluster.md", "sh", "deepca plan")]
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    said = re.findall(r"(?m)^\| `([\w.:-]+)`[^|]*\| (\d+) \| ([\d.]+) MB \|$", page)
    assert [words[words.index("--topology") + 1] for words in commands] == [name for name, _, _ in said]
    for words, (name, rounds, megabytes) in zip(commands, said, strict=True):
        found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
        [krylov] = [one for one in found["predictions"] if one["method"] == "krylov"]
        # a sum per product, one for their units, and a broadcast of the first block down the tree
        units = int(rounds) // 2 if name.startswith("hypercube") else int(rounds)
        assert krylov["running"]["rounds"] == int(rounds) * krylov["iterations"] + units + int(rounds) // 2, name
        assert krylov["total"]["busiest_bytes"] / 1e6 == pytest.approx(float(megabytes), rel=0.1), name


def test_the_snippets_of_the_cluster_page_run_on_four_ranks(tmp_path: Path) -> None:
    [command] = _lines_of("cluster.md", "text", "mpiexec")
    estimator, below = [code for name, code in PYTHON if name.startswith("cluster.md")]
    for code in (estimator, below):
        (tmp_path / "rows.py").write_text(code, encoding="utf-8")
        job = _on_ranks(shlex.split(command), tmp_path)
        assert job.code == 0, job.said
    mine = [np.random.default_rng(rank).standard_normal((1000, 50)) * np.linspace(3, 1, 50) for rank in range(4)]
    pooled = PCA(3).fit(np.concatenate(mine))
    assert np.abs(deepca.load(tmp_path / "model.npz").components - pooled.components_).max() < 1e-9


def test_the_mpi_example_runs_on_four_ranks() -> None:
    script = (ROOT / "examples" / "mpi_rows.py").read_text(encoding="utf-8")
    [command] = re.findall(r"(?m)^ +(mpiexec .*)$", script)
    job = _on_ranks(shlex.split(command), ROOT)
    assert job.code == 0, job.said
    found = re.findall(r"rank (\d): components (\w+), equal to scikit-learn's", job.stdout)
    assert sorted(rank for rank, _ in found) == ["0", "1", "2", "3"]
    assert len({digest for _, digest in found}) == 1


def test_the_batch_script_of_the_cluster_page_runs(tmp_path: Path) -> None:
    """Run it with four ranks of mpiexec in place of srun."""
    [script] = [code for name, code in _blocks("bash") if name.startswith("cluster.md")]
    (tmp_path / "pca.sh").write_text(script, encoding="utf-8")
    (tmp_path / "home" / "pca" / "bin").mkdir(parents=True)
    (tmp_path / "home" / "pca" / "bin" / "activate").touch()
    stand_ins = {
        "module": 'echo "$@" > module.txt',
        "srun": 'while [ "${1#-}" != "$1" ]; do echo "$1" >> srun.txt; shift; done\nexec mpiexec -n 4 "$@"',
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    [sample] = _lines_of("cluster.md", "sh", "deepca sample")
    assert _on_ranks(shlex.split(sample), tmp_path).code == 0
    job = _on_ranks(["bash", "pca.sh"], tmp_path, {"HOME": str(tmp_path / "home")}, first=tmp_path)
    assert job.code == 0, job.said
    assert (tmp_path / "srun.txt").read_text().split() == ["--mpi=pmix", "--cpu-bind=cores", "--kill-on-bad-exit=1"]
    assert "hypercube(3)" in job.stdout
    assert _from_digits(tmp_path / "model.npz", 5) < 1e-9


def test_extras_named_by_pages_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [
        extra
        for page in PAGES
        for extras in re.findall(r"pip install '(?:deepca|\.)\[([\w,]+)\]'", page.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    ]
    assert "mpi" in named
    assert set(named) <= project["optional-dependencies"].keys()


def _lines_of(page: str, language: str, begin: str) -> list[str]:
    """Return the lines in code blocks of a page that begin with some text."""
    blocks = [code for name, code in _blocks(language) if name.startswith(f"{page}-")]
    return [line for code in blocks for line in code.splitlines() if line.startswith(begin)]


def _on_ranks(words: list[str], cwd: Path, more: dict[str, str] | None = None, *, first: Path | None = None) -> Job:
    """Run a command that starts ranks; scripts in ``first``, and those of this Python, come first on PATH."""
    exported = [word for line in _lines_of("cluster.md", "text", "export ") for word in shlex.split(line)[1:]]
    assert len(exported) == 3  # two variables to run as root, and one to allow more ranks than cores
    found = [*([first] if first else []), Path(sys.executable).parent, os.environ["PATH"]]
    path = {"PATH": os.pathsep.join(map(str, found))}
    return run_job(*words, cwd=cwd, more=dict(word.split("=", 1) for word in exported) | path | (more or {}))


def _from_digits(model: Path, k: int) -> float:
    """Return the largest difference from scikit-learn's components of the pooled digits, including signs."""
    return float(np.abs(deepca.load(model).components - PCA(k).fit(load_digits().data).components_).max())


def _invoke(*words: str, typed: str | None = None) -> None:
    done = CliRunner().invoke(app, list(words), input=typed)
    assert done.exit_code == 0, f"{' '.join(words)}:\n{done.output}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(("name", "code"), SHELL, ids=[name for name, _ in SHELL])
def test_shell_commands_exist(name: str, code: str) -> None:
    """Resolve `make` targets without running them, and look up options of `deepca` commands in their help."""
    for line in code.splitlines():
        command = line.split("#")[0].split()
        if not command:
            continue
        if command[0] == "mpiexec":
            command = command[command.index("deepca") :]
        if command[:3] == ["python", "-m", "studies.adversary"]:  # its cases are run by tests/studies/test_adversary.py
            assert options().parse_args(command[3:]).cases
            continue
        assert command[0] in ("make", "deepca") or line == ". .venv/bin/activate", f"{name}: add a test for {line!r}"
        if command[0] == "deepca":
            named = command[1:3] if command[1] in ("agent", "cluster") else command[1:2]
            shown = CliRunner().invoke(app, [*named, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
            assert shown.exit_code == 0
            for word in command[2:]:
                assert not word.startswith("-") or word in shown.output, line
        if command[0] == "make":
            done = _run("make", "--dry-run", *command[1:], cwd=ROOT)
            assert done.returncode == 0, done.stderr


def test_links_between_pages_are_valid() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_reference_is_up_to_date() -> None:
    page = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert page is not None
    assert page.loader is not None
    module = importlib.util.module_from_spec(page)
    page.loader.exec_module(module)
    assert module.page() == (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), "run make reference"
