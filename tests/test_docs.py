"""Every snippet, example and command that the documentation shows runs."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA
from typer.testing import CliRunner

import deepca
from deepca.cli.app import app

ROOT = Path(__file__).parents[1]
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
    """In their order, in an empty folder, each writing what it says."""
    monkeypatch.chdir(tmp_path)
    lines = [line for name, code in SHELL if name.startswith("README") for line in code.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("deepca ")]
    assert {words[1] for words in commands} >= {"sample", "fit", "inspect", "transform", "topology", "cluster", "demo"}
    for words in commands:
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{' '.join(words)}:\n{done.output}"
        for option in ("-o", "--out", "--plot"):
            if option in words:
                assert (tmp_path / words[words.index(option) + 1]).exists()


def test_the_set_up_that_the_readme_shows_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the agent's start, which asks for the certificate that the keeper of the authority has to make."""
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
    """From the example of a network to an agent's result, with keys that are made at the site."""
    monkeypatch.chdir(tmp_path)
    lines = [line for name, code in SHELL if name.startswith("sites") for line in code.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert [words[0] for words in commands][:3] == ["sample", "cluster", "demo"]  # as those of the README
    network = """
        name = "two-hospitals"
        components = 2
        topology = "path"
        patience = "10s"
        [[sites]]
        name = "north"
        address = "127.0.0.1:{}"
        [[sites]]
        name = "south"
        """
    Path("network.toml").write_text(network.format(_free_port()), encoding="utf-8")
    rows = np.random.default_rng(0).standard_normal((60, 5)) * np.arange(1.0, 6.0)
    for words in commands[3:]:
        if words[0] in ("doctor", "agent"):
            continue
        _invoke(*words)
        if words[:2] == ["init", "network.toml"]:
            for site, part in (("north", rows[:20]), ("south", rows[20:])):
                shutil.copytree(Path("kits", site), site)
                np.save(f"{site}/rows.npy", part)
                text = Path(site, "site.toml").read_text(encoding="utf-8")
                Path(site, "site.toml").write_text(
                    re.sub(r"(?m)^data = .*$", 'data = "rows.npy"', text), encoding="utf-8"
                )
    _invoke("join", "south/site.toml")
    _invoke("join", "--sign", "south/request.csr", "--authority", "kits/authority")
    _invoke("join", "south/site.toml", "--certificate", "south/south.pem")
    checked = CliRunner().invoke(app, ["doctor", "north/site.toml"])
    assert checked.exit_code in (0, 1), checked.output  # nobody is there yet
    agents = [
        subprocess.Popen([sys.executable, "-m", "deepca", "agent", "run", f"{site}/site.toml", "--deadline", "120s"])
        for site in ("south", "north")
    ]
    assert [agent.wait(150) for agent in agents] == [0, 0]
    assert Path("north/model.npz").read_bytes() == Path("south/model.npz").read_bytes()
    shown = CliRunner().invoke(app, ["inspect", "north/model.npz"]).output
    assert "run 1: rows of north, south" in shown
    pooled = PCA(2).fit(rows)
    assert np.abs(deepca.load("north/model.npz").components - pooled.components_).max() < 1e-10


def _invoke(*words: str) -> None:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, f"{' '.join(words)}:\n{done.output}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(("name", "code"), SHELL, ids=[name for name, _ in SHELL])
def test_shell_commands_exist(name: str, code: str) -> None:
    """`make` targets are resolved without running them; `deepca` commands are run by the tests of the command line."""
    for line in code.splitlines():
        command = line.split("#")[0].split()
        if not command:
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


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_reference_is_that_of_the_code() -> None:
    page = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert page is not None
    assert page.loader is not None
    module = importlib.util.module_from_spec(page)
    page.loader.exec_module(module)
    assert module.page() == (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), "run make reference"
