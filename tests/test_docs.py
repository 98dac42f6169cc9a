"""Every snippet, example and command that the documentation shows runs."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
    assert {words[1] for words in commands} >= {"sample", "fit", "inspect", "transform", "topology"}
    for words in commands:
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{' '.join(words)}:\n{done.output}"
        for option in ("-o", "--out", "--plot"):
            if option in words:
                assert (tmp_path / words[words.index(option) + 1]).exists()


def test_the_plans_of_the_guides_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [code for name, code in SHELL if name.startswith("guides") and "deepca plan" in code]
    assert blocks
    for line in blocks[0].splitlines():
        done = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
        assert done.exit_code == 0, f"{line}:\n{done.output}"


@pytest.mark.parametrize(("name", "code"), SHELL, ids=[name for name, _ in SHELL])
def test_shell_commands_exist(name: str, code: str) -> None:
    """`make` targets are resolved without running them; `deepca` commands are run by the tests of the command line."""
    for line in code.splitlines():
        command = line.split("#")[0].split()
        if not command:
            continue
        assert command[0] in ("make", "deepca") or line == ". .venv/bin/activate", f"{name}: add a test for {line!r}"
        if command[0] == "deepca":
            shown = CliRunner().invoke(app, [command[1], "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
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
